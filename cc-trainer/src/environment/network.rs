//! Flows on simulated links, for a policy to serve: an episode is a link, a seat a flow on it.
//!
//! The agent's own code makes the observations and takes the actions ([`crate::sim::serve`]), so that a policy meets in
//! training what it will be served with, the delay of its decisions included.

mod inputs;
mod links;
mod objective;
mod truth;

use std::sync::Arc;
use std::time::Duration;

use cc_core::interface::{Interface, InterfaceError};
use cc_core::policy::{Choice, State};
use cc_ebpf::{Settings, Startup};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

use super::{End, Environment, Spec, Turn};
use cc_sim::path::Nanos;
use cc_sim::scenario::{Scenario, ScenarioError};
use cc_sim::sim::control::{Bbr, Copa, Cubic, Reno, learned::Learned};
use cc_sim::sim::serve::{Asked, Delay, Mode, Served};
use cc_sim::sim::{Control, RECEIVER_REST, Simulation};
use links::Links;
use objective::{Latest, Meter, Situation};
use truth::{PRIVILEGED, Truth};

pub use inputs::inputs;
pub use links::{Entry, Flows, Kind, Random, Range, SCHEMES, Sometimes};
pub use objective::{Objective, Power};

/// What is trained on, and for what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Observation, actions and windows of the policy; its file will carry them.
    pub policy: Interface,
    /// The links.
    pub links: Vec<Entry>,
    /// The reward.
    pub objective: Objective,
    /// Length of an episode, s.
    pub episode_s: f64,
    /// How long a link's receiving applications rest after a read, ms: within this range, evenly by its logarithm.
    pub receiver_rest_ms: Range,
    /// From a window to its decision.
    pub delay: Delay,
    /// Whether senders wait for their decisions.
    pub mode: Mode,
    /// Flows keep their initial window until the first decision, as in the paper, instead of a slow start.
    pub constant_start: bool,
}

impl Default for Config {
    /// The paper's six calibrated links for 30 s each.
    fn default() -> Self {
        Self {
            policy: Interface::default(),
            links: vec![Entry {
                weight: 1.0,
                scenarios: Some("calibrated".to_owned()),
                random: None,
                flows: None,
                shift_s: 0.0,
            }],
            objective: Objective::default(),
            episode_s: 30.0,
            receiver_rest_ms: [1e3 * RECEIVER_REST.as_secs_f64(); 2],
            delay: Delay::default(),
            mode: Mode::default(),
            constant_start: false,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A delay of decisions out of its range.
    #[error("delay: {0}")]
    Delay(String),
    /// An entry that is neither or both.
    #[error(
        "links[{index}]: give either `scenarios` (a set such as \"calibrated\") or `random` (a family)"
    )]
    Entry {
        /// Its place, from 0.
        index: usize,
    },
    /// What the policy is served with.
    #[error("policy.{0}")]
    Interface(#[from] InterfaceError),
    /// No entry.
    #[error("links is empty; add an entry such as {{ scenarios = \"calibrated\" }}")]
    NoLinks,
    /// A number out of its range.
    #[error("{place} is {found}; expected {least} to {most}")]
    Range {
        /// Where.
        place: String,
        /// The number.
        found: f64,
        /// From here.
        least: f64,
        /// To here.
        most: f64,
    },
    /// The scenarios cannot be read.
    #[error("links: {0}")]
    Scenario(#[from] ScenarioError),
    /// Other flows run what the simulator has not.
    #[error("{place} names the scheme `{found}`; the simulator has {}", SCHEMES.join(", "))]
    Scheme {
        /// Where.
        place: String,
        /// The name.
        found: String,
    },
    /// A link that is never full.
    #[error("the scenario `{scenario}` has no rate, so nothing can be learned on it: leave it out")]
    Unlimited {
        /// Its name.
        scenario: String,
    },
}

/// A checked configuration with its scenarios, shared by any number of environments.
#[derive(Clone, Debug)]
pub struct World {
    config: Config,
    links: Links,
    settings: Settings,
    spec: Spec,
}

impl World {
    /// Checks the configuration and reads the scenarios.
    ///
    /// # Errors
    ///
    /// Says what does not fit, and where.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.policy.validate()?;
        config.delay.validate().map_err(ConfigError::Delay)?;
        if !(0.1..=86_400.0).contains(&config.episode_s) {
            return Err(ConfigError::Range {
                place: "episode_s".to_owned(),
                found: config.episode_s,
                least: 0.1,
                most: 86_400.0,
            });
        }
        links::ordered(config.receiver_rest_ms, 1e-3, 100.0, || {
            "receiver_rest_ms".to_owned()
        })?;
        let links = Links::new(&config.links)?;
        let startup = match config.constant_start {
            true => Startup::Constant,
            false => Startup::SlowStart,
        };
        Ok(Self {
            settings: Learned::settings(&config.policy, startup),
            spec: Spec {
                seats: links.most_learned(),
                observation: config.policy.observation_len(),
                privileged: PRIVILEGED,
                actions: config.policy.actions.len(),
                tasks: links.tasks().len(),
            },
            links,
            config,
        })
    }

    /// The sizes of its environments.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// The names of the tasks: scenarios, and families of random links.
    pub fn tasks(&self) -> &[String] {
        self.links.tasks()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// An environment of simulated links, one after the other.
pub struct Network {
    world: Arc<World>,
    random: Xoshiro256PlusPlus,
    seats: Vec<Seat>,
    episode: Option<Episode>,
    /// The flow asked last, its window, and what may answer it.
    asked: Option<(usize, u32)>,
}

/// What a seat keeps from episode to episode.
#[derive(Clone, Debug, Default)]
struct Seat {
    /// Whether it was asked in this episode.
    acts: bool,
    meter: Meter,
    /// What the last action of the episode before earned, and on which task.
    earned: f64,
}

struct Episode {
    served: Served,
    truth: Truth,
    latest: Latest,
    /// Of each flow; none for those that are not learned.
    seat_of: Vec<Option<usize>>,
    task: usize,
    end: Nanos,
}

impl Network {
    /// An environment of that world; the seed fixes its links and what happens on them.
    pub fn new(world: Arc<World>, seed: u64) -> Self {
        Self {
            seats: vec![Seat::default(); world.spec.seats],
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            world,
            episode: None,
            asked: None,
        }
    }

    fn begin(&mut self) -> Episode {
        let World {
            config,
            links,
            settings,
            ..
        } = &*self.world;
        let link = links.draw(config.episode_s, &mut self.random);
        let scenario = link.scenario;
        // Each seat gets its share of links with few flows.
        let mut seats: Vec<usize> = (0..self.seats.len()).collect();
        seats.shuffle(&mut self.random);
        let seat_of: Vec<_> = scenario
            .flows
            .iter()
            .map(|flow| flow.scheme.is_none().then(|| seats.pop()).flatten())
            .collect();
        let controls = controls(&scenario, settings, &mut self.random);
        let rest_ms = links::logarithmic(config.receiver_rest_ms, &mut self.random);
        let simulation = Simulation::new(&scenario, controls, self.random.random())
            .with_receiver_rest(Duration::from_secs_f64(rest_ms / 1e3));
        let end = link.begins + Duration::from_secs_f64(config.episode_s);
        let end = end.as_nanos() as Nanos;
        Episode {
            served: Served::new(
                simulation,
                config.policy.clone(),
                config.delay,
                config.mode,
                self.random.random(),
            ),
            truth: Truth::new(&scenario, end),
            latest: Latest::new(scenario.flows.len()),
            seat_of,
            task: link.task,
            end,
        }
    }

    /// A flow asks: its seat's turn.
    fn turn(&mut self, episode: &mut Episode, asked: Asked, turn: &mut Turn) {
        let Asked {
            flow,
            query,
            windows,
        } = asked;
        let Some(index) = episode.seat_of[flow] else {
            return;
        };
        let config = &self.world.config;
        let simulation = episode.served.simulation();
        let seat = &mut self.seats[index];
        episode.latest.add(flow, &windows);
        let situation = Situation {
            policy: &config.policy,
            truth: &episode.truth,
            simulation,
            flow,
            windows: &windows,
        };
        let objective = &config.objective;
        turn.reward = match seat.acts {
            true => objective.reward(&situation, &seat.meter, &mut episode.latest),
            false => seat.earned,
        } as f32;
        turn.first = (!seat.acts).then_some(End::Truncated);
        seat.acts = true;
        seat.meter.start(simulation);
        let privileged = &mut turn.privileged;
        episode
            .truth
            .privileged(simulation, flow, query.cwnd, privileged);
        turn.seat = index;
        turn.task = episode.task;
        turn.observed_reward = query.reward;
        turn.observation = query.observation;
        self.asked = Some((flow, query.cwnd));
    }

    /// The link's time is over: what the last actions earned, of which no window tells.
    fn finish(&mut self, mut episode: Episode) {
        let config = &self.world.config;
        for (flow, seat) in episode.seat_of.iter().enumerate() {
            let Some(seat) = seat.map(|index| &mut self.seats[index]) else {
                continue;
            };
            if seat.acts {
                seat.acts = false;
                let situation = Situation {
                    policy: &config.policy,
                    truth: &episode.truth,
                    simulation: episode.served.simulation(),
                    flow,
                    windows: &[],
                };
                let latest = &mut episode.latest;
                seat.earned = config.objective.reward(&situation, &seat.meter, latest);
            }
        }
    }
}

impl Environment for Network {
    fn spec(&self) -> Spec {
        self.world.spec
    }

    fn next(&mut self, turn: &mut Turn) {
        loop {
            let mut episode = match self.episode.take() {
                Some(episode) => episode,
                None => self.begin(),
            };
            match episode.served.next(episode.end) {
                Some(asked) => {
                    self.turn(&mut episode, asked, turn);
                    self.episode = Some(episode);
                    return;
                }
                None => self.finish(episode),
            }
        }
    }

    fn act(&mut self, action: usize) {
        let (Some((flow, before)), Some(episode)) = (self.asked.take(), &mut self.episode) else {
            return;
        };
        let policy = &self.world.config.policy;
        let after = policy.actions.apply(action, before, policy.cwnd);
        if let Some(seat) = episode.seat_of[flow] {
            self.seats[seat].meter.switch(before, after);
        }
        let choice = Choice::Action {
            index: action,
            probability: 1.0,
        };
        episode.served.answer(choice, State::default());
    }
}

/// What the flows of a scenario run.
fn controls(
    scenario: &Scenario,
    settings: &Settings,
    random: &mut Xoshiro256PlusPlus,
) -> Vec<Control> {
    let control = |scheme: Option<&str>| match scheme {
        Some("bbr") => Control::Bbr(Bbr::new(random.random())),
        Some("copa") => Control::Copa(Copa::new()),
        Some("cubic") => Control::Cubic(Cubic::new()),
        // Any other was refused.
        Some(_) => Control::Reno(Reno::new()),
        None => Control::Learned(Box::new(Learned::new(*settings))),
    };
    let schemes = scenario.flows.iter().map(|flow| flow.scheme.as_deref());
    schemes.map(control).collect()
}

#[cfg(test)]
mod tests;
