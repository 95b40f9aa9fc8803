//! `cc-trainer average`: the mean of policies.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use cc_core::{durable::replace_durably, policy::PolicyFile};
use cc_trainer::average::average;

/// Average the parameters of policies that were trained further from one.
///
/// The mean of a policy and of what `cc-trainer train --init` made of it is often better than
/// either: it keeps what both are good at. All but the parameters is the first file's.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct AverageArgs {
    /// Policies, whose networks and interfaces must be alike; only the first may observe more.
    #[arg(value_name = "FILE.onnx", required = true, num_args = 1..)]
    policies: Vec<PathBuf>,
    /// Have the mean compare with what all flows between the same hosts know (`shared_path` in its
    /// interface), whether or not the files do. One file is enough then.
    #[arg(long)]
    shared_path: bool,
    /// Path of the mean. An existing file is replaced.
    #[arg(long, value_name = "FILE.onnx")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer train --config refine.toml --init policy.onnx --out refined
  cc-trainer average refined/policy.onnx policy.onnx --out mean.onnx
      half of each, with the interface of the refined one
  cc-trainer average policy.onnx --shared-path --out shared.onnx
      the same policy, whose flows between the same hosts share what they know";

pub(crate) fn command(args: &AverageArgs) -> anyhow::Result<ExitCode> {
    let read = |path: &PathBuf| PolicyFile::read(path);
    let files: Result<Vec<_>, _> = args.policies.iter().map(read).collect();
    let bytes = average(&files?, args.shared_path)?;
    replace_durably(&args.out, &bytes)
        .with_context(|| format!("writing {}", args.out.display()))?;
    super::print(format_args!("wrote {}\n", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}
