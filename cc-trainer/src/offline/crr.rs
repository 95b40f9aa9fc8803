//! Critic-regularised regression: cloning of those recorded actions that a critic finds better than
//! what the policy does (Wang et al., "Critic Regularized Regression", arXiv 2006.15134, equations
//! 2 and 4).
//!
//! The critic learns the distribution of the return of each action, as quantiles (Dabney et al.,
//! "Distributional Reinforcement Learning with Quantile Regression", arXiv 1710.10044), under the
//! policy, and not under the recorded controls. The policy only ever learns actions that were
//! recorded, so that the critic's errors elsewhere cannot lead it there.

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{
    Diverged, LearnedNetwork, Loss, OfflineMethod,
    bc::imitate,
    config::{self, Filter},
    losses::{quantile_huber, softmax},
    network::{Network, row},
    transitions::Batch,
};

/// Largest weight of an action, so that no single one rules a batch.
const LARGEST_WEIGHT: f64 = 20.0;
/// Smallest unit of advantages, which keeps a batch without any advantage finite.
const LEAST_UNIT: f64 = 1e-6;

/// A policy and its critic, each with a copy from which targets are computed.
pub(super) struct CriticRegularised {
    settings: config::Crr,
    policy: Network,
    target_policy: Network,
    critic: Network,
    target_critic: Network,
    random: StdRng,
    updates: u64,
}

impl CriticRegularised {
    /// The critics have an output for each quantile of each action.
    pub(super) fn new(
        settings: config::Crr,
        [policy, target_policy]: [Network; 2],
        [critic, target_critic]: [Network; 2],
        seed: u64,
    ) -> Self {
        Self {
            settings,
            policy,
            target_policy,
            critic,
            target_critic,
            random: StdRng::seed_from_u64(seed),
            updates: 0,
        }
    }

    /// Samples of the return of each state's action: `[B, M]`.
    fn targets(&mut self, batch: &Batch) -> Vec<f64> {
        let (actions, quantiles) = (batch.actions, self.settings.quantiles);
        let logits = &self.target_policy.forward(&batch.next).logits;
        let values = &self.target_critic.forward(&batch.next).logits;
        let mut targets = Vec::with_capacity(batch.len() * quantiles);
        for (at, outcome) in batch.outcomes.iter().enumerate() {
            let policy = softmax(&row(logits, actions, at), 1.0);
            let next = draw(&policy, self.random.random());
            let of_action = row(values, quantiles, at * actions + next);
            let discount = f64::from(outcome.discount);
            let reward = f64::from(outcome.reward);
            targets.extend(of_action.iter().map(|value| reward + discount * value));
        }
        targets
    }

    /// Moves the critic towards the targets. Returns the mean loss, and the advantage of each
    /// state's action over the policy's, as it was before.
    fn learn_values(
        &mut self,
        batch: &Batch,
        targets: &[f64],
        left: f32,
    ) -> Result<(f64, Vec<f64>), Diverged> {
        let (count, actions) = (batch.len(), batch.actions);
        let quantiles = self.settings.quantiles;
        let logits = &self.policy.forward(&batch.states).logits;
        let values = &self.critic.forward(&batch.states).logits;
        let mut derivative = vec![0.0; count * actions * quantiles];
        let (mut loss, mut advantages) = (0.0, Vec::with_capacity(count));
        let scale = 1.0 / count as f64;
        for at in 0..count {
            let action = batch.taken[at].action;
            let mean = |action: usize| {
                let of_action = row(values, quantiles, at * actions + action);
                of_action.iter().sum::<f64>() / quantiles as f64
            };
            let policy = softmax(&row(logits, actions, at), 1.0);
            let expected: f64 = policy.iter().enumerate().map(|(a, p)| p * mean(a)).sum();
            advantages.push(mean(action) - expected);
            let place = at * actions + action;
            let own = row(values, quantiles, place);
            let targets = &targets[at * quantiles..][..quantiles];
            let into = &mut derivative[place * quantiles..][..quantiles];
            loss += scale * quantile_huber(&own, targets, scale, into);
        }
        self.critic
            .learn(&batch.states, &derivative, &vec![0.0; count], left)?;
        Ok((loss, advantages))
    }

    /// The weight of each action in the policy's regression.
    fn weights(&self, advantages: &[f64]) -> Vec<f64> {
        let squares = advantages.iter().map(|a| a * a).sum::<f64>();
        let unit = (squares / advantages.len().max(1) as f64).sqrt();
        let beta = self.settings.beta * unit.max(LEAST_UNIT);
        let weight = |advantage: f64| match self.settings.filter {
            Filter::Binary => f64::from(u8::from(advantage > 0.0)),
            Filter::Exponential => (advantage / beta).min(LARGEST_WEIGHT.ln()).exp(),
        };
        advantages
            .iter()
            .map(|&advantage| weight(advantage))
            .collect()
    }
}

impl OfflineMethod for CriticRegularised {
    fn update(&mut self, batch: &Batch, left: f32) -> Result<Loss, Diverged> {
        if self.updates.is_multiple_of(self.settings.target_period) {
            self.target_policy.copy(&self.policy);
            self.target_critic.copy(&self.critic);
        }
        self.updates += 1;
        let targets = self.targets(batch);
        let (value, advantages) = self.learn_values(batch, &targets, left)?;
        let weights = self.weights(&advantages);
        let policy = imitate(&mut self.policy, batch, &weights, left)?;
        Ok(Loss { policy, value })
    }

    fn policy(&self) -> LearnedNetwork {
        LearnedNetwork::of(&self.policy)
    }
}

/// The outcome of a distribution whose part of the unit interval holds `uniform`.
fn draw(distribution: &[f64], uniform: f64) -> usize {
    let mut left = uniform;
    for (index, probability) in distribution.iter().enumerate() {
        left -= probability;
        if left < 0.0 {
            return index;
        }
    }
    // Rounding alone leads here.
    distribution.len() - 1
}
