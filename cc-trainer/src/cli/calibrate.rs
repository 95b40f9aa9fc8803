//! `cc-trainer calibrate`: links of the simulator that stand for recorded paths.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::bail;
use cc_core::policy::{ActionSelection, PolicySpec};
use cc_trainer::calibrate::{
    CalibrateError, FitSettings, Fitted, Simulator, Tolerance, fit, hidden, output,
    recorded::{PathBy, read},
};
use clap::ValueEnum;
use indicatif::ProgressBar;

use super::values::seconds;

/// Make a twin of one's own network: links of the simulator on which recorded congestion controls
/// do what they were recorded to do.
///
/// Reads recordings of `cc-agent observe` and `run`, sorts their flows by path, and looks, by
/// Bayesian optimisation, for the link on which each recorded control has the recorded throughput,
/// 95th percentile of the RTT, and loss. Random loss, bundled ACKs, jitter, steps of the rate, a
/// policer or a wandering rate are added where figures differ without.
///
/// The output directory gets twin.toml, a scenario for each path, for `evaluate`, `league`, `link`
/// and `train`; training.toml, a configuration that trains on the twins and on links like them; and
/// calibration.json with all figures. The exit status is 1 unless every recorded control agrees on
/// every path.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct CalibrateArgs {
    #[command(subcommand)]
    trial: Option<Subcommand>,
    /// Recordings: files, or directories of them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Directory for the twins, a training configuration and all figures.
    #[arg(long, value_name = "DIR", default_value = "twin")]
    out: PathBuf,
    /// What makes flows belong to one path.
    #[arg(long, value_name = "WHAT", value_enum, default_value = "auto")]
    path_by: By,
    /// A policy whose recorded flows are compared too: a FILE.onnx, `default`, or another name that
    /// `cc-agent run --policy` takes. Can be given several times.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<PolicySpec>,
    /// How these policies selected actions when they were recorded: `greedy` or
    /// `softmax:TEMPERATURE` [default: as the files specify].
    #[arg(long, value_name = "HOW")]
    serving: Option<ActionSelection>,
    /// Recorded controls that are compared but not fitted to, separated by commas: how well a twin
    /// tells what it was not told.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    hold_out: Vec<String>,
    #[command(flatten)]
    how: How,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
}

/// How twins are looked for.
#[derive(Debug, clap::Args)]
struct How {
    /// Simulations of each structure of the link that is tried, at most.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 48,
        value_parser = clap::value_parser!(u32).range(8..=1000)
    )]
    evaluations: u32,
    /// How far throughput, delay and loss may be from the recorded ones, in percent of them.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    tolerance: f64,
    /// How far the loss may be from the recorded one however small that is, in percentage points.
    #[arg(long, value_name = "POINTS", default_value = "0.1", value_parser = percent)]
    loss_floor: f64,
    /// Seed of the search and of the simulations.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl How {
    fn settings(&self, hold_out: &[String]) -> FitSettings {
        FitSettings {
            evaluations: self.evaluations as usize,
            seed: self.seed,
            tolerance: Tolerance {
                relative: self.tolerance,
                loss: self.loss_floor,
            },
            hold_out: hold_out.to_vec(),
        }
    }
}

/// What makes flows belong to one path.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The remote network where addresses were recorded, otherwise the directory.
    Auto,
    /// The remote network: 24 bits of IPv4, 48 of IPv6, or a whole hashed address.
    Remote,
    /// The directory of the file.
    Directory,
}

impl From<By> for PathBy {
    fn from(by: By) -> Self {
        match by {
            By::Auto => Self::Auto,
            By::Remote => Self::Remote,
            By::Directory => Self::Directory,
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Trial(TrialArgs),
}

/// Show how well calibration finds links that it does not know.
///
/// Draws links, records controls on them in the simulator, and calibrates to the recordings alone.
/// The directory gets the recordings, trial.json and table.md: the hidden links, the twins, and
/// which figures agree, also of controls that the twins were not fitted to.
#[derive(Debug, clap::Args)]
struct TrialArgs {
    /// Number of links to draw.
    #[arg(long, value_name = "N", default_value_t = 20)]
    links: usize,
    /// Seed of the draw and of the recorded flows.
    #[arg(long, value_name = "N", default_value_t = 1)]
    draw: u64,
    /// Controls to record and to fit to, separated by commas; `rlcc` is the embedded policy.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "cubic,bbr"
    )]
    fit: Vec<String>,
    /// Controls to record and to hold out.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "reno,rlcc"
    )]
    hold_out: Vec<String>,
    /// Length of a recorded flow, in seconds.
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    seconds: Duration,
    /// Number of recorded flows of each control.
    #[arg(long, value_name = "N", default_value_t = 2)]
    flows: u32,
    /// Directory for the recordings of the hidden links and the results.
    #[arg(long, value_name = "DIR", default_value = "trial")]
    out: PathBuf,
    #[command(flatten)]
    how: How,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer calibrate /var/lib/rlcc --out twin
      a twin of each path that the recordings hold
  cc-trainer evaluate --on sim --scenarios twin/twin.toml --schemes rlcc,cubic,bbr
      what the policy does there, before it decides for anybody
  cc-trainer train --config twin/training.toml --out trained
      a policy for these paths and others like them
  cc-trainer calibrate observed --hold-out reno --json
      fitted without the recorded reno, whose figures show what the twin is worth
  cc-trainer calibrate trial --links 20 --out trial
      the same on links that only the program knows

A path needs at least 10 s of bulk transfers per control, in flows of 5 s and more; cubic and bbr
together tell more than one of them.";

pub(crate) fn command(args: &CalibrateArgs) -> anyhow::Result<ExitCode> {
    if let Some(Subcommand::Trial(args)) = &args.trial {
        return trial(args);
    }
    let reading = ProgressBar::no_length();
    let recorded = read(&args.paths, args.path_by.into(), |rows| {
        reading.set_message(format!("{rows} rows read"));
    })?;
    reading.finish_and_clear();
    let mut simulator = Simulator::new(recorded.interface.clone());
    for policy in &args.policies {
        simulator.add_policy(policy.clone(), args.serving)?;
    }
    let settings = args.how.settings(&args.hold_out);
    let known: Vec<String> = (recorded.paths.iter())
        .flat_map(|path| path.controls.iter().map(|control| control.subject.label()))
        .collect();
    if let Some(name) = args.hold_out.iter().find(|name| !known.contains(name)) {
        let mut known = known;
        known.sort();
        known.dedup();
        bail!(
            "--hold-out {name}: not among the recorded controls, which are {}",
            known.join(", ")
        );
    }
    let (mut twins, mut without) = (Vec::new(), Vec::new());
    let bar = super::bar(recorded.paths.len() as u64, "paths");
    for path in &recorded.paths {
        if path.controls.is_empty() {
            without.extend(
                path.left_out
                    .iter()
                    .map(|why| format!("{}: {why}", path.name)),
            );
            bar.inc(1);
            continue;
        }
        let fitted = fit(path, &simulator, &settings, |features| {
            let names: Vec<&str> = features.iter().map(|feature| feature.name()).collect();
            bar.set_message(format!("paths; {}: {}", path.name, names.join(" + ")));
        });
        match fitted {
            Ok(fitted) => twins.push(fitted),
            Err(
                why @ (CalibrateError::NotSimulated { .. } | CalibrateError::AllHeldOut { .. }),
            ) => without.push(why.to_string()),
            Err(error) => return Err(error.into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if twins.is_empty() {
        return Err(CalibrateError::NoPath { reasons: without }.into());
    }
    let command_line = super::command_line();
    output::write(&args.out, &twins, &without, &command_line)?;
    match args.json {
        true => super::print(output::json(&twins, &without, &command_line))?,
        false => super::print(report(args, &twins, &without))?,
    }
    Ok(match twins.iter().all(Fitted::agrees) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn report(args: &CalibrateArgs, twins: &[Fitted], without: &[String]) -> String {
    let mut text: String = twins
        .iter()
        .map(|fitted| output::text(fitted) + "\n")
        .collect();
    for why in without {
        text += &format!("no twin of {why}\n");
    }
    let agreeing = twins.iter().filter(|fitted| fitted.agrees()).count();
    text += &format!(
        "{agreeing} of {} twins agree within {} %; twin.toml, training.toml and calibration.json \
         are in {}\n",
        twins.len(),
        args.how.tolerance * 100.0,
        args.out.display()
    );
    text
}

fn trial(args: &TrialArgs) -> anyhow::Result<ExitCode> {
    let trial = hidden::Trial {
        links: args.links,
        seed: args.draw,
        length: args.seconds,
        flows: args.flows,
        fitted: args.fit.clone(),
        held_out: args.hold_out.clone(),
    };
    let bar = super::bar(args.links as u64, "links");
    let settings = args.how.settings(&[]);
    let outcomes = hidden::run(&trial, &settings, &args.out, |outcome| {
        bar.suspend(|| super::note(output::text(&outcome.found)));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    super::print(hidden::table(&outcomes))?;
    let [fitted, _] = hidden::counts(&outcomes);
    Ok(match fitted == outcomes.len() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Parses a percentage above 0 and up to 100, and returns it as a fraction.
fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("expected a number of percent above 0 and up to 100".into()),
    }
}
