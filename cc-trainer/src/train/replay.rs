//! Replay: rollouts that were learnt from are kept for a while, and are learnt from again beside
//! new ones.
//!
//! It is for environments that are starved of data, such as those that run by the clock: a learner
//! that waits for rollouts can as well learn more from those that it has. V-trace corrects for the
//! policies that took their actions, whose probabilities are stored with them: the older a rollout,
//! the smaller are its importance weights, and the less it says (Espeholt et al., arXiv 1802.01561,
//! section 5.2.2, where half of each batch is replayed). The stored state of an LSTM is that of an
//! earlier policy, for which there is
//! [`LearnerSettings::burn_in`](crate::learner::LearnerSettings::burn_in).
//!
//! A thread keeps the rollouts, draws from them and copies what is drawn. The learner's thread
//! hands over what it has learnt from and takes up what was drawn for the next update.

use std::{
    collections::VecDeque,
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use rand::{SeedableRng, rngs::StdRng, seq::index};
use serde::{Deserialize, Serialize};

use crate::{learner::ReplaySettings, rollout::Rollout};

/// What has been replayed since the learner's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayPoint {
    /// Rollouts that are kept at the moment.
    pub kept: u64,
    /// Share of the rollouts learnt from that were replayed.
    pub share: f64,
    /// Mean age of the replayed rollouts: updates since the policy of their first action.
    pub lag_mean: f64,
    /// The largest age of a rollout that was replayed, updates.
    pub lag_max: u64,
}

/// How many rollouts of each update are new.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mixture {
    /// Number of rollouts in a batch.
    batch: usize,
    /// Number of replayed rollouts for each new one.
    ratio: f64,
}

impl Mixture {
    /// The mixture of a configuration; `None` for no replay.
    pub(super) fn new(batch: usize, replay: Option<&ReplaySettings>) -> Self {
        let ratio = replay.map_or(0.0, |replay| replay.ratio);
        Self { batch, ratio }
    }

    /// The number of new rollouts in the update after `updates` others. Where the ratio divides no
    /// batch it varies by one from update to update, so that the ratio holds over many.
    pub(super) fn fresh(&self, updates: u64) -> usize {
        let share = self.batch as f64 / (1.0 + self.ratio);
        let until = |updates: u64| (share * updates as f64).floor() as u64;
        (until(updates + 1) - until(updates)) as usize
    }

    /// The number of replayed ones.
    fn replayed(&self, updates: u64) -> usize {
        self.batch - self.fresh(updates)
    }
}

/// Rollouts that were learnt from, of which some are drawn to be learnt from again.
#[derive(Debug)]
struct Memory {
    /// The rollouts, those first that were added first.
    kept: VecDeque<Rollout>,
    capacity: usize,
    /// Largest age of a rollout that is drawn, updates.
    max_lag: Option<u64>,
    random: StdRng,
}

impl Memory {
    fn new(settings: &ReplaySettings, seed: u64) -> Self {
        Self {
            kept: VecDeque::new(),
            capacity: settings.capacity,
            max_lag: settings.max_lag,
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// Adds rollouts, in the place of the oldest where there is no room.
    fn add(&mut self, rollouts: Vec<Rollout>) {
        self.kept.extend(rollouts);
        let surplus = self.kept.len().saturating_sub(self.capacity);
        self.kept.drain(..surplus);
    }

    /// Copies `count` of the rollouts, each with the same probability and none twice, for the
    /// update after `updates` others; fewer while there are not as many.
    fn draw(&mut self, count: usize, updates: u64) -> Vec<Rollout> {
        if let Some(most) = self.max_lag {
            let oldest = updates.saturating_sub(most);
            self.kept.retain(|rollout| rollout.version >= oldest);
        }
        let kept = self.kept.len();
        let drawn = index::sample(&mut self.random, kept, count.min(kept));
        drawn.into_iter().map(|at| self.kept[at].clone()).collect()
    }
}

/// What the learner tells the thread after an update.
struct Learnt {
    /// The rollouts that were learnt from for the first time.
    fresh: Vec<Rollout>,
    /// Number of updates that there have been.
    updates: u64,
}

/// What the thread has for the next update.
struct Drawn {
    rollouts: Vec<Rollout>,
    /// Number of rollouts that are kept.
    kept: u64,
}

/// The learner's side of the thread that keeps rollouts. The thread ends with it.
#[derive(Debug)]
pub(super) struct Replay {
    learnt: Sender<Learnt>,
    drawn: Receiver<Drawn>,
    /// Whether an update has been told of whose drawn rollouts were not taken yet.
    is_due: bool,
    kept: u64,
    /// Rollouts learnt from: new ones and replayed ones.
    fresh: u64,
    replayed: u64,
    lag_sum: u64,
    lag_max: u64,
}

impl Replay {
    /// Starts the thread, which keeps nothing yet, for batches of so many rollouts.
    ///
    /// # Errors
    ///
    /// Returns the error of the system when there can be no thread.
    pub(super) fn start(batch: usize, settings: &ReplaySettings, seed: u64) -> io::Result<Self> {
        let mixture = Mixture::new(batch, Some(settings));
        let (learnt, told) = mpsc::channel::<Learnt>();
        let (draws, drawn) = mpsc::channel();
        let mut memory = Memory::new(settings, seed);
        let keep = move || {
            for Learnt { fresh, updates } in told {
                memory.add(fresh);
                let drawn = Drawn {
                    rollouts: memory.draw(mixture.replayed(updates), updates),
                    kept: memory.kept.len() as u64,
                };
                if draws.send(drawn).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("replay".into()).spawn(keep)?;
        Ok(Self {
            learnt,
            drawn,
            is_due: false,
            kept: 0,
            fresh: 0,
            replayed: 0,
            lag_sum: 0,
            lag_max: 0,
        })
    }

    /// Appends what is replayed in the update after `updates` others to its new rollouts. Nothing
    /// is in the first update since the start.
    pub(super) fn complete(&mut self, rollouts: &mut Vec<Rollout>, updates: u64) {
        self.fresh += rollouts.len() as u64;
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        // Without the thread, which a panic alone can end, there is no more replay.
        let Ok(mut drawn) = self.drawn.recv() else {
            return;
        };
        self.kept = drawn.kept;
        self.replayed += drawn.rollouts.len() as u64;
        for rollout in &drawn.rollouts {
            let lag = updates.saturating_sub(rollout.version);
            self.lag_sum += lag;
            self.lag_max = self.lag_max.max(lag);
        }
        rollouts.append(&mut drawn.rollouts);
    }

    /// Hands over the new rollouts of an update, after which there have been `updates` of them, and
    /// has those drawn that the next one replays.
    pub(super) fn keep(&mut self, mut rollouts: Vec<Rollout>, fresh: usize, updates: u64) {
        rollouts.truncate(fresh);
        let learnt = Learnt {
            fresh: rollouts,
            updates,
        };
        self.is_due = self.learnt.send(learnt).is_ok();
    }

    /// What has been replayed since the start.
    pub(super) fn point(&self) -> ReplayPoint {
        let all = (self.fresh + self.replayed).max(1) as f64;
        ReplayPoint {
            kept: self.kept,
            share: self.replayed as f64 / all,
            lag_mean: self.lag_sum as f64 / self.replayed.max(1) as f64,
            lag_max: self.lag_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        learner::{LearnerSettings, partners::tests as partners},
        model::{Activation, Outputs, Shape},
    };

    fn settings(ratio: f64, capacity: usize, max_lag: Option<u64>) -> ReplaySettings {
        ReplaySettings {
            ratio,
            capacity,
            max_lag,
        }
    }

    fn of(versions: impl IntoIterator<Item = u64>) -> Vec<Rollout> {
        let of = |version| Rollout {
            version,
            ..Rollout::default()
        };
        versions.into_iter().map(of).collect()
    }

    fn versions(rollouts: &[Rollout]) -> Vec<u64> {
        rollouts.iter().map(|rollout| rollout.version).collect()
    }

    proptest! {
        /// Over any number of updates there are as many new rollouts as the ratio asks for, but for
        /// one, and each update has one at least.
        #[test]
        fn the_ratio_holds(batch in 1..64usize, share in 0.0..1.0f64, updates in 1..500u64) {
            let ratio = share * (batch - 1) as f64;
            let mixture = Mixture::new(batch, Some(&settings(ratio, 1, None)));
            let fresh: usize = (0..updates).map(|update| mixture.fresh(update)).sum();
            let expected = updates as f64 * batch as f64 / (1.0 + ratio);
            prop_assert!((fresh as f64 - expected).abs() < 1.0 + 1e-6, "{fresh} of {expected}");
            for update in 0..updates {
                prop_assert!((1..=batch).contains(&mixture.fresh(update)));
                prop_assert_eq!(mixture.fresh(update) + mixture.replayed(update), batch);
            }
        }
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for_and_nothing_beyond_the_bound_is_drawn() {
        let mut memory = Memory::new(&settings(1.0, 5, Some(6)), 1);
        for version in 0..20 {
            memory.add(of([version, version]));
            assert!(memory.kept.len() <= 5);
        }
        let mut all = versions(&memory.draw(9, 20));
        all.sort_unstable();
        assert_eq!(all, [17, 18, 18, 19, 19], "each of them once");
        assert_eq!(versions(&memory.draw(9, 25)), [19, 19]);
        assert!(memory.draw(9, 26).is_empty() && memory.kept.is_empty());
    }

    #[test]
    fn all_that_is_kept_is_drawn_equally_often_and_the_seed_determines_which() {
        let drawn = |seed: u64| {
            let mut memory = Memory::new(&settings(1.0, 10, None), seed);
            memory.add(of(0..10));
            (0..1000)
                .flat_map(|_| versions(&memory.draw(3, 10)))
                .collect::<Vec<_>>()
        };
        let first = drawn(7);
        assert_eq!(first, drawn(7));
        assert_ne!(first, drawn(8));
        for version in 0..10 {
            // Binomial(1000, 0.3): the standard deviation is 14.5.
            let times = first.iter().filter(|own| **own == version).count();
            assert!((227..373).contains(&times), "{version}: {times} times");
        }
    }

    #[test]
    fn an_update_replays_what_earlier_ones_have_learnt_from_and_lags_are_counted() {
        let settings = settings(1.0, 100, None);
        let mixture = Mixture::new(4, Some(&settings));
        let mut replay = Replay::start(4, &settings, 1).expect("a thread");
        for updates in 0..50 {
            let fresh = mixture.fresh(updates);
            let mut rollouts = of((0..fresh).map(|_| updates));
            replay.complete(&mut rollouts, updates);
            let replayed = versions(&rollouts[fresh..]);
            assert_eq!(replayed.len(), if updates == 0 { 0 } else { 2 });
            assert!(replayed.iter().all(|version| *version < updates));
            replay.keep(rollouts, fresh, updates + 1);
        }
        let point = replay.point();
        assert_eq!((point.kept, point.share), (98, 98.0 / 198.0));
        assert!(point.lag_mean > 1.0 && point.lag_mean < 49.0, "{point:?}");
        assert!(point.lag_max > 10 && point.lag_max <= 49, "{point:?}");
    }

    /// The probabilities with which a rollout's actions were taken are stored with it: importance
    /// weights are those of the learner's present policy over these.
    #[test]
    fn replayed_rollouts_are_weighted_by_their_stored_probabilities() {
        const STEPS: usize = 3;
        let shape = Shape {
            observation: 2,
            hidden: vec![3],
            activation: Activation::Tanh,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let learner_settings = LearnerSettings {
            unroll: STEPS,
            learning_rate: 0.1,
            ..LearnerSettings::default()
        };
        let mut learner = partners::learner(&shape, 1, &learner_settings);
        let mut memory = Memory::new(&settings(1.0, 4, None), 1);
        let first = partners::rollouts(&shape, 1, STEPS, 2, 1);
        for _ in 0..5 {
            learner.update(&first, 0.0).expect("finite");
        }
        memory.add(first);
        let drawn = memory.draw(2, 5);
        // ln μ − ln π of each action by the stored logits and by the present network.
        let mut device = crate::model::Cpu::<f32>::new(&shape, 1).expect("a thread");
        device.set_parameters(&partners::parameters(&learner));
        let log = |logits: &[f32], action: u32| {
            let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            f64::from(logits[action as usize]) - sum.ln()
        };
        let mut expected = 0.0;
        for rollout in &drawn {
            let mut outputs = Outputs::default();
            let input = crate::model::Sequences {
                steps: STEPS + 1,
                batch_size: 1,
                observation: &rollout.observation,
                reward: &rollout.observed_reward,
                not_done: &[1.0; STEPS + 1],
                privileged: &[],
                h: &[],
                c: &[],
            };
            device.forward(&input, &mut outputs);
            for step in 0..STEPS {
                let of = |logits: &[f32]| log(&logits[2 * step..][..2], rollout.action[step]);
                expected += (of(&rollout.logits) - of(&outputs.logits)) / (2 * STEPS) as f64;
            }
        }
        let metrics = learner.update(&drawn, 0.0).expect("finite");
        assert!(expected.abs() > 1e-3, "the policy has moved: {expected}");
        assert!((metrics.divergence - expected).abs() < 1e-5, "{metrics:?}");
        assert_eq!(metrics.lag, 5.0);
    }
}
