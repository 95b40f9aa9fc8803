//! `cc-trainer study`: compares variants of a training configuration.

use std::{num::NonZero, path::PathBuf, process::ExitCode, sync::atomic::Ordering, thread};

use anyhow::bail;
use cc_trainer::{
    study::{self, Options, Study, StudyEvent, results::StudyResults},
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
    /// The study in TOML: `title`, `seeds`, a configuration as for `train` under `base`, and one
    /// `[[variant]]` for each set of changes to it.
    #[arg(long, value_name = "STUDY.toml")]
    config: PathBuf,
    /// Environment steps of each run [default: the configuration's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Number of runs at the same time [default: the number of processors].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Directory of the study. Runs that it already holds are kept.
    #[arg(long, value_name = "DIR", default_value = "study")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer study --config cc-trainer/training/memory.toml --out memory
      the benefit of past decisions in the observation and of an LSTM
  cc-trainer study --config cc-trainer/training/memory.toml --out memory --steps 1000000
      the same runs, continued to more steps";

pub(crate) fn command(args: &StudyArgs) -> anyhow::Result<ExitCode> {
    let study = Study::load(&args.config)?;
    let options = Options {
        dir: args.out.clone(),
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
    let results = StudyResults::new(&study, &runs, &options.command);
    let [json, svg] = results.write(&args.out)?;
    super::print(format_args!(
        "{}\nplot:         {}\nmeasurements: {}\n",
        results.table(),
        svg.display(),
        json.display()
    ))?;
    if runs.len() < study.variants.len() * study.seeds.len() || stop.load(Ordering::Relaxed) {
        bail!("ended early; the same command continues from here");
    }
    Ok(ExitCode::SUCCESS)
}
