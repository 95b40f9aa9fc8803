//! A row: one ended window of one flow.

use std::sync::Arc;

use cc_ebpf::WindowRecord;

use crate::{paths::PathView, reward::Terms};

/// [`WindowRecord::mode`] in the rows of flows of other congestion controls; null in files.
pub const NO_MODE: u32 = u32::MAX;

/// One ended window of one flow, and the decision that answered it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the flow's episode, unique over hosts and restarts. An episode has one interface: a
    /// flow that a policy with another interface takes over begins a new episode.
    pub flow: u64,
    /// Number of the row in its episode, from 0. A gap means that rows were lost on their way to
    /// the disk.
    pub sequence: u32,
    /// The window, as the datapath sent it. Its times are those of `CLOCK_MONOTONIC`;
    /// [`super::FileHeader::utc_ns`] converts them.
    pub window: WindowRecord,
    /// What was known of the flow's path at the window's end, which policies observe by
    /// [`crate::interface::Interface::shared_path`]. `None` in files of before it was recorded.
    pub path: Option<PathView>,
    /// The cwnd in bytes that the episode's history of decisions began with.
    pub initial_cwnd_bytes: u64,
    /// The decision on this window; `None` when the window was skipped, the answer was unusable, or
    /// the flow closed first.
    pub decision: Option<Decided>,
    /// The terms of this window's reward. They are the outcome of earlier decisions.
    pub terms: Terms,
    /// The window's reward under the settings in the file's header.
    pub reward: f32,
    /// Whether this is the episode's last row because the flow closed. False when the recording
    /// stopped.
    pub end: bool,
    /// Local address and port in the form of [`super::Addresses`]; `None` when absent.
    pub local: Option<Arc<str>>,
    /// Remote address and port, in the same form.
    pub remote: Option<Arc<str>>,
    /// Id of the socket's cgroup; 0 when unknown.
    pub cgroup: u64,
    /// Cookie of the socket, by which `ss -e` and `SO_COOKIE` name it; 0 when the kernel had not
    /// given it one.
    pub cookie: u64,
    /// Inode number of the socket's network namespace; 0 when unknown.
    pub netns: u32,
}

/// A decision on a window; for flows of other congestion controls, what these did in terms of the
/// action space.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// Index into the header's action space; `None` when the policy sets the cwnd directly.
    pub action: Option<u8>,
    /// The probability with which the policy chose the action; `None` for flows of other congestion
    /// controls.
    pub probability: Option<f32>,
    /// The probabilities of all actions, in their order; `None` when the policy gives none.
    pub probabilities: Option<Vec<f32>>,
    /// The cwnd in segments that the action was applied to ([`crate::action::base_cwnd`]).
    pub base_cwnd: u32,
    /// The cwnd in segments that was decided.
    pub cwnd: u32,
    /// Delay from the window's nominal end, its start plus the interface's `window_ms`, to the
    /// publication, ns; `None` for flows of other congestion controls.
    pub delay_ns: Option<u64>,
}
