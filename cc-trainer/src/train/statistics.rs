//! How a run goes: returns of late episodes, means over late updates.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{learner::Update, rollout::Episode};

/// Episodes whose mean return counts.
pub(super) const EPISODES: usize = 100;
/// Updates over which the rest is averaged.
const UPDATES: usize = 50;

/// What a run has come to at some step: a point of its curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Environment steps learnt from.
    pub steps: u64,
    /// Updates.
    pub updates: u64,
    /// Time spent training, s.
    pub seconds: f64,
    /// Episodes that have ended.
    pub episodes: u64,
    /// Mean return of the last 100 of them; none before the first.
    pub episode_return: Option<f64>,
    /// Mean steps of those.
    pub episode_steps: Option<f64>,
    /// The same a task, for those tasks that had an episode.
    pub tasks: Vec<TaskPoint>,
    /// As [`Update::policy_loss`], like what follows a mean over the last updates.
    pub policy_loss: f64,
    /// As [`Update::baseline_loss`].
    pub baseline_loss: f64,
    /// As [`Update::td_loss`].
    #[serde(default)]
    pub td_loss: f64,
    /// As [`Update::mc_loss`].
    #[serde(default)]
    pub mc_loss: f64,
    /// As [`Update::entropy`], nats.
    pub entropy: f64,
    /// As [`Update::divergence`].
    pub divergence: f64,
    /// As [`Update::gradient_norm`].
    pub gradient_norm: f64,
    /// As [`Update::learning_rate`].
    pub learning_rate: f64,
    /// Updates between the policy that acted and the one that learnt.
    pub policy_lag: f64,
    /// Share of each action.
    pub actions: Vec<f64>,
    /// Rollouts that were dropped, in all.
    pub dropped: u64,
    /// Environment steps learnt from in a second.
    pub steps_per_second: f64,
    /// Share of the time that the learner learnt.
    pub learner_utilization: f64,
    /// Share of the time that actors acted.
    pub actor_utilization: f64,
}

/// How a task goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskPoint {
    /// The task's name.
    pub name: String,
    /// Episodes that have ended.
    pub episodes: u64,
    /// Mean return of the last 100 of them.
    pub episode_return: f64,
}

/// When, and for how long, an update was made. Times in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// Time spent training, at the update's end.
    pub(super) at: f64,
    /// What the learner needed for it.
    pub(super) learner: f64,
    /// What actors waited meanwhile, as a mean over them.
    pub(super) waited: f64,
}

/// Gathers what a [`Point`] tells.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Statistics {
    pub(super) steps: u64,
    pub(super) updates: u64,
    pub(super) dropped: u64,
    late: Window,
    tasks: Vec<Window>,
    #[serde(skip)]
    ring: VecDeque<(Timing, u64, Update)>,
}

/// Late episodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Window {
    episodes: u64,
    late: VecDeque<(f64, u64)>,
}

impl Statistics {
    pub(super) fn new(tasks: usize) -> Self {
        Self {
            tasks: vec![Window::default(); tasks],
            ..Self::default()
        }
    }

    pub(super) fn episode(&mut self, episode: &Episode) {
        self.late.push(episode);
        if let Some(task) = self.tasks.get_mut(episode.task) {
            task.push(episode);
        }
    }

    /// Counts an update that learnt from so many steps.
    pub(super) fn update(&mut self, update: Update, steps: u64, timing: Timing) {
        self.steps += steps;
        self.updates += 1;
        if self.ring.len() > UPDATES {
            self.ring.pop_front();
        }
        self.ring.push_back((timing, self.steps, update));
    }

    /// Whether there was an update in this part of the run.
    pub(super) fn has_news(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Mean return of the last 100 episodes, once there are so many.
    pub(super) fn full_window(&self) -> Option<f64> {
        (self.late.late.len() == EPISODES).then(|| self.late.mean())
    }

    /// How it stands. Tasks have names.
    pub(super) fn point(&self, seconds: f64, name: impl Fn(usize) -> String) -> Point {
        let mean = |of: &dyn Fn(&Update) -> f64| {
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
        // Rates are over the time from the oldest update's end to the newest's.
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
        Point {
            steps: self.steps,
            updates: self.updates,
            seconds,
            episodes: self.late.episodes,
            episode_return: (self.late.episodes > 0).then(|| self.late.mean()),
            episode_steps: (self.late.episodes > 0).then(|| self.late.mean_steps()),
            tasks: (0..)
                .zip(&self.tasks)
                .filter(|(_, task)| task.episodes > 0)
                .map(|(index, task)| TaskPoint {
                    name: name(index),
                    episodes: task.episodes,
                    episode_return: task.mean(),
                })
                .collect(),
            policy_loss: mean(&|update| update.policy_loss),
            baseline_loss: mean(&|update| update.baseline_loss),
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
            dropped: self.dropped,
            steps_per_second: steps as f64 / span,
            learner_utilization: time(&|timing| timing.learner),
            actor_utilization: 1.0 - time(&|timing| timing.waited),
        }
    }
}

impl Window {
    fn push(&mut self, episode: &Episode) {
        self.episodes += 1;
        if self.late.len() == EPISODES {
            self.late.pop_front();
        }
        self.late.push_back((episode.total, episode.steps));
    }

    fn mean(&self) -> f64 {
        self.late.iter().map(|(total, _)| total).sum::<f64>() / self.late.len().max(1) as f64
    }

    fn mean_steps(&self) -> f64 {
        self.late
            .iter()
            .map(|(_, steps)| *steps as f64)
            .sum::<f64>()
            / self.late.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_are_those_of_the_last_100_episodes() {
        let mut statistics = Statistics::new(3);
        for total in 0..150 {
            assert_eq!(statistics.full_window().is_some(), total >= 100);
            statistics.episode(&Episode {
                task: total % 2,
                total: total as f64,
                steps: 7,
            });
        }
        let point = statistics.point(1.0, |task| format!("link {task}"));
        assert_eq!(statistics.full_window(), Some(99.5));
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
    fn rates_are_those_of_late_updates() {
        let mut statistics = Statistics::new(1);
        for update in 0..200 {
            let late = update >= 100;
            statistics.update(
                Update {
                    entropy: if late { 0.5 } else { 1.0 },
                    actions: vec![0.25, 0.75],
                    ..Update::default()
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
    }
}
