//! The metrics of the selection of pods.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

use crate::metrics::{Attempts, Task};

const SERVER: Task = Task {
    name: "pods_server",
    attempts: "lists and watches of the API server",
    consequence: "Pods that begin or change meanwhile are not noticed; what is served stays.",
    entry: "RlccPodsBlind",
};
const AGENT: Task = Task {
    name: "pods_agent",
    attempts: "comparisons with what the agent serves",
    consequence: "The agent does not answer or refuses, and new connections of selected pods are \
                  not served.",
    entry: "RlccPodsNotServed",
};

/// How selecting goes: what a page says of it.
#[derive(Clone)]
pub(super) struct Tally {
    /// Lists and watches of the API server.
    pub(super) server: Attempts,
    /// Comparisons of what is selected with what the agent serves.
    pub(super) agent: Attempts,
    selected: Gauge,
    without_cgroup: Gauge,
}

impl Tally {
    /// A tally that is on the page of a registry.
    pub(super) fn of(registry: &mut Registry) -> Self {
        let tally = Self {
            server: Attempts::of(&SERVER, registry),
            agent: Attempts::of(&AGENT, registry),
            selected: Gauge::default(),
            without_cgroup: Gauge::default(),
        };
        registry.register(
            "pods_selected",
            "pods of this node that the annotation selects; 0 where some were annotated: in the \
             template of what makes them?",
            tally.selected.clone(),
        );
        registry.register(
            "pods_without_cgroup",
            "selected pods whose cgroup was not found, and which are not served; pods that have \
             ended have none, and pods that begin have one soon",
            tally.without_cgroup.clone(),
        );
        tally
    }

    /// Takes note of how many pods are selected, and of how many of them the cgroup is not known.
    pub(super) fn selects(&self, pods: usize, without_cgroup: usize) {
        self.selected.set(pods as i64);
        self.without_cgroup.set(without_cgroup as i64);
    }
}

/// The page of a selection that has not begun.
#[cfg(test)]
pub(crate) fn page() -> String {
    crate::metrics::page_of(Tally::of)
}
