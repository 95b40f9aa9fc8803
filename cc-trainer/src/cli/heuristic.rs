//! `cc-trainer heuristic`: the policy that is set by hand.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;

/// Write the policy that is set by hand: a network that follows a queueing-delay target through the ordinary
/// observation. It is the agent's default until a trained one takes its place, and a place to start from.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the ONNX file goes; one that exists is replaced.
    #[arg(long, value_name = "FILE.onnx", default_value = "heuristic.onnx")]
    out: PathBuf,
}

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    fs::write(&args.out, cc_agent::policy::heuristic_file())
        .with_context(|| format!("writing {}", args.out.display()))?;
    println!("wrote {}", args.out.display());
    Ok(ExitCode::SUCCESS)
}
