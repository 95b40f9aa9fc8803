//! Q-learning from recorded transitions: the value of each action if the best ones follow.
//!
//! The action that follows is chosen by one network and valued by another ("Deep Reinforcement
//! Learning with Double Q-learning", arXiv 1509.06461). A value is a baseline plus the action's
//! advantage over the mean one ("Dueling Network Architectures for Deep Reinforcement Learning",
//! arXiv 1511.06581, equation 9). A maximum finds the actions that are overrated because nobody
//! ever took them; the conservative regulariser lowers their values ("Conservative Q-Learning for
//! Offline Reinforcement Learning", arXiv 2006.04779, equation 4).
//!
//! With a discount of 0 nothing follows, and this is the regression of the next outcome on state
//! and action: the myopic baseline, which shows what looking further ahead adds.

use super::{
    Diverged, LearnedNetwork, Loss, OfflineMethod,
    config::Dqn,
    losses::{conservative, huber, largest},
    network::{Network, row},
    transitions::Batch,
};
use crate::model::ParameterLayout;

/// Values of actions, with a copy from which targets are computed.
pub(super) struct QLearning {
    settings: Dqn,
    values: Network,
    target: Network,
    updates: u64,
}

impl QLearning {
    pub(super) fn new(settings: Dqn, [values, target]: [Network; 2]) -> Self {
        Self {
            settings,
            values,
            target,
            updates: 0,
        }
    }

    /// The discounted return of each state's action, by the values of the best that follows.
    fn targets(&mut self, batch: &Batch) -> Vec<f64> {
        if batch.outcomes.iter().all(|outcome| outcome.discount == 0.0) {
            let outcomes = batch.outcomes.iter();
            return outcomes.map(|outcome| outcome.reward.into()).collect();
        }
        let actions = batch.actions;
        let chosen = &self.values.forward(&batch.next).logits;
        let chosen: Vec<usize> = (0..batch.len())
            .map(|at| largest(&row(chosen, actions, at)))
            .collect();
        let outputs = self.target.forward(&batch.next);
        let pairs = batch.outcomes.iter().zip(chosen).enumerate();
        pairs
            .map(|(at, (outcome, chosen))| {
                let baseline = f64::from(outputs.baseline[at]);
                let values = dueling(&row(&outputs.logits, actions, at), baseline);
                f64::from(outcome.reward) + f64::from(outcome.discount) * values[chosen]
            })
            .collect()
    }
}

impl OfflineMethod for QLearning {
    fn update(&mut self, batch: &Batch, left: f32) -> Result<Loss, Diverged> {
        if self.updates.is_multiple_of(self.settings.target_period) {
            self.target.copy(&self.values);
        }
        self.updates += 1;
        let targets = self.targets(batch);
        let (count, actions) = (batch.len(), batch.actions);
        let scale = 1.0 / count as f64;
        let outputs = self.values.forward(&batch.states);
        let mut d_advantages = vec![0.0; count * actions];
        let mut d_baseline = vec![0.0; count];
        let mut loss = 0.0;
        for (at, target) in targets.iter().enumerate() {
            let baseline = f64::from(outputs.baseline[at]);
            let values = dueling(&row(&outputs.logits, actions, at), baseline);
            let taken = batch.taken[at].action;
            let mut d_values = vec![0.0; actions];
            loss += scale * huber(values[taken], *target, scale, &mut d_values[taken]);
            let pessimism = self.settings.pessimism;
            if pessimism > 0.0 {
                conservative(&values, taken, scale * pessimism, &mut d_values);
            }
            let sum: f64 = d_values.iter().sum();
            d_baseline[at] = sum;
            let into = &mut d_advantages[at * actions..][..actions];
            for (into, d_value) in into.iter_mut().zip(&d_values) {
                *into = d_value - sum / actions as f64;
            }
        }
        self.values
            .learn(&batch.states, &d_advantages, &d_baseline, left)?;
        Ok(Loss {
            policy: 0.0,
            value: loss,
        })
    }

    /// The advantages over the temperature are the logits: greedy serving takes the best action.
    fn policy(&self) -> LearnedNetwork {
        let mut learned = LearnedNetwork::of(&self.values);
        let head = ParameterLayout::of(&learned.shape).policy;
        for array in [&head.weights, &head.bias] {
            let values = array.of_mut(&mut learned.parameters);
            let temperature = self.settings.temperature as f32;
            values.iter_mut().for_each(|value| *value /= temperature);
        }
        learned
    }
}

/// The values of a dueling network: the baseline, and each advantage over the mean one.
fn dueling(advantages: &[f64], baseline: f64) -> Vec<f64> {
    let mean = advantages.iter().sum::<f64>() / advantages.len() as f64;
    let value = |advantage: &f64| baseline + advantage - mean;
    advantages.iter().map(value).collect()
}
