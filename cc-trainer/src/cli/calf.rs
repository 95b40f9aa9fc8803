//! `cc-trainer calf`: communication-aware learning, as a matrix of regimes and conditions.

mod live;
mod serve;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use cc_trainer::calf::CalfResults;

use super::study::{RunOptions, run};

/// Measure what policies lose behind a network, by the network that they were trained behind.
///
/// Trains every regime, a variant of the study, with every seed, and judges the final policies
/// under all conditions of the study's matrix: delay, jitter and loss of observations and of
/// decisions, in virtual time. --out gets calf.md with the tables, calf.json and calf.svg, and a
/// directory for each run. Ctrl-C ends the study with what is there; the same command continues it.
/// `calf live` then runs the policies in real time.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct CalfArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    runs: Option<RunOptions>,
    /// Directory of the study. Runs and scores that it already holds are kept.
    #[arg(long, value_name = "DIR", default_value = "calf")]
    out: PathBuf,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Live(live::LiveArgs),
    Serve(serve::ServeArgs),
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer calf --config cc-trainer/training/calf-cartpole.toml --out calf
      CartPole 20 ms at a time, behind networks from clean to degraded
  cc-trainer calf --config cc-trainer/training/calf-cartpole.toml --out calf --steps 20000 --jobs 1
      the same in a minute or two, to see what it writes";

pub(crate) fn command(args: &CalfArgs) -> anyhow::Result<ExitCode> {
    match (&args.command, &args.runs) {
        (Some(Command::Live(args)), _) => live::command(args),
        (Some(Command::Serve(args)), _) => serve::command(args),
        (None, Some(runs)) => matrix(runs, &args.out),
        (None, None) => bail!("give --config STUDY.toml, or a command: live or serve"),
    }
}

/// Runs the matrix, in virtual time.
fn matrix(runs: &RunOptions, out: &Path) -> anyhow::Result<ExitCode> {
    let ended = run(runs, out)?;
    let results = CalfResults::new(&ended.study, &ended.runs, &ended.command);
    let results = results.with_context(|| {
        let file = runs.config.display();
        format!("{file} has no `[matrix]` of conditions: add one, or use `cc-trainer study`")
    })?;
    let [json, _, svg] = results.write(out)?;
    super::print(format_args!("{}\n", results.table()))?;
    for (name, gap) in results.gaps() {
        let matrix = &results.matrix;
        super::print(format_args!(
            "{name}: {:.0} % lost from {} to {}\n",
            100.0 * gap,
            matrix.clean,
            matrix.degraded
        ))?;
    }
    super::print(format_args!(
        "\nplot:         {}\nmeasurements: {}\n",
        svg.display(),
        json.display()
    ))?;
    if !ended.is_complete {
        bail!("ended early; the same command continues from here");
    }
    Ok(ExitCode::SUCCESS)
}
