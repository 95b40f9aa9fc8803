//! `cc-trainer dataset`: recordings to the timeline, and what their inputs are.

use std::{path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use cc_trainer::{
    dataset::{
        Recordings,
        features::{self, Analysis, FeatureKind, Override},
        timeline::{self, TimelineDirectory, TimelineSettings, TimelineSummary},
    },
    normalise::input_shapes,
};

use super::{SCRATCH_PARTITION, bar};

/// Make learning material of recordings: a row a decision, with what followed it.
///
/// Reads recordings of cc-agent (run --record, observe) of any number of files and hosts, and writes Parquet: of each decision
/// the observation, action and probability, the next observation and action, the rewards that followed, and the discounted value of
/// the rest of the flow. Beside it features.json says what kind of number each input is (binary, probability, enum, continuous,
/// box_cox, quantile) and the transform that follows from it; `cc-trainer train --normalisation` uses it, and the exported
/// policy carries it. Memory does not depend on the recordings' size; the disk needs room for some 800 bytes a row meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DatasetArgs {
    /// Recordings: files, or directories of them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Where to write; a directory without Parquet in it, or a new one. It gets all at the end, or nothing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Discount of episode values, a decision.
    #[arg(long, value_name = "GAMMA", default_value_t = 0.99, value_parser = discount)]
    discount: f64,
    /// Rewards of each row's timeline.
    #[arg(long, value_name = "N", default_value_t = 10)]
    ahead: usize,
    /// Leave out observations, which are most of the size.
    #[arg(long)]
    no_states: bool,
    /// Decisions that the inputs are analysed on.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    sample: u32,
    /// Says what an input is, as in `mean.delay=continuous` or `max.*=quantile`. Can be given several times; the last that fits
    /// counts.
    #[arg(long = "override", value_name = "NAME=KIND")]
    overrides: Vec<Override>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer dataset /var/lib/cc-agent/recordings --out timeline
      one host's recordings
  cc-trainer dataset host1/ host2/ --out timeline --override 'past*=binary' --override reward=continuous
      of two hosts, with some inputs' kinds given
  duckdb -c \"select policy, avg(throughput_mbps), avg(delay_ms) from 'timeline/*.parquet' group by policy\"
      what is in it";

pub(crate) fn command(args: &DatasetArgs) -> anyhow::Result<ExitCode> {
    let recordings = Recordings::open(&args.paths)?;
    let names = features::names(recordings.interface());
    features::check(&names, &args.overrides).map_err(|reason| anyhow!(reason))?;
    let output = TimelineDirectory::create(&args.out)?;
    let reading = bar(recordings.rows(), "rows read");
    let partitions = recordings.partition(output.scratch(), SCRATCH_PARTITION, &|rows| {
        reading.set_position(rows)
    })?;
    reading.finish_and_clear();
    let settings = TimelineSettings {
        discount: args.discount,
        ahead: args.ahead,
        states: !args.no_states,
        sample: args.sample as usize,
        ..TimelineSettings::default()
    };
    let writing = bar(partitions.gathered().decisions, "decisions written");
    let (summary, sample) = timeline::write(&partitions, &output, &settings, &|done| {
        writing.set_position(done);
    })?;
    writing.finish_and_clear();
    let analysis = sample
        .analyse(&input_shapes(recordings.interface()), &args.overrides)
        .map_err(|reason| anyhow!(reason))?;
    output.publish(&summary, &analysis)?;
    super::print(told(args, &recordings, &summary, &analysis))?;
    Ok(ExitCode::SUCCESS)
}

fn told(
    args: &DatasetArgs,
    recordings: &Recordings,
    summary: &TimelineSummary,
    analysis: &Analysis,
) -> String {
    let TimelineSummary {
        rows,
        decisions,
        left_out,
        without_probability,
        trajectories,
        ended,
        files,
    } = summary;
    let kinds = FeatureKind::NAMES.iter().filter_map(|(name, kind)| {
        let count = analysis.features.iter().filter(|found| found.kind == *kind);
        let count = count.count();
        (count > 0).then(|| format!("{count} {name}"))
    });
    format!(
        "{rows} rows in {} recordings by {}\n\
         {decisions} decisions of {trajectories} flows or parts of flows, {ended} of them to their end\n\
         {without_probability} decisions without a probability, {left_out} left out behind missing rows\n\
         inputs: {}\n\
         {files} files, dataset.json and features.json in {}\n",
        recordings.files().len(),
        recordings.policies().join(", "),
        kinds.collect::<Vec<_>>().join(", "),
        args.out.display(),
    )
}

/// A discount, above 0 and at most 1.
pub(super) fn discount(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(discount) if discount > 0.0 && discount <= 1.0 => Ok(discount),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}
