//! An environment at the other end of a network: what the policy observes comes late or never, and
//! so does what it decides.
//!
//! The world takes a step per interval (20 ms in CALF's CartPole) and sends what is to be observed
//! before each. The policy decides whenever an observation arrives that is newer than all before;
//! its decisions travel back, and the newest that has arrived is in force until a newer one does,
//! for as many steps as that takes. Time is virtual; the network is that of [`cc_sim::shim`], and
//! each episode draws its own conditions from a range. An episode begins with a connection: its
//! first step waits for a decision, and the first observation is sent each interval until then.
//!
//! Without delay and loss this is the plain environment. Against delay, an observation can have the
//! latest ones that arrived, their ages, and the decisions that may still be on their way.

use std::collections::{BTreeMap, VecDeque};

use cc_sim::{
    path::Nanos,
    seed,
    shim::{Channel, ConditionsRange, Medium},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{
    End, Environment, Spec, Turn,
    cartpole::{CartPole, CartPoleConfig},
    gridworld::{GridWorld, GridWorldConfig},
};

/// Keeps the seed of the network apart from that of the world.
const NETWORK: u64 = 0x6e65_7477_6f72_6b65;
/// Largest number of stacked observations, and of past decisions.
const MOST: usize = 100;
/// Ages in the observation are in units of this many intervals, so that they are near 1.
const AGE: f32 = 10.0;

/// Settings of a [`Networked`] environment: its world, the network, and what is observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkedConfig {
    /// The environment at the other end.
    pub world: SteppedWorld,
    /// Time between two steps of the world, ms.
    #[serde(default = "default_interval")]
    pub interval_ms: f64,
    /// The network. Each episode draws its conditions; without any, messages arrive at once.
    #[serde(default)]
    pub network: ConditionsRange,
    /// Number of stacked observations, the latest first: one more than the delay in intervals
    /// makes up for a fixed delay. At least 1, which is the latest alone.
    #[serde(default = "default_observations")]
    pub observations: usize,
    /// Whether each stacked observation comes with its age, the time since it was sent.
    #[serde(default)]
    pub ages: bool,
    /// Number of past decisions in the observation, one per interval: the latest before the present
    /// one, the latest that was made an interval earlier, and so on.
    #[serde(default)]
    pub decisions: usize,
}

fn default_interval() -> f64 {
    20.0
}

fn default_observations() -> usize {
    1
}

/// An environment whose time passes in equal steps, which can be at the other end of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum SteppedWorld {
    /// CartPole: balancing a pole on a cart.
    CartPole(CartPoleConfig),
    /// A corridor with a junction, which takes memory to solve.
    GridWorld(GridWorldConfig),
}

impl SteppedWorld {
    /// Makes the environment. The seed determines everything random in it.
    pub fn environment(&self, seed: u64) -> Box<dyn Environment> {
        match self {
            Self::CartPole(config) => Box::new(CartPole::new(config, seed)),
            Self::GridWorld(config) => Box::new(GridWorld::new(config, seed)),
        }
    }

    /// Name of the environment's only task.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CartPole(_) => "cartpole",
            Self::GridWorld(_) => "gridworld",
        }
    }
}

impl NetworkedConfig {
    /// Checks that the settings make a network and a world.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting that is out of range.
    pub fn validate(&self) -> Result<(), String> {
        self.network.validate()?;
        if !(0.001..=60_000.0).contains(&self.interval_ms) {
            return Err(format!(
                "interval_ms is {}; expected 0.001 to 60000",
                self.interval_ms
            ));
        }
        let counts = [
            ("observations", self.observations, 1),
            ("decisions", self.decisions, 0),
        ];
        for (key, found, least) in counts {
            if !(least..=MOST).contains(&found) {
                return Err(format!("{key} is {found}; expected {least} to {MOST}"));
            }
        }
        Ok(())
    }
}

/// An environment behind a network, with one seat, all of whose actions are always allowed.
pub struct Networked<E> {
    world: E,
    config: NetworkedConfig,
    spec: Spec,
    random: StdRng,
    network: Network,
    /// What the world was like after its latest step.
    now: Turn,
    /// Number of the interval, from the beginning of the episode.
    interval: u64,
    /// What the world does in each step.
    held: Option<Decision>,
    /// What has happened to the world since the policy's last turn.
    since: Since,
    memory: Memory,
    /// The observation that the policy was asked about, and the time of that, until it answers.
    asked: Option<(u64, Nanos)>,
}

/// What is on its way.
struct Network {
    there: Channel<(u64, Turn)>,
    back: Channel<Decision>,
}

/// An action, and the number of the interval whose observation it answers.
#[derive(Clone, Copy, Debug)]
struct Decision {
    of: u64,
    action: usize,
}

/// The outcome of the steps since the policy's last turn.
struct Since {
    reward: f32,
    steps: f32,
    /// How the episode ended before the one that has begun since.
    ended: Option<End>,
}

/// What the policy's side knows of the present episode.
#[derive(Default)]
struct Memory {
    /// The latest observations that arrived, by the number of their interval.
    seen: BTreeMap<u64, Vec<f32>>,
    /// The latest decisions with their times, newest last.
    decided: VecDeque<(Nanos, usize)>,
}

impl<E: Environment> Networked<E> {
    /// Puts an environment of one seat behind a network. The seed determines the network, as the
    /// environment's own determines it; the settings must be valid.
    pub fn new(world: E, config: NetworkedConfig, seed: u64) -> Self {
        let inner = world.spec();
        let age = usize::from(config.ages);
        let spec = Spec {
            observation: config.observations * (inner.observation + age)
                + config.decisions * inner.actions,
            ..inner
        };
        let mut random = StdRng::seed_from_u64(seed::fold(NETWORK, seed));
        let mut networked = Self {
            network: Network::draw(&config, &mut random),
            random,
            world,
            config,
            spec,
            now: Turn::default(),
            interval: 0,
            held: None,
            since: Since {
                reward: 0.0,
                steps: 1.0,
                ended: Some(End::Truncated),
            },
            memory: Memory::default(),
            asked: None,
        };
        networked.world.next(&mut networked.now);
        networked.send();
        networked
    }

    /// Time of the present interval's beginning, ns since that of the episode.
    fn time(&self) -> Nanos {
        (self.interval as f64 * self.config.interval_ms * 1e6) as Nanos
    }

    /// Sends what there is to be observed.
    fn send(&mut self) {
        let message = (self.interval, self.now.clone());
        self.network.there.offer(self.time(), message);
    }

    /// Lets an interval pass: a step of the world, where any decision has arrived.
    fn step(&mut self) {
        while let Some((_, decision)) = self.network.back.take(self.time()) {
            if self.held.is_none_or(|held| held.of < decision.of) {
                self.held = Some(decision);
            }
        }
        self.interval += 1;
        if let Some(held) = self.held {
            self.world.act(held.action);
            self.world.next(&mut self.now);
            self.since.reward += self.now.reward;
            self.since.steps += 1.0;
            if self.now.first.is_some() {
                self.begin();
            }
        }
        self.send();
    }

    /// Begins an episode: on another network, and without what the last one had on its way.
    fn begin(&mut self) {
        self.since.ended = self.now.first;
        self.network = Network::draw(&self.config, &mut self.random);
        self.memory = Memory::default();
        self.interval = 0;
        self.held = None;
    }

    /// Writes the turn about an observation that has arrived.
    fn turn(&mut self, at: Nanos, number: u64, observed: Turn, turn: &mut Turn) {
        *turn = observed;
        self.memory.add(number, &turn.observation, &self.config);
        self.memory
            .write(at, &self.config, &self.spec, &mut turn.observation);
        turn.first = self.since.ended.take();
        turn.reward = std::mem::take(&mut self.since.reward);
        turn.intervals = std::mem::take(&mut self.since.steps);
        self.asked = Some((number, at));
    }
}

impl Network {
    /// Draws the network of an episode.
    fn draw(config: &NetworkedConfig, random: &mut StdRng) -> Self {
        let conditions = config.network.draw(random);
        let (there, back) = conditions.channels(Medium::Datagrams, random.random());
        Self { there, back }
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

impl<E: Environment> Environment for Networked<E> {
    fn spec(&self) -> Spec {
        self.spec
    }

    fn next(&mut self, turn: &mut Turn) {
        loop {
            while let Some((at, (number, observed))) = self.network.there.take(self.time()) {
                if self.memory.is_stale(number) {
                    self.memory.add(number, &observed.observation, &self.config);
                } else {
                    return self.turn(at, number, observed, turn);
                }
            }
            self.step();
        }
    }

    fn act(&mut self, action: usize) {
        let Some((of, at)) = self.asked.take() else {
            return;
        };
        self.network.back.offer(at, Decision { of, action });
        self.memory.decide(at, action, &self.config);
    }
}

#[cfg(test)]
mod tests;
