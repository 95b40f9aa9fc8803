//! Updates against the loss as it is defined, and against figures computed by hand.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::{
    environment::{End, Quantities},
    model::{Activation, ParameterLayout, RmsProp, Sequences, Shape},
    vtrace::Clips,
};

/// A network with given outputs that records the derivatives it receives.
struct FixedNetwork {
    shape: Shape,
    outputs: Outputs,
    derivatives: Arc<Mutex<Derivatives>>,
    /// What the optimiser's steps return.
    step: Result<f32, StepError>,
}

/// Derivatives by logits and baselines, and the optimiser's step that followed.
#[derive(Clone, Default)]
struct Derivatives {
    /// Number of steps, observations and hidden states of each forward pass.
    forwards: Vec<(usize, Vec<f32>, Vec<f32>)>,
    logits: Vec<f32>,
    baseline: Vec<f32>,
    step: Option<RmsProp>,
}

impl Device for FixedNetwork {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn set_parameters(&mut self, _: &[f32]) -> Result<(), DeviceFailure> {
        Ok(())
    }

    fn parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        into.clear();
        into.resize(ParameterLayout::of(&self.shape).len(), 0.0);
        Ok(())
    }

    fn moments(&self, _: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        Ok(())
    }

    fn set_moments(&mut self, _: &[f32]) -> Result<(), DeviceFailure> {
        Ok(())
    }

    fn forward(
        &mut self,
        input: &Sequences<'_>,
        output: &mut Outputs,
    ) -> Result<(), DeviceFailure> {
        assert_eq!(input.not_done.len(), input.steps * input.batch_size);
        let seen = (input.steps, input.observation.to_vec(), input.h.to_vec());
        self.derivatives
            .lock()
            .expect("one thread")
            .forwards
            .push(seen);
        output.clone_from(&self.outputs);
        Ok(())
    }

    fn backward(
        &mut self,
        _: &Sequences<'_>,
        d_logits: &[f32],
        d_baseline: &[f32],
    ) -> Result<(), DeviceFailure> {
        let mut derivatives = self.derivatives.lock().expect("one thread");
        derivatives.logits = d_logits.to_vec();
        derivatives.baseline = d_baseline.to_vec();
        Ok(())
    }

    fn gradient(&self, _: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        Ok(())
    }

    fn set_gradient(&mut self, _: &[f32]) -> Result<(), DeviceFailure> {
        Ok(())
    }

    fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError> {
        self.derivatives.lock().expect("one thread").step = Some(*optimiser);
        self.step.clone()
    }
}

const ACTIONS: usize = 3;

/// Ways in which three actions can have the same effects.
const EFFECTS: [[u8; ACTIONS]; 4] = [[0, 1, 2], [0, 0, 2], [0, 1, 0], [0, 0, 0]];

/// Masks over three actions, one at a time.
const ALLOWED: [[bool; ACTIONS]; 5] = [
    [true; ACTIONS],
    [true, true, false],
    [false, true, true],
    [true, false, true],
    [false, true, false],
];

/// A batch, and the outputs of the network for it.
#[derive(Clone, Debug)]
struct LossCase {
    steps: usize,
    rollouts: Vec<Rollout>,
    logits: Vec<f32>,
    baseline: Vec<f32>,
    settings: LearnerSettings,
}

impl LossCase {
    fn batch_size(&self) -> usize {
        self.rollouts.len()
    }

    /// A learner after seven updates whose network has the case's outputs and whose steps return
    /// `step`, and what its network receives.
    fn learner(&self, step: Result<f32, StepError>) -> (Learner, Arc<Mutex<Derivatives>>) {
        self.learner_with_lstm(step, None)
    }

    /// The same with an LSTM of this width, whose states after any pass are its hidden ones at 0.5.
    fn learner_with_lstm(
        &self,
        step: Result<f32, StepError>,
        lstm: Option<usize>,
    ) -> (Learner, Arc<Mutex<Derivatives>>) {
        let device = self.network(step, lstm);
        let derivatives = Arc::clone(&device.derivatives);
        let state = LearnerState::new(1, &self.settings);
        let learner = Learner::new(Box::new(device), self.settings.clone(), state, 7);
        (learner, derivatives)
    }

    /// A network that has the case's outputs, whatever its input.
    fn network(&self, step: Result<f32, StepError>, lstm: Option<usize>) -> FixedNetwork {
        FixedNetwork {
            shape: Shape {
                observation: 1,
                hidden: vec![1],
                activation: Activation::Relu,
                lstm,
                actions: ACTIONS,
                privileged: 0,
                predictions: 0,
                values: 1,
                branches: vec![],
            },
            outputs: Outputs {
                logits: self.logits.clone(),
                baseline: self.baseline.clone(),
                h: vec![0.5; self.batch_size() * lstm.unwrap_or(0)],
                c: vec![0.25; self.batch_size() * lstm.unwrap_or(0)],
            },
            derivatives: Arc::default(),
            step,
        }
    }

    /// The learner's derivatives by logits and baseline, its step, and its metrics.
    fn derivatives(&self, done: f64) -> (Vec<f32>, Vec<f32>, RmsProp, UpdateMetrics) {
        let (mut learner, shown) = self.learner(Ok(0.0));
        let update = learner.update(&self.rollouts, done).expect("finite losses");
        assert_eq!(learner.updates(), 8);
        let shown: &Mutex<Derivatives> = &shown;
        let shown = shown.lock().expect("one thread").clone();
        (
            shown.logits,
            shown.baseline,
            shown.step.expect("a step"),
            update,
        )
    }

    /// The loss by its definition, in f64, with no code of the learner's: targets at the case's own
    /// outputs, held constant; policy, entropy and error from `logits` and `baseline`. The policy
    /// is softmax(logits / T) over the allowed actions.
    fn loss(&self, logits: &[f64], baseline: &[f64], entropy_cost: f64) -> f64 {
        let batch_size = self.batch_size();
        let softmax = |logits: &[f64], temperature: f64, allowed: &[bool], action: usize| {
            let weight = |action: usize| match allowed[action] {
                true => (logits[action] / temperature).exp(),
                false => 0.0,
            };
            weight(action) / (0..ACTIONS).map(weight).sum::<f64>()
        };
        let temperature = f64::from(self.settings.policy_temperature.unwrap_or(1.0));
        // Probabilities are those of effects: of all actions with the same one. What a step's
        // choices are, `of`, are the actions' effects and whether they were allowed.
        let merged =
            |logits: &[f64], temperature: f64, of: (&[u8], &[bool]), action: usize| -> f64 {
                let (effects, allowed) = of;
                (0..ACTIONS)
                    .filter(|&other| match self.settings.merge_actions {
                        true => effects[other] == effects[action],
                        false => other == action,
                    })
                    .map(|other| softmax(logits, temperature, allowed, other))
                    .sum()
            };
        let probability = |logits: &[f64], of: (&[u8], &[bool]), action: usize| {
            merged(logits, temperature, of, action)
        };
        let behaviour =
            |logits: &[f64], of: (&[u8], &[bool]), action: usize| merged(logits, 1.0, of, action);
        let gamma = f64::from(self.settings.discount);
        let lambda = f64::from(self.settings.clips.lambda);
        let wide = |array: &[f32], at: usize| -> Vec<f64> {
            array[at..][..ACTIONS]
                .iter()
                .map(|&logit| f64::from(logit))
                .collect()
        };
        let mut loss = 0.0;
        for (sequence, rollout) in self.rollouts.iter().enumerate() {
            let value = |step: usize| f64::from(self.baseline[step * batch_size + sequence]);
            let row = |step: usize| (step * batch_size + sequence) * ACTIONS;
            let choices = |step: usize| {
                let effects = &rollout.effects[step * ACTIONS..][..ACTIONS];
                let allowed: &[bool] = match rollout.allowed.is_empty() {
                    true => &[true; ACTIONS],
                    false => &rollout.allowed[step * ACTIONS..][..ACTIONS],
                };
                (effects, allowed)
            };
            let weight = |step: usize| {
                let action = rollout.action[step] as usize;
                let (own, other) = (
                    wide(&self.logits, row(step)),
                    wide(&rollout.logits, step * ACTIONS),
                );
                probability(&own, choices(step), action) / behaviour(&other, choices(step), action)
            };
            let intervals = |step: usize| f64::from(rollout.intervals[step + 1]);
            let discount = |step: usize| match rollout.first[step + 1] {
                None => gamma.powf(intervals(step)),
                Some(_) => 0.0,
            };
            let known = |step: usize| {
                !(self.settings.end_of_episode_bootstrap
                    && rollout.first[step + 1] == Some(End::Truncated))
            };
            // A rate over the time, with what is earned later discounted.
            let reward = |step: usize| {
                let rate = f64::from(rollout.reward[step + 1]) / intervals(step);
                rate * (1.0 - gamma.powf(intervals(step))) / (1.0 - gamma)
            };
            let difference = |step: usize| match known(step) {
                true => {
                    weight(step).min(1.0)
                        * (reward(step) + discount(step) * value(step + 1) - value(step))
                }
                false => 0.0,
            };
            let target = |step: usize| -> f64 {
                (step..self.steps).fold(value(step), |sum, t| {
                    let product: f64 = (step..t)
                        .map(|i| discount(i) * lambda.powf(intervals(i)) * weight(i).min(1.0))
                        .product();
                    sum + product * difference(t)
                })
            };
            for step in 0..self.steps {
                let logits = &logits[row(step)..][..ACTIONS];
                let next = match step + 1 < self.steps {
                    true => target(step + 1),
                    false => value(step + 1),
                };
                let advantage = match known(step) {
                    true => {
                        weight(step).min(1.0) * (reward(step) + discount(step) * next - value(step))
                    }
                    false => 0.0,
                };
                // Of each effect, by the first of its actions. One that is masked has no share.
                let of = choices(step);
                let shares = || {
                    (0..ACTIONS)
                        .filter(|&action| {
                            !self.settings.merge_actions || usize::from(of.0[action]) == action
                        })
                        .map(|action| (action, probability(logits, of, action)))
                        .filter(|(_, share)| *share > 0.0)
                };
                let entropy: f64 = shares().map(|(_, share)| -share * share.ln()).sum();
                if rollout.origin[step] == Origin::Recorded {
                    let recorded = wide(&rollout.logits, step * ACTIONS);
                    let log_ratio = |(action, share): (usize, f64)| {
                        share * (share / behaviour(&recorded, of, action)).ln()
                    };
                    let divergence: f64 = shares().map(log_ratio).sum();
                    loss += f64::from(self.settings.pessimism) * divergence;
                }
                let action = rollout.action[step] as usize;
                let error = target(step) - baseline[step * batch_size + sequence];
                loss += -probability(logits, of, action).ln() * advantage
                    + f64::from(self.settings.baseline_cost) * 0.5 * error * error
                    - entropy_cost * entropy;
            }
        }
        match self.settings.loss {
            Reduction::Sum => loss,
            Reduction::Mean => loss / (self.steps * batch_size) as f64,
        }
    }
}

fn cases() -> impl Strategy<Value = LossCase> {
    let settings = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        0.0..0.1f32,
        0.0..1.0f32,
        0.4..2.0f32,
    )
        .prop_map(
            |(mean, bootstrap, merge_actions, entropy_cost, pessimism, temperature)| {
                LearnerSettings {
                    merge_actions,
                    loss: if mean {
                        Reduction::Mean
                    } else {
                        Reduction::Sum
                    },
                    end_of_episode_bootstrap: bootstrap,
                    entropy_cost,
                    pessimism,
                    policy_temperature: Some(temperature),
                    discount: 0.9,
                    clips: Clips {
                        lambda: 0.8,
                        ..Clips::default()
                    },
                    ..LearnerSettings::default()
                }
            },
        );
    (1..6usize, 1..4usize, settings).prop_flat_map(|(steps, batch_size, settings)| {
        let floats = |length| proptest::collection::vec(-1.0..1.0f32, length);
        let rollout = (
            floats((steps + 1) * ACTIONS),
            floats(steps + 1),
            proptest::collection::vec((0..ACTIONS as u32, 0..6u8), steps + 1),
            proptest::collection::vec((any::<bool>(), 0.1..4.0f32), steps + 1),
            proptest::collection::vec((0..4usize, 0..ALLOWED.len()), steps + 1),
            any::<bool>(),
        )
            .prop_map(
                move |(logits, reward, rest, times, choices, masked)| Rollout {
                    effects: choices
                        .iter()
                        .flat_map(|&(alike, _)| EFFECTS[alike])
                        .collect(),
                    // Some rollouts tell of no masks at all.
                    allowed: match masked {
                        true => choices
                            .iter()
                            .flat_map(|&(_, mask)| ALLOWED[mask])
                            .collect(),
                        false => Vec::new(),
                    },
                    observation: vec![0.0; steps + 1],
                    observed_reward: vec![0.0; steps + 1],
                    first: rest
                        .iter()
                        .map(|&(_, kind)| match kind {
                            0 => Some(End::Terminated),
                            1 => Some(End::Truncated),
                            _ => None,
                        })
                        .collect(),
                    action: (rest.iter().zip(&choices))
                        .map(|(&(action, _), &(_, mask))| {
                            let allowed = |action: &u32| !masked || ALLOWED[mask][*action as usize];
                            let mut turned = (action..action + 3).map(|action| action % 3);
                            turned.find(allowed).expect("one is allowed")
                        })
                        .collect(),
                    task: vec![0; steps + 1],
                    quantities: vec![Quantities::default(); steps + 1],
                    origin: times
                        .iter()
                        .map(|&(recorded, _)| match recorded {
                            true => Origin::Recorded,
                            false => Origin::Actor,
                        })
                        .collect(),
                    intervals: times.iter().map(|&(_, intervals)| intervals).collect(),
                    logits,
                    reward,
                    version: 4,
                    ..Rollout::default()
                },
            );
        (
            proptest::collection::vec(rollout, batch_size),
            floats((steps + 1) * batch_size * ACTIONS),
            floats((steps + 1) * batch_size),
        )
            .prop_map(move |(rollouts, logits, baseline)| LossCase {
                steps,
                rollouts,
                logits,
                baseline,
                settings: LearnerSettings {
                    batch: batch_size,
                    unroll: steps,
                    ..settings.clone()
                },
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Predictions change nothing but their own derivatives, which are those of
    /// cost · mean ½ (y − ŷ)².
    #[test]
    fn predictions_learn_what_is_privileged(
        case in cases(),
        values in proptest::collection::vec(-2.0..2.0f32, 2 * 2 * 6 * 3),
        cost in 0.1..2.0f32,
    ) {
        const PREDICTIONS: usize = 2;
        let (logits, baseline, _, plain) = case.derivatives(0.5);
        let rows = logits.len() / ACTIONS;
        let (predicted, truth) = values.split_at(values.len() / 2);
        let mut predicting = case.clone();
        predicting.settings.prediction_cost = cost;
        let pairs = case.logits.chunks_exact(ACTIONS).zip(predicted.chunks_exact(PREDICTIONS));
        predicting.logits = pairs.flat_map(|(own, more)| [own, more].concat()).collect();
        let batch_size = case.batch_size();
        for (sequence, rollout) in predicting.rollouts.iter_mut().enumerate() {
            let at = |step: usize| (step * batch_size + sequence) * PREDICTIONS;
            rollout.privileged = (0..=case.steps)
                .flat_map(|step| &truth[at(step)..][..PREDICTIONS])
                .copied()
                .collect();
        }
        let mut device = predicting.network(Ok(0.0), None);
        device.shape.predictions = PREDICTIONS;
        let shown = Arc::clone(&device.derivatives);
        let state = LearnerState::new(1, &predicting.settings);
        let mut learner = Learner::new(Box::new(device), predicting.settings.clone(), state, 7);
        let update = learner.update(&predicting.rollouts, 0.5).expect("finite losses");
        let shown = shown.lock().expect("one thread").clone();
        prop_assert_eq!(shown.baseline, baseline);
        let count = case.steps * batch_size;
        let scale = match case.settings.loss {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / count as f32,
        };
        let mut loss = 0.0;
        for at in 0..rows {
            let row = &shown.logits[at * (ACTIONS + PREDICTIONS)..][..ACTIONS + PREDICTIONS];
            prop_assert_eq!(&row[..ACTIONS], &logits[at * ACTIONS..][..ACTIONS]);
            for i in 0..PREDICTIONS {
                let error = predicted[at * PREDICTIONS + i] - truth[at * PREDICTIONS + i];
                let error = if at < count { error } else { 0.0 };
                let expected = cost * scale * error / PREDICTIONS as f32;
                prop_assert!((row[ACTIONS + i] - expected).abs() < 1e-5);
                loss += 0.5 * f64::from(error).powi(2) / (PREDICTIONS * count) as f64;
            }
        }
        prop_assert!((update.prediction_loss - loss).abs() < 1e-5);
        prop_assert_eq!(plain.prediction_loss, 0.0);
        prop_assert_eq!(update.policy_loss, plain.policy_loss);
    }

    #[test]
    fn derivatives_are_those_of_the_loss(case in cases()) {
        let (d_logits, d_baseline, _, _) = case.derivatives(0.0);
        let wide = |array: &[f32]| array.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let (logits, baseline) = (wide(&case.logits), wide(&case.baseline));
        let cost = f64::from(case.settings.entropy_cost);
        const STEP: f64 = 1e-5;
        for at in 0..logits.len() {
            let loss = |by: f64| {
                let mut moved = logits.clone();
                moved[at] += by;
                case.loss(&moved, &baseline, cost)
            };
            let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
            prop_assert!((f64::from(d_logits[at]) - expected).abs() < 1e-4,
                "by logit {at}: {} but {expected}", d_logits[at]);
            let (row, action) = (at / ACTIONS, at % ACTIONS);
            let (step, rollout) = (row / case.batch_size(), row % case.batch_size());
            if case.rollouts[rollout].allowed.get(step * ACTIONS + action) == Some(&false) {
                prop_assert_eq!(d_logits[at], 0.0, "by masked logit {}", at);
            }
        }
        for at in 0..baseline.len() {
            let loss = |by: f64| {
                let mut moved = baseline.clone();
                moved[at] += by;
                case.loss(&logits, &moved, cost)
            };
            let expected = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
            prop_assert!((f64::from(d_baseline[at]) - expected).abs() < 1e-4,
                "by baseline {at}: {} but {expected}", d_baseline[at]);
        }
    }
}

/// Two rollouts of two steps whose policy has not changed.
fn simple() -> LossCase {
    let rollout = Rollout {
        observation: vec![0.0; 3],
        observed_reward: vec![0.0; 3],
        first: vec![None; 3],
        action: vec![0, 1, 2],
        logits: vec![0.0; 9],
        effects: [0, 1, 2].repeat(3),
        reward: vec![9.0, 1.0, 2.0],
        intervals: vec![1.0; 3],
        task: vec![0; 3],
        quantities: vec![Quantities::default(); 3],
        origin: vec![Origin::Actor; 3],
        version: 4,
        ..Rollout::default()
    };
    LossCase {
        steps: 2,
        rollouts: vec![rollout.clone(), rollout],
        logits: vec![0.0; 18],
        baseline: vec![0.0; 6],
        settings: LearnerSettings {
            batch: 2,
            unroll: 2,
            learning_rate: 0.5,
            entropy_cost: 0.4,
            entropy_cost_end: Some(0.0),
            discount: 0.5,
            ..LearnerSettings::default()
        },
    }
}

#[test]
fn the_metrics_of_an_update_are_those_computed_by_hand() {
    let (_, d_baseline, optimiser, update) = simple().derivatives(0.75);
    // Targets 1 + 2/2 and 2: the mean of the halved squares over four steps.
    assert_eq!(update.baseline_loss, 0.5 * (4.0 + 4.0) / 2.0);
    assert_eq!(d_baseline, [-0.25, -0.25, -0.25, -0.25, 0.0, 0.0]);
    assert!((update.entropy - 3.0f64.ln()).abs() < 1e-6);
    assert!((update.policy_loss - 3.0f64.ln() * 2.0).abs() < 1e-6);
    assert_eq!((update.lag, update.divergence), (3.0, 0.0));
    // The errors one step ahead are 1 and 2, those to the end 1 + 2/2 and 2.
    assert_eq!((update.td_loss, update.mc_loss), (1.25, 2.0));
    assert_eq!(update.actions, [0.5, 0.5, 0.0]);
    let errors = TaskErrors {
        steps: 4,
        td_loss: 5.0,
    };
    assert_eq!(update.tasks, [errors]);
    assert_eq!(
        (optimiser.learning_rate, update.learning_rate),
        (0.125, 0.125)
    );
}

#[test]
fn the_entropy_cost_follows_its_schedule() {
    // At a uniform policy entropy has no slope; near it, the slope shrinks with the cost.
    let mut case = simple();
    case.logits[0] = 1.0;
    for rollout in &mut case.rollouts {
        rollout.logits[0] = 1.0;
        rollout.reward = vec![0.0; 3];
    }
    let slope = |done| case.derivatives(done).0[0];
    assert!(slope(0.0) > 0.0);
    assert!((slope(0.5) / slope(0.0) - 0.5).abs() < 1e-5);
    assert_eq!(slope(1.0), 0.0);
}

/// The entropy cost and the learning rate have positions of their own.
#[test]
fn the_schedules_may_have_different_lengths() {
    let mut case = simple();
    case.logits[0] = 1.0;
    for rollout in &mut case.rollouts {
        rollout.logits[0] = 1.0;
        rollout.reward = vec![0.0; 3];
    }
    let at = |learning_rate: f64, entropy: f64| {
        let (mut learner, shown) = case.learner(Ok(0.0));
        let position = SchedulePosition {
            learning_rate,
            entropy,
        };
        learner
            .update(&case.rollouts, position)
            .expect("finite losses");
        let shown = shown.lock().expect("one thread").clone();
        (shown.step.expect("a step").learning_rate, shown.logits[0])
    };
    let (rate, slope) = at(0.0, 0.0);
    let (later, ended) = at(0.25, 1.0);
    assert_eq!((later, ended), (0.75 * rate, 0.0));
    assert_eq!(at(0.5, 0.0), (0.5 * rate, slope));
}

/// Masks that allow everything change nothing, to the bit.
#[test]
fn a_mask_that_allows_everything_is_none() {
    let mut case = simple();
    case.logits = (0..18).map(|at| (at as f32).sin()).collect();
    let without = case.derivatives(0.3);
    for rollout in &mut case.rollouts {
        rollout.allowed = vec![true; 9];
    }
    let with = case.derivatives(0.3);
    assert_eq!((with.0, with.1), (without.0, without.1));
    assert_eq!(with.3, without.3);
}

#[test]
#[should_panic(expected = "action 1 was taken in step 1, which does not allow it")]
fn an_action_that_is_not_allowed_is_not_learned_from() {
    let mut case = simple();
    case.rollouts[1].allowed = [true, false, true].repeat(3);
    case.rollouts[1].action = vec![0, 1, 2];
    case.derivatives(0.0);
}

/// With a mask, cloning moves the probability of the other allowed actions alone to the recorded
/// one, and so does advantage-weighted regression.
#[test]
fn recorded_actions_are_cloned_among_the_allowed_ones() {
    let mut case = simple();
    case.settings.entropy_cost = 0.0;
    case.settings.cloning = 0.25;
    for origin in [Origin::Recorded, Origin::Observed] {
        for rollout in &mut case.rollouts {
            rollout.origin = vec![origin; 3];
            rollout.allowed = [true, true, false].repeat(3);
            rollout.action = vec![0, 1, 1];
        }
        for done in [0.2, 0.5] {
            let (d_logits, ..) = case.derivatives(done);
            // Two equally likely actions: −ln π has the derivatives −1/2 and 1/2 times the weight.
            assert!(d_logits[0] < 0.0, "{origin:?} {done}: {d_logits:?}");
            assert!((d_logits[0] + d_logits[1]).abs() < 1e-6, "{d_logits:?}");
            assert_eq!(d_logits[2], 0.0);
            if done < 0.25 {
                assert!((d_logits[0] + 0.5 / 4.0).abs() < 1e-6, "{d_logits:?}");
            }
        }
    }
}

/// The weight of each action of the first rollout, recovered from the
/// derivatives at a uniform policy.
fn weights(case: &LossCase, done: f64) -> [f32; 2] {
    let (d_logits, ..) = case.derivatives(done);
    // The loss is the mean of four steps; −ln π has the derivative −(1 − 1/3).
    [(0, 0), (1, 1)].map(|(step, action)| d_logits[step * 6 + action] * 4.0 / (1.0 / 3.0 - 1.0))
}

#[test]
fn an_action_is_worth_its_rate_over_its_time() {
    // A silence of three intervals in which nothing is earned, against the same without it.
    let mut case = simple();
    case.settings.discount = 0.5;
    let first = |case: &LossCase| -case.derivatives(0.0).1[0] * 4.0 / 0.5;
    // 1 + 2/2 to go.
    assert!((first(&case) - 2.0).abs() < 1e-6);
    for rollout in &mut case.rollouts {
        rollout.intervals = vec![1.0, 4.0, 1.0];
    }
    // A quarter per interval, over 1 + 1/2 + 1/4 + 1/8; the 2 that follow are four intervals away.
    let expected = 0.25 * 1.875 + 2.0 * 0.5f32.powi(4);
    assert!((first(&case) - expected).abs() < 1e-6, "{}", first(&case));
    // A decision that was superseded at once earns nothing, and delays nothing.
    for rollout in &mut case.rollouts {
        rollout.intervals = vec![1.0, 0.0, 1.0];
        rollout.reward[1] = 0.0;
    }
    assert!((first(&case) - 2.0).abs() < 1e-6);
}

#[test]
fn what_was_hardly_ever_done_costs_the_more_the_rarer_it_was() {
    let mut case = simple();
    case.settings.entropy_cost = 0.0;
    case.settings.pessimism = 0.1;
    for rollout in &mut case.rollouts {
        rollout.reward = vec![0.0; 3];
        rollout.origin = vec![Origin::Recorded; 3];
        // The recorded policy took the last action once in 400 times.
        let (usual, rare) = (0.498_75f32.ln(), 0.0025f32.ln());
        rollout.logits = [usual, usual, rare].repeat(3);
    }
    let (d_logits, ..) = case.derivatives(0.0);
    // Descent lowers the logit of the rare action, and raises the others alike.
    assert!(d_logits[2] > 0.0 && d_logits[0] < 0.0 && d_logits[0] == d_logits[1]);
    let rare = d_logits[2];
    for rollout in &mut case.rollouts {
        rollout.logits[2] -= 3.0;
    }
    assert!(case.derivatives(0.0).0[2] > 1.5 * rare);
    // The learner's own actions have no data to stay with, and observed ones no distribution.
    for origin in [Origin::Actor, Origin::Observed] {
        for rollout in &mut case.rollouts {
            rollout.origin = vec![origin; 3];
            rollout.logits = vec![0.0; 9];
        }
        let with = case.derivatives(0.0).0;
        case.settings.pessimism = 0.0;
        assert_eq!(case.derivatives(0.0).0, with, "{origin:?}");
        case.settings.pessimism = 0.1;
    }
}

#[test]
fn recorded_actions_are_cloned_at_first() {
    let mut case = simple();
    case.settings.entropy_cost = 0.0;
    case.settings.cloning = 0.25;
    case.settings.anchor = 0.5;
    for origin in [Origin::Recorded, Origin::Observed] {
        for rollout in &mut case.rollouts {
            rollout.origin = vec![origin; 3];
            rollout.reward[2] = -2.0;
        }
        for weight in weights(&case, 0.2) {
            assert!((weight - 1.0).abs() < 1e-5, "{origin:?}: {weight}");
        }
    }
    // Actions of the learner's own actors are never cloned.
    for rollout in &mut case.rollouts {
        rollout.origin = vec![Origin::Actor; 3];
    }
    let [_, second] = weights(&case, 0.2);
    assert!((second + 2.0).abs() < 1e-5, "{second}");
}

#[test]
fn actions_of_unknown_probability_never_get_a_negative_weight() {
    let mut case = simple();
    case.settings.entropy_cost = 0.0;
    for rollout in &mut case.rollouts {
        rollout.origin = vec![Origin::Observed; 3];
        // Without behaviour probabilities these mean nothing, and nothing may depend on them.
        rollout.logits = vec![5.0, -5.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0];
        rollout.reward[2] = -2.0;
    }
    // Advantages 1 − 2/2 and −2, of root mean square √2.
    let expected = [1.0, (-(2.0_f32.sqrt())).exp()];
    for (weight, expected) in weights(&case, 0.5).iter().zip(expected) {
        assert!((weight - expected).abs() < 1e-4, "{weight} but {expected}");
    }
    case.settings.temperature = 0.1;
    case.settings.anchor = 0.25;
    let [first, second] = weights(&case, 0.5);
    assert!(
        (first - 1.25).abs() < 1e-4 && (second - 0.25).abs() < 1e-3,
        "{first} {second}"
    );
}

/// The states at the start of a burnt-in rollout are those that the present parameters lead to, and
/// nothing is learned from the steps before: the derivatives are those without them.
#[test]
fn a_burn_in_refreshes_the_state_and_teaches_nothing() {
    let mut case = simple();
    let without = case.derivatives(0.0);
    case.settings.burn_in = 2;
    for rollout in &mut case.rollouts {
        // Two steps before, whose actions and rewards would change everything.
        rollout.observation = vec![7.0, 8.0, 0.0, 1.0, 2.0];
        rollout.observed_reward = vec![0.0; 5];
        rollout.first = vec![None; 5];
        rollout.action.splice(..0, [2, 2]);
        rollout.logits.splice(..0, vec![3.0; 6]);
        rollout.effects = [0, 1, 2].repeat(5);
        rollout.reward.splice(..0, [-50.0, 50.0]);
        rollout.intervals.splice(..0, [9.0, 9.0]);
        rollout.task.splice(..0, [0, 0]);
        rollout.quantities = vec![Quantities::default(); 5];
        rollout.origin.splice(..0, [Origin::Actor; 2]);
        rollout.h = vec![-1.0];
        rollout.c = vec![-1.0];
    }
    let (mut learner, shown) = case.learner_with_lstm(Ok(0.0), Some(1));
    learner.update(&case.rollouts, 0.0).expect("finite losses");
    let shown = shown.lock().expect("one thread").clone();
    let [before, after] = &shown.forwards[..] else {
        panic!("two passes, and not {}", shown.forwards.len())
    };
    assert_eq!(*before, (2, vec![7.0, 7.0, 8.0, 8.0], vec![-1.0, -1.0]));
    let own = vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0];
    assert_eq!(*after, (3, own, vec![0.5, 0.5]));
    assert_eq!((shown.logits, shown.baseline), (without.0, without.1));
}

/// With values scaled per task, what a task's baseline learns is normalised by its own returns, and
/// advantages are of unit size; the other tasks' baselines learn nothing from it.
#[test]
fn scaled_values_have_unit_errors_in_their_own_task() {
    let mut case = simple();
    case.settings.entropy_cost = 0.0;
    case.settings.value_scaling = ValueScaling::PerTask;
    // Three baselines; the case's task is the last.
    case.baseline = vec![0.0; 18];
    for rollout in &mut case.rollouts {
        rollout.task = vec![2; 3];
    }
    let (mut learner, shown) = case.learner(Ok(0.0));
    let network = FixedNetwork {
        shape: Shape {
            predictions: 0,
            values: 3,
            ..learner.device.shape().clone()
        },
        outputs: Outputs {
            logits: case.logits.clone(),
            baseline: case.baseline.clone(),
            ..Outputs::default()
        },
        derivatives: Arc::clone(&shown),
        step: Ok(0.0),
    };
    learner.device = Box::new(network);
    learner.state = LearnerState::new(3, &case.settings);
    // Returns of mean 0 and deviation 4 in the task.
    let returns = (0..400_000).map(|at| (2, if at % 2 == 0 { 4.0 } else { -4.0 }));
    learner.state.values.learn(returns, 1e-4);
    let scale = learner.state.values.scale(2);
    assert!((scale.deviation - 4.0).abs() < 1e-2 && scale.mean.abs() < 1e-2);
    let metrics = learner.update(&case.rollouts, 0.0).expect("finite losses");
    let shown = shown.lock().expect("one thread").clone();
    // Targets 2 and 2 of values 0, over a deviation of 4.
    for (at, derivative) in shown.baseline.iter().enumerate() {
        let expected = if at % 3 == 2 && at < 12 {
            -0.5 / 4.0 * 2.0 / 4.0
        } else {
            0.0
        };
        assert!(
            (derivative - expected).abs() < 1e-3,
            "[{at}] {derivative} for {expected}"
        );
    }
    assert!((metrics.policy_loss - 3.0f64.ln() * 2.0 / 4.0).abs() < 1e-2);
    // The statistics have learnt the targets.
    assert!(learner.state.values.scale(2) != scale);
    assert_eq!(learner.state.values.scale(0).deviation, 1.0);
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_and_takes_no_step() {
    let mut case = simple();
    case.baseline[1] = f32::NAN;
    let (mut learner, derivatives) = case.learner(Ok(0.0));
    assert_eq!(
        learner.update(&case.rollouts, 0.0),
        Err(UpdateError::Diverged(Diverged {
            what: "the loss",
            updates: 7
        }))
    );
    assert!(derivatives.lock().expect("one thread").step.is_none());
}

#[test]
fn a_step_that_is_not_taken_is_no_update() {
    let failure = DeviceFailure {
        call: "sgemm".to_owned(),
        reason: "it was reset".to_owned(),
    };
    for (step, expected) in [
        (
            StepError::Gradient { norm: f32::NAN },
            UpdateError::Diverged(Diverged {
                what: "the gradient",
                updates: 7,
            }),
        ),
        (
            StepError::Device(failure.clone()),
            UpdateError::Device(failure),
        ),
    ] {
        let case = simple();
        let (mut learner, _) = case.learner(Err(step));
        assert_eq!(learner.update(&case.rollouts, 0.0), Err(expected));
        assert_eq!(learner.updates(), 7);
    }
}
