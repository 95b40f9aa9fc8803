//! The status of a running agent: the [`Snapshot`], the rates between two snapshots, and the
//! counters that should be zero.
//!
//! The agent serves snapshots over a Unix socket; [`Request`] and [`Reply`] are the messages.

mod counters;
mod distribution;
mod flow;
mod health;
mod policies;
mod protocol;
#[doc(hidden)]
pub mod samples;
mod text;
mod trace;

pub use counters::{AgentCounts, Count, RemoteCounts};
pub use distribution::{DELAY_MS, Distribution, Distributions, RTT_MS, WindowDistributions};
pub use flow::FlowView;
pub use health::Health;
pub use policies::{KnownPolicy, Standing};
pub use protocol::{Command, Outcome, Reply, Request, TakeoverReply, TakeoverStep, default_socket};
pub use text::{clock, digits};
pub use trace::{TracedDecision, TracedWindow};

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
};

use cc_ebpf::Counter;
use serde::{Deserialize, Serialize};

use self::counters::{agent_counts, datapath_meaning, recording_counts};
use crate::canary::{ArmReport, CanaryBy, Comparison, Finding, Shift};

/// The state of a running agent, as it goes over the socket in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Name of the congestion control that the agent serves.
    pub name: String,
    /// Version of the agent's package.
    pub version: String,
    /// Process id of the agent.
    pub pid: u32,
    /// One-line description of the policy.
    pub policy: String,
    /// SHA-256 of the policy's file in hexadecimal digits; `None` for a policy without a file, and
    /// from an older agent.
    #[serde(default)]
    pub policy_sha256: Option<String>,
    /// The policy server that decides where it can, the policy standing in for it; `None` without
    /// one, and from an older agent.
    #[serde(default)]
    pub remote: Option<RemoteStatus>,
    /// Time since the agent's start, s.
    pub uptime_s: f64,
    /// Number of slots in the flow map.
    pub slots: usize,
    /// Number of flows that are open at the moment.
    pub live_flows: usize,
    /// The live flows by what sets their cwnd, the names of [`cc_ebpf::Mode`]; empty from an older
    /// agent.
    #[serde(default)]
    pub modes: BTreeMap<String, usize>,
    /// Time since the agent's last heartbeat, ms; `None` before the first, and from an older agent.
    #[serde(default)]
    pub heartbeat_age_ms: Option<f64>,
    /// When the snapshot was taken, ns (`CLOCK_MONOTONIC`), as flows' times are; 0 from an older
    /// agent.
    #[serde(default)]
    pub taken_ns: u64,
    /// Flows that a former agent had left behind and that this agent took over.
    pub adopted_flows: usize,
    /// Live flows that run on the BPF programs of a former agent, which they keep until they close;
    /// 0 from an older agent.
    #[serde(default)]
    pub flows_on_former_programs: usize,
    /// Time from the last heartbeat of the agent that this one took over from to the first of its
    /// own, ms; `None` where it took over from none, and from an older agent.
    #[serde(default)]
    pub takeover_gap_ms: Option<f64>,
    /// Counts on the agent's side.
    pub agent: AgentCounts,
    /// The datapath's counters by name ([`cc_ebpf::Counter`]).
    pub datapath: BTreeMap<String, u64>,
    /// Delays from a window's end to the publication of its decision.
    pub decision_delay: Percentiles,
    /// Times that the policy took for a batch.
    pub inference: Percentiles,
    /// How these and the flows' delays are distributed; empty from an older agent.
    #[serde(default)]
    pub distributions: Distributions,
    /// Mean number of flows in a batch.
    pub mean_batch: f64,
    /// Processor time that the agent has used, s.
    pub cpu_s: f64,
    /// The canary that runs; `None` when none does.
    #[serde(default, rename = "trial")]
    pub canary: Option<CanaryStatus>,
    /// The outcome of the last command or canary; `None` before the first.
    #[serde(default)]
    pub news: Option<String>,
    /// What has happened to the agent and its policies, the oldest first, also before its start
    /// where it has a state directory; empty from an older agent.
    #[serde(default)]
    pub incidents: Vec<Incident>,
    /// The policies that are known to have been served, in the order in which they were last put
    /// into service; empty from an older agent.
    #[serde(default)]
    pub policies: Vec<KnownPolicy>,
    /// Which sockets the agent serves, in words; `None` from an older agent.
    #[serde(default)]
    pub served: Option<String>,
    /// The directories of cgroups that commands have named, whose sockets are served; `None` where
    /// commands may name none, and from an older agent.
    #[serde(default)]
    pub cgroups: Option<Vec<PathBuf>>,
    /// The capabilities that the agent holds, in words; `None` from an older agent.
    #[serde(default)]
    pub capabilities: Option<String>,
    /// How the policy in service differs from the one that a command put into service before the
    /// agent was started; `None` when it does not.
    #[serde(default)]
    pub differs: Option<String>,
    /// The host's default congestion control at present; `None` where the agent was not to be it,
    /// and from an older agent.
    #[serde(default)]
    pub default: Option<String>,
    /// The recording; `None` when the agent records nothing.
    #[serde(default)]
    pub recording: Option<RecordingStatus>,
    /// The live flows in slot order, the first few hundred of them; in the answer to
    /// [`Request::Flows`] those that come first in its order.
    pub flows: Vec<FlowView>,
    /// The number of live flows that meet the condition of [`Request::Flows`]; `None` in other
    /// answers.
    #[serde(default)]
    pub matching_flows: Option<usize>,
}

/// Something that has happened to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// When, in UTC, as lines of the log have it.
    pub at: String,
    /// Whether something had failed or was refused.
    pub trouble: bool,
    /// What has happened, in a line.
    pub text: String,
}

/// A canary that runs: a candidate policy beside the incumbent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CanaryStatus {
    /// One-line description of the candidate.
    pub candidate: String,
    /// What is compared, and hence assigned to an arm.
    pub by: CanaryBy,
    /// The candidate's share of the flows, paths or hosts, percent.
    pub percent: f64,
    /// Length of a block of time, s.
    pub block_s: f64,
    /// Pairs of blocks, or paths or hosts in each arm, that are needed before anything is found.
    pub units_needed: u64,
    /// What all metrics say together.
    pub finding: Finding,
    /// The candidate against the incumbent, by each metric.
    pub metrics: Vec<Comparison>,
    /// The incumbent's other flows in the candidate's blocks, against the other blocks; empty where
    /// there are none.
    pub neighbours: Vec<Comparison>,
    /// How the throughputs of the candidate's flows and of the others have changed since it began;
    /// `None` where units are not blocks of time, and from an older agent.
    #[serde(default)]
    pub shift: Option<Shift>,
    /// Counts of the incumbent's arm.
    #[serde(rename = "current_flows")]
    pub incumbent_flows: ArmReport,
    /// Counts of the candidate's arm.
    pub candidate_flows: ArmReport,
}

impl CanaryStatus {
    /// Units that there are so far: pairs of blocks, or paths or hosts in the arm that has fewer.
    pub fn units(&self) -> u64 {
        self.metrics.first().map_or(0, |metric| metric.units)
    }
}

/// The state of the connection to a policy server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteStatus {
    /// Address of the server, as `--policy` has it.
    pub server: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Connections that were made since the start of the agent.
    pub connections: u64,
    /// Name and kind of the server's policy; `None` before the first connection.
    pub policy: Option<String>,
    /// SHA-256 of the file of the server's policy; `None` before the first connection.
    pub sha256: Option<String>,
    /// Questions by what became of them, and decisions made without the server.
    #[serde(flatten)]
    pub counts: RemoteCounts,
    /// Why there is no connection; `None` while there is one.
    pub trouble: Option<String>,
}

/// A distribution of durations in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of durations that the percentiles are of.
    pub count: u64,
    /// The median of the durations, ms.
    pub p50_ms: f64,
    /// 99th percentile, ms.
    pub p99_ms: f64,
    /// 99.9th percentile, ms.
    pub p999_ms: f64,
    /// The largest of the durations, ms.
    pub max_ms: f64,
}

/// Rates between two snapshots of the same agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recent {
    /// Time between the snapshots, s.
    pub seconds: f64,
    /// Decisions published per second, over all flows.
    pub decisions_per_s: f64,
    /// Processor time per time; 1 is one busy processor.
    pub cpu: f64,
    /// Throughput of all listed flows together, Mbit/s.
    pub rate_mbps: f64,
    /// The longest queueing delay of the listed flows, ms.
    pub queue_ms: f64,
    /// Slots and generations of the flows without a new window.
    quiet: HashSet<(u32, u32)>,
}

impl Snapshot {
    /// Rates since `previous`, or since the agent's start when `previous` is `None` or shows
    /// another agent.
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

    /// The congestion control that somebody else has made the host's default in the place of this
    /// agent's; `None` where the agent's still is, or never was.
    pub fn default_taken_by(&self) -> Option<&str> {
        self.default.as_deref().filter(|&found| found != self.name)
    }

    /// Whether [`Self::flows`] leaves live flows out that were asked for.
    pub fn is_partial(&self) -> bool {
        self.flows.len() < self.matching_flows.unwrap_or(self.live_flows)
    }

    /// All counters: the agent's, then the datapath's.
    pub fn counters(&self) -> Vec<Count> {
        let agent = agent_counts(&self.agent);
        let mut counters: Vec<Count> = agent.into_iter().map(Count::from).collect();
        let recording = self.recording.iter().flat_map(recording_counts);
        counters.extend(recording.map(Count::from));
        counters.extend(self.datapath.iter().map(|(name, &value)| {
            let known = Counter::ALL.iter().find(|counter| counter.name() == name);
            let known = known.map(|&counter| datapath_meaning(counter));
            let (meaning, entry) = known.unwrap_or_default();
            Count {
                name: name.clone(),
                value,
                meaning,
                entry,
            }
        }));
        counters
    }

    /// The counters that should be zero and are not, in the order of [`Self::counters`].
    pub fn troubles(&self) -> Vec<Count> {
        let mut counters = self.counters();
        counters.retain(|count| count.entry.is_some() && count.value > 0);
        counters
    }
}

impl Recent {
    /// Whether no window of the flow has arrived: its rate and delay are those of an older window.
    pub fn is_quiet(&self, flow: &FlowView) -> bool {
        self.quiet.contains(&key(flow))
    }
}

fn key(flow: &FlowView) -> (u32, u32) {
    (flow.slot, flow.generation)
}

/// The state of the agent's recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordingStatus {
    /// Directory that the recordings are written to.
    pub directory: PathBuf,
    /// Form of the addresses in the rows: `absent`, `hashed` or `plain`.
    pub addresses: String,
    /// Rows written to the disk.
    pub rows: u64,
    /// Rows lost because the disk was too slow.
    pub rows_lost_behind: u64,
    /// Rows lost because they could not be written.
    pub rows_lost_unwritten: u64,
    /// Rows lost because the policy did not answer their flow for too long.
    pub rows_lost_unanswered: u64,
    /// Files completed, including those that a former agent had left open.
    pub files: u64,
    /// Files removed to stay within the size limit.
    pub files_removed: u64,
    /// Bytes of all recordings in the directory.
    pub bytes: u64,
    /// The last error of the file system, while writing fails; `None` otherwise.
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
