//! A small environment of one's own, and a policy that learns in it.
//!
//! ```text
//! cargo run --release -p cc-trainer --example own_environment
//! ```
//!
//! The environment is a toy of congestion control. A sender puts packets into a pipe that delivers
//! a fixed number of them per step, which the sender does not know. What the pipe cannot deliver
//! waits in a queue. The policy sees its rate, the queue and what was delivered, and may lower,
//! keep or raise the rate.
//!
//! The example uses the parts of the trainer directly: an [`Actor`] steps environments with the
//! newest policy and collects rollouts, a [`Learner`] improves the policy from them by V-trace.
//! `cc-trainer train` does the same with actors in threads of their own, checkpoints and curves.

use std::sync::Arc;

use cc_trainer::{
    actor::{Actor, Snapshot, StepOutput},
    environment::{End, Environment, Spec, Turn},
    learner::{Learner, LearnerSettings, LearnerState},
    model::{self, Activation, DeviceKind, Shape, Weights},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Environment steps to learn from. The mean return rises from about 20 to about 43.
const STEPS: usize = 60_000;
/// Environments that the actor steps together, so that one pass of the network serves all of them.
const ENVIRONMENTS: u64 = 8;

/// Largest capacity and rate, packets per step.
const MOST: u32 = 10;
/// Packets that the queue holds; more are dropped.
const QUEUE: u32 = 40;
/// Number of steps after which an episode is truncated.
const EPISODE: u32 = 50;
/// Cost of a queued packet per step, in the unit of the reward.
const QUEUE_COST: f32 = 0.05;

/// The environment: one sender and its pipe, whose capacity changes from episode to episode.
struct Pipe {
    random: StdRng,
    /// Packets that the pipe delivers per step. The policy does not see it.
    capacity: u32,
    /// Packets that the sender puts into the pipe per step; the action changes it.
    rate: u32,
    queued: u32,
    delivered: u32,
    steps: u32,
    /// The action to be carried out by the next turn; `None` before the very first turn.
    action: Option<usize>,
}

impl Pipe {
    fn new(seed: u64) -> Self {
        let mut pipe = Self {
            random: StdRng::seed_from_u64(seed),
            capacity: 0,
            rate: 0,
            queued: 0,
            delivered: 0,
            steps: 0,
            action: None,
        };
        pipe.reset();
        pipe
    }

    /// Starts an episode with another capacity.
    fn reset(&mut self) {
        self.capacity = self.random.random_range(1..=MOST);
        (self.rate, self.queued, self.delivered, self.steps) = (1, 0, 0, 0);
    }

    /// Carries out an action and returns its reward: the fraction of the capacity that was used,
    /// less the cost of the queue. The best policy earns almost 1 per step.
    fn send(&mut self, action: usize) -> f32 {
        self.rate = match action {
            0 => self.rate.saturating_sub(1).max(1),
            1 => self.rate,
            _ => (self.rate + 1).min(MOST),
        };
        self.queued += self.rate;
        self.delivered = self.queued.min(self.capacity);
        self.queued = (self.queued - self.delivered).min(QUEUE);
        self.steps += 1;
        self.delivered as f32 / self.capacity as f32 - QUEUE_COST * self.queued as f32
    }
}

impl Environment for Pipe {
    fn spec(&self) -> Spec {
        Spec {
            seats: 1,
            observation: 3,
            // The critic could see the capacity here, which makes its values more accurate.
            privileged: 0,
            actions: 3,
            tasks: 1,
        }
    }

    // A turn asks for an action and reports the previous one's outcome. The turn and its buffers
    // are reused, so every field is written.
    fn next(&mut self, turn: &mut Turn) {
        turn.seat = 0;
        turn.task = 0;
        turn.privileged.clear();
        (turn.reward, turn.first) = match self.action {
            // The very first turn has no previous action, and starts an episode.
            None => (0.0, Some(End::Truncated)),
            Some(action) => {
                let reward = self.send(action);
                // A time limit is a truncation: sending could have gone on, so the learner does not
                // take the value of the last state for 0.
                (reward, (self.steps == EPISODE).then_some(End::Truncated))
            }
        };
        turn.observed_reward = turn.reward;
        if turn.first.is_some() {
            // The reward above still belongs to the old episode, the observation to the new one.
            self.reset();
            turn.observed_reward = 0.0;
        }
        // Inputs of about unit size are learned from most easily.
        turn.observation.clear();
        turn.observation.extend([
            self.rate as f32 / MOST as f32,
            self.queued as f32 / MOST as f32,
            self.delivered as f32 / MOST as f32,
        ]);
    }

    fn act(&mut self, action: usize) {
        self.action = Some(action);
    }
}

fn main() -> anyhow::Result<()> {
    let environments: Vec<Box<dyn Environment>> = (0..ENVIRONMENTS)
        .map(|seed| Box::new(Pipe::new(seed)) as _)
        .collect();

    // The network's sizes follow from the environment's. No LSTM: what the policy needs to remember
    // is in the observation.
    let spec = environments[0].spec();
    let shape = Shape {
        observation: spec.observation,
        hidden: vec![32, 32],
        activation: Activation::Tanh,
        lstm: None,
        actions: spec.actions,
        privileged: spec.privileged,
        predictions: 0,
        values: 1,
        branches: vec![],
    };
    let mut parameters = model::initialise(&shape, 1);
    let mut device = model::device(DeviceKind::Cpu, &shape, 1)?;
    device.set_parameters(&parameters)?;

    let settings = LearnerSettings {
        batch: 8,
        unroll: 20,
        learning_rate: 6e-3,
        gradient_clip: 10.0,
        discount: 0.95,
        // Explores at first and commits itself at the end.
        entropy_cost: 0.01,
        entropy_cost_end: Some(0.0),
        ..LearnerSettings::default()
    };
    let (batch, unroll) = (settings.batch, settings.unroll);
    let state = LearnerState::new(spec.tasks, &settings);
    let mut learner = Learner::new(device, settings, state, 0);

    // The policy as the actor uses it: the parameters, and the number of updates before them.
    let snapshot = |version: u64, parameters: &[f32]| {
        let weights = Weights::new(&shape, parameters);
        Arc::new(Snapshot { version, weights })
    };
    let mut actor = Actor::new(environments, snapshot(0, &parameters), unroll, 1);

    println!("{:>7} {:>8} {:>8}", "steps", "return", "entropy");
    let updates = STEPS / (batch * unroll);
    let mut output = StepOutput::default();
    let mut returns = Vec::new();
    for update in 1..=updates {
        while output.rollouts.len() < batch {
            actor.step(&mut output);
        }
        let rollouts: Vec<_> = output.rollouts.drain(..batch).collect();
        returns.extend(output.episodes.drain(..).map(|episode| episode.total));

        // The schedules of learning rate and entropy go by the part of the training that is done.
        let done = (update - 1) as f64 / updates as f64;
        let metrics = learner.update(&rollouts, done)?;
        learner.device().parameters(&mut parameters)?;
        actor.adopt(snapshot(learner.updates(), &parameters));

        if update % (updates / 15) == 0 {
            let mean = returns.iter().sum::<f64>() / returns.len().max(1) as f64;
            let steps = update * batch * unroll;
            println!("{steps:>7} {mean:>8.2} {:>8.3}", metrics.entropy);
            returns.clear();
        }
    }
    println!("a policy that knew the capacity would have a return of about 48");
    Ok(())
}
