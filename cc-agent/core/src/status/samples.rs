//! Snapshots for tests, with made-up values.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::{AgentCounts, Distributions, FlowView, Percentiles, Snapshot};
use cc_ebpf::{Counter, Mode};

/// An agent that has just begun, without flows.
pub fn idle() -> Snapshot {
    Snapshot {
        name: "rlcc".into(),
        version: "0.1.0".into(),
        pid: 4321,
        policy: "default: impala, trained".into(),
        policy_sha256: None,
        remote: None,
        uptime_s: 0.5,
        slots: 16_384,
        live_flows: 0,
        modes: BTreeMap::new(),
        heartbeat_age_ms: None,
        taken_ns: 600_000_000_000,
        adopted_flows: 0,
        flows_on_former_programs: 0,
        takeover_gap_ms: None,
        agent: AgentCounts::default(),
        datapath: Counter::ALL
            .iter()
            .map(|counter| (counter.name().to_owned(), 0))
            .collect(),
        decision_delay: Percentiles::default(),
        inference: Percentiles::default(),
        distributions: Distributions::default(),
        mean_batch: 0.0,
        cpu_s: 0.0,
        canary: None,
        news: None,
        incidents: Vec::new(),
        policies: Vec::new(),
        served: None,
        cgroups: None,
        capabilities: None,
        differs: None,
        default: None,
        recording: None,
        flows: Vec::new(),
        matching_flows: None,
    }
}

/// An agent that has served `flows` flows for ten seconds.
pub fn busy(flows: u32) -> Snapshot {
    Snapshot {
        uptime_s: 10.0,
        live_flows: flows as usize,
        agent: AgentCounts {
            flows: u64::from(flows),
            windows: 100 * u64::from(flows),
            decisions: 90 * u64::from(flows),
            ..AgentCounts::default()
        },
        decision_delay: Percentiles {
            count: 90 * u64::from(flows),
            p50_ms: 0.312,
            p99_ms: 1.25,
            p999_ms: 4.0,
            max_ms: 7.5,
        },
        cpu_s: 0.4,
        flows: (0..flows).map(flow).collect(),
        ..idle()
    }
}

/// A flow in `slot` with `slot + 1` Mbit/s, a cwnd of `10 + slot` segments and `slot / 10` ms of
/// queueing delay.
pub fn flow(slot: u32) -> FlowView {
    let address = |last: u32, port: u16| SocketAddr::from(([10, 0, 0, last as u8], port));
    FlowView {
        slot,
        generation: 1,
        local: address(1, 5201),
        remote: address(2, 40_000 + slot as u16),
        cgroup_id: 0,
        window: 100,
        mode: Mode::Decided,
        cwnd: 10 + slot,
        rate_mbps: f64::from(slot + 1),
        srtt_ms: 20.0,
        queue_ms: f64::from(slot) / 10.0,
        loss: 0.01,
        action: "*2".into(),
        decision_delay_ms: 0.4,
        decisions: 90,
        decision_delay_p50_ms: 0.4,
        decision_delay_p99_ms: 1.25,
        decision_delay_max_ms: 7.5,
        cookie: u64::from(slot) + 1,
        netns: 4_026_531_840,
        opened_ns: 1_000_000_000 * u64::from(slot + 1),
        seen_ns: 1,
    }
}
