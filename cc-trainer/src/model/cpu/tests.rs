//! Gradients against finite differences and another implementation, f32 against
//! f64, several threads against one.

mod tape;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::model::{Activation, Array, Branch, CRITIC_WIDTH, Layer, ParameterLayout};
use tape::{Tape, Var};

/// Number of steps T of a case.
const STEPS: usize = 5;
/// Number of sequences B, which two threads cannot share evenly, and which makes blocks of
/// 4, 2 and 1 rows.
const BATCH_SIZE: usize = 7;

/// Small networks of every kind.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for activation in [Activation::Relu, Activation::Tanh] {
        for lstm in [Some(9), None] {
            for privileged in [0, 3] {
                shapes.push(Shape {
                    observation: 6,
                    hidden: vec![8, 5],
                    activation,
                    lstm,
                    actions: 3,
                    privileged,
                    predictions: 0,
                    values: 1,
                    branches: vec![],
                });
            }
        }
    }
    let predicting = shapes.iter().find(|shape| shape.privileged > 0).cloned();
    shapes.extend(predicting.map(|shape| Shape {
        predictions: shape.privileged,
        ..shape
    }));
    let branched: Vec<_> = shapes.iter().cloned().map(with_branches).collect();
    shapes.extend(branched);
    shapes
}

/// The network with branches of every kind: convolutions that overlap, a fully connected layer, a
/// single value; one value of the observation is in none of them. The narrow ones have more
/// filters, of which ReLU leaves some without a gradient.
fn with_branches(shape: Shape) -> Shape {
    let branch = |from, length, width, filters| Branch {
        from,
        length,
        width,
        filters,
    };
    Shape {
        observation: 12,
        branches: vec![
            branch(1, 6, 3, 4),
            branch(7, 4, 4, 5),
            branch(5, 4, 2, 6),
            branch(0, 1, 1, 8),
        ],
        ..shape
    }
}

/// The same with three baselines.
fn shapes_of_several_tasks() -> impl Iterator<Item = Shape> {
    shapes()
        .into_iter()
        .map(|shape| Shape { values: 3, ..shape })
}

/// A network's parameters, an input, and derivatives by its outputs.
struct NetworkCase<R> {
    parameters: Vec<R>,
    observation: Vec<R>,
    reward: Vec<R>,
    not_done: Vec<R>,
    privileged: Vec<R>,
    h: Vec<R>,
    c: Vec<R>,
    d_logits: Vec<R>,
    d_baseline: Vec<R>,
}

impl<R: Real> NetworkCase<R> {
    /// Episodes begin at about a fifth of the steps.
    fn new(shape: &Shape, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut uniform = |len: usize| -> Vec<R> {
            (0..len)
                .map(|_| R::from(rng.random_range(-1.0..1.0_f32)))
                .collect()
        };
        let frames = STEPS * BATCH_SIZE;
        Self {
            parameters: uniform(ParameterLayout::of(shape).len()),
            observation: uniform(frames * shape.observation),
            reward: uniform(frames),
            not_done: uniform(frames)
                .into_iter()
                .map(|x| if x.into() < -0.6 { R::ZERO } else { R::ONE })
                .collect(),
            privileged: uniform(frames * shape.privileged),
            h: uniform(BATCH_SIZE * shape.state()),
            c: uniform(BATCH_SIZE * shape.state()),
            d_logits: uniform(frames * shape.outputs()),
            d_baseline: uniform(frames * shape.values),
        }
    }

    fn input(&self) -> Sequences<'_, R> {
        Sequences {
            steps: STEPS,
            batch_size: BATCH_SIZE,
            observation: &self.observation,
            reward: &self.reward,
            not_done: &self.not_done,
            privileged: &self.privileged,
            h: &self.h,
            c: &self.c,
        }
    }

    fn cpu(&self, shape: &Shape, threads: usize) -> Cpu<R> {
        let mut cpu = Cpu::new(shape, threads).expect("threads can be started");
        cpu.set_parameters(&self.parameters);
        cpu
    }

    /// The outputs, and the gradient for the case's derivatives.
    fn run(&self, cpu: &mut Cpu<R>) -> (Outputs<R>, Vec<R>) {
        let (mut output, mut gradient) = (Outputs::default(), Vec::new());
        cpu.forward(&self.input(), &mut output);
        cpu.backward(&self.input(), &self.d_logits, &self.d_baseline);
        cpu.gradient(&mut gradient);
        (output, gradient)
    }
}

/// The linear functional of the outputs whose derivatives are the case's.
fn loss(case: &NetworkCase<f64>, output: &Outputs<f64>) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&case.d_logits, &output.logits) + dot(&case.d_baseline, &output.baseline)
}

#[test]
fn the_gradient_of_every_array_is_that_of_finite_differences() {
    const STEP: f64 = 1e-6;
    for (seed, shape) in (1..).zip(shapes().into_iter().chain(shapes_of_several_tasks())) {
        let case = NetworkCase::<f64>::new(&shape, seed);
        let mut cpu = case.cpu(&shape, 2);
        let (_, gradient) = case.run(&mut cpu);
        let mut output = Outputs::default();
        for array in ParameterLayout::of(&shape).arrays() {
            let found = array.of(&gradient);
            let largest = found.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            assert!(largest > 1e-3, "{shape:?}: {}: no gradient", array.name);
            // Some elements of a large array, all of a small one.
            for i in (0..found.len()).step_by(found.len().div_ceil(24)) {
                let mut at = |offset: f64| {
                    let mut parameters = case.parameters.clone();
                    parameters[array.offset + i] += offset;
                    cpu.set_parameters(&parameters);
                    cpu.forward(&case.input(), &mut output);
                    loss(&case, &output)
                };
                let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                let error = (difference - found[i]).abs();
                assert!(
                    error < 1e-7 * largest.max(1.0),
                    "{shape:?}: {}[{i}]: {} by hand, {difference} by differences",
                    array.name,
                    found[i]
                );
            }
        }
    }
}

/// The network scalar by scalar, from its definition: logits `[T·B][A]` and baselines `[T·B]`.
fn written_out(
    tape: &Tape,
    shape: &Shape,
    parameters: &[Var],
    case: &NetworkCase<f64>,
) -> (Vec<Vec<Var>>, Vec<Var>) {
    let layout = ParameterLayout::of(shape);
    let constants =
        |values: &[f64]| -> Vec<Var> { values.iter().map(|&x| tape.constant(x)).collect() };
    let product = |x: &[Var], array: &Array, column: usize| {
        let weights = array.of(parameters);
        tape.sum((0..array.rows).map(|k| tape.mul(x[k], weights[k * array.cols + column])))
    };
    let dense = |x: &[Var], layer: &Layer| -> Vec<Var> {
        let bias = layer.bias.of(parameters);
        (0..layer.bias.cols)
            .map(|j| tape.add(product(x, &layer.weights, j), bias[j]))
            .collect()
    };
    let (mut logits, mut baselines) = (Vec::new(), Vec::new());
    let units = shape.state();
    let mut state: Vec<(Vec<Var>, Vec<Var>)> = (0..BATCH_SIZE)
        .map(|sequence| {
            let range = sequence * units..(sequence + 1) * units;
            (constants(&case.h[range.clone()]), constants(&case.c[range]))
        })
        .collect();
    for frame in 0..STEPS * BATCH_SIZE {
        let row = |all: &[f64], width: usize| constants(&all[frame * width..][..width]);
        let activated = |sums: Vec<Var>| -> Vec<Var> {
            sums.into_iter()
                .map(|x| match shape.activation {
                    Activation::Relu => tape.relu(x),
                    Activation::Tanh => tape.tanh(x),
                })
                .collect()
        };
        let mut x = row(&case.observation, shape.observation);
        if !shape.branches.is_empty() {
            let mut outputs = Vec::new();
            for (branch, layer) in shape.branches.iter().zip(&layout.branches) {
                for start in branch.from..=branch.from + branch.length - branch.width {
                    outputs.extend(activated(dense(&x[start..start + branch.width], layer)));
                }
            }
            x = outputs;
        }
        for layer in &layout.trunk {
            x = activated(dense(&x, layer));
        }
        x.extend(row(&case.reward, 1));
        if let Some(lstm) = &layout.lstm {
            let (h, c) = &mut state[frame % BATCH_SIZE];
            let not_done = case.not_done[frame];
            for x in h.iter_mut().chain(c.iter_mut()) {
                *x = tape.scale(*x, not_done);
            }
            let bias = lstm.bias.of(parameters);
            let gates: Vec<Var> = (0..4 * units)
                .map(|j| {
                    let sum = tape.add(product(&x, &lstm.input, j), product(h, &lstm.recurrent, j));
                    let sum = tape.add(sum, bias[j]);
                    if j / units == 2 {
                        tape.tanh(sum)
                    } else {
                        tape.sigmoid(sum)
                    }
                })
                .collect();
            for j in 0..units {
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| gates[gate * units + j]);
                c[j] = tape.add(tape.mul(f, c[j]), tape.mul(i, g));
                h[j] = tape.mul(o, tape.tanh(c[j]));
            }
            x = h.clone();
        }
        logits.push(dense(&x, &layout.policy));
        x.extend(row(&case.privileged, shape.privileged));
        for (i, layer) in layout.critic.iter().enumerate() {
            x = dense(&x, layer);
            if i + 1 < layout.critic.len() {
                assert_eq!(x.len(), CRITIC_WIDTH);
                x = x.into_iter().map(|x| tape.relu(x)).collect();
            }
        }
        baselines.push(x[0]);
    }
    (logits, baselines)
}

/// IMPALA's loss at fixed advantages and targets (Espeholt et al. 2018, section 4.2):
/// -Σ A log π(a) + ½ Σ ½ (v - V)² - 0.01 Σ H(π).
const BASELINE_COST: f64 = 0.5;
const ENTROPY_COST: f64 = 0.01;

#[test]
fn the_gradient_of_the_whole_loss_is_that_of_another_implementation() {
    for (seed, shape) in (1..).zip(shapes()) {
        let mut case = NetworkCase::<f64>::new(&shape, seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let frames = STEPS * BATCH_SIZE;
        let actions: Vec<usize> = (0..frames)
            .map(|_| rng.random_range(0..shape.outputs()))
            .collect();
        let mut uniform =
            || -> Vec<f64> { (0..frames).map(|_| rng.random_range(-1.0..1.0)).collect() };
        let (advantages, targets) = (uniform(), uniform());

        let tape = Tape::default();
        let parameters: Vec<Var> = case.parameters.iter().map(|&x| tape.constant(x)).collect();
        let (logits, baselines) = written_out(&tape, &shape, &parameters, &case);
        let loss = tape.sum((0..frames).map(|n| {
            let total = tape.ln(tape.sum(logits[n].iter().map(|&x| tape.exp(x))));
            let log_p = |a: usize| tape.add(logits[n][a], tape.scale(total, -1.0));
            let policy = tape.scale(log_p(actions[n]), -advantages[n]);
            let error = tape.add(baselines[n], tape.constant(-targets[n]));
            let baseline = tape.scale(tape.mul(error, error), 0.5 * BASELINE_COST);
            let negentropy =
                tape.sum((0..shape.outputs()).map(|a| tape.mul(tape.exp(log_p(a)), log_p(a))));
            tape.sum([policy, baseline, tape.scale(negentropy, ENTROPY_COST)])
        }));
        let expected = tape.derivatives(loss, &parameters);

        // The derivatives by the outputs, as a learner computes them.
        let mut cpu = case.cpu(&shape, 2);
        let mut output = Outputs::default();
        cpu.forward(&case.input(), &mut output);
        for n in 0..frames {
            let logits = &output.logits[n * shape.outputs()..][..shape.outputs()];
            let total = logits.iter().map(|x| x.exp()).sum::<f64>();
            let p: Vec<f64> = logits.iter().map(|x| x.exp() / total).collect();
            let entropy = -p.iter().map(|p| p * p.ln()).sum::<f64>();
            for (a, p) in p.iter().enumerate() {
                let chosen = f64::from(a == actions[n]);
                case.d_logits[n * shape.outputs() + a] =
                    -advantages[n] * (chosen - p) + ENTROPY_COST * p * (p.ln() + entropy);
            }
            case.d_baseline[n] = BASELINE_COST * (output.baseline[n] - targets[n]);
        }
        let (output, gradient) = case.run(&mut cpu);

        let close = |found: f64, expected: f64, what: &str| {
            let error = (found - expected).abs();
            assert!(error < 1e-11, "{shape:?}: {what}: {found} for {expected}");
        };
        for n in 0..frames {
            close(output.baseline[n], tape.value(baselines[n]), "baseline");
            for (a, &logit) in logits[n].iter().enumerate() {
                let found = output.logits[n * shape.outputs() + a];
                close(found, tape.value(logit), "logit");
            }
        }
        for array in ParameterLayout::of(&shape).arrays() {
            for (&found, &expected) in array.of(&gradient).iter().zip(array.of(&expected)) {
                close(found, expected, &array.name);
            }
        }
    }
}

#[test]
fn f32_is_close_to_f64() {
    for (seed, shape) in (1..).zip(shapes()) {
        let (single, double) = (
            NetworkCase::<f32>::new(&shape, seed),
            NetworkCase::<f64>::new(&shape, seed),
        );
        let (output, gradient) = single.run(&mut single.cpu(&shape, 1));
        let (exact_output, exact_gradient) = double.run(&mut double.cpu(&shape, 1));
        let close = |found: &[f32], exact: &[f64]| {
            assert_eq!(found.len(), exact.len());
            let scale = exact.iter().fold(1.0, |max: f64, x| max.max(x.abs()));
            for (&found, exact) in found.iter().zip(exact) {
                let error = (f64::from(found) - exact).abs();
                assert!(error < 3e-6 * scale, "{shape:?}: {found} for {exact}");
            }
        };
        close(&output.logits, &exact_output.logits);
        close(&output.baseline, &exact_output.baseline);
        close(&output.h, &exact_output.h);
        close(&output.c, &exact_output.c);
        close(&gradient, &exact_gradient);
    }
}

#[test]
fn the_number_of_threads_changes_rounding_only() {
    for (seed, shape) in (1..).zip(shapes()) {
        let case = NetworkCase::<f64>::new(&shape, seed);
        let (output, gradient) = case.run(&mut case.cpu(&shape, 1));
        // One of them with more threads than sequences.
        for threads in [2, 3, 16] {
            let mut cpu = case.cpu(&shape, threads);
            let (other_output, other_gradient) = case.run(&mut cpu);
            // Again in memory that was used before, with the same bits.
            assert_eq!(
                case.run(&mut cpu),
                (other_output.clone(), other_gradient.clone())
            );
            let pairs = output.logits.iter().zip(&other_output.logits);
            let pairs = pairs.chain(output.baseline.iter().zip(&other_output.baseline));
            let pairs = pairs.chain(output.h.iter().zip(&other_output.h));
            let pairs = pairs.chain(output.c.iter().zip(&other_output.c));
            for (a, b) in pairs.chain(gradient.iter().zip(&other_gradient)) {
                assert!(
                    (a - b).abs() < 1e-11,
                    "{shape:?} on {threads} threads: {a} and {b}"
                );
            }
        }
    }
}

#[test]
fn one_pass_over_a_sequence_equals_its_steps_one_by_one() {
    for (seed, shape) in (1..).zip(shapes()) {
        let case = NetworkCase::<f64>::new(&shape, seed);
        let cpu = &mut case.cpu(&shape, 1);
        let mut whole = Outputs::default();
        cpu.forward(&case.input(), &mut whole);

        let mut inference = Inference::new(&shape);
        let (mut h, mut c, mut logits) = (case.h.clone(), case.c.clone(), Vec::new());
        let mut output = Outputs::default();
        for step in 0..STEPS {
            let frames = step * BATCH_SIZE..(step + 1) * BATCH_SIZE;
            let width = shape.observation;
            let input = Sequences {
                steps: 1,
                batch_size: BATCH_SIZE,
                observation: &case.observation[frames.start * width..frames.end * width],
                reward: &case.reward[frames.clone()],
                not_done: &case.not_done[frames],
                privileged: &[],
                h: &h,
                c: &c,
            };
            inference.forward(cpu.weights(), &input, &mut output);
            logits.append(&mut output.logits);
            (h, c) = (output.h.clone(), output.c.clone());
        }
        assert!(output.baseline.is_empty());
        for (found, expected) in [(logits, whole.logits), (h, whole.h), (c, whole.c)] {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.into_iter().zip(expected) {
                assert!(
                    (found - expected).abs() < 1e-12,
                    "{shape:?}: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn what_no_branch_reads_is_not_an_input() {
    let shape = with_branches(shapes().swap_remove(0));
    let mut case = NetworkCase::<f64>::new(&shape, 1);
    let mut cpu = case.cpu(&shape, 1);
    let before = case.run(&mut cpu);
    let change = |case: &mut NetworkCase<f64>, value: usize| {
        for row in case.observation.chunks_exact_mut(shape.observation) {
            row[value] += 1.0;
        }
    };
    change(&mut case, 11);
    assert_eq!(case.run(&mut cpu), before);
    change(&mut case, 10);
    assert_ne!(case.run(&mut cpu), before);
}

#[test]
fn optimiser_steps_are_those_of_rmsprop_computed_by_hand() {
    let shape = &shapes()[0];
    let case = NetworkCase::<f64>::new(shape, 1);
    // (momentum, norm to clip to)
    for (momentum, clip) in [(0.0_f32, 0.0_f32), (0.5, 0.0), (0.25, 1.0), (0.0, 1e6)] {
        let mut optimiser = RmsProp {
            learning_rate: 0.125,
            decay: 0.75,
            epsilon: 0.0625,
            momentum,
            clip,
            correction: 1.0,
        };
        let mut cpu = case.cpu(shape, 2);
        let mut expected = case.parameters.clone();
        let mut mean_square = vec![0.0; expected.len()];
        let mut velocity = vec![0.0; expected.len()];
        for correction in [4.0, 1.0, 1.75] {
            optimiser.correction = correction;
            let (_, gradient) = case.run(&mut cpu);
            let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            let found = cpu.step(&optimiser).expect("finite");
            assert!((f64::from(found) - norm).abs() < 1e-5 * norm);
            let clip = f64::from(clip);
            let scale = if clip > 0.0 && norm > clip {
                clip / norm
            } else {
                1.0
            };
            for (i, g) in gradient.iter().map(|g| g * scale).enumerate() {
                mean_square[i] = 0.75 * mean_square[i] + 0.25 * g * g;
                let root = f64::sqrt(f64::from(correction) * mean_square[i]);
                velocity[i] = f64::from(momentum) * velocity[i] + g / (root + 0.0625);
                expected[i] -= 0.125 * velocity[i];
            }
            let mut found = Vec::new();
            cpu.parameters(&mut found);
            for (found, expected) in found.iter().zip(&expected) {
                // The factor that clips is an f32.
                assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
            }
        }
        let mut moments = Vec::new();
        cpu.moments(&mut moments);
        let arrays = if momentum > 0.0 { 2 } else { 1 };
        assert_eq!(moments.len(), arrays * expected.len());

        // Parameters and moments are all of the state: a copy goes on with the same bits.
        let mut other = case.cpu(shape, 2);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        cpu.parameters(&mut here);
        other.set_parameters(&here);
        other.set_moments(&moments);
        for cpu in [&mut cpu, &mut other] {
            case.run(cpu);
            cpu.step(&optimiser).expect("finite");
        }
        cpu.parameters(&mut here);
        other.parameters(&mut there);
        assert_eq!(here, there);
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let shape = &shapes()[0];
    let case = NetworkCase::<f32>::new(shape, 1);
    for threads in [1, 2] {
        let mut cpu = case.cpu(shape, threads);
        let state = |cpu: &Cpu| {
            let (mut parameters, mut moments) = (Vec::new(), Vec::new());
            cpu.parameters(&mut parameters);
            cpu.moments(&mut moments);
            (parameters, moments)
        };
        let optimiser = RmsProp {
            learning_rate: 0.125,
            decay: 0.75,
            epsilon: 0.0625,
            momentum: 0.5,
            clip: 1.0,
            correction: 1.0,
        };
        case.run(&mut cpu);
        cpu.step(&optimiser).expect("finite");
        let before = state(&cpu);
        // The last is a finite number whose square is not.
        for wrong in [f32::NAN, f32::INFINITY, 1e30] {
            let (_, gradient) = case.run(&mut cpu);
            let mut d_logits = vec![0.0; STEPS * BATCH_SIZE * shape.outputs()];
            d_logits[0] = wrong;
            let d_baseline = vec![0.0; STEPS * BATCH_SIZE];
            cpu.forward(&case.input(), &mut Outputs::default());
            cpu.backward(&case.input(), &d_logits, &d_baseline);
            let refused = cpu.step(&optimiser);
            assert!(
                matches!(refused, Err(StepError::Gradient { .. })),
                "{wrong}: {refused:?}"
            );
            assert_eq!(state(&cpu), before, "{wrong}");
            // The next gradient is whole again.
            assert_eq!(case.run(&mut cpu).1, gradient);
        }
        cpu.step(&optimiser).expect("finite");
        assert_ne!(state(&cpu), before);
    }
}
