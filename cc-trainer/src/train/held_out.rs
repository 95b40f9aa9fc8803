//! The policy on recorded flows that nothing is learned from, after each pass over the others.
//!
//! Two figures tell how well it does there. The log-likelihood of the recorded actions says how
//! near the policy is to the recorded one: cloning raises it until it begins to learn the training
//! flows by heart. The estimate says whether the policy is *better*: what it would have earned
//! until [`HORIZON`] decisions after a recorded state, by weighing what was earned with the ratio
//! of the probabilities of the actions, normalised by the sum of the weights (per-decision
//! importance sampling; Precup, Sutton, Singh, "Eligibility Traces for Off-Policy Policy
//! Evaluation", ICML 2000). It is a ratio of sums over time, so that silence counts with its
//! length. The lower end of its interval is what decides: a policy that the flows say little about
//! has a wide one. `cc-trainer ope` has the estimators that a decision about deployment needs.

use std::{collections::BTreeMap, sync::Arc};

use cc_core::interface::Interface;
use serde::{Deserialize, Serialize};

use super::{config::Config, environments::OpenError, source::Source};
use crate::{
    dataset::{Trajectory, TrajectoryStep},
    environment::recorded::{RecordedConfigError, cluster},
    model::{Inference, Outputs, Sequences, Shape, Weights},
    normalise::Normalizer,
    softmax,
};

/// Number of decisions over which the policy is followed from a recorded state.
pub const HORIZON: usize = 10;
/// Number of decisions that are held in memory, approximately.
const MOST: usize = 20_000;
/// Number of flows whose decisions form one pass of the network.
const BATCH: usize = 64;
/// Deviations from an estimate to the end of its 95 % interval.
const DEVIATIONS: f64 = 1.96;

/// The policy on the flows that are held out, after a pass over the others: a point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutPoint {
    /// Number of passes over the flows that are learned from.
    pub epoch: u64,
    /// Number of environment steps learnt from.
    pub steps: u64,
    /// Number of decisions that are held out.
    pub decisions: u64,
    /// Mean of ln π(a|x) of the recorded actions, nats.
    pub log_likelihood: f64,
    /// What the policy would earn; `None` where no probabilities were recorded, or fewer than two
    /// paths, or flows, are long enough.
    pub estimate: Option<HeldOutEstimate>,
    /// What is compared between epochs, the larger the better: the lower end of the estimate's
    /// difference, or the log-likelihood where recorded actions are cloned throughout. `None` where
    /// neither says how good the policy is.
    pub score: Option<f64>,
}

/// What a policy would earn per interval between two decisions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutEstimate {
    /// What was earned by the recorded policy.
    pub recorded: f64,
    /// What this policy would have earned.
    pub candidate: f64,
    /// The lower end of the 95 % interval of the difference.
    pub low: f64,
    /// Effective sample size in paths, or flows without one: (Σw)²/Σw² of their weights.
    pub effective: f64,
}

/// Flows that nothing is learned from.
pub(super) struct HeldOut {
    trajectories: Vec<Trajectory>,
    interface: Interface,
    /// Number of environment steps of a pass over the other flows.
    pub(super) steps_per_epoch: u64,
    /// Number of points without a better score after which training ends; 0 for never.
    pub(super) patience: u64,
    /// Environment steps until which recorded actions are cloned, so that nothing gets better.
    pub(super) cloning_steps: f64,
    /// Whether recorded actions are cloned throughout.
    pub(super) cloning: bool,
    temperature: f32,
    /// Whether actions with the same effect count as one.
    merged: bool,
}

impl HeldOut {
    /// The flows that the configuration holds out; `None` where there are none.
    pub(super) fn of(
        source: &Source,
        config: &Config,
        normalizer: Option<&Arc<Normalizer>>,
    ) -> Result<Option<Self>, OpenError> {
        let (Some(world), Some(settings), Some(normalizer)) =
            (source.recorded(), config.environment.recorded(), normalizer)
        else {
            return Ok(None);
        };
        let trajectories = world
            .held_out(MOST, normalizer)
            .map_err(RecordedConfigError::from)?;
        if trajectories.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            trajectories,
            interface: world.interface().clone(),
            steps_per_epoch: world.steps_per_epoch(),
            patience: settings.patience,
            cloning_steps: f64::from(config.learner.cloning) * config.decay_steps() as f64,
            cloning: config.learner.cloning >= 1.0,
            temperature: config.learner.policy_temperature(),
            merged: config.learner.merge_actions,
        }))
    }

    /// The figures of a network's policy.
    pub(super) fn point(&self, shape: &Shape, parameters: &[f32]) -> HeldOutPoint {
        let weights = Weights::new(shape, parameters);
        let mut inference = Inference::new(shape);
        let (mut likelihood, mut decisions) = (0.0, 0_u64);
        let mut clusters: BTreeMap<u64, ClusterSums> = BTreeMap::new();
        for chunk in self.trajectories.chunks(BATCH) {
            for (trajectory, logs) in chunk.iter().zip(self.logs(&mut inference, &weights, chunk)) {
                likelihood += logs.iter().sum::<f64>();
                decisions += logs.len() as u64;
                let sums = ClusterSums::of(trajectory, &logs, &self.interface, self.merged);
                clusters.entry(cluster(trajectory)).or_default().add(&sums);
            }
        }
        let log_likelihood = likelihood / decisions.max(1) as f64;
        let clusters: Vec<_> = clusters.into_values().collect();
        let estimate = estimate(&clusters);
        HeldOutPoint {
            epoch: 0,
            steps: 0,
            decisions,
            log_likelihood,
            estimate,
            score: match self.cloning {
                true => Some(log_likelihood),
                false => estimate.map(|estimate| estimate.low),
            },
        }
    }

    /// ln π(a|x) of every decision of some trajectories.
    fn logs(
        &self,
        inference: &mut Inference,
        weights: &Weights,
        trajectories: &[Trajectory],
    ) -> Vec<Vec<f64>> {
        let shape = weights.shape();
        let (state, actions) = (shape.state(), shape.actions);
        let longest = trajectories.iter().map(|own| own.steps.len()).max();
        let mut logs = vec![Vec::new(); trajectories.len()];
        // The LSTM's states of the trajectories.
        let mut memory = vec![(vec![0.0; state], vec![0.0; state]); trajectories.len()];
        let (mut outputs, mut allowed) = (Outputs::default(), Vec::new());
        for at in 0..longest.unwrap_or(0) {
            let present: Vec<usize> = (0..trajectories.len())
                .filter(|&own| at < trajectories[own].steps.len())
                .collect();
            let step = |own: usize| &trajectories[own].steps[at];
            let gather = |of: &dyn Fn(usize) -> Vec<f32>| -> Vec<f32> {
                present.iter().flat_map(|&own| of(own)).collect()
            };
            let input = Sequences {
                steps: 1,
                batch_size: present.len(),
                observation: &gather(&|own| step(own).observation.clone()),
                reward: &gather(&|own| vec![step(own).observed_reward]),
                not_done: &vec![f32::from(u8::from(at > 0)); present.len()],
                privileged: &[],
                h: &gather(&|own| memory[own].0.clone()),
                c: &gather(&|own| memory[own].1.clone()),
            };
            inference.forward(weights, &input, &mut outputs);
            softmax::at_temperature(&mut outputs.logits, self.temperature);
            for (index, &own) in present.iter().enumerate() {
                let logits = &mut outputs.logits[index * actions..][..actions];
                let step = step(own);
                self.interface.allowed(step.base_cwnd, &mut allowed);
                softmax::mask(logits, &allowed);
                let action = usize::from(step.action);
                let log = match effects(step, &self.interface, self.merged) {
                    Some(effects) => softmax::log_probability_of_effect(logits, &effects, action),
                    None => softmax::log_probability(logits, action),
                };
                logs[own].push(f64::from(log));
                memory[own]
                    .0
                    .copy_from_slice(&outputs.h[index * state..][..state]);
                memory[own]
                    .1
                    .copy_from_slice(&outputs.c[index * state..][..state]);
            }
        }
        logs
    }
}

/// For each action in a step, the first one with the same effect; `None` where effects are told
/// apart, or not all recorded probabilities are known. With masks an action's probability is that
/// of its effect, so that the others need not be known.
fn effects(step: &TrajectoryStep, interface: &Interface, merged: bool) -> Option<Vec<u8>> {
    if !interface.mask_actions {
        step.probabilities.as_ref().filter(|_| merged)?;
    }
    let mut effects = Vec::new();
    let actions = &interface.actions;
    actions.effects(step.base_cwnd, interface.cwnd, &mut effects);
    Some(effects)
}

/// ln μ(a|x) of a recorded action, or of all with the same effect; `None` for a probability that is
/// not known, or 0.
fn log_behaviour(step: &TrajectoryStep, interface: &Interface, merged: bool) -> Option<f64> {
    let probability = match (effects(step, interface, merged), &step.probabilities) {
        (Some(effects), Some(all)) => {
            let own = effects.get(usize::from(step.action))?;
            let alike = effects.iter().zip(all).filter(|(effect, _)| *effect == own);
            alike.map(|(_, share)| f64::from(*share)).sum()
        }
        _ => f64::from(step.probability?),
    };
    (probability > 0.0).then(|| probability.ln())
}

/// Sums over the sub-trajectories of the flows on one path, or of one flow. Times are in intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ClusterSums {
    /// Time, and what was earned in it.
    recorded: (f64, f64),
    /// The same, weighted by the ratios of the probabilities until then.
    weighted: (f64, f64),
}

impl ClusterSums {
    /// The sums of a trajectory, given ln π(a|x) of its decisions. Sub-trajectories in which a
    /// probability or an outcome is not known are left out, and so is what remains at the end.
    fn of(trajectory: &Trajectory, logs: &[f64], interface: &Interface, merged: bool) -> Self {
        let mut sums = Self::default();
        let known = |(step, log): (&TrajectoryStep, &f64)| {
            let outcome = step.outcome?;
            let log_ratio = log - log_behaviour(step, interface, merged)?;
            let intervals = outcome.intervals(interface);
            Some((log_ratio, intervals, f64::from(outcome.reward)))
        };
        let steps: Vec<_> = trajectory.steps.iter().zip(logs).map(known).collect();
        for stretch in steps.chunks_exact(HORIZON) {
            let Some(stretch) = stretch.iter().copied().collect::<Option<Vec<_>>>() else {
                continue;
            };
            let mut log_weight = 0.0;
            for (log_ratio, intervals, reward) in stretch {
                log_weight += log_ratio;
                let weight = f64::min(log_weight, 60.0).exp();
                sums.recorded.0 += intervals;
                sums.recorded.1 += intervals * reward;
                sums.weighted.0 += weight * intervals;
                sums.weighted.1 += weight * intervals * reward;
            }
        }
        sums
    }

    fn add(&mut self, other: &Self) {
        for (sum, other) in [
            (&mut self.recorded, other.recorded),
            (&mut self.weighted, other.weighted),
        ] {
            sum.0 += other.0;
            sum.1 += other.1;
        }
    }
}

/// The estimate from the sums of independent clusters; `None` for fewer than two. The deviation of
/// a ratio of sums is that of its linearisation.
fn estimate(clusters: &[ClusterSums]) -> Option<HeldOutEstimate> {
    let clusters: Vec<_> = clusters.iter().filter(|own| own.recorded.0 > 0.0).collect();
    let mut all = ClusterSums::default();
    clusters.iter().for_each(|own| all.add(own));
    if clusters.len() < 2 || all.weighted.0 <= 0.0 {
        return None;
    }
    let (recorded, candidate) = (
        all.recorded.1 / all.recorded.0,
        all.weighted.1 / all.weighted.0,
    );
    let deviation = |own: &&ClusterSums| {
        let weighted = (own.weighted.1 - candidate * own.weighted.0) / all.weighted.0;
        weighted - (own.recorded.1 - recorded * own.recorded.0) / all.recorded.0
    };
    let count = clusters.len() as f64;
    let squares: f64 = clusters.iter().map(|own| deviation(own).powi(2)).sum();
    let error = (squares * count / (count - 1.0)).sqrt();
    let weights: f64 = clusters.iter().map(|own| own.weighted.0.powi(2)).sum();
    Some(HeldOutEstimate {
        recorded,
        candidate,
        low: candidate - recorded - DEVIATIONS * error,
        effective: all.weighted.0.powi(2) / weights,
    })
}

/// The point with the best score, the first of equal ones.
pub(super) fn best(points: &[HeldOutPoint]) -> Option<&HeldOutPoint> {
    let scored = points.iter().filter(|point| point.score.is_some());
    scored.reduce(|best, point| match point.score > best.score {
        true => point,
        false => best,
    })
}

/// The points as the text of `held_out.csv`, with a line of names before them.
pub(super) fn csv(points: &[HeldOutPoint]) -> String {
    let mut text =
        "epoch,steps,decisions,log_likelihood,recorded,candidate,low,effective,score\n".to_owned();
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for point in points {
        let figure = |of: fn(&HeldOutEstimate) -> f64| or_empty(point.estimate.as_ref().map(of));
        text += &format!(
            "{},{},{},{},{},{},{},{},{}\n",
            point.epoch,
            point.steps,
            point.decisions,
            point.log_likelihood,
            figure(|estimate| estimate.recorded),
            figure(|estimate| estimate.candidate),
            figure(|estimate| estimate.low),
            figure(|estimate| estimate.effective),
            or_empty(point.score),
        );
    }
    text
}

#[cfg(test)]
mod tests;
