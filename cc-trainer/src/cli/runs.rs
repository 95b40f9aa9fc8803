//! What subcommands share that run schemes over links: options, and the need for root.

use std::path::PathBuf;

use anyhow::bail;
use cc_core::policy::{ActionSelection, PolicySpec};
use cc_testbed::{
    evaluate::{Controls, Jobs, Scheme, parse_schemes},
    summary::Platform,
};

use super::values::jobs;

/// The policy of the scheme `rlcc`, and how it decides.
#[derive(Debug, clap::Args)]
pub(super) struct Rlcc {
    /// Policy of the scheme `rlcc`: a FILE.onnx, `default` (the one embedded in
    /// cc-agent), `heuristic`, `random` or `fixed:N`.
    #[arg(long, value_name = "POLICY", default_value = "default")]
    pub(super) policy: PolicySpec,
    /// How policies from files select actions: `greedy` (the most probable one), `softmax`
    /// (sampled) or `softmax:TEMPERATURE` [default: as each file specifies].
    #[arg(long, value_name = "HOW")]
    pub(super) serving: Option<ActionSelection>,
}

impl Rlcc {
    /// Parses a list of schemes, of which `rlcc` may be one.
    pub(super) fn schemes(&self, list: &str, on: Platform) -> anyhow::Result<Vec<Scheme>> {
        let controls = Controls::of(on);
        Ok(parse_schemes(list, &self.policy, self.serving, controls)?)
    }
}

/// How the runs are done.
#[derive(Debug, clap::Args)]
pub(super) struct Runs {
    /// Seed of the links' random loss and jitter, which are the same for all schemes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Remove the runs that the directory holds, and start over.
    #[arg(long)]
    pub(super) fresh: bool,
    /// Path of the cc-agent program, which serves policies on the kernel
    /// [default: cc-agent beside this program].
    #[arg(long, value_name = "PATH")]
    pub(super) agent: Option<PathBuf>,
    /// Number of runs at the same time: `auto` (on the kernel, as many as leave packets punctual;
    /// in the simulator, one per core) or a number from 1 to 64.
    #[arg(long, value_name = "N", default_value = "auto", value_parser = jobs)]
    pub(super) jobs: Jobs,
}

/// Checks that this process may run `what` on the platform.
///
/// # Errors
///
/// Returns an error on the kernel when the process is not root.
pub(super) fn check_privileges(what: &str, on: Platform) -> anyhow::Result<()> {
    // SAFETY: geteuid has no arguments and cannot fail.
    if on == Platform::Kernel && unsafe { libc::geteuid() } != 0 {
        bail!(
            "{what} on the kernel needs root, for network namespaces and TUN devices: run it with \
             sudo, or use --on sim"
        );
    }
    Ok(())
}
