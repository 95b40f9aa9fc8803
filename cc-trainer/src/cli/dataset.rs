//! `cc-trainer dataset`: makes a timeline table from recordings and analyses their inputs.

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

use super::{SCRATCH_PARTITION, bar, joined::JoinArgs, values::discount};

/// Make training material from recordings: a table with one row per decision and what followed it.
///
/// Reads recordings of cc-agent (`run --record` or `observe`), any number of files from any
/// number of hosts, and writes Parquet. A row holds the decision's observation, action and
/// probability, the next observation and action, the rewards that followed, and the discounted
/// value of the rest of the flow.
///
/// Also writes features.json: the kind of each input (constant, binary, probability, enum,
/// continuous, box_cox or quantile) and the transform that follows from it. `cc-trainer train
/// --normalisation` uses these transforms, and the exported policy contains them.
///
/// Memory does not depend on the size of the recordings. While it runs, the output directory needs
/// about 800 bytes per recorded row.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DatasetArgs {
    /// Recordings: files, or directories of them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Output directory: a new one, or one without Parquet files. On an error
    /// nothing is left in it.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Discount per decision, for the `episode_value` column.
    #[arg(long, value_name = "GAMMA", default_value_t = 0.99, value_parser = discount)]
    discount: f64,
    /// Number of rewards in each row's `reward_timeline`.
    #[arg(long, value_name = "N", default_value_t = 10)]
    ahead: usize,
    /// Leave out the observations, which take most of the space.
    #[arg(long)]
    no_states: bool,
    /// Version of the features in the observations: 1, or 2 with the fractions of marked segments
    /// and of application-limited ACKs [default: the one that the recorded policies observed].
    #[arg(long, value_name = "N")]
    features_version: Option<u32>,
    /// Number of decisions to analyse the inputs on, approximately.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u32).range(100..=1_000_000)
    )]
    sample: u32,
    /// Set the kind of an input, as in `mean.delay=continuous` or `max.*=quantile`. Can be given
    /// several times; the last one that matches an input applies.
    #[arg(long = "override", value_name = "NAME=KIND")]
    overrides: Vec<Override>,
    #[command(flatten)]
    application: JoinArgs,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer dataset /var/lib/cc-agent/recordings --out timeline
      the recordings of one host
  cc-trainer dataset host1/ host2/ --out timeline --override 'past*=binary'
      the recordings of two hosts, with the kinds of some inputs set
  duckdb -c \"select policy, avg(throughput_mbps), avg(delay_ms)
             from 'timeline/*.parquet' group by policy\"
      throughput and delay of each recorded policy
  cc-trainer dataset recordings --join served.parquet --out timeline
      with what the application measured of each flow, as further columns";

pub(crate) fn command(args: &DatasetArgs) -> anyhow::Result<ExitCode> {
    let joined = args.application.read()?;
    let mut recordings = match args.features_version {
        None => Recordings::open(&args.paths)?,
        Some(version) => Recordings::open_as(&args.paths, version)?,
    };
    if let Some(joined) = joined {
        recordings = recordings.with_joined(joined)?;
    }
    let names = features::names(recordings.interface());
    features::check(&names, &args.overrides).map_err(|reason| anyhow!(reason))?;
    let output = TimelineDirectory::create(&args.out)?;
    let reading = bar(recordings.rows(), "rows read");
    let partitions = recordings.partition(output.scratch(), SCRATCH_PARTITION, &|rows| {
        reading.set_position(rows);
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
    super::print(report(args, &recordings, &summary, &analysis))?;
    Ok(ExitCode::SUCCESS)
}

/// Formats what was read and written.
fn report(
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
        joined_flows,
        flows_without_row,
        rows_without_flow,
    } = summary;
    let joined = match &args.application.join {
        None => String::new(),
        Some(path) => format!(
            "{joined_flows} flows joined with {}, which has no row of {flows_without_row} others, \
             and {rows_without_flow} rows of flows that were not recorded\n",
            path.display()
        ),
    };
    let kinds = FeatureKind::NAMES.iter().filter_map(|(name, kind)| {
        let count = analysis.features.iter().filter(|found| found.kind == *kind);
        let count = count.count();
        (count > 0).then(|| format!("{count} {name}"))
    });
    format!(
        "{rows} rows in {} recordings of {}\n\
         {decisions} decisions of {trajectories} flows or parts of flows, \
         {ended} of them up to the close\n\
         {without_probability} decisions without a probability, \
         {left_out} left out after missing rows, or without what was joined\n\
         {joined}inputs: {}\n\
         {files} files, dataset.json and features.json in {}\n",
        recordings.files().len(),
        recordings.policies().join(", "),
        kinds.collect::<Vec<_>>().join(", "),
        args.out.display(),
    )
}
