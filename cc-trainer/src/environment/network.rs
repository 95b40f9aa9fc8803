//! Flows on simulated links: an episode is one link with its traffic, a seat one learned flow on
//! it.
//!
//! The agent's own code makes the observations and applies the actions ([`cc_sim::sim::agent`]), so
//! a policy meets the same interface in training as when it is served, including the delay of its
//! decisions.

mod emulated;
mod error;
mod flows;
mod guide;
mod links;
mod objective;
mod random;
mod range;
mod schemes;
mod slow;
mod truth;
mod world;

use std::sync::Arc;
use std::time::Duration;

use cc_core::policy::{Choice, State};
use rand::rngs::{StdRng, Xoshiro256PlusPlus};
use rand::{RngExt, SeedableRng, seq::SliceRandom};

use super::{End, Environment, Quantities, Series, Spec, Turn};
use cc_sim::path::{Nanos, nanos};
use cc_sim::seed;
use cc_sim::sim::Simulation;
use cc_sim::sim::agent::{DecisionRequest, SimulatedAgent};
use guide::{GUIDES, GuideLine};
use objective::{Latest, Meter, Situation};
use truth::Truth;

pub use emulated::EmulatedLink;
pub use error::NetworkConfigError;
pub use flows::Flows;
pub use guide::Guide;
pub use links::Entry;
pub use objective::{Beside, Objective, PowerObjective};
pub use random::{RandomLinks, ServiceKind};
pub use range::{Range, Sometimes};
pub use slow::{FastPolicy, SlowEnvironment, SlowWorld};
pub use world::{Inputs, NetworkConfig, World};

/// An environment of simulated links: each episode draws one link from its [`World`].
pub struct NetworkEnvironment {
    world: Arc<World>,
    random: Xoshiro256PlusPlus,
    seats: Vec<LearnedSeat>,
    episode: Option<LinkEpisode>,
    /// The flow of the last turn and its cwnd in segments, until the turn is answered.
    asked: Option<(usize, u32)>,
    /// The task whose links alone are drawn; `None` draws from all of them by their weights.
    only: Option<usize>,
    /// Draws guides and their networks, so that episodes are the same with and without.
    guides: StdRng,
}

/// State of a seat, kept from episode to episode.
#[derive(Debug, Default)]
struct LearnedSeat {
    /// Whether the seat has had a turn in the current episode.
    asked: bool,
    meter: Meter,
    /// Outcome of the last action of the previous episode; reported on the next episode's first
    /// turn.
    last: Earned,
    /// The guides of the current episode; `None` without any.
    guide: Option<GuideLine>,
}

/// The outcome of an action.
#[derive(Clone, Copy, Debug, Default)]
struct Earned {
    reward: f64,
    /// How long the action was in force, windows.
    windows: f64,
    quantities: Quantities,
}

impl LearnedSeat {
    /// The outcome of the seat's last action.
    fn earned(
        &self,
        config: &NetworkConfig,
        situation: &Situation<'_>,
        latest: &mut Latest,
    ) -> Earned {
        // The guide that the action was taken by.
        let guide = self.guide.as_ref().filter(|_| config.draws_guides());
        let guided = guide.map(|own| config.objective.weighing_delay(own.in_force()));
        let objective = guided.as_ref().unwrap_or(&config.objective);
        Earned {
            reward: objective.reward(situation, &self.meter, latest),
            windows: self.meter.windows(situation),
            quantities: self.meter.quantities(situation),
        }
    }
}

/// One episode: a simulation with its agent, and the ground truth about its link.
struct LinkEpisode {
    /// The simulation, and the agent that serves its learned flows.
    served: SimulatedAgent,
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
            seats: (0..world.spec.seats)
                .map(|_| LearnedSeat::default())
                .collect(),
            guides: StdRng::seed_from_u64(seed::fold(GUIDES, seed)),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            world,
            episode: None,
            asked: None,
            only: None,
        }
    }

    /// Draws the links of one task alone, an index below [`Spec::tasks`].
    pub fn of_task(mut self, task: usize) -> Self {
        self.only = Some(task);
        self
    }

    fn begin(&mut self) -> LinkEpisode {
        let World {
            config,
            links,
            settings,
            ..
        } = &*self.world;
        let link = links.draw(config.episode_s, self.only, &mut self.random);
        let scenario = link.scenario;
        // Shuffled, so that on links with few flows every seat is used equally often.
        let mut seats: Vec<usize> = (0..self.seats.len()).collect();
        seats.shuffle(&mut self.random);
        let seat_of: Vec<_> = scenario
            .flows
            .iter()
            .map(|flow| flow.scheme.is_none().then(|| seats.pop()).flatten())
            .collect();
        let controls = schemes::controls(&scenario, settings, &mut self.random);
        let rest_ms = range::logarithmic(config.receiver_rest_ms, &mut self.random);
        let simulation = Simulation::new(&scenario, controls, self.random.random())
            .with_receiver_rest(Duration::from_secs_f64(rest_ms / 1e3));
        let end = link.begins + Duration::from_secs_f64(config.episode_s);
        LinkEpisode {
            served: SimulatedAgent::new(
                simulation,
                config.policy.clone(),
                config.delay,
                config.mode,
                self.random.random(),
            ),
            truth: Truth::new(&scenario, link.begins, end),
            latest: Latest::new(scenario.flows.len()),
            seat_of,
            task: link.task,
            end: nanos(end),
        }
    }

    /// Fills in the turn of the seat whose flow waits for a decision.
    fn turn(&mut self, episode: &mut LinkEpisode, asked: DecisionRequest, turn: &mut Turn) {
        let DecisionRequest {
            flow,
            query,
            windows,
            ..
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
        let earned = match seat.asked {
            true => seat.earned(config, &situation, &mut episode.latest),
            false => seat.last,
        };
        (turn.reward, turn.intervals) = (earned.reward as f32, earned.windows as f32);
        turn.quantities = earned.quantities;
        turn.first = (!seat.asked).then_some(End::Truncated);
        seat.asked = true;
        seat.meter.start(simulation);
        let privileged = &mut turn.privileged;
        episode
            .truth
            .privileged(simulation, flow, query.cwnd, privileged);
        let policy = &config.policy;
        policy
            .actions
            .effects(query.cwnd, policy.cwnd, &mut turn.effects);
        policy.allowed(query.cwnd, &mut turn.allowed);
        turn.seat = index;
        turn.task = episode.task;
        turn.observed_reward = query.reward;
        turn.observation = query.observation;
        if let Some(guide) = &config.guide {
            if turn.first.is_some() {
                seat.guide = Some(GuideLine::draw(guide, &mut self.guides));
            }
            if let Some(line) = &mut seat.guide {
                let now = simulation.now();
                line.receive(now);
                if config.draws_guides() && line.is_due(now) {
                    let place = self.guides.random_range(0..guide.values.len());
                    line.answer(now, guide.values[place]);
                }
                turn.observation.push(line.in_force() as f32);
            }
        }
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
                seat.last = seat.earned(config, &situation, &mut episode.latest);
            }
        }
    }
}

impl NetworkEnvironment {
    /// The cwnd in segments that an action of the last turn is applied to; `None` once the turn has
    /// been answered.
    pub fn cwnd(&self) -> Option<u32> {
        self.asked.map(|(_, cwnd)| cwnd)
    }

    /// The guides of the flow of the last turn, and the time; `None` without guides, and once the
    /// turn has been answered.
    fn guide(&mut self) -> Option<(Nanos, &mut GuideLine)> {
        let ((flow, _), episode) = (self.asked?, self.episode.as_ref()?);
        let line = self.seats[episode.seat_of[flow]?].guide.as_mut()?;
        Some((episode.served.simulation().now(), line))
    }

    /// Answers the last turn with no decision: the flow goes on as it does, in slow start if it has
    /// never had a decision.
    pub fn keep(&mut self) {
        if let (Some(_), Some(episode)) = (self.asked.take(), &mut self.episode) {
            episode.served.answer(Choice::Invalid, State::default());
        }
    }
}

impl Environment for NetworkEnvironment {
    fn spec(&self) -> Spec {
        self.world.spec
    }

    fn series(&self) -> Vec<Series> {
        let mut series = Series::of(&self.world.config.policy);
        // A guide comes after all that the interface has.
        let guided = self.world.config.guide.is_some() && !series.is_empty();
        series.extend(guided.then_some(Series {
            from: self.world.spec.observation - 1,
            length: 1,
            is_context: true,
        }));
        series
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

#[cfg(test)]
mod tests;
