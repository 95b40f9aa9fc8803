//! `cc-trainer sweep`: looks for the best settings of a training configuration.

use std::{num::NonZero, path::PathBuf, process::ExitCode, sync::atomic::Ordering, thread};

use anyhow::bail;
use cc_testbed::summary::table::figure;
use cc_trainer::sweep::{self, Options, Sweep, SweepResults, Trial};

use super::interrupt;

/// Search the settings of a training configuration, scored by what no run was trained on.
///
/// Draws configurations from the ranges of a file, trains each on one thread, and ranks them:
/// policies for simulated networks by their reward on the validation set, with their most likely
/// actions; policies that learn from recordings by the lower end of the estimate on the flows that
/// are held out. With several rungs, only the best go on to more steps. --out gets best.toml, the
/// best configuration, which `train` takes; and sweep.json with all trials. Ctrl-C ends the sweep
/// with what is there; the same command continues it, and a larger `trials` adds to it.
///
/// What a sweep has chosen was chosen on the validation set: judge it on a test set, once.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SweepArgs {
    /// The sweep in TOML: `title`, `trials`, `rungs`, a configuration as for `train` under `base`,
    /// and one `[[parameter]]` for each setting that is drawn.
    #[arg(long, value_name = "SWEEP.toml")]
    config: PathBuf,
    /// Number of runs at the same time [default: the number of processors].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Directory of the sweep. Runs that it already holds are kept.
    #[arg(long, value_name = "DIR", default_value = "sweep")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer sweep --config cc-trainer/training/sweep.toml --out sweep
      learning rate, horizon and entropy of the policy that is trained from families
  cc-trainer train --config sweep/best.toml --out best
      a policy with the settings that were found";

pub(crate) fn command(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    let sweep = Sweep::load(&args.config)?;
    let options = Options {
        dir: args.out.clone(),
        jobs: args.jobs.map_or_else(
            || thread::available_parallelism().map_or(1, NonZero::get),
            NonZero::get,
        ),
        command: super::command_line(),
    };
    let stop = interrupt::on_interrupt()?;
    let trials = sweep::run(&sweep, &options, &stop, &|trial: &Trial, rung| {
        let score = trial.scores.last().copied().flatten();
        let score = score.map_or("diverged".to_owned(), figure);
        super::note(format_args!(
            "trial {}, rung {}: {score}",
            trial.number,
            rung + 1
        ));
    })?;
    let results = SweepResults::new(&sweep, &trials, &options.command);
    let paths = results.write(&sweep, &args.out)?;
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    super::print(format_args!(
        "{}\nwritten: {}\n",
        results.table(),
        names.join(", ")
    ))?;
    if stop.load(Ordering::Relaxed) {
        bail!("ended early; the same command continues from here");
    }
    Ok(ExitCode::SUCCESS)
}
