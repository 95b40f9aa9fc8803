//! Resolution of an [`Evaluation`]: which runs there are, and the setup of each.

use std::{collections::BTreeMap, path::Path, time::Duration};

use sha2::{Digest, Sha256};

use super::{
    EvaluateError, Evaluation,
    run::{FlowSetup, Setup},
    schedule::{Job, Jobs, interleaved},
    scheme::{Controls, Scheme, SchemeError, ServedPolicy},
    splits, store,
};
use crate::{
    link::Link,
    summary::{Platform, PolicyFacts, Run, ScenarioFacts, Settings, utc_now},
};
use cc_sim::{
    scenario::{DEFAULT_LENGTH, Direction, Flow, Scenario, Service},
    sim::agent::AgentDelay,
};

/// An evaluation with all names resolved to schemes.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    evaluation: &'a Evaluation,
    /// Digests of the scenarios, in their order.
    digests: Vec<String>,
    /// All schemes by name: those under test, and those that flows of scenarios name themselves.
    schemes: BTreeMap<String, Scheme>,
    settings: Settings,
}

impl<'a> Plan<'a> {
    /// Resolves the schemes that scenarios name.
    ///
    /// # Errors
    ///
    /// Returns an error when two scenarios share a name, when a flow would start after the end of a
    /// run, or when a flow's scheme does not exist.
    pub(crate) fn new(evaluation: &'a Evaluation) -> Result<Self, EvaluateError> {
        let names = evaluation.schemes.iter();
        let mut schemes: BTreeMap<_, _> = names
            .map(|scheme| (scheme.name.clone(), scheme.clone()))
            .collect();
        for (index, scenario) in evaluation.scenarios.iter().enumerate() {
            let earlier = &evaluation.scenarios[..index];
            if earlier.iter().any(|other| other.name == scenario.name) {
                return Err(EvaluateError::Homonyms {
                    name: scenario.name.clone(),
                });
            }
            let fastest = fastest_mbps(scenario);
            if evaluation.on == Platform::Kernel && fastest > Link::MAX_MBPS {
                return Err(EvaluateError::TooFast {
                    scenario: scenario.name.clone(),
                    mbps: fastest,
                });
            }
            for (flow, number) in scenario.flows.iter().zip(0..) {
                if flow.start >= scenario.length(evaluation.seconds) {
                    return Err(EvaluateError::TooShort {
                        scenario: scenario.name.clone(),
                        flow: number,
                        start: flow.start,
                        seconds: scenario.length(evaluation.seconds),
                    });
                }
                add(&mut schemes, flow, evaluation).map_err(|source| EvaluateError::Flow {
                    scenario: scenario.name.clone(),
                    flow: number,
                    source: source.into(),
                })?;
            }
        }
        Ok(Self {
            evaluation,
            digests: evaluation.scenarios.iter().map(store::digest).collect(),
            settings: settings(evaluation, &schemes),
            schemes,
        })
    }

    /// All runs of the evaluation, in the order in which they start.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = Job> + use<> {
        let evaluation = self.evaluation;
        interleaved(
            evaluation.scenarios.len(),
            evaluation.schemes.len(),
            evaluation.runs,
        )
    }

    /// The settings that the summary states.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The policies among the schemes, each with the name of its scheme.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&str, &ServedPolicy)> {
        policies(&self.schemes)
    }

    /// Directory in which the agents record, if they do.
    pub(crate) fn record(&self) -> Option<&Path> {
        self.evaluation.record.as_deref()
    }

    /// The scenario that a job runs on.
    pub(crate) fn scenario(&self, job: Job) -> &'a Scenario {
        &self.evaluation.scenarios[job.scenario]
    }

    /// Platform that the schemes run on.
    pub(crate) fn on(&self) -> Platform {
        self.evaluation.on
    }

    /// Number of runs at the same time.
    pub(crate) fn limit(&self) -> Jobs {
        self.evaluation.jobs
    }

    /// Path of the agent's program, if one was given.
    pub(crate) fn agent(&self) -> Option<&Path> {
        self.evaluation.agent.as_deref()
    }

    /// Length of a run in scenario time.
    pub(crate) fn length(&self, job: Job) -> Duration {
        self.scenario(job).length(self.evaluation.seconds)
    }

    /// The identity of a run, without any measurement.
    pub(crate) fn blank(&self, job: Job) -> Run {
        Run {
            scenario: self.scenario(job).name.clone(),
            scheme: self.evaluation.schemes[job.scheme].name.clone(),
            run: job.run,
            ..Run::default()
        }
    }

    /// The [key](store::key) of a run.
    pub(crate) fn key(&self, job: Job) -> String {
        let flows = self.scenario(job).flows.iter();
        let names: BTreeMap<_, _> = flows
            .map(|flow| self.scheme(job, flow))
            .map(|scheme| (&scheme.name, scheme))
            .collect();
        store::key(
            self.evaluation.on,
            self.length(job).as_secs_f64(),
            self.evaluation.seed,
            &self.digests[job.scenario],
            names.into_values(),
        )
    }

    /// Setup of a run. `slot` selects its addresses and must differ between runs at the same time.
    pub(crate) fn setup(&self, job: Job, slot: u16) -> Setup<'_> {
        let seconds = self.length(job);
        let scenario = self.scenario(job);
        let flow = |flow: &Flow| FlowSetup::of(flow, self.scheme(job, flow), seconds);
        Setup {
            scenario,
            flows: scenario.flows.iter().map(flow).collect(),
            seconds,
            seed: seed(self.evaluation.seed, &scenario.name, job.run),
            slot,
            delay: AgentDelay::MEASURED,
        }
    }

    fn scheme(&self, job: Job, flow: &Flow) -> &Scheme {
        let own = flow.scheme.as_deref().map(label);
        own.and_then(|name| self.schemes.get(name))
            .unwrap_or(&self.evaluation.schemes[job.scheme])
    }
}

/// Adds the scheme that a flow names itself, if it names one.
fn add(
    schemes: &mut BTreeMap<String, Scheme>,
    flow: &Flow,
    evaluation: &Evaluation,
) -> Result<(), SchemeError> {
    let Some(word) = &flow.scheme else {
        return Ok(());
    };
    let scheme = Scheme::parse(
        word,
        &evaluation.policy,
        evaluation.serving,
        Controls::of(evaluation.on),
    )?;
    match schemes.get(&scheme.name) {
        Some(known) if *known != scheme => Err(SchemeError::Twice { name: scheme.name }),
        _ => {
            schemes.insert(scheme.name.clone(), scheme);
            Ok(())
        }
    }
}

/// The name part of `NAME` or `NAME=FILE.onnx`.
fn label(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

/// Returns the largest constant rate of either direction in Mbit/s, and 0 for links without one:
/// traces and unlimited links have no rate that the emulator must keep.
pub fn fastest_mbps(scenario: &Scenario) -> f64 {
    let fastest = |direction: &Direction| match &direction.service {
        Service::Rate(rate) => (rate.points.iter())
            .map(|point| point.bits_per_second)
            .fold(0.0, f64::max),
        // Bursts are faster, but the bucket bounds how many bytes are.
        Service::Shaper(shaper) => shaper.bits_per_second,
        Service::Unlimited | Service::Opportunities(_) => 0.0,
    };
    fastest(&scenario.forward).max(fastest(&scenario.reverse)) / 1e6
}

/// Seed of a run's random loss and jitter, which does not depend on the scheme.
fn seed(seed: u64, scenario: &str, run: u32) -> u64 {
    let digest = Sha256::digest(format!("{seed}/{scenario}/{run}"));
    digest
        .iter()
        .take(8)
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The schemes that are policies, each with its name, in the order of the names.
fn policies(schemes: &BTreeMap<String, Scheme>) -> impl Iterator<Item = (&str, &ServedPolicy)> {
    let schemes = schemes.values();
    schemes.filter_map(|scheme| Some((scheme.name.as_str(), scheme.policy()?)))
}

fn settings(evaluation: &Evaluation, schemes: &BTreeMap<String, Scheme>) -> Settings {
    let policies = policies(schemes).map(|(scheme, policy)| PolicyFacts {
        scheme: scheme.to_owned(),
        source: policy.source(),
        sha256: policy.sha256.clone().unwrap_or_default(),
        trained_on: splits::trained_on(&policy.spec, &evaluation.scenarios),
    });
    let facts = |scenario: &Scenario| ScenarioFacts {
        seconds: match evaluation.seconds {
            None => scenario.scoring.length.map(|length| length.as_secs_f64()),
            Some(_) => None,
        },
        ..scenario.into()
    };
    Settings {
        on: evaluation.on,
        command: evaluation.command.clone(),
        date: utc_now(),
        seconds: evaluation.seconds.unwrap_or(DEFAULT_LENGTH).as_secs_f64(),
        runs: evaluation.runs,
        seed: evaluation.seed,
        schemes: evaluation
            .schemes
            .iter()
            .map(|scheme| scheme.name.clone())
            .collect(),
        scenarios: evaluation.scenarios.iter().map(facts).collect(),
        policies: policies.collect(),
        sets: splits::sets(&evaluation.scenarios),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_depend_on_the_seed_the_scenario_and_the_run() {
        assert_eq!(seed(1, "a", 0), seed(1, "a", 0));
        let others = [seed(2, "a", 0), seed(1, "b", 0), seed(1, "a", 1)];
        assert!(others.iter().all(|&other| other != seed(1, "a", 0)));
    }
}
