//! `cc-trainer train`: learns a policy.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use cc_core::policy::PolicyFile;
use cc_trainer::{
    model::DeviceKind,
    policy_file,
    train::{
        self, Training,
        config::{Config, Model, Overrides},
        environments::Environments,
        progress::{self, ProgressView},
        record::Finish,
    },
};
use clap::ValueEnum;

use super::interrupt;

/// Learn a policy, and write it as policy.onnx.
///
/// Actors step many environments at a time against the newest policy; a learner improves it by V-trace from their
/// rollouts (IMPALA). The directory of --out gets a checkpoint every minute, train.json with the settings and the curve,
/// event files for TensorBoard, and in the end policy.onnx. Ctrl-C ends it with a checkpoint; the same command goes
/// on from there, and with a larger --steps a finished run goes on, too.
///
/// With --from it learns from what cc-agent recorded: by V-trace with the recorded probabilities; where there are none, by cloning
/// what was done the more, the better it turned out. Observations, actions and reward are those of the recordings.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to learn, and how, in TOML. May be left away to continue the run in --out.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Environment steps (decisions) to learn from, in all [default: the configuration's, or 1000000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Where the learner computes; actors always use the processor [default: the configuration's, or cpu].
    #[arg(long, value_enum, value_name = "DEVICE")]
    device: Option<Device>,
    /// Threads that act beside the learner; with 0, one thread acts and learns in turns, and the seed fixes the run bit for
    /// bit [default: the configuration's, or as many as there are processors but one].
    #[arg(long, value_name = "N")]
    actors: Option<usize>,
    /// Fixes initial parameters, environments and choices of actions [default: the configuration's, or 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Learn from recordings: files, or directories of them. Can be given several times.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    from: Vec<PathBuf>,
    /// Begin with the network of this policy file.
    #[arg(long, value_name = "FILE.onnx")]
    init: Option<PathBuf>,
    /// Share of simulated networks beside the recordings, below 1; those of --config's environment.
    #[arg(long, value_name = "SHARE", requires_all = ["from", "config"])]
    simulated: Option<f64>,
    /// How inputs are transformed, as cc-trainer dataset found: its features.json.
    #[arg(
        long,
        value_name = "FILE.json",
        requires = "from",
        conflicts_with = "init"
    )]
    normalisation: Option<PathBuf>,
    /// Where recordings are sorted, some 800 bytes a row [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR", requires = "from")]
    scratch: Option<PathBuf>,
    /// The run's directory. A run that it holds goes on.
    #[arg(long, value_name = "DIR", default_value = "training")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer train --config cc-trainer/training/calibrated.toml --out calibrated
      a policy for the paper's six links, within a minute
  cc-trainer train --config cc-trainer/training/cartpole.toml --out /tmp/cartpole
      the algorithm's test: a pole on a cart, in some seconds
  cc-trainer train --out /tmp/cartpole --steps 2000000
      the same run, further
  tensorboard --logdir /tmp/cartpole
      its curves
  cc-trainer train --from recordings --init policy.onnx --steps 2000000 --out retrained
      from what that policy did on live hosts

A setting that a configuration does not name has its default; train.json shows them all.";

/// Where a learner can compute.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Device {
    /// The processor.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

/// The settings of a new run, if any are given.
fn config(args: &Args) -> anyhow::Result<Option<Config>> {
    let mut config = args.config.as_deref().map(Config::load).transpose()?;
    if !args.from.is_empty() {
        let mut recorded = Config::recorded(args.from.clone());
        if let Some(given) = config {
            let network = match given.environment {
                Environments::Network(network) => Some(network),
                Environments::Recorded(given) => given.network,
                _ => None,
            };
            // The file's word counts for all but what is learnt from.
            recorded = Config {
                environment: recorded.environment,
                ..given
            };
            if let Environments::Recorded(recorded) = &mut recorded.environment {
                recorded.network = network.filter(|_| args.simulated.is_some());
            }
        }
        if let Environments::Recorded(recorded) = &mut recorded.environment {
            recorded.simulated = args.simulated.unwrap_or(0.0);
            recorded.normalisation.clone_from(&args.normalisation);
            recorded.scratch.clone_from(&args.scratch);
        }
        config = Some(recorded);
    }
    if let Some(path) = &args.init {
        let Some(config) = &mut config else {
            bail!("--init begins a new run, which needs --from or --config");
        };
        let file = PolicyFile::read(path)
            .with_context(|| format!("the policy to begin with, {}", path.display()))?;
        let network = policy_file::decode(&file, 0, config.seed)
            .with_context(|| path.display().to_string())?;
        config.model = Model::of(&network.shape);
        if args.config.is_none() {
            config.serving = file.meta().serving;
        }
        config.init = Some(path.clone());
    }
    Ok(config)
}

pub(crate) fn command(args: &Args) -> anyhow::Result<ExitCode> {
    let training = Training {
        config: config(args)?,
        overrides: Overrides {
            steps: args.steps,
            seed: args.seed,
            device: args.device.map(|device| match device {
                Device::Cpu => DeviceKind::Cpu,
                Device::Cuda => DeviceKind::Cuda,
            }),
            actors: args.actors,
        },
        dir: args.out.clone(),
        command: super::command_line(),
    };
    let stop = interrupt::on_interrupt()?;
    let mut progress = ProgressView::new();
    let record = train::train(&training, &stop, &mut |event| progress.show(event));
    progress.end();
    let record = record.context("training")?;

    let outcome = match record.finish {
        Finish::Steps => "the steps are done; a larger --steps goes on from here",
        Finish::Return => "the return asked for is reached",
        Finish::Open => "ended early; the same command goes on from here",
    };
    super::print(format_args!(
        "{}\n{outcome}: {}\n",
        progress::line(&record.last),
        args.out.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
