//! The branches before the trunk: one product for each position of a branch's filters.
//!
//! A position takes adjacent columns of the observations and gives adjacent columns of the trunk's
//! input, so that views of both take the place of a copy (im2col).

use super::{
    activation::activate,
    matrix::{Matrix, View, ViewMut, multiply, sum_rows},
    real::Real,
    weights::Weights,
};
use crate::model::{ParameterLayout, Shape, Write};

/// The outputs of all branches next to each other.
#[derive(Debug)]
pub(super) struct Branches<R> {
    /// `[T·n, outputs]`: after the activation function.
    pub(super) outputs: Matrix<R>,
    /// `[outputs]`: the bias of each output, the same at all positions of a filter.
    bias: Vec<R>,
}

impl<R: Real> Branches<R> {
    /// Those of networks of this shape; `None` where the trunk takes the observation itself.
    pub(super) fn new(shape: &Shape) -> Option<Self> {
        (!shape.branches.is_empty()).then(|| Self {
            outputs: Matrix::new(shape.trunk_input()),
            bias: Vec::new(),
        })
    }

    /// Computes the outputs from the observations, `[T·n, D]`. The outputs must have as many rows.
    pub(super) fn forward(&mut self, weights: &Weights<R>, observation: View<'_, R>) {
        self.bias.clear();
        for position in weights.layout().positions(weights.shape()) {
            multiply(
                observation.part(position.inputs),
                weights.matrix(&position.layer.weights),
                self.outputs.view_mut().part(position.outputs),
                Write::Replace,
            );
            let bias = position.layer.bias.of(weights.parameters());
            self.bias.extend_from_slice(bias);
        }
        activate(&mut self.outputs, &self.bias, weights.shape().activation);
    }
}

/// Computes the gradient of all branches' parameters, which a filter's positions share, from the
/// derivatives by the pre-activations, `[T·n, outputs]`.
pub(super) fn gradient_of_branches<R: Real>(
    shape: &Shape,
    layout: &ParameterLayout,
    observation: View<'_, R>,
    derivative: &Matrix<R>,
    gradient: &mut [R],
) {
    let mut sums = vec![R::ZERO; derivative.cols()];
    sum_rows(derivative, &mut sums);
    for position in layout.positions(shape) {
        let (weights, bias) = (&position.layer.weights, &position.layer.bias);
        multiply(
            observation.part(position.inputs).transposed(),
            derivative.view().part(position.outputs.clone()),
            ViewMut::of(weights.of_mut(gradient), weights.rows, weights.cols),
            position.write,
        );
        let into = bias.of_mut(gradient);
        if position.write == Write::Replace {
            into.fill(R::ZERO);
        }
        for (into, &sum) in into.iter_mut().zip(&sums[position.outputs]) {
            *into += sum;
        }
    }
}
