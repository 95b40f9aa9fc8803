//! The network, as arithmetic: its sizes, its parameters, and what a device has to be able to do with them.
//!
//! A trunk of fully connected layers takes the observation; the reward is appended; an LSTM (or nothing) follows;
//! two heads give logits and baseline (mvfst-rl paper, section 4). The baseline may see more than the policy.
//! All parameters lie in one flat vector, so that optimiser, checkpoint, norm and transfer know no layers.

mod cpu;
// Without the feature only its tests are built, which need no GPU.
#[cfg(any(test, feature = "cuda"))]
pub mod cuda;
mod device;
mod layout;

pub use cpu::{Cpu, Inference, Real, Weights};
pub use device::{DeviceError, DeviceKind, device};
pub use layout::{Array, CRITIC_WIDTH, Layer, Layout, LstmArrays, initialise};

use serde::{Deserialize, Serialize};

/// The sizes of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Length D of an observation.
    pub observation: usize,
    /// Widths of the trunk's layers, at least one.
    pub hidden: Vec<usize>,
    /// What follows each of them.
    pub activation: Activation,
    /// Width S of the LSTM; none leaves it out.
    pub lstm: Option<usize>,
    /// Number A of actions.
    pub actions: usize,
    /// Length P of what only the baseline sees, appended to its head's input; 0 for nothing.
    pub privileged: usize,
}

impl Shape {
    /// Width F of what the heads take: the LSTM's h, or without it the trunk's output and the reward.
    pub fn features(&self) -> usize {
        self.lstm
            .unwrap_or_else(|| self.hidden.last().map_or(0, |last| last + 1))
    }

    /// Length of the vector h, and of c, that an episode carries along; 0 without LSTM.
    pub fn state(&self) -> usize {
        self.lstm.unwrap_or(0)
    }
}

/// What follows a layer of the trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// max(0, x).
    #[default]
    Relu,
    /// tanh x.
    Tanh,
}

/// T steps of B sequences. Arrays are time-major: element `[t, b, …]`.
#[derive(Clone, Copy, Debug)]
pub struct Sequences<'a, R = f32> {
    /// T.
    pub steps: usize,
    /// B.
    pub lanes: usize,
    /// `[T, B, D]`.
    pub observation: &'a [R],
    /// `[T, B]`.
    pub reward: &'a [R],
    /// `[T, B]`: 0 at the first step of an episode, where the LSTM forgets what was before; else 1.
    pub keep: &'a [R],
    /// `[T, B, P]`.
    pub privileged: &'a [R],
    /// `[B, S]`, the LSTM's hidden vector before the first step; empty without LSTM, as the next.
    pub h: &'a [R],
    /// `[B, S]`, its cell vector.
    pub c: &'a [R],
}

/// What the network makes of [`Sequences`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs<R = f32> {
    /// `[T, B, A]`.
    pub logits: Vec<R>,
    /// `[T, B]`.
    pub baseline: Vec<R>,
    /// `[B, S]` after the last step.
    pub h: Vec<R>,
    /// `[B, S]` after the last step.
    pub c: Vec<R>,
}

impl<R> Sequences<'_, R> {
    /// Asserts that all arrays have the lengths that sizes, steps and lanes say.
    fn check(&self, shape: &Shape) {
        self.check_policy(shape);
        let frames = self.steps * self.lanes;
        assert_eq!(
            self.privileged.len(),
            frames * shape.privileged,
            "privileged is [T, B, P]"
        );
    }

    /// The same of all that the policy needs.
    fn check_policy(&self, shape: &Shape) {
        let (frames, state) = (self.steps * self.lanes, self.lanes * shape.state());
        assert_eq!(
            self.observation.len(),
            frames * shape.observation,
            "observation is [T, B, D]"
        );
        assert_eq!(self.reward.len(), frames, "reward is [T, B]");
        assert_eq!(self.keep.len(), frames, "keep is [T, B]");
        assert_eq!(self.h.len(), state, "h is [B, S]");
        assert_eq!(self.c.len(), state, "c is [B, S]");
    }
}

impl<R: Real> Outputs<R> {
    fn resize(&mut self, shape: &Shape, steps: usize, lanes: usize) {
        self.logits.resize(steps * lanes * shape.actions, R::ZERO);
        self.baseline.resize(steps * lanes, R::ZERO);
        self.h.resize(lanes * shape.state(), R::ZERO);
        self.c.resize(lanes * shape.state(), R::ZERO);
    }
}

/// RMSprop as IMPALA has it: not centred, ε outside the root, gradients clipped by their norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// Step size.
    pub learning_rate: f32,
    /// Decay of the mean square.
    pub decay: f32,
    /// Added to the root of the mean square.
    pub epsilon: f32,
    /// Momentum; 0 for none.
    pub momentum: f32,
    /// The norm that gradients are scaled down to; 0 leaves them.
    pub clip: f32,
}

/// Where a network is computed: forward, backward, and the step that follows. Holds the parameters, the optimiser's
/// moments and everything that the backward pass needs of the last forward pass.
pub trait Device: Send {
    /// The network's sizes.
    fn shape(&self) -> &Shape;

    /// Replaces the parameters, in [`Layout`]'s order.
    fn set_parameters(&mut self, parameters: &[f32]);

    /// Copies the parameters out.
    fn parameters(&self, into: &mut Vec<f32>);

    /// The optimiser's moments, to continue later: mean squares, then velocities (empty without momentum).
    fn moments(&self, into: &mut Vec<f32>);

    /// Replaces the optimiser's moments.
    fn set_moments(&mut self, moments: &[f32]);

    /// Logits and baselines.
    fn forward(&mut self, input: &Sequences<'_>, output: &mut Outputs);

    /// The gradient of a loss, from its derivatives by logits `[T, B, A]` and baselines `[T, B]`; `input` is that of
    /// the forward pass just done.
    fn backward(&mut self, input: &Sequences<'_>, d_logits: &[f32], d_baseline: &[f32]);

    /// Copies the gradient of the last backward pass out.
    fn gradient(&self, into: &mut Vec<f32>);

    /// Takes one step along the gradient of the last backward pass. Gives that gradient's norm before clipping.
    fn step(&mut self, optimiser: &RmsProp) -> f32;
}
