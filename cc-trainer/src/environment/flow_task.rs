//! What the decisions of recorded flows count as beside those of simulated ones.

use crate::dataset::StepOutcome;

/// What a flow's rewards count as: `factor` times what its objective is above `level`.
///
/// A simulated link may reward throughput relative to its rate, which a host does not know; on an
/// emulated link it is known, and is the level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RewardScale {
    /// Factor of the reward of each decision.
    pub factor: f64,
    /// The objective's value, per window, that counts as 0.
    pub level: f64,
}

impl Default for RewardScale {
    fn default() -> Self {
        Self {
            factor: 1.0,
            level: 0.0,
        }
    }
}

impl RewardScale {
    /// The outcome of a decision, rewarded in this way.
    pub(super) fn apply(self, outcome: StepOutcome) -> StepOutcome {
        StepOutcome {
            reward: (self.factor * (f64::from(outcome.reward) - self.level)) as f32,
            ..outcome
        }
    }
}

/// What the decisions of a flow count as.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowTask {
    /// Index of the task, below [`Spec::tasks`](super::Spec::tasks).
    pub task: usize,
    /// What its rewards count as.
    pub rewards: RewardScale,
}
