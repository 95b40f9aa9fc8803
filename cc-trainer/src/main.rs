//! The trainer's binary.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand};

/// Makes the policies that cc-agent serves.
#[derive(Debug, Parser)]
#[command(name = "cc-trainer", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the policy that is set by hand: a network that follows a queueing-delay target through
    /// the ordinary observation. It is the agent's default until a trained one takes its place, and
    /// a place to start from.
    Heuristic {
        /// Where the ONNX file goes; one that exists is replaced.
        #[arg(long, value_name = "FILE.onnx", default_value = "heuristic.onnx")]
        out: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Heuristic { out } => {
            fs::write(&out, cc_agent::policy::heuristic_file())
                .with_context(|| format!("writing {}", out.display()))?;
            println!("wrote {}", out.display());
            Ok(())
        }
    }
}
