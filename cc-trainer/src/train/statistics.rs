//! Statistics of a run: returns of recent episodes, and means over recent updates.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{
    learner::{TaskErrors, UpdateMetrics, constraints::ConstraintPoint},
    rollout::Episode,
    train::{distributed::ExchangePoint, replay::ReplayPoint},
};

/// Number of recent episodes that a mean return is taken over.
pub(super) const EPISODES: usize = 100;
/// Number of recent updates that losses and rates are averaged over.
const UPDATES: usize = 50;

/// The figures of a run after some number of steps: a point on its learning curve.
///
/// Losses, entropy, divergence, gradient norm, lag and action shares are means over the
/// last 50 updates of the quantities in [`UpdateMetrics`]; rates and shares of time
/// refer to the same updates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Number of environment steps learnt from.
    pub steps: u64,
    /// Number of updates of the network.
    pub updates: u64,
    /// Time spent training in all parts of the run, s.
    pub seconds: f64,
    /// Number of episodes that have ended.
    pub episodes: u64,
    /// Mean return of the last 100 episodes; `None` before the first has ended.
    pub episode_return: Option<f64>,
    /// Mean length of the last 100 episodes, steps; `None` before the first has ended.
    pub episode_steps: Option<f64>,
    /// The returns of each task that an episode has ended in.
    pub tasks: Vec<TaskPoint>,
    /// Mean of [`UpdateMetrics::policy_loss`] over the recent updates.
    pub policy_loss: f64,
    /// Mean of [`UpdateMetrics::baseline_loss`] over the recent updates.
    pub baseline_loss: f64,
    /// Mean of [`UpdateMetrics::prediction_loss`] over the recent updates.
    #[serde(default)]
    pub prediction_loss: f64,
    /// Mean of [`UpdateMetrics::td_loss`] over the recent updates.
    #[serde(default)]
    pub td_loss: f64,
    /// Mean of [`UpdateMetrics::mc_loss`] over the recent updates.
    #[serde(default)]
    pub mc_loss: f64,
    /// Mean of [`UpdateMetrics::entropy`] over the recent updates, nats.
    pub entropy: f64,
    /// Mean of [`UpdateMetrics::divergence`] over the recent updates, nats.
    pub divergence: f64,
    /// Mean of [`UpdateMetrics::gradient_norm`] over the recent updates.
    pub gradient_norm: f64,
    /// [`UpdateMetrics::learning_rate`] of the last update.
    pub learning_rate: f64,
    /// Mean of [`UpdateMetrics::lag`] over the recent updates.
    pub policy_lag: f64,
    /// Share of each action among the actions taken, by its index.
    pub actions: Vec<f64>,
    /// The constraints and their multipliers; empty without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<ConstraintPoint>,
    /// Rollouts dropped since the beginning of the run because the queue was full.
    pub dropped: u64,
    /// Environment steps learnt from per second.
    pub steps_per_second: f64,
    /// Share of the time that the learner spent on updates.
    pub learner_utilization: f64,
    /// Share of the time that actors did not wait for the learner.
    pub actor_utilization: f64,
    /// The workers on other machines and what they send; `None` for a run of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangePoint>,
    /// What has been learnt from again; `None` without replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayPoint>,
}

/// The returns of one task at a point of the curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskPoint {
    /// Name of the task, such as a scenario's.
    pub name: String,
    /// Number of the task's episodes that have ended.
    pub episodes: u64,
    /// Mean return of the last 100 of them.
    pub episode_return: f64,
    /// Mean squared temporal difference of the task's steps in the recent updates, as
    /// [`UpdateMetrics::td_loss`]; `None` where they had none.
    #[serde(default)]
    pub td_loss: Option<f64>,
}

/// When an update was made, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// Time spent training at the end of the update, s.
    pub(super) at: f64,
    /// Duration of the update itself, s.
    pub(super) learner: f64,
    /// Time that an actor waited since the previous update, as a mean over the actors, s.
    pub(super) waited: f64,
}

/// Accumulates the figures of a [`CurvePoint`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Statistics {
    pub(super) steps: u64,
    pub(super) updates: u64,
    pub(super) dropped: u64,
    /// Recent episodes of all tasks.
    #[serde(rename = "late")]
    recent: RecentEpisodes,
    /// Recent episodes of each task, by its index.
    tasks: Vec<RecentEpisodes>,
    /// The last [`UPDATES`] updates and the one before: timing, steps until then, metrics.
    /// Not part of a checkpoint.
    #[serde(skip)]
    ring: VecDeque<(Timing, u64, UpdateMetrics)>,
}

/// Returns and lengths of the last [`EPISODES`] episodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct RecentEpisodes {
    /// Number of episodes that have ever ended.
    episodes: u64,
    /// Return and steps of the recent ones, oldest first.
    #[serde(rename = "late")]
    recent: VecDeque<(f64, u64)>,
}

impl Statistics {
    /// Statistics without episodes and updates, of this many tasks.
    pub(super) fn new(tasks: usize) -> Self {
        Self {
            tasks: vec![RecentEpisodes::default(); tasks],
            ..Self::default()
        }
    }

    /// Counts an episode that has ended.
    pub(super) fn episode(&mut self, episode: &Episode) {
        self.recent.push(episode);
        if let Some(task) = self.tasks.get_mut(episode.task) {
            task.push(episode);
        }
    }

    /// Counts an update that learnt from `steps` environment steps.
    pub(super) fn update(&mut self, metrics: UpdateMetrics, steps: u64, timing: Timing) {
        self.steps += steps;
        self.updates += 1;
        if self.ring.len() > UPDATES {
            self.ring.pop_front();
        }
        self.ring.push_back((timing, self.steps, metrics));
    }

    /// Whether this part of the run has made an update.
    pub(super) fn has_updates(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Mean return of the last [`EPISODES`] episodes; `None` while there were fewer.
    pub(super) fn settled_return(&self) -> Option<f64> {
        (self.recent.recent.len() == EPISODES).then(|| self.recent.mean())
    }

    /// Mean return of the last [`EPISODES`] episodes, or of all while there were fewer; `None`
    /// before the first has ended.
    pub(super) fn recent_return(&self) -> Option<f64> {
        (self.recent.episodes > 0).then(|| self.recent.mean())
    }

    /// The figures after `seconds` of training, with a name for each task's index.
    pub(super) fn point(&self, seconds: f64, name: impl Fn(usize) -> String) -> CurvePoint {
        let mean = |of: &dyn Fn(&UpdateMetrics) -> f64| {
            let count = self.ring.len().max(1) as f64;
            self.ring
                .iter()
                .map(|(_, _, update)| of(update))
                .sum::<f64>()
                / count
        };
        let actions = self
            .ring
            .back()
            .map_or(0, |(_, _, update)| update.actions.len());
        // Rates refer to the time between the end of the oldest update and the end of the newest.
        let (span, steps) = match (self.ring.front(), self.ring.back()) {
            (Some((first, before, _)), Some((last, after, _))) if last.at > first.at => {
                (last.at - first.at, after - before)
            }
            _ => (f64::INFINITY, 0),
        };
        let time = |of: &dyn Fn(&Timing) -> f64| {
            self.ring
                .iter()
                .skip(1)
                .map(|(timing, ..)| of(timing))
                .sum::<f64>()
                / span
        };
        CurvePoint {
            steps: self.steps,
            updates: self.updates,
            seconds,
            episodes: self.recent.episodes,
            episode_return: self.recent_return(),
            episode_steps: (self.recent.episodes > 0).then(|| self.recent.mean_steps()),
            tasks: (0..)
                .zip(&self.tasks)
                .filter(|(_, task)| task.episodes > 0)
                .map(|(index, task)| TaskPoint {
                    name: name(index),
                    episodes: task.episodes,
                    episode_return: task.mean(),
                    td_loss: self.td_loss(index),
                })
                .collect(),
            policy_loss: mean(&|update| update.policy_loss),
            baseline_loss: mean(&|update| update.baseline_loss),
            prediction_loss: mean(&|update| update.prediction_loss),
            td_loss: mean(&|update| update.td_loss),
            mc_loss: mean(&|update| update.mc_loss),
            entropy: mean(&|update| update.entropy),
            divergence: mean(&|update| update.divergence),
            gradient_norm: mean(&|update| update.gradient_norm),
            learning_rate: self
                .ring
                .back()
                .map_or(0.0, |(_, _, update)| update.learning_rate),
            policy_lag: mean(&|update| update.lag),
            actions: (0..actions)
                .map(|action| mean(&|update| update.actions[action]))
                .collect(),
            constraints: (self.ring.back())
                .map_or_else(Vec::new, |(.., update)| update.constraints.clone()),
            dropped: self.dropped,
            steps_per_second: steps as f64 / span,
            learner_utilization: time(&|timing| timing.learner),
            actor_utilization: 1.0 - time(&|timing| timing.waited),
            exchange: None,
            replay: None,
        }
    }
}

impl Statistics {
    /// Mean squared temporal difference of a task's steps in the recent updates; `None` if it had
    /// none.
    fn td_loss(&self, task: usize) -> Option<f64> {
        let recent = self
            .ring
            .iter()
            .filter_map(|(.., update)| update.tasks.get(task));
        let sum = recent.fold(TaskErrors::default(), |sum, of| TaskErrors {
            steps: sum.steps + of.steps,
            td_loss: sum.td_loss + of.td_loss,
        });
        (sum.steps > 0).then(|| sum.td_loss / sum.steps as f64)
    }
}

impl RecentEpisodes {
    fn push(&mut self, episode: &Episode) {
        self.episodes += 1;
        if self.recent.len() == EPISODES {
            self.recent.pop_front();
        }
        self.recent.push_back((episode.total, episode.steps));
    }

    fn mean(&self) -> f64 {
        self.recent.iter().map(|(total, _)| total).sum::<f64>() / self.recent.len().max(1) as f64
    }

    fn mean_steps(&self) -> f64 {
        self.recent
            .iter()
            .map(|(_, steps)| *steps as f64)
            .sum::<f64>()
            / self.recent.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_are_those_of_the_last_100_episodes() {
        let mut statistics = Statistics::new(3);
        for total in 0..150 {
            assert_eq!(statistics.settled_return().is_some(), total >= 100);
            statistics.episode(&Episode {
                task: total % 2,
                total: total as f64,
                steps: 7,
                intervals: 7.0,
            });
        }
        let point = statistics.point(1.0, |task| format!("link {task}"));
        assert_eq!(statistics.settled_return(), Some(99.5));
        assert_eq!(
            (point.episodes, point.episode_return, point.episode_steps),
            (150, Some(99.5), Some(7.0))
        );
        // Tasks without episodes are left out.
        let tasks: Vec<_> = point
            .tasks
            .iter()
            .map(|task| (&*task.name, task.episodes, task.episode_return))
            .collect();
        assert_eq!(tasks, [("link 0", 75, 74.0), ("link 1", 75, 75.0)]);
    }

    #[test]
    fn means_and_rates_are_those_of_recent_updates() {
        let mut statistics = Statistics::new(1);
        for update in 0..200 {
            let late = update >= 100;
            statistics.update(
                UpdateMetrics {
                    entropy: if late { 0.5 } else { 1.0 },
                    actions: vec![0.25, 0.75],
                    // The first task has a step in every third update.
                    tasks: [u64::from(update % 3 == 0), 20, 0]
                        .map(|steps| TaskErrors {
                            steps,
                            td_loss: steps as f64 * if late { 2.0 } else { 9.0 },
                        })
                        .to_vec(),
                    ..UpdateMetrics::default()
                },
                640,
                Timing {
                    at: f64::from(update) * 2.0,
                    learner: 0.5,
                    waited: 1.0,
                },
            );
        }
        let point = statistics.point(400.0, |_| String::new());
        assert_eq!((point.steps, point.updates), (128_000, 200));
        assert_eq!((point.entropy, point.steps_per_second), (0.5, 320.0));
        assert_eq!(
            (point.learner_utilization, point.actor_utilization),
            (0.25, 0.5)
        );
        assert_eq!(point.actions, [0.25, 0.75]);
        assert_eq!(
            [0, 1, 2, 3].map(|task| statistics.td_loss(task)),
            [Some(2.0), Some(2.0), None, None]
        );
    }
}
