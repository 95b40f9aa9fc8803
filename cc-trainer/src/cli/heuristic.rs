//! `cc-trainer heuristic`: writes the hand-made policy to a file.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;

/// Write the hand-made policy as an ONNX file.
///
/// The network has hand-set weights that steer to a queueing-delay target, from the
/// ordinary observation. `--policy heuristic` serves the same rule. It is the baseline that
/// a trained policy has to beat.
#[derive(Debug, clap::Args)]
pub(crate) struct HeuristicArgs {
    /// Path of the ONNX file. An existing file is replaced.
    #[arg(long, value_name = "FILE.onnx", default_value = "heuristic.onnx")]
    out: PathBuf,
}

pub(crate) fn command(args: &HeuristicArgs) -> anyhow::Result<ExitCode> {
    fs::write(&args.out, cc_core::policy::heuristic_file())
        .with_context(|| format!("writing {}", args.out.display()))?;
    super::print(format_args!("wrote {}\n", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}
