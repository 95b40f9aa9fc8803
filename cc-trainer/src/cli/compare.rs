//! `cc-trainer compare`: how far two evaluations are apart.

use std::{fs, path::Path, path::PathBuf, process::ExitCode, str::FromStr};

use anyhow::{Context, bail};
use cc_testbed::summary::{
    Summary,
    compare::{Comparison, SchemeComparison, Tolerance},
};

/// Set two evaluations side by side: the simulator and the kernel, or before and after a change.
///
/// Takes what both have, scheme by scheme and scenario by scenario, and shows the means over valid runs, the first's
/// as a ratio to the second's, and on how many scenarios both throughput and p95 delay agree.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The summary.json of an evaluation.
    #[arg(value_name = "SUMMARY")]
    first: PathBuf,
    /// The summary.json that it is compared with.
    #[arg(value_name = "REFERENCE")]
    second: PathBuf,
    /// By how many percent throughputs may differ.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    throughput: f64,
    /// By how many percent 95th percentiles of the one-way delay may differ.
    #[arg(long, value_name = "PERCENT", default_value = "15", value_parser = percent)]
    delay: f64,
    /// Fail unless each scheme agrees on so many scenarios.
    #[arg(long, value_name = "N")]
    require: Option<usize>,
    /// Print the tables in Markdown.
    #[arg(long)]
    markdown: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer compare simulated/summary.json docs/results/pantheon/summary.json
      the simulator beside the kernel
  cc-trainer compare new/summary.json old/summary.json --throughput 5 --delay 5 --markdown
      two versions, as a table for a document";

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    let (first, second) = (read(&args.first)?, read(&args.second)?);
    let tolerance = Tolerance {
        throughput: args.throughput,
        p95_delay: args.delay,
    };
    let comparison = Comparison::new(&first, &second, tolerance);
    if comparison.schemes.is_empty() {
        bail!(
            "{} and {} have no scheme on any scenario in common",
            args.first.display(),
            args.second.display()
        );
    }
    super::print(match args.markdown {
        true => comparison.markdown(),
        false => comparison.text(),
    })?;
    if !comparison.unmatched.is_empty() {
        super::note(format_args!(
            "{} of a scheme on a scenario are in one of the two only, and left out",
            comparison.unmatched.len()
        ));
    }
    let required = args.require.unwrap_or(0);
    let falls_short = |scheme: &&SchemeComparison| scheme.agreeing(&tolerance) < required;
    let short: Vec<_> = comparison
        .schemes
        .iter()
        .filter(falls_short)
        .map(|scheme| scheme.scheme.as_str())
        .collect();
    if !short.is_empty() {
        bail!(
            "fewer than {required} scenarios agree: {}",
            short.join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Summary> {
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "reading {} (the summary.json of an evaluation)",
            path.display()
        )
    })?;
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not a summary of this version", path.display()))
}

/// As a part of one.
fn percent(text: &str) -> Result<f64, String> {
    match f64::from_str(text) {
        Ok(percent) if (0.0..=1_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a number of percent from 0 to 1000".into()),
    }
}
