//! The end of the network where the policy is.

use std::collections::{BTreeMap, VecDeque};

use cc_sim::path::Nanos;

use super::{
    NetworkedConfig,
    world_end::{Decision, Moment, Observed, Progress},
};
use crate::environment::{Spec, Turn};

/// Ages in the observation are in units of this many intervals, so that they are near 1.
pub(super) const AGE: f32 = 10.0;

/// What the policy's end knows. It asks the policy about each observation that is newer than all
/// before.
pub(crate) struct PolicyEnd {
    config: NetworkedConfig,
    spec: Spec,
    memory: Memory,
    /// The observation that the policy was asked about, and the time of that, until it answers.
    asked: Option<(Moment, Nanos)>,
    /// How far the world was at the policy's last turn.
    known: Progress,
}

/// What is known of the present episode.
#[derive(Default)]
struct Memory {
    episode: u64,
    /// The latest observations that arrived, by the number of their interval.
    seen: BTreeMap<u64, Vec<f32>>,
    /// The latest decisions with their times, newest last.
    decided: VecDeque<(Nanos, usize)>,
}

impl PolicyEnd {
    /// The policy's end of a network to a world of the size `world`.
    pub(crate) fn new(config: NetworkedConfig, world: Spec) -> Self {
        let age = usize::from(config.ages);
        Self {
            spec: Spec {
                observation: config.observations * (world.observation + age)
                    + config.decisions * world.actions,
                ..world
            },
            config,
            memory: Memory::default(),
            asked: None,
            known: Progress::BEFORE,
        }
    }

    /// Sizes of what the policy observes and decides.
    pub(crate) fn spec(&self) -> Spec {
        self.spec
    }

    /// Takes an observation that arrived `at`, ns since the beginning of its episode. Returns
    /// whether the policy is to decide; then its turn is written, whose outcome is that of the
    /// world's `progress`.
    pub(crate) fn observe(
        &mut self,
        at: Nanos,
        observed: Observed,
        progress: Progress,
        turn: &mut Turn,
    ) -> bool {
        let Moment { episode, interval } = observed.of;
        if episode > self.memory.episode {
            self.memory = Memory {
                episode,
                ..Memory::default()
            };
        }
        if episode < self.memory.episode {
            return false;
        }
        let is_newest = !self.memory.is_stale(interval);
        (self.memory).add(interval, &observed.turn.observation, &self.config);
        if !is_newest {
            return false;
        }
        *turn = observed.turn;
        self.memory
            .write(at, &self.config, &self.spec, &mut turn.observation);
        let outcome = progress.since(&self.known);
        self.known = progress;
        turn.first = outcome.ended;
        turn.reward = outcome.reward;
        turn.intervals = outcome.steps;
        self.asked = Some((observed.of, at));
        true
    }

    /// The decision that an action is in answer to the last turn, and the time at which it is sent;
    /// `None` where nothing was asked.
    pub(crate) fn decide(&mut self, action: usize) -> Option<(Nanos, Decision)> {
        let (of, at) = self.asked.take()?;
        self.memory.decide(at, action, &self.config);
        Some((at, Decision { of, action }))
    }
}

impl Memory {
    /// Whether an observation is older than one that arrived before it.
    fn is_stale(&self, number: u64) -> bool {
        self.seen
            .last_key_value()
            .is_some_and(|(&newest, _)| newest > number)
    }

    /// Keeps an observation in its place among the latest.
    fn add(&mut self, number: u64, observation: &[f32], config: &NetworkedConfig) {
        self.seen.insert(number, observation.to_vec());
        while self.seen.len() > config.observations {
            self.seen.pop_first();
        }
    }

    /// Keeps a decision, and forgets those that were in force before any that is observed.
    fn decide(&mut self, at: Nanos, action: usize, config: &NetworkedConfig) {
        self.decided.push_back((at, action));
        let horizon = config.decisions as f64 * config.interval_ms * 1e6;
        while let Some(&(next, _)) = self.decided.get(1)
            && next as f64 + horizon <= at as f64
        {
            self.decided.pop_front();
        }
    }

    /// Writes what the policy knows at a time, with zeros for what has not been yet.
    fn write(&self, at: Nanos, config: &NetworkedConfig, spec: &Spec, to: &mut Vec<f32>) {
        let interval = config.interval_ms * 1e6;
        to.clear();
        let stacked = self.seen.iter().rev();
        for (&number, observation) in stacked {
            to.extend(observation);
            if config.ages {
                to.push((at as f64 / interval - number as f64) as f32 / AGE);
            }
        }
        to.resize(spec.observation - config.decisions * spec.actions, 0.0);
        for before in 0..config.decisions {
            let time = at as f64 - before as f64 * interval;
            let decided = self.decided.iter().rev();
            let latest = decided
                .map(|&(at, action)| (at as f64, action))
                .find(|one| one.0 < time);
            to.extend(
                (0..spec.actions)
                    .map(|action| f32::from(latest.is_some_and(|(_, latest)| latest == action))),
            );
        }
    }
}
