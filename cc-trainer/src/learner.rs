//! The learner: updates of the network from batches of rollouts, by IMPALA's actor-critic loss.
//!
//! Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
//! Architectures" (arXiv 1802.01561), section 4.2. [`Learner::update`] is the algorithm; V-trace is
//! in [`crate::vtrace`], the network in [`crate::model`].

mod batch;
mod metrics;
mod recorded;
pub mod reward;
mod settings;

use self::{batch::Batch, metrics::StepTerms, recorded::Weighting, reward::RewardStatistics};
pub use self::{
    metrics::{TaskErrors, UpdateMetrics},
    settings::{Clipping, LearnerSettings, Normalisation, Reduction},
};
use crate::{
    model::{Device, DeviceFailure, Outputs, StepError},
    rollout::{Origin, Rollout},
    softmax::{self, log_probability, log_sum_exp},
    vtrace::{Targets, Trajectories},
};

/// Updates a network from rollouts.
pub struct Learner {
    device: Box<dyn Device>,
    settings: LearnerSettings,
    rewards: RewardStatistics,
    updates: u64,
    // Memory that is kept between updates.
    batch: Batch,
    outputs: Outputs,
    targets: Targets,
    d_logits: Vec<f32>,
    d_baseline: Vec<f32>,
}

impl Learner {
    /// A learner of the network on `device`, whose parameters and moments are set already.
    /// `updates` and `rewards` are the number of updates and the reward statistics from before.
    pub fn new(
        device: Box<dyn Device>,
        settings: LearnerSettings,
        rewards: RewardStatistics,
        updates: u64,
    ) -> Self {
        Self {
            device,
            settings,
            rewards,
            updates,
            batch: Batch::default(),
            outputs: Outputs::default(),
            targets: Targets::default(),
            d_logits: Vec::new(),
            d_baseline: Vec::new(),
        }
    }

    /// Number of updates, including those from before this learner.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The device that holds the network.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The statistics that rewards are normalised with.
    pub fn rewards(&self) -> &RewardStatistics {
        &self.rewards
    }

    /// Makes one update. `done` is the position on the schedules of learning rate and entropy cost:
    /// 0 at their start, 1 at their end.
    ///
    /// # Errors
    ///
    /// Returns [`UpdateError::Diverged`] when the loss or its gradient is not finite; the
    /// parameters are unchanged then. After [`UpdateError::Device`] the learner is of no more use.
    ///
    /// # Panics
    ///
    /// Panics if a rollout does not fit the network, or if its length is not
    /// [`LearnerSettings::unroll`] + 1 steps.
    pub fn update(
        &mut self,
        rollouts: &[Rollout],
        done: f64,
    ) -> Result<UpdateMetrics, UpdateError> {
        let settings = &self.settings;
        let (steps, batch_size) = (settings.unroll, rollouts.len());
        let count = steps * batch_size;
        let actions = self.device.shape().actions;
        let state = self.device.shape().state();

        // Logits and values of T + 1 steps.
        self.batch.gather(rollouts, steps + 1);
        self.batch
            .gather_rewards(rollouts, settings, &mut self.rewards);
        let input = self.batch.sequences(steps + 1, batch_size, state);
        self.device.forward(&input, &mut self.outputs)?;
        // From here on, logits are those of the policy π = softmax(logits / T).
        let temperature = settings.policy_temperature();
        softmax::at_temperature(&mut self.outputs.logits, temperature);

        // ln π(a|x) of the learner's policy, and ln ρ = ln π(a|x) − ln μ(a|x) against the behaviour
        // policy. Where μ is unknown ρ is 1: the values are then the behaviour policy's.
        let (batch, outputs) = (&self.batch, &self.outputs);
        let of_action = |logits: &[f32], at: usize| {
            log_probability(&logits[at * actions..][..actions], batch.action[at])
        };
        let log_pi: Vec<f32> = (0..count)
            .map(|at| of_action(&outputs.logits, at))
            .collect();
        let log_rho: Vec<f32> = (0..count)
            .map(|at| match batch.origin[at] {
                Origin::Observed => 0.0,
                _ => log_pi[at] - of_action(&batch.logits, at),
            })
            .collect();
        self.targets.compute(
            &Trajectories {
                batch_size,
                log_rho: &log_rho,
                reward: &batch.reward,
                discount: &batch.discount,
                lambda: &batch.lambda,
                known: &batch.known,
                value: &outputs.baseline,
            },
            &settings.clips,
        );
        let weights = Weighting::of(settings, done).advantage_weights(
            &self.targets.advantage,
            &batch.origin,
            &batch.known,
        );

        // The loss's derivatives by logits and baselines. Step T, whose value is a bootstrap, has
        // none.
        let scale = settings.loss.scale(count);
        let entropy_cost = settings.entropy_cost_at(done);
        self.d_logits.clear();
        self.d_logits
            .resize((steps + 1) * batch_size * actions, 0.0);
        self.d_baseline.clear();
        self.d_baseline.resize((steps + 1) * batch_size, 0.0);
        let mut metrics = UpdateMetrics::new(actions, self.rewards.tasks());
        for at in 0..count {
            let (action, weight) = (batch.action[at], weights[at]);
            let logits = &outputs.logits[at * actions..][..actions];
            let d_logits = &mut self.d_logits[at * actions..][..actions];
            let error = outputs.baseline[at] - self.targets.value[at];
            let entropy = policy_gradient(
                logits,
                action,
                weight * scale,
                entropy_cost * scale,
                d_logits,
            );
            if settings.pessimism > 0.0 && batch.origin[at] == Origin::Recorded {
                let behaviour = &batch.logits[at * actions..][..actions];
                divergence_gradient(logits, behaviour, settings.pessimism * scale, d_logits);
            }
            self.d_baseline[at] = settings.baseline_cost * error * scale;
            metrics.add(&StepTerms {
                weighted_log_probability: log_pi[at] * weight,
                error,
                entropy,
                log_rho: log_rho[at],
                action,
            });
        }
        metrics.add_value_errors(batch, &outputs.baseline, batch_size);
        metrics.divide(count);
        let diverged = |what| Diverged {
            what,
            updates: self.updates,
        };
        if !metrics.is_finite() {
            return Err(diverged("the loss").into());
        }

        // The gradient, and the optimiser's step along it. The network's own logits are T times
        // those of the policy.
        softmax::at_temperature(&mut self.d_logits, temperature);
        self.device
            .backward(&input, &self.d_logits, &self.d_baseline)?;
        let optimiser = settings.optimiser_at(done, self.updates);
        let norm = self.device.step(&optimiser).map_err(|error| match error {
            StepError::Device(failure) => UpdateError::Device(failure),
            StepError::Gradient { .. } => diverged("the gradient").into(),
        })?;
        metrics.gradient_norm = f64::from(norm);
        metrics.learning_rate = f64::from(optimiser.learning_rate);
        metrics.lag = rollouts
            .iter()
            .map(|rollout| self.updates.saturating_sub(rollout.version) as f64)
            .sum::<f64>()
            / batch_size as f64;
        self.updates += 1;
        Ok(metrics)
    }
}

/// Why an update was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// A number that the network depends on was not finite.
    #[error(transparent)]
    Diverged(#[from] Diverged),
    /// The device that holds the network failed.
    #[error(transparent)]
    Device(#[from] DeviceFailure),
}

/// A number that the network depends on was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "training diverged after {updates} updates: {what} is not a finite number; lower \
     learner.learning_rate or learner.gradient_clip, or normalise rewards \
     (learner.reward_normalisation)"
)]
pub struct Diverged {
    /// What is not finite, such as `the loss`.
    pub what: &'static str,
    /// Number of updates before the one that failed.
    pub updates: u64,
}

/// Writes the derivatives of −weight · ln π(action) − entropy_cost · H(π) by the logits, and
/// returns the entropy H, nats.
fn policy_gradient(
    logits: &[f32],
    action: usize,
    weight: f32,
    entropy_cost: f32,
    into: &mut [f32],
) -> f32 {
    let norm = log_sum_exp(logits);
    let entropy: f32 = logits
        .iter()
        .map(|logit| -(logit - norm).exp() * (logit - norm))
        .sum();
    for ((at, logit), into) in logits.iter().enumerate().zip(into) {
        let log = logit - norm;
        let probability = log.exp();
        let taken = f32::from(u8::from(at == action));
        *into = weight * (probability - taken) + entropy_cost * probability * (log + entropy);
    }
    entropy
}

/// Adds the derivatives of cost · KL(π‖μ) by the logits of π. Those of μ, `behaviour`, may have
/// any offset.
fn divergence_gradient(logits: &[f32], behaviour: &[f32], cost: f32, into: &mut [f32]) {
    let (norm, behaviour_norm) = (log_sum_exp(logits), log_sum_exp(behaviour));
    let ratio = |logit: f32, behaviour: f32| (logit - norm) - (behaviour - behaviour_norm);
    let divergence: f32 = logits
        .iter()
        .zip(behaviour)
        .map(|(&logit, &behaviour)| (logit - norm).exp() * ratio(logit, behaviour))
        .sum();
    for ((&logit, &behaviour), into) in logits.iter().zip(behaviour).zip(into) {
        *into += cost * (logit - norm).exp() * (ratio(logit, behaviour) - divergence);
    }
}

#[cfg(test)]
mod tests;
