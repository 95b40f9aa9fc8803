//! Runs trials on the live kernel one at a time, or reports why this host cannot.

use std::{
    fs::{self, File},
    process::{self, Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Trial};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long a trial may take. The slowest ones take about a minute on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

/// How a trial ended, unless it panicked.
pub enum Outcome {
    /// The property holds: the trial counts as passed.
    Passed,
    /// This host could not decide whether the property holds, for the given reason; the trial is
    /// reported as ignored.
    Undecided(String),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

/// A trial's name, and its function, which panics when a property does not hold. [`trials!`] makes
/// a list of them.
///
/// [`trials!`]: crate::trials
pub type Named = (&'static str, fn() -> Outcome);

/// Lists trials under the names of their functions.
///
/// `trials![first, second]` is `&[("first", first), ("second", second)]`, where each function
/// returns an [`Outcome`] or, if it only ever passes or panics, nothing. It is for
/// [`run`](crate::run()) and [`run_on_links`](crate::run_on_links).
#[macro_export]
macro_rules! trials {
    ($($trial:ident),+ $(,)?) => {
        &[$((
            stringify!($trial),
            (|| $crate::Outcome::from($trial())) as fn() -> $crate::Outcome,
        )),+]
    };
}

/// Runs the trials one after the other, with the live kernel to this program alone, and returns the
/// program's exit code.
///
/// Where the host lacks a requirement (`unmet`), each trial is reported as ignored and the reason
/// is printed, so that the silence is not mistaken for success. A trial that takes longer than ten
/// minutes ends the whole program.
pub fn run(trials: &[Named], unmet: Option<String>) -> ExitCode {
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let exclusive = (!arguments.list && unmet.is_none()).then(crate::exclusive);
    let list = trials.iter().map(|&(name, trial)| {
        let unmet = unmet.clone();
        Trial::ignorable_test(name, move || {
            if let Some(reason) = unmet {
                return Ok(Completion::ignored_with(reason));
            }
            let _watchdog = Watchdog::start(name, DEADLINE, fail);
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
        let reason = unmet.unwrap_or_else(|| "the host could not decide them (see above)".into());
        eprintln!(
            "SKIPPED: {} tests on the live kernel did not run to the end: {reason}",
            conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// Calls a function with a trial's name when the watchdog still exists after the deadline.
struct Watchdog {
    /// Never sent on: dropping it wakes the thread.
    _running: Sender<()>,
}

impl Watchdog {
    fn start(
        name: &'static str,
        deadline: Duration,
        expire: impl FnOnce(&str) + Send + 'static,
    ) -> Self {
        let (running, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                expire(name);
            }
        });
        Self { _running: running }
    }
}

/// Ends the program. A trial that hangs cannot be stopped otherwise, and its destructors do not
/// run: its child processes, namespaces and cgroups are removed here.
fn fail(name: &str) {
    eprintln!(
        "FAILED: {name} did not end within {} s; the program ends here",
        DEADLINE.as_secs()
    );
    kill_children();
    crate::remove_own_places();
    // The exit code of libtest-mimic for failed trials.
    process::exit(101);
}

/// Kills the processes that this program started and that are still running.
fn kill_children() {
    let own = process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let id = process.file_name().to_string_lossy().parse();
        if let (Some(parent), Ok(id)) = (parent, id)
            && parent.trim() == own
        {
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

/// Returns what this host lacks for network namespaces and links between them, or `None` if they
/// can be made here.
pub fn unmet_requirement() -> Option<String> {
    // SAFETY: geteuid has no arguments and cannot fail.
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

/// The exclusive use of the live kernel: held by one program at a time, released on drop.
pub struct Exclusive {
    _lock: File,
}

impl Exclusive {
    /// Waits until no other program holds it, without a limit.
    ///
    /// # Panics
    ///
    /// Panics if the lock file in /run cannot be created or locked.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_reports_the_name_of_a_trial_past_its_deadline() {
        let (expired, name) = mpsc::channel();
        let watchdog = Watchdog::start("slow", Duration::ZERO, move |name| {
            let _ = expired.send(name.to_owned());
        });
        assert_eq!(name.recv().as_deref(), Ok("slow"));
        drop(watchdog);
    }

    #[test]
    fn a_watchdog_of_a_trial_that_ended_stays_silent() {
        let (expired, name) = mpsc::channel();
        drop(Watchdog::start("quick", Duration::MAX, move |name| {
            let _ = expired.send(name.to_owned());
        }));
        // The thread ends without sending, and drops its sender.
        assert!(name.recv().is_err());
    }

    #[test]
    fn trials_have_the_names_of_their_functions() {
        fn holds() {}
        fn cannot_be_decided() -> Outcome {
            Outcome::Undecided("the host is busy".into())
        }
        let trials: &[Named] = trials![holds, cannot_be_decided];
        assert_eq!(trials[0].0, "holds");
        assert!(matches!(trials[0].1(), Outcome::Passed));
        assert!(matches!(trials[1].1(), Outcome::Undecided(_)));
    }
}
