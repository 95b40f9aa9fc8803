//! The longer proofs of `cargo xtask test --long`.

use std::{ffi::OsString, time::Duration};

use anyhow::{Context, Result, bail};

use crate::process::say;

/// One of the longer proofs.
struct Proof {
    name: &'static str,
    run: fn(&Limits) -> Result<()>,
}

/// The times that bound the proofs.
struct Limits {
    /// See `--deadline-s` of `cargo xtask test`.
    deadline: Duration,
}

/// All of them, in the order in which they run. CONTRIBUTING.md describes each.
const PROOFS: [Proof; 1] = [Proof {
    name: "ignored tests",
    run: ignored_tests,
}];

/// Runs every proof, whether or not those before it failed.
///
/// # Errors
///
/// Returns an error that names the proofs that failed.
pub(super) fn run(_fuzz: Duration, deadline: Duration) -> Result<()> {
    let limits = Limits { deadline };
    let mut failed = Vec::new();
    for Proof { name, run } in PROOFS {
        say(format_args!("long: {name}"));
        if let Err(error) = run(&limits).with_context(|| format!("long: {name}")) {
            say(format_args!("{error:#}"));
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the unit tests marked `#[ignore]`: those that take too long for every day. (Not the tests
/// on the live kernel, which mark themselves as ignored where the host cannot run them.)
fn ignored_tests(limits: &Limits) -> Result<()> {
    let arguments = ["--lib", "--bins", "--", "--ignored"].map(OsString::from);
    super::test(&arguments, limits.deadline)
}
