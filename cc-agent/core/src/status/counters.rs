//! The agent's counters: their names, their values, and which of them should stay at zero.

use cc_ebpf::Counter;
use serde::{Deserialize, Serialize};

use super::RecordingStatus;

/// Counts of flows, windows and decisions on the agent's side, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCounts {
    /// Flows opened, found late or adopted from a former agent.
    pub flows: u64,
    /// Flows whose opened record was lost and that were found by the record of a window.
    pub flows_found_late: u64,
    /// Windows received in records or closed by the agent, each counted once.
    pub windows: u64,
    /// Windows that the agent closed because their flow had fallen silent.
    pub windows_closed_silent: u64,
    /// Windows that a newer one replaced before the policy was asked about them.
    pub windows_skipped: u64,
    /// Windows in which the application limited the flow, so that the policy was not asked about
    /// them.
    #[serde(default)]
    pub windows_application_limited: u64,
    /// Windows of flows in slow start, about which a policy that decides after it was not asked.
    #[serde(default)]
    pub windows_in_slow_start: u64,
    /// Slots taken away from flows that were idle for five minutes, or less where few were free.
    #[serde(default)]
    pub slots_reclaimed: u64,
    /// Windows whose records were lost: gaps in the windows' numbers.
    pub windows_missed: u64,
    /// Decisions written to the decision map.
    pub decisions: u64,
    /// Decisions published more than 20 ms after their window's end.
    pub decisions_late: u64,
    /// Answers that were NaN or infinite: the flow kept its cwnd.
    pub answers_invalid: u64,
    /// Answers discarded because another flow had taken over the slot, or the policy was replaced,
    /// while the batch was with the policy.
    pub answers_orphaned: u64,
    /// Questions that were never answered, because the policy failed or was replaced meanwhile.
    #[serde(default)]
    pub answers_missing: u64,
    /// Policies that hung or whose process ended, and that were started again.
    #[serde(default)]
    pub policies_restarted: u64,
    /// Policies that failed and were replaced by the former policy, or by none.
    #[serde(default)]
    pub policies_replaced: u64,
    /// Candidates that failed or breached a guard rail, and were withdrawn.
    #[serde(default)]
    pub candidates_withdrawn: u64,
}

/// Counts of questions to a policy server, and of the decisions made without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteCounts {
    /// Questions sent to the server.
    pub asked: u64,
    /// Questions that were answered in time.
    pub answered: u64,
    /// Questions whose reply came after the interval, and was dropped.
    pub late: u64,
    /// Questions that were not answered at all.
    pub lost: u64,
    /// Replies that were of no use: repeated, about another flow, or without a choice.
    pub refused: u64,
    /// Decisions left to the local policy.
    pub local: u64,
}

/// A counter of the agent or of its datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The counter's name in reports.
    pub name: String,
    /// Its value, counted since the agent's start.
    pub value: u64,
    /// What it counts, and what a rise of it means; empty for one that this version does not know.
    pub meaning: &'static str,
    /// For counters that should stay at zero, the heading in docs/runbook.md under which there is
    /// what to do; `None` for others.
    pub entry: Option<&'static str>,
}

impl From<Known> for Count {
    fn from((name, value, meaning, entry): Known) -> Self {
        Self {
            name: name.into(),
            value,
            meaning,
            entry,
        }
    }
}

/// The fields of a [`Count`] whose name is known.
pub(super) type Known = (&'static str, u64, &'static str, Option<&'static str>);

/// The agent's counts with their names in reports, and what they mean.
pub(super) fn agent_counts(counts: &AgentCounts) -> [Known; 17] {
    // Destructured without `..`, so that a new count cannot be forgotten here.
    let AgentCounts {
        flows,
        flows_found_late,
        windows,
        windows_closed_silent,
        windows_skipped,
        windows_application_limited,
        windows_in_slow_start,
        slots_reclaimed,
        windows_missed,
        decisions,
        decisions_late,
        answers_invalid,
        answers_orphaned,
        answers_missing,
        policies_restarted,
        policies_replaced,
        candidates_withdrawn,
    } = *counts;
    [
        (
            "flows",
            flows,
            "Flows opened, found late or adopted from a former agent.",
            None,
        ),
        (
            "flows_found_late",
            flows_found_late,
            "Flows whose opened record was lost; they were found by a later record, and went \
             without decisions until then.",
            Some("RlccRecordsDropped"),
        ),
        (
            "windows",
            windows,
            "Windows of flows, ten a second for each busy flow; none while flows send: their \
             records do not arrive.",
            None,
        ),
        (
            "windows_closed_silent",
            windows_closed_silent,
            "Windows that the agent closed because no ACK came: paths or receivers stall.",
            None,
        ),
        (
            "windows_application_limited",
            windows_application_limited,
            "Windows in which the application had too little to send; they are not decided on.",
            None,
        ),
        (
            "windows_in_slow_start",
            windows_in_slow_start,
            "Windows of flows in slow start, about which a policy that decides after it was not \
             asked; it rises with each flow that begins.",
            None,
        ),
        (
            "slots_reclaimed",
            slots_reclaimed,
            "Slots taken from idle flows; a steep rise: few are free, and more `--slots` would \
             help.",
            None,
        ),
        (
            "windows_skipped",
            windows_skipped,
            "Windows that a newer one replaced before the policy got to them: it is slower than a \
             window, and flows are decided on less often.",
            Some("RlccDecisionsLate"),
        ),
        (
            "windows_missed",
            windows_missed,
            "Windows that never arrived: their records were lost, and flows without decisions for \
             long fall back.",
            Some("RlccRecordsDropped"),
        ),
        (
            "decisions",
            decisions,
            "Decisions published; constant while flows send: no policy decides \
             (RlccNotDeciding).",
            None,
        ),
        (
            "decisions_late",
            decisions_late,
            "Decisions later than 20 ms after their window's end: they are about a past that is \
             over. With a distant policy server that is normal.",
            Some("RlccDecisionsLate"),
        ),
        (
            "answers_invalid",
            answers_invalid,
            "Answers of the policy that were not finite: the flow kept its cwnd. With too many of \
             them the policy is replaced.",
            Some("RlccAnswersInvalid"),
        ),
        (
            "answers_orphaned",
            answers_orphaned,
            "Answers for flows that had gone, or of a policy that was replaced: normal at a reload \
             and where flows are short.",
            None,
        ),
        (
            "answers_missing",
            answers_missing,
            "Questions that no policy answered, because it failed or was replaced: the flow kept \
             its cwnd until its next window.",
            Some("RlccPolicyFailed"),
        ),
        (
            "policies_restarted",
            policies_restarted,
            "Policies that hung or whose process ended, and that were started again; flows fell \
             back meanwhile.",
            Some("RlccPolicyFailed"),
        ),
        (
            "policies_replaced",
            policies_replaced,
            "Policies that failed and were replaced by the former one, or by none: then all flows \
             are on the fallback.",
            Some("RlccPolicyFailed"),
        ),
        (
            "candidates_withdrawn",
            candidates_withdrawn,
            "Candidates that failed or breached a guard rail: the incumbent has their flows again.",
            Some("RlccCandidateWithdrawn"),
        ),
    ]
}

/// A recording's counts, in the form of [`agent_counts`].
pub(super) fn recording_counts(status: &RecordingStatus) -> [Known; 5] {
    [
        (
            "rows_recorded",
            status.rows,
            "Rows written to recordings; constant while flows send: nothing is recorded.",
            None,
        ),
        (
            "rows_lost_behind",
            status.rows_lost_behind,
            "Rows lost because the disk was behind. They are missing in recordings; flows are not \
             concerned.",
            Some("RlccRowsLost"),
        ),
        (
            "rows_lost_unwritten",
            status.rows_lost_unwritten,
            "Rows lost because they could not be written: the disk is full, or the directory is \
             gone. Flows are not concerned.",
            Some("RlccRowsLost"),
        ),
        (
            "rows_lost_unanswered",
            status.rows_lost_unanswered,
            "Rows lost because the policy did not answer their flow for too long; the flow is on \
             the fallback.",
            Some("RlccFlowsOnFallback"),
        ),
        (
            "recordings_removed",
            status.files_removed,
            "Recordings removed to stay within --record-limit-mb: what was not copied before is \
             lost.",
            None,
        ),
    ]
}

/// What a counter of the datapath means, and the runbook's heading if it should be zero. Timeouts
/// are the path's.
pub(super) fn datapath_meaning(counter: Counter) -> (&'static str, Option<&'static str>) {
    match counter {
        Counter::FlowsOpened => (
            "Flows that were given a slot; many beside few open ones are short.",
            None,
        ),
        Counter::FlowsClosed => (
            "Flows that gave their slot back; without rlcc_flows_opened the rest is open.",
            None,
        ),
        Counter::FlowsWithoutSlot => (
            "Flows that found no free slot. They run on Reno and ask again every 100 ms: more \
             `--slots`.",
            Some("RlccSlotsShort"),
        ),
        Counter::RecordsDropped => (
            "Window, opened or closed records lost because the ring buffer was full: the agent was \
             stopped or has too little processor time, and windows go unanswered.",
            Some("RlccRecordsDropped"),
        ),
        Counter::AckRecordsDropped => (
            "Per-ACK records lost because their ring buffer was full: rows of --per-ack-file are \
             missing, and nothing else.",
            Some("Counters"),
        ),
        Counter::DecisionsTaken => (
            "Decisions that set a flow's cwnd; fewer than decisions: flows send no further ACKs.",
            None,
        ),
        Counter::DecisionsStale => (
            "Decisions ignored because their flow had gone: normal where flows are short.",
            None,
        ),
        Counter::DecisionsClamped => (
            "Decisions outside the cwnd bounds, clamped to them: the policy wants more than it \
             may, and what it learned does not hold there.",
            Some("Counters"),
        ),
        Counter::FallbacksEntered => (
            "Times that a flow fell back to Reno, because the agent's heartbeat was too old or too \
             many of the flow's windows had ended without a decision. A few at a restart are \
             normal.",
            Some("RlccFlowsOnFallback"),
        ),
        Counter::FallbacksLeft => (
            "Times that a flow left the fallback for a new decision: normal after it has \
             entered it.",
            None,
        ),
        Counter::FlowsUnanswered => (
            "Times that a flow fell back to Reno because too many of its windows had ended without \
             a decision, although the agent's heartbeat was fresh: host or policy are too slow.",
            Some("RlccFlowsOnFallback"),
        ),
        Counter::LossAnswered => (
            "Times that heavy loss halved a flow's cwnd before the next decision; by much more \
             than before: paths lose more, or the policy overruns them.",
            None,
        ),
        Counter::MarksAnswered => (
            "Times that ECN marks reduced a flow's cwnd: normal behind an AQM.",
            None,
        ),
        Counter::IdleRestarts => (
            "Times that a flow began to transmit again after idle time with a smaller cwnd.",
            None,
        ),
        Counter::SlotsRevoked => (
            "Flows that found at an ACK that they had lost their slot while they were idle.",
            None,
        ),
        Counter::Timeouts => (
            "Retransmission timeouts of decided flows; they rise where whole windows are lost, or \
             paths break.",
            None,
        ),
        Counter::ConnectionsLeft => (
            "Connections that were left to another congestion control, as the lists of networks \
             and devices ask.",
            None,
        ),
        Counter::ConnectionsKept => (
            "Connections that the lists leave to another congestion control, and that the kernel \
             kept under this one: the other one is not there any more, or a route locks this one.",
            Some("Counters"),
        ),
        Counter::SlotsLeaked => (
            "Slots that could not be given back to the free list, a bug: fewer flows can be served \
             until the agent is started again.",
            Some("RlccSlotsLeaked"),
        ),
    }
}
