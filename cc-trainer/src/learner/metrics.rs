//! The figures of an update.

use super::{batch::Batch, constraints::ConstraintPoint};

/// The figures of one update. Means are over the T·B steps of its batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateMetrics {
    /// Mean of −ln π(a|x) times the action's weight in the policy gradient.
    pub policy_loss: f64,
    /// Mean of ½ (v − V)², with v the V-trace target; in units of the task's squared deviation
    /// where values are scaled.
    pub baseline_loss: f64,
    /// Mean of ½ (y − ŷ)² over steps and values, with ŷ the predictions of the privileged
    /// observation y; 0 where nothing is predicted.
    pub prediction_loss: f64,
    /// Mean squared temporal difference, ½ (r + γ V′ − V)². It must not grow without bound.
    pub td_loss: f64,
    /// Mean of ½ (G − V)², with G the discounted rewards to the end of the rollout plus the value
    /// there: the baseline's error against Monte Carlo returns.
    pub mc_loss: f64,
    /// Mean entropy of the policy, nats.
    pub entropy: f64,
    /// Mean of ln μ(a|x) − ln π(a|x), nats: an estimate of the Kullback-Leibler divergence of the
    /// behaviour policy μ from the learner's policy π.
    pub divergence: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Learning rate of the update.
    pub learning_rate: f64,
    /// Policy lag: mean number of updates between the behaviour policy and the learner's.
    pub lag: f64,
    /// Share of each action among the batch's actions, by its index.
    pub actions: Vec<f64>,
    /// The errors of the baseline in each task, by its index.
    pub tasks: Vec<TaskErrors>,
    /// The constraints, after the update of their multipliers.
    pub constraints: Vec<ConstraintPoint>,
}

/// The errors of the baseline in the steps of one task: sums, since a batch has few steps of each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskErrors {
    /// Number of the task's steps whose outcome is known.
    pub steps: u64,
    /// Sum of the squared temporal differences ½ (r + γ V′ − V)² of these steps.
    pub td_loss: f64,
}

/// The terms that one step of a batch adds to the figures.
pub(super) struct StepTerms {
    /// ln π(a|x) times the action's weight in the policy gradient.
    pub(super) weighted_log_probability: f32,
    /// V − v, the error of the baseline.
    pub(super) error: f32,
    /// Entropy of the policy, nats.
    pub(super) entropy: f32,
    /// ln π(a|x) − ln μ(a|x).
    pub(super) log_rho: f32,
    pub(super) action: usize,
}

impl UpdateMetrics {
    /// Sums of no steps, for a policy over this many actions, and this many tasks.
    pub(super) fn new(actions: usize, tasks: usize) -> Self {
        Self {
            actions: vec![0.0; actions],
            tasks: vec![TaskErrors::default(); tasks],
            ..Self::default()
        }
    }

    /// Adds the terms of a step to the sums.
    pub(super) fn add(&mut self, step: &StepTerms) {
        self.policy_loss -= f64::from(step.weighted_log_probability);
        self.baseline_loss += 0.5 * f64::from(step.error).powi(2);
        self.entropy += f64::from(step.entropy);
        self.divergence -= f64::from(step.log_rho);
        self.actions[step.action] += 1.0;
    }

    /// Sums the errors of the baseline over the steps whose outcome is known. `value`
    /// is `[T + 1, B]`.
    pub(super) fn add_value_errors(&mut self, batch: &Batch, value: &[f32], batch_size: usize) {
        // The discounted rewards to the end of the rollout, from each step.
        let mut returns = value.to_vec();
        for at in (0..batch.reward.len()).rev().filter(|&at| batch.known[at]) {
            let next = at + batch_size;
            returns[at] = batch.reward[at] + batch.discount[at] * returns[next];
            let difference = batch.reward[at] + batch.discount[at] * value[next] - value[at];
            let td_loss = 0.5 * f64::from(difference).powi(2);
            self.td_loss += td_loss;
            if let Some(task) = self.tasks.get_mut(batch.task[at]) {
                task.steps += 1;
                task.td_loss += td_loss;
            }
            self.mc_loss += 0.5 * f64::from(returns[at] - value[at]).powi(2);
        }
    }

    /// Turns the sums over all tasks into means over this many steps.
    pub(super) fn divide(&mut self, steps: usize) {
        for sum in [
            &mut self.policy_loss,
            &mut self.baseline_loss,
            &mut self.prediction_loss,
            &mut self.td_loss,
            &mut self.mc_loss,
            &mut self.entropy,
            &mut self.divergence,
        ]
        .into_iter()
        .chain(&mut self.actions)
        {
            *sum /= steps as f64;
        }
    }

    /// Whether the loss is a finite number.
    pub(super) fn is_finite(&self) -> bool {
        (self.policy_loss + self.baseline_loss + self.prediction_loss + self.entropy).is_finite()
    }
}
