//! The metrics of an observer: its options, its HTTP server, and the names of the cgroups.

use std::{future, net::SocketAddr};

use anyhow::Context;
use cc_core::foreign::groups::{Grouping, Groups};
use cc_remote::http;
use clap::{Args, value_parser};
use tokio::{net::TcpListener, sync::mpsc};
use tracing::info;

use crate::{
    kernel::CgroupPaths,
    metrics::{Question, serve_observed},
};

/// Cgroups that have labels of their own, unless --cgroup-labels says otherwise.
const CGROUP_LABELS: u16 = 64;
/// Scrapes that wait for an answer at once; further ones wait before that.
const WAITING: usize = 4;

/// Where an observer serves metrics, and how cgroups are told apart in them.
#[derive(Args, Clone, Debug, Default)]
pub struct ExporterOptions {
    /// Serve what flows do, by congestion control and cgroup, in OpenMetrics' text format at
    /// http://ADDR:PORT/metrics [without an address: 127.0.0.1:9467].
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9467"
    )]
    metrics: Option<SocketAddr>,

    /// Allow an address for --metrics that is not a loopback one. Whoever reaches it can read the
    /// paths of cgroups and what their flows do together; addresses of flows are not among it.
    #[arg(long, requires = "metrics")]
    expose_metrics: bool,

    /// Count cgroups that are deeper than this below the root as their ancestor of this depth, for
    /// example a pod's containers together [default: each cgroup by itself].
    #[arg(
        long,
        value_name = "N",
        requires = "metrics",
        value_parser = value_parser!(u16).range(1..=100)
    )]
    cgroup_depth: Option<u16>,

    /// Cgroups that have a label of their own at a time; further ones count together as `other`
    /// [default: 64].
    #[arg(
        long,
        value_name = "N",
        requires = "metrics",
        value_parser = value_parser!(u16).range(1..=4096)
    )]
    cgroup_labels: Option<u16>,
}

impl ExporterOptions {
    /// Begins to listen, where metrics are to be served.
    ///
    /// # Errors
    ///
    /// Returns an error when the address is not a loopback one, unless that is allowed, and when it
    /// cannot be listened on.
    pub(super) fn listen(&self) -> Result<Option<Exporter>, anyhow::Error> {
        let Some(address) = self.metrics else {
            return Ok(None);
        };
        let listener = http::listen(address, self.expose_metrics);
        let listener = TcpListener::from_std(listener.context("--metrics, --expose-metrics")?)?;
        info!(
            "serving metrics on http://{}/metrics",
            listener.local_addr()?
        );
        let (asks, questions) = mpsc::channel(WAITING);
        tokio::spawn(serve_observed(listener, asks));
        Ok(Some(Exporter {
            questions,
            paths: CgroupPaths::default(),
            grouping: Grouping {
                depth: self.cgroup_depth.map(usize::from),
                places: usize::from(self.cgroup_labels.unwrap_or(CGROUP_LABELS)),
            },
        }))
    }
}

/// A server of metrics that is running.
pub(super) struct Exporter {
    questions: mpsc::Receiver<Question>,
    paths: CgroupPaths,
    grouping: Grouping,
}

impl Exporter {
    /// How cgroups are told apart.
    pub(super) fn grouping(&self) -> Grouping {
        self.grouping
    }

    /// Gives the cgroups that wait for it their names.
    pub(super) fn name(&mut self, groups: &mut Groups, now_ns: u64) {
        if self.paths.find(groups.nameless()) {
            groups.name(now_ns, |id| self.paths.path(id));
        }
    }
}

/// The next question of a scrape; never any without an exporter.
pub(super) async fn question(exporter: Option<&mut Exporter>) -> Question {
    let next = match exporter {
        Some(exporter) => exporter.questions.recv().await,
        None => None,
    };
    match next {
        Some(question) => question,
        None => future::pending().await,
    }
}
