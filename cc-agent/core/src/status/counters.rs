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
    /// What a value above zero means, for counters that should stay at zero; `None` for others.
    pub trouble: Option<&'static str>,
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

/// The agent's counts with their names in reports, and the meaning of those that should be zero.
pub(super) fn agent_counts(
    counts: &AgentCounts,
) -> [(&'static str, u64, Option<&'static str>); 17] {
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
        ("flows", flows, None),
        (
            "flows_found_late",
            flows_found_late,
            Some("Flows whose opened record was lost; they were found by a later record."),
        ),
        ("windows", windows, None),
        ("windows_closed_silent", windows_closed_silent, None),
        (
            "windows_application_limited",
            windows_application_limited,
            None,
        ),
        ("windows_in_slow_start", windows_in_slow_start, None),
        ("slots_reclaimed", slots_reclaimed, None),
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
            Some("Answers of the policy that were not finite: the flow kept its cwnd."),
        ),
        ("answers_orphaned", answers_orphaned, None),
        (
            "answers_missing",
            answers_missing,
            Some("Questions that no policy answered, because it failed or was replaced."),
        ),
        (
            "policies_restarted",
            policies_restarted,
            Some("Policies that hung or whose process ended, and that were started again."),
        ),
        (
            "policies_replaced",
            policies_replaced,
            Some("Policies that failed and were replaced by the former one, or by none."),
        ),
        (
            "candidates_withdrawn",
            candidates_withdrawn,
            Some("Candidates that failed or breached a guard rail."),
        ),
    ]
}

/// A recording's counts, in the form of [`agent_counts`].
pub(super) fn recording_counts(
    status: &RecordingStatus,
) -> [(&'static str, u64, Option<&'static str>); 5] {
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

/// What a counter of the datapath above zero means, if it should be zero. Timeouts are the path's.
pub(super) fn datapath_trouble(counter: Counter) -> Option<&'static str> {
    match counter {
        Counter::FlowsOpened
        | Counter::FlowsClosed
        | Counter::DecisionsTaken
        | Counter::DecisionsStale
        | Counter::FallbacksLeft
        | Counter::MarksAnswered
        | Counter::LossAnswered
        | Counter::IdleRestarts
        | Counter::ConnectionsLeft
        | Counter::SlotsRevoked
        | Counter::Timeouts => None,
        Counter::FlowsWithoutSlot
        | Counter::RecordsDropped
        | Counter::AckRecordsDropped
        | Counter::DecisionsClamped
        | Counter::FallbacksEntered
        | Counter::FlowsUnanswered
        | Counter::ConnectionsKept
        | Counter::SlotsLeaked => Some(counter.meaning().trim()),
    }
}
