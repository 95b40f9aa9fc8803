//! `cc-trainer act`: a worker that acts for a learner on another machine.

use std::{num::NonZero, path::PathBuf, process::ExitCode, thread, time::Duration};

use cc_core::{policy::ServerAddress, status::default_socket};
use cc_testbed::summary::Platform;
use cc_trainer::train::{
    config::Config,
    distributed::{RealTime, ServedFlows, StreamPoint, WorkEvent, Worker},
};

use super::{
    interrupt,
    values::{platform, seconds},
    workers::ConnectArgs,
};

/// Act for a learner on another machine (`cc-trainer train --listen`).
///
/// The learner says what to act in and sends its policies; the worker sends rollouts. It keeps
/// nothing: it can be started and stopped at any time, and connects again when the learner is gone.
/// The environments' files, such as traces and recordings, must lie at the same places as on the
/// learner's machine. Ends when the run is done, and at Ctrl-C. docs/distributed.md has more.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ActArgs {
    /// The learner: grpc://HOST:PORT on this host, or grpcs://HOST:PORT with TLS.
    #[arg(long, value_name = "URL")]
    learner: ServerAddress,
    /// Number of threads that act, or of links that are emulated at a time [default: the number of
    /// processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    actors: Option<u32>,
    /// Act in the simulator, or run by the clock: on emulated links under this host's kernel, whose
    /// flows an agent serves by the learner's newest policy. The kernel needs root.
    #[arg(long, value_name = "WHERE", default_value = "sim", value_parser = platform())]
    on: Platform,
    /// Path of the agent's program, for --on kernel [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Learn from the flows that a running agent on this host serves: the directory that it records
    /// to (`cc-agent run --record DIR --record-delay-s 1`). The worker gives it the learner's
    /// newest policy, and reads the recording as it is written.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["on", "agent", "actors", "replay"])]
    recording: Option<PathBuf>,
    /// The socket of that agent [default: that of the name rlcc].
    #[arg(long, value_name = "PATH", requires = "recording")]
    socket: Option<PathBuf>,
    /// Time between two policies that an agent is given, at least, in seconds.
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    reload_s: Duration,
    /// Act for a learner with these settings only.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Send the first rollouts again and again, as those of the newest policy: for measurements of
    /// the learner and the network. Nothing good is learnt from them.
    #[arg(long)]
    replay: bool,
    #[command(flatten)]
    connection: ConnectArgs,
}

const EXAMPLES: &str = "\
Examples:
  cc-trainer train --config cc-trainer/training/cartpole.toml --actors 0 --listen 127.0.0.1:7555
  cc-trainer act --learner grpc://127.0.0.1:7555 --actors 2
      a learner and a worker on one host
  cc-trainer train --config FILE.toml --listen 0.0.0.0:7555 --tls-cert learner.pem \\
      --tls-key learner.key --client-ca ca.pem --token-file token
  cc-trainer act --learner grpcs://learner.example:7555 --remote-ca ca.pem \\
      --remote-cert worker.pem --remote-key worker.key --token-file token
      the same between hosts
  sudo cc-trainer act --learner grpc://127.0.0.1:7555 --on kernel --actors 4
      four emulated links at a time under the real kernel
  sudo cc-agent run --record /var/lib/cc-agent/recordings --record-delay-s 1
  sudo cc-trainer act --learner grpc://127.0.0.1:7555 --recording /var/lib/cc-agent/recordings
      the flows of a live agent, whose policy is learnt further while it serves";

impl ActArgs {
    /// The environments that run by the clock; `None` for simulated ones.
    fn real_time(&self) -> anyhow::Result<Option<RealTime>> {
        let flows = match (&self.recording, self.on) {
            (Some(recording), _) => ServedFlows::Live {
                recording: recording.clone(),
                socket: (self.socket.clone()).unwrap_or_else(|| default_socket("rlcc")),
            },
            (None, Platform::Kernel) => ServedFlows::Links {
                agent: self.agent.clone(),
            },
            (None, Platform::Sim) => {
                anyhow::ensure!(self.agent.is_none(), "--agent is for --on kernel");
                return Ok(None);
            }
        };
        anyhow::ensure!(!self.replay, "--replay is for simulated environments");
        Ok(Some(RealTime {
            flows,
            reload: self.reload_s,
        }))
    }
}

pub(crate) fn command(args: &ActArgs) -> anyhow::Result<ExitCode> {
    let worker = Worker {
        learner: args.learner.clone(),
        tls: args.connection.tls()?,
        plaintext: args.connection.plaintext(),
        token: args.connection.token()?,
        actors: args
            .actors
            .map_or_else(processors, |actors| actors as usize),
        config: args.config.as_deref().map(Config::load).transpose()?,
        replay: args.replay,
        real_time: args.real_time()?,
        learning: None,
    };
    work(&worker)
}

/// Number of processors that there are for the process.
pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Works until the run is done or somebody interrupts, and says what happens.
pub(super) fn work(worker: &Worker) -> anyhow::Result<ExitCode> {
    let stop = interrupt::on_interrupt()?;
    worker.work(&stop, &mut |event| match event {
        WorkEvent::Acting { run, version } => super::note(format_args!(
            "{} actors act for run {run}, by the policy of update {version}",
            worker.actors
        )),
        WorkEvent::Progress { rollouts, version } => super::note(format_args!(
            "{rollouts} rollouts sent, policy of update {version}"
        )),
        WorkEvent::Streaming(StreamPoint { counts, others }) => super::note(format_args!(
            "{} decisions recorded; left out: {} of other policies, {} of too many flows, {} rows \
             of other interfaces, {} that came late",
            counts.decisions, counts.foreign, counts.unseated, others, counts.late
        )),
        WorkEvent::Learning { updates, version } => super::note(format_args!(
            "took part in {updates} updates, policy of update {version}"
        )),
        WorkEvent::Waiting { reason, pause } => super::note(format_args!(
            "{reason}; the next attempt comes in {:.1} s",
            pause.as_secs_f64()
        )),
        _ => {}
    })?;
    Ok(ExitCode::SUCCESS)
}
