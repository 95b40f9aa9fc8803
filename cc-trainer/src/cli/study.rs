//! `cc-trainer study`: compares ways to learn.

use std::{num::NonZero, path::PathBuf, process::ExitCode, sync::atomic::Ordering, thread};

use anyhow::bail;
use cc_trainer::{
    study::{self, Options, Study, StudyEvent, results::StudyResults},
    train::{progress, record::Finish},
};

use super::interrupt;

/// Train several variants of a configuration with several seeds, and draw their curves.
///
/// Every run is one of `train`, on one thread, in a directory of its own under --out, called after its variant and its
/// seed. --out gets study.svg, the mean over the seeds and their range against steps, and study.json with the figures.
/// Ctrl-C ends it, with the picture of what is there; the same command goes on from there.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to compare, in TOML: `title`, `seeds`, a configuration as `train` takes it under `base`, and what differs from
    /// it, a `[[variant]]` each.
    #[arg(long, value_name = "STUDY.toml")]
    config: PathBuf,
    /// Environment steps of each run [default: the configuration's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Runs at the same time [default: as many as there are processors].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// The study's directory. Runs that it holds are kept.
    #[arg(long, value_name = "DIR", default_value = "study")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer study --config cc-trainer/training/memory.toml --out memory
      what past decisions in the observation and an LSTM are good for
  cc-trainer study --config cc-trainer/training/memory.toml --out memory --steps 1000000
      the same runs, further";

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
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
        StudyEvent::Begun { name } => super::note(format_args!("{name} begins")),
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
        "{}\npicture: {}\nfigures: {}\n",
        results.table(),
        svg.display(),
        json.display()
    ))?;
    if runs.len() < study.variants.len() * study.seeds.len() || stop.load(Ordering::Relaxed) {
        bail!("ended early; the same command goes on from here");
    }
    Ok(ExitCode::SUCCESS)
}
