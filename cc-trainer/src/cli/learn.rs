//! `cc-trainer learn`: a replica of a learner on another machine.

use std::process::ExitCode;

use cc_core::policy::ServerAddress;
use cc_trainer::train::distributed::{Learning, Worker};

use super::{act, train::DeviceArg, workers::ConnectArgs};

/// Learn together with a learner on another machine (`cc-trainer train --listen --learners N`).
///
/// The replica has actors of its own, computes the gradients of their rollouts, and sends these;
/// the learner takes one step along the mean of all gradients and sends the parameters. It keeps
/// nothing: it can be started and stopped at any time, and connects again when the learner is gone.
/// Ends when the run is done, and at Ctrl-C. docs/distributed.md has more.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LearnArgs {
    /// The learner: grpc://HOST:PORT on this host, or grpcs://HOST:PORT with TLS.
    #[arg(long, value_name = "URL")]
    learner: ServerAddress,
    /// Number of threads that act [default: one less than the number of processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    actors: Option<u32>,
    /// Device that gradients are computed on. Of several GPUs, CUDA_VISIBLE_DEVICES chooses one.
    #[arg(long, value_enum, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceArg,
    #[command(flatten)]
    connection: ConnectArgs,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer train --config cc-trainer/training/cartpole.toml --listen 127.0.0.1:7555 --learners 2
  cc-trainer learn --learner grpc://127.0.0.1:7555 --actors 1
      two learners on one host
  CUDA_VISIBLE_DEVICES=1 cc-trainer learn --learner grpc://127.0.0.1:7555 --device cuda
      a replica on the host's second GPU";

pub(crate) fn command(args: &LearnArgs) -> anyhow::Result<ExitCode> {
    let processors = act::processors();
    let actors = (args.actors).map_or(processors.saturating_sub(1), |actors| actors as usize);
    let actors = actors.max(1);
    act::work(&Worker {
        learner: args.learner.clone(),
        tls: args.connection.tls()?,
        plaintext: args.connection.plaintext(),
        token: args.connection.token()?,
        actors,
        config: None,
        replay: false,
        real_time: None,
        learning: Some(Learning {
            device: args.device.kind(),
            threads: processors.saturating_sub(actors).max(1),
        }),
    })
}
