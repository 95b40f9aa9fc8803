//! The commands.

mod blocking;
mod compare;
mod dataset;
mod evaluate;
mod heuristic;
mod interrupt;
mod link;
mod ope;
mod study;
mod train;

use std::{
    env,
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

/// Size of the parts that recordings are sorted in, bytes; each thread holds one in memory.
const SCRATCH_PARTITION: u64 = 32 << 20;

/// Makes the policies that cc-agent serves, and finds out what they are worth.
#[derive(Debug, Parser)]
#[command(name = "cc-trainer", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Blocking(blocking::BlockingArgs),
    Compare(compare::CompareArgs),
    Dataset(dataset::DatasetArgs),
    Ope(ope::OpeArgs),
    Study(study::StudyArgs),
    Train(train::TrainArgs),
    Evaluate(evaluate::EvaluateArgs),
    Link(link::Args),
    Heuristic(heuristic::HeuristicArgs),
}

/// Does what the command line says, and tells of a failure.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Blocking(args) => blocking::command(&args),
        Command::Compare(args) => compare::command(&args),
        Command::Dataset(args) => dataset::command(&args),
        Command::Ope(args) => ope::command(&args),
        Command::Study(args) => study::command(&args),
        Command::Train(args) => train::command(&args),
        Command::Evaluate(args) => evaluate::command(&args),
        Command::Link(args) => link::command(&args),
        Command::Heuristic(args) => heuristic::command(&args),
    };
    outcome.unwrap_or_else(|error| {
        // By hand, as a backtrace (RUST_BACKTRACE) tells the user of a command nothing.
        note(format_args!("error: {}", told(&error)));
        ExitCode::FAILURE
    })
}

/// An error and what led to it. Many of our errors tell their cause themselves; it is not told twice.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Writes to standard output. A reader that has seen enough, such as head, is no failure.
fn print(text: impl Display) -> anyhow::Result<()> {
    match write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("writing to standard output"),
    }
}

/// Writes a line to standard error; that nobody reads it is no reason to stop.
fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A progress bar on standard error, which shows on terminals only.
fn bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style =
        ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg} ({eta} left)");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.with_message(what.to_owned())
}

/// The command line, for records.
fn command_line() -> String {
    let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading x.toml: {source}")]
    struct Unread {
        source: io::Error,
    }

    #[test]
    fn a_cause_is_told_once() {
        let source = io::Error::other("no such file");
        let error = anyhow::Error::new(Unread { source }).context("nothing to train");
        assert_eq!(
            told(&error),
            "nothing to train: reading x.toml: no such file"
        );
    }
}
