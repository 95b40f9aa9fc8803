//! `cc-agent pods`: serves the pods of a node of Kubernetes that an annotation selects.
//!
//! A process of its own beside the agent, as `follow` is: the agent itself talks to no network. It
//! watches the API server for the pods of its node, looks for the cgroups of those that are
//! selected, and asks the agent over its socket to serve these, as an operator would with `cc-agent
//! cgroup add`. [`Selector`] decides what is asked. It compares what is to be served with what the
//! agent says it serves, and remembers nothing: an agent that was started again is told anew.

mod api;
mod lines;
mod objects;
mod selector;
mod tally;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use cc_client::{StatusError, command, fetch};
use cc_core::status::Command;
use cc_remote::https::HttpsClient;
use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::spawn_blocking,
    time::{self, sleep_until},
};
use tracing::info;

use self::{
    api::Api,
    selector::{Annotation, Change, Selector},
    tally::Tally,
};
use crate::{metrics, period::period, said::Said};

#[cfg(test)]
pub(crate) use tally::page;

/// Where a pod finds its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The variable that says which node this is, where --node does not.
const NODE: &str = "NODE_NAME";
/// Time between two looks for a cgroup that the kubelet is about to make.
const EAGER: Duration = Duration::from_millis(200);
/// Time for which it is looked for so often. Pods that have ended have no cgroup for ever.
const EAGER_FOR: Duration = Duration::from_secs(30);
/// Events that may wait for the selector.
const EVENTS: usize = 64;

/// Which pods are selected, and by whom they are told.
#[derive(Args, Debug)]
pub struct PodsOptions {
    /// Name of this node, whose pods are watched [default: the environment's NODE_NAME].
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,

    /// The annotation that selects a pod, whose value must be the name of the agent's congestion
    /// control (--name).
    #[arg(long, value_name = "KEY", default_value = "rlcc/congestion-control")]
    pub annotation: String,

    /// The directory of cgroup v2 below which the cgroups of pods are looked for. The agent must
    /// see them by the same paths.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    pub cgroup_root: PathBuf,

    /// URL of the API server: https://HOST:PORT, or http://HOST:PORT of `kubectl proxy` on this
    /// host [default: that of the cluster that this is a pod of].
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,

    /// File of the token that is sent to the API server [default: the pod's service account's; none
    /// where --server is http].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// File of the certificates, in PEM, of the authorities that may sign that of the API server
    /// [default: the cluster's, as pods have it].
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// Time between two comparisons of what the agent serves with what is selected, in s. Changes
    /// of pods are acted on at once.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub every: f64,

    /// Serve how selecting goes, in OpenMetrics' text format at http://ADDR:PORT/metrics [without
    /// an address: 127.0.0.1:9470].
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9470"
    )]
    pub metrics: Option<SocketAddr>,

    /// Allow an address for --metrics that is not a loopback one. Whoever reaches it can read how
    /// many pods are selected; their names are not among it.
    #[arg(long, requires = "metrics")]
    pub expose_metrics: bool,
}

/// A node's selector at work.
struct Node {
    selector: Selector,
    /// Socket of the agent that is asked.
    socket: PathBuf,
    root: PathBuf,
    /// The cgroups of pods that were found, by what they are named after.
    found: BTreeMap<String, PathBuf>,
    said: Said,
    tally: Tally,
}

impl PodsOptions {
    /// Selects pods until SIGINT or SIGTERM, for the agent of this name. Neither an API server out
    /// of reach nor an agent that does not run ends it, and what is served stays when it ends.
    ///
    /// # Errors
    ///
    /// Returns an error when the node, the server or the cgroups are not known, or not usable.
    pub async fn select(self, name: &str, socket: PathBuf) -> anyhow::Result<()> {
        let every = period(self.every)?;
        let annotation = Annotation {
            key: self.annotation.clone(),
            value: name.to_owned(),
        };
        let root = self.cgroup_root.clone();
        fs::read_dir(&root).with_context(|| {
            format!(
                "--cgroup-root {}: expected the directory that cgroup v2 is mounted on",
                root.display()
            )
        })?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut registry = metrics::registry();
        let tally = Tally::of(&mut registry);
        metrics::serve_own(self.metrics, self.expose_metrics, registry)?;
        let api = self.api(&tally)?;
        info!(
            "selecting the pods of node {} that have the annotation {annotation}, as {} tells",
            api.node,
            api.client.url()
        );
        let mut node = Node {
            selector: Selector::new(annotation),
            socket,
            root,
            found: BTreeMap::new(),
            said: Said::default(),
            tally,
        };
        let (events, mut told) = mpsc::channel(EVENTS);
        let _api = AbortOnDrop(tokio::spawn(api.follow(events)));
        let mut eager_until = Instant::now();
        let mut next = time::Instant::now();
        loop {
            tokio::select! {
                Some(event) = told.recv() => {
                    let news = node.selector.hear(event);
                    if news.is_empty() {
                        continue;
                    }
                    news.iter().for_each(|news| info!("{news}"));
                    eager_until = Instant::now() + EAGER_FOR;
                }
                () = sleep_until(next) => {}
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            }
            let outcome = node.look().await;
            node.tally.agent.count(&outcome);
            if let Err(error) = outcome {
                node.said.warn(&format!("{error:#}"));
            }
            let is_eager = node.selector.misses(&node.found) && Instant::now() < eager_until;
            next = time::Instant::now() + if is_eager { EAGER } else { every };
        }
    }

    /// The API server that is asked.
    fn api(self, tally: &Tally) -> anyhow::Result<Api> {
        let node = self.node.or_else(|| env::var(NODE).ok());
        let Some(node) = node.filter(|node| !node.is_empty()) else {
            bail!(
                "which node is this? Name it with --node, or in the variable {NODE}, from the \
                 field spec.nodeName in a manifest (examples/kubernetes/agent.yaml)"
            );
        };
        let server = match self.server {
            Some(server) => server,
            None => in_cluster().context(
                "this is no pod of a cluster, which finds its API server in the variables \
                 KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT: name it with --server",
            )?,
        };
        let account = Path::new(ACCOUNT);
        let ca = self.ca_file.unwrap_or_else(|| account.join("ca.crt"));
        let client = HttpsClient::new(&server, &ca).context("--server")?;
        let token_file = match self.token_file {
            None if !client.is_encrypted() => None,
            None => Some(account.join("token")),
            given => given,
        };
        Ok(Api {
            client,
            node,
            token_file,
            attempts: tally.server.clone(),
        })
    }
}

/// URL of the API server of the cluster that this process is in a pod of.
fn in_cluster() -> Option<String> {
    let host = env::var("KUBERNETES_SERVICE_HOST").ok()?;
    let port = env::var("KUBERNETES_SERVICE_PORT").ok()?;
    Some(match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    })
}

impl Node {
    /// Looks for the cgroups of selected pods, and asks the agent for what it does not serve yet or
    /// still does.
    async fn look(&mut self) -> anyhow::Result<()> {
        self.found.retain(|_, directory| directory.exists());
        if self.selector.misses(&self.found) {
            let wanted: BTreeSet<&str> = self.selector.wanted().collect();
            self.found = tree::find(&self.root, &wanted);
        }
        let wanted = self.selector.wanted();
        let (found, missing): (Vec<_>, Vec<_>) =
            wanted.partition(|cgroup| self.found.contains_key(*cgroup));
        self.tally
            .selects(found.len() + missing.len(), missing.len());
        let socket = self.socket.clone();
        let snapshot = spawn_blocking(move || fetch(&socket)).await??;
        let Some(served) = snapshot.cgroups else {
            bail!(
                "the agent at {} serves no cgroups by command: start it with --cgroups-by-command",
                self.socket.display()
            );
        };
        let mut trouble = None;
        for change in self.selector.changes(&self.found, &served) {
            let message = match change {
                Change::Add(directory) => Command::AddCgroup { directory },
                Change::Remove(directory) => Command::RemoveCgroup { directory },
            };
            let (socket, sent) = (self.socket.clone(), message.clone());
            match spawn_blocking(move || command(&socket, sent)).await? {
                Ok(done) => info!("{done}"),
                // The others do not wait for it.
                Err(StatusError::Refused(reason)) => {
                    let refused = anyhow!("{message}: the agent refuses: {reason}");
                    trouble.get_or_insert(refused);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match trouble {
            Some(trouble) => Err(trouble),
            None => {
                self.said.clear();
                Ok(())
            }
        }
    }
}

/// Ends a task when it is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
