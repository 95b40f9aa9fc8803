//! Runs recorded controls on a twin, and computes of their windows what was computed of the
//! recording.

use std::{collections::BTreeMap, time::Duration};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, PolicySpec},
    rows::Recorded,
};
use cc_sim::{scenario::Scenario, seed, sim::Control};
use rayon::prelude::*;

use super::error::CalibrateError;
use super::recorded::{RecordedControl, Subject};
use super::statistics::{Sample, Statistics};
use super::twin::Twin;
use crate::simulated_recording::{SimulatedRun, identity, record, record_policy};

/// Runs controls on twins as they were recorded.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    interface: Interface,
    /// The policies that can be run, by their identifiers in recordings.
    policies: BTreeMap<String, (PolicySpec, Option<ActionSelection>)>,
}

impl Simulator {
    /// Measures in the windows of the interface.
    pub fn new(interface: Interface) -> Self {
        Self {
            interface,
            policies: BTreeMap::new(),
        }
    }

    /// Adds a policy, whose recorded flows can then be compared. `serving` is how it selected its
    /// actions; `None` is as its file says. Returns its identifier in recordings.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be loaded.
    pub fn add_policy(
        &mut self,
        policy: PolicySpec,
        serving: Option<ActionSelection>,
    ) -> Result<String, CalibrateError> {
        let loaded = policy.load(&Interface::default(), serving, 1);
        let loaded = loaded.map_err(|source| CalibrateError::Policy {
            policy: policy.to_string(),
            source,
        })?;
        let name = identity(&policy, loaded.as_ref());
        self.policies.insert(name.clone(), (policy, serving));
        Ok(name)
    }

    /// Whether flows of the subject can be simulated.
    pub fn knows(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Control(name) => Control::NAMES.contains(&name.as_str()),
            Subject::Policy(name) => self.policies.contains_key(name),
        }
    }

    /// Figures of a control on a twin: of flows as long as the recorded ones, each run `repeats`
    /// times.
    ///
    /// # Errors
    ///
    /// Returns an error when the subject or the twin cannot be simulated, or when no flow delivers
    /// anything.
    pub fn statistics(
        &self,
        twin: &Twin,
        control: &RecordedControl,
        repeats: u32,
        seed: u64,
    ) -> Result<Statistics, CalibrateError> {
        let flows = 0..control.flows.len() as u64 * u64::from(repeats);
        let runs: Vec<Vec<Sample>> = flows
            .into_par_iter()
            .map(|number| {
                let flow = &control.flows[(number % control.flows.len() as u64) as usize];
                let ns = flow.iter().map(|sample| sample.ns).sum();
                let seed = seed::fold(seed, number);
                let scenario = twin.scenario("twin", seed)?;
                self.samples(&scenario, &control.subject, ns, seed)
            })
            .collect::<Result<_, CalibrateError>>()?;
        let runs: Vec<&[Sample]> = runs.iter().map(Vec::as_slice).collect();
        let statistics = Statistics::of(&runs);
        statistics.ok_or_else(|| CalibrateError::Silent {
            subject: control.subject.label(),
            seconds: control.statistics.seconds,
        })
    }

    /// The windows of one flow on a link, for `ns` from its first ACK on.
    pub(super) fn samples(
        &self,
        scenario: &Scenario,
        subject: &Subject,
        ns: u64,
        seed: u64,
    ) -> Result<Vec<Sample>, CalibrateError> {
        // The first window begins with the first ACK of data.
        let length = Duration::from_nanos(ns) + scenario.base_rtt() * 2;
        let run = SimulatedRun::new(length, seed);
        let rows = self.rows(scenario, subject, &run)?;
        let (mut before, mut spent) = (None, 0);
        let samples = rows.iter().map(|recorded| {
            let window = &recorded.row.window;
            Sample::of(before.replace(window), window)
        });
        let within = samples.take_while(|sample| {
            spent += sample.ns;
            spent <= ns
        });
        Ok(within.collect())
    }

    /// The rows of one flow on a link.
    pub(super) fn rows(
        &self,
        scenario: &Scenario,
        subject: &Subject,
        run: &SimulatedRun,
    ) -> Result<Vec<Recorded>, CalibrateError> {
        Ok(match subject {
            Subject::Control(name) => record(scenario, name, &self.interface, run)?,
            Subject::Policy(name) => {
                let known = self.policies.get(name);
                let (policy, serving) = known.cloned().unwrap_or_default();
                record_policy(scenario, &policy, serving, run)?
            }
        })
    }
}
