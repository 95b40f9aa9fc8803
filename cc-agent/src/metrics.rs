//! What monitoring systems are told over HTTP: the state of a running agent, by `cc-agent metrics`,
//! what flows of any congestion control do, by `cc-agent observe --metrics`, and how the processes
//! beside the agent fare, by the same option of `follow`, `ship` and `pods`.
//!
//! The first is a process of its own that asks the agent over its Unix socket at each scrape. It
//! needs no privileges but access to that socket, and the agent opens no port.

mod attempts;
mod exposition;
mod observed;
mod page;
mod server;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context;
use cc_remote::http;
use clap::Args;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing::info;

pub(crate) use attempts::{Attempts, Task};
pub use exposition::encode;
#[cfg(test)]
pub(crate) use observed::page as page_of_an_observer;
pub(crate) use observed::{Losses, Observed, Question};
pub(crate) use page::registry;
#[cfg(test)]
pub(crate) use page::{page_of, value};
pub(crate) use server::{serve_observed, serve_own};

/// Where an exporter of the agent's metrics listens.
#[derive(Args, Debug)]
pub struct MetricsOptions {
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9465")]
    pub listen: SocketAddr,

    /// Allow an address that is not a loopback one. Whoever reaches it can read what `status`
    /// counts; addresses of flows are not among it.
    #[arg(long)]
    pub expose: bool,
}

impl MetricsOptions {
    /// Answers `GET /metrics` and `GET /health` until SIGINT or SIGTERM, about the agent whose
    /// socket is given. An agent that does not run is part of the answer.
    ///
    /// # Errors
    ///
    /// Returns an error when the address is not a loopback one, unless that is allowed, and when it
    /// cannot be listened on.
    pub async fn serve(self, socket: PathBuf) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let listener = http::listen(self.listen, self.expose).context("--listen, --expose")?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        info!(
            "serving the metrics of the agent at {} on http://{address}/metrics",
            socket.display()
        );
        tokio::select! {
            () = server::serve(listener, socket) => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }
}
