//! The passes with the kernels as C++ against those of the CPU in f64;
//! and NVRTC compiles the kernels.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::{
    call::Call, host::HostMachine, machine::Machine, matrix::Sgemm, network::DeviceNetwork,
    try_out::try_out,
};
use crate::model::{
    Activation, Branch, Cpu, DeviceFailure, Outputs, ParameterLayout, RmsProp, Sequences, Shape,
    StepError,
};
use cc_sim::seed;

/// What the results of the host's operations are expected with.
const WORKS: &str = "the host does not fail";

const OPTIMISER: RmsProp = RmsProp {
    learning_rate: 0.01,
    decay: 0.9,
    epsilon: 0.01,
    momentum: 0.5,
    clip: 1.0,
    correction: 1.0,
};

/// An input, and derivatives by the outputs, from a seed.
struct TestBatch {
    steps: usize,
    batch_size: usize,
    observation: Vec<f32>,
    reward: Vec<f32>,
    not_done: Vec<f32>,
    privileged: Vec<f32>,
    h: Vec<f32>,
    c: Vec<f32>,
    d_logits: Vec<f32>,
    d_baseline: Vec<f32>,
}

/// Numbers uniform on ±1, from a seed below 2³².
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let number = |i: u64| {
        let bits = seed::output(0, (seed << 32) | i);
        (bits >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    };
    (0..len as u64).map(number).collect()
}

fn wide<const N: usize>(arrays: [&[f32]; N]) -> [Vec<f64>; N] {
    arrays.map(|array| array.iter().copied().map(f64::from).collect())
}

impl TestBatch {
    fn new(shape: &Shape, steps: usize, batch_size: usize, seed: u64) -> Self {
        let frames = steps * batch_size;
        let state = batch_size * shape.state();
        let draw = |array, len| noise(seed * 16 + array, len);
        Self {
            steps,
            batch_size,
            observation: draw(0, frames * shape.observation),
            reward: draw(1, frames),
            not_done: draw(2, frames)
                .into_iter()
                .map(|x| f32::from(u8::from(x > -0.6)))
                .collect(),
            privileged: draw(3, frames * shape.privileged),
            h: draw(4, state),
            c: draw(5, state),
            d_logits: draw(6, frames * shape.outputs()),
            d_baseline: draw(7, frames * shape.values),
        }
    }

    fn input(&self) -> Sequences<'_> {
        Sequences {
            steps: self.steps,
            batch_size: self.batch_size,
            observation: &self.observation,
            reward: &self.reward,
            not_done: &self.not_done,
            privileged: &self.privileged,
            h: &self.h,
            c: &self.c,
        }
    }

    /// The outputs of a network on the host, which keeps the gradient.
    fn run(&self, network: &mut DeviceNetwork<HostMachine>) -> Result<Outputs, DeviceFailure> {
        let mut outputs = Outputs::default();
        network.forward(&self.input(), &mut outputs)?;
        network.backward(&self.input(), &self.d_logits, &self.d_baseline)?;
        Ok(outputs)
    }

    /// The outputs of a network in f64, which keeps the gradient.
    fn reference(&self, cpu: &mut Cpu<f64>) -> Outputs<f64> {
        let [
            observation,
            reward,
            not_done,
            privileged,
            h,
            c,
            d_logits,
            d_baseline,
        ] = wide([
            &self.observation,
            &self.reward,
            &self.not_done,
            &self.privileged,
            &self.h,
            &self.c,
            &self.d_logits,
            &self.d_baseline,
        ]);
        let input = Sequences {
            steps: self.steps,
            batch_size: self.batch_size,
            observation: &observation,
            reward: &reward,
            not_done: &not_done,
            privileged: &privileged,
            h: &h,
            c: &c,
        };
        let mut outputs = Outputs::default();
        cpu.forward(&input, &mut outputs);
        cpu.backward(&input, &d_logits, &d_baseline);
        outputs
    }
}

/// Asserts that numbers agree with the reference to 1e-5 of its largest.
fn assert_close(what: &str, found: &[f32], reference: &[f64]) {
    assert_eq!(found.len(), reference.len(), "{what}");
    let largest = reference.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    for (i, (&found, &reference)) in found.iter().zip(reference).enumerate() {
        let difference = (f64::from(found) - reference).abs();
        // Written so that NaN fails.
        assert!(
            difference <= 1e-5 * largest,
            "{what}[{i}]: {found} for {reference}, of at most {largest}"
        );
    }
}

fn shapes() -> [Shape; 6] {
    let small = Shape {
        observation: 7,
        hidden: vec![19, 13],
        activation: Activation::Relu,
        lstm: Some(11),
        actions: 5,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: vec![],
    };
    [
        small.clone(),
        Shape {
            activation: Activation::Tanh,
            privileged: 3,
            ..small.clone()
        },
        Shape {
            lstm: None,
            hidden: vec![17],
            ..small.clone()
        },
        Shape {
            lstm: None,
            privileged: 2,
            predictions: 0,
            values: 3,
            ..small.clone()
        },
        Shape {
            branches: branches(),
            ..small.clone()
        },
        Shape {
            lstm: None,
            hidden: vec![17],
            activation: Activation::Tanh,
            branches: branches(),
            ..small
        },
    ]
}

/// A convolution, a fully connected layer that reads some of the same values, and a single value;
/// of the 7 values of an observation the last is not read.
fn branches() -> Vec<Branch> {
    let branch = |from, length, width, filters| Branch {
        from,
        length,
        width,
        filters,
    };
    vec![branch(0, 5, 2, 6), branch(3, 3, 3, 5), branch(1, 1, 1, 3)]
}

fn moments(network: &DeviceNetwork<HostMachine>, cpu: &Cpu<f64>) -> (Vec<f32>, Vec<f64>) {
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    network.moments(&mut found).expect(WORKS);
    cpu.moments(&mut expected);
    (found, expected)
}

#[test]
fn outputs_gradients_and_steps_are_those_of_the_cpu() {
    for shape in shapes() {
        let Some(host) = HostMachine::new() else {
            return;
        };
        let mut network = DeviceNetwork::new(host, &shape).expect(WORKS);
        assert_eq!(*network.shape(), shape);
        let mut cpu = Cpu::<f64>::new(&shape, 1).expect("one thread");
        // Inputs that are larger than the memory, smaller, and larger again, with and without
        // momentum.
        let batches = [
            (4, 3, 0.0),
            (9, 31, 0.9),
            (5, 2, 0.9),
            (9, 31, 0.0),
            (1, 1, 0.5),
        ];
        for (seed, (steps, batch_size, momentum)) in (1..).zip(batches) {
            let batch = TestBatch::new(&shape, steps, batch_size, seed);
            let reference = batch.reference(&mut cpu);

            let mut outputs = Outputs::default();
            network.forward(&batch.input(), &mut outputs).expect(WORKS);
            assert_close("logits", &outputs.logits, &reference.logits);
            assert_close("baseline", &outputs.baseline, &reference.baseline);
            assert_close("h", &outputs.h, &reference.h);
            assert_close("c", &outputs.c, &reference.c);

            network
                .backward(&batch.input(), &batch.d_logits, &batch.d_baseline)
                .expect(WORKS);
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            network.gradient(&mut found).expect(WORKS);
            cpu.gradient(&mut expected);
            for array in ParameterLayout::of(&shape).arrays() {
                assert_close(&array.name, array.of(&found), array.of(&expected));
            }
            // As several learners do, which step along the mean of their gradients.
            found.iter_mut().for_each(|value| *value *= 0.5);
            network.set_gradient(&found).expect(WORKS);
            let given = std::mem::take(&mut found);
            network.gradient(&mut found).expect(WORKS);
            assert_eq!(found, given);
            expected.iter_mut().for_each(|value| *value *= 0.5);
            cpu.set_gradient(&expected);

            let optimiser = RmsProp {
                learning_rate: 0.01,
                decay: 0.9,
                epsilon: 0.01,
                momentum,
                clip: if seed % 2 == 0 { 0.0 } else { 1.5 },
                correction: 1.0 / (1.0 - 0.9_f32.powi(seed as i32)),
            };
            let norm = network.step(&optimiser).expect(WORKS);
            let reference = cpu.step(&optimiser).expect("finite");
            assert_close("norm", &[norm], &[f64::from(reference)]);
            network.parameters(&mut found).expect(WORKS);
            cpu.parameters(&mut expected);
            assert_close("parameters", &found, &expected);
            let (found, expected) = moments(&network, &cpu);
            assert_close("moments", &found, &expected);

            // Go on from the same state, or differences would add up.
            let exact: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
            network.set_moments(&exact).expect(WORKS);
            let mut parameters = Vec::new();
            network.parameters(&mut parameters).expect(WORKS);
            let [parameters, exact] = wide([&parameters, &exact]);
            cpu.set_parameters(&parameters);
            cpu.set_moments(&exact);
        }
    }
}

#[test]
fn the_norm_covers_every_one_of_many_parameters() {
    let shape = Shape {
        observation: 300,
        hidden: vec![150],
        activation: Activation::Tanh,
        lstm: None,
        actions: 5,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: vec![],
    };
    let Some(host) = HostMachine::new() else {
        return;
    };
    let mut network = DeviceNetwork::new(host, &shape).expect(WORKS);
    let batch = TestBatch::new(&shape, 1, 2, 1);
    batch.run(&mut network).expect(WORKS);
    let mut gradient = Vec::new();
    network.gradient(&mut gradient).expect(WORKS);
    let squares = gradient.iter().map(|&g| f64::from(g) * f64::from(g));
    let optimiser = RmsProp {
        learning_rate: 0.0,
        decay: 0.9,
        epsilon: 0.01,
        momentum: 0.0,
        clip: 0.0,
        correction: 1.0,
    };
    let norm = network.step(&optimiser).expect(WORKS);
    assert_close("norm", &[norm], &[squares.sum::<f64>().sqrt()]);
}

#[test]
fn an_empty_input_has_gradient_0() {
    let [shape, ..] = shapes();
    let Some(host) = HostMachine::new() else {
        return;
    };
    let mut network = DeviceNetwork::new(host, &shape).expect(WORKS);
    let some = TestBatch::new(&shape, 2, 2, 1);
    some.run(&mut network).expect(WORKS);
    let none = TestBatch::new(&shape, 0, 2, 1);
    let outputs = none.run(&mut network).expect(WORKS);
    assert_eq!(outputs.logits.len(), 0);
    let mut gradient = Vec::new();
    network.gradient(&mut gradient).expect(WORKS);
    assert!(gradient.iter().all(|&g| g == 0.0));
}

/// The parameters and the optimiser's moments.
fn state(network: &DeviceNetwork<HostMachine>) -> [Vec<f32>; 2] {
    let mut state = [Vec::new(), Vec::new()];
    network.parameters(&mut state[0]).expect(WORKS);
    network.moments(&mut state[1]).expect(WORKS);
    state
}

/// Where the gradient is not finite, or its squares overflow as the kernel sums them.
#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let [shape, ..] = shapes();
    let Some(host) = HostMachine::new() else {
        return;
    };
    let mut network = DeviceNetwork::new(host, &shape).expect(WORKS);
    let whole = TestBatch::new(&shape, 3, 2, 1);
    whole.run(&mut network).expect(WORKS);
    network.step(&OPTIMISER).expect(WORKS);
    let before = state(&network);
    for wrong in [f32::NAN, f32::NEG_INFINITY, 1e25] {
        let mut batch = TestBatch::new(&shape, 3, 2, 1);
        batch.d_logits[0] = wrong;
        batch.run(&mut network).expect(WORKS);
        let refused = network.step(&OPTIMISER);
        assert!(
            matches!(refused, Err(StepError::Gradient { .. })),
            "{wrong}: {refused:?}"
        );
        assert_eq!(state(&network), before, "{wrong}");
    }
    whole.run(&mut network).expect(WORKS);
    network.step(&OPTIMISER).expect(WORKS);
    assert_ne!(state(&network), before);
}

/// Whichever operation the machine fails at, the error arrives, and nothing panics.
#[test]
fn a_machine_that_fails_is_an_error() {
    for shape in shapes() {
        let mut failures = 0;
        for operations in 0.. {
            let Some(host) = HostMachine::new() else {
                return;
            };
            let left = Arc::clone(&host.left);
            left.store(operations, Relaxed);
            let update = || -> Result<(), StepError> {
                let mut network = DeviceNetwork::new(host, &shape)?;
                TestBatch::new(&shape, 2, 2, 1).run(&mut network)?;
                network.step(&OPTIMISER)?;
                Ok(network.moments(&mut Vec::new())?)
            };
            match update() {
                Ok(()) => break,
                Err(StepError::Device(failure)) => assert_ne!(failure.call, ""),
                Err(error) => panic!("{error:?}"),
            }
            failures += 1;
        }
        assert!(failures > 30, "{failures} operations");
    }
}

/// The host with an error in its matrix products.
struct Wrong(HostMachine);

impl Machine for Wrong {
    fn grow(&mut self, len: usize) -> Result<(), DeviceFailure> {
        self.0.grow(len)
    }

    fn write(&mut self, at: usize, from: &[f32]) -> Result<(), DeviceFailure> {
        self.0.write(at, from)
    }

    fn read(&self, at: usize, into: &mut [f32]) -> Result<(), DeviceFailure> {
        self.0.read(at, into)
    }

    fn multiply(&mut self, product: &Sgemm) -> Result<(), DeviceFailure> {
        self.0.multiply(product)?;
        let mut first = [0.0];
        self.0.read(product.c.at, &mut first)?;
        self.0.write(product.c.at, &[first[0] + 0.01])
    }

    fn call(&mut self, call: &Call) -> Result<(), DeviceFailure> {
        self.0.call(call)
    }
}

#[test]
fn a_machine_is_tried_out_before_it_is_used() {
    let machines: Option<Vec<_>> = (0..3).map(|_| HostMachine::new()).collect();
    let Some(Ok([good, wrong, failing])) = machines.map(<[HostMachine; 3]>::try_from) else {
        return;
    };
    let good = try_out(good).expect("the host computes what the CPU does");
    // Another network takes its memory.
    let [shape, ..] = shapes();
    let mut network = DeviceNetwork::new(good, &shape).expect(WORKS);
    let batch = TestBatch::new(&shape, 2, 2, 1);
    batch.run(&mut network).expect(WORKS);

    let message = try_out(Wrong(wrong)).err().expect("its products are wrong");
    assert!(message.starts_with("it computes other logits"), "{message}");
    failing.left.store(9, Relaxed);
    let message = try_out(failing).err().expect("it fails");
    assert!(message.contains("the test wants it so"), "{message}");
}

#[cfg(feature = "cuda")]
#[test]
fn nvrtc_compiles_the_kernels() {
    use super::{
        Unavailable,
        call::KERNELS,
        gpu::{SOURCE, compile},
    };

    for architecture in ["sm_80", "sm_90"] {
        match compile(architecture) {
            Ok(code) => {
                assert!(code.starts_with(b"\x7fELF"), "machine code");
                for name in KERNELS {
                    let found = code.windows(name.len()).any(|part| part == name.as_bytes());
                    assert!(found, "{name}");
                }
            }
            Err(error @ Unavailable::NoCompiler) => {
                eprintln!("SKIPPED: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let Err(error) = compile("sm_1") else {
        panic!("no such architecture");
    };
    assert!(error.to_string().contains("sm_1"), "{error}");
    assert_eq!(SOURCE.matches("__global__").count(), KERNELS.len());
}
