//! The metrics of the upload of recordings.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};

use crate::metrics::{Attempts, Task};

const PASSES: Task = Task {
    name: "ship_pass",
    attempts: "passes over the directory of recordings",
    consequence: "Recordings stay on this host, where the agent removes the oldest beyond its \
                  limit.",
    entry: "RlccShippingFails",
};

/// How uploading goes: what a page says of it.
pub(super) struct Tally {
    passes: Attempts,
    recordings: Counter,
    bytes: Counter,
    waiting: Gauge,
}

impl Tally {
    /// A tally that is on the page of a registry.
    pub(super) fn of(registry: &mut Registry) -> Self {
        let tally = Self {
            passes: Attempts::of(&PASSES, registry),
            recordings: Counter::default(),
            bytes: Counter::default(),
            waiting: Gauge::default(),
        };
        registry.register(
            "ship_recordings",
            "recordings that were uploaded; constant while the agent records: it completes none, \
             or uploads fail",
            tally.recordings.clone(),
        );
        registry.register_with_unit(
            "ship_uploaded",
            "length of the recordings that were uploaded",
            Unit::Bytes,
            tally.bytes.clone(),
        );
        registry.register(
            "ship_waiting_recordings",
            "completed recordings that were not in the store when they were last looked at; when \
             it only rises, the store or --rate is slower than the agent records",
            tally.waiting.clone(),
        );
        tally
    }

    /// Counts a pass over the directory.
    pub(super) fn passed<T, E>(&self, outcome: &Result<T, E>) {
        self.passes.count(outcome);
    }

    /// Takes note of how many recordings are to be uploaded.
    pub(super) fn waits(&self, recordings: usize) {
        self.waiting.set(recordings as i64);
    }

    /// Counts a recording that was uploaded, of this length in bytes.
    pub(super) fn uploaded(&self, bytes: u64) {
        self.recordings.inc();
        self.bytes.inc_by(bytes);
        self.waiting.dec();
    }
}

/// The page of an upload that has not done anything yet.
#[cfg(test)]
pub(crate) fn page() -> String {
    crate::metrics::page_of(Tally::of)
}
