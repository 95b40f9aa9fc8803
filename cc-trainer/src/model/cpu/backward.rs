//! The backward pass over some sequences of a batch, on one thread.

use std::ops::Range;

use super::{
    activation::through_activation,
    branches::gradient_of_branches,
    matrix::{Matrix, Packed, View, ViewMut, multiply, sum_rows},
    pass::{Pass, copy},
    real::Real,
    weights::Weights,
};
use crate::model::{Activation, Array, Layer, Shape, Write};

/// The derivatives of the loss by the activations of a [`Pass`], and by the parameters.
#[derive(Debug)]
pub(super) struct Backward<R> {
    /// By the logits, `[T·B, A]`; set by [`take`](Self::take).
    pub(super) logits: Matrix<R>,
    /// By the baselines, `[T·B, K]`; set by [`take`](Self::take).
    pub(super) baseline: Matrix<R>,
    /// By the critic's hidden layer, `[T·B, 64]`.
    critic: Option<Matrix<R>>,
    /// By the LSTM's hidden states, `[T·B, S]`.
    h: Option<Matrix<R>>,
    /// By the outputs of the branches, next to each other; `None` without branches.
    branches: Option<Matrix<R>>,
    /// By the outputs of the trunk's layers.
    trunk: Vec<Matrix<R>>,
    /// By the parameters, in [`ParameterLayout`](crate::model::ParameterLayout)'s order.
    pub(super) gradient: Vec<R>,
}

impl<R: Real> Backward<R> {
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            logits: Matrix::new(shape.outputs()),
            baseline: Matrix::new(shape.values),
            critic: (shape.privileged > 0).then(|| Matrix::new(crate::model::CRITIC_WIDTH)),
            h: shape.lstm.map(Matrix::new),
            branches: (!shape.branches.is_empty()).then(|| Matrix::new(shape.trunk_input())),
            trunk: shape
                .hidden
                .iter()
                .map(|&width| Matrix::new(width))
                .collect(),
            gradient: Vec::new(),
        }
    }

    /// Makes room for this many rows, T times the thread's sequences, and for the gradient.
    pub(super) fn resize(&mut self, rows: usize, parameters: usize) {
        let heads = [&mut self.logits, &mut self.baseline];
        let middle = self.critic.iter_mut().chain(&mut self.h);
        let middle = middle.chain(&mut self.branches);
        for matrix in heads.into_iter().chain(middle).chain(&mut self.trunk) {
            matrix.resize(rows);
        }
        self.gradient.resize(parameters, R::ZERO);
    }

    /// Copies the derivatives by the outputs of the thread's sequences, from those of a
    /// whole batch of `all` sequences.
    pub(super) fn take(
        &mut self,
        all: usize,
        sequences: Range<usize>,
        d_logits: &[R],
        d_baseline: &[R],
    ) {
        let actions = self.logits.cols();
        copy(
            d_logits,
            all,
            sequences.clone(),
            actions,
            self.logits.rows_mut(),
        );
        let values = self.baseline.cols();
        copy(d_baseline, all, sequences, values, self.baseline.rows_mut());
    }

    /// Computes the gradient. The derivatives overwrite the pass's gates.
    pub(super) fn run(
        &mut self,
        weights: &Weights<R>,
        recurrent_transposed: Option<&Packed<R>>,
        pass: &mut Pass<R>,
    ) {
        let layout = weights.layout();
        let top = self.trunk.len() - 1;

        // The heads, down to the features.
        let features = pass.features().view();
        let below = self.h.as_mut().unwrap_or(&mut self.trunk[top]);
        let gradient = &mut self.gradient;
        of_layer(&layout.policy, features, &self.logits, gradient);
        down(
            weights,
            &layout.policy.weights,
            &self.logits,
            below,
            Write::Replace,
        );
        match (&mut self.critic, &pass.critic, layout.critic.as_slice()) {
            (Some(derivative), Some(hidden), [first, second]) => {
                of_layer(second, hidden.view(), &self.baseline, gradient);
                down(
                    weights,
                    &second.weights,
                    &self.baseline,
                    derivative,
                    Write::Replace,
                );
                through_activation(derivative, hidden, Activation::Relu);
                of_layer(first, features, derivative, gradient);
                down(weights, &first.weights, derivative, below, Write::Add);
            }
            (.., critic) => {
                of_layer(&critic[0], features, &self.baseline, gradient);
                down(
                    weights,
                    &critic[0].weights,
                    &self.baseline,
                    below,
                    Write::Add,
                );
            }
        }

        // The LSTM, from its last step to its first.
        if let (Some(dh), Some((lstm, _)), Some(arrays), Some(recurrent)) =
            (&self.h, &mut pass.lstm, &layout.lstm, recurrent_transposed)
        {
            lstm.backward(recurrent, &pass.not_done, dh);
            let gates = &lstm.gates;
            of_matrix(&arrays.input, pass.trunk[top].view(), gates, gradient);
            of_matrix(&arrays.recurrent, lstm.h_before.view(), gates, gradient);
            sum_rows(gates, arrays.bias.of_mut(gradient));
            let below = &mut self.trunk[top];
            down(weights, &arrays.input, gates, below, Write::Replace);
        }

        // The trunk, from its last layer to its first.
        for (i, layer) in layout.trunk.iter().enumerate().rev() {
            let (lower, upper) = self.trunk.split_at_mut(i);
            let derivative = &mut upper[0];
            through_activation(derivative, &pass.trunk[i], weights.shape().activation);
            let input = match i.checked_sub(1) {
                Some(before) => pass.trunk[before].view(),
                None => pass.trunk_input().view(),
            };
            of_layer(layer, input, derivative, gradient);
            if let Some(below) = lower.last_mut().or(self.branches.as_mut()) {
                down(weights, &layer.weights, derivative, below, Write::Replace);
            }
        }

        if let (Some(derivative), Some(branches)) = (&mut self.branches, &pass.branches) {
            let (shape, observation) = (weights.shape(), pass.observation.view());
            through_activation(derivative, &branches.outputs, shape.activation);
            gradient_of_branches(shape, layout, observation, derivative, gradient);
        }
    }
}

/// Computes the gradient of a layer's parameters from the derivatives by its pre-activations.
fn of_layer<R: Real>(
    layer: &Layer,
    input: View<'_, R>,
    derivative: &Matrix<R>,
    gradient: &mut [R],
) {
    of_matrix(&layer.weights, input, derivative, gradient);
    sum_rows(derivative, layer.bias.of_mut(gradient));
}

/// Computes the gradient of weights, xᵀ d, in one product over all steps and sequences.
fn of_matrix<R: Real>(
    array: &Array,
    input: View<'_, R>,
    derivative: &Matrix<R>,
    gradient: &mut [R],
) {
    let into = ViewMut::of(array.of_mut(gradient), array.rows, array.cols);
    let input = input.columns(array.rows).transposed();
    multiply(input, derivative.view(), into, Write::Replace);
}

/// Computes the derivatives by a layer's input, for as many of its columns as `below` has.
fn down<R: Real>(
    weights: &Weights<R>,
    array: &Array,
    derivative: &Matrix<R>,
    below: &mut Matrix<R>,
    write: Write,
) {
    let into = below.view_mut();
    let transposed = weights.matrix(array).transposed().columns(into.width());
    multiply(derivative.view(), transposed, into, write);
}
