//! What an actor hands to the learner: a stretch of one seat's life.

use crate::environment::End;

/// T + 1 steps of one seat, across the borders of its episodes. The last step is the first of the seat's next rollout: it
/// is there for what the action before it earned and for the value that follows.
///
/// Step t holds an observation and the action taken on it; what that action earned stands at step t + 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// `[T + 1, D]`, as the network sees it.
    pub observation: Vec<f32>,
    /// `[T + 1]`: the reward that the network sees.
    pub observed_reward: Vec<f32>,
    /// `[T + 1, P]`: what only the critic sees.
    pub privileged: Vec<f32>,
    /// `[T + 1]`: how the episode before ended, on the first step of an episode.
    pub first: Vec<Option<End>>,
    /// `[T + 1]`: the action taken.
    pub action: Vec<u32>,
    /// `[T + 1, A]`: logits of the policy that took it.
    pub logits: Vec<f32>,
    /// `[T + 1]`: who took it.
    pub origin: Vec<Origin>,
    /// `[T + 1]`: what the action before earned, as the environment says it.
    pub reward: Vec<f32>,
    /// `[T + 1]`: the task that the action before belonged to.
    pub task: Vec<u32>,
    /// `[S]`: the LSTM's hidden vector before the first step; empty without LSTM, as the next.
    pub h: Vec<f32>,
    /// `[S]`: its cell vector.
    pub c: Vec<f32>,
    /// Version of the policy that took the first action: the learner's updates before it.
    pub version: u64,
}

impl Rollout {
    /// Steps in it, T + 1 when it is whole.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// Whether it has no step.
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// Splits off a whole rollout and goes on with its last step; `h` and `c` are the state before that step, `version`
    /// the policy's at it.
    pub(crate) fn split(&mut self, h: &[f32], c: &[f32], version: u64) -> Self {
        let steps = self.len();
        debug_assert!(steps > 1);
        /// The last of `steps` equal parts.
        fn last<T: Clone>(array: &[T], steps: usize) -> Vec<T> {
            let width = array.len() / steps;
            let mut next = Vec::with_capacity(array.len());
            next.extend_from_slice(&array[array.len() - width..]);
            next
        }
        let next = Self {
            observation: last(&self.observation, steps),
            observed_reward: last(&self.observed_reward, steps),
            privileged: last(&self.privileged, steps),
            first: last(&self.first, steps),
            action: last(&self.action, steps),
            logits: last(&self.logits, steps),
            origin: last(&self.origin, steps),
            reward: last(&self.reward, steps),
            task: last(&self.task, steps),
            h: h.to_vec(),
            c: c.to_vec(),
            version,
        };
        std::mem::replace(self, next)
    }
}

/// Who took an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The actor, by a late version of the policy that learns.
    #[default]
    Actor,
    /// Another policy that was recorded, whose logits are known up to a constant.
    Recorded,
    /// Somebody that was recorded and whose probabilities nobody knows; the logits mean nothing.
    Observed,
}

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Episode {
    /// Its task.
    pub task: usize,
    /// Sum of its rewards, as the environment gave them.
    pub total: f64,
    /// Its steps.
    pub steps: u64,
}
