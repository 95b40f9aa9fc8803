//! Options of the connection between a learner and its workers, on either side, and of its metrics.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use cc_core::regular_file;
use cc_remote::{TlsFiles, transport::Plaintext};
use cc_trainer::train::{distributed::Listening, metrics::MetricsAddress};

/// Size limit of a token's file, bytes.
const MAX_TOKEN: u64 = 4096;
/// Bound on the age of rollouts of a learner with workers, updates.
const MAX_LAG: u64 = 100;

/// Options of a learner that listens for workers.
#[derive(Debug, clap::Args)]
pub(super) struct ListenArgs {
    /// Listen for workers (`cc-trainer act --learner URL`) on this address and port. With
    /// --actors 0, they alone act.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// The learner's certificate, in PEM. Workers check that it names the host that they connect
    /// to.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_key: Option<PathBuf>,
    /// Certificates of the authorities that sign those of workers, in PEM. Workers without such a
    /// certificate are refused.
    #[arg(long, value_name = "FILE", requires = "listen")]
    client_ca: Option<PathBuf>,
    /// Serve workers of other hosts without TLS: policies, rollouts and token go over the network
    /// as plain text. On a loopback address it needs no option.
    #[arg(long, requires = "listen", conflicts_with_all = ["tls_cert", "tls_key", "client_ca"])]
    plaintext: bool,
    /// A file with the secret that workers must have.
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
    /// Number of learners that learn together, this one included. The others are replicas
    /// (`cc-trainer learn --learner URL`), each with a batch of its own for every update: the batch
    /// of the run is N times learner.batch. The first update waits for them, for a minute at most.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "listen",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    learners: u16,
    /// Learn from no rollout whose policy is more than this many updates old
    /// [default: the configuration's, or 100 with --listen, or no bound].
    #[arg(long, value_name = "N")]
    max_lag: Option<u64>,
}

impl ListenArgs {
    /// Returns how the learner listens; `None` when it does not.
    pub(super) fn listening(&self) -> anyhow::Result<Option<Listening>> {
        let Some(address) = self.listen else {
            return Ok(None);
        };
        Ok(Some(Listening {
            address,
            tls: files(
                [&self.client_ca, &self.tls_cert, &self.tls_key],
                ["--client-ca", "--tls-cert", "--tls-key"],
            )?,
            plaintext: plaintext(self.plaintext),
            token: self.token_file.as_deref().map(token).transpose()?,
            learners: usize::from(self.learners),
        }))
    }

    /// Returns the bound on the age of rollouts, which replaces the configuration's; `configured`
    /// is whether that has one.
    pub(super) fn max_lag(&self, configured: bool) -> Option<u64> {
        let default = (self.listen.is_some() && !configured).then_some(MAX_LAG);
        self.max_lag.or(default)
    }
}

/// Options of a run whose metrics are served.
#[derive(Debug, clap::Args)]
pub(super) struct MetricsArgs {
    /// Serve metrics of the run in OpenMetrics' text format at http://ADDR:PORT/metrics: steps,
    /// learner's utilization, handling time, bytes, lag, workers, what was refused.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Allow an address for --metrics that is not a loopback one. Whoever reaches it can read them.
    #[arg(long, requires = "metrics")]
    expose_metrics: bool,
}

impl MetricsArgs {
    /// Returns where metrics are served; `None` for nowhere.
    pub(super) fn address(&self) -> Option<MetricsAddress> {
        let exposed = self.expose_metrics;
        self.metrics
            .map(|address| MetricsAddress { address, exposed })
    }
}

/// Options of a worker that connects to a learner.
#[derive(Debug, clap::Args)]
pub(super) struct ConnectArgs {
    /// Certificates of the authorities that sign the learner's, in PEM.
    #[arg(long, value_name = "FILE")]
    remote_ca: Option<PathBuf>,
    /// The worker's certificate, in PEM.
    #[arg(long, value_name = "FILE")]
    remote_cert: Option<PathBuf>,
    /// The private key of --remote-cert, in PEM.
    #[arg(long, value_name = "FILE")]
    remote_key: Option<PathBuf>,
    /// Connect to another host without TLS: policies, rollouts and token go over the network as
    /// plain text.
    #[arg(long, conflicts_with_all = ["remote_ca", "remote_cert", "remote_key"])]
    plaintext: bool,
    /// A file with the learner's secret.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ConnectArgs {
    /// Returns the certificates and the key; `None` without any.
    pub(super) fn tls(&self) -> anyhow::Result<Option<TlsFiles>> {
        files(
            [&self.remote_ca, &self.remote_cert, &self.remote_key],
            ["--remote-ca", "--remote-cert", "--remote-key"],
        )
    }

    /// Returns where a connection without TLS may go.
    pub(super) fn plaintext(&self) -> Plaintext {
        plaintext(self.plaintext)
    }

    /// Returns the learner's secret; `None` without any.
    pub(super) fn token(&self) -> anyhow::Result<Option<String>> {
        self.token_file.as_deref().map(token).transpose()
    }
}

/// The files of one side, which come together or not at all.
fn files(
    [ca, cert, key]: [&Option<PathBuf>; 3],
    options: [&str; 3],
) -> anyhow::Result<Option<TlsFiles>> {
    match (ca, cert, key) {
        (None, None, None) => Ok(None),
        (Some(ca), Some(cert), Some(key)) => Ok(Some(TlsFiles {
            ca: ca.clone(),
            cert: cert.clone(),
            key: key.clone(),
        })),
        _ => bail!("both sides prove who they are: give {}", options.join(", ")),
    }
}

fn plaintext(anywhere: bool) -> Plaintext {
    match anywhere {
        true => Plaintext::Anywhere,
        false => Plaintext::Loopback,
    }
}

/// Reads a secret, without the space around it.
fn token(path: &Path) -> anyhow::Result<String> {
    let text = regular_file::read_to_string(path, MAX_TOKEN)
        .with_context(|| format!("--token-file {}", path.display()))?;
    match text.trim() {
        "" => bail!(
            "--token-file {}: expected a secret, found none",
            path.display()
        ),
        token => Ok(token.to_owned()),
    }
}
