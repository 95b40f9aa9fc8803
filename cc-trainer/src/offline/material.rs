//! From recordings to transitions, and from a learned network to a policy file.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, PolicyMeta},
};
use serde::Serialize;

use super::{
    LearnedNetwork, OfflineConfig, SettingError,
    transitions::{Outcome, Taken, Transitions},
};
use crate::{
    dataset::{DatasetError, Partitions, Recordings, Trajectory, features},
    discount,
    environment::recorded::is_held_out,
    model::{ParameterLayout, Shape, initialise},
    normalise::{Fit, Normalizer, input_shapes},
    policy_file::{self, ExportError},
};

/// Size of a partition of the recordings, bytes: one is in memory at a time.
const PARTITION: u64 = 4 << 20;
/// Name of the policies in their files.
const POLICY: &str = "offline";
/// Description of the policies in their files.
const DESCRIPTION: &str =
    "Congestion-control policy, learnt by cc-trainer from what other congestion controls did";
/// Smallest deviation that rewards are divided by.
const LEAST_DEVIATION: f64 = 1e-6;

/// What is learned from recordings, with all that a policy's file needs.
#[derive(Clone, Debug)]
pub struct Material {
    /// The interface of the policy.
    pub interface: Interface,
    /// Identifiers of what was recorded, such as `observed:cubic`.
    pub policies: Vec<String>,
    /// The states, actions and outcomes that are learned from.
    pub learned: Transitions,
    /// What is held out, read in the same way.
    pub held_out: Transitions,
    /// Mean and deviation of the rewards, rates per window, that were taken out of them.
    pub rewards: [f64; 2],
    normalizer: Normalizer,
    /// Indices of the inputs that the network has, among those of an observation.
    active: Vec<usize>,
}

/// How a policy does what was recorded on the states that were held out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Likeness {
    /// Number of states that were held out.
    pub states: usize,
    /// Mean of ln π of what was done.
    pub log_likelihood: f64,
    /// Share of the states in which the policy's most likely action is what was done.
    pub agreement: f64,
}

/// Why recordings are of no use for offline learning.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The recordings cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// No input has this name.
    #[error(
        "inputs: no input is called `{name}`; `cc-trainer dataset` lists the names in features.json"
    )]
    Input {
        /// The name, as it stands in the settings.
        name: String,
    },
}

/// Reads recordings for a run with these settings. `scratch` is a directory for the sorted rows,
/// which are removed at the end.
///
/// # Errors
///
/// Returns an error when a setting is out of its range, the recordings cannot be read or hold the
/// decisions of a policy, or the settings name an input that does not exist.
pub fn gather(
    config: &OfflineConfig,
    from: &[PathBuf],
    scratch: &Path,
) -> Result<Material, GatherError> {
    config.validate()?;
    let recordings = Recordings::open(from)?.read_as(&config.policy, config.reading)?;
    let interface = recordings.interface().clone();
    let active = active(&features::names(&interface), &config.inputs)?;
    let partitions = recordings.partition(scratch, PARTITION, &|_| {})?;

    let mut fit = Fit::new(input_shapes(&interface));
    let mut rewards = Moments::default();
    each(&partitions, |trajectory| {
        if is_held_out(trajectory, config.held_out) {
            return;
        }
        for step in &trajectory.steps {
            fit.add(&step.observation, step.observed_reward);
            if let Some(outcome) = step.outcome {
                rewards.add(outcome.reward.into(), outcome.intervals(&interface));
            }
        }
    })?;
    let mut normalizer = fit.normalizer();
    for (index, input) in normalizer.observation.iter_mut().enumerate() {
        if !active.contains(&index) {
            input.gain = 0.0;
        }
    }
    // Networks of this kind are shown no reward.
    normalizer.reward.gain = 0.0;

    let actions = interface.actions.len();
    let none = || Transitions::new(active.len(), actions);
    let mut material = Material {
        learned: none(),
        held_out: none(),
        rewards: rewards.mean_and_deviation(),
        policies: recordings.policies().to_vec(),
        normalizer,
        active,
        interface,
    };
    each(&partitions, |trajectory| {
        material.add(config, trajectory);
    })?;
    Ok(material)
}

/// Calls `function` for each trajectory of the recordings.
fn each(
    partitions: &Partitions,
    mut function: impl FnMut(&Trajectory),
) -> Result<(), DatasetError> {
    for index in 0..partitions.len() {
        partitions.visit(index, |trajectory| {
            function(&trajectory);
            Ok(())
        })?;
    }
    Ok(())
}

/// Indices of the inputs that the settings name; all for an empty list.
fn active(names: &[String], wanted: &[String]) -> Result<Vec<usize>, GatherError> {
    // The observed reward is the last name, and no part of the observation.
    let names = &names[..names.len() - 1];
    let matches = |name: &str, wanted: &str| match wanted.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == wanted,
    };
    if let Some(unknown) = wanted
        .iter()
        .find(|wanted| !names.iter().any(|name| matches(name, wanted)))
    {
        return Err(GatherError::Input {
            name: unknown.clone(),
        });
    }
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| matches(name, wanted));
    let indices = names.iter().enumerate();
    Ok(indices
        .filter(|(_, name)| is_wanted(name))
        .map(|(index, _)| index)
        .collect())
}

impl Material {
    /// Adds the states of a trajectory to those that are learned from, or held out.
    fn add(&mut self, config: &OfflineConfig, trajectory: &Trajectory) {
        let outcomes = self.outcomes(config, trajectory);
        let Self {
            interface,
            normalizer,
            active,
            ..
        } = self;
        let into = match is_held_out(trajectory, config.held_out) {
            true => &mut self.held_out,
            false => &mut self.learned,
        };
        let change =
            |from: u32, to: u32| (f64::from(to.max(1)) / f64::from(from.max(1))).ln() as f32;
        let mut offers = vec![0.0; interface.actions.len()];
        for (step, outcome) in trajectory.steps.iter().zip(outcomes) {
            let state = state(normalizer, active, &step.observation);
            for (action, offer) in offers.iter_mut().enumerate() {
                let base = step.base_cwnd;
                *offer = change(base, interface.actions.apply(action, base, interface.cwnd));
            }
            let taken = Taken {
                action: step.action.into(),
                change: change(step.base_cwnd, step.cwnd),
            };
            into.push(&state, taken, &offers, outcome);
        }
    }

    /// What followed each decision of a trajectory. Rewards are in units of their deviation from
    /// their mean, and are divided by the length of the future, 1 / (1 − γ), so that values have
    /// the size of rewards whatever the discount is.
    fn outcomes(&self, config: &OfflineConfig, trajectory: &Trajectory) -> Vec<Option<Outcome>> {
        let gamma = config.effective_discount();
        let [mean, deviation] = self.rewards;
        let steps = &trajectory.steps;
        let follow = |first: usize| {
            let (mut reward, mut discount, mut ahead) = (0.0, 1.0, 0);
            // The state after the last decision is not there.
            while ahead < config.n_step && first + ahead + 1 < steps.len() {
                let Some(outcome) = steps[first + ahead].outcome else {
                    break;
                };
                let intervals = outcome.intervals(&self.interface);
                let rate = (f64::from(outcome.reward) - mean) / deviation;
                let length = discount::discounted_length(gamma, intervals);
                reward += discount * rate * length * (1.0 - gamma);
                discount *= discount::over(gamma, intervals);
                ahead += 1;
            }
            (ahead > 0).then_some(Outcome {
                reward: reward as f32,
                discount: discount as f32,
                ahead,
            })
        };
        (0..steps.len()).map(follow).collect()
    }

    /// What the network is shown of an observation: its inputs, transformed.
    ///
    /// # Panics
    ///
    /// Panics when the observation is shorter than those of the policy's interface.
    pub fn state(&self, observation: &[f32]) -> Vec<f32> {
        state(&self.normalizer, &self.active, observation)
    }

    /// How a policy does what was recorded on the states that were held out; `None` without any.
    pub fn likeness(&self, network: &LearnedNetwork) -> Option<Likeness> {
        let data = &self.held_out;
        if data.is_empty() {
            return None;
        }
        let states: Vec<f32> = (0..data.len())
            .flat_map(|index| data.state(index))
            .copied()
            .collect();
        let logits = network.logits(&states);
        let mut likeness = Likeness {
            states: data.len(),
            ..Likeness::default()
        };
        let share = 1.0 / data.len() as f64;
        for (index, logits) in logits.chunks(data.actions()).enumerate() {
            let action = data.taken(index).action;
            let log = crate::softmax::log_probability(logits, action);
            let largest = logits.iter().copied().fold(f32::MIN, f32::max);
            likeness.log_likelihood += share * f64::from(log);
            likeness.agreement += share * f64::from(u8::from(logits[action] >= largest));
        }
        Some(likeness)
    }

    /// The bytes of the policy file of a network that learned from this material. `provenance`
    /// describes the run.
    ///
    /// # Errors
    ///
    /// Returns an error when the network has another number of inputs, or a parameter is not
    /// finite.
    pub fn policy_file(
        &self,
        network: &LearnedNetwork,
        serving: ActionSelection,
        mut provenance: BTreeMap<String, String>,
    ) -> Result<Vec<u8>, ExportError> {
        if network.shape.observation != self.active.len() {
            return Err(ExportError::Size {
                what: "number of inputs",
                found: network.shape.observation,
                expected: self.active.len(),
            });
        }
        provenance.insert("recorded".to_owned(), self.policies.join(", "));
        // Recordings do not say on which links they were made.
        provenance.insert(PolicyMeta::TEST_SETS.to_owned(), "unknown".to_owned());
        let (shape, parameters) = widened(network, &self.active, self.interface.observation_len());
        let meta = policy_file::meta(POLICY, &shape, &self.interface, serving, provenance);
        policy_file::encode(&shape, &parameters, &self.normalizer, &meta, DESCRIPTION)
    }
}

/// The active ones of an observation's values, transformed.
fn state(normalizer: &Normalizer, active: &[usize], observation: &[f32]) -> Vec<f32> {
    let transformed = |&index: &usize| normalizer.observation[index].apply(observation[index]);
    active.iter().map(transformed).collect()
}

/// A network with all inputs of an observation, of which all but the active ones have weights of 0.
fn widened(network: &LearnedNetwork, active: &[usize], width: usize) -> (Shape, Vec<f32>) {
    let shape = Shape {
        observation: width,
        ..network.shape.clone()
    };
    let mut parameters = initialise(&shape, 0);
    let (from, to) = (
        ParameterLayout::of(&network.shape),
        ParameterLayout::of(&shape),
    );
    for (place, (old, new)) in from.arrays().zip(to.arrays()).enumerate() {
        let values = old.of(&network.parameters);
        let into = new.of_mut(&mut parameters);
        if place > 0 {
            into.copy_from_slice(values);
            continue;
        }
        // The first layer's weights: a row is an input.
        into.fill(0.0);
        for (row, &index) in values.chunks(old.cols).zip(active) {
            into[index * new.cols..][..new.cols].copy_from_slice(row);
        }
    }
    (shape, parameters)
}

/// Mean and deviation of rates, each with the time that it held.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    weight: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64, weight: f64) {
        if weight <= 0.0 {
            return;
        }
        self.weight += weight;
        let before = value - self.mean;
        self.mean += before * weight / self.weight;
        self.squares += weight * before * (value - self.mean);
    }

    fn mean_and_deviation(&self) -> [f64; 2] {
        let deviation = (self.squares / self.weight.max(f64::MIN_POSITIVE)).sqrt();
        [self.mean, deviation.max(LEAST_DEVIATION)]
    }
}
