//! The commands.

mod evaluate;
mod heuristic;
mod link;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes the policies that cc-agent serves, and finds out what they are worth.
#[derive(Debug, Parser)]
#[command(name = "cc-trainer", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Evaluate(evaluate::Args),
    Link(link::Args),
    Heuristic(heuristic::Args),
}

/// Does what the command line says.
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Evaluate(args) => evaluate::command(&args),
        Command::Link(args) => link::command(&args),
        Command::Heuristic(args) => heuristic::command(&args),
    }
}
