//! Clipping and normalisation of rewards before the learner uses them.

use serde::{Deserialize, Serialize};

use super::settings::{Clipping, LearnerSettings, Normalisation};

/// The smallest variance that rewards are normalised with.
const VARIANCE_FLOOR: f64 = 1e-8;

impl Clipping {
    /// Clips one reward by this rule.
    pub fn apply(self, reward: f32) -> f32 {
        match self {
            Self::None => reward,
            Self::AbsOne => reward.clamp(-1.0, 1.0),
            Self::SoftAsymmetric => {
                let soft = 5.0 * (reward / 5.0).tanh();
                if soft < 0.0 { 0.3 * soft } else { soft }
            }
        }
    }
}

/// Running mean and mean square of the rewards of each task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardStatistics {
    tasks: Vec<RewardMoments>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RewardMoments {
    count: u64,
    mean: f64,
    square: f64,
}

impl RewardStatistics {
    /// Statistics without rewards, of this many tasks.
    pub fn new(tasks: usize) -> Self {
        Self {
            tasks: vec![RewardMoments::default(); tasks],
        }
    }

    /// Number of tasks that are told apart.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The sums over a batch that [`normalise`](Self::normalise) needs: the count of the rewards
    /// that are `known`, their sum and their sum of squares, of each task. What stands for a reward
    /// that nobody knows says nothing about rewards. Empty where rewards are not normalised by
    /// statistics.
    pub(super) fn sums(
        &self,
        rewards: &[f32],
        tasks: &[usize],
        known: &[bool],
        settings: &LearnerSettings,
    ) -> Vec<f64> {
        if !by_statistics(settings) {
            return Vec::new();
        }
        let mut sums = vec![[0.0; 3]; self.tasks.len()];
        for ((&reward, &task), _) in rewards
            .iter()
            .zip(tasks)
            .zip(known)
            .filter(|(_, known)| **known)
        {
            let [count, sum, squares] = &mut sums[statistics_of(task, settings)];
            *count += 1.0;
            *sum += f64::from(reward);
            *squares += f64::from(reward).powi(2);
        }
        sums.into_flattened()
    }

    /// Updates the statistics with the [`sums`](Self::sums) over a batch, and normalises the
    /// rewards: r becomes (r − μ)/σ·√(1 − γ²), with which discounted sums of independent rewards
    /// have a deviation of 1. Mean and mean square are plain averages at first, and forget
    /// exponentially later.
    pub(super) fn normalise(
        &mut self,
        rewards: &mut [f32],
        tasks: &[usize],
        sums: &[f64],
        settings: &LearnerSettings,
    ) {
        if settings.reward_normalisation == Normalisation::Horizon {
            for reward in rewards.iter_mut() {
                *reward *= 1.0 - settings.discount;
            }
        }
        if !by_statistics(settings) {
            return;
        }
        for (moments, sum) in self.tasks.iter_mut().zip(sums.as_chunks::<3>().0) {
            moments.learn(*sum, settings.reward_memory);
        }
        let scale = (1.0 - f64::from(settings.discount).powi(2)).sqrt();
        for (reward, &task) in rewards.iter_mut().zip(tasks) {
            let moments = &self.tasks[statistics_of(task, settings)];
            *reward = ((f64::from(*reward) - moments.mean) / moments.deviation() * scale) as f32;
        }
    }
}

/// Whether rewards are normalised by the statistics of rewards.
fn by_statistics(settings: &LearnerSettings) -> bool {
    match settings.reward_normalisation {
        Normalisation::None | Normalisation::Horizon => false,
        Normalisation::Global | Normalisation::PerTask => true,
    }
}

/// The index of the statistics that the rewards of a task belong to.
fn statistics_of(task: usize, settings: &LearnerSettings) -> usize {
    match settings.reward_normalisation {
        Normalisation::PerTask => task,
        _ => 0,
    }
}

impl RewardMoments {
    /// Adds new rewards, given by their count, sum and sum of squares, each with a weight of at
    /// least `memory`.
    fn learn(&mut self, [count, sum, squares]: [f64; 3], memory: f64) {
        if count == 0.0 {
            return;
        }
        self.count += count as u64;
        let plain = count / self.count as f64;
        let forgetting = 1.0 - (1.0 - memory).powf(count);
        let weight = plain.max(forgetting);
        self.mean += weight * (sum / count - self.mean);
        self.square += weight * (squares / count - self.square);
    }

    fn deviation(&self) -> f64 {
        (self.square - self.mean * self.mean)
            .max(VARIANCE_FLOOR)
            .sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Normalises the rewards of a batch by statistics that learn them first.
    fn normalise(
        rewards: &mut RewardStatistics,
        batch: &mut [f32],
        tasks: &[usize],
        known: &[bool],
        settings: &LearnerSettings,
    ) {
        let sums = rewards.sums(batch, tasks, known, settings);
        rewards.normalise(batch, tasks, &sums, settings);
    }

    fn settings(reward_normalisation: Normalisation) -> LearnerSettings {
        LearnerSettings {
            reward_normalisation,
            ..LearnerSettings::default()
        }
    }

    #[test]
    fn rewards_are_clipped_by_the_formulas() {
        assert_eq!(Clipping::None.apply(-7.0), -7.0);
        assert_eq!(Clipping::AbsOne.apply(-7.0), -1.0);
        assert_eq!(Clipping::AbsOne.apply(0.5), 0.5);
        assert!((Clipping::SoftAsymmetric.apply(5.0) - 3.807_97).abs() < 1e-4);
        assert!((Clipping::SoftAsymmetric.apply(-5.0) + 1.142_39).abs() < 1e-4);
    }

    #[test]
    fn each_task_is_normalised_by_its_own_statistics() {
        let mut rewards = RewardStatistics::new(2);
        let mut batch = vec![1.0, 100.0, 3.0, 300.0];
        let settings = settings(Normalisation::PerTask);
        normalise(
            &mut rewards,
            &mut batch,
            &[0, 1, 0, 1],
            &[true; 4],
            &settings,
        );
        // In both tasks one reward is a deviation below the mean and one above; times √(1 − 0.99²).
        let unit = (1.0 - 0.99f32 * 0.99).sqrt();
        for (found, expected) in batch.iter().zip([-unit, -unit, unit, unit]) {
            assert!((found - expected).abs() < 1e-5, "{batch:?}");
        }
    }

    #[test]
    fn without_normalisation_rewards_and_statistics_stay() {
        let mut rewards = RewardStatistics::new(1);
        let mut batch = vec![1.0, -2.0];
        let settings = settings(Normalisation::None);
        normalise(&mut rewards, &mut batch, &[0, 0], &[true; 2], &settings);
        assert_eq!(batch, [1.0, -2.0]);
        assert_eq!(rewards, RewardStatistics::new(1));
    }

    /// Recorded flows end with a reward of 0 that nobody knows: among rewards about −3.7 it would
    /// be an outlier.
    #[test]
    fn unknown_rewards_change_no_statistics() {
        for normalisation in [Normalisation::Global, Normalisation::PerTask] {
            let settings = settings(normalisation);
            let known = [true, true, false, true, false];
            let mut batch = [-3.5, -3.7, 0.0, -3.9, 0.0];
            let mut rewards = RewardStatistics::new(1);
            normalise(&mut rewards, &mut batch, &[0; 5], &known, &settings);

            let mut alone = [-3.5, -3.7, -3.9];
            let mut expected = RewardStatistics::new(1);
            normalise(&mut expected, &mut alone, &[0; 3], &[true; 3], &settings);
            assert_eq!(rewards, expected);
            assert_eq!([batch[0], batch[1], batch[3]], alone);

            let before = rewards.clone();
            normalise(&mut rewards, &mut [0.0; 2], &[0; 2], &[false; 2], &settings);
            assert_eq!(rewards, before);
        }
    }

    #[test]
    fn statistics_are_plain_at_first_and_forget_later() {
        let mut rewards = RewardStatistics::new(1);
        let settings = settings(Normalisation::Global);
        for chunk in [[1.0, 2.0], [3.0, 6.0]] {
            normalise(
                &mut rewards,
                &mut chunk.clone(),
                &[0, 0],
                &[true; 2],
                &settings,
            );
        }
        assert!((rewards.tasks[0].mean - 3.0).abs() < 1e-12);
        assert!((rewards.tasks[0].square - 12.5).abs() < 1e-12);
        // After 10^5 zeros a thousand fives weigh 1 − (1 − 1e-4)^1000, not 1/101.
        let mut rewards = RewardStatistics::new(1);
        for (reward, count) in [(0.0, 100_000), (5.0, 1000)] {
            let (tasks, known) = (vec![0; count], vec![true; count]);
            normalise(
                &mut rewards,
                &mut vec![reward; count],
                &tasks,
                &known,
                &settings,
            );
        }
        let weight = 1.0 - (1.0 - 1e-4f64).powi(1000);
        assert!((rewards.tasks[0].mean - 5.0 * weight).abs() < 1e-9);
    }
}
