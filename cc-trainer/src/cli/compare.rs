//! `cc-trainer compare`: compares two evaluations or leagues.

use std::{fs, path::Path, path::PathBuf, process::ExitCode, str::FromStr};

use anyhow::{Context, bail};
use cc_testbed::{
    league::{
        self,
        links::{self, LinkLine},
    },
    summary::{
        Host, Platform, Run, Settings, Summary,
        compare::{Comparison, SchemeComparison, Tolerance},
    },
};

/// Compare two evaluations or leagues: the simulator with the kernel, or before and after a change.
///
/// For every scheme and scenario that both contain, prints the means over valid runs, the first
/// evaluation's as a ratio to the second's, and on how many scenarios both throughput and
/// 95th-percentile delay agree within the tolerances.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// The summary.json of an evaluation, or the league.json of a league.
    #[arg(value_name = "SUMMARY")]
    first: PathBuf,
    /// The summary.json or league.json to compare with.
    #[arg(value_name = "REFERENCE")]
    second: PathBuf,
    /// Tolerance for throughputs, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    throughput: f64,
    /// Tolerance for 95th percentiles of the one-way delay, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "15", value_parser = percent)]
    delay: f64,
    /// Exit with an error unless every scheme agrees on at least N scenarios.
    #[arg(long, value_name = "N")]
    require: Option<usize>,
    /// Print the tables in Markdown.
    #[arg(long)]
    markdown: bool,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer compare simulated/summary.json docs/results/pantheon/summary.json
      the simulator compared with the kernel
  cc-trainer compare simulated/league.json kernel/league.json
      the same of two leagues, from the links.jsonl beside each file: what the scored flows got
  cc-trainer compare new/summary.json old/summary.json --throughput 5 --delay 5 --markdown
      two versions, as a Markdown table with tighter tolerances";

pub(crate) fn command(args: &CompareArgs) -> anyhow::Result<ExitCode> {
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
            "left out: {} pairs of scheme and scenario that only one of the two has",
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
            "reading {} (the summary.json of an evaluation, or the league.json of a league)",
            path.display()
        )
    })?;
    if path.file_name() == league::path(Path::new("")).file_name() {
        return of_league(path, &text);
    }
    serde_json::from_str(&text)
        .with_context(|| format!("{}: not a summary of this version", path.display()))
}

/// What of league.json a comparison needs.
#[derive(serde::Deserialize)]
struct League {
    order: Vec<String>,
    settings: LeagueSettings,
}

#[derive(serde::Deserialize)]
struct LeagueSettings {
    on: Platform,
}

/// The results of a league as those of an evaluation with one run of each scheme on each link.
fn of_league(path: &Path, text: &str) -> anyhow::Result<Summary> {
    let league: League = serde_json::from_str(text)
        .with_context(|| format!("{}: not a league of this version", path.display()))?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let links = links::read(dir).with_context(|| {
        format!(
            "reading {} (written by `cc-trainer league`; its command, given again, writes it from \
             the runs on disk)",
            dir.join(links::LINKS).display()
        )
    })?;
    let of_link = |line: LinkLine| {
        let schemes = line.schemes.into_iter();
        schemes.map(move |(scheme, result)| Run {
            scenario: line.link.clone(),
            scheme,
            throughput_mbps: result.throughput_mbps,
            p95_owd_ms: result.p95_owd_ms,
            ..Run::default()
        })
    };
    Ok(Summary {
        runs: links.into_iter().flat_map(of_link).collect(),
        applications: Vec::new(),
        host: Host::default(),
        settings: Settings {
            on: league.settings.on,
            schemes: league.order,
            ..Settings::default()
        },
    })
}

/// Parses a percentage from 0 to 1000 and returns it as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match f64::from_str(text) {
        Ok(percent) if (0.0..=1_000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("expected a number of percent from 0 to 1000".into()),
    }
}
