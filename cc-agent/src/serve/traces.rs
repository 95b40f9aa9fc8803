//! Clients that follow a flow, window by window.

use cc_core::{agent::Agent, flows::FlowId, status::TracedWindow};
use tokio::sync::mpsc;

use crate::status::TraceRequest;

/// The clients that follow a flow now.
#[derive(Debug, Default)]
pub(super) struct Tracers(Vec<Tracer>);

#[derive(Debug)]
struct Tracer {
    flow: FlowId,
    windows: mpsc::Sender<TracedWindow>,
    /// Windows that the client had no room for since the last that it had.
    lost: u64,
}

impl Tracers {
    /// Adds a client. One whose flow is not open is sent away.
    pub(super) fn begin(&mut self, agent: &mut Agent, request: TraceRequest) {
        let TraceRequest { flow, windows } = request;
        if agent.trace(flow) {
            self.0.push(Tracer {
                flow,
                windows,
                lost: 0,
            });
        }
    }

    /// Tells the clients what has happened, and forgets those that have ended, or whose flow has.
    pub(super) fn tell(&mut self, agent: &mut Agent) {
        if self.0.is_empty() {
            return;
        }
        let (live, ended): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|tracer| agent.is_live(tracer.flow) && !tracer.windows.is_closed());
        for tracer in &ended {
            let is_followed = live.iter().any(|other| other.flow == tracer.flow);
            if !is_followed {
                agent.untrace(tracer.flow);
            }
        }
        self.0 = live;
        let mut ended = ended;
        for (flow, window) in agent.take_traced() {
            let tracers = self.0.iter_mut().chain(&mut ended);
            for tracer in tracers.filter(|tracer| tracer.flow == flow) {
                tracer.tell(window.clone());
            }
        }
    }
}

impl Tracer {
    fn tell(&mut self, mut window: TracedWindow) {
        window.lost = self.lost;
        match self.windows.try_send(window) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += 1,
        }
    }
}
