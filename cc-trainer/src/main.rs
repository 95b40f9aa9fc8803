//! The `cc-trainer` binary: trains, evaluates and exports congestion-control policies.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse())
}
