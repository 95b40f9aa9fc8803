//! Rollouts gathered into the arrays of one update.

use super::{LearnerSettings, reward::RewardStatistics};
use crate::{
    discount,
    environment::End,
    model::Sequences,
    rollout::{Origin, Rollout, not_done},
};

/// B rollouts side by side, time-major: element `[t, b]` is at index t·B + b.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// `[T + 1, B, D]`: observations.
    observation: Vec<f32>,
    /// `[T + 1, B]`: the reward that the network sees.
    observed_reward: Vec<f32>,
    /// `[T + 1, B]`: 0 at the first step of an episode, else 1.
    not_done: Vec<f32>,
    /// `[T + 1, B, P]`: privileged observations.
    privileged: Vec<f32>,
    /// `[B, S]`: the LSTM's hidden state before the first step.
    h: Vec<f32>,
    /// `[B, S]`: the LSTM's cell state before the first step.
    c: Vec<f32>,
    /// `[T + 1, B]`: the actions taken.
    pub(super) action: Vec<usize>,
    /// `[T + 1, B, A]`: logits of the behaviour policy.
    pub(super) logits: Vec<f32>,
    /// `[T + 1, B]`: where the actions came from.
    pub(super) origin: Vec<Origin>,
    /// `[T, B]`: the reward of the step's action: its rate, clipped and normalised, over the
    /// discounted time that the action was in force.
    pub(super) reward: Vec<f32>,
    /// `[T, B]`: γ over that time, or 0 if the step's action ended the episode.
    pub(super) discount: Vec<f32>,
    /// `[T, B]`: λ over that time.
    pub(super) lambda: Vec<f32>,
    /// `[T, B]`: whether the outcome of the step's action is known.
    pub(super) known: Vec<bool>,
    /// `[T, B]`: the task of the step's action.
    pub(super) task: Vec<usize>,
}

impl Batch {
    /// Fills the arrays of T + 1 steps.
    ///
    /// # Panics
    ///
    /// Panics if a rollout is not of `steps` steps.
    pub(super) fn gather(&mut self, rollouts: &[Rollout], steps: usize) {
        assert!(
            rollouts.iter().all(|rollout| rollout.len() == steps),
            "rollouts are not of {steps} steps"
        );
        for array in [
            &mut self.observation,
            &mut self.observed_reward,
            &mut self.not_done,
            &mut self.privileged,
            &mut self.h,
            &mut self.c,
            &mut self.logits,
        ] {
            array.clear();
        }
        self.action.clear();
        self.origin.clear();
        fn row(array: &[f32], step: usize, steps: usize) -> &[f32] {
            let width = array.len() / steps;
            &array[step * width..][..width]
        }
        for step in 0..steps {
            for rollout in rollouts {
                self.observation
                    .extend_from_slice(row(&rollout.observation, step, steps));
                self.privileged
                    .extend_from_slice(row(&rollout.privileged, step, steps));
                self.logits
                    .extend_from_slice(row(&rollout.logits, step, steps));
                self.observed_reward.push(rollout.observed_reward[step]);
                self.not_done.push(not_done(rollout.first[step]));
                self.action.push(rollout.action[step] as usize);
                self.origin.push(rollout.origin[step]);
            }
        }
        for rollout in rollouts {
            self.h.extend_from_slice(&rollout.h);
            self.c.extend_from_slice(&rollout.c);
        }
    }

    /// Fills the arrays of T steps with the outcomes of the actions. The outcome of action t is in
    /// step t + 1 of a rollout. Rewards are clipped and normalised as rates, per interval.
    pub(super) fn gather_rewards(
        &mut self,
        rollouts: &[Rollout],
        settings: &LearnerSettings,
        statistics: &mut RewardStatistics,
    ) {
        self.reward.clear();
        self.discount.clear();
        self.lambda.clear();
        self.known.clear();
        let (gamma, lambda) = (
            f64::from(settings.discount),
            f64::from(settings.clips.lambda),
        );
        self.task.clear();
        let mut lengths = Vec::with_capacity(settings.unroll * rollouts.len());
        for step in 1..=settings.unroll {
            for rollout in rollouts {
                let first = rollout.first[step];
                let intervals = rollout.intervals[step];
                let rate = discount::rate(rollout.reward[step], intervals);
                self.reward.push(settings.reward_clipping.apply(rate));
                self.task.push(rollout.task[step] as usize);
                let intervals = f64::from(intervals);
                lengths.push(discount::discounted_length(gamma, intervals) as f32);
                self.discount
                    .push(discount::over(gamma, intervals) as f32 * not_done(first));
                self.lambda.push(discount::over(lambda, intervals) as f32);
                self.known
                    .push(!(settings.end_of_episode_bootstrap && first == Some(End::Truncated)));
            }
        }
        statistics.normalise(&mut self.reward, &self.task, &self.known, settings);
        for (reward, length) in self.reward.iter_mut().zip(lengths) {
            *reward *= length;
        }
    }

    /// The network's input, of `steps` steps and LSTM states of width `state`.
    pub(super) fn sequences(&self, steps: usize, batch_size: usize, state: usize) -> Sequences<'_> {
        debug_assert_eq!(self.h.len(), batch_size * state);
        Sequences {
            steps,
            batch_size,
            observation: &self.observation,
            reward: &self.observed_reward,
            not_done: &self.not_done,
            privileged: &self.privileged,
            h: &self.h,
            c: &self.c,
        }
    }
}
