//! CartPole: balancing a pole on a cart, the customary smallest test of a learning algorithm.
//!
//! The dynamics are those of A. Barto, R. Sutton and C. Anderson, "Neuronlike adaptive elements
//! that can solve difficult learning control problems" (1983), with the constants, limits and
//! episode length of Gym's CartPole-v1. The task counts as solved at a mean return of 475 over 100
//! episodes.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{End, Environment, Spec, Turn};

/// Gravitational acceleration as in Gym, m/s².
const GRAVITY: f64 = 9.8;
/// Mass of the cart, kg.
const CART_MASS: f64 = 1.0;
/// Mass of the pole, kg.
const POLE_MASS: f64 = 0.1;
/// Half of the pole's length, m.
const HALF_LENGTH: f64 = 0.5;
/// Force of a push, N.
const FORCE: f64 = 10.0;
/// Time between two actions, s.
const INTERVAL: f64 = 0.02;
/// Distance from the middle of the track to either end, m.
const TRACK: f64 = 2.4;
/// Largest angle of the pole from upright before the episode terminates, rad.
const LEAN: f64 = 12.0 * std::f64::consts::PI / 180.0;

/// Settings of a [`CartPole`]: the length of an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CartPoleConfig {
    /// Number of steps after which an episode is truncated.
    pub steps: u32,
}

impl Default for CartPoleConfig {
    fn default() -> Self {
        Self { steps: 500 }
    }
}

/// The environment, with one seat.
///
/// Its four observations are the cart's position (m) and velocity (m/s) and the pole's angle
/// (rad) and angular velocity (rad/s). Its two actions push the cart left and right. The
/// reward is 1 per step.
#[derive(Debug)]
pub struct CartPole {
    limit: u32,
    random: StdRng,
    cart: Cart,
    steps: u32,
    action: Option<usize>,
}

impl CartPole {
    /// Creates an environment. The seed fixes the initial state of each episode.
    pub fn new(config: &CartPoleConfig, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        Self {
            limit: config.steps,
            cart: Cart::at_random(&mut random),
            random,
            steps: 0,
            action: None,
        }
    }
}

impl Environment for CartPole {
    fn spec(&self) -> Spec {
        Spec {
            seats: 1,
            observation: 4,
            privileged: 0,
            actions: 2,
            tasks: 1,
        }
    }

    fn next(&mut self, turn: &mut Turn) {
        turn.seat = 0;
        turn.task = 0;
        turn.privileged.clear();
        turn.first = match self.action {
            None => {
                turn.reward = 0.0;
                Some(End::Truncated)
            }
            Some(action) => {
                turn.reward = 1.0;
                self.cart.push(if action == 1 { FORCE } else { -FORCE });
                self.steps += 1;
                match (self.cart.has_failed(), self.steps == self.limit) {
                    (true, _) => Some(End::Terminated),
                    (false, true) => Some(End::Truncated),
                    (false, false) => None,
                }
            }
        };
        turn.observed_reward = turn.reward;
        if turn.first.is_some() {
            self.cart = Cart::at_random(&mut self.random);
            self.steps = 0;
            turn.observed_reward = 0.0;
        }
        turn.observation.clear();
        turn.observation
            .extend(self.cart.state().map(|value| value as f32));
    }

    fn act(&mut self, action: usize) {
        self.action = Some(action);
    }
}

/// State of cart and pole.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cart {
    /// Position relative to the middle of the track, m.
    position: f64,
    /// Velocity of the cart, m/s.
    velocity: f64,
    /// Angle of the pole from upright, rad.
    angle: f64,
    /// Angular velocity of the pole, rad/s.
    spin: f64,
}

impl Cart {
    /// Draws a state that is nearly at rest, in the middle and upright.
    fn at_random(random: &mut StdRng) -> Self {
        let mut near_zero = || random.random_range(-0.05..0.05);
        Self {
            position: near_zero(),
            velocity: near_zero(),
            angle: near_zero(),
            spin: near_zero(),
        }
    }

    /// Integrates one interval under a constant force, by Euler's method with
    /// the derivatives at its start.
    fn push(&mut self, force: f64) {
        let (sin, cos) = self.angle.sin_cos();
        let mass = CART_MASS + POLE_MASS;
        let drive = (force + POLE_MASS * HALF_LENGTH * self.spin * self.spin * sin) / mass;
        let spin_up = (GRAVITY * sin - cos * drive)
            / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos * cos / mass));
        let acceleration = drive - POLE_MASS * HALF_LENGTH * spin_up * cos / mass;
        self.position += INTERVAL * self.velocity;
        self.velocity += INTERVAL * acceleration;
        self.angle += INTERVAL * self.spin;
        self.spin += INTERVAL * spin_up;
    }

    fn has_failed(&self) -> bool {
        self.position.abs() > TRACK || self.angle.abs() > LEAN
    }

    fn state(&self) -> [f64; 4] {
        [self.position, self.velocity, self.angle, self.spin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_moves_cart_and_pole_as_the_equations_say() {
        // From rest and upright: drive = 10/1.1; the pole gets −drive/(0.5·(4/3 − 0.1/1.1)), the
        // cart drive + 0.05·drive/(0.5·(4/3 − 0.1/1.1))/1.1.
        let mut cart = Cart {
            position: 0.0,
            velocity: 0.0,
            angle: 0.0,
            spin: 0.0,
        };
        cart.push(FORCE);
        let drive = 10.0 / 1.1;
        let spin_up = -drive / (0.5 * (4.0 / 3.0 - 0.1 / 1.1));
        assert_eq!((cart.position, cart.angle), (0.0, 0.0));
        assert!((cart.spin - 0.02 * spin_up).abs() < 1e-12);
        assert!((cart.velocity - 0.02 * (drive + 0.05 * -spin_up / 1.1)).abs() < 1e-12);
        // The first step of Gym's CartPole near the origin: 0.195 m/s and −0.293 rad/s.
        assert!((cart.velocity - 0.195).abs() < 1e-3 && (cart.spin + 0.293).abs() < 1e-3);
    }

    #[test]
    fn a_pole_that_falls_terminates_the_episode_and_a_balanced_one_is_truncated() {
        let mut cartpole = CartPole::new(&CartPoleConfig::default(), 1);
        let mut turn = Turn::default();
        cartpole.next(&mut turn);
        assert_eq!(
            (turn.first, turn.reward, turn.observation.len()),
            (Some(End::Truncated), 0.0, 4)
        );
        let mut steps = 0;
        while {
            cartpole.act(1);
            cartpole.next(&mut turn);
            steps += 1;
            turn.first.is_none()
        } {
            assert_eq!(turn.observed_reward, 1.0);
        }
        assert_eq!((turn.first, turn.reward), (Some(End::Terminated), 1.0));
        assert_eq!(turn.observed_reward, 0.0);
        assert!((8..12).contains(&steps), "fell after {steps} steps");

        // A hand-made controller balances until the time limit truncates the episode.
        steps = 0;
        while {
            let [x, v, angle, spin] = [0, 1, 2, 3].map(|at| turn.observation[at]);
            cartpole.act(usize::from(0.1 * x + 0.3 * v + 3.0 * angle + spin > 0.0));
            cartpole.next(&mut turn);
            steps += 1;
            turn.first.is_none()
        } {}
        assert_eq!((turn.first, steps), (Some(End::Truncated), 500));
    }

    #[test]
    fn a_seed_fixes_the_starts() {
        let start = |seed| {
            let mut turn = Turn::default();
            CartPole::new(&CartPoleConfig::default(), seed).next(&mut turn);
            turn.observation
        };
        assert_eq!(start(7), start(7));
        assert_ne!(start(7), start(8));
    }
}
