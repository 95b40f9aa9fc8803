//! `cc-trainer train --metrics`: what a run does at the moment, for monitoring systems and
//! autoscalers, over HTTP in the text format of OpenMetrics.
//!
//! A thread of its own answers. The learner only counts what an update has learnt from, and waits
//! for no request.

mod meter;
mod page;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use cc_remote::{
    http::{self, Limits, open_metrics, plain},
    transport::ListenError,
};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
};
use tokio::{
    net::TcpListener,
    time::{MissedTickBehavior, interval},
};

pub(super) use self::meter::Meter;
use crate::listening;

/// Time between two samples of the totals that rates are computed from.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);

/// Where a run's metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsAddress {
    /// The address to listen on; port 0 takes any that is free.
    pub address: SocketAddr,
    /// Whether other hosts may reach it. Without, only a loopback address is listened on.
    pub exposed: bool,
}

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// Other hosts could reach the address, which was not allowed.
    #[error("--metrics: {0} (--expose-metrics)")]
    Exposed(ListenError),
    /// The address cannot be listened on.
    #[error("--metrics: {0}")]
    Listen(ListenError),
    /// The thread that serves them cannot be started.
    #[error("starting the thread that serves metrics: {0}")]
    Thread(#[from] io::Error),
}

impl From<ListenError> for MetricsError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Exposed { .. } => Self::Exposed(error),
            _ => Self::Listen(error),
        }
    }
}

/// A thread that serves a run's metrics until it is dropped.
#[derive(Debug)]
pub(super) struct Exporter {
    address: SocketAddr,
    meter: Arc<Meter>,
    stop: Arc<AtomicBool>,
    /// `None` while it is dropped.
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens on an address, and answers about what is counted by `meter`.
    pub(super) fn start(at: MetricsAddress, meter: Meter) -> Result<Self, MetricsError> {
        let listener = http::listen(at.address, at.exposed)?;
        let address = listener.local_addr()?;
        let (meter, stop) = (Arc::new(meter), Arc::new(AtomicBool::new(false)));
        let runtime = listening::runtime()?;
        let listener = {
            let _within = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let work = {
            let (meter, stop) = (meter.clone(), stop.clone());
            move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = listening::stopped(&stop) => {}
                        () = sample(&meter) => {}
                        () = serve(listener, &meter) => {}
                    }
                });
            }
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(work)?;
        Ok(Self {
            address,
            meter,
            stop,
            thread: Some(thread),
        })
    }

    /// The address that is listened on, with its port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the run counts with.
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, its message has been printed, and the run needs nothing of it.
            let _ = thread.join();
        }
    }
}

async fn sample(meter: &Meter) {
    let mut tick = interval(SAMPLE_PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        meter.sample();
    }
}

async fn serve(listener: TcpListener, meter: &Arc<Meter>) {
    let meter = meter.clone();
    http::serve(listener, Limits::OF_A_PAGE, move |request| {
        let response = answer(&request, &meter);
        async move { response }
    })
    .await;
}

fn answer(request: &Request<Incoming>, meter: &Meter) -> Response<Full<Bytes>> {
    let (status, text) = match (request.uri().path(), request.method()) {
        ("/metrics", &(Method::GET | Method::HEAD)) => {
            return open_metrics(page::encode(meter.now()));
        }
        ("/metrics", _) => (
            StatusCode::METHOD_NOT_ALLOWED,
            "/metrics is asked for by GET\n",
        ),
        _ => (StatusCode::NOT_FOUND, "this is no page; ask for /metrics\n"),
    };
    plain(status, text.to_owned())
}

#[cfg(test)]
pub(super) mod tests;
