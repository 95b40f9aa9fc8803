//! One run: the flows of a scenario over its path, and what was measured. [`kernel`] and [`simulated`] are the two
//! ways to get there; [`measure`] makes the same figures of both.

mod kernel;
mod measure;
pub(super) mod sample;
mod simulated;

use std::{sync::atomic::AtomicBool, time::Duration};

use cc_core::policy::PolicyError;

use super::{agent::Agents, scheme::Scheme, traffic::TrafficError};
use crate::{
    link::LinkError,
    summary::{Platform, Run, Series},
};
use cc_sim::scenario::Scenario;

/// How often a run says how it is going, in scenario time.
const LIVE_PERIOD: Duration = Duration::from_secs(1);

/// What a run needs to be told.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The path.
    pub scenario: &'a Scenario,
    /// The flows, in the scenario's order.
    pub flows: Vec<FlowSetup<'a>>,
    /// Length.
    pub seconds: Duration,
    /// Fixes loss and jitter.
    pub seed: u64,
    /// Which addresses it has; another one in every run that goes at the same time, as agents tell flows apart by
    /// them.
    pub slot: u16,
}

/// A flow of a run.
#[derive(Clone, Copy, Debug)]
pub struct FlowSetup<'a> {
    /// What sets its window.
    pub scheme: &'a Scheme,
    /// When it starts.
    pub start: Duration,
    /// When it stops.
    pub stop: Duration,
}

/// How a run is going: the second before `at`.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Scenario time.
    pub at: Duration,
    /// Payload of each flow through the link, Mbit/s, in the scenario's order.
    pub flows_mbps: Vec<f64>,
    /// Mean one-way delay of data packets, ms; none when there were none.
    pub owd_ms: Option<f64>,
    /// Share of the arriving data packets that the link dropped.
    pub loss_rate: f64,
}

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No flow.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// A policy cannot be made.
    #[error("policy of `{scheme}`: {source}")]
    Policy {
        /// Whose.
        scheme: String,
        /// Why.
        source: Box<PolicyError>,
    },
    /// One simulated agent serves all policies of a run.
    #[error(
        "`{one}` and `{other}` observe or act differently, and a simulated run has one agent; evaluate them in \
         scenarios of their own, or with --on kernel"
    )]
    Environments {
        /// A scheme.
        one: String,
        /// Another one.
        other: String,
    },
    /// The simulator has no such congestion control.
    #[error("the simulator has no `{0}`")]
    Unsimulated(String),
}

/// Runs the flows and measures; none when cancelled. `live` is called about every second of scenario time. On the
/// kernel, `agents` serve the schemes that are policies. The run's scenario, scheme and number are for the caller to
/// fill in.
///
/// # Errors
/// When the path or a flow cannot be made, or breaks.
pub fn run(
    on: Platform,
    setup: &Setup<'_>,
    agents: &Agents,
    cancel: &AtomicBool,
    live: impl FnMut(Live),
) -> Result<Option<(Run, Series)>, RunError> {
    match on {
        Platform::Kernel => kernel::run(setup, agents, cancel, live),
        Platform::Sim => simulated::run(setup, cancel, live),
    }
}
