//! The settings of the learner and their defaults.

use serde::{Deserialize, Serialize};

use crate::{model::RmsProp, vtrace::Clips};

/// Settings of the learner: the `[learner]` table of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearnerSettings {
    /// Batch size B: number of rollouts per update.
    pub batch: usize,
    /// Unroll length T: number of actions in a rollout.
    pub unroll: usize,
    /// Discount factor γ per interval between two actions, which is a window of the policy's in
    /// networks and recordings. An action in force for d intervals is discounted by γ^d
    /// ([`crate::discount`]).
    pub discount: f32,
    /// Learning rate at the start of the run; it falls linearly to 0.
    pub learning_rate: f32,
    /// Environment steps after which the learning rate is 0 and the entropy cost has its final
    /// value. `None` stands for the steps of the run.
    pub decay_steps: Option<u64>,
    /// Weight of the policy's entropy in the loss at the start of the run.
    pub entropy_cost: f32,
    /// Weight of the policy's entropy at the end of the schedule, reached
    /// linearly. `None` keeps [`entropy_cost`](Self::entropy_cost) constant.
    pub entropy_cost_end: Option<f32>,
    /// Weight of the baseline's squared error in the loss.
    pub baseline_cost: f32,
    /// Whether the loss is the mean or the sum over the steps of a batch. A learning rate that
    /// suits the one does not suit the other.
    pub loss: Reduction,
    /// How large rewards are clipped.
    pub reward_clipping: Clipping,
    /// How rewards are normalised after clipping.
    pub reward_normalisation: Normalisation,
    /// Forgetting rate of the reward statistics: the weight of one new reward once there are many.
    pub reward_memory: f64,
    /// Mask the last step of truncated episodes (no advantage, no value target) instead of treating
    /// truncation as termination (bootstrap value 0).
    pub end_of_episode_bootstrap: bool,
    /// Whether the baseline also sees the environment's privileged observation.
    pub privileged: bool,
    /// Fraction of the run, from its start, in which recorded actions are cloned whatever their
    /// outcome, while the baseline learns.
    pub cloning: f32,
    /// Weight of −ln π(a|x) of recorded actions after the cloning phase, which keeps
    /// the policy near the data.
    pub anchor: f32,
    /// Weight of the divergence KL(π‖μ) from the behaviour policy μ, for actions recorded with all
    /// probabilities: what μ hardly ever did, and the data say nothing about, costs the more the
    /// less likely μ was to do it.
    pub pessimism: f32,
    /// T of the policy π = softmax(logits / T) that acts and that the loss is about. `None` is the
    /// temperature at which the policy will be served when it learns from recordings, and 1
    /// otherwise.
    pub policy_temperature: Option<f32>,
    /// Temperature β of advantage-weighted regression, for actions recorded without behaviour
    /// probabilities: weight = exp(A / (β·RMS(A))), capped at 20. Lower values concentrate learning
    /// on the best actions (Peng et al. 2019, arXiv 1910.00177).
    pub temperature: f32,
    /// Clipping thresholds of V-trace's importance weights.
    pub clips: Clips,
    /// Largest norm of the gradient; larger gradients are scaled down to it. 0 turns clipping off.
    pub gradient_clip: f32,
    /// Decay of RMSprop's mean square per update.
    pub decay: f32,
    /// ε that RMSprop adds to the root of the mean square.
    pub epsilon: f32,
    /// Momentum of RMSprop; 0 for none.
    pub momentum: f32,
}

/// How large rewards are clipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clipping {
    /// Rewards are used as they are.
    #[default]
    None,
    /// Rewards are clipped to [−1, 1].
    AbsOne,
    /// A reward r becomes 5·tanh(r/5), or 0.3 times that if it is negative
    /// (`soft_asymmetric` in IMPALA's published code).
    SoftAsymmetric,
}

/// How rewards are normalised after clipping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalisation {
    /// Rewards are used as they are.
    #[default]
    None,
    /// By the horizon: rewards are multiplied by 1 − γ, which gives values the size of rewards.
    Horizon,
    /// By mean and deviation of the rewards of all tasks.
    Global,
    /// By mean and deviation of the rewards of the same task.
    PerTask,
}

impl Default for LearnerSettings {
    fn default() -> Self {
        Self {
            batch: 32,
            unroll: 80,
            discount: 0.99,
            learning_rate: 1e-3,
            decay_steps: None,
            entropy_cost: 0.01,
            entropy_cost_end: None,
            baseline_cost: 0.5,
            loss: Reduction::Mean,
            reward_clipping: Clipping::None,
            reward_normalisation: Normalisation::None,
            reward_memory: 1e-4,
            end_of_episode_bootstrap: true,
            privileged: false,
            cloning: 0.0,
            anchor: 0.0,
            pessimism: 0.0,
            policy_temperature: None,
            temperature: 1.0,
            clips: Clips::default(),
            gradient_clip: 1.0,
            decay: 0.99,
            epsilon: 1e-3,
            momentum: 0.0,
        }
    }
}

impl LearnerSettings {
    /// T of the policy that acts and learns; 1 while it is not settled.
    pub(crate) fn policy_temperature(&self) -> f32 {
        self.policy_temperature.unwrap_or(1.0)
    }

    /// Weight of the entropy at position `done` of the schedules, from 0 to 1.
    pub(super) fn entropy_cost_at(&self, done: f64) -> f32 {
        let end = self.entropy_cost_end.unwrap_or(self.entropy_cost);
        end + (self.entropy_cost - end) * left(done)
    }

    /// Hyperparameters of the optimiser at position `done` of the schedules, from 0 to 1.
    pub(super) fn optimiser_at(&self, done: f64) -> RmsProp {
        RmsProp {
            learning_rate: self.learning_rate * left(done),
            decay: self.decay,
            epsilon: self.epsilon,
            momentum: self.momentum,
            clip: self.gradient_clip,
        }
    }
}

/// The part of the schedules that is left after `done`: from 1 at their start to 0 at their end.
fn left(done: f64) -> f32 {
    1.0 - done.clamp(0.0, 1.0) as f32
}

/// How the losses of a batch's steps are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// The mean, with which learning rates do not depend on T and B.
    #[default]
    Mean,
    /// The sum, as in the IMPALA paper.
    Sum,
}

impl Reduction {
    /// Factor of the loss of each of `count` steps.
    pub(super) fn scale(self, count: usize) -> f32 {
        match self {
            Self::Mean => 1.0 / count as f32,
            Self::Sum => 1.0,
        }
    }
}
