//! A corridor on a grid that ends in a T-junction: a task that needs memory.
//!
//! This is the T-maze of B. Bakker, "Reinforcement Learning with Long Short-Term Memory" (NIPS
//! 2001). A sign at the corridor's start shows at which of the two ends behind the junction the
//! prize lies. The walker sees only the walls around it and the sign of its own square, so that at
//! the junction it must remember the sign. With [`GridWorldConfig::memory`] off, the sign is
//! visible on every square and no memory is needed.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{End, Environment, Spec, Turn};

/// Reward of a step that does not reach an end.
const STEP: f32 = -0.02;
/// Reward of the end with the prize.
const PRIZE: f32 = 1.0;
/// Reward of the end without the prize.
const WRONG: f32 = -0.5;

/// Settings of a [`GridWorld`]: its size, and whether it needs memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GridWorldConfig {
    /// Number of squares from the start to the junction.
    pub length: u32,
    /// Whether the sign is visible at the start only, so that the policy must remember it.
    pub memory: bool,
}

impl Default for GridWorldConfig {
    fn default() -> Self {
        Self {
            length: 6,
            memory: true,
        }
    }
}

impl GridWorldConfig {
    /// Number of steps after which an episode is truncated.
    fn limit(&self) -> u32 {
        4 * (self.length + 1)
    }
}

/// The environment, with one seat.
///
/// Its six observations are 0 or 1: whether the way north, east, south and west is free, then
/// whether the sign points north and whether it points south. Its four actions are steps north,
/// east, south and west; a step into a wall leaves the walker where it is.
#[derive(Debug)]
pub struct GridWorld {
    config: GridWorldConfig,
    random: StdRng,
    /// Number of squares between the start and the walker.
    at: u32,
    /// Whether the prize lies north of the junction, rather than south.
    north: bool,
    steps: u32,
    action: Option<usize>,
}

impl GridWorld {
    /// Creates an environment. The seed fixes on which side the prize of each episode lies.
    pub fn new(config: &GridWorldConfig, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        Self {
            config: config.clone(),
            north: random.random(),
            random,
            at: 0,
            steps: 0,
            action: None,
        }
    }

    /// Takes one step; returns its reward, and how it ended the episode if it did.
    fn walk(&mut self, action: usize) -> (f32, Option<End>) {
        self.steps += 1;
        let junction = self.at == self.config.length;
        match action {
            0 | 2 if junction => {
                let right = (action == 0) == self.north;
                return (if right { PRIZE } else { WRONG }, Some(End::Terminated));
            }
            1 if !junction => self.at += 1,
            3 => self.at = self.at.saturating_sub(1),
            _ => {}
        }
        let end = (self.steps == self.config.limit()).then_some(End::Truncated);
        (STEP, end)
    }

    fn look(&self, observation: &mut Vec<f32>) {
        let junction = self.at == self.config.length;
        let sign = self.at == 0 || !self.config.memory;
        observation.clear();
        observation.extend(
            [
                junction,
                !junction,
                junction,
                self.at > 0,
                sign && self.north,
                sign && !self.north,
            ]
            .map(|seen| f32::from(u8::from(seen))),
        );
    }
}

impl Environment for GridWorld {
    fn spec(&self) -> Spec {
        Spec {
            seats: 1,
            observation: 6,
            privileged: 0,
            actions: 4,
            tasks: 1,
        }
    }

    fn next(&mut self, turn: &mut Turn) {
        turn.seat = 0;
        turn.task = 0;
        turn.privileged.clear();
        (turn.reward, turn.first) = match self.action {
            None => (0.0, Some(End::Truncated)),
            Some(action) => self.walk(action),
        };
        turn.observed_reward = turn.reward;
        if turn.first.is_some() {
            self.at = 0;
            self.steps = 0;
            self.north = self.random.random();
            turn.observed_reward = 0.0;
        }
        self.look(&mut turn.observation);
    }

    fn act(&mut self, action: usize) {
        self.action = Some(action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks one episode with a policy that knows the sign seen at the start, and returns
    /// the episode's return and end.
    fn walk(
        config: &GridWorldConfig,
        seed: u64,
        turn_for: impl Fn(bool) -> usize,
    ) -> (f32, Option<End>) {
        let mut world = GridWorld::new(config, seed);
        let mut turn = Turn::default();
        world.next(&mut turn);
        let north = turn.observation[4] == 1.0;
        assert_ne!(turn.observation[4], turn.observation[5]);
        let mut total = 0.0;
        loop {
            let junction = turn.observation[0] == 1.0;
            world.act(if junction { turn_for(north) } else { 1 });
            world.next(&mut turn);
            total += turn.reward;
            if turn.first.is_some() {
                return (total, turn.first);
            }
            let sees = turn.observation[4] + turn.observation[5];
            assert_eq!(sees, if config.memory { 0.0 } else { 1.0 });
        }
    }

    #[test]
    fn the_prize_is_where_the_sign_points() {
        for memory in [true, false] {
            let config = GridWorldConfig { length: 6, memory };
            for seed in 0..8 {
                let (right, end) = walk(&config, seed, |north| if north { 0 } else { 2 });
                assert!((right - (1.0 - 6.0 * 0.02)).abs() < 1e-5);
                assert_eq!(end, Some(End::Terminated));
                let (wrong, _) = walk(&config, seed, |north| if north { 2 } else { 0 });
                assert!((wrong - (-0.5 - 6.0 * 0.02)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn an_episode_without_progress_is_truncated() {
        let config = GridWorldConfig::default();
        let (total, end) = walk(&config, 1, |_| 1);
        assert_eq!(end, Some(End::Truncated));
        assert!((total + 28.0 * 0.02).abs() < 1e-5);
    }
}
