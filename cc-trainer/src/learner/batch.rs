//! Rollouts gathered into the arrays of one update.

use std::ops::Range;

use super::{LearnerSettings, LearnerState};
use crate::{
    discount,
    environment::{End, Quantities, not_done},
    model::Sequences,
    rollout::{Origin, Rollout},
    softmax,
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
    pub(super) privileged: Vec<f32>,
    /// `[B, S]`: the LSTM's hidden state before the first step.
    h: Vec<f32>,
    /// `[B, S]`: the LSTM's cell state before the first step.
    c: Vec<f32>,
    /// `[T + 1, B]`: the actions taken.
    pub(super) action: Vec<usize>,
    /// `[T + 1, B, A]`: logits of the behaviour policy, masked where actions were not allowed.
    pub(super) logits: Vec<f32>,
    /// `[T + 1, B, A]`: whether each action was allowed.
    pub(super) allowed: Vec<bool>,
    /// `[T + 1, B, A]`: for each action, the index of the first one with the same effect; that of
    /// the action itself where effects are not merged.
    pub(super) effects: Vec<u8>,
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
    /// `[T, B]`: what can be limited of the outcome of the step's action.
    quantities: Vec<Quantities>,
    /// `[T, B]`: how long the step's action was in force.
    intervals: Vec<f32>,
    /// `[T, B]`: that time discounted, which the reward's rate is multiplied by.
    lengths: Vec<f32>,
}

impl Batch {
    /// Fills the arrays with a part of the rollouts' steps, and the LSTM's states with those before
    /// the rollouts' first step. Actions that have the same effect are told apart unless
    /// `merge_actions`.
    ///
    /// # Panics
    ///
    /// Panics if a rollout has fewer steps, or another number of them than the first one, or an
    /// action that was not allowed.
    pub(super) fn gather(&mut self, rollouts: &[Rollout], part: Range<usize>, merge_actions: bool) {
        let (end, steps) = (part.end, rollouts.first().map_or(part.end, Rollout::len));
        assert!(
            end <= steps && rollouts.iter().all(|rollout| rollout.len() == steps),
            "rollouts are not of {end} steps"
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
        self.allowed.clear();
        self.effects.clear();
        self.origin.clear();
        fn row<T>(array: &[T], step: usize, steps: usize) -> &[T] {
            let width = array.len() / steps;
            &array[step * width..][..width]
        }
        for step in part {
            for rollout in rollouts {
                self.observation
                    .extend_from_slice(row(&rollout.observation, step, steps));
                self.privileged
                    .extend_from_slice(row(&rollout.privileged, step, steps));
                self.logits
                    .extend_from_slice(row(&rollout.logits, step, steps));
                let effects = row(&rollout.effects, step, steps);
                match merge_actions {
                    true => self.effects.extend_from_slice(effects),
                    false => self.effects.extend(0..effects.len() as u8),
                }
                let action = rollout.action[step] as usize;
                let allowed = row(&rollout.allowed, step, steps);
                assert!(
                    allowed.get(action).is_none_or(|allowed| *allowed),
                    "action {action} was taken in step {step}, which does not allow it"
                );
                self.allowed.extend_from_slice(allowed);
                // None of them where all are allowed.
                self.allowed.resize(self.logits.len(), true);
                self.observed_reward.push(rollout.observed_reward[step]);
                self.not_done.push(not_done(rollout.first[step]));
                self.action.push(action);
                self.origin.push(rollout.origin[step]);
            }
        }
        softmax::mask(&mut self.logits, &self.allowed);
        for rollout in rollouts {
            self.h.extend_from_slice(&rollout.h);
            self.c.extend_from_slice(&rollout.c);
        }
    }

    /// Fills the arrays of T steps with the outcomes of the actions. The outcome of action t is in
    /// step t + 1 of a rollout. Rewards are clipped rates, per interval, until
    /// [`shape_rewards`](Self::shape_rewards). Returns the sums that this needs, over the whole
    /// batch of an update; none where it needs none.
    pub(super) fn gather_rewards(
        &mut self,
        rollouts: &[Rollout],
        settings: &LearnerSettings,
        state: &LearnerState,
    ) -> Vec<f64> {
        self.reward.clear();
        self.discount.clear();
        self.lambda.clear();
        self.known.clear();
        let (gamma, lambda) = (
            f64::from(settings.discount),
            f64::from(settings.clips.lambda),
        );
        self.task.clear();
        self.quantities.clear();
        self.intervals.clear();
        self.lengths.clear();
        for step in settings.burn_in + 1..=settings.burn_in + settings.unroll {
            for rollout in rollouts {
                let first = rollout.first[step];
                let intervals = rollout.intervals[step];
                let rate = discount::rate(rollout.reward[step], intervals);
                self.reward.push(settings.reward_clipping.apply(rate));
                self.task.push(rollout.task[step] as usize);
                self.quantities.push(rollout.quantities[step]);
                self.intervals.push(intervals);
                let intervals = f64::from(intervals);
                let length = discount::discounted_length(gamma, intervals);
                self.lengths.push(length as f32);
                self.discount
                    .push(discount::over(gamma, intervals) as f32 * not_done(first));
                self.lambda.push(discount::over(lambda, intervals) as f32);
                self.known
                    .push(!(settings.end_of_episode_bootstrap && first == Some(End::Truncated)));
            }
        }
        let rewards = &state.rewards;
        let mut sums = rewards.sums(&self.reward, &self.task, &self.known, settings);
        sums.extend(
            settings
                .constraints
                .sums(&self.quantities, &self.intervals, &self.known),
        );
        sums
    }

    /// Normalises the rewards and charges them with the constraints, as rates, and turns them into
    /// those of the time that actions were in force. `sums` are those of
    /// [`gather_rewards`](Self::gather_rewards) over the whole batch of the update.
    pub(super) fn shape_rewards(
        &mut self,
        sums: &[f64],
        settings: &LearnerSettings,
        state: &mut LearnerState,
    ) {
        let (of_rewards, of_constraints) =
            sums.split_at(sums.len() - settings.constraints.number_of_sums());
        let rewards = &mut state.rewards;
        rewards.normalise(&mut self.reward, &self.task, of_rewards, settings);
        state.multipliers.apply(
            &mut self.reward,
            &self.quantities,
            of_constraints,
            &settings.constraints,
        );
        for (reward, length) in self.reward.iter_mut().zip(&self.lengths) {
            *reward *= length;
        }
    }

    /// Replaces the LSTM's states before the first step.
    pub(super) fn set_state(&mut self, h: &[f32], c: &[f32]) {
        self.h.clear();
        self.h.extend_from_slice(h);
        self.c.clear();
        self.c.extend_from_slice(c);
    }

    /// The task whose baseline is the value of each of `steps` + 1 steps, after
    /// [`gather_rewards`](Self::gather_rewards); 0 where there is one baseline. A step's task is
    /// that of its action, which the next step tells. The last one, whose next step is not there,
    /// is of the action before: if another episode had begun, its value would not be asked for.
    pub(super) fn value_tasks(&self, values: usize, steps: usize) -> Vec<usize> {
        let batch_size = self.task.len() / steps;
        let last = self.task.len() - batch_size;
        let of = |&task: &usize| if values > 1 { task } else { 0 };
        self.task.iter().chain(&self.task[last..]).map(of).collect()
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
