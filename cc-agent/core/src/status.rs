//! What a running agent tells about itself: the snapshot, what it says about the time since an
//! earlier one, and which of its counters mean trouble.
//!
//! [`Server`] hands snapshots out over a Unix socket, [`fetch`] gets one.

mod protocol;
#[doc(hidden)]
pub mod samples;
mod text;

pub use protocol::{Command, Outcome, Reply, Request, default_socket};
pub use text::{clock, digits};

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
};

use cc_ebpf::Counter;
use serde::{Deserialize, Serialize};

use crate::{
    agent::{Counts, FlowView},
    canary::SideReport,
};

/// The state of a running agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Name of the congestion control that it serves.
    pub name: String,
    /// Version of the agent.
    pub version: String,
    /// Process id of the agent.
    pub pid: u32,
    /// The policy, in a line.
    pub policy: String,
    /// Since the start, s.
    pub uptime_s: f64,
    /// Slots for flows.
    pub slots: usize,
    /// Live flows.
    pub live_flows: usize,
    /// Flows that a former agent had left behind and that this one took over.
    pub adopted_flows: usize,
    /// Counts on the agent's side.
    pub agent: Counts,
    /// The datapath's counters by name ([`cc_ebpf::Counter`]).
    pub datapath: BTreeMap<String, u64>,
    /// From window end to publication.
    pub decision_delay: Percentiles,
    /// Time that the policy takes for a batch.
    pub inference: Percentiles,
    /// Mean number of flows in a batch.
    pub mean_batch: f64,
    /// Processor time that the agent has used, s.
    pub cpu_s: f64,
    /// How the trial of a candidate policy stands, where there is one.
    #[serde(default)]
    pub trial: Option<Trial>,
    /// What became of the last trial, and of the last policy that was to be loaded.
    #[serde(default)]
    pub news: Option<String>,
    /// How the recording is going, where there is one.
    #[serde(default)]
    pub recording: Option<RecordingStatus>,
    /// The flows, at most as many as a screen has use for.
    pub flows: Vec<FlowView>,
}

/// A candidate policy beside the current one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The candidate, in a line.
    pub candidate: String,
    /// Its share of the new flows, percent.
    pub percent: f64,
    /// Flows that each side needs before the guard rails hold.
    pub flows_needed: u64,
    /// How the current policy's flows fare.
    pub current_flows: SideReport,
    /// How the candidate's flows fare.
    pub candidate_flows: SideReport,
}

/// A distribution of durations in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many there were.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 99 % are at most this.
    pub p99_ms: f64,
    /// 99.9 % are at most this.
    pub p999_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

/// A counter of the agent or of its datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Its name in reports.
    pub name: String,
    /// Its value since the agent's start.
    pub value: u64,
    /// What a value above zero means, for the counters that should stay there.
    pub trouble: Option<&'static str>,
}

/// What happened between two snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recent {
    /// Time between them, s.
    pub seconds: f64,
    /// Decisions published per second.
    pub decisions_per_s: f64,
    /// Processor time used per time, 1 is one processor.
    pub cpu: f64,
    /// Delivery rate of all listed flows together, Mbit/s.
    pub rate_mbps: f64,
    /// The longest queueing delay of the listed flows, ms.
    pub queue_ms: f64,
    /// Slots and generations of the flows without a new window.
    quiet: HashSet<(u32, u32)>,
}

impl Snapshot {
    /// What happened since `previous`, or since the start where there is no earlier snapshot of
    /// the same agent.
    pub fn since(&self, previous: Option<&Self>) -> Recent {
        let previous = previous.filter(|previous| self.continues(previous));
        let seconds = self.uptime_s - previous.map_or(0.0, |p| p.uptime_s);
        let decisions = self.agent.decisions - previous.map_or(0, |p| p.agent.decisions);
        let cpu_s = self.cpu_s - previous.map_or(0.0, |p| p.cpu_s);
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let windows: HashMap<(u32, u32), u32> = previous
            .iter()
            .flat_map(|previous| &previous.flows)
            .map(|flow| (key(flow), flow.window))
            .collect();
        let is_quiet = |flow: &&FlowView| windows.get(&key(flow)) == Some(&flow.window);
        let quiet: HashSet<_> = self.flows.iter().filter(is_quiet).map(key).collect();
        let busy = || self.flows.iter().filter(|flow| !quiet.contains(&key(flow)));
        Recent {
            seconds,
            decisions_per_s: per_second(decisions as f64),
            cpu: per_second(cpu_s),
            // Not sum(), which makes -0.0 of no flows.
            rate_mbps: busy().fold(0.0, |sum, flow| sum + flow.rate_mbps),
            queue_ms: busy().map(|flow| flow.queue_ms).fold(0.0, f64::max),
            quiet,
        }
    }

    /// Whether this is a later state of the agent that `previous` shows.
    pub fn continues(&self, previous: &Self) -> bool {
        self.pid == previous.pid
            && self.name == previous.name
            && self.uptime_s > previous.uptime_s
            && self.agent.decisions >= previous.agent.decisions
    }

    /// Whether [`Self::flows`] leaves live flows out.
    pub fn is_partial(&self) -> bool {
        self.flows.len() < self.live_flows
    }

    /// All counters: the agent's, then the datapath's.
    pub fn counters(&self) -> Vec<Count> {
        let agent = agent_counts(&self.agent);
        let mut counters: Vec<Count> = agent.into_iter().map(Count::from).collect();
        let recording = self.recording.iter().flat_map(recording_counts);
        counters.extend(recording.map(Count::from));
        counters.extend(self.datapath.iter().map(|(name, &value)| {
            let known = Counter::ALL.iter().find(|counter| counter.name() == name);
            Count {
                name: name.clone(),
                value,
                trouble: known.and_then(|&counter| datapath_trouble(counter)),
            }
        }));
        counters
    }

    /// The counters that should be zero and are not.
    pub fn troubles(&self) -> Vec<Count> {
        let mut counters = self.counters();
        counters.retain(|count| count.trouble.is_some() && count.value > 0);
        counters
    }
}

impl Recent {
    /// Whether nothing came from a flow: what the snapshot says about it is old.
    pub fn is_quiet(&self, flow: &FlowView) -> bool {
        self.quiet.contains(&key(flow))
    }
}

impl From<(&str, u64, Option<&'static str>)> for Count {
    fn from((name, value, trouble): (&str, u64, Option<&'static str>)) -> Self {
        Self {
            name: name.into(),
            value,
            trouble,
        }
    }
}

fn key(flow: &FlowView) -> (u32, u32) {
    (flow.slot, flow.generation)
}

/// The agent's counts with their names in reports, and what those that mean trouble say.
fn agent_counts(counts: &Counts) -> [(&'static str, u64, Option<&'static str>); 10] {
    // Taken apart without `..`, so that a new count cannot be forgotten here.
    let Counts {
        flows,
        flows_found_late,
        windows,
        windows_closed_silent,
        windows_skipped,
        windows_missed,
        decisions,
        decisions_late,
        answers_invalid,
        answers_orphaned,
    } = *counts;
    [
        ("flows", flows, None),
        (
            "flows_found_late",
            flows_found_late,
            Some("Flows whose opened record was lost; they were found by a later record."),
        ),
        ("windows", windows, None),
        ("windows_closed_silent", windows_closed_silent, None),
        (
            "windows_skipped",
            windows_skipped,
            Some("Windows that a newer one replaced before the policy got to them."),
        ),
        (
            "windows_missed",
            windows_missed,
            Some("Windows that never arrived."),
        ),
        ("decisions", decisions, None),
        (
            "decisions_late",
            decisions_late,
            Some("Decisions later than 20 ms after their window's end."),
        ),
        (
            "answers_invalid",
            answers_invalid,
            Some("Answers of the policy that were not finite: the flow kept its window."),
        ),
        ("answers_orphaned", answers_orphaned, None),
    ]
}

/// A recording's counts, as [`agent_counts`] has the agent's.
fn recording_counts(status: &RecordingStatus) -> [(&'static str, u64, Option<&'static str>); 5] {
    [
        ("rows_recorded", status.rows, None),
        (
            "rows_lost_behind",
            status.rows_lost_behind,
            Some("Rows lost because the disk was behind."),
        ),
        (
            "rows_lost_unwritten",
            status.rows_lost_unwritten,
            Some("Rows lost because they could not be written."),
        ),
        (
            "rows_lost_unanswered",
            status.rows_lost_unanswered,
            Some("Rows lost because the policy did not answer their flow for too long."),
        ),
        ("recordings_removed", status.files_removed, None),
    ]
}

/// What a counter above zero means, if that is trouble of ours; timeouts are the path's.
fn datapath_trouble(counter: Counter) -> Option<&'static str> {
    match counter {
        Counter::FlowsOpened
        | Counter::FlowsClosed
        | Counter::DecisionsTaken
        | Counter::DecisionsStale
        | Counter::FallbacksLeft
        | Counter::Timeouts => None,
        Counter::FlowsWithoutSlot
        | Counter::RecordsDropped
        | Counter::AckRecordsDropped
        | Counter::DecisionsClamped
        | Counter::FallbacksEntered
        | Counter::SlotsLeaked => Some(counter.meaning().trim()),
    }
}

/// How a recording is going.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordingStatus {
    /// Where it goes.
    pub directory: PathBuf,
    /// What rows tell of addresses: `absent`, `hashed` or `plain`.
    pub addresses: String,
    /// Rows on the disk.
    pub rows: u64,
    /// Rows lost because the disk was behind.
    pub rows_lost_behind: u64,
    /// Rows lost because they could not be written.
    pub rows_lost_unwritten: u64,
    /// Rows lost because the policy did not answer their flow for too long.
    pub rows_lost_unanswered: u64,
    /// Files completed, those included that a former agent had left open.
    pub files: u64,
    /// Files removed to stay within the limit.
    pub files_removed: u64,
    /// Bytes of all recordings in the directory.
    pub bytes: u64,
    /// What the file system said last, while it refuses.
    pub trouble: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::samples::*;

    #[test]
    fn rates_are_those_between_two_snapshots() {
        let before = busy(2);
        let mut after = busy(2);
        after.uptime_s += 2.0;
        after.agent.decisions += 30;
        after.cpu_s += 0.1;
        after.flows[1].window += 1;
        let recent = after.since(Some(&before));
        assert_eq!(recent.seconds, 2.0);
        assert_eq!(recent.decisions_per_s, 15.0);
        assert!((recent.cpu - 0.05).abs() < 1e-9);
        // Flow 0 had no new window: its last rate says nothing about now.
        assert!(recent.is_quiet(&after.flows[0]) && !recent.is_quiet(&after.flows[1]));
        assert_eq!((recent.rate_mbps, recent.queue_ms), (2.0, 0.1));
    }

    #[test]
    fn another_agent_is_no_past() {
        let mut restarted = busy(1);
        restarted.pid += 1;
        let recent = restarted.since(Some(&busy(5)));
        assert_eq!(recent.seconds, 10.0);
        assert_eq!(recent.decisions_per_s, 9.0);
        assert!(!recent.is_quiet(&restarted.flows[0]));
        let same = busy(1);
        assert_eq!(same.since(Some(&same)), same.since(None));
        let mut new = idle();
        new.uptime_s = 0.0;
        assert_eq!(new.since(None).decisions_per_s, 0.0);
    }

    #[test]
    fn troubles_are_what_should_be_zero() {
        let mut snapshot = busy(1);
        assert_eq!(snapshot.troubles(), []);
        snapshot.agent.windows_skipped = 3;
        snapshot.datapath.insert("records_dropped".into(), 7);
        snapshot.datapath.insert("timeouts".into(), 9);
        snapshot.datapath.insert("of_a_later_version".into(), 1);
        let troubles = snapshot.troubles();
        let found: Vec<_> = troubles
            .iter()
            .map(|t| (t.name.as_str(), t.value))
            .collect();
        assert_eq!(found, [("windows_skipped", 3), ("records_dropped", 7)]);
        assert!(
            snapshot
                .counters()
                .iter()
                .any(|c| c.name == "of_a_later_version")
        );
    }
}
