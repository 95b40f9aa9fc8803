//! Acts: many environments, stepped together against one policy.

use std::{borrow::Cow, sync::Arc};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    environment::{End, Environment, RecordedAction, Turn},
    model::{Inference, Outputs, Sequences, Weights},
    rollout::{Episode, Origin, Rollout},
};

/// A policy as the learner published it.
#[derive(Debug)]
pub struct Snapshot {
    /// Updates that made it.
    pub version: u64,
    /// The network.
    pub weights: Weights,
}

/// What steps of an actor brought.
#[derive(Clone, Debug, Default)]
pub struct Harvest {
    /// Whole rollouts.
    pub rollouts: Vec<Rollout>,
    /// Episodes that ended.
    pub episodes: Vec<Episode>,
}

/// Plays in several environments of a kind. One step is one action in each of them, from one pass of the network.
pub struct Actor {
    environments: Vec<Box<dyn Environment>>,
    /// `[environment][seat]`.
    seats: Vec<Vec<Seat>>,
    turns: Vec<Turn>,
    policy: Arc<Snapshot>,
    unroll: usize,
    random: StdRng,
    inference: Inference,
    batch: Batch,
    outputs: Outputs,
}

impl Actor {
    /// An actor whose rollouts have `unroll` actions. The seed fixes the choice of actions.
    ///
    /// # Panics
    ///
    /// When there is no environment, or one does not fit the policy's network.
    pub fn new(
        environments: Vec<Box<dyn Environment>>,
        policy: Arc<Snapshot>,
        unroll: usize,
        seed: u64,
    ) -> Self {
        let shape = policy.weights.shape();
        assert!(!environments.is_empty(), "an actor without environments");
        assert!(unroll > 0, "rollouts without actions");
        for environment in &environments {
            let spec = environment.spec();
            assert!(
                spec.observation == shape.observation
                    && spec.actions == shape.actions
                    && (shape.privileged == 0 || shape.privileged == spec.privileged),
                "an environment of {spec:?} does not fit a network of {shape:?}"
            );
        }
        let state = shape.lstm.unwrap_or(0);
        Self {
            seats: environments
                .iter()
                .map(|environment| vec![Seat::new(state); environment.spec().seats])
                .collect(),
            turns: vec![Turn::default(); environments.len()],
            batch: Batch::default(),
            outputs: Outputs::default(),
            random: StdRng::seed_from_u64(seed),
            inference: Inference::new(shape),
            environments,
            policy,
            unroll,
        }
    }

    /// Acts by this policy from now on; its network has the same sizes.
    pub fn adopt(&mut self, policy: Arc<Snapshot>) {
        self.policy = policy;
    }

    /// Version of the policy it acts by.
    pub fn version(&self) -> u64 {
        self.policy.version
    }

    /// Lets each environment run to its next turn, and answers them all.
    pub fn step(&mut self, harvest: &mut Harvest) {
        let Snapshot { version, weights } = &*self.policy;
        let shape = weights.shape();
        let (actions, privileged) = (shape.actions, shape.privileged);
        let state = shape.lstm.unwrap_or(0);

        self.batch.clear();
        for ((environment, turn), seats) in self
            .environments
            .iter_mut()
            .zip(&mut self.turns)
            .zip(&mut self.seats)
        {
            environment.next(turn);
            seats[turn.seat].count(turn, harvest);
            self.batch.push(turn, &seats[turn.seat], privileged > 0);
        }
        let lanes = self.environments.len();
        let input = self.batch.sequences(lanes);
        self.inference.forward(weights, &input, &mut self.outputs);

        for (lane, ((environment, turn), seats)) in self
            .environments
            .iter_mut()
            .zip(&self.turns)
            .zip(&mut self.seats)
            .enumerate()
        {
            let logits = &self.outputs.logits[lane * actions..][..actions];
            let choice = match &turn.taken {
                Some(taken) => Choice::recorded(taken, actions),
                None => Choice {
                    action: sample(logits, self.random.random()),
                    logits: logits.into(),
                    origin: Origin::Actor,
                },
            };
            environment.act(choice.action);

            let seat = &mut seats[turn.seat];
            seat.record(&self.batch, lane, turn, &choice, *version);
            if seat.rollout.len() == self.unroll + 1 {
                let whole = seat.rollout.split(&seat.h, &seat.c, *version);
                harvest.rollouts.push(whole);
            }
            seat.h
                .copy_from_slice(&self.outputs.h[lane * state..][..state]);
            seat.c
                .copy_from_slice(&self.outputs.c[lane * state..][..state]);
        }
    }
}

/// An action, and why it was taken.
struct Choice<'a> {
    action: usize,
    logits: Cow<'a, [f32]>,
    origin: Origin,
}

impl Choice<'_> {
    /// What was recorded. Logits are logarithms of probabilities; of an action that could not be, very low.
    fn recorded(taken: &RecordedAction, actions: usize) -> Self {
        let (logits, origin) = match &taken.probabilities {
            Some(shares) => {
                let log = |share: &f32| share.max(f32::MIN_POSITIVE).ln();
                (shares.iter().map(log).collect(), Origin::Recorded)
            }
            None => (vec![0.0; actions], Origin::Observed),
        };
        Self {
            action: taken.action,
            logits: logits.into(),
            origin,
        }
    }
}

/// What is kept of a seat between its turns.
#[derive(Clone, Debug, Default)]
struct Seat {
    rollout: Rollout,
    /// The LSTM's state before the next step.
    h: Vec<f32>,
    c: Vec<f32>,
    /// Task of the turn before.
    task: usize,
    /// Of the episode.
    total: f64,
    steps: u64,
}

impl Seat {
    fn new(state: usize) -> Self {
        Self {
            h: vec![0.0; state],
            c: vec![0.0; state],
            ..Self::default()
        }
    }

    /// Counts what the turn says about the action before it.
    fn count(&mut self, turn: &Turn, harvest: &mut Harvest) {
        if self.rollout.is_empty() {
            // The very first turn: there was no action.
            return;
        }
        self.total += f64::from(turn.reward);
        self.steps += 1;
        if turn.first.is_some() {
            harvest.episodes.push(Episode {
                task: self.task,
                total: self.total,
                steps: self.steps,
            });
            (self.total, self.steps) = (0.0, 0);
        }
    }

    /// Appends a step to the rollout. The seat's state is still the one before the step.
    fn record(
        &mut self,
        batch: &Batch,
        lane: usize,
        turn: &Turn,
        choice: &Choice<'_>,
        version: u64,
    ) {
        let rollout = &mut self.rollout;
        if rollout.is_empty() {
            rollout.h.clone_from(&self.h);
            rollout.c.clone_from(&self.c);
            rollout.version = version;
            self.task = turn.task;
        }
        rollout
            .observation
            .extend_from_slice(batch.observation(lane));
        rollout.privileged.extend_from_slice(batch.privileged(lane));
        rollout.observed_reward.push(batch.reward[lane]);
        rollout.first.push(turn.first);
        rollout.action.push(choice.action as u32);
        rollout.logits.extend_from_slice(&choice.logits);
        rollout.origin.push(choice.origin);
        rollout.reward.push(turn.reward);
        rollout.task.push(self.task as u32);
        self.task = turn.task;
    }
}

/// The network's input for one step: a lane an environment.
#[derive(Debug, Default)]
struct Batch {
    observation: Vec<f32>,
    reward: Vec<f32>,
    keep: Vec<f32>,
    privileged: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
}

impl Batch {
    fn clear(&mut self) {
        for array in [
            &mut self.observation,
            &mut self.reward,
            &mut self.keep,
            &mut self.privileged,
            &mut self.h,
            &mut self.c,
        ] {
            array.clear();
        }
    }

    fn push(&mut self, turn: &Turn, seat: &Seat, privileged: bool) {
        self.observation.extend_from_slice(&turn.observation);
        self.reward.push(turn.observed_reward);
        self.keep.push(keep(turn.first));
        if privileged {
            self.privileged.extend_from_slice(&turn.privileged);
        }
        self.h.extend_from_slice(&seat.h);
        self.c.extend_from_slice(&seat.c);
    }

    fn observation(&self, lane: usize) -> &[f32] {
        let width = self.observation.len() / self.reward.len();
        &self.observation[lane * width..][..width]
    }

    fn privileged(&self, lane: usize) -> &[f32] {
        let width = self.privileged.len() / self.reward.len();
        &self.privileged[lane * width..][..width]
    }

    fn sequences(&self, lanes: usize) -> Sequences<'_> {
        Sequences {
            steps: 1,
            lanes,
            observation: &self.observation,
            reward: &self.reward,
            keep: &self.keep,
            privileged: &self.privileged,
            h: &self.h,
            c: &self.c,
        }
    }
}

/// What the LSTM's state is multiplied by before a step: 0 where an episode begins.
pub(crate) fn keep(first: Option<End>) -> f32 {
    f32::from(u8::from(first.is_none()))
}

/// The action whose share of the softmax's unit interval holds `at`, in [0, 1).
fn sample(logits: &[f32], at: f32) -> usize {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - max).exp()).sum();
    let mut left = at * sum;
    for (action, logit) in logits.iter().enumerate() {
        left -= (logit - max).exp();
        if left < 0.0 {
            return action;
        }
    }
    // Only rounding leads here.
    logits.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        environment::Spec,
        model::{Activation, Shape, initialise},
    };

    /// A network with memory, at random.
    fn policy(version: u64) -> Arc<Snapshot> {
        let shape = Shape {
            observation: 2,
            hidden: vec![4],
            activation: Activation::Tanh,
            lstm: Some(3),
            actions: 3,
            privileged: 1,
        };
        let parameters = initialise(&shape, 5);
        Arc::new(Snapshot {
            version,
            weights: Weights::new(&shape, &parameters),
        })
    }

    /// Asks its two seats by turns, the first one twice as often. Seat s observes its lifetime's step and s; the action
    /// at step n earns n + 0.5; episodes have 3 steps, and belong to task 0 and 1 by turns.
    #[derive(Default)]
    struct Clock {
        turn: usize,
        steps: [usize; 2],
    }

    impl Environment for Clock {
        fn spec(&self) -> Spec {
            Spec {
                seats: 2,
                observation: 2,
                privileged: 1,
                actions: 3,
                tasks: 2,
            }
        }

        fn next(&mut self, turn: &mut Turn) {
            self.turn += 1;
            turn.seat = usize::from(self.turn.is_multiple_of(3));
            let step = self.steps[turn.seat];
            self.steps[turn.seat] += 1;
            turn.first = step.is_multiple_of(3).then_some(match step {
                0 => End::Truncated,
                _ => End::Terminated,
            });
            turn.reward = if step == 0 { 0.0 } else { step as f32 - 0.5 };
            turn.observed_reward = -turn.reward;
            turn.observation = vec![step as f32, turn.seat as f32];
            turn.privileged = vec![step as f32 * 10.0];
            turn.task = step / 3 % 2;
        }

        fn act(&mut self, action: usize) {
            assert!(action < 3);
        }
    }

    #[test]
    fn rollouts_follow_each_other_with_the_state_at_their_start() {
        let environments: Vec<Box<dyn Environment>> =
            vec![Box::<Clock>::default(), Box::<Clock>::default()];
        let mut actor = Actor::new(environments, policy(0), 4, 1);
        let mut harvest = Harvest::default();
        for step in 0..30 {
            actor.adopt(policy(step));
            actor.step(&mut harvest);
        }
        // 20 turns of the first seats, 10 of the second: rollouts begin at steps 0, 4, 8, 12 and 0, 4; in pairs.
        let starts = |seat: f32| -> Vec<usize> {
            harvest
                .rollouts
                .iter()
                .filter(|rollout| rollout.observation[1] == seat)
                .map(|rollout| rollout.observation[0] as usize)
                .collect()
        };
        assert_eq!(starts(0.0), [0, 0, 4, 4, 8, 8, 12, 12]);
        assert_eq!(starts(1.0), [0, 0, 4, 4]);
        for rollout in &harvest.rollouts {
            let start = rollout.observation[0] as usize;
            assert_eq!(rollout.len(), 5);
            for (at, step) in (start..start + 5).enumerate() {
                let earned = if step == 0 { 0.0 } else { step as f32 - 0.5 };
                assert_eq!(rollout.observation[2 * at], step as f32);
                assert_eq!(rollout.privileged[at], step as f32 * 10.0);
                assert_eq!(rollout.reward[at], earned);
                assert_eq!(rollout.observed_reward[at], -earned);
                assert_eq!(rollout.first[at].is_some(), step % 3 == 0);
                assert_eq!(rollout.task[at] as usize, step.saturating_sub(1) / 3 % 2);
            }
            // The policy of the turn at which the rollout begins: the n-th of seat 0 is turn 3n/2.
            let turn = match rollout.observation[1] {
                0.0 => start / 2 * 3,
                _ => start * 3 + 2,
            };
            assert_eq!(rollout.version, turn as u64);
        }
    }

    #[test]
    fn a_rollout_alone_tells_why_its_actions_were_chosen() {
        let mut actor = Actor::new(vec![Box::<Clock>::default()], policy(0), 4, 1);
        let mut harvest = Harvest::default();
        (0..40).for_each(|_| actor.step(&mut harvest));
        assert!(harvest.rollouts.len() > 6);
        for rollout in &harvest.rollouts {
            // As the learner sees it: all steps in one pass, from the state at the start.
            let keep: Vec<_> = rollout.first.iter().map(|&first| keep(first)).collect();
            let mut outputs = Outputs::default();
            Inference::new(policy(0).weights.shape()).forward(
                &policy(0).weights,
                &Sequences {
                    steps: 5,
                    lanes: 1,
                    observation: &rollout.observation,
                    reward: &rollout.observed_reward,
                    keep: &keep,
                    privileged: &rollout.privileged,
                    h: &rollout.h,
                    c: &rollout.c,
                },
                &mut outputs,
            );
            for (learnt, acted) in outputs.logits.iter().zip(&rollout.logits) {
                assert!((learnt - acted).abs() < 1e-5, "{learnt} and {acted}");
            }
        }
        // Or the state would not matter.
        let last = harvest.rollouts.last().expect("as counted above");
        assert!(last.h.iter().any(|value| value.abs() > 0.01));
    }

    #[test]
    fn episodes_are_counted_as_their_environment_gives_them() {
        let mut actor = Actor::new(vec![Box::<Clock>::default()], policy(0), 4, 1);
        let mut harvest = Harvest::default();
        // Ten turns of the first seat, five of the second.
        (0..15).for_each(|_| actor.step(&mut harvest));
        let episode = |task, total| Episode {
            task,
            total,
            steps: 3,
        };
        assert_eq!(
            harvest.episodes,
            [
                episode(0, 0.5 + 1.5 + 2.5),
                episode(1, 3.5 + 4.5 + 5.5),
                episode(0, 0.5 + 1.5 + 2.5),
                episode(0, 6.5 + 7.5 + 8.5),
            ]
        );
    }

    #[test]
    fn actions_are_drawn_by_their_shares() {
        let logits = [0.0, 2.0f32.ln(), 5.0f32.ln()].map(|logit| logit + 7.0);
        let mut counts = [0; 3];
        for at in 0..800 {
            counts[sample(&logits, (at as f32 + 0.5) / 800.0)] += 1;
        }
        assert_eq!(counts, [100, 200, 500]);
        // Shares of nothing are never drawn, wherever they stand.
        assert_eq!(sample(&[-200.0, 0.0, -200.0], 0.0), 1);
        assert_eq!(sample(&[-200.0, 0.0, -200.0], 0.999_999_9), 1);
    }
}
