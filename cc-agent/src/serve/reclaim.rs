//! Takes the slots of idle flows away: after a while, and at once when slots are scarce.
//!
//! Connections that send nothing would keep their slots, so that whoever opens many of them could
//! take all, and those of whose end a kernel did not tell the datapath would keep theirs for good.
//! A slot is taken away in two steps. First the agent publishes a [revocation] for the flow, which
//! the datapath finds with the flow's next callback and then leaves the slot alone. Once no
//! callback can be running any more that began before, the slot is the agent's, which frees it. A
//! flow that sends again asks for a slot like a new one.
//!
//! [revocation]: cc_ebpf::Decision::revocation

use std::collections::VecDeque;

use cc_core::{agent::Agent, flows::FlowId};
use cc_ebpf::Decision;
use tracing::{info, warn};

use super::datapath::DatapathIo;

/// Slots are scarce when fewer than one in this many are free.
const SCARCE_ONE_IN: usize = 8;
/// A flow without an ACK for this long is idle, ns.
const IDLE_NS: u64 = 1_000_000_000;
/// A flow without an ACK for this long loses its slot also while there are enough, ns.
const LONG_IDLE_NS: u64 = 300_000_000_000;
/// Time from a revocation until the slot is freed, ns. No callback of the datapath takes a
/// thousandth of it.
const GRACE_NS: u64 = 1_000_000_000;

/// The slots that are being taken away.
#[derive(Debug, Default)]
pub(super) struct Reclaimer {
    /// Revoked flows and the times when they were, the first one first.
    revoked: VecDeque<(FlowId, u64)>,
    /// Slots freed since the start.
    freed: u64,
}

impl Reclaimer {
    /// Frees the slots that were revoked long enough ago, and revokes those of flows that have been
    /// idle for long, and of the longest idle ones while slots are scarce.
    pub(super) fn turn(&mut self, agent: &Agent, datapath: &mut impl DatapathIo) {
        let now_ns = datapath.now_ns();
        while let Some(&(flow, at_ns)) = self.revoked.front()
            && now_ns.saturating_sub(at_ns) >= GRACE_NS
        {
            self.revoked.pop_front();
            match datapath.free(flow.slot, flow.generation) {
                Ok(true) => self.freed += 1,
                Ok(false) => {}
                Err(error) => warn!("slot {} is lost: {error}", flow.slot),
            }
        }
        self.revoke(agent.idle_flows(now_ns, LONG_IDLE_NS), now_ns, datapath);

        let slots = datapath.slots();
        let wanted = slots.div_ceil(SCARCE_ONE_IN);
        let taken = agent.live().saturating_sub(self.revoked.len());
        let missing = (wanted + taken).saturating_sub(slots);
        if missing == 0 {
            return;
        }
        let mut idle = agent.idle_flows(now_ns, IDLE_NS);
        idle.retain(|&flow| !self.is_revoked(flow));
        idle.truncate(missing);
        if !idle.is_empty() && self.freed == 0 && self.revoked.is_empty() {
            info!(
                "{} of {slots} slots are taken: idle flows lose theirs ({} now)",
                agent.live(),
                idle.len()
            );
        }
        self.revoke(idle, now_ns, datapath);
    }

    /// Revokes the slots of these flows, but for those whose slots are revoked already.
    fn revoke(&mut self, flows: Vec<FlowId>, now_ns: u64, datapath: &mut impl DatapathIo) {
        for flow in flows {
            if !self.is_revoked(flow) {
                datapath.publish(flow.slot, Decision::revocation(flow.generation));
                self.revoked.push_back((flow, now_ns));
            }
        }
    }

    fn is_revoked(&self, flow: FlowId) -> bool {
        self.revoked.iter().any(|&(other, _)| other == flow)
    }

    /// Slots taken away from idle flows since the start.
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cc_core::interface::Interface;
    use cc_ebpf::Record;
    use tokio::time::advance;

    use super::*;
    use crate::serve::testing::{FakeDatapath, SLOTS, opened, window};

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_flow_loses_its_slot_when_none_is_free() {
        let mut datapath = FakeDatapath::new();
        let mut agent = Agent::new(Interface::default(), SLOTS);
        let mut reclaimer = Reclaimer::default();
        let feed = |agent: &mut Agent, bytes: &[u8], now_ns| {
            let record = Record::decode(bytes).expect("one of ours");
            agent.on_record(now_ns, &record, |_| None);
        };
        // Slot 5 has been silent for longest, and slot 2 sends all the time.
        for (silent, slot) in [5, 0, 1, 3, 4, 6, 7].into_iter().enumerate() {
            let seen_ns = datapath.now_ns();
            feed(&mut agent, &opened(slot, seen_ns), seen_ns);
            feed(&mut agent, &window(slot, 1, seen_ns), seen_ns);
            advance(Duration::from_millis(10 + silent as u64)).await;
        }
        advance(Duration::from_secs(2)).await;
        reclaimer.turn(&agent, &mut datapath);
        assert!(datapath.published().is_empty(), "a slot is free");

        let seen_ns = datapath.now_ns();
        feed(&mut agent, &opened(2, seen_ns), seen_ns);
        feed(&mut agent, &window(2, 1, seen_ns), seen_ns);
        reclaimer.turn(&agent, &mut datapath);
        assert_eq!(datapath.published(), [(5, Decision::revocation(1))]);
        reclaimer.turn(&agent, &mut datapath);
        assert_eq!(datapath.published().len(), 1, "enough are on their way");
        assert!(
            datapath.freed().is_empty(),
            "a callback may still be running"
        );
        advance(Duration::from_secs(1)).await;
        reclaimer.turn(&agent, &mut datapath);
        assert_eq!((datapath.freed(), reclaimer.freed()), (vec![5], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flow_that_is_idle_for_long_loses_its_slot_though_others_are_free() {
        let mut datapath = FakeDatapath::new();
        let mut agent = Agent::new(Interface::default(), SLOTS);
        let mut reclaimer = Reclaimer::default();
        let mut sends = |slot, datapath: &FakeDatapath| {
            let seen_ns = datapath.now_ns();
            for bytes in [&opened(slot, seen_ns)[..], &window(slot, 1, seen_ns)[..]] {
                let record = Record::decode(bytes).expect("one of ours");
                agent.on_record(seen_ns, &record, |_| None);
            }
            agent.live()
        };
        sends(3, &datapath);
        advance(Duration::from_secs(200)).await;
        assert_eq!(sends(4, &datapath), 2);
        advance(Duration::from_secs(99)).await;
        reclaimer.turn(&agent, &mut datapath);
        assert!(datapath.published().is_empty());
        advance(Duration::from_secs(2)).await;
        for _ in 0..2 {
            reclaimer.turn(&agent, &mut datapath);
            assert_eq!(datapath.published(), [(3, Decision::revocation(1))]);
        }
        advance(Duration::from_secs(1)).await;
        reclaimer.turn(&agent, &mut datapath);
        assert_eq!(datapath.freed(), [3]);
    }
}
