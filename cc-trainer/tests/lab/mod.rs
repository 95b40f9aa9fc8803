//! What the tests on the live kernel share: the harness and the patience of the agent's own such tests.

#[path = "../../../cc-agent/tests/lab/eventually.rs"]
mod eventually;
#[path = "../../../cc-agent/tests/lab/harness.rs"]
mod harness;

use std::{path::Path, process::ExitCode};

pub(crate) use eventually::eventually;
pub(crate) use harness::Outcome;

/// Runs the trials where this host has what emulated links need.
pub(crate) fn run(trials: &[harness::Named<Outcome>]) -> ExitCode {
    let no_tun = || {
        let missing = !Path::new("/dev/net/tun").exists();
        missing.then(|| "no TUN driver (`modprobe tun`)".to_owned())
    };
    // Nothing here has a name that could be left behind.
    harness::run(trials, harness::unmet_requirement().or_else(no_tun), || {})
}
