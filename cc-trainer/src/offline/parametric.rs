//! Q-learning in the parametric form: the change of the cwnd is an input of the network, whose one
//! output is the value. One network then serves every list of actions, and learns from what a
//! control really did rather than from the nearest action of a list.
//!
//! A policy file has an output per action, so that a policy is learned beside the values: the
//! softmax of the values of its own list's actions, in the recorded states.

use super::{
    Diverged, LearnedNetwork, Loss, OfflineMethod,
    config::Parametric,
    losses::{conservative, cross_entropy, huber, largest, softmax},
    network::{Network, row},
    transitions::Batch,
};

/// Changes of the cwnd have this many units in the network's input: doubling is 2.8.
const CHANGE: f32 = 4.0;

/// A value of state and change, with a copy from which targets are computed, and the policy.
pub(super) struct ParametricQ {
    settings: Parametric,
    values: Network,
    target: Network,
    policy: Network,
    updates: u64,
}

impl ParametricQ {
    /// The networks of values have one input more than a state has values, and one output.
    pub(super) fn new(
        settings: Parametric,
        [values, target]: [Network; 2],
        policy: Network,
    ) -> Self {
        Self {
            settings,
            values,
            target,
            policy,
            updates: 0,
        }
    }

    fn targets(&mut self, batch: &Batch) -> Vec<f64> {
        let actions = batch.actions;
        let inputs = pairs(&batch.next, batch.width, &batch.next_offers, actions);
        let chosen = &self.values.forward(&inputs).logits;
        let chosen: Vec<usize> = (0..batch.len())
            .map(|at| largest(&row(chosen, actions, at)))
            .collect();
        let values = &self.target.forward(&inputs).logits;
        let outcomes = batch.outcomes.iter().zip(chosen).enumerate();
        outcomes
            .map(|(at, (outcome, chosen))| {
                let value = f64::from(values[at * actions + chosen]);
                f64::from(outcome.reward) + f64::from(outcome.discount) * value
            })
            .collect()
    }
}

impl OfflineMethod for ParametricQ {
    fn update(&mut self, batch: &Batch, left: f32) -> Result<Loss, Diverged> {
        if self.updates.is_multiple_of(self.settings.target_period) {
            self.target.copy(&self.values);
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
        let values = &self.values.forward(&inputs).logits;
        let mut derivative = vec![0.0; values.len()];
        let (mut loss, mut wanted) = (0.0, Vec::with_capacity(count * actions));
        for (at, target) in targets.iter().enumerate() {
            let all = row(values, actions + 1, at);
            let into = &mut derivative[at * (actions + 1)..][..actions + 1];
            loss += scale * huber(all[0], *target, scale, &mut into[0]);
            if self.settings.pessimism > 0.0 {
                conservative(&all, 0, scale * self.settings.pessimism, into);
            }
            wanted.extend(softmax(&all[1..], self.settings.temperature));
        }
        let none = vec![0.0; values.len()];
        self.values.learn(&inputs, &derivative, &none, left)?;

        let logits = &self.policy.forward(&batch.states).logits;
        let mut derivative = vec![0.0; count * actions];
        let mut policy = 0.0;
        for at in 0..count {
            let target = &wanted[at * actions..][..actions];
            let into = &mut derivative[at * actions..][..actions];
            policy += scale * cross_entropy(&row(logits, actions, at), target, scale, into);
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
