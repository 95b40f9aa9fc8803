//! `cc-trainer blocking`: measures the throughput lost by a sender that waits for its decisions.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::bail;
use cc_core::policy::{ActionSelection, PolicySpec};
use cc_sim::scenario;
use cc_testbed::blocking::Blocking;

use super::{interrupt, values::seconds};

/// Measure, in the simulator, how much a sender loses by waiting for its decisions.
///
/// Serves a policy on one link, with decisions that take a fixed time, in two modes:
/// blocking senders, which neither process ACKs nor send until the decision is there, and
/// asynchronous ones, which go on meanwhile as cc-agent's flows do. The defaults reproduce
/// figure 1 of the mvfst-rl paper (arXiv 1910.04054).
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct BlockingArgs {
    /// Policy to serve: a FILE.onnx, `default` (the one embedded in
    /// cc-agent), `heuristic`, `random` or `fixed:N`.
    #[arg(long, value_name = "POLICY", default_value = "default")]
    policy: PolicySpec,
    /// Sample actions from the policy's probabilities, as in training, instead of
    /// taking the most probable one.
    #[arg(long)]
    sample: bool,
    /// Scenario to run on: one member of a set (`SET/NAME`, or `SET/N` counted from
    /// 0) or of a file.
    #[arg(
        long,
        value_name = "SCENARIO",
        default_value = "calibrated/california-mexico"
    )]
    scenario: String,
    /// Length of each run, in seconds.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Decision times to compare, in ms, separated by commas. The first one is
    /// the reference for the others.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "0,25,50",
        value_delimiter = ','
    )]
    delays: Vec<f64>,
    /// Number of runs per decision time, with seeds from 1. All runs are equal if neither the link
    /// nor the policy is random.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    runs: u64,
    /// Directory for blocking.svg, a plot of bytes sent over time,
    /// and blocking.json with the measurements.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer blocking
      the embedded policy on the link of the paper's figure
  cc-trainer blocking --policy policy.onnx --delays 0,10,100,200 --out blocking
      a trained policy on the same link, with a plot";

pub(crate) fn command(args: &BlockingArgs) -> anyhow::Result<ExitCode> {
    let mut scenarios = scenario::load(&args.scenario)?;
    let (Some(scenario), true) = (scenarios.pop(), scenarios.is_empty()) else {
        bail!(
            "`{}` names several scenarios; name one, such as calibrated/california-mexico",
            args.scenario
        );
    };
    let blocking = Blocking {
        scenario,
        policy: args.policy.clone(),
        serving: args
            .sample
            .then_some(ActionSelection::Softmax { temperature: 1.0 }),
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
            "\nplot:         {}\nmeasurements: {}\n",
            svg.display(),
            json.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
