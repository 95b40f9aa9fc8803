//! Rollouts: the sub-trajectories that actors hand to the learner.

use crate::environment::{End, Quantities};

/// T + 1 successive steps of one seat, across the borders of its episodes; before them, with a
/// burn-in, some steps that only the LSTM's state is refreshed by.
///
/// Step t holds an observation and the action taken on it; the outcome of that action is in step
/// t + 1. The last step is the first of the seat's next rollout: it is there for the outcome of the
/// action before it, and for the value to bootstrap from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// `[T + 1, D]`: observations, as the network sees them.
    pub observation: Vec<f32>,
    /// `[T + 1]`: rewards, as the network sees them.
    pub observed_reward: Vec<f32>,
    /// `[T + 1, P]`: privileged observations, which only the critic sees.
    pub privileged: Vec<f32>,
    /// `[T + 1]`: at the first step of an episode, how the episode before it ended; else `None`.
    pub first: Vec<Option<End>>,
    /// `[T + 1]`: the action taken.
    pub action: Vec<u32>,
    /// `[T + 1, A]`: logits of the behaviour policy; meaningless for [`Origin::Observed`].
    pub logits: Vec<f32>,
    /// `[T + 1, A]`: for each action, the index of the first one that would have had the same
    /// effect.
    pub effects: Vec<u8>,
    /// `[T + 1, A]`: for each action, whether it was allowed, as the one taken was; empty where all
    /// actions were in all steps. The logits of the others mean nothing: their probabilities are 0.
    pub allowed: Vec<bool>,
    /// `[T + 1]`: where the action came from.
    pub origin: Vec<Origin>,
    /// `[T + 1]`: reward of the action before, as the environment gave it.
    pub reward: Vec<f32>,
    /// `[T + 1]`: how long the action before was in force, in the environment's intervals between
    /// two actions.
    pub intervals: Vec<f32>,
    /// `[T + 1]`: what can be limited of the outcome of the action before.
    pub quantities: Vec<Quantities>,
    /// `[T + 1]`: task of the action before.
    pub task: Vec<u32>,
    /// `[S]`: the LSTM's hidden state before the first step; empty without an LSTM.
    pub h: Vec<f32>,
    /// `[S]`: the LSTM's cell state before the first step; empty without an LSTM.
    pub c: Vec<f32>,
    /// Version of the policy that took the first action: the number of updates that made it.
    pub version: u64,
}

impl Rollout {
    /// Number of steps: T + 1 for a complete rollout.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// Whether there is no step yet.
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// Takes the complete rollout out, and begins the next one with its last `kept` steps: one, and
    /// those of the burn-in before it. `h` and `c` are the LSTM's state before the first of them,
    /// `version` is the policy's version.
    pub(crate) fn split(&mut self, kept: usize, h: &[f32], c: &[f32], version: u64) -> Self {
        let steps = self.len();
        debug_assert!(steps > kept && kept > 0);
        /// The last `kept` of `steps` equal parts.
        fn last<T: Clone>(array: &[T], steps: usize, kept: usize) -> Vec<T> {
            let width = array.len() / steps;
            let mut next = Vec::with_capacity(array.len());
            next.extend_from_slice(&array[array.len() - kept * width..]);
            next
        }
        let next = Self {
            observation: last(&self.observation, steps, kept),
            observed_reward: last(&self.observed_reward, steps, kept),
            privileged: last(&self.privileged, steps, kept),
            first: last(&self.first, steps, kept),
            action: last(&self.action, steps, kept),
            logits: last(&self.logits, steps, kept),
            effects: last(&self.effects, steps, kept),
            allowed: last(&self.allowed, steps, kept),
            origin: last(&self.origin, steps, kept),
            reward: last(&self.reward, steps, kept),
            intervals: last(&self.intervals, steps, kept),
            quantities: last(&self.quantities, steps, kept),
            task: last(&self.task, steps, kept),
            h: h.to_vec(),
            c: c.to_vec(),
            version,
        };
        std::mem::replace(self, next)
    }
}

/// Where an action came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Sampled by an actor, from the learner's policy or a recent version of it.
    #[default]
    Actor,
    /// Recorded, with the behaviour policy's probabilities: its logits are known up to a constant.
    Recorded,
    /// Recorded, without probabilities: nothing is known about the behaviour policy.
    Observed,
}

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Episode {
    /// Index of the episode's task.
    pub task: usize,
    /// Return of the episode: the sum of its rewards, as the environment gave them.
    pub total: f64,
    /// Length of the episode, steps.
    pub steps: u64,
    /// How long its actions were in force, in the environment's intervals between two actions.
    pub intervals: f64,
}
