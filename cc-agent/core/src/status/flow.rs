//! One flow, as the status and the live view show it.

use std::net::SocketAddr;

use cc_ebpf::{Feature, Identity, Mode, WindowRecord};
use serde::{Deserialize, Serialize};

use crate::{flows::FlowId, objective::Measured};

/// A live flow: its identity, its last window and its last decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowView {
    /// Slot of the flow in the flow map.
    pub slot: u32,
    /// Counts the flows that have had the slot.
    pub generation: u32,
    /// Address and port of this host's end.
    pub local: SocketAddr,
    /// Address and port of the peer's end.
    pub remote: SocketAddr,
    /// Id of the socket's cgroup; 0 when unknown.
    pub cgroup_id: u64,
    /// Number of the newest window; 0 before the first.
    pub window: u32,
    /// What sets the flow's cwnd.
    #[serde(with = "mode_name")]
    pub mode: Mode,
    /// The cwnd in segments at the end of the last window.
    pub cwnd: u32,
    /// Throughput since the window before the last, Mbit/s: acknowledged bytes over time.
    pub rate_mbps: f64,
    /// Mean smoothed RTT of the last window, ms.
    pub srtt_ms: f64,
    /// Mean queueing delay of the last window, ms.
    pub queue_ms: f64,
    /// Loss rate of the last window: lost bytes over lost and acknowledged bytes.
    pub loss: f64,
    /// The last action as the action space writes it, or `=N` for a cwnd that was set to N
    /// segments; empty before the first.
    pub action: String,
    /// Delay from the end of the last window decided on to the decision's publication, ms.
    pub decision_delay_ms: f64,
    /// Decisions published for the flow.
    pub decisions: u64,
    /// Median of the flow's decision delays, ms, to 6 %; 0 before the first decision.
    pub decision_delay_p50_ms: f64,
    /// 99th percentile of the flow's decision delays, ms, to 6 %; 0 before the first decision.
    pub decision_delay_p99_ms: f64,
    /// The largest of the flow's decision delays, ms; 0 before the first decision.
    pub decision_delay_max_ms: f64,
    /// Cookie of the socket, by which `ss -e` names it; 0 when the kernel had not given it one, and
    /// from an older agent.
    #[serde(default)]
    pub cookie: u64,
    /// Inode number of the socket's network namespace; 0 when unknown.
    #[serde(default)]
    pub netns: u32,
    /// When the flow was given its slot, ns (`CLOCK_MONOTONIC`); 0 from an older agent.
    #[serde(default)]
    pub opened_ns: u64,
    /// When the flow's last window arrived or, of one that nothing followed, began, ns
    /// (`CLOCK_MONOTONIC`); 0 before the first.
    pub seen_ns: u64,
}

impl FlowView {
    /// A flow before its first window.
    pub(crate) fn new(id: FlowId, identity: &Identity) -> Self {
        let (local, remote) = identity.endpoints();
        Self {
            slot: id.slot,
            generation: id.generation,
            local,
            remote,
            cgroup_id: identity.cgroup_id,
            window: 0,
            mode: Mode::Startup,
            cwnd: identity.initial_cwnd,
            rate_mbps: 0.0,
            srtt_ms: 0.0,
            queue_ms: 0.0,
            loss: 0.0,
            action: String::new(),
            decision_delay_ms: 0.0,
            decisions: 0,
            decision_delay_p50_ms: 0.0,
            decision_delay_p99_ms: 0.0,
            decision_delay_max_ms: 0.0,
            cookie: identity.cookie,
            netns: identity.netns,
            opened_ns: 0,
            seen_ns: 0,
        }
    }

    /// The flow after a window: its mode, cwnd, throughput, delays and loss. `measured` is of the
    /// time since the window before.
    pub(crate) fn after(self, window: &WindowRecord, measured: &Measured) -> Self {
        let srtt_us = window
            .features
            .mean(Feature::SmoothedRtt as usize, window.acks);
        Self {
            mode: Mode::from_raw(window.mode),
            cwnd: window.cwnd,
            rate_mbps: measured.throughput_mbps(),
            srtt_ms: srtt_us / 1e3,
            queue_ms: measured.delay_ms(),
            loss: measured.loss(),
            ..self
        }
    }
}

/// A [`Mode`] by its name: `startup`, `decided`, `after-timeout` or `fallback`.
pub(super) mod mode_name {
    use cc_ebpf::Mode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        let name = String::deserialize(from)?;
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| D::Error::custom(format!("no mode is called `{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_by_their_names() {
        let id = FlowId {
            slot: 1,
            generation: 2,
        };
        for mode in Mode::ALL {
            let identity = Identity {
                family: 2,
                ..Identity::default()
            };
            let view = FlowView {
                mode,
                ..FlowView::new(id, &identity)
            };
            let json = serde_json::to_value(&view).expect("serialises");
            assert_eq!(json["mode"], mode.name());
            assert_eq!(
                serde_json::from_value::<FlowView>(json).expect("parses"),
                view
            );
        }
    }
}
