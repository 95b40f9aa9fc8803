//! Throughput of the learner in frames per second: forward pass, backward pass and optimiser's step
//! at T = 80 and B = 32, for a network with layers of 512, as in the mvfst-rl paper, one with
//! layers of 64, one with convolutions, as in Pensieve, and one with fully connected layers in
//! their place, on two cores, and on a GPU if there is one.
//!
//! V-trace and the gathering of rollouts are not part of it.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use cc_lab::{Report, median};
use cc_trainer::model::{
    self, Activation, Branch, Device, DeviceKind, Outputs, RmsProp, Sequences, Shape,
};

const STEPS: usize = 80;
const BATCH_SIZE: usize = 32;
const THREADS: usize = 2;

/// Number of repetitions. The configurations take turns, so that a disturbance of the
/// host affects all of them.
const REPETITIONS: usize = 9;

/// Duration of one repetition of one configuration.
const REPETITION: Duration = Duration::from_millis(600);

fn main() -> anyhow::Result<()> {
    let shapes = [
        ("h512", recurrent(512)),
        ("h64", recurrent(64)),
        ("convolutions", convolutional()),
        ("dense", dense()),
    ];
    let mut learners = Vec::new();
    for (name, shape) in &shapes {
        let learner = Learner::new(DeviceKind::Cpu, shape)?;
        learners.push(((*name).to_owned(), learner, Vec::new()));
    }
    for (name, shape) in &shapes {
        match Learner::new(DeviceKind::Cuda, shape) {
            Ok(learner) => learners.push((format!("{name}_cuda"), learner, Vec::new())),
            Err(error) => eprintln!("no figures of {name} on a GPU: {error}"),
        }
    }
    for _ in 0..REPETITIONS {
        for (_, learner, rates) in &mut learners {
            let (start, mut frames) = (Instant::now(), 0);
            while start.elapsed() < REPETITION {
                learner.update()?;
                frames += STEPS * BATCH_SIZE;
            }
            rates.push(frames as f64 / start.elapsed().as_secs_f64());
        }
    }
    let mut report = Report::new("learner");
    for (name, _, rates) in &learners {
        report.show(format!("frames_per_s_{name}"), median(rates));
        let best = rates.iter().copied().fold(0.0, f64::max);
        report.show(format!("best_frames_per_s_{name}"), best);
    }
    for (name, learner, _) in &mut learners {
        if name.ends_with("_cuda") {
            match utilisation(learner) {
                Ok(part) => report.show(format!("utilisation_{name}"), part),
                Err(error) => eprintln!("no utilisation of {name}: {error}"),
            }
        }
    }
    report.write()
}

/// The network of the mvfst-rl paper, with layers of this width.
fn recurrent(width: usize) -> Shape {
    Shape {
        observation: 220,
        hidden: vec![width, width],
        activation: Activation::Relu,
        lstm: Some(width),
        actions: 5,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: vec![],
    }
}

/// Two layers on the observation of Pensieve's network, 6 quantities of 8 values.
fn dense() -> Shape {
    Shape {
        observation: 48,
        hidden: vec![256, 128],
        lstm: None,
        actions: 6,
        ..recurrent(0)
    }
}

/// Pensieve's network: 128 filters of 4 values over three series, 128 units for each of three
/// single values, and a layer of 128 (Mao et al., SIGCOMM 2017, section 5.1).
fn convolutional() -> Shape {
    let parts = [(7, 1), (15, 1), (16, 8), (24, 8), (32, 6), (47, 1)];
    let branch = |(from, length): (usize, usize)| Branch {
        from,
        length,
        width: length.min(4),
        filters: 128,
    };
    Shape {
        hidden: vec![128],
        branches: parts.map(branch).to_vec(),
        ..dense()
    }
}

/// The fraction of time that kernels run on the GPU while it learns, as the driver measures it.
fn utilisation(learner: &mut Learner) -> anyhow::Result<f64> {
    // The driver averages over at most a second.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        learner.update()?;
    }
    let mut asked = Command::new("nvidia-smi")
        .args([
            "--id=0",
            "--query-gpu=utilization.gpu",
            "--format=csv,noheader,nounits",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .context("nvidia-smi")?;
    while asked.try_wait()?.is_none() {
        learner.update()?;
    }
    let answer = String::from_utf8(asked.wait_with_output()?.stdout)?;
    let percent: f64 = answer
        .trim()
        .parse()
        .with_context(|| format!("nvidia-smi says {answer:?}"))?;
    Ok(percent / 100.0)
}

/// A network, an input, and derivatives by its outputs.
struct Learner {
    device: Box<dyn Device>,
    observation: Vec<f32>,
    reward: Vec<f32>,
    not_done: Vec<f32>,
    state: Vec<f32>,
    d_logits: Vec<f32>,
    d_baseline: Vec<f32>,
    output: Outputs,
}

impl Learner {
    fn new(kind: DeviceKind, shape: &Shape) -> anyhow::Result<Self> {
        let frames = STEPS * BATCH_SIZE;
        // The values do not matter for the time, as long as they are not all 0.
        let wave = |len: usize| (0..len).map(|i| (i as f32 * 0.7).sin()).collect();
        Ok(Self {
            device: model::device(kind, shape, THREADS)?,
            observation: wave(frames * shape.observation),
            reward: wave(frames),
            not_done: (0..frames).map(|i| f32::from(i % 97 != 0)).collect(),
            state: vec![0.0; BATCH_SIZE * shape.state()],
            d_logits: wave(frames * shape.actions),
            d_baseline: wave(frames),
            output: Outputs::default(),
        })
    }

    fn update(&mut self) -> anyhow::Result<()> {
        let input = Sequences {
            steps: STEPS,
            batch_size: BATCH_SIZE,
            observation: &self.observation,
            reward: &self.reward,
            not_done: &self.not_done,
            privileged: &[],
            h: &self.state,
            c: &self.state,
        };
        let optimiser = RmsProp {
            learning_rate: 1e-5,
            decay: 0.99,
            epsilon: 0.01,
            momentum: 0.0,
            clip: 40.0,
            correction: 1.0,
        };
        let device = &mut self.device;
        device.forward(&input, &mut self.output)?;
        device.backward(&input, &self.d_logits, &self.d_baseline)?;
        device.step(&optimiser)?;
        Ok(())
    }
}
