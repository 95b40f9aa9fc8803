//! `cargo xtask demo`: `rlcc` beside cubic on an emulated link.

use std::{os::unix::process::CommandExt, path::PathBuf};

use anyhow::{Context, Result};

use crate::{build, process, setup, workspace};

/// See it work: `rlcc` and cubic on one emulated link.
///
/// Sets up what is missing, builds, and lets both send over an emulated link of 24 Mbit/s and 40 ms
/// under the real kernel: each alone, then `rlcc` beside a cubic flow. Draws rates and delays while
/// they run, then shows the summary, and prints the path of the picture. Needs root (and uses sudo
/// when this user is not root). The links live in network namespaces of their own: this host's
/// network is not changed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Length of each run in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u32,

    /// The directory to write summary.json and report.html to [default: target/demo].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    let programs = build::programs()?;
    setup::kernel_tools();
    let out = match &args.out {
        Some(dir) => dir.clone(),
        None => workspace::target_dir().join("demo"),
    };
    let mut command = process::as_root(&programs.trainer, "emulating a link")?;
    command
        .args(["evaluate", "--on", "kernel", "--live", "--fresh"])
        .args(["--scenarios", "demo", "--schemes", "rlcc,cubic"])
        .args(["--runs", "1", "--seconds", &args.seconds.to_string()])
        .arg("--agent")
        .arg(&programs.agent)
        .arg("--out")
        .arg(out);
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", programs.trainer.display()))
}
