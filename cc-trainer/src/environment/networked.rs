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
//! Both ends are the same here and in real time, where `cc-trainer calf serve` has the world.
//!
//! Without delay and loss this is the plain environment. Against delay, an observation can have the
//! latest ones that arrived, their ages, and the decisions that may still be on their way.

mod policy_end;
mod world_end;

use cc_sim::{
    path::Nanos,
    seed,
    shim::{Channel, ConditionsRange, Medium},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

pub(crate) use policy_end::PolicyEnd;
pub(crate) use world_end::{Decision, Moment, Observed, Past, Progress, WorldEnd};

use super::{
    Environment, Spec, Turn,
    cartpole::{CartPole, CartPoleConfig},
    gridworld::{GridWorld, GridWorldConfig},
};

/// Keeps the seed of the network apart from that of the world.
const NETWORK: u64 = 0x6e65_7477_6f72_6b65;
/// Largest number of stacked observations, and of past decisions.
const MOST: usize = 100;
/// Largest corridor of the gridworld, squares.
const LONGEST: u32 = 10_000;

/// Settings of a [`Networked`] environment: its world, the network, and what is observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkedConfig {
    /// The environment at the other end.
    pub world: SteppedWorld,
    /// Time between two steps of the world, ms.
    #[serde(default = "default_interval")]
    pub interval_ms: f64,
    /// How long after an interval's beginning a decision still counts for its step, ms; below the
    /// interval. In real time both computers and the relay between them take some of it.
    #[serde(default)]
    pub grace_ms: f64,
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

    /// Checks the settings, which may have come from another host.
    fn validate(&self) -> Result<(), String> {
        match self {
            Self::CartPole(config) if config.steps == 0 => {
                Err("steps of the world is 0; expected at least 1".to_owned())
            }
            Self::GridWorld(config) if config.length > LONGEST => Err(format!(
                "length of the world is {}; expected at most {LONGEST}",
                config.length
            )),
            _ => Ok(()),
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
    /// A world without a network, whose latest observation alone is seen.
    pub fn plain(world: SteppedWorld) -> Self {
        Self {
            world,
            interval_ms: default_interval(),
            grace_ms: 0.0,
            network: ConditionsRange::default(),
            observations: default_observations(),
            ages: false,
            decisions: 0,
        }
    }

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
        if !(0.0..self.interval_ms).contains(&self.grace_ms) {
            return Err(format!(
                "grace_ms is {}; expected 0 to less than interval_ms, {}",
                self.grace_ms, self.interval_ms
            ));
        }
        self.world.validate()?;
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

    /// Time of an interval's beginning, ns since that of the episode.
    pub(crate) fn time(&self, interval: u64) -> Nanos {
        (interval as f64 * self.interval_ms * 1e6) as Nanos
    }

    /// How long after its beginning a decision still counts for an interval's step, ns.
    pub(crate) fn grace(&self) -> Nanos {
        (self.grace_ms * 1e6) as Nanos
    }
}

/// An environment behind a network, with one seat, all of whose actions are always allowed.
pub struct Networked<E> {
    config: NetworkedConfig,
    random: StdRng,
    network: Network,
    world: WorldEnd<E>,
    policy: PolicyEnd,
}

/// What is on its way.
struct Network {
    there: Channel<Observed>,
    back: Channel<Decision>,
}

impl<E: Environment> Networked<E> {
    /// Puts an environment of one seat behind a network. The seed determines the network, as the
    /// environment's own determines it; the settings must be valid.
    pub fn new(world: E, config: NetworkedConfig, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed::fold(NETWORK, seed));
        let mut networked = Self {
            network: Network::draw(&config, &mut random),
            random,
            policy: PolicyEnd::new(config.clone(), world.spec()),
            world: WorldEnd::new(world),
            config,
        };
        networked.send();
        networked
    }

    /// Time of the present interval's beginning, ns since that of the episode.
    fn time(&self) -> Nanos {
        self.config.time(self.world.moment().interval)
    }

    /// Until when what arrives counts for the present interval's step.
    fn latest(&self) -> Nanos {
        self.time() + self.config.grace()
    }

    /// Sends what there is to be observed.
    fn send(&mut self) {
        let observed = self.world.observed();
        self.network.there.offer(self.time(), observed);
    }

    /// Lets an interval pass. A new episode is on another network, without what the last one had on
    /// its way.
    fn step(&mut self) {
        while let Some((_, decision)) = self.network.back.take(self.latest()) {
            self.world.decide(decision);
        }
        if self.world.step() {
            self.network = Network::draw(&self.config, &mut self.random);
        }
        self.send();
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

impl<E: Environment> Environment for Networked<E> {
    fn spec(&self) -> Spec {
        self.policy.spec()
    }

    fn next(&mut self, turn: &mut Turn) {
        loop {
            while let Some((at, observed)) = self.network.there.take(self.latest()) {
                let progress = self.world.progress();
                if self.policy.observe(at, observed, progress, turn) {
                    return;
                }
            }
            self.step();
        }
    }

    fn act(&mut self, action: usize) {
        if let Some((at, decision)) = self.policy.decide(action) {
            self.network.back.offer(at, decision);
        }
    }
}

#[cfg(test)]
mod tests;
