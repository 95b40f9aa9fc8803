//! The flows whose windows are to be told of, one by one ([`TracedWindow`]).

use std::collections::{BTreeMap, VecDeque};

use cc_ebpf::{Feature, Identity, Mode, WindowRecord};

use crate::{
    flows::FlowId,
    objective::Measured,
    status::{TracedDecision, TracedWindow},
};

/// Windows of a flow that may wait for their decision; in usual operation these are two, one with
/// the policy and the newest.
const MOST_PENDING: usize = 8;

/// The traced flows, and what is to be told of them.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// Windows without an outcome yet, the oldest first.
    pending: BTreeMap<FlowId, VecDeque<TracedWindow>>,
    settled: Vec<(FlowId, TracedWindow)>,
}

impl Traces {
    /// Traces a flow from its next window on. A flow that is traced already stays so.
    pub(crate) fn begin(&mut self, flow: FlowId) {
        self.pending.entry(flow).or_default();
    }

    /// Ends the trace of a flow. Its windows that are still pending come with the next
    /// [`Self::take`].
    pub(crate) fn end(&mut self, flow: FlowId) {
        for window in self.pending.remove(&flow).into_iter().flatten() {
            self.give_up(flow, window);
        }
    }

    /// Takes a window that has ended.
    pub(crate) fn window(
        &mut self,
        flow: FlowId,
        identity: &Identity,
        window: &WindowRecord,
        end_ns: u64,
        measured: &Measured,
        reward: f64,
    ) {
        let Some(pending) = self.pending.get_mut(&flow) else {
            return;
        };
        let srtt_us = window
            .features
            .mean(Feature::SmoothedRtt as usize, window.acks);
        pending.push_back(TracedWindow {
            end_ns,
            window: window.index,
            mode: Mode::from_raw(window.mode),
            acks: window.acks,
            rate_mbps: measured.throughput_mbps(),
            srtt_ms: srtt_us / 1e3,
            queue_ms: measured.delay_ms(),
            loss: measured.loss(),
            reward,
            cwnd: window.cwnd,
            decision: None,
            reason: None,
            lost: 0,
            cookie: identity.cookie,
            netns: identity.netns,
        });
        if pending.len() > MOST_PENDING
            && let Some(oldest) = pending.pop_front()
        {
            self.give_up(flow, oldest);
        }
    }

    /// Takes what became of a window: the decision on it, or why there is none.
    pub(crate) fn settle(
        &mut self,
        flow: FlowId,
        window: u32,
        outcome: impl FnOnce() -> Result<TracedDecision, &'static str>,
    ) {
        let Some(pending) = self.pending.get_mut(&flow) else {
            return;
        };
        let Some(at) = pending.iter().position(|it| it.window == window) else {
            return;
        };
        if let Some(mut traced) = pending.remove(at) {
            match outcome() {
                Ok(decision) => traced.decision = Some(decision),
                Err(reason) => traced.reason = Some(reason.to_owned()),
            }
            self.settled.push((flow, traced));
        }
    }

    /// Takes the windows that have an outcome since the last call.
    pub(crate) fn take(&mut self) -> Vec<(FlowId, TracedWindow)> {
        std::mem::take(&mut self.settled)
    }

    fn give_up(&mut self, flow: FlowId, mut window: TracedWindow) {
        window.reason = Some("no decision".into());
        self.settled.push((flow, window));
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    const FLOW: FlowId = FlowId {
        slot: 3,
        generation: 2,
    };

    fn window(traces: &mut Traces, flow: FlowId, index: u32) {
        let mut window = WindowRecord::zeroed();
        window.index = index;
        let identity = Identity::default();
        traces.window(flow, &identity, &window, 1, &Measured::default(), 0.5);
    }

    fn told(traces: &mut Traces) -> Vec<(u32, Option<String>)> {
        let taken = traces.take().into_iter();
        let told = taken.map(|(_, it)| (it.window, it.decision.map(|it| it.action).or(it.reason)));
        told.collect()
    }

    #[test]
    fn each_window_of_a_traced_flow_is_told_of_once() {
        let mut traces = Traces::default();
        window(&mut traces, FLOW, 1);
        traces.begin(FLOW);
        let successor = FlowId {
            generation: 3,
            ..FLOW
        };
        window(&mut traces, successor, 1);
        window(&mut traces, FLOW, 2);
        window(&mut traces, FLOW, 3);
        window(&mut traces, FLOW, 4);
        assert!(traces.take().is_empty());
        traces.settle(FLOW, 3, || Err("skipped"));
        let decision = || TracedDecision {
            action: "*2".into(),
            probability: Some(0.5),
            base_cwnd: 10,
            cwnd: 20,
            delay_ms: 0.5,
        };
        traces.settle(FLOW, 2, || Ok(decision()));
        // It was told of; and that one came before the trace.
        traces.settle(FLOW, 2, || Ok(decision()));
        traces.settle(FLOW, 1, || Ok(decision()));
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(told(&mut traces), [(3, text("skipped")), (2, text("*2"))]);
        traces.end(FLOW);
        window(&mut traces, FLOW, 5);
        assert_eq!(told(&mut traces), [(4, text("no decision"))]);
    }

    #[test]
    fn windows_that_nobody_answers_are_told_of_at_last() {
        let mut traces = Traces::default();
        traces.begin(FLOW);
        for index in 0..100 {
            window(&mut traces, FLOW, index);
        }
        assert_eq!(told(&mut traces).len(), 100 - MOST_PENDING);
    }
}
