//! The network on a GPU: its gradients and steps agree with those on the CPU. Where there
//! is no GPU, or the program is built without the feature `cuda`, the tests are reported
//! as ignored, with the reason.

use std::process::ExitCode;

use cc_trainer::model::{
    self, Activation, Branch, Cpu, Device, DeviceKind, Outputs, ParameterLayout, RmsProp,
    Sequences, Shape,
};
use libtest_mimic::{Arguments, Completion, Trial};

/// What the results of the devices' calls are expected with.
const WORKS: &str = "a device that does not fail";

fn main() -> ExitCode {
    // There is one GPU, whose memory may not hold the networks of all tests at once.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let tests: [(_, fn()); 3] = [
        (
            "gradients_are_those_of_the_cpu",
            gradients_are_those_of_the_cpu,
        ),
        ("steps_are_those_of_the_cpu", steps_are_those_of_the_cpu),
        (
            "the_same_calls_give_the_same_bits",
            the_same_calls_give_the_same_bits,
        ),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::ignorable_test(name, move || {
            let [shape, ..] = shapes();
            match model::device(DeviceKind::Cuda, &shape, 1) {
                Ok(_) => {
                    test();
                    Ok(Completion::Completed)
                }
                Err(error) => {
                    eprintln!("SKIPPED: {name}: {error}");
                    Ok(Completion::ignored_with(error.to_string()))
                }
            }
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn gradients_are_those_of_the_cpu() {
    for shape in shapes() {
        let mut gpu = gpu(&shape);
        let mut cpu = Cpu::<f32>::new(&shape, 1).expect("one thread");
        let parameters = model::initialise(&shape, 3);
        cpu.set_parameters(&parameters);
        gpu.set_parameters(&parameters).expect(WORKS);
        for (steps, batch_size) in [(5, 3), (80, 32), (1, 1)] {
            let batch = TestBatch::new(&shape, steps, batch_size);
            let [expected, found] =
                [&mut cpu as &mut dyn Device, &mut *gpu].map(|device| batch.run(device));
            assert_close("logits", &found.0.logits, &expected.0.logits);
            assert_close("baseline", &found.0.baseline, &expected.0.baseline);
            assert_close("h", &found.0.h, &expected.0.h);
            assert_close("c", &found.0.c, &expected.0.c);
            for array in ParameterLayout::of(&shape).arrays() {
                assert_close(&array.name, array.of(&found.1), array.of(&expected.1));
            }
        }
    }
}

fn steps_are_those_of_the_cpu() {
    for shape in shapes() {
        let batch = TestBatch::new(&shape, 4, 5);
        let mut gpu = gpu(&shape);
        let mut cpu = Cpu::<f32>::new(&shape, 1).expect("one thread");
        for (momentum, clip) in [(0.0, 0.0), (0.9, 0.5), (0.9, 0.0), (0.0, 0.5)] {
            let [expected, found] = [&mut cpu as &mut dyn Device, &mut *gpu].map(|device| {
                batch.run(device);
                let norm = device.step(&optimiser(momentum, clip)).expect(WORKS);
                let (mut parameters, mut moments) = (Vec::new(), Vec::new());
                device.parameters(&mut parameters).expect(WORKS);
                device.moments(&mut moments).expect(WORKS);
                (norm, parameters, moments)
            });
            assert_close("norm", &[found.0], &[expected.0]);
            assert_close("parameters", &found.1, &expected.1);
            assert_close("moments", &found.2, &expected.2);
            gpu.set_parameters(&expected.1).expect(WORKS);
            gpu.set_moments(&expected.2).expect(WORKS);
        }
    }
}

fn the_same_calls_give_the_same_bits() {
    for shape in shapes() {
        let batch = TestBatch::new(&shape, 20, 9);
        let [first, second] = [(); 2].map(|()| {
            let mut gpu = gpu(&shape);
            for _ in 0..3 {
                batch.run(&mut *gpu);
                gpu.step(&optimiser(0.9, 0.5)).expect(WORKS);
            }
            let mut parameters = Vec::new();
            gpu.parameters(&mut parameters).expect(WORKS);
            parameters.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert!(first == second, "{shape:?}");
    }
}

/// The network of the mvfst-rl paper, one with odd sizes throughout, one without an LSTM, and one
/// with branches.
fn shapes() -> [Shape; 4] {
    let paper = Shape {
        observation: 220,
        hidden: vec![512, 512],
        activation: Activation::Relu,
        lstm: Some(512),
        actions: 5,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: vec![],
    };
    let odd = Shape {
        observation: 37,
        hidden: vec![65, 43],
        activation: Activation::Tanh,
        lstm: Some(31),
        actions: 7,
        privileged: 6,
        predictions: 0,
        values: 1,
        branches: vec![],
    };
    let without = Shape {
        lstm: None,
        ..odd.clone()
    };
    let branch = |from, length, width| Branch {
        from,
        length,
        width,
        filters: 33,
    };
    let branched = Shape {
        branches: vec![branch(0, 9, 4), branch(5, 30, 30), branch(36, 1, 1)],
        ..without.clone()
    };
    [paper, odd, without, branched]
}

fn gpu(shape: &Shape) -> Box<dyn Device> {
    model::device(DeviceKind::Cuda, shape, 1).expect("there was one a moment ago")
}

fn optimiser(momentum: f32, clip: f32) -> RmsProp {
    RmsProp {
        learning_rate: 1e-3,
        decay: 0.9,
        epsilon: 0.01,
        momentum,
        clip,
        correction: 2.5,
    }
}

/// Asserts that numbers agree with those expected to 1e-4 of the largest.
fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        // Written so that NaN fails.
        assert!(
            (found - expected).abs() <= 1e-4 * largest,
            "{what}[{i}]: {found} for {expected}, of at most {largest}"
        );
    }
}

/// An input, and derivatives by the outputs.
struct TestBatch {
    steps: usize,
    batch_size: usize,
    observation: Vec<f32>,
    reward: Vec<f32>,
    not_done: Vec<f32>,
    privileged: Vec<f32>,
    state: [Vec<f32>; 2],
    d_logits: Vec<f32>,
    d_baseline: Vec<f32>,
}

impl TestBatch {
    fn new(shape: &Shape, steps: usize, batch_size: usize) -> Self {
        let frames = steps * batch_size;
        // Waves without a period that the arrays' sizes could share.
        let wave = |len: usize, pace: f64| -> Vec<f32> {
            let phase = |i| pace * (i as f64) + 0.01 * (i as f64).sqrt();
            (0..len).map(|i| phase(i).sin() as f32).collect()
        };
        Self {
            steps,
            batch_size,
            observation: wave(frames * shape.observation, 0.7),
            reward: wave(frames, 1.3),
            not_done: (0..frames)
                .map(|i| f32::from(u8::from(i % 29 != 3)))
                .collect(),
            privileged: wave(frames * shape.privileged, 0.9),
            state: [0.8, 1.1].map(|pace| wave(batch_size * shape.state(), pace)),
            d_logits: wave(frames * shape.actions, 1.9),
            d_baseline: wave(frames, 1.7),
        }
    }

    /// Runs a forward and a backward pass; returns the outputs and the gradient.
    fn run(&self, device: &mut dyn Device) -> (Outputs, Vec<f32>) {
        let [h, c] = &self.state;
        let input = Sequences {
            steps: self.steps,
            batch_size: self.batch_size,
            observation: &self.observation,
            reward: &self.reward,
            not_done: &self.not_done,
            privileged: &self.privileged,
            h,
            c,
        };
        let (mut outputs, mut gradient) = (Outputs::default(), Vec::new());
        device.forward(&input, &mut outputs).expect(WORKS);
        device
            .backward(&input, &self.d_logits, &self.d_baseline)
            .expect(WORKS);
        device.gradient(&mut gradient).expect(WORKS);
        (outputs, gradient)
    }
}
