//! The policy's forward pass alone, for actors.

use super::{pass::Pass, real::Real, weights::Weights};
use crate::model::{Outputs, Sequences, Shape};

/// Computes logits and LSTM states on the calling thread, with weights that it borrows.
/// Memory is kept between calls.
#[derive(Debug)]
pub struct Inference<R: Real = f32> {
    pass: Pass<R>,
}

impl<R: Real> Inference<R> {
    /// Inference for networks of this shape.
    pub fn new(shape: &Shape) -> Self {
        Self {
            pass: Pass::new(shape),
        }
    }

    /// Runs the forward pass with the arithmetic of
    /// [`Device::forward`](crate::model::Device::forward), but without the baseline: that output
    /// stays empty, and `privileged` may be empty. It is meant for one step of many sequences.
    ///
    /// # Panics
    ///
    /// Panics if an array's length does not follow from shape, steps and batch size, or if
    /// the weights have another shape.
    pub fn forward(
        &mut self,
        weights: &Weights<R>,
        input: &Sequences<'_, R>,
        output: &mut Outputs<R>,
    ) {
        input.check_policy(weights.shape());
        self.pass.policy(weights, input, 0..input.batch_size);
        output.resize(weights.shape(), input.steps, input.batch_size);
        self.pass.give(input.batch_size, output);
        output.baseline.clear();
    }
}
