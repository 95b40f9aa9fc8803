//! The settings of the learner and their defaults.

use serde::{Deserialize, Serialize};

use super::{constraints::Constraints, values::ValueScaling};
use crate::{model::RmsProp, vtrace::Clips};

/// Settings of the learner: the `[learner]` table of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearnerSettings {
    /// Batch size B: number of rollouts per update.
    pub batch: usize,
    /// Unroll length T: number of actions in a rollout.
    pub unroll: usize,
    /// Number of steps before those of a rollout from which the LSTM's state at its start is
    /// computed anew, by the present parameters and without a gradient: the stored state is that of
    /// an earlier policy, which replayed the flow from its beginning (S. Kapturowski et al.,
    /// "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019).
    pub burn_in: usize,
    /// Discount factor γ per interval between two actions, which is a window of the policy's in
    /// networks and recordings. An action in force for d intervals is discounted by γ^d
    /// ([`crate::discount`]).
    pub discount: f32,
    /// Learning rate at the start of the run.
    pub learning_rate: f32,
    /// Learning rate at the end of the schedule, reached linearly. `None` is 0; the value of
    /// [`learning_rate`](Self::learning_rate) keeps it constant.
    pub learning_rate_end: Option<f32>,
    /// Environment steps after which the learning rate and, without
    /// [`entropy_steps`](Self::entropy_steps), the entropy cost have their final values. `None`
    /// stands for the steps of the run.
    pub decay_steps: Option<u64>,
    /// Weight of the policy's entropy in the loss at the start of the run.
    pub entropy_cost: f32,
    /// Weight of the policy's entropy at the end of the schedule, reached
    /// linearly. `None` keeps [`entropy_cost`](Self::entropy_cost) constant.
    pub entropy_cost_end: Option<f32>,
    /// Environment steps after which the entropy cost has its final value. `None` stands for
    /// [`decay_steps`](Self::decay_steps).
    pub entropy_steps: Option<u64>,
    /// Weight of the baseline's squared error in the loss.
    pub baseline_cost: f32,
    /// Weight of the squared errors of the policy's predictions of the privileged observation, the
    /// mean over its values: what it does not see it then learns to infer from what it saw (an
    /// auxiliary task: Jaderberg et al., arXiv 1611.05397). 0 predicts nothing. It needs
    /// [`privileged`](Self::privileged).
    pub prediction_cost: f32,
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
    /// Whether actions that lead to the same cwnd, at its bounds and where it is small, count as
    /// one: probabilities, ratios, entropy and divergence are then those of effects.
    pub merge_actions: bool,
    /// Temperature β of advantage-weighted regression, for actions recorded without behaviour
    /// probabilities: weight = exp(A / (β·RMS(A))), capped at 20. Lower values concentrate learning
    /// on the best actions (Peng et al. 2019, arXiv 1910.00177).
    pub temperature: f32,
    /// Whether each task has a baseline of its own, scaled by its returns.
    pub value_scaling: ValueScaling,
    /// Forgetting rate of the statistics of returns, for scaled values: the weight of one return
    /// once there are many.
    pub value_memory: f64,
    /// Limits that the policy is to keep, each with a learned multiplier.
    pub constraints: Constraints,
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
    /// Whether mean squares are divided by the weight of all gradients in them, 1 − decayᵗ in the
    /// t-th update, as Adam does it. Without, they begin near 0, and the first updates are up to
    /// 1 / √(1 − decay) times as large as later ones: 10 times with the default.
    pub bias_correction: bool,
    /// Number of updates over which the learning rate rises linearly at the start of a run; 0 for
    /// none. It multiplies the schedule's learning rate.
    pub warm_up: u64,
    /// Number of updates over which the parameters of the policy that is judged and served are
    /// averaged ([`ParameterAverage`](super::average::ParameterAverage)); 0 takes those of the
    /// last update. The policy that acts in training is never the mean.
    pub average_over: u64,
    /// What of each batch is learnt from again; `None` for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySettings>,
}

/// What of each batch is learnt from again: the `[learner.replay]` table of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplaySettings {
    /// Number of replayed rollouts for each new one, 0 or more. A batch has
    /// [`batch`](LearnerSettings::batch) rollouts in all, and one new one at least.
    pub ratio: f64,
    /// Number of rollouts that are kept, in memory; each new one takes the place of the oldest.
    pub capacity: usize,
    /// Largest number of updates between the policy that begins a rollout and an update that
    /// replays it; `None` for as long as it is kept.
    pub max_lag: Option<u64>,
}

impl Default for ReplaySettings {
    fn default() -> Self {
        Self {
            ratio: 1.0,
            capacity: 1024,
            max_lag: None,
        }
    }
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
            burn_in: 0,
            discount: 0.99,
            learning_rate: 1e-3,
            learning_rate_end: None,
            decay_steps: None,
            entropy_cost: 0.01,
            entropy_cost_end: None,
            entropy_steps: None,
            baseline_cost: 0.5,
            prediction_cost: 0.0,
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
            merge_actions: true,
            temperature: 1.0,
            value_scaling: ValueScaling::default(),
            value_memory: 3e-4,
            constraints: Constraints::default(),
            clips: Clips::default(),
            gradient_clip: 1.0,
            decay: 0.99,
            epsilon: 1e-3,
            momentum: 0.0,
            bias_correction: true,
            warm_up: 0,
            average_over: 0,
            replay: None,
        }
    }
}

impl LearnerSettings {
    /// T of the policy that acts and learns; 1 while it is not settled.
    pub(crate) fn policy_temperature(&self) -> f32 {
        self.policy_temperature.unwrap_or(1.0)
    }

    /// Weight of the entropy at position `done` of its schedule, from 0 to 1.
    pub(super) fn entropy_cost_at(&self, done: f64) -> f32 {
        let end = self.entropy_cost_end.unwrap_or(self.entropy_cost);
        end + (self.entropy_cost - end) * left(done)
    }

    /// Hyperparameters of the optimiser's step after `updates` updates, at position `done` of the
    /// learning rate's schedule, from 0 to 1.
    pub(super) fn optimiser_at(&self, done: f64, updates: u64) -> RmsProp {
        let step = updates + 1;
        let warm_up = (step as f64 / self.warm_up.max(1) as f64).min(1.0) as f32;
        let weight = 1.0 - f64::from(self.decay).powf(step as f64);
        let end = self.learning_rate_end.unwrap_or(0.0);
        RmsProp {
            learning_rate: (end + (self.learning_rate - end) * left(done)) * warm_up,
            decay: self.decay,
            epsilon: self.epsilon,
            momentum: self.momentum,
            clip: self.gradient_clip,
            // With a decay of 1 gradients have no weight: there is nothing to correct.
            correction: match self.bias_correction && weight > 0.0 {
                true => (1.0 / weight) as f32,
                false => 1.0,
            },
        }
    }
}

/// Where an update is on the schedules: 0 at the start of each, 1 at its end and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulePosition {
    /// Position on the schedule of the learning rate, and of the phase in which recorded actions
    /// are cloned.
    pub learning_rate: f64,
    /// Position on the schedule of the entropy cost.
    pub entropy: f64,
}

impl From<f64> for SchedulePosition {
    /// The same position on all schedules.
    fn from(done: f64) -> Self {
        Self {
            learning_rate: done,
            entropy: done,
        }
    }
}

/// The part of a schedule that is left after `done`: from 1 at its start to 0 at its end.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_correction_makes_up_for_mean_squares_that_begin_at_0() {
        let settings = LearnerSettings::default();
        // The mean square of a constant gradient of 1 is then 1 from the first step on.
        let mut square = 0.0;
        for updates in 0..2000 {
            square = settings.decay * square + (1.0 - settings.decay);
            let corrected = settings.optimiser_at(0.0, updates).correction * square;
            assert!((corrected - 1.0).abs() < 1e-4, "{updates}: {corrected}");
        }
        for plain in [
            LearnerSettings {
                bias_correction: false,
                ..LearnerSettings::default()
            },
            LearnerSettings {
                decay: 1.0,
                ..LearnerSettings::default()
            },
        ] {
            assert_eq!(plain.optimiser_at(0.0, 0).correction, 1.0);
        }
    }

    #[test]
    fn the_learning_rate_warms_up_and_falls_to_0() {
        let settings = LearnerSettings {
            learning_rate: 0.5,
            warm_up: 4,
            ..LearnerSettings::default()
        };
        let rate = |done, updates| settings.optimiser_at(done, updates).learning_rate;
        assert_eq!(
            [0, 1, 2, 3, 4, 100].map(|updates| rate(0.0, updates)),
            [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
        );
        assert_eq!(
            (rate(0.5, 1), rate(0.5, 9), rate(1.0, 9)),
            (0.125, 0.25, 0.0)
        );
        let none = LearnerSettings {
            warm_up: 0,
            ..settings.clone()
        };
        assert_eq!(none.optimiser_at(0.0, 0).learning_rate, 0.5);
    }

    #[test]
    fn the_learning_rate_ends_where_it_is_to_end_and_may_be_constant() {
        let rates = |end| {
            let settings = LearnerSettings {
                learning_rate: 0.5,
                learning_rate_end: end,
                ..LearnerSettings::default()
            };
            [0.0, 0.25, 1.0, 7.0].map(|done| settings.optimiser_at(done, 0).learning_rate)
        };
        assert_eq!(rates(None), [0.5, 0.375, 0.0, 0.0]);
        assert_eq!(rates(Some(0.0)), rates(None));
        assert_eq!(rates(Some(0.25)), [0.5, 0.4375, 0.25, 0.25]);
        assert_eq!(rates(Some(0.5)), [0.5; 4]);
    }

    proptest! {
        /// To the bit the rate of before there was another end than 0.
        #[test]
        fn without_an_end_the_learning_rate_falls_to_0_as_ever(
            learning_rate in 1e-7..1.0f32,
            done in 0.0..1.5f64,
            warm_up in 0..9u64,
            updates in 0..20u64,
        ) {
            let settings = LearnerSettings { learning_rate, warm_up, ..LearnerSettings::default() };
            let rise = ((updates + 1) as f64 / warm_up.max(1) as f64).min(1.0) as f32;
            let found = settings.optimiser_at(done, updates).learning_rate;
            prop_assert_eq!(found, learning_rate * left(done) * rise);
        }
    }
}
