//! What a calibration leaves: twins as scenarios, a family of links for training, and the figures.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use toml::{Table, Value};

use super::agreement::Agreement;
use super::error::CalibrateError;
use super::fit::{Fitted, ParameterRange};
use super::statistics::Statistics;
use super::twin::{Feature, Twin};

/// The configuration whose environment gets the twins as its links.
const TEMPLATE: &str = include_str!("../../training/families.toml");
/// By what factor the ranges of the family exceed those of the twins, downwards and upwards.
const WIDER: f64 = 1.1;
/// Name of the file with the scenarios.
const SCENARIOS: &str = "twin.toml";
/// Name of the training configuration.
const TRAINING: &str = "training.toml";
/// Name of the file with all figures.
const FIGURES: &str = "calibration.json";

/// The figures of a calibration as they are written to a file.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    /// Version of cc-trainer that made the twins.
    version: &'static str,
    /// Command line of the calibration.
    command: &'a str,
    /// The twins, one for each path that has one.
    twins: &'a [Fitted],
    /// Paths without a twin, each with the reason.
    without: &'a [String],
}

/// Writes the twins to a directory, which is created: `twin.toml`, a scenario for each path;
/// `training.toml`, a configuration of `cc-trainer train` whose links are the twins and others like
/// them; and `calibration.json`, all figures. `without` names the paths that have no twin, with the
/// reasons, and `command` the command line. Returns the paths of the files.
///
/// # Errors
///
/// Returns an error when a file cannot be written.
pub fn write(
    directory: &Path,
    twins: &[Fitted],
    without: &[String],
    command: &str,
) -> Result<Vec<PathBuf>, CalibrateError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CalibrateError::Write { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    let scenarios = directory.join(SCENARIOS);
    let mut paths = Vec::new();
    for (name, text) in [
        (SCENARIOS, scenario_file(twins)),
        (TRAINING, training(twins, &scenarios)),
        (FIGURES, json(twins, without, command)),
    ] {
        let path = directory.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
        paths.push(path);
    }
    Ok(paths)
}

/// All figures as JSON, the content of `calibration.json`.
pub fn json(twins: &[Fitted], without: &[String], command: &str) -> String {
    let figures = Figures {
        version: env!("CARGO_PKG_VERSION"),
        command,
        twins,
        without,
    };
    let text = serde_json::to_string_pretty(&figures);
    text.expect("figures have no maps with keys that are no text") + "\n"
}

/// A scenario file with the twins, one for each path.
pub fn scenario_file(twins: &[Fitted]) -> String {
    let mut text = "# Twins of recorded paths, by cc-trainer calibrate.\n".to_owned();
    for fitted in twins {
        let controls: Vec<&str> = fitted.controls.iter().map(|c| c.control.as_str()).collect();
        let description = format!(
            "twin of a recorded path ({}); {}",
            controls.join(", "),
            match fitted.agrees() {
                true => "its figures agree",
                false => "NOT all of its figures agree",
            },
        );
        text.push('\n');
        text += &fitted.twin.toml(&fitted.path, &description, 1);
    }
    text
}

/// A training configuration whose links are the twins, each as often as bytes were recorded on its
/// path, and as often again others from the ranges that the twins span.
fn training(twins: &[Fitted], scenarios: &Path) -> String {
    let mut config: Table = TEMPLATE.parse().expect("the template is TOML");
    let total: f64 = twins.iter().map(|fitted| fitted.bytes as f64).sum();
    let mut links: Vec<Value> = (twins.iter())
        .map(|fitted| {
            // A path that was hardly used is still met now and then.
            let share = (fitted.bytes as f64 / total.max(1.0)).max(0.01);
            let mut entry = Table::new();
            entry.insert("weight".into(), Value::Float(share));
            let scenario = format!("{}/{}", scenarios.display(), fitted.path);
            entry.insert("scenarios".into(), Value::String(scenario));
            Value::Table(entry)
        })
        .collect();
    let mut family = Table::new();
    family.insert("weight".into(), Value::Float(1.0));
    family.insert("random".into(), Value::Table(random_links(twins)));
    links.push(Value::Table(family));
    if let Some(Value::Table(environment)) = config.get_mut("environment") {
        environment.insert("links".into(), Value::Array(links));
    }
    let body = toml::to_string(&config).expect("a table of TOML");
    format!(
        "# The links are the twins of {}, each in proportion to the bytes recorded on its path, \n\
         # and as often again links from the ranges that the twins span. All else is as in\n\
         # cc-trainer/training/families.toml.\n#\n\
         #     cc-trainer train --config {} --out trained\n\n{body}",
        scenarios.display(),
        scenarios.with_file_name(TRAINING).display(),
    )
}

/// The ranges that the twins span, as a random family of links.
fn random_links(twins: &[Fitted]) -> Table {
    let span = |of: &dyn Fn(&Fitted) -> Option<[f64; 2]>| {
        let ranges = twins.iter().filter_map(of);
        let both = ranges.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]);
        both.map(|[low, high]| [low / WIDER, high * WIDER])
    };
    let named = |name: &'static str| {
        move |fitted: &Fitted| {
            let has = |range: &&ParameterRange| range.name == name;
            fitted.ranges.iter().find(has).map(|range| range.range)
        }
    };
    let list = |[low, high]: [f64; 2]| Value::Array(vec![Value::Float(low), Value::Float(high)]);
    let mut table = Table::new();
    if let Some(range) = span(&named("rate_mbps")) {
        table.insert(
            "rate_mbps".into(),
            list(range.map(|mbps| mbps.clamp(0.01, 1000.0))),
        );
    }
    if let Some(range) = span(&named("rtt_ms")) {
        table.insert(
            "delay_ms".into(),
            list(range.map(|ms| (ms / 2.0).max(0.01))),
        );
    }
    let bdp = |fitted: &Fitted| Some([fitted.twin.queue_bdp(); 2]);
    if let Some(range) = span(&bdp) {
        table.insert(
            "queue_bdp".into(),
            list(range.map(|bdp| bdp.clamp(1e-3, 1e3))),
        );
    }
    let policed = |fitted: &Fitted| {
        let policer = fitted.twin.policer?;
        Some([policer.rate_mbps / fitted.twin.rate_mbps; 2])
    };
    let sometimes = [
        (Feature::Loss, "loss", span(&named("loss")), [1e-9, 0.9]),
        (
            Feature::Jitter,
            "jitter_ms",
            span(&named("jitter_ms")),
            [1e-3, 1e3],
        ),
        (
            Feature::Aggregation,
            "ack_aggregation_ms",
            span(&named("ack_aggregation_ms")),
            [0.1, 1e3],
        ),
        (Feature::Policer, "policer", span(&policed), [0.01, 10.0]),
    ];
    for (feature, key, range, [least, most]) in sometimes {
        let having = twins
            .iter()
            .filter(|f| f.twin.features().contains(&feature))
            .count();
        if let Some(range) = range {
            let mut value = Table::new();
            value.insert(
                "share".into(),
                Value::Float(having as f64 / twins.len() as f64),
            );
            value.insert("range".into(), list(range.map(|v| v.clamp(least, most))));
            table.insert(key.into(), Value::Table(value));
        }
    }
    let varying = |feature| {
        let having = twins
            .iter()
            .filter(|f| f.twin.features().contains(&feature))
            .count();
        having * 2 > twins.len()
    };
    if varying(Feature::Steps) {
        table.insert("service".into(), Value::String("steps".into()));
    } else if varying(Feature::Cellular) {
        table.insert("service".into(), Value::String("cellular".into()));
    }
    table
}

/// A twin in words and a table: recorded and simulated figures of each control.
pub fn text(fitted: &Fitted) -> String {
    let mut text = format!("{}: {}\n", fitted.path, describe(&fitted.twin));
    for range in &fitted.ranges {
        let [low, high] = range.range;
        let _ = writeln!(
            text,
            "  {:<22} {:>9}   {} to {} agree",
            range.name,
            digits(range.value),
            digits(low),
            digits(high)
        );
    }
    let _ = writeln!(
        text,
        "  {:<14} {:>20} {:>20} {:>20}  agrees",
        "control", "Mbit/s, recorded:twin", "p95 RTT ms", "loss %"
    );
    for control in &fitted.controls {
        let Agreement {
            control: name,
            held_out,
            recorded,
            twin,
            ..
        } = control;
        let pair = |of: fn(&Statistics) -> f64, decimals: usize| {
            format!("{:.decimals$} : {:.decimals$}", of(recorded), of(twin))
        };
        let marks = control
            .agree()
            .map(|agrees| if agrees { "yes" } else { "NO" });
        let _ = writeln!(
            text,
            "  {name:<14} {:>20} {:>20} {:>20}  {}{}",
            pair(|s| s.throughput_mbps, 2),
            pair(|s| s.p95_rtt_ms, 1),
            pair(|s| s.loss * 100.0, 3),
            marks.join(" "),
            if *held_out { "  (held out)" } else { "" },
        );
    }
    for note in &fitted.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// A twin in a line.
pub fn describe(twin: &Twin) -> String {
    let mut text = format!(
        "{} Mbit/s, RTT {} ms, buffer {} BDP",
        digits(twin.rate_mbps),
        digits(twin.rtt_ms),
        digits(twin.queue_bdp())
    );
    if let Some(loss) = twin.loss {
        let _ = write!(text, ", loss {} %", digits(loss * 100.0));
    }
    if let Some(ms) = twin.aggregation_ms {
        let _ = write!(text, ", ACKs every {} ms", digits(ms));
    }
    if let Some(ms) = twin.jitter_ms {
        let _ = write!(text, ", jitter {} ms", digits(ms));
    }
    if let Some(steps) = twin.steps {
        let (ratio, period) = (digits(steps.ratio), digits(steps.period_s));
        let _ = write!(text, ", steps to {ratio} of it every {period} s");
    }
    if let Some(policer) = twin.policer {
        let (rate, burst) = (digits(policer.rate_mbps), digits(policer.burst_kb));
        let _ = write!(text, ", policed to {rate} Mbit/s with {burst} kB");
    }
    if let Some(cellular) = twin.cellular {
        let (variation, time) = (digits(cellular.variation), digits(cellular.correlation_s));
        let _ = write!(text, ", varying by {variation} over {time} s");
    }
    text
}

/// A number with three significant digits.
fn digits(value: f64) -> String {
    let rounded: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    rounded.to_string()
}
