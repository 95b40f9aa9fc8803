//! The command line: one module per subcommand, and what they share.

mod abr;
mod act;
mod average;
mod blocking;
mod calf;
mod calibrate;
mod closed_loop;
mod compare;
mod dataset;
mod evaluate;
mod heuristic;
mod interrupt;
mod joined;
mod league;
mod learn;
mod link;
mod offline;
mod ope;
mod pool;
mod runs;
mod screen;
mod search;
mod sets;
mod shim;
mod study;
mod sweep;
mod train;
mod values;
mod workers;

use std::{
    env,
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use cc_core::error_chain;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

/// Size of the partitions that recordings are sorted in, bytes. Each thread holds one in memory.
const SCRATCH_PARTITION: u64 = 32 << 20;

/// Trains, evaluates and exports the congestion-control policies that cc-agent serves.
///
/// The subcommands use the emulated kernel link or the simulator. Each
/// one's --help ends with examples.
#[derive(Debug, Parser)]
#[command(name = "cc-trainer", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Abr(abr::AbrArgs),
    Act(act::ActArgs),
    Average(average::AverageArgs),
    Learn(learn::LearnArgs),
    Blocking(blocking::BlockingArgs),
    Calf(calf::CalfArgs),
    Calibrate(calibrate::CalibrateArgs),
    Compare(compare::CompareArgs),
    Dataset(dataset::DatasetArgs),
    Ope(ope::OpeArgs),
    Pool(pool::PoolArgs),
    Offline(offline::OfflineArgs),
    Sets(sets::SetsArgs),
    Shim(shim::ShimArgs),
    Study(study::StudyArgs),
    Sweep(sweep::SweepArgs),
    Train(train::TrainArgs),
    Evaluate(evaluate::EvaluateArgs),
    League(league::LeagueArgs),
    Loop(closed_loop::LoopArgs),
    Search(search::SearchArgs),
    Link(link::Args),
    Heuristic(heuristic::HeuristicArgs),
}

/// Runs the subcommand and prints an error if it fails.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Abr(args) => abr::command(&args),
        Command::Act(args) => act::command(&args),
        Command::Average(args) => average::command(&args),
        Command::Learn(args) => learn::command(&args),
        Command::Blocking(args) => blocking::command(&args),
        Command::Calf(args) => calf::command(&args),
        Command::Calibrate(args) => calibrate::command(&args),
        Command::Compare(args) => compare::command(&args),
        Command::Dataset(args) => dataset::command(&args),
        Command::Ope(args) => ope::command(&args),
        Command::Pool(args) => pool::command(&args),
        Command::Offline(args) => offline::command(&args),
        Command::Sets(args) => sets::command(&args),
        Command::Shim(args) => shim::command(&args),
        Command::Study(args) => study::command(&args),
        Command::Sweep(args) => sweep::command(&args),
        Command::Train(args) => train::command(&args),
        Command::Evaluate(args) => evaluate::command(&args),
        Command::League(args) => league::command(&args),
        Command::Loop(args) => closed_loop::command(&args),
        Command::Search(args) => search::command(&args),
        Command::Link(args) => link::command(&args),
        Command::Heuristic(args) => heuristic::command(&args),
    };
    outcome.unwrap_or_else(|error| {
        // Printed here and not by `main`, which would append a backtrace when RUST_BACKTRACE is
        // set.
        note(format_args!("error: {}", error_chain(&*error)));
        ExitCode::FAILURE
    })
}

/// Writes to standard output. A closed pipe is not an error: the reader, such
/// as `head`, has seen enough.
fn print(text: impl Display) -> anyhow::Result<()> {
    match write!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("writing to standard output"),
    }
}

/// Writes a line to standard error, ignoring failures.
fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Creates a progress bar on standard error, which is shown on terminals only.
fn bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style =
        ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {msg} ({eta} left)");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.with_message(what.to_owned())
}

/// Returns the command line, for the records of runs.
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
    fn a_cause_in_the_message_is_not_repeated() {
        let source = io::Error::other("no such file");
        let error = anyhow::Error::new(Unread { source }).context("nothing to train");
        assert_eq!(
            error_chain(&*error),
            "nothing to train: reading x.toml: no such file"
        );
    }
}
