//! A row: one ended window of one flow.

use std::sync::Arc;

use cc_ebpf::WindowRecord;

use crate::reward::Terms;

/// [`WindowRecord::mode`] of a window whose flow another congestion control runs: null in files.
pub const NO_MODE: u32 = u32::MAX;

/// One ended window of one flow, and the decision that answered it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The flow's episode, unique over hosts and restarts. One environment throughout: a flow that a policy with
    /// another one takes over begins a new episode.
    pub flow: u64,
    /// 0, 1, 2 … of the episode's rows. A gap means rows that were lost on their way to the disk.
    pub sequence: u32,
    /// The window, as the datapath sent it; times are `CLOCK_MONOTONIC`, see [`super::FileHeader::utc_ns`].
    pub window: WindowRecord,
    /// Window in bytes that the episode's history of decisions began with.
    pub initial_cwnd_bytes: u64,
    /// The decision that was made on this window; none where it was skipped, the answer was unusable, or the flow
    /// closed first.
    pub decision: Option<Decided>,
    /// What this very window is judged by, hence by what earlier decisions led to.
    pub terms: Terms,
    /// The window's reward under the settings in the file's header.
    pub reward: f32,
    /// The episode's last row, and the flow closed; never true where the recording merely stopped.
    pub end: bool,
    /// Local address and port, as [`super::Addresses`] has it.
    pub local: Option<Arc<str>>,
    /// Remote address and port.
    pub remote: Option<Arc<str>>,
    /// Id of the socket's cgroup, 0 unknown.
    pub cgroup: u64,
}

/// A decision. Of an observed flow: what its congestion control did, in terms of the action space.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Index into the header's action space; none where the policy sets windows rather than choosing actions.
    pub action: Option<u8>,
    /// The probability with which the policy chose that action; none for observed flows.
    pub probability: Option<f32>,
    /// The probabilities of all actions, in their order; none where the policy does not tell.
    pub probabilities: Option<Vec<f32>>,
    /// The window in segments that the action was applied to.
    pub base_cwnd: u32,
    /// The window in segments that was decided.
    pub cwnd: u32,
    /// From the window's nominal end, its start and the environment's `window_ms`, to the publication, ns; none for
    /// observed flows.
    pub delay_ns: Option<u64>,
}

#[cfg(test)]
pub(crate) mod samples {
    //! Rows for tests.

    use bytemuck::Zeroable;
    use cc_ebpf::{Decision, FEATURES, Header, WindowRecord};
    use proptest::prelude::*;

    use super::*;

    /// Any row that a flow can give.
    pub(crate) fn row() -> impl Strategy<Value = Row> {
        let decided = (
            proptest::option::of(0..5u8),
            proptest::option::of(0f32..1.0),
            proptest::option::of(proptest::collection::vec(0f32..1.0, 0..6)),
            any::<u32>(),
            any::<u32>(),
            proptest::option::of(any::<u64>()),
        )
            .prop_map(
                |(action, probability, probabilities, base_cwnd, cwnd, delay_ns)| Decided {
                    action,
                    probability,
                    probabilities,
                    base_cwnd,
                    cwnd,
                    delay_ns,
                },
            );
        let terms = (0f64..1e4, 0f64..1e5, 0f64..1e3).prop_map(|(throughput, delay, loss)| Terms {
            throughput,
            delay,
            loss,
        });
        let name = || proptest::option::of("[a-z0-9.:]{0,20}".prop_map(Arc::from));
        (
            (any::<u64>(), any::<u32>(), window(), any::<u64>()),
            (
                proptest::option::of(decided),
                terms,
                -1e6f32..1e6,
                any::<bool>(),
            ),
            (name(), name(), any::<u64>()),
        )
            .prop_map(
                |(
                    (flow, sequence, window, initial_cwnd_bytes),
                    (decision, terms, reward, end),
                    (local, remote, cgroup),
                )| Row {
                    flow,
                    sequence,
                    window,
                    initial_cwnd_bytes,
                    decision,
                    terms,
                    reward,
                    end,
                    local,
                    remote,
                    cgroup,
                },
            )
    }

    /// Any window that the datapath can send.
    pub(crate) fn window() -> impl Strategy<Value = WindowRecord> {
        let statistics = proptest::collection::vec(any::<(u64, u64, u32, u32, u32)>(), FEATURES);
        let taken = proptest::option::of((0..1u32 << 20, 0..1u32 << 24, 1..1u64 << 50));
        let mode = prop_oneof![0..4u32, Just(NO_MODE)];
        (
            (any::<u32>(), 1..1u32 << 20, 1..1u64 << 60, 0..1u64 << 40),
            (any::<u32>(), any::<u32>(), any::<u32>(), mode, any::<u32>()),
            taken,
            statistics,
        )
            .prop_map(
                |(
                    (slot, generation, start_ns, length),
                    (index, acks, cwnd, mode, mss),
                    taken,
                    statistics,
                )| {
                    let mut window = WindowRecord::zeroed();
                    window.header = Header::of::<WindowRecord>(slot, generation, start_ns + length);
                    window.start_ns = start_ns;
                    window.index = index;
                    window.acks = acks;
                    window.cwnd = cwnd;
                    window.mode = mode;
                    window.mss = mss;
                    if let Some((answered, cwnd, taken_ns)) = taken {
                        window.decision = Decision {
                            generation,
                            window: answered,
                            cwnd,
                        }
                        .to_cell();
                        window.decision_taken_ns = taken_ns;
                    }
                    for (i, (sum, squares, min, max, reference)) in
                        statistics.into_iter().enumerate()
                    {
                        window.features.sum[i] = sum;
                        window.features.squares[i] = squares;
                        window.features.min[i] = min;
                        window.features.max[i] = max;
                        window.features.reference[i] = reference;
                    }
                    window
                },
            )
    }
}
