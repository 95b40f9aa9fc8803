//! Runs trials on the live kernel, or says why it does not. The trainer's tests take this file as well.
#![allow(dead_code, reason = "each program uses its own part")]

use std::{
    fs::{self, File},
    process::{Command, ExitCode, Stdio},
};

use libtest_mimic::{Arguments, Completion, Trial};

/// How a trial ended, unless it panicked.
pub enum Outcome {
    /// It holds.
    Passed,
    /// This host could not decide it, for this reason.
    Undecided(String),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

/// A name, and a check that panics when something does not hold.
pub type Named<O> = (&'static str, fn() -> O);

/// Runs the trials one after the other, behind the lock, after `sweep` has removed what dead programs left behind. Where
/// the host has an `unmet` requirement, each is reported as ignored, and the reason is printed so that nobody takes
/// silence for success.
pub fn run<O: Into<Outcome> + 'static>(
    trials: &[Named<O>],
    unmet: Option<String>,
    sweep: fn(),
) -> ExitCode {
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let exclusive = (!arguments.list && unmet.is_none()).then(Exclusive::take);
    if exclusive.is_some() {
        sweep();
    }
    let list = trials.iter().map(|&(name, trial)| {
        let unmet = unmet.clone();
        Trial::ignorable_test(name, move || {
            if let Some(reason) = unmet {
                return Ok(Completion::ignored_with(reason));
            }
            Ok(match trial().into() {
                Outcome::Passed => Completion::Completed,
                Outcome::Undecided(reason) => {
                    eprintln!("SKIPPED: {name}: {reason}");
                    Completion::ignored_with(reason)
                }
            })
        })
    });
    let conclusion = libtest_mimic::run(&arguments, list.collect());
    drop(exclusive);
    if conclusion.num_ignored > 0 && !arguments.list {
        let reason = unmet.unwrap_or_else(|| "the host could not decide them (see above)".into());
        eprintln!(
            "SKIPPED: {} tests on the live kernel did not run to the end: {reason}",
            conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// What this host lacks for network namespaces and links between them, if anything.
pub fn unmet_requirement() -> Option<String> {
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root (BPF, network namespaces and TUN devices need it)".into());
    }
    for program in ["ip", "tc"] {
        let found = Command::new(program)
            .arg("-V")
            .stdout(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            return Some(format!(
                "no {program} (Debian and Ubuntu: package iproute2)"
            ));
        }
    }
    let probe = Command::new("unshare").args(["--net", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return Some("this host allows no new network namespaces".into());
    }
    None
}

/// The right to use the live kernel: held by one program at a time.
pub struct Exclusive {
    _lock: File,
}

impl Exclusive {
    /// Waits for it.
    pub fn take() -> Self {
        let lock = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open("/run/cc-lab.lock")
            .expect("root may write to /run");
        lock.lock().expect("a lock on a regular file");
        Self { _lock: lock }
    }
}
