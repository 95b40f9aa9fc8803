//! `cc-trainer blocking`: what it costs when a sender waits for its decisions.

use std::{path::PathBuf, process::ExitCode, str::FromStr, time::Duration};

use anyhow::bail;
use cc_core::policy::{PolicySpec, Serving};
use cc_sim::scenario;
use cc_testbed::blocking::Blocking;

use super::interrupt;

/// Measure, in the simulator, what a sender loses that waits for its decisions.
///
/// Serves a policy on a link, with decisions that take a fixed time: to senders that neither take an ACK nor send until
/// the decision is there, and to senders that go on meanwhile, as cc-agent's do. The default is figure 1 of the mvfst-rl
/// paper.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// What decides: a FILE.onnx, `default` (the one that cc-agent embeds), `heuristic`, `random` or `fixed:N`.
    #[arg(long, value_name = "POLICY", default_value = "default")]
    policy: PolicySpec,
    /// Draw actions by their probabilities, as in training, rather than take the most probable one.
    #[arg(long)]
    sample: bool,
    /// Where: a scenario of a set (`SET/NAME`, or `SET/N` from 0) or of a file.
    #[arg(
        long,
        value_name = "SCENARIO",
        default_value = "calibrated/california-mexico"
    )]
    scenario: String,
    /// Length of a run in seconds.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// How long a decision takes, in ms, separated by commas; the first one is what the others are compared with.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "0,25,50",
        value_delimiter = ','
    )]
    delays: Vec<f64>,
    /// Runs of each delay, with seeds from 1. Where neither link nor policy knows chance, all are the same.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Directory for blocking.svg, the bytes sent over time, and blocking.json, the figures.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer blocking
      the embedded policy on the paper's link
  cc-trainer blocking --policy policy.onnx --delays 0,10,100,200 --out blocking
      a trained one, and a picture";

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    let mut scenarios = scenario::load(&args.scenario)?;
    let (Some(scenario), true) = (scenarios.pop(), scenarios.is_empty()) else {
        bail!(
            "`{}` is more than one scenario; name one, such as calibrated/california-mexico",
            args.scenario
        );
    };
    let blocking = Blocking {
        scenario,
        policy: args.policy.clone(),
        serving: args.sample.then_some(Serving::Softmax { temperature: 1.0 }),
        length: args.seconds,
        delays_ms: args.delays.clone(),
        runs: args.runs,
        command: super::command_line(),
    };
    let results = blocking.measure(&*interrupt::on_interrupt()?)?;
    super::print(results.table())?;
    if let Some(out) = &args.out {
        let [json, svg] = results.write(out)?;
        super::print(format_args!(
            "\npicture: {}\nfigures: {}\n",
            svg.display(),
            json.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(text: &str) -> Result<Duration, String> {
    match f64::from_str(text) {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds from 0.1 to 86400".to_owned()),
    }
}
