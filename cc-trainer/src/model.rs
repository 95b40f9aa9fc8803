//! The network: its sizes, its parameters, and the devices that compute it.
//!
//! A trunk of fully connected layers takes the observation; the reward is appended to its output;
//! an LSTM follows, or nothing; two heads give the logits of the policy and the baseline (mvfst-rl,
//! arXiv 1910.04054, section 4). The baseline may see more than the policy does. Before the trunk
//! there may be [branches](Branch), one for each time series of the observation (Mao et al.,
//! "Neural Adaptive Video Streaming with Pensieve", SIGCOMM 2017, section 4.2). All parameters are
//! in one flat vector, so that optimiser, checkpoint, norm and transfer need not know of layers.

mod cpu;
// Without the feature it is built for its tests alone, which need no GPU.
#[cfg(any(test, feature = "cuda"))]
pub mod cuda;
mod device;
mod layout;

pub use cpu::{Cpu, Inference, Real, Weights};
pub use device::{DeviceError, DeviceFailure, DeviceKind, StepError, device};
pub use layout::{Array, CRITIC_WIDTH, Layer, LstmArrays, ParameterLayout, initialise};

use serde::{Deserialize, Serialize};

/// A policy at some point of training, as the learner publishes it.
#[derive(Debug)]
pub struct Snapshot {
    /// Version of the policy: the number of updates that made it.
    pub version: u64,
    /// The network's parameters, ready for inference.
    pub weights: Weights,
}

/// The sizes of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Length D of an observation.
    pub observation: usize,
    /// Width of each of the trunk's layers; there is at least one.
    pub hidden: Vec<usize>,
    /// Activation function of the trunk's layers.
    pub activation: Activation,
    /// Width S of the LSTM; `None` for a network without one.
    pub lstm: Option<usize>,
    /// Number A of actions, and of logits.
    pub actions: usize,
    /// Length P of the privileged observation, which is appended to the input of the
    /// baseline's head; 0 for none.
    pub privileged: usize,
    /// Number M of predictions of the privileged observation, which the policy's head makes beside
    /// the logits; 0 for none. They serve training alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub predictions: usize,
    /// Number K of baselines; more than 1 where each task has one of its own.
    #[serde(default = "one")]
    pub values: usize,
    /// The layers between the observation and the trunk, side by side: the trunk takes their
    /// outputs, one after the other. Without any, it takes the observation itself. What no branch
    /// reads of an observation is not part of the network's input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<Branch>,
}

fn one() -> usize {
    1
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Shape {
    /// Width F of the heads' input: the LSTM's hidden state, or without an LSTM the
    /// trunk's output and the reward.
    pub fn features(&self) -> usize {
        self.lstm
            .unwrap_or_else(|| self.hidden.last().map_or(0, |last| last + 1))
    }

    /// Width of the policy's head: the logits, and the predictions after them.
    pub fn outputs(&self) -> usize {
        self.actions + self.predictions
    }

    /// Width of the LSTM's hidden state, and of its cell state; 0 without an LSTM.
    pub fn state(&self) -> usize {
        self.lstm.unwrap_or(0)
    }

    /// Width of the trunk's input: the outputs of all branches, or without branches the
    /// observation.
    pub fn trunk_input(&self) -> usize {
        match self.branches.is_empty() {
            true => self.observation,
            false => self.branches.iter().map(Branch::outputs).sum(),
        }
    }
}

/// A layer that reads a part of the observation: a one-dimensional convolution (stride 1, without
/// padding), followed by the trunk's activation function.
///
/// Each position of the filters gives `filters` outputs, those of the first position first. A
/// filter as wide as the part has one position, and is a fully connected layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Index in the observation at which the part begins.
    pub from: usize,
    /// Length of the part; at least `width`.
    pub length: usize,
    /// Width of a filter: the number of adjacent values that it takes; at least 1.
    pub width: usize,
    /// Number of filters; at least 1.
    pub filters: usize,
}

impl Branch {
    /// Number of positions of a filter in the part.
    pub fn positions(&self) -> usize {
        self.length + 1 - self.width
    }

    /// Number of outputs, positions times filters.
    pub fn outputs(&self) -> usize {
        self.positions() * self.filters
    }

    /// Whether the branch is a fully connected layer: its filters have one position.
    pub fn is_dense(&self) -> bool {
        self.width == self.length
    }
}

/// The activation function of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// The rectified linear unit, max(0, x).
    #[default]
    Relu,
    /// The hyperbolic tangent, tanh x.
    Tanh,
}

/// The network's input: T steps of B sequences, time-major (the outermost index is the step).
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a, R = f32> {
    /// T, the number of steps.
    pub steps: usize,
    /// B, the number of sequences.
    pub batch_size: usize,
    /// `[T, B, D]`: observations, after normalisation.
    pub observation: &'a [R],
    /// `[T, B]`: rewards of the actions before.
    pub reward: &'a [R],
    /// `[T, B]`: 0 at the first step of an episode, where the LSTM's state is reset; else 1.
    pub not_done: &'a [R],
    /// `[T, B, P]`: privileged observations.
    pub privileged: &'a [R],
    /// `[B, S]`: the LSTM's hidden state before the first step; empty without an LSTM.
    pub h: &'a [R],
    /// `[B, S]`: the LSTM's cell state before the first step; empty without an LSTM.
    pub c: &'a [R],
}

/// The network's output for [`Sequences`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs<R = f32> {
    /// `[T, B, A + M]`: logits of the policy, and predictions after them.
    pub logits: Vec<R>,
    /// `[T, B, K]`: the baselines V(x).
    pub baseline: Vec<R>,
    /// `[B, S]`: the LSTM's hidden state after the last step.
    pub h: Vec<R>,
    /// `[B, S]`: the LSTM's cell state after the last step.
    pub c: Vec<R>,
}

impl<R> Sequences<'_, R> {
    /// Asserts that the lengths of all arrays follow from shape, steps and batch size.
    fn check(&self, shape: &Shape) {
        self.check_policy(shape);
        let frames = self.steps * self.batch_size;
        assert_eq!(
            self.privileged.len(),
            frames * shape.privileged,
            "privileged is [T, B, P]"
        );
    }

    /// The same for the arrays that the policy needs.
    fn check_policy(&self, shape: &Shape) {
        let (frames, state) = (
            self.steps * self.batch_size,
            self.batch_size * shape.state(),
        );
        assert_eq!(
            self.observation.len(),
            frames * shape.observation,
            "observation is [T, B, D]"
        );
        assert_eq!(self.reward.len(), frames, "reward is [T, B]");
        assert_eq!(self.not_done.len(), frames, "not_done is [T, B]");
        assert_eq!(self.h.len(), state, "h is [B, S]");
        assert_eq!(self.c.len(), state, "c is [B, S]");
    }
}

impl<R: Real> Outputs<R> {
    /// Makes room for the output of `steps` steps of `batch_size` sequences.
    fn resize(&mut self, shape: &Shape, steps: usize, batch_size: usize) {
        self.logits
            .resize(steps * batch_size * shape.outputs(), R::ZERO);
        self.baseline
            .resize(steps * batch_size * shape.values, R::ZERO);
        self.h.resize(batch_size * shape.state(), R::ZERO);
        self.c.resize(batch_size * shape.state(), R::ZERO);
    }
}

/// Whether a matrix product replaces the matrix it is written to, or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Add,
    Replace,
}

/// Hyperparameters of a step of RMSprop as PyTorch has it, not centred and with ε outside the root,
/// with gradients clipped by their norm. (TensorFlow's has ε inside the root and lets mean squares
/// begin at 1.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// Learning rate η of the step.
    pub learning_rate: f32,
    /// Decay α of the mean square of the gradient.
    pub decay: f32,
    /// ε, which is added to the root of the mean square.
    pub epsilon: f32,
    /// Momentum μ; 0 for none.
    pub momentum: f32,
    /// Largest norm of the gradient; larger gradients are scaled down to it. 0 turns clipping off.
    pub clip: f32,
    /// Factor of the mean square in the step: 1, or 1 / (1 − αᵗ) in the t-th step, which makes up
    /// for mean squares that begin at 0 (Kingma and Ba, arXiv 1412.6980, section 3).
    pub correction: f32,
}

impl RmsProp {
    /// The factor that clips a gradient of this norm.
    ///
    /// # Errors
    ///
    /// Returns [`StepError::Gradient`] when the norm's square is not a finite number in f32, in
    /// which mean squares are kept.
    fn scale(&self, norm: f32) -> Result<f32, StepError> {
        if !(norm * norm).is_finite() {
            return Err(StepError::Gradient { norm });
        }
        Ok(match self.clip > 0.0 && norm > self.clip {
            true => self.clip / norm,
            false => 1.0,
        })
    }
}

/// A device that computes a network: the forward pass, the backward pass, and the optimiser's step.
///
/// It holds the parameters, the optimiser's moments, and the activations of the last forward pass
/// that the backward pass needs.
///
/// Every method but [`shape`](Self::shape) can fail. What the device held is lost after a
/// [`DeviceFailure`], and it must not be used any more.
pub trait Device: Send {
    /// The sizes of the network on the device.
    fn shape(&self) -> &Shape;

    /// Replaces the parameters, which are in [`ParameterLayout`]'s order.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), DeviceFailure>;

    /// Copies the parameters to `into`, in [`ParameterLayout`]'s order.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure>;

    /// Copies the optimiser's moments to `into`: the mean squares, then
    /// the velocities (empty without momentum).
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn moments(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure>;

    /// Replaces the optimiser's moments, in the order of [`moments`](Self::moments).
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn set_moments(&mut self, moments: &[f32]) -> Result<(), DeviceFailure>;

    /// Runs the forward pass, and copies its outputs to `output`.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn forward(&mut self, input: &Sequences<'_>, output: &mut Outputs)
    -> Result<(), DeviceFailure>;

    /// Runs the backward pass: computes the gradient of a loss from its derivatives by the logits,
    /// `[T, B, A]`, and by the baselines, `[T, B, K]`. `input` is that of the last forward pass.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn backward(
        &mut self,
        input: &Sequences<'_>,
        d_logits: &[f32],
        d_baseline: &[f32],
    ) -> Result<(), DeviceFailure>;

    /// Copies the gradient of the last backward pass to `into`.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn gradient(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure>;

    /// Replaces the gradient of the last backward pass, which the next step goes along. The
    /// gradient must be there: at least one backward pass has been made.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device.
    fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), DeviceFailure>;

    /// Takes one step of the optimiser along the gradient of the last backward pass. Returns the
    /// norm of that gradient before clipping.
    ///
    /// # Errors
    ///
    /// Returns the failure of the device, or [`StepError::Gradient`], with parameters and moments
    /// as they were, when the gradient is not finite.
    fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError>;
}
