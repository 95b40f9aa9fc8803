//! `cargo xtask run`: the agent from this workspace.

use std::{ffi::OsString, os::unix::process::CommandExt};

use anyhow::{Context, Result};

use crate::{build, process};

/// Run the congestion control: set up what is missing, build the agent, and start `cc-agent run`.
///
/// Registers the congestion control and serves the flows that choose it, until Ctrl-C or SIGTERM.
/// Loading BPF programs needs root: when this user is not root, the agent (and it alone) is started
/// through sudo. The exit code is the agent's.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of `cc-agent run`, after `--`; `cargo xtask run -- --help` explains them.
    #[arg(last = true, value_name = "ARGS")]
    agent: Vec<OsString>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    let agent = build::agent()?;
    let mut command = process::as_root(&agent, "loading BPF programs")?;
    command.arg("run").args(&args.agent);
    // Replaces this process, so that the agent receives all signals and its exit code is ours.
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", agent.display()))
}
