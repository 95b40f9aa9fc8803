//! The networks of the offline methods: the trainer's own, without memory, one state at a time.

use super::{Diverged, config::Optimiser};
use crate::model::{Activation, Cpu, Outputs, RmsProp, Sequences, Shape};

/// A network with its optimiser.
pub(super) struct Network {
    cpu: Cpu<f32>,
    optimiser: Optimiser,
    updates: u64,
    outputs: Outputs,
    /// What takes the place of rewards and of the flags of ended episodes.
    zeros: Vec<f32>,
}

impl Network {
    /// A network with random parameters for states of `width` values: one output per action, or per
    /// quantile of each, and a baseline.
    pub(super) fn new(
        width: usize,
        outputs: usize,
        layers: (&[usize], Activation),
        optimiser: &Optimiser,
        seed: u64,
    ) -> Self {
        let shape = Shape {
            observation: width,
            hidden: layers.0.to_vec(),
            activation: layers.1,
            lstm: None,
            actions: outputs,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let mut cpu = Cpu::new(&shape, 1)
            .unwrap_or_else(|error| unreachable!("one thread, the caller's: {error}"));
        cpu.set_parameters(&crate::model::initialise(&shape, seed));
        Self {
            cpu,
            optimiser: optimiser.clone(),
            updates: 0,
            outputs: Outputs::default(),
            zeros: Vec::new(),
        }
    }

    /// The sizes of the network.
    pub(super) fn shape(&self) -> &Shape {
        self.cpu.shape()
    }

    /// The parameters, in the order of [`crate::model::ParameterLayout`].
    pub(super) fn parameters(&self) -> Vec<f32> {
        let mut parameters = Vec::new();
        self.cpu.parameters(&mut parameters);
        parameters
    }

    /// Takes over the parameters of another network of the same shape.
    pub(super) fn copy(&mut self, other: &Self) {
        self.cpu.set_parameters(&other.parameters());
    }

    /// The outputs and baselines of the states `[B, D]`.
    pub(super) fn forward(&mut self, states: &[f32]) -> &Outputs {
        self.zeros.clear();
        self.zeros
            .resize(states.len() / self.shape().observation, 0.0);
        let input = sequences(states, &self.zeros);
        self.cpu.forward(&input, &mut self.outputs);
        &self.outputs
    }

    /// Takes a step along the derivatives of a loss by the outputs and baselines of the states of
    /// the last [`forward`](Self::forward), the same `states`. `left` is what is left of the
    /// learning rate, 1 at the start of a run and 0 at its end.
    pub(super) fn learn(
        &mut self,
        states: &[f32],
        d_outputs: &[f64],
        d_baseline: &[f64],
        left: f32,
    ) -> Result<(), Diverged> {
        let narrow = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<_>>();
        let input = sequences(states, &self.zeros);
        self.cpu
            .backward(&input, &narrow(d_outputs), &narrow(d_baseline));
        self.updates += 1;
        let Optimiser {
            learning_rate,
            decay,
            epsilon,
            gradient_clip,
        } = self.optimiser;
        let weight = 1.0 - f64::from(decay).powf(self.updates as f64);
        let step = RmsProp {
            learning_rate: learning_rate * left,
            decay,
            epsilon,
            momentum: 0.0,
            clip: gradient_clip,
            correction: (1.0 / weight) as f32,
        };
        match self.cpu.step(&step) {
            Ok(_) => Ok(()),
            Err(_) => Err(Diverged {
                updates: self.updates - 1,
            }),
        }
    }
}

/// A batch of states, each by itself: no reward is observed, and no memory kept.
fn sequences<'a>(states: &'a [f32], zeros: &'a [f32]) -> Sequences<'a> {
    Sequences {
        steps: 1,
        batch_size: zeros.len(),
        observation: states,
        reward: zeros,
        not_done: zeros,
        privileged: &[],
        h: &[],
        c: &[],
    }
}

/// The row of `width` numbers at `index`, in f64.
pub(super) fn row(values: &[f32], width: usize, index: usize) -> Vec<f64> {
    let row = &values[index * width..][..width];
    row.iter().map(|&value| f64::from(value)).collect()
}
