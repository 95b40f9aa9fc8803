//! One run: the flows of a scenario on its path, and their measurement. [`kernel`] and
//! [`simulated`] carry runs out on the two platforms, and [`measure`] computes the same figures
//! from both.

mod kernel;
mod measure;
mod simulated;

use std::{sync::atomic::AtomicBool, time::Duration};

use cc_core::policy::PolicyError;

use super::{agent::Agents, scheme::Scheme, traffic::TrafficError};
use crate::{
    link::LinkError,
    summary::{MessageRecord, Platform, Run, Series},
};
use cc_sim::{
    scenario::{Flow, Scenario},
    sim::{agent::AgentDelay, application_seed},
};

/// Scenario time between two progress reports of a run.
const LIVE_PERIOD: Duration = Duration::from_secs(1);

/// Settings of one run: its path, flows, length and seed.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// Scenario that describes the path.
    pub scenario: &'a Scenario,
    /// Flows of the run, in the scenario's order.
    pub flows: Vec<FlowSetup<'a>>,
    /// Length of the run in scenario time.
    pub seconds: Duration,
    /// Seed of random loss and jitter.
    pub seed: u64,
    /// Number of the address pair that the run uses. Runs at the same time need different ones,
    /// because agents identify flows by their addresses.
    pub slot: u16,
    /// How long decisions take in the simulator. On the kernel they take as long as they do.
    pub delay: AgentDelay,
}

impl Setup<'_> {
    /// Seed of a flow's application, which is the same in the simulator and on the kernel, and for
    /// every scheme.
    fn application_seed(&self, flow: usize) -> u64 {
        application_seed(self.seed, flow)
    }
}

/// One flow of a run.
#[derive(Clone, Copy, Debug)]
pub struct FlowSetup<'a> {
    /// Scheme that controls the flow's cwnd.
    pub scheme: &'a Scheme,
    /// Scenario time at which the flow starts.
    pub start: Duration,
    /// Scenario time at which the flow stops.
    pub stop: Duration,
}

impl<'a> FlowSetup<'a> {
    /// A scenario's flow under this scheme, in a run of this length.
    pub fn of(flow: &Flow, scheme: &'a Scheme, seconds: Duration) -> Self {
        Self {
            scheme,
            start: flow.start.min(seconds),
            stop: flow.stop.map_or(seconds, |stop| stop.min(seconds)),
        }
    }
}

/// Progress of a run: measurements of the second before `at`.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Scenario time of the report.
    pub at: Duration,
    /// Payload that each flow got through the link, Mbit/s, in the scenario's order.
    pub flows_mbps: Vec<f64>,
    /// Mean one-way delay of data packets, ms; `None` when none was delivered.
    pub owd_ms: Option<f64>,
    /// Fraction of the arriving data packets that the link dropped.
    pub loss_rate: f64,
}

/// Errors that prevent a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The emulated link could not be set up, or it broke.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A flow could not be started, or its connection broke.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// A policy could not be loaded for the simulator.
    #[error("policy of `{scheme}`: {source}")]
    Policy {
        /// Name of the policy's scheme.
        scheme: String,
        /// Reason why the policy cannot be loaded.
        source: Box<PolicyError>,
    },
    /// Two policies of a simulated run have different interfaces, but one simulated agent serves
    /// all policies of a run.
    #[error(
        "`{one}` and `{other}` observe or act differently, and a simulated run has one agent; \
         evaluate them in scenarios of their own, or with --on kernel"
    )]
    Interfaces {
        /// Name of one of the schemes.
        one: String,
        /// Name of the other scheme.
        other: String,
    },
    /// The simulator does not implement this congestion control.
    #[error("the simulator has no `{0}`")]
    Unsimulated(String),
}

/// A run, its time series and the messages of its applications.
pub type Measured = (Run, Series, Vec<MessageRecord>);

/// Carries out a run and measures it; returns `None` when it was cancelled.
///
/// `live` is called about once per second of scenario time. On the kernel, `agents` serve the
/// schemes that are policies. The caller fills in the scenario, scheme and number of the returned
/// run.
///
/// # Errors
///
/// Returns an error when the path or a flow cannot be set up, or when it breaks during the run.
pub fn run(
    on: Platform,
    setup: &Setup<'_>,
    agents: &Agents,
    cancel: &AtomicBool,
    live: impl FnMut(Live),
) -> Result<Option<Measured>, RunError> {
    match on {
        Platform::Kernel => kernel::run(setup, agents, cancel, live),
        Platform::Sim => simulated::run(setup, cancel, live),
    }
}
