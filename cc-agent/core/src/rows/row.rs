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
