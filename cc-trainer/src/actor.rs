//! Actors: many environments stepped together against one policy, which yields rollouts.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    environment::{Environment, RecordedAction, Turn, not_done},
    model::{Inference, Outputs, Sequences},
    rollout::{Episode, Origin, Rollout},
    softmax,
};

pub use crate::model::Snapshot;

/// What an actor's steps have yielded: rollouts and the episodes that ended.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Complete rollouts, of T + 1 steps each.
    pub rollouts: Vec<Rollout>,
    /// Episodes that ended during those steps.
    pub episodes: Vec<Episode>,
}

/// Steps of an actor without a turn after which a seat gives up the rollout in progress when its
/// next episode begins. A seat that few links have, such as the fortieth flow of a crowd, waits for
/// hundreds of episodes, and what it did before would be learned from as the behaviour of thousands
/// of updates ago. The seats of a link with several flows wait for a few steps between their turns,
/// and for some hundred between two such links.
const LONGEST_IDLE: u64 = 1000;

/// Steps several environments of one kind together: a step takes one action in each of them, from
/// one pass of the network.
pub struct Actor {
    environments: Vec<Box<dyn Environment>>,
    /// State of each seat, `[environment][seat]`.
    seats: Vec<Vec<ActorSeat>>,
    turns: Vec<Turn>,
    policy: Arc<Snapshot>,
    /// Number of steps so far.
    steps: u64,
    unroll: usize,
    /// Number of steps before those of a rollout, by which the LSTM's state is refreshed.
    burn_in: usize,
    random: StdRng,
    inference: Inference,
    input: StepInput,
    outputs: Outputs,
    /// T of the policy softmax(logits / T) that actions are sampled from.
    temperature: f32,
    /// Whether the most likely action is taken instead of a sampled one.
    greedy: bool,
}

impl Actor {
    /// An actor whose rollouts have `unroll` actions. The seed determines the sampled actions.
    ///
    /// # Panics
    ///
    /// Panics if `unroll` is 0, if there is no environment, or if one does
    /// not fit the policy's network.
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
                .map(|environment| vec![ActorSeat::new(state); environment.spec().seats])
                .collect(),
            turns: vec![Turn::default(); environments.len()],
            input: StepInput::default(),
            outputs: Outputs::default(),
            random: StdRng::seed_from_u64(seed),
            inference: Inference::new(shape),
            environments,
            policy,
            steps: 0,
            unroll,
            burn_in: 0,
            temperature: 1.0,
            greedy: false,
        }
    }

    /// Puts this many steps before those of each rollout, from which the learner refreshes the
    /// LSTM's state at its start.
    pub fn with_burn_in(mut self, burn_in: usize) -> Self {
        self.burn_in = burn_in;
        self
    }

    /// Takes the most likely action each time, the first of equal ones, as a policy that is served
    /// greedily does. Nothing must be learned from the rollouts then, whose logits are those of a
    /// distribution that was not sampled from.
    pub fn greedy(mut self) -> Self {
        self.greedy = true;
        self
    }

    /// Samples actions from softmax(logits / `temperature`), which must be above 0, instead of
    /// softmax(logits). The logits of rollouts are those of the distribution that was sampled from.
    pub fn at_temperature(mut self, temperature: f32) -> Self {
        self.temperature = temperature;
        self
    }

    /// Acts by another version of the policy from now on. Its network must have the same sizes.
    pub fn adopt(&mut self, policy: Arc<Snapshot>) {
        self.policy = policy;
    }

    /// Version of the policy that the actor acts by.
    pub fn version(&self) -> u64 {
        self.policy.version
    }

    /// Runs each environment to its next turn and answers it with an action: a sampled one, or the
    /// one that was recorded. Actions that a turn does not allow are neither sampled nor taken
    /// greedily. Appends to `output` what is complete.
    ///
    /// # Panics
    ///
    /// Panics if an environment allows no action in a turn, or not the recorded one, or tells it of
    /// another number of actions than it has.
    pub fn step(&mut self, output: &mut StepOutput) {
        let Snapshot { version, weights } = &*self.policy;
        let shape = weights.shape();
        let (actions, outputs) = (shape.actions, shape.outputs());
        let privileged = shape.privileged;
        let state = shape.lstm.unwrap_or(0);

        self.steps += 1;
        self.input.clear();
        for ((environment, turn), seats) in self
            .environments
            .iter_mut()
            .zip(&mut self.turns)
            .zip(&mut self.seats)
        {
            environment.next(turn);
            check_mask(turn, actions);
            let seat = &mut seats[turn.seat];
            seat.count(turn, output);
            let idle = self.steps - std::mem::replace(&mut seat.last_step, self.steps);
            if turn.first.is_some() && idle > LONGEST_IDLE {
                seat.give_up();
            }
            self.input.push(turn, &seats[turn.seat], privileged > 0);
        }
        let input = self.input.sequences();
        self.inference.forward(weights, &input, &mut self.outputs);
        softmax::at_temperature(&mut self.outputs.logits, self.temperature);

        for (index, ((environment, turn), seats)) in self
            .environments
            .iter_mut()
            .zip(&self.turns)
            .zip(&mut self.seats)
            .enumerate()
        {
            let logits = &mut self.outputs.logits[index * outputs..][..actions];
            softmax::mask(logits, &turn.allowed);
            let choice = match &turn.taken {
                Some(taken) => Choice::recorded(taken, actions, &turn.allowed),
                None => Choice {
                    action: match self.greedy {
                        true => softmax::most_likely(logits),
                        false => softmax::sample(logits, self.random.random()),
                    },
                    logits: (&*logits).into(),
                    origin: Origin::Actor,
                },
            };
            environment.act(choice.action);

            let seat = &mut seats[turn.seat];
            seat.record(&self.input, index, turn, &choice, *version);
            if seat.rollout.len() == self.burn_in + self.unroll + 1 {
                let complete = seat.split(self.burn_in + 1, *version);
                output.rollouts.push(complete);
            }
            seat.h
                .copy_from_slice(&self.outputs.h[index * state..][..state]);
            seat.c
                .copy_from_slice(&self.outputs.c[index * state..][..state]);
        }
    }
}

/// Checks that what a turn says about allowed actions can be true.
///
/// # Panics
///
/// Panics if no action is allowed, or not the recorded one, or if the number of actions is wrong.
fn check_mask(turn: &Turn, actions: usize) {
    let Turn { seat, allowed, .. } = turn;
    if allowed.is_empty() {
        return;
    }
    assert!(
        allowed.len() == actions,
        "an environment's turn of seat {seat} tells of {} actions whether they are allowed, where \
         there are {actions}",
        allowed.len()
    );
    assert!(
        allowed.contains(&true),
        "an environment's turn of seat {seat} allows none of the {actions} actions: a mask must \
         leave at least one"
    );
    if let Some(taken) = &turn.taken {
        assert!(
            turn.allows(taken.action),
            "an environment's turn of seat {seat} does not allow its recorded action, {}",
            taken.action
        );
    }
}

/// An action, with the distribution that it was drawn from.
struct Choice<'a> {
    action: usize,
    logits: Cow<'a, [f32]>,
    origin: Origin,
}

impl Choice<'_> {
    /// A recorded action. Its logits are the logarithms of the recorded probabilities, those of 0
    /// replaced by the smallest normal number, and masked where they are not allowed.
    fn recorded(taken: &RecordedAction, actions: usize, allowed: &[bool]) -> Self {
        let (mut logits, origin): (Vec<f32>, _) = match &taken.probabilities {
            Some(shares) => {
                let log = |share: &f32| share.max(f32::MIN_POSITIVE).ln();
                let origin = match taken.own {
                    true => Origin::Actor,
                    false => Origin::Recorded,
                };
                (shares.iter().map(log).collect(), origin)
            }
            None => (vec![0.0; actions], Origin::Observed),
        };
        softmax::mask(&mut logits, allowed);
        Self {
            action: taken.action,
            logits: logits.into(),
            origin,
        }
    }
}

/// The state of a seat between its turns.
#[derive(Clone, Debug, Default)]
struct ActorSeat {
    /// The rollout in progress, of at most T steps.
    rollout: Rollout,
    /// The LSTM's states, hidden and cell, before each step of the rollout in progress.
    states: VecDeque<(Vec<f32>, Vec<f32>)>,
    /// The LSTM's hidden state before the next step.
    h: Vec<f32>,
    /// The LSTM's cell state before the next step.
    c: Vec<f32>,
    /// Task of the seat's last turn.
    task: usize,
    /// Sum of the rewards in the current episode.
    total: f64,
    /// Step of the actor in which the seat had its last turn.
    last_step: u64,
    /// Number of steps in the current episode.
    steps: u64,
    /// How long the actions of the current episode were in force.
    intervals: f64,
}

impl ActorSeat {
    fn new(state: usize) -> Self {
        Self {
            h: vec![0.0; state],
            c: vec![0.0; state],
            ..Self::default()
        }
    }

    /// Counts the outcome, in this turn, of the seat's action before it.
    fn count(&mut self, turn: &Turn, output: &mut StepOutput) {
        if self.rollout.is_empty() {
            // The seat's very first turn: there was no action before.
            return;
        }
        self.total += f64::from(turn.reward);
        self.steps += 1;
        self.intervals += f64::from(turn.intervals);
        if turn.first.is_some() {
            output.episodes.push(Episode {
                task: self.task,
                total: self.total,
                steps: self.steps,
                intervals: self.intervals,
            });
            (self.total, self.steps, self.intervals) = (0.0, 0, 0.0);
        }
    }

    /// Forgets the rollout in progress: the next step begins one.
    fn give_up(&mut self) {
        self.rollout = Rollout::default();
        self.states.clear();
    }

    /// Takes the complete rollout out, of which the last `kept` steps begin the next one.
    fn split(&mut self, kept: usize, version: u64) -> Rollout {
        self.states.drain(..self.states.len() - kept);
        let (h, c) = &self.states[0];
        self.rollout.split(kept, h, c, version)
    }

    /// Appends a step to the rollout. The LSTM's state must still be the one before the step.
    fn record(
        &mut self,
        input: &StepInput,
        index: usize,
        turn: &Turn,
        choice: &Choice<'_>,
        version: u64,
    ) {
        self.states.push_back((self.h.clone(), self.c.clone()));
        let rollout = &mut self.rollout;
        if rollout.is_empty() {
            rollout.h.clone_from(&self.h);
            rollout.c.clone_from(&self.c);
            rollout.version = version;
            self.task = turn.task;
        }
        rollout
            .observation
            .extend_from_slice(input.observation(index));
        rollout
            .privileged
            .extend_from_slice(input.privileged(index));
        rollout.observed_reward.push(input.reward[index]);
        rollout.first.push(turn.first);
        rollout.action.push(choice.action as u32);
        rollout.logits.extend_from_slice(&choice.logits);
        match turn.effects.is_empty() {
            true => rollout.effects.extend(0..choice.logits.len() as u8),
            false => rollout.effects.extend_from_slice(&turn.effects),
        }
        let actions = 0..choice.logits.len();
        (rollout.allowed).extend(actions.map(|action| turn.allows(action)));
        rollout.origin.push(choice.origin);
        rollout.reward.push(turn.reward);
        rollout.intervals.push(turn.intervals);
        rollout.quantities.push(turn.quantities);
        rollout.task.push(self.task as u32);
        self.task = turn.task;
    }
}

/// The network's input for one step, with one row per environment.
#[derive(Debug, Default)]
struct StepInput {
    observation: Vec<f32>,
    reward: Vec<f32>,
    not_done: Vec<f32>,
    privileged: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
}

impl StepInput {
    fn clear(&mut self) {
        for array in [
            &mut self.observation,
            &mut self.reward,
            &mut self.not_done,
            &mut self.privileged,
            &mut self.h,
            &mut self.c,
        ] {
            array.clear();
        }
    }

    /// Appends the row of an environment whose `seat` is to act; `privileged` if the
    /// network has a privileged critic.
    fn push(&mut self, turn: &Turn, seat: &ActorSeat, privileged: bool) {
        self.observation.extend_from_slice(&turn.observation);
        self.reward.push(turn.observed_reward);
        self.not_done.push(not_done(turn.first));
        if privileged {
            self.privileged.extend_from_slice(&turn.privileged);
        }
        self.h.extend_from_slice(&seat.h);
        self.c.extend_from_slice(&seat.c);
    }

    fn observation(&self, index: usize) -> &[f32] {
        let width = self.observation.len() / self.reward.len();
        &self.observation[index * width..][..width]
    }

    fn privileged(&self, index: usize) -> &[f32] {
        let width = self.privileged.len() / self.reward.len();
        &self.privileged[index * width..][..width]
    }

    fn sequences(&self) -> Sequences<'_> {
        Sequences {
            steps: 1,
            batch_size: self.reward.len(),
            observation: &self.observation,
            reward: &self.reward,
            not_done: &self.not_done,
            privileged: &self.privileged,
            h: &self.h,
            c: &self.c,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        environment::{End, Spec},
        model::{Activation, Shape, Weights, initialise},
    };

    /// A network with an LSTM and random parameters.
    fn policy(version: u64) -> Arc<Snapshot> {
        let shape = Shape {
            observation: 2,
            hidden: vec![4],
            activation: Activation::Tanh,
            lstm: Some(3),
            actions: 3,
            privileged: 1,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let parameters = initialise(&shape, 5);
        Arc::new(Snapshot {
            version,
            weights: Weights::new(&shape, &parameters),
        })
    }

    /// An environment of two seats, of which the first has two turns for each of the second. At its
    /// step n seat s observes (n, s), and its action earns n + 0.5. Episodes have 3 steps and
    /// belong to tasks 0 and 1 in turns.
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

    /// Rollouts with a burn-in repeat the steps before theirs, with the state before the first of
    /// these; what is learned from follows each other without a gap as before.
    #[test]
    fn a_burn_in_repeats_the_steps_before() {
        let rollouts = |burn_in| {
            let mut actor =
                Actor::new(vec![Box::<Clock>::default()], policy(0), 4, 1).with_burn_in(burn_in);
            let mut output = StepOutput::default();
            (0..60).for_each(|_| actor.step(&mut output));
            let of_first = |rollout: &Rollout| rollout.observation[1] == 0.0;
            output.rollouts.retain(of_first);
            output.rollouts
        };
        let (with, without) = (rollouts(8), rollouts(0));
        assert!(with.len() > 4);
        for (at, rollout) in with.iter().enumerate() {
            assert_eq!(
                (rollout.len(), rollout.observation[0]),
                (13, 4.0 * at as f32)
            );
            // Eight steps are two rollouts of four: the state is the one of the rollout that
            // begins there.
            assert_eq!((&rollout.h, &rollout.c), (&without[at].h, &without[at].c));
            let own = &without[at + 2];
            assert_eq!(rollout.action[8..], own.action);
            assert_eq!(rollout.observation[16..], own.observation);
            assert_eq!(rollout.logits[24..], own.logits);
            assert_eq!(rollout.reward[8..], own.reward);
        }
    }

    #[test]
    fn rollouts_follow_each_other_with_the_state_at_their_start() {
        let environments: Vec<Box<dyn Environment>> =
            vec![Box::<Clock>::default(), Box::<Clock>::default()];
        let mut actor = Actor::new(environments, policy(0), 4, 1);
        let mut output = StepOutput::default();
        for step in 0..30 {
            actor.adopt(policy(step));
            actor.step(&mut output);
        }
        // 20 turns of the first seats, 10 of the second: rollouts begin at steps 0, 4, 8, 12 and 0,
        // 4, and there are two environments.
        let starts = |seat: f32| -> Vec<usize> {
            output
                .rollouts
                .iter()
                .filter(|rollout| rollout.observation[1] == seat)
                .map(|rollout| rollout.observation[0] as usize)
                .collect()
        };
        assert_eq!(starts(0.0), [0, 0, 4, 4, 8, 8, 12, 12]);
        assert_eq!(starts(1.0), [0, 0, 4, 4]);
        for rollout in &output.rollouts {
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
            // The version at the turn at which the rollout begins: turn n of seat 0 is turn 3n/2 of
            // all.
            let turn = match rollout.observation[1] {
                0.0 => start / 2 * 3,
                _ => start * 3 + 2,
            };
            assert_eq!(rollout.version, turn as u64);
        }
    }

    /// Like [`Clock`], but the second seat has its turns in the first nine of this many turns only.
    struct Rare(Clock, usize);

    impl Environment for Rare {
        fn spec(&self) -> Spec {
            self.0.spec()
        }

        fn next(&mut self, turn: &mut Turn) {
            // The clock's every third turn is the second seat's.
            let at = self.0.turn;
            if (at + 1).is_multiple_of(3) && at % self.1 > 9 {
                self.0.turn += 1;
            }
            self.0.next(turn);
        }

        fn act(&mut self, action: usize) {
            self.0.act(action);
        }
    }

    #[test]
    fn what_a_seat_did_long_ago_is_not_learned_from() {
        let of_the_rare_seat = |every| {
            let environment = Rare(Clock::default(), every);
            let mut actor = Actor::new(vec![Box::new(environment)], policy(0), 4, 1);
            let mut output = StepOutput::default();
            let mut ages = Vec::new();
            for step in 0..8_000 {
                actor.adopt(policy(step));
                actor.step(&mut output);
                for rollout in output.rollouts.drain(..) {
                    assert_eq!(rollout.len(), 5);
                    if rollout.observation[1] == 1.0 {
                        ages.push(step - rollout.version);
                    }
                }
            }
            // The outcomes of its episodes are counted all the same.
            assert!(output.episodes.len() > 1_500);
            ages
        };
        // Its episodes have three steps, and rollouts five.
        let ages = of_the_rare_seat(900);
        assert!(
            ages.len() > 4 && ages.iter().all(|age| *age > 500),
            "{ages:?}"
        );
        assert!(of_the_rare_seat(3_000).is_empty());
    }

    #[test]
    fn a_rollout_is_enough_to_recompute_the_logits_of_its_actions() {
        let mut actor = Actor::new(vec![Box::<Clock>::default()], policy(0), 4, 1);
        let mut output = StepOutput::default();
        (0..40).for_each(|_| actor.step(&mut output));
        assert!(output.rollouts.len() > 6);
        for rollout in &output.rollouts {
            // As the learner computes them: all steps in one pass, from the state at the start.
            let not_done: Vec<_> = rollout.first.iter().map(|&first| not_done(first)).collect();
            let mut outputs = Outputs::default();
            Inference::new(policy(0).weights.shape()).forward(
                &policy(0).weights,
                &Sequences {
                    steps: 5,
                    batch_size: 1,
                    observation: &rollout.observation,
                    reward: &rollout.observed_reward,
                    not_done: &not_done,
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
        // Otherwise the state would not matter.
        let last = output.rollouts.last().expect("as counted above");
        assert!(last.h.iter().any(|value| value.abs() > 0.01));
    }

    /// An environment of three actions whose turns have these masks, one after the other, and
    /// recorded actions where there are any.
    struct Masks {
        masks: Vec<Vec<bool>>,
        taken: Option<RecordedAction>,
        turn: usize,
        /// Whether the present turn allows each action.
        allowed: Vec<bool>,
    }

    impl Masks {
        fn new(masks: &[&[bool]], taken: Option<RecordedAction>) -> Box<Self> {
            Box::new(Self {
                masks: masks.iter().map(|mask| mask.to_vec()).collect(),
                taken,
                turn: 0,
                allowed: Vec::new(),
            })
        }
    }

    impl Environment for Masks {
        fn spec(&self) -> Spec {
            Spec {
                seats: 1,
                observation: 2,
                privileged: 1,
                actions: 3,
                tasks: 1,
            }
        }

        fn next(&mut self, turn: &mut Turn) {
            self.allowed
                .clone_from(&self.masks[self.turn % self.masks.len()]);
            turn.first = (self.turn == 0).then_some(End::Truncated);
            self.turn += 1;
            turn.observation = vec![self.turn as f32 * 0.01, 1.0];
            turn.privileged = vec![0.0];
            turn.allowed.clone_from(&self.allowed);
            turn.taken.clone_from(&self.taken);
        }

        fn act(&mut self, action: usize) {
            assert!(action < 3 && self.allowed.get(action) != Some(&false));
        }
    }

    /// Masks that allow two actions, one, all of them and another one.
    const ONE_AND_ANOTHER: [&[bool]; 4] = [
        &[true, false, true],
        &[false, true, false],
        &[],
        &[false, false, true],
    ];

    #[test]
    fn actions_that_are_not_allowed_are_never_taken() {
        for temperature in [0.3, 1.0, 4.0] {
            for greedy in [false, true] {
                let environments: Vec<Box<dyn Environment>> = (0..3)
                    .map(|_| Masks::new(&ONE_AND_ANOTHER, None) as _)
                    .collect();
                let mut actor =
                    Actor::new(environments, policy(0), 4, 1).at_temperature(temperature);
                if greedy {
                    actor = actor.greedy();
                }
                let mut output = StepOutput::default();
                (0..200).for_each(|_| actor.step(&mut output));
                assert!(output.rollouts.len() > 100);
                let mut counts = [0; 3];
                for rollout in &output.rollouts {
                    assert_eq!(rollout.allowed.len(), 5 * 3);
                    for (step, &action) in rollout.action.iter().enumerate() {
                        let row = step * 3..step * 3 + 3;
                        let (allowed, logits) =
                            (&rollout.allowed[row.clone()], &rollout.logits[row]);
                        assert!(allowed[action as usize]);
                        counts[action as usize] += 1;
                        for (logit, allowed) in logits.iter().zip(allowed) {
                            assert_eq!(*logit == softmax::MASKED, !allowed);
                        }
                        let sum: f32 = (0..3)
                            .map(|a| softmax::log_probability(logits, a).exp())
                            .sum();
                        assert!((sum - 1.0).abs() < 1e-5);
                    }
                }
                assert!(
                    greedy || counts.iter().all(|count| *count > 0),
                    "{counts:?}"
                );
                // The masks of a rollout follow each other without a gap.
                let kinds = |rollout: &Rollout| {
                    let allowed = rollout.allowed.chunks_exact(3);
                    allowed.map(<[bool]>::to_vec).collect::<Vec<_>>()
                };
                let whole = |mask: &[bool]| match mask.is_empty() {
                    true => vec![true; 3],
                    false => mask.to_vec(),
                };
                let expected: Vec<_> = (0..5).map(|at| whole(ONE_AND_ANOTHER[at % 4])).collect();
                assert!(
                    output
                        .rollouts
                        .iter()
                        .all(|rollout| kinds(rollout) == expected)
                );
            }
        }
    }

    /// A mask of all actions draws what no mask draws.
    #[test]
    fn a_mask_that_allows_everything_is_none() {
        let rollouts = |mask: &[bool]| {
            let mut actor = Actor::new(vec![Masks::new(&[mask], None)], policy(0), 4, 1);
            let mut output = StepOutput::default();
            (0..100).for_each(|_| actor.step(&mut output));
            output.rollouts
        };
        assert_eq!(rollouts(&[true; 3]), rollouts(&[]));
    }

    #[test]
    fn recorded_probabilities_of_masked_actions_are_0() {
        let taken = RecordedAction {
            action: 2,
            probabilities: Some(vec![0.25, 0.0, 0.75]),
            own: false,
        };
        let mask: &[bool] = &[true, false, true];
        let mut actor = Actor::new(vec![Masks::new(&[mask], Some(taken))], policy(0), 4, 1);
        let mut output = StepOutput::default();
        (0..5).for_each(|_| actor.step(&mut output));
        let rollout = &output.rollouts[0];
        assert_eq!(
            (&rollout.action, &rollout.origin),
            (&vec![2; 5], &vec![Origin::Recorded; 5])
        );
        let shares = [0, 1, 2].map(|at| softmax::log_probability(&rollout.logits[..3], at).exp());
        assert!((shares[0] - 0.25).abs() < 1e-6 && (shares[2] - 0.75).abs() < 1e-6);
        assert_eq!(shares[1], 0.0);
    }

    fn step_with(mask: &[bool], taken: Option<RecordedAction>) {
        let mut actor = Actor::new(vec![Masks::new(&[mask], taken)], policy(0), 4, 1);
        actor.step(&mut StepOutput::default());
    }

    #[test]
    #[should_panic(expected = "allows none of the 3 actions: a mask must leave at least one")]
    fn a_mask_that_leaves_no_action_is_refused() {
        step_with(&[false; 3], None);
    }

    #[test]
    #[should_panic(expected = "tells of 2 actions whether they are allowed, where there are 3")]
    fn a_mask_of_another_length_is_refused() {
        step_with(&[true; 2], None);
    }

    #[test]
    #[should_panic(expected = "does not allow its recorded action, 1")]
    fn a_recorded_action_that_is_masked_is_refused() {
        let taken = RecordedAction {
            action: 1,
            probabilities: None,
            own: false,
        };
        step_with(&[true, false, true], Some(taken));
    }

    #[test]
    fn episodes_are_counted_per_seat_with_their_task_return_and_length() {
        let mut actor = Actor::new(vec![Box::<Clock>::default()], policy(0), 4, 1);
        let mut output = StepOutput::default();
        // Ten turns of the first seat, five of the second.
        (0..15).for_each(|_| actor.step(&mut output));
        let episode = |task, total| Episode {
            task,
            total,
            steps: 3,
            intervals: 3.0,
        };
        assert_eq!(
            output.episodes,
            [
                episode(0, 0.5 + 1.5 + 2.5),
                episode(1, 3.5 + 4.5 + 5.5),
                episode(0, 0.5 + 1.5 + 2.5),
                episode(0, 6.5 + 7.5 + 8.5),
            ]
        );
    }
}
