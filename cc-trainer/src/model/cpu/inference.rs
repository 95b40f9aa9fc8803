//! The forward pass alone, for those who only act.

use super::{pass::Pass, real::Real, weights::Weights};
use crate::model::{Outputs, Sequences, Shape};

/// Computes logits and states, on the calling thread, with weights that it does not own. Keeps its memory between calls.
#[derive(Debug)]
pub struct Inference<R: Real = f32> {
    pass: Pass<R>,
}

impl<R: Real> Inference<R> {
    /// For networks of these sizes.
    pub fn new(shape: &Shape) -> Self {
        Self {
            pass: Pass::new(shape),
        }
    }

    /// The same arithmetic as [`Device::forward`](crate::model::Device::forward)'s, without the baseline: that output
    /// stays empty, and `privileged` may be. One step of many lanes is what it is meant for.
    ///
    /// # Panics
    ///
    /// When an array's length is not what the shape, the steps and the lanes say, or the weights are of another shape.
    pub fn forward(
        &mut self,
        weights: &Weights<R>,
        input: &Sequences<'_, R>,
        output: &mut Outputs<R>,
    ) {
        input.check_policy(weights.shape());
        self.pass.policy(weights, input, 0..input.lanes);
        output.resize(weights.shape(), input.steps, input.lanes);
        self.pass.give(input.lanes, output);
        output.baseline.clear();
    }
}
