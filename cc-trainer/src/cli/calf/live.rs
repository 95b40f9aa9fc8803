//! `cc-trainer calf live`: trained policies in real time beside virtual time.

use std::{net::SocketAddr, num::NonZero, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::bail;
use cc_sim::shim::Medium;
use cc_testbed::summary::table::figure;
use cc_trainer::{
    calf::live::{self, LiveOptions},
    study::Study,
};

use super::super::interrupt;

/// Run trained policies in real time, and compare with virtual time.
///
/// The worlds are stepped by the clock, 20 ms a step, in a service that a relay with the delay,
/// jitter and loss of the condition separates from the policy; all on this host, unless --world
/// names a service elsewhere (`cc-trainer calf serve`). The policies are those that `cc-trainer
/// calf` trained in --out, of one seed. Each is also run in virtual time, with the same --grace-ms.
///
/// In congestion control a flow on an emulated link is served by cc-agent, which asks a policy
/// server through the relay and waits for its answers as long as in training; until a late answer
/// the flow keeps its cwnd. That needs root. The same links are simulated.
///
/// A cell has as many episodes as last --seconds in virtual time, and five at least. --out gets
/// calf-live.md and calf-live.json. Ctrl-C ends it with the cells that are done.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct LiveArgs {
    /// The study in TOML, with a matrix of conditions.
    #[arg(long, value_name = "STUDY.toml")]
    config: PathBuf,
    /// Directory of the study, with its finished runs.
    #[arg(long, value_name = "DIR", default_value = "calf")]
    out: PathBuf,
    /// The runs with this seed of training.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Regimes, separated by commas [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    regimes: Vec<String>,
    /// Conditions, separated by commas [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    conditions: Vec<String>,
    /// How long a cell lasts, about, s.
    #[arg(long, value_name = "S", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How long after an interval's beginning a decision counts for its step, ms. It has to be more
    /// than service, relay and policy take, and less than the interval.
    #[arg(long, value_name = "MS", default_value_t = 10.0)]
    grace_ms: f64,
    /// Connect by TCP instead of UDP: what is lost comes late, and what is behind it waits. Virtual
    /// time has datagrams all the same.
    #[arg(long)]
    tcp: bool,
    /// Cells at the same time.
    #[arg(long, value_name = "N", default_value = "4")]
    jobs: NonZero<usize>,
    /// Path of the cc-agent program that serves flows [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// A service of worlds, instead of one on this host for each cell. Cells follow each other.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "jobs")]
    world: Option<SocketAddr>,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer calf --config cc-trainer/training/calf-cartpole.toml --out calf
  cc-trainer calf live --config cc-trainer/training/calf-cartpole.toml --out calf
      every regime under every condition: 40 cells of 100 s, four at a time, 17 minutes
  cc-trainer calf live --config cc-trainer/training/calf-cartpole.toml --out calf \\
      --regimes baseline,network-aware --conditions clean,wifi-degraded --seconds 20
      the headline alone, roughly
  sudo cc-trainer calf live --config cc-trainer/training/calf-control.toml --out calf-control \\
      --conditions clean,wifi-degraded --jobs 2
      congestion control: a policy server behind the relay, and flows under the kernel
  cc-trainer calf live --config cc-trainer/training/calf-cartpole.toml --out calf \\
      --world 192.0.2.7:7450 --conditions clean
      a world on another host, over the network that is there";

pub(super) fn command(args: &LiveArgs) -> anyhow::Result<ExitCode> {
    let study = Study::load(&args.config)?;
    let options = LiveOptions {
        dir: args.out.clone(),
        seed: args.seed,
        regimes: args.regimes.clone(),
        conditions: args.conditions.clone(),
        duration: Duration::from_secs(args.seconds),
        grace_ms: args.grace_ms,
        medium: match args.tcp {
            true => Medium::Stream,
            false => Medium::Datagrams,
        },
        jobs: args.jobs.get(),
        world: args.world,
        agent: args.agent.clone(),
        command: super::super::command_line(),
    };
    let stop = interrupt::on_interrupt()?;
    let results = live::run(&study, &options, &stop, &|cell| {
        super::super::note(format_args!(
            "{} under {}: {} in real time, {} in virtual time",
            cell.regime,
            cell.condition,
            figure(cell.real.mean),
            figure(cell.simulated.mean)
        ));
    })?;
    let [json, _] = results.write(&args.out)?;
    super::super::print(format_args!(
        "{}\nmeasurements: {}\n",
        results.table(),
        json.display()
    ))?;
    if stop.load(std::sync::atomic::Ordering::Relaxed) {
        bail!("ended early, with the cells above");
    }
    Ok(ExitCode::SUCCESS)
}
