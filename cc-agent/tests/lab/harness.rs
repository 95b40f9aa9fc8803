//! Runs trials on the live kernel, or says why it does not.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use libtest_mimic::{Arguments, Completion, Trial};

use super::{cgroup, namespace};

/// Runs the trials one after the other, behind the lock. Where the host lacks something, each is
/// reported as ignored, and the reason is printed so that nobody takes silence for success.
pub(crate) fn run(trials: &[(&'static str, fn())]) -> ExitCode {
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let unmet = unmet_requirement();
    let _exclusive = (!arguments.list && unmet.is_none()).then(Exclusive::take);
    let list = trials.iter().map(|&(name, trial)| {
        let unmet = unmet.clone();
        Trial::ignorable_test(name, move || {
            if let Some(reason) = unmet {
                return Ok(Completion::ignored_with(reason));
            }
            trial();
            Ok(Completion::Completed)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, list.collect());
    if let Some(reason) = unmet.filter(|_| !arguments.list) {
        eprintln!(
            "SKIPPED: {} tests on the live kernel did not run: {reason}",
            conclusion.num_ignored
        );
    }
    conclusion.exit_code()
}

/// What this host lacks for tests on the live kernel, if anything.
pub(crate) fn unmet_requirement() -> Option<String> {
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root (BPF and network namespaces need it)".into());
    }
    if !cc_agent::kernel::datapath::has_object() {
        return Some("built without the BPF object (`cargo xtask build` makes it)".into());
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("the kernel shows no BTF at /sys/kernel/btf/vmlinux".into());
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
pub(crate) struct Exclusive {
    _lock: File,
}

impl Exclusive {
    /// Waits for it, and then sweeps away what dead programs left behind.
    pub(crate) fn take() -> Self {
        let lock = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open("/run/cc-lab.lock")
            .expect("root may write to /run");
        lock.lock().expect("a lock on a regular file");
        namespace::sweep();
        cgroup::sweep();
        Self { _lock: lock }
    }
}
