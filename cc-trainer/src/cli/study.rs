//! `cc-trainer study`: compares variants of a training configuration.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::Ordering,
    thread,
};

use anyhow::bail;
use cc_trainer::{
    study::{self, Options, Study, StudyEvent, StudyRun, results::StudyResults},
    train::{progress, record::Finish},
};

use super::interrupt;

/// Train several variants of a configuration with several seeds, and plot their learning curves.
///
/// Every run is a `train` run on one thread, in a directory under --out named after its
/// variant and seed. --out gets study.svg, the mean and range over the seeds against
/// environment steps, and study.json with the numbers. Ctrl-C ends the study with a plot of
/// what is there; the same command continues it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct StudyArgs {
    #[command(flatten)]
    runs: RunOptions,
    /// Directory of the study. Runs that it already holds are kept.
    #[arg(long, value_name = "DIR", default_value = "study")]
    out: PathBuf,
}

/// The runs of a study.
#[derive(Debug, clap::Args)]
pub(super) struct RunOptions {
    /// The study in TOML: `title`, `seeds`, a configuration as for `train` under `base`, and one
    /// `[[variant]]` for each set of changes to it.
    #[arg(long, value_name = "STUDY.toml")]
    pub(super) config: PathBuf,
    /// Environment steps of each run [default: the configuration's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Number of runs at the same time [default: the number of processors].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
}

/// A study whose runs have ended.
pub(super) struct Ended {
    pub(super) study: Study,
    pub(super) runs: Vec<StudyRun>,
    /// The command line that continues the study, for what it prints.
    pub(super) command: String,
    /// Whether no run is missing or was stopped.
    pub(super) is_complete: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer study --config cc-trainer/training/memory.toml --out memory
      the benefit of past decisions in the observation and of an LSTM
  cc-trainer study --config cc-trainer/training/memory.toml --out memory --steps 1000000
      the same runs, continued to more steps";

pub(crate) fn command(args: &StudyArgs) -> anyhow::Result<ExitCode> {
    let ended = run(&args.runs, &args.out)?;
    let results = StudyResults::new(&ended.study, &ended.runs, &ended.command);
    let [json, svg] = results.write(&args.out)?;
    super::print(format_args!(
        "{}\nplot:         {}\nmeasurements: {}\n",
        results.table(),
        svg.display(),
        json.display()
    ))?;
    if !ended.is_complete {
        bail!("ended early; the same command continues from here");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs what is missing of a study in the directory `out`, with notes of the progress.
pub(super) fn run(args: &RunOptions, out: &Path) -> anyhow::Result<Ended> {
    let study = Study::load(&args.config)?;
    let options = Options {
        dir: out.to_owned(),
        jobs: args.jobs.map_or_else(
            || thread::available_parallelism().map_or(1, NonZero::get),
            NonZero::get,
        ),
        steps: args.steps,
        command: super::command_line(),
    };
    let stop = interrupt::on_interrupt()?;
    let runs = study::run(&study, &options, &stop, &|event| match event {
        StudyEvent::Begun { name } => super::note(format_args!("{name} starts")),
        StudyEvent::Ended {
            name,
            record,
            done,
            all,
        } => {
            let outcome = match record.finish {
                Finish::Open => "ended early",
                _ => "is done",
            };
            let line = progress::line(&record.last);
            super::note(format_args!("{name} {outcome} ({done} of {all}): {line}"));
        }
        _ => {}
    })?;
    let all = study.variants.len() * study.seeds.len();
    Ok(Ended {
        is_complete: runs.len() == all && !stop.load(Ordering::Relaxed),
        study,
        runs,
        command: options.command,
    })
}
