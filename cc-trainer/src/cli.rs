//! The commands.

mod compare;
mod evaluate;
mod heuristic;
mod interrupt;
mod link;
mod train;

use std::{env, process::ExitCode};

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
    Compare(compare::Args),
    Train(train::Args),
    Evaluate(evaluate::Args),
    Link(link::Args),
    Heuristic(heuristic::Args),
}

/// Does what the command line says.
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Compare(args) => compare::command(&args),
        Command::Train(args) => train::command(&args),
        Command::Evaluate(args) => evaluate::command(&args),
        Command::Link(args) => link::command(&args),
        Command::Heuristic(args) => heuristic::command(&args),
    }
}

/// The command line, for records.
fn command_line() -> String {
    let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}
