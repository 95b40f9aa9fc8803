//! `cc-trainer heuristic`: the policy that is set by hand.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;

/// Write the policy that is set by hand: a network that follows a queueing-delay target through the ordinary
/// observation. `--policy heuristic` serves the same rule; what is trained has to do better.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the ONNX file goes; one that exists is replaced.
    #[arg(long, value_name = "FILE.onnx", default_value = "heuristic.onnx")]
    out: PathBuf,
}

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    fs::write(&args.out, cc_core::policy::heuristic_file())
        .with_context(|| format!("writing {}", args.out.display()))?;
    super::print(format_args!("wrote {}\n", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}
