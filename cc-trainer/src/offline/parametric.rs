//! Q-learning in the parametric form: the change of the cwnd is an input of the network, whose one
//! output is the value. One network then serves every list of actions, and learns from what a
//! control really did rather than from the nearest action of a list.
//!
//! The best of many actions is the one that is overrated most, and which one that is differs from
//! seed to seed. Several networks of values with different initial parameters therefore learn from
//! the same target, their mean ("Averaged-DQN", Anschel et al., arXiv 1611.01929, section 5).
//!
//! A policy file has an output per action, so that a policy is learned beside the values: the
//! softmax of their mean over its own list's actions, in the recorded states.

use super::{
    Diverged, LearnedNetwork, Loss, OfflineMethod,
    config::Parametric,
    losses::{conservative, cross_entropy, huber, largest, softmax},
    network::{Network, row},
    transitions::Batch,
};

/// Changes of the cwnd have this many units in the network's input: doubling is 2.8.
const CHANGE: f32 = 4.0;

/// Values of state and change, each with a copy from which targets are computed, and the policy.
pub(super) struct ParametricQ {
    settings: Parametric,
    /// The ensemble: each network of values with its copy.
    values: Vec<[Network; 2]>,
    policy: Network,
    updates: u64,
}

impl ParametricQ {
    /// The networks of values have one input more than a state has values, and one output.
    pub(super) fn new(settings: Parametric, values: Vec<[Network; 2]>, policy: Network) -> Self {
        Self {
            settings,
            values,
            policy,
            updates: 0,
        }
    }

    /// The discounted return of each state's action, by the mean value of the best that follows.
    fn targets(&mut self, batch: &Batch) -> Vec<f64> {
        let actions = batch.actions;
        let inputs = pairs(&batch.next, batch.width, &batch.next_offers, actions);
        let chosen = self.mean(&inputs, |[values, _]| values);
        let values = self.mean(&inputs, |[_, copy]| copy);
        let outcomes = batch.outcomes.iter().enumerate();
        outcomes
            .map(|(at, outcome)| {
                let best = at * actions + largest(&chosen[at * actions..][..actions]);
                f64::from(outcome.reward) + f64::from(outcome.discount) * values[best]
            })
            .collect()
    }

    /// The mean over the ensemble of the outputs of one of each pair of networks.
    fn mean(&mut self, inputs: &[f32], of: fn(&mut [Network; 2]) -> &mut Network) -> Vec<f64> {
        let share = 1.0 / self.values.len() as f64;
        let mut mean = Vec::new();
        for pair in &mut self.values {
            let values = &of(pair).forward(inputs).logits;
            mean.resize(values.len(), 0.0);
            for (mean, &value) in mean.iter_mut().zip(values) {
                *mean += share * f64::from(value);
            }
        }
        mean
    }
}

impl OfflineMethod for ParametricQ {
    fn update(&mut self, batch: &Batch, left: f32) -> Result<Loss, Diverged> {
        if self.updates.is_multiple_of(self.settings.target_period) {
            for [values, copy] in &mut self.values {
                copy.copy(values);
            }
        }
        self.updates += 1;
        let targets = self.targets(batch);
        let (count, actions) = (batch.len(), batch.actions);
        let scale = 1.0 / count as f64;
        // What was done, and then what the policy could do.
        let mut changes = Vec::with_capacity(count * (actions + 1));
        for (taken, offers) in batch.taken.iter().zip(batch.offers.chunks(actions)) {
            changes.push(taken.change);
            changes.extend_from_slice(offers);
        }
        let inputs = pairs(&batch.states, batch.width, &changes, actions + 1);
        let share = 1.0 / self.values.len() as f64;
        let mut loss = 0.0;
        let mut means = vec![0.0; changes.len()];
        let none = vec![0.0; changes.len()];
        for [network, _] in &mut self.values {
            let values = &network.forward(&inputs).logits;
            let mut derivative = vec![0.0; changes.len()];
            for (at, target) in targets.iter().enumerate() {
                let all = row(values, actions + 1, at);
                let into = &mut derivative[at * (actions + 1)..][..actions + 1];
                loss += share * scale * huber(all[0], *target, scale, &mut into[0]);
                if self.settings.pessimism > 0.0 {
                    conservative(&all, 0, scale * self.settings.pessimism, into);
                }
                let means = &mut means[at * (actions + 1)..][..actions + 1];
                for (mean, value) in means.iter_mut().zip(all) {
                    *mean += share * value;
                }
            }
            network.learn(&inputs, &derivative, &none, left)?;
        }

        let logits = &self.policy.forward(&batch.states).logits;
        let mut derivative = vec![0.0; count * actions];
        let mut policy = 0.0;
        for at in 0..count {
            let values = &means[at * (actions + 1)..][1..actions + 1];
            let target = softmax(values, self.settings.temperature);
            let into = &mut derivative[at * actions..][..actions];
            policy += scale * cross_entropy(&row(logits, actions, at), &target, scale, into);
        }
        self.policy
            .learn(&batch.states, &derivative, &vec![0.0; count], left)?;
        Ok(Loss {
            policy,
            value: loss,
        })
    }

    fn policy(&self) -> LearnedNetwork {
        LearnedNetwork::of(&self.policy)
    }
}

/// Each state with each of its `per_state` changes: `[B · per_state, D + 1]`.
fn pairs(states: &[f32], width: usize, changes: &[f32], per_state: usize) -> Vec<f32> {
    let mut inputs = Vec::with_capacity(changes.len() * (width + 1));
    for (state, changes) in states.chunks(width).zip(changes.chunks(per_state)) {
        for change in changes {
            inputs.extend_from_slice(state);
            inputs.push(CHANGE * change);
        }
    }
    inputs
}
