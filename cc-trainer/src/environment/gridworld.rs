//! A corridor that ends in a junction, on a grid: a task for memory.
//!
//! The T-maze of Bakker, "Reinforcement Learning with Long Short-Term Memory" (2001). At the corridor's start a sign
//! tells at which of the two ends behind the junction the prize lies. The walker sees only the walls around it
//! and what is written where it stands, so that at the junction it has to remember the sign. With the sign all the way
//! ([`Config::memory`] off) no memory is needed.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{End, Environment, Spec, Turn};

/// What a step costs.
const STEP: f32 = -0.02;
/// What the end with the prize earns.
const PRIZE: f32 = 1.0;
/// What the other end earns.
const WRONG: f32 = -0.5;

/// Settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Squares from the start to the junction.
    pub length: u32,
    /// The sign stands only at the start.
    pub memory: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            length: 6,
            memory: true,
        }
    }
}

impl Config {
    /// Steps after which an episode is cut off.
    fn limit(&self) -> u32 {
        4 * (self.length + 1)
    }
}

/// The environment: one seat; six observations (for each of north, east, south and west whether the way is free, and the
/// sign, two of which say north and south); four actions, a step to each side; a step into a wall goes nowhere.
#[derive(Debug)]
pub struct GridWorld {
    config: Config,
    random: StdRng,
    /// Squares from the start.
    at: u32,
    /// Where the prize is.
    north: bool,
    steps: u32,
    action: Option<usize>,
}

impl GridWorld {
    /// One whose prizes the seed fixes.
    pub fn new(config: &Config, seed: u64) -> Self {
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

    /// One step: what it earns, and how it ends the episode if it does.
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

    /// Walks with a policy that is told the sign seen at the start; gives the first episode's return and end.
    fn walk(config: &Config, seed: u64, turn_for: impl Fn(bool) -> usize) -> (f32, Option<End>) {
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
    fn the_sign_says_where_the_prize_is() {
        for memory in [true, false] {
            let config = Config { length: 6, memory };
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
    fn who_stands_still_is_cut_off() {
        let config = Config::default();
        let (total, end) = walk(&config, 1, |_| 1);
        assert_eq!(end, Some(End::Truncated));
        assert!((total + 28.0 * 0.02).abs() < 1e-5);
    }
}
