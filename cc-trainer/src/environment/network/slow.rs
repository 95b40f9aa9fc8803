//! The slow policy of a graph: it sets the guide of each flow, above a fast policy that is trained
//! already and decides window by window ([`guide`](super::guide)).
//!
//! A turn is a question to the slow policy. What it observes is the mean, over the windows since
//! the question before, of what the fast one has observed, the guide among it. Its reward is the
//! sum of theirs. The learner's discount and rates are those of windows, as for the fast policy,
//! since a turn says how many its guide was in force for.

use std::sync::Arc;

use super::{NetworkEnvironment, World};
use crate::environment::not_done;
use crate::environment::{Environment, Series, Spec, Turn};
use crate::model::Snapshot;
use crate::model::{Inference, Outputs, Sequences};
use crate::normalise::Normalizer;
use crate::softmax;

/// The fast policy of a graph, which takes its most likely actions.
#[derive(Clone, Debug)]
pub struct FastPolicy {
    /// The network that decides, with its parameters.
    pub snapshot: Arc<Snapshot>,
    /// The transform of its inputs. The slow policy, whose inputs are means of these, has the same.
    pub normalizer: Arc<Normalizer>,
}

/// Links whose flows have a fast policy, shared by any number of environments.
#[derive(Clone, Debug)]
pub struct SlowWorld {
    world: Arc<World>,
    pub(super) fast: FastPolicy,
}

impl SlowWorld {
    /// The flows of a world that has guides, above a policy that was trained in such a world.
    pub fn new(world: Arc<World>, fast: FastPolicy) -> Self {
        Self { world, fast }
    }

    /// Returns the world of the fast policy.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the transform of the slow policy's inputs.
    pub fn normalizer(&self) -> &Normalizer {
        &self.fast.normalizer
    }

    /// Returns the sizes of this world's environments: an action for each guide.
    pub fn spec(&self) -> Spec {
        let guide = self.world.config.guide.as_ref();
        Spec {
            actions: guide.map_or(0, |guide| guide.values.len()),
            ..self.world.spec
        }
    }
}

/// An environment in which an action is a guide, by its place in [`Guide::values`](super::Guide).
pub struct SlowEnvironment {
    world: Arc<SlowWorld>,
    network: NetworkEnvironment,
    inference: Inference,
    outputs: Outputs,
    seats: Vec<SlowSeat>,
    /// The fast policy's last turn.
    fast: Turn,
    /// Whether the fast policy's last turn waits for the slow one.
    waits: bool,
}

/// What a seat has seen since its last question to the slow policy, and the fast policy's state.
#[derive(Clone, Debug, Default)]
struct SlowSeat {
    /// Sum of the fast policy's rewards.
    reward: f32,
    /// Sum of the lengths of its windows.
    intervals: f32,
    /// Windows whose observations are in the sum, since the last question.
    windows: f32,
    /// Sum of what the fast policy observed in these windows, by feature.
    observation: Vec<f32>,
    /// Sum of the rewards that it observed.
    observed_reward: f32,
    /// Its LSTM's hidden state; empty without an LSTM.
    h: Vec<f32>,
    /// Its LSTM's cell state; empty without an LSTM.
    c: Vec<f32>,
}

impl SlowSeat {
    /// Counts a turn of the fast policy: the outcome of its action before, and its observation.
    fn count(&mut self, fast: &Turn) {
        self.reward += fast.reward;
        self.intervals += fast.intervals;
        if fast.first.is_some() {
            self.forget();
        }
        self.windows += 1.0;
        self.observed_reward += fast.observed_reward;
        self.observation.resize(fast.observation.len(), 0.0);
        let sums = self.observation.iter_mut();
        sums.zip(&fast.observation)
            .for_each(|(sum, value)| *sum += value);
    }

    /// Writes what the slow policy gets at a turn of the fast one, and begins to count anew.
    fn turn(&mut self, fast: &Turn, turn: &mut Turn) {
        turn.seat = fast.seat;
        turn.first = fast.first;
        turn.task = fast.task;
        turn.privileged.clone_from(&fast.privileged);
        turn.reward = std::mem::take(&mut self.reward);
        turn.intervals = std::mem::take(&mut self.intervals);
        turn.observed_reward = self.observed_reward / self.windows;
        turn.observation.clear();
        let sums = self.observation.iter();
        turn.observation.extend(sums.map(|sum| sum / self.windows));
        self.forget();
    }

    /// Begins the sums anew, as a question has been asked.
    fn forget(&mut self) {
        self.windows = 0.0;
        self.observed_reward = 0.0;
        self.observation.clear();
    }
}

impl SlowEnvironment {
    /// Creates an environment. The seed fixes the links that are drawn, their guides' networks, and
    /// everything random on them.
    pub fn new(world: Arc<SlowWorld>, seed: u64) -> Self {
        let shape = world.fast.snapshot.weights.shape();
        let state = vec![0.0; shape.lstm.unwrap_or(0)];
        let seat = SlowSeat {
            h: state.clone(),
            c: state,
            ..SlowSeat::default()
        };
        Self {
            network: NetworkEnvironment::new(world.world.clone(), seed),
            inference: Inference::new(shape),
            outputs: Outputs::default(),
            seats: vec![seat; world.world.spec.seats],
            fast: Turn::default(),
            waits: false,
            world,
        }
    }

    /// Draws the links of one task alone, an index below [`Spec::tasks`].
    pub fn of_task(self, task: usize) -> Self {
        Self {
            network: self.network.of_task(task),
            ..self
        }
    }

    /// Answers the fast policy's last turn by its most likely action.
    fn decide(&mut self) {
        let FastPolicy {
            snapshot,
            normalizer,
        } = &self.world.fast;
        let turn = &mut self.fast;
        normalizer.apply(&mut turn.observation);
        let seat = &mut self.seats[turn.seat];
        let input = Sequences {
            steps: 1,
            batch_size: 1,
            observation: &turn.observation,
            reward: &[normalizer.reward.apply(turn.observed_reward)],
            not_done: &[not_done(turn.first)],
            privileged: &[],
            h: &seat.h,
            c: &seat.c,
        };
        self.inference
            .forward(&snapshot.weights, &input, &mut self.outputs);
        seat.h.clone_from(&self.outputs.h);
        seat.c.clone_from(&self.outputs.c);
        let actions = snapshot.weights.shape().actions;
        let logits = &mut self.outputs.logits[..actions];
        softmax::mask(logits, &turn.allowed);
        self.network.act(softmax::most_likely(logits));
    }
}

impl Environment for SlowEnvironment {
    fn spec(&self) -> Spec {
        self.world.spec()
    }

    fn series(&self) -> Vec<Series> {
        self.network.series()
    }

    fn next(&mut self, turn: &mut Turn) {
        loop {
            self.network.next(&mut self.fast);
            let seat = &mut self.seats[self.fast.seat];
            seat.count(&self.fast);
            let guide = self.network.guide();
            if guide.is_some_and(|(now, line)| line.is_due(now)) {
                seat.turn(&self.fast, turn);
                self.waits = true;
                return;
            }
            self.decide();
        }
    }

    fn act(&mut self, action: usize) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        let guide = self.world.world.config.guide.as_ref();
        if let (Some(guide), Some((now, line))) = (guide, self.network.guide()) {
            line.answer(now, guide.values[action]);
            if let Some(last) = self.fast.observation.last_mut() {
                *last = line.in_force() as f32;
            }
        }
        self.decide();
    }
}
