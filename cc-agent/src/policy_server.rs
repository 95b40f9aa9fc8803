//! `cc-agent policy-server`: one policy for the agents of many hosts.

use std::{
    net::SocketAddr,
    os::fd::AsFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use cc_cage::{Cage, Job};
use cc_core::{
    interface::Interface,
    policy::{ActionSelection, Choice, Policy, PolicySpec, Query, Summary},
};
use cc_remote::{Server, ServerCounts, TlsFiles};
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};
use tracing::{info, warn};

use crate::{
    deploy::{LoadedPolicy, PolicyLoader, load_again},
    inference::ReadyPolicy,
    notify::Notifier,
};

/// Time between two log lines.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// A batch that is out for longer than this has been lost with its policy.
const BATCH_LIMIT: Duration = Duration::from_secs(1);
/// A policy whose process fails is started again, but only once within this time.
const RESTART_PERIOD: Duration = Duration::from_secs(10);

/// Options of `cc-agent policy-server`: the policy, the address and the certificates.
#[derive(Args, Debug)]
pub struct PolicyServerOptions {
    /// The policy: a FILE.onnx, or `default` (embedded).
    #[arg(long, value_name = "POLICY")]
    pub policy: PolicySpec,

    /// SHA-256 that the file of --policy must have, in hexadecimal.
    #[arg(long, value_name = "HEX")]
    pub policy_sha256: Option<String>,

    /// Address and port to listen on, such as 0.0.0.0:7443.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,

    /// The server's certificate, in PEM. Agents check that it names the host that they ask.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Certificates of the authorities that sign those of agents, in PEM. Agents without such a
    /// certificate are refused.
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,

    /// Serve without TLS, on a loopback address only.
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "client_ca"])]
    pub plaintext: bool,

    /// How an action is selected from the policy's distribution: `greedy`, `softmax`, or
    /// `softmax:T` at temperature T [default: as the file says].
    #[arg(long, value_name = "HOW")]
    pub serving: Option<ActionSelection>,

    /// Seed of the random numbers by which actions are sampled.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Refuse a policy whose batches take longer than this in the try-out, in ms [default: a
    /// quarter of the window].
    #[arg(long, value_name = "MS")]
    pub batch_budget_ms: Option<f64>,

    /// Run the policy within the server rather than in a confined process.
    #[arg(long)]
    pub no_cage: bool,
}

impl PolicyServerOptions {
    /// Serves the policy until SIGINT or SIGTERM.
    ///
    /// # Errors
    ///
    /// Returns an error when the options contradict each other, when the policy, the certificates
    /// or the address cannot be used, and when the policy's thread ends.
    pub async fn serve(self) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let tls = self.tls()?;
        let loaded = self.load()?;
        loaded.log();
        let text = loaded.text.clone();
        let server = Server::start(ready(loaded)).with_context(|| format!("policy {text}"))?;
        let listener = server.listen(self.listen, tls.as_ref())?;
        let address = listener.address();
        match tls {
            Some(_) => info!("serving policy {text} on {address}, with TLS"),
            None => warn!("serving policy {text} on {address}, as plain text"),
        }
        let notifier = Notifier::from_environment();
        notifier.ready();
        let mut log = interval(LOG_PERIOD);
        log.set_missed_tick_behavior(MissedTickBehavior::Delay);
        log.tick().await;
        let shutdown = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let started = Instant::now();
        let outcome = {
            let serving = server.serve(listener, shutdown);
            tokio::pin!(serving);
            loop {
                tokio::select! {
                    outcome = &mut serving => break outcome,
                    _ = log.tick() => info!("{}", describe(&server.counts(), started.elapsed())),
                }
            }
        };
        notifier.stopping();
        info!("ends; {}", describe(&server.counts(), started.elapsed()));
        outcome?;
        Ok(())
    }

    /// The files of TLS; `None` with `--plaintext`.
    fn tls(&self) -> anyhow::Result<Option<TlsFiles>> {
        match (&self.client_ca, &self.tls_cert, &self.tls_key) {
            (Some(ca), Some(cert), Some(key)) => Ok(Some(TlsFiles {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
            })),
            _ if self.plaintext => Ok(None),
            _ => bail!(
                "agents and server prove who they are: give --tls-cert, --tls-key and --client-ca, \
                 or --plaintext to serve this host only"
            ),
        }
    }

    fn load(&self) -> anyhow::Result<LoadedPolicy> {
        let budget = match self.batch_budget_ms {
            Some(ms) if !(0.001..=60_000.0).contains(&ms) => {
                bail!("--batch-budget-ms {ms}: expected 0.001 to 60000")
            }
            ms => ms.map(|ms| Duration::from_secs_f64(ms / 1e3)),
        };
        let mut spec = self.policy.clone();
        if let Some(sha256) = &self.policy_sha256 {
            spec = spec.pinned(sha256)?;
        }
        let loader = PolicyLoader {
            interface: Interface::default(),
            serving: self.serving,
            seed: self.seed,
            added_delay: Duration::ZERO,
            batch_budget: budget,
            caged: !self.no_cage,
        };
        Ok(loader.load(&spec)?)
    }
}

/// The counts since the start, `elapsed` ago, in a line.
fn describe(counts: &ServerCounts, elapsed: Duration) -> String {
    let ServerCounts {
        agents,
        connected,
        refused,
        queries,
        batches,
        dropped,
        busy_us,
    } = *counts;
    let busy = busy_us as f64 / 1e4 / elapsed.as_secs_f64().max(1e-3);
    format!(
        "{connected} agents connected, {agents} welcomed, {refused} refused; {queries} queries in \
         {batches} batches of {:.1}, {dropped} answers dropped; the policy was busy {busy:.1} % of \
         the time",
        counts.mean_batch(),
    )
}

/// A loaded policy, to be asked by a thread that waits for the answer.
fn ready(loaded: LoadedPolicy) -> Box<dyn Policy> {
    match loaded.policy {
        ReadyPolicy::Here(policy, _) => policy,
        ReadyPolicy::Caged(cage) => Box::new(Caged {
            interface: loaded.loaded.interface,
            file: loaded.loaded.file,
            job: loaded.job,
            cage: Some(cage),
            started: Instant::now(),
        }),
    }
}

/// A policy in a process of its own. While the process is gone, no answer is usable.
struct Caged {
    interface: Interface,
    file: Option<Summary>,
    job: Job,
    /// The process; `None` after a failure, until it is started again.
    cage: Option<Box<Cage>>,
    /// When the process was last started.
    started: Instant,
}

impl Policy for Caged {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        let mut choices = Vec::with_capacity(queries.len());
        while choices.len() < queries.len() {
            let rest = &mut queries[choices.len()..];
            let answered = match self.cage() {
                Some(cage) => {
                    let rows = cage.rows().min(rest.len());
                    answer(cage, &mut rest[..rows])
                }
                None => {
                    choices.resize(queries.len(), Choice::Invalid);
                    break;
                }
            };
            match answered {
                Ok(more) => choices.extend(more),
                Err(reason) => {
                    warn!("the policy has failed and is to be started again: {reason}");
                    self.cage = None;
                }
            }
        }
        choices
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }

    fn file(&self) -> Option<&Summary> {
        self.file.as_ref()
    }
}

impl Caged {
    /// The process, started again if it is gone; `None` when that is not possible now.
    fn cage(&mut self) -> Option<&mut Cage> {
        if self.cage.is_none() && self.started.elapsed() >= RESTART_PERIOD {
            self.started = Instant::now();
            match load_again(&self.job, true).map(|loaded| loaded.policy) {
                Ok(ReadyPolicy::Caged(cage)) => self.cage = Some(cage),
                Ok(ReadyPolicy::Here(..)) => {}
                Err(error) => warn!("{error}; agents decide with their local policies"),
            }
        }
        self.cage.as_deref_mut()
    }
}

/// Asks a policy's process and waits for its answer.
fn answer(cage: &mut Cage, queries: &mut [Query]) -> Result<Vec<Choice>, String> {
    let deadline = Instant::now() + BATCH_LIMIT;
    // Whoever is gone shows it in `poll_answer`.
    let _ = cage.ask(queries);
    loop {
        let answered = cage.poll_answer(queries);
        if let Some(choices) = answered.map_err(|fault| fault.to_string())? {
            return Ok(choices);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let ms = BATCH_LIMIT.as_millis();
            return Err(format!("it has not answered a batch for {ms} ms"));
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // What interrupts the wait is found by the next look.
        let _ = poll(&mut [PollFd::new(cage.as_fd(), PollFlags::POLLIN)], timeout);
    }
}
