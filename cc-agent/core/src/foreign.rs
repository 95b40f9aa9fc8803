//! Flows that other congestion controls run: their windows become rows, with what the congestion
//! control did to the cwnd as the decision.
//!
//! Pure, as [`crate::agent`] is: records come in with the time, rows come out. [`crate::flows`] has
//! the life of a flow.

pub mod groups;

use std::{collections::HashMap, sync::Arc};

use cc_ebpf::{ClosedRecord, Feature, Flow, Identity, OpenedRecord, Record, WindowRecord};
use serde::Serialize;

use self::groups::{Grouping, Groups};
use crate::{
    flows::{FlowCounts, FlowId, FlowTable, FollowFlows, initial_cwnd_bytes},
    interface::Interface,
    objective::Measured,
    paths::Paths,
    reward::Reward,
    rows::{
        Addresses, Decided, Episodes, FileHeader, NO_MODE, Recorded,
        buffer::{EpisodeRows, RowBuffer},
    },
};

/// The live flows of one congestion control, taken together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CongestionControlReport {
    /// Name of the congestion control, as in `net.ipv4.tcp_available_congestion_control`.
    pub congestion_control: String,
    /// Number of flows that are open at the moment.
    pub flows: usize,
    /// Sum of the flows' throughputs since the windows before their last, Mbit/s: acknowledged
    /// bytes over time.
    pub rate_mbps: f64,
    /// Mean over the flows of the smoothed RTT in their last windows, ms.
    pub srtt_ms: f64,
}

/// Follows flows that other congestion controls run.
pub struct ForeignFlows {
    interface: Interface,
    flows: FlowTable<ForeignFlow>,
    paths: Paths,
    recording: Option<Recording>,
    groups: Option<Groups>,
}

/// What is kept of a flow.
#[derive(Debug)]
pub(crate) struct ForeignFlow {
    congestion_control: Arc<str>,
    identity: Identity,
    last: Option<WindowRecord>,
    /// What was measured since the window before that one.
    measured: Measured,
    rows: Option<(Arc<FileHeader>, EpisodeRows)>,
}

struct Recording {
    /// The header of all files, except for the policy's name.
    header: FileHeader,
    /// The headers in use, by congestion control.
    headers: HashMap<Arc<str>, Arc<FileHeader>>,
    rows: RowBuffer,
}

impl ForeignFlows {
    /// Creates the state without flows, for a flow map of `slots` slots, with the windows of the
    /// interface. It records nothing.
    pub fn new(interface: Interface, slots: usize) -> Self {
        let window_ns = interface.datapath_settings().window_ns;
        Self {
            flows: FlowTable::new(slots, window_ns),
            paths: Paths::default(),
            interface,
            recording: None,
            groups: None,
        }
    }

    /// Starts to make rows of every flow that opens from now on. Their files get `header`, with
    /// `observed:` and the name of the congestion control as its policy.
    pub fn start_recording(
        &mut self,
        header: FileHeader,
        episodes: Episodes,
        addresses: Addresses,
    ) {
        self.recording = Some(Recording {
            header,
            headers: HashMap::new(),
            rows: RowBuffer::new(episodes, addresses),
        });
    }

    /// Starts to sum up what flows do by congestion control and cgroup, of every flow that opens
    /// from now on.
    pub fn start_groups(&mut self, grouping: Grouping) {
        self.groups = Some(Groups::new(grouping));
    }

    /// The sums by congestion control and cgroup, if [`Self::start_groups`] was called.
    pub fn groups(&mut self) -> Option<&mut Groups> {
        self.groups.as_mut()
    }

    /// Takes a record. `read` reads the flow's state from a slot, for a flow whose opened record
    /// was lost, or for what a flow that closes has done since its last window.
    pub fn on_record(&mut self, record: &Record, read: impl FnOnce(u32) -> Option<Flow>) {
        if let Record::Closed(closed) = record {
            self.sum_up_rest(closed, read);
            self.follow(record, |_| None);
        } else {
            self.follow(record, read);
        }
    }

    /// Closes the flows that two calls in a row have not found, because their closed records were
    /// lost. `occupant` returns the generation of the flow that is live in a slot.
    pub fn close_lost(&mut self, occupant: impl FnMut(u32) -> Option<u32>) {
        FollowFlows::close_lost(self, occupant);
    }

    /// Closes the windows of flows that have fallen silent, and returns them: those that ended 5 ms
    /// ago or earlier without an ACK that closed them. `read` reads the flow's state from a slot.
    pub fn close_silent(
        &mut self,
        now_ns: u64,
        read: impl FnMut(u32) -> Option<Flow>,
    ) -> Vec<WindowRecord> {
        self.close_silent_windows(now_ns, read)
    }

    /// When [`Self::close_silent`] is due next, ns; `None` while no flow has an open window.
    pub fn silence_due_ns(&self) -> Option<u64> {
        self.flows.silence_due_ns()
    }

    /// Takes the rows that became complete since the last call.
    pub fn take_rows(&mut self) -> Vec<Recorded> {
        let recording = self.recording.as_mut();
        recording.map_or_else(Vec::new, |recording| recording.rows.take())
    }

    /// Stops making rows. [`Self::take_rows`] returns those held back, as they are.
    pub fn stop_recording(&mut self) {
        let Some(recording) = &mut self.recording else {
            return;
        };
        for flow in self.flows.values_mut() {
            if let Some((_, episode)) = flow.rows.take() {
                episode.finish(&mut recording.rows, false);
            }
        }
    }

    /// Counts of flows and windows since the observer's start.
    pub fn counts(&self) -> FlowCounts {
        self.flows.counts()
    }

    /// Number of flows that are open at the moment.
    pub fn live(&self) -> usize {
        self.flows.live()
    }

    /// Adds to the sums what a flow that closes has done since its last window: of a flow that is
    /// shorter than a window this is all. Its slot still has it, as slots rest before their next
    /// flow.
    fn sum_up_rest(&mut self, closed: &ClosedRecord, read: impl FnOnce(u32) -> Option<Flow>) {
        let id = FlowId::from(&closed.header);
        let window_ns = self.interface.datapath_settings().window_ns;
        let Some(groups) = &mut self.groups else {
            return;
        };
        let rest = read(id.slot).filter(|flow| FlowId::from(flow) == id);
        let rest = rest.and_then(|flow| last_window(&flow, closed.header.time_ns, window_ns));
        if let Some(window) = rest.filter(|window| self.flows.awaits(id, window.index))
            && let Some(flow) = self.flows.get_mut(id)
        {
            let measured = Measured::following(flow.last.as_ref(), &window);
            groups.window(
                flow.identity.cgroup_id,
                &flow.congestion_control,
                &window,
                measured,
            );
        }
    }

    /// The live flows by congestion control, in the order of the names.
    pub fn reports(&self) -> Vec<CongestionControlReport> {
        let mut reports: Vec<CongestionControlReport> = Vec::new();
        for (_, _, flow) in self.flows.iter() {
            let name = &*flow.congestion_control;
            let index = match reports.binary_search_by(|r| (*r.congestion_control).cmp(name)) {
                Ok(index) => index,
                Err(index) => {
                    reports.insert(index, CongestionControlReport::empty(name));
                    index
                }
            };
            reports[index].add(flow);
        }
        reports
    }
}

impl FollowFlows for ForeignFlows {
    type Flow = ForeignFlow;

    fn table(&mut self) -> &mut FlowTable<ForeignFlow> {
        &mut self.flows
    }

    fn on_opened(&mut self, _: FlowId, opened: &OpenedRecord) -> ForeignFlow {
        let identity = &opened.identity;
        self.paths.join(identity);
        let congestion_control: Arc<str> = identity.congestion_control().into();
        let rows = self.recording.as_mut().map(|recording| {
            let header = recording.header_of(&congestion_control);
            let initial = initial_cwnd_bytes(identity);
            let episode = EpisodeRows::begin(&mut recording.rows, identity, initial);
            (header, episode)
        });
        if let Some(groups) = &mut self.groups {
            groups.opened(
                identity.cgroup_id,
                &congestion_control,
                opened.header.time_ns,
            );
        }
        ForeignFlow {
            congestion_control,
            identity: *identity,
            last: None,
            measured: Measured::default(),
            rows,
        }
    }

    fn on_window(&mut self, id: FlowId, window: &WindowRecord) {
        let Some(flow) = self.flows.get_mut(id) else {
            return;
        };
        let window = WindowRecord {
            mode: NO_MODE,
            ..*window
        };
        let former = flow.last.replace(window);
        flow.measured = Measured::following(former.as_ref(), &window);
        let path = self.paths.observe(&flow.identity, &window);
        if let Some(groups) = &mut self.groups {
            groups.window(
                flow.identity.cgroup_id,
                &flow.congestion_control,
                &window,
                flow.measured,
            );
        }
        if let (Some(recording), Some((header, episode))) = (&mut self.recording, &mut flow.rows) {
            if let Some(former) = former {
                let decision = implied_decision(&self.interface, &former, &window);
                let rows = &mut recording.rows;
                episode.settle(rows, Some(&*header), former.index, decision);
            }
            let reward = Reward::of(&window, &header.interface.reward);
            let rows = &mut recording.rows;
            episode.on_window(rows, header, &window, path, reward);
        }
    }

    fn on_closed(&mut self, flow: ForeignFlow) {
        self.paths.leave(&flow.identity);
        if let Some(groups) = &mut self.groups {
            groups.closed(flow.identity.cgroup_id, &flow.congestion_control);
        }
        if let (Some((_, episode)), Some(recording)) = (flow.rows, &mut self.recording) {
            episode.finish(&mut recording.rows, true);
        }
    }
}

impl Recording {
    fn header_of(&mut self, congestion_control: &Arc<str>) -> Arc<FileHeader> {
        let Self {
            header, headers, ..
        } = self;
        let known = headers.entry(congestion_control.clone());
        let make = || FileHeader {
            policy: format!("observed:{congestion_control}"),
            ..header.clone()
        };
        known.or_insert_with(|| make().into()).clone()
    }
}

impl CongestionControlReport {
    fn empty(congestion_control: &str) -> Self {
        Self {
            congestion_control: congestion_control.into(),
            flows: 0,
            rate_mbps: 0.0,
            srtt_ms: 0.0,
        }
    }

    fn add(&mut self, flow: &ForeignFlow) {
        let srtt_ms = flow.last.as_ref().map_or(0.0, srtt_ms);
        self.flows += 1;
        self.rate_mbps += flow.measured.throughput_mbps();
        self.srtt_ms += (srtt_ms - self.srtt_ms) / self.flows as f64;
    }
}

/// Mean smoothed RTT over the ACKs of a window, ms; 0 without an ACK.
fn srtt_ms(window: &WindowRecord) -> f64 {
    let features = &window.features;
    features.mean(Feature::SmoothedRtt as usize, window.acks) / 1e3
}

/// The window that was under way when a flow closed; `None` when it had no ACK. It ends with the
/// flow, or after `window_ns` if nothing came after that.
fn last_window(flow: &Flow, closed_ns: u64, window_ns: u64) -> Option<WindowRecord> {
    let mut window = flow.window;
    window.header.time_ns = closed_ns.min(window.start_ns.saturating_add(window_ns));
    if window.mss == 0 {
        // No window was closed before, which would have left its MSS.
        window.mss = flow.opened.identity.mss;
    }
    (window.acks > 0).then_some(window)
}

/// What the congestion control did after a window, as a decision: the action nearest to its change
/// of the cwnd, which the end of the `next` window shows. `None` when windows in between are
/// missing.
fn implied_decision(
    interface: &Interface,
    window: &WindowRecord,
    next: &WindowRecord,
) -> Option<Decided> {
    let actions = &interface.actions;
    (window.index + 1 == next.index).then(|| Decided {
        action: Some(actions.nearest(window.cwnd, next.cwnd, interface.cwnd) as u8),
        probability: None,
        probabilities: None,
        base_cwnd: window.cwnd,
        cwnd: next.cwnd,
        delay_ns: None,
    })
}

#[cfg(test)]
mod tests;
