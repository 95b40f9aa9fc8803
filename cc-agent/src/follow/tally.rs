//! The metrics of a host that follows a channel.

use cc_channel::{Announcement, ChannelError, Stage};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use crate::metrics::{Attempts, Task};

const CHANNEL: Task = Task {
    name: "follow_channel",
    attempts: "reads of the channel",
    consequence: "The host stays with what it serves, and new policies do not arrive.",
    entry: "RlccChannelAway",
};
const AGENT: Task = Task {
    name: "follow_agent",
    attempts: "questions and commands of `cc-agent follow` to the agent",
    consequence: "The agent does not answer or refuses, and serves something else than announced.",
    entry: "RlccNotFollowed",
};

/// How following goes: what a page says of it.
pub(super) struct Tally {
    channel: Attempts,
    agent: Attempts,
    suspicious: Counter,
    announcement: Gauge,
    is_in_service: Gauge,
}

impl Tally {
    /// A tally that is on the page of a registry.
    pub(super) fn of(registry: &mut Registry) -> Self {
        let tally = Self {
            channel: Attempts::of(&CHANNEL, registry),
            agent: Attempts::of(&AGENT, registry),
            suspicious: Counter::default(),
            announcement: Gauge::default(),
            is_in_service: Gauge::default(),
        };
        registry.register(
            "follow_suspicious",
            "should not rise: announcements and policy files that the publisher's key has not \
             signed, or that are older than what the host has heard. They are not parsed and not \
             served, but somebody may be tampering: RlccChannelSuspicious in docs/runbook.md",
            tally.suspicious.clone(),
        );
        registry.register(
            "follow_announcement",
            "number of the announcement in force, 0 before the first; it lags behind that of other \
             hosts where the channel is out of reach",
            tally.announcement.clone(),
        );
        registry.register(
            "follow_in_service",
            "1 while the announced policy was put into service or is being tried, otherwise 0: its \
             canary ended without it, the agent refuses it, or an operator has rolled it back. \
             RlccNotFollowed in docs/runbook.md",
            tally.is_in_service.clone(),
        );
        tally
    }

    /// Counts a read of the channel.
    pub(super) fn heard<T>(&self, outcome: &Result<T, ChannelError>) {
        self.channel.count(outcome);
        if outcome.as_ref().is_err_and(ChannelError::is_suspicious) {
            self.suspect();
        }
    }

    /// Counts an announcement that is not to be believed.
    pub(super) fn suspect(&self) {
        self.suspicious.inc();
    }

    /// Counts a question or command to the agent.
    pub(super) fn asked<T, E>(&self, outcome: &Result<T, E>) {
        self.agent.count(outcome);
    }

    /// Takes note of how far the announcement in force has come; `None` before the first.
    pub(super) fn stands(&self, current: Option<(&Announcement, &Stage)>) {
        let Some((announcement, stage)) = current else {
            return;
        };
        self.announcement.set(announcement.sequence as i64);
        let is_in_service = matches!(stage, Stage::Serving | Stage::Trying);
        self.is_in_service.set(is_in_service.into());
    }
}

/// The page of a host that has not followed anything yet.
#[cfg(test)]
pub(crate) fn page() -> String {
    crate::metrics::page_of(Tally::of)
}
