//! Runs trials on the live kernel, or says why it does not.

use std::{
    fs, io,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use libtest_mimic::{Arguments, Completion, Trial};

/// How a trial ended, unless it panicked.
pub(crate) enum Outcome {
    /// It holds.
    Passed,
    /// This host could not decide it, for this reason.
    Undecided(String),
}

/// A trial; it panics when something does not hold.
pub(crate) type Check = fn() -> Outcome;

/// Runs the trials one after the other, behind the lock that all such test programs share. Where the host lacks
/// something, each is reported as ignored, and the reason is printed so that nobody takes silence for success.
pub(crate) fn run(trials: &[(&'static str, Check)]) -> ExitCode {
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let unmet = unmet_requirement();
    let exclusive = (!arguments.list && unmet.is_none()).then(exclusive);
    let list = trials.iter().map(|&(name, trial)| {
        let unmet = unmet.clone();
        Trial::ignorable_test(name, move || {
            if let Some(reason) = unmet {
                return Ok(Completion::ignored_with(reason));
            }
            Ok(match trial() {
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
        let reason = unmet.unwrap_or_else(|| "the host was too busy (see above)".into());
        eprintln!(
            "SKIPPED: {} tests on the live kernel did not run to the end: {reason}",
            conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// What this host lacks for tests on the live kernel, if anything.
pub(crate) fn unmet_requirement() -> Option<String> {
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root (network namespaces and TUN devices need it)".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("no TUN driver (`modprobe tun`)".into());
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

/// The right to use the live kernel: held by one program at a time, until the file is closed.
fn exclusive() -> fs::File {
    let lock = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open("/run/cc-lab.lock")
        .and_then(|lock| lock.lock().map(|()| lock));
    lock.unwrap_or_else(|error: io::Error| panic!("/run/cc-lab.lock: {error}"))
}
