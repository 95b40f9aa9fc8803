//! Flows on simulated links: an episode is one link with its traffic, a seat one learned flow on
//! it.
//!
//! The agent's own code makes the observations and applies the actions ([`crate::sim::serve`]), so
//! a policy meets the same interface in training as when it is served, including the delay of its
//! decisions.

mod links;
mod objective;
mod truth;

use std::sync::Arc;
use std::time::Duration;

use cc_agent::environment::{Environment as Interface, EnvironmentError};
use cc_agent::policy::{Choice, State};
use cc_ebpf::{Settings, Startup};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

use super::{End, Environment, Spec, Turn};
use crate::path::Nanos;
use crate::scenario::{Scenario, ScenarioError};
use crate::sim::control::{Bbr, Copa, Cubic, Reno, learned::Learned};
use crate::sim::serve::{Asked, Delay, Mode, Served};
use crate::sim::{Control, RECEIVER_REST, Simulation};
use links::Links;
use objective::{Latest, Meter, Situation};
use truth::{PRIVILEGED, Truth};

pub use links::{Entry, Flows, RandomLinks, Range, SCHEMES, ServiceKind, Sometimes};
pub use objective::{Objective, PowerObjective};

/// Configuration of the simulated links and of the reward, `[environment]` of kind `network`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Observation, actions and window length of the policy; written to its policy file.
    pub policy: Interface,
    /// The links to draw from, each entry with a weight.
    pub links: Vec<Entry>,
    /// The reward that is maximised.
    pub objective: Objective,
    /// Length of an episode, s.
    pub episode_s: f64,
    /// Pause of the receiving applications between two reads, ms. Each episode draws it from this
    /// range, uniformly in its logarithm.
    pub receiver_rest_ms: Range,
    /// Time from the arrival of a window at the agent until its decision is published.
    pub delay: Delay,
    /// Whether senders wait for their decisions or go on meanwhile.
    pub mode: Mode,
    /// Whether flows keep their initial cwnd until the first decision, as in the mvfst-rl paper,
    /// instead of starting in slow start.
    pub constant_start: bool,
}

impl Default for NetworkConfig {
    /// The six calibrated Pantheon links of the mvfst-rl paper, 30 s each.
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

/// Why a [`NetworkConfig`] cannot be used. The message names the setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkConfigError {
    /// A parameter of the decision delay is out of its range; the string names it.
    #[error("delay: {0}")]
    Delay(String),
    /// A links entry has neither `scenarios` nor `random`, or both.
    #[error(
        "links[{index}]: give either `scenarios` (a set such as \"calibrated\") \
         or `random` (a family)"
    )]
    Entry {
        /// Position of the entry in `links`, counted from 0.
        index: usize,
    },
    /// The policy's observation, actions or windows are not valid.
    #[error("policy.{0}")]
    Interface(#[from] EnvironmentError),
    /// The configuration has no links entry.
    #[error("links is empty; add an entry such as {{ scenarios = \"calibrated\" }}")]
    NoLinks,
    /// A number is out of its range.
    #[error("{place} is {found}; expected {least} to {most}")]
    Range {
        /// Path of the setting, such as `links[0].random.rate_mbps`.
        place: String,
        /// The number in the configuration.
        found: f64,
        /// The smallest number that is valid.
        least: f64,
        /// The largest number that is valid.
        most: f64,
    },
    /// A scenario is unknown or its file cannot be read.
    #[error("links: {0}")]
    Scenario(#[from] ScenarioError),
    /// A background flow uses a congestion control that the simulator does not have.
    #[error("{place} names the scheme `{found}`; the simulator has {}", SCHEMES.join(", "))]
    Scheme {
        /// The setting or scenario that names it.
        place: String,
        /// The name that is unknown, possibly empty.
        found: String,
    },
    /// The scenario's link has no rate, so that throughput cannot be related to it.
    #[error("the scenario `{scenario}` has no rate, so nothing can be learned on it: leave it out")]
    Unlimited {
        /// Name of the scenario, without its set.
        scenario: String,
    },
}

/// A checked configuration with its scenarios, shared by any number of environments.
#[derive(Clone, Debug)]
pub struct World {
    config: NetworkConfig,
    links: Links,
    settings: Settings,
    spec: Spec,
}

impl World {
    /// Checks the configuration and reads its scenarios.
    ///
    /// # Errors
    ///
    /// Returns an error when a setting is out of range, a scenario cannot be read, or a link has no
    /// rate. The message names the setting.
    pub fn new(config: NetworkConfig) -> Result<Self, NetworkConfigError> {
        config.policy.validate()?;
        config.delay.validate().map_err(NetworkConfigError::Delay)?;
        if !(0.1..=86_400.0).contains(&config.episode_s) {
            return Err(NetworkConfigError::Range {
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

    /// Returns the sizes of this world's environments.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// Returns the names of the tasks in order: the scenarios' names, and `random-N` for links
    /// entry N when it is a random family.
    pub fn tasks(&self) -> &[String] {
        self.links.tasks()
    }

    /// Returns the configuration that this world was made from.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }
}

/// An environment of simulated links: each episode draws one link from its [`World`].
pub struct NetworkEnvironment {
    world: Arc<World>,
    random: Xoshiro256PlusPlus,
    seats: Vec<SeatState>,
    episode: Option<LinkEpisode>,
    /// The flow of the last turn and its cwnd in segments, until the turn is answered.
    asked: Option<(usize, u32)>,
}

/// State of a seat, kept from episode to episode.
#[derive(Clone, Debug, Default)]
struct SeatState {
    /// Whether the seat has had a turn in the current episode.
    asked: bool,
    meter: Meter,
    /// Reward of the last action of the previous episode, reported on
    /// the next episode's first turn.
    last_reward: f64,
}

/// One episode: a simulation with its agent, and the ground truth about its link.
struct LinkEpisode {
    /// The simulation, and the agent that serves its learned flows.
    served: Served,
    truth: Truth,
    latest: Latest,
    /// Seat of each flow; `None` for background flows.
    seat_of: Vec<Option<usize>>,
    task: usize,
    /// Simulated time at which the episode is truncated.
    end: Nanos,
}

impl NetworkEnvironment {
    /// Creates an environment. The seed fixes the links that are drawn
    /// and everything random on them.
    pub fn new(world: Arc<World>, seed: u64) -> Self {
        Self {
            seats: vec![SeatState::default(); world.spec.seats],
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            world,
            episode: None,
            asked: None,
        }
    }

    fn begin(&mut self) -> LinkEpisode {
        let World {
            config,
            links,
            settings,
            ..
        } = &*self.world;
        let link = links.draw(config.episode_s, &mut self.random);
        let scenario = link.scenario;
        // Shuffled, so that on links with few flows every seat is used equally often.
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
        LinkEpisode {
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

    /// Fills in the turn of the seat whose flow waits for a decision.
    fn turn(&mut self, episode: &mut LinkEpisode, asked: Asked, turn: &mut Turn) {
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
        turn.reward = match seat.asked {
            true => objective.reward(&situation, &seat.meter, &mut episode.latest),
            false => seat.last_reward,
        } as f32;
        turn.first = (!seat.asked).then_some(End::Truncated);
        seat.asked = true;
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

    /// Ends an episode: computes the reward of each seat's last action, which no window reports.
    fn finish(&mut self, mut episode: LinkEpisode) {
        let config = &self.world.config;
        for (flow, seat) in episode.seat_of.iter().enumerate() {
            let Some(seat) = seat.map(|index| &mut self.seats[index]) else {
                continue;
            };
            if seat.asked {
                seat.asked = false;
                let situation = Situation {
                    policy: &config.policy,
                    truth: &episode.truth,
                    simulation: episode.served.simulation(),
                    flow,
                    windows: &[],
                };
                let latest = &mut episode.latest;
                seat.last_reward = config.objective.reward(&situation, &seat.meter, latest);
            }
        }
    }
}

impl Environment for NetworkEnvironment {
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

/// Creates the congestion control of each flow of the scenario.
fn controls(
    scenario: &Scenario,
    settings: &Settings,
    random: &mut Xoshiro256PlusPlus,
) -> Vec<Control> {
    let control = |scheme: Option<&str>| match scheme {
        Some("bbr") => Control::Bbr(Bbr::new(random.random())),
        Some("copa") => Control::Copa(Copa::new()),
        Some("cubic") => Control::Cubic(Cubic::new()),
        // `Links::new` has refused any other name.
        Some(_) => Control::Reno(Reno::new()),
        None => Control::Learned(Box::new(Learned::new(*settings))),
    };
    let schemes = scenario.flows.iter().map(|flow| flow.scheme.as_deref());
    schemes.map(control).collect()
}

#[cfg(test)]
mod tests;
