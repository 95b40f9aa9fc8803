//! A policy of one's own, served to a simulated flow by the agent's own core.
//!
//! ```console
//! $ cargo run -p cc-sim --example own_policy
//! ```
//!
//! A policy that the agent serves on live flows is an ONNX file (docs/policy.md). This trait stands
//! behind every one of them, so an idea can be tried here first.

use std::{path::Path, slice};

use cc_core::{
    interface::Interface,
    policy::{Choice, Policy, Query},
};
use cc_ebpf::{FEATURES, Feature, Startup};
use cc_sim::{
    scenario::{self, ScenarioError},
    sim::{
        Control, Simulation,
        agent::{AgentDelay, SenderMode, SimulatedAgent},
        control::learned::Learned,
    },
};

/// Length of the run, s.
const SECONDS: u64 = 30;
/// Queueing delay that the policy aims at, ms.
const TARGET_MS: f32 = 10.0;

/// Keeps the queueing delay near a target: one step up below it, one step down above it.
struct DelayTarget {
    interface: Interface,
}

impl Policy for DelayTarget {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        // Means are the second group of the observation; times are scaled by `scales.time_ms`.
        let delay = FEATURES + Feature::Delay as usize;
        let decide = |query: &Query| {
            let delay_ms = query.observation[delay] * self.interface.scales.time_ms;
            let step = (query.cwnd / 16).max(1);
            Choice::Cwnd(if delay_ms < TARGET_MS {
                query.cwnd + step
            } else {
                query.cwnd.saturating_sub(step).max(2)
            })
        };
        queries.iter().map(decide).collect()
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

fn main() -> Result<(), ScenarioError> {
    let text = r#"
        [[scenario]]
        name = "home"
        rate_mbps = 24
        delay_ms = 20
        queue = { bdp = 4 }
    "#;
    let scenario = scenario::parse(text, Path::new("."))?.remove(0);
    let mut policy = DelayTarget {
        interface: Interface::default(),
    };
    let settings = Learned::settings(policy.interface(), Startup::SlowStart);
    let control = Control::Learned(Box::new(Learned::new(settings)));
    let mut served = SimulatedAgent::new(
        Simulation::observed(&scenario, vec![control], 1),
        policy.interface().clone(),
        AgentDelay::MEASURED,
        SenderMode::Asynchronous,
        1,
    );
    served.serve(SECONDS * 1_000_000_000, |_flow, query| {
        policy.decide(slice::from_mut(query)).pop()
    });

    let simulation = served.simulation();
    let bits = simulation.flow(0).payload_delivered as f64 * 8.0;
    let observation = simulation.observation().expect("the path is observed");
    let delay = observation.forward.flows[0].delay_quantile(0.95);
    println!(
        "{:.2} Mbit/s, p95 one-way delay {:.1} ms, {} decisions",
        bits / SECONDS as f64 / 1e6,
        delay.map_or(f64::NAN, |delay| delay.as_secs_f64() * 1e3),
        served.counts().decisions,
    );
    Ok(())
}
