//! `cc-trainer train`: trains a policy.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use cc_core::policy::PolicyFile;
use cc_trainer::{
    environment::recorded::RecordedConfig,
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

use super::{
    interrupt,
    joined::JoinArgs,
    workers::{ListenArgs, MetricsArgs},
};

/// Train a policy and write it as policy.onnx.
///
/// Actors step many environments at a time with the newest policy; a learner improves the policy
/// from their rollouts by V-trace (IMPALA, arXiv 1802.01561). The directory of --out gets a
/// checkpoint every minute, train.json with settings and learning curve, event files for
/// TensorBoard, and at the end policy.onnx. Ctrl-C ends the run with a checkpoint. The same command
/// continues it; a larger --steps also continues a finished run.
///
/// With --listen, workers on other machines act as well (`cc-trainer act`).
///
/// With --from, it learns from recordings of cc-agent: by V-trace where actions were recorded with
/// probabilities; otherwise by cloning, with larger weights for actions that turned out well.
/// Observations, actions and reward are those of the recordings; --features-version changes what of
/// the recorded windows is observed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TrainArgs {
    /// Configuration in TOML: the environment, the network and the learner. Can be omitted to
    /// continue the run in --out.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Total number of environment steps (decisions) to learn from
    /// [default: the configuration's, or 1000000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Device of the learner; actors always use the CPU [default: the configuration's, or cpu].
    #[arg(long, value_enum, value_name = "DEVICE")]
    device: Option<DeviceArg>,
    /// Number of actor threads beside the learner. With 0, one thread acts and learns in turns, and
    /// the seed makes the run reproducible to the bit [default: the configuration's, or one less
    /// than the number of processors].
    #[arg(long, value_name = "N")]
    actors: Option<usize>,
    /// Seed of the initial parameters, the environments and the sampled actions
    /// [default: the configuration's, or 1].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Recordings to learn from: files, or directories of them. Can be given several times.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    from: Vec<PathBuf>,
    /// Start from the network of this policy file.
    #[arg(long, value_name = "FILE.onnx")]
    init: Option<PathBuf>,
    /// Fraction of environments that are simulated instead of recorded, below 1. Their
    /// links are those of --config.
    #[arg(long, value_name = "SHARE", requires_all = ["from", "config"])]
    simulated: Option<f64>,
    /// Version of the features that the new policy observes: 1, or 2 with the fractions of marked
    /// segments and of application-limited ACKs. A policy of --init with fewer inputs begins with
    /// weights of 0 for the others [default: the one that the recorded policies observed].
    #[arg(long, value_name = "N", requires = "from")]
    features_version: Option<u32>,
    /// The features.json of `cc-trainer dataset`, with the transforms of the inputs.
    #[arg(
        long,
        value_name = "FILE.json",
        requires = "from",
        conflicts_with = "init"
    )]
    normalisation: Option<PathBuf>,
    #[command(flatten)]
    application: JoinArgs,
    /// Directory for the sorted recordings, about 800 bytes per recorded row [default: the
    /// system's directory for temporary files].
    #[arg(long, value_name = "DIR", requires = "from")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// A directory or object store (s3://BUCKET/PREFIX, gs://, az://, in a build with --features
    /// cloud) that each checkpoint is copied to, with train.json and policy.onnx. If it holds the
    /// run, and is further than --out, the run is continued from there: on a machine that has
    /// nothing of it. Credentials are environment variables, as in AWS_ACCESS_KEY_ID.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Directory of the run. A run that it already holds is continued.
    #[arg(long, value_name = "DIR", default_value = "training")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer train --config cc-trainer/training/calibrated.toml --out calibrated
      a policy for the mvfst-rl paper's six links, within a minute
  cc-trainer train --config cc-trainer/training/cartpole.toml --out /tmp/cartpole
      a test of the algorithm on CartPole, within seconds
  cc-trainer train --out /tmp/cartpole --steps 2000000
      the same run, continued to more steps
  tensorboard --logdir /tmp/cartpole
      the learning curves of that run
  cc-trainer train --from recordings --init policy.onnx --steps 2000000 --out retrained
      improve a policy from its recordings on live hosts

Settings that a configuration does not name have their defaults; train.json lists all of them.";

/// Device that the learner computes on.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DeviceArg {
    /// The CPU, with the configured number of threads.
    Cpu,
    /// The first NVIDIA GPU, if built with CUDA.
    Cuda,
}

impl DeviceArg {
    pub(super) fn kind(self) -> DeviceKind {
        match self {
            Self::Cpu => DeviceKind::Cpu,
            Self::Cuda => DeviceKind::Cuda,
        }
    }
}

/// Returns the configuration of a new run; `None` when neither --config nor --from is given.
fn config(args: &TrainArgs) -> anyhow::Result<Option<Config>> {
    if args.application.join.is_some() && args.from.is_empty() {
        bail!("--join is about recordings: name them with --from");
    }
    let mut config = args.config.as_deref().map(Config::load).transpose()?;
    if !args.from.is_empty() {
        let mut recorded = Config::recorded(args.from.clone());
        if let Some(given) = config {
            let from = args.from.clone();
            let settings = match given.environment {
                Environments::Network(network) => RecordedConfig {
                    from,
                    network: Some(network),
                    ..RecordedConfig::default()
                },
                Environments::Recorded(given) => RecordedConfig { from, ..given },
                _ => RecordedConfig {
                    from,
                    ..RecordedConfig::default()
                },
            };
            // The file decides everything but the source of experience.
            recorded = Config {
                environment: Environments::Recorded(RecordedConfig {
                    network: settings.network.filter(|_| args.simulated.is_some()),
                    ..settings
                }),
                ..given
            };
        }
        if let Environments::Recorded(recorded) = &mut recorded.environment {
            recorded.simulated = args.simulated.unwrap_or(0.0);
            recorded.features_version = args.features_version.or(recorded.features_version);
            recorded.normalisation.clone_from(&args.normalisation);
            recorded.scratch.clone_from(&args.scratch);
            if args.application.join.is_some() {
                recorded.join.clone_from(&args.application.join);
                recorded.weigh = args.application.weights();
            }
        }
        config = Some(recorded);
    }
    if let Some(path) = &args.init {
        let Some(config) = &mut config else {
            bail!("--init starts a new run, which needs --from or --config");
        };
        let file = PolicyFile::read(path)
            .with_context(|| format!("the policy to start from, {}", path.display()))?;
        let network = policy_file::decode(&file, 0, config.seed)
            .with_context(|| path.display().to_string())?;
        config.model = Model::of(&network.shape);
        if args.config.is_none() {
            config.serving = file.meta().serving;
        }
        if let Environments::Recorded(recorded) = &mut config.environment {
            // The policy goes on with what it was trained for.
            recorded.objective = recorded.objective.or(file.meta().interface.objective);
        }
        config.init = Some(path.clone());
    }
    Ok(config)
}

pub(crate) fn command(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let config = config(args)?;
    // A run that is continued has its bound in the checkpoint, unless one is given.
    let is_bounded = config
        .as_ref()
        .is_none_or(|config| config.actor.max_lag.is_some());
    let training = Training {
        config,
        overrides: Overrides {
            steps: args.steps,
            seed: args.seed,
            device: args.device.map(DeviceArg::kind),
            actors: args.actors,
            max_lag: args.listen.max_lag(is_bounded),
        },
        dir: args.out.clone(),
        command: super::command_line(),
        listening: args.listen.listening()?,
        metrics: args.metrics.address(),
        store: args.store.clone(),
    };
    let stop = interrupt::on_interrupt()?;
    let mut progress = ProgressView::new();
    let record = train::train(&training, &stop, &mut |event| progress.show(event));
    progress.end();
    let record = record.context("training")?;

    let outcome = match record.finish {
        Finish::Steps => "all steps are done; a larger --steps continues from here",
        Finish::Return => "the target return is reached",
        Finish::Patience => {
            "no better on the flows that are held out (held_out.csv); policy.onnx is the best one"
        }
        Finish::Open => "ended early; the same command continues from here",
    };
    super::print(format_args!(
        "{}\n{outcome}: {}\n",
        progress::line(&record.last),
        args.out.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
