//! Behaviour cloning: the policy becomes the mean of those that were recorded. It knows of no
//! reward, and is what the other methods have to be better than.

use super::{
    Diverged, LearnedNetwork, Loss, OfflineMethod,
    losses::cross_entropy,
    network::{Network, row},
    transitions::Batch,
};

/// A policy that imitates what was recorded, whatever its reward.
pub(super) struct BehaviourCloning {
    policy: Network,
}

impl BehaviourCloning {
    pub(super) fn new(policy: Network) -> Self {
        Self { policy }
    }
}

impl OfflineMethod for BehaviourCloning {
    fn update(&mut self, batch: &Batch, left: f32) -> Result<Loss, Diverged> {
        let weights = vec![1.0; batch.len()];
        let policy = imitate(&mut self.policy, batch, &weights, left)?;
        Ok(Loss { policy, value: 0.0 })
    }

    fn policy(&self) -> LearnedNetwork {
        LearnedNetwork::of(&self.policy)
    }
}

/// Moves a policy towards the batch's actions, each with its weight. Returns the mean of
/// −ln π of the actions, without weights.
pub(super) fn imitate(
    policy: &mut Network,
    batch: &Batch,
    weights: &[f64],
    left: f32,
) -> Result<f64, Diverged> {
    let (count, actions) = (batch.len(), batch.actions);
    let scale = 1.0 / count as f64;
    let mut derivative = vec![0.0; count * actions];
    let mut loss = 0.0;
    let logits = &policy.forward(&batch.states).logits;
    for (at, weight) in weights.iter().enumerate() {
        let mut target = vec![0.0; actions];
        target[batch.taken[at].action] = 1.0;
        let into = &mut derivative[at * actions..][..actions];
        loss += scale * cross_entropy(&row(logits, actions, at), &target, weight * scale, into);
    }
    policy.learn(&batch.states, &derivative, &vec![0.0; count], left)?;
    Ok(loss)
}
