//! The forward pass over some sequences of a batch, on one thread.

use std::ops::Range;

use super::{
    activation::activate,
    branches::Branches,
    lstm::Lstm,
    matrix::{Matrix, View, multiply},
    real::Real,
    weights::Weights,
};
use crate::model::{Activation, CRITIC_WIDTH, Layer, Outputs, Sequences, Shape, Write};

/// The network's activations for some sequences of a batch. With n such sequences, row t·n + i of a
/// matrix belongs to step t of the i-th.
#[derive(Debug)]
pub(super) struct Pass<R> {
    /// The sequences, by their indices in the batch.
    pub(super) sequences: Range<usize>,
    /// `[T·n, D]`: the observations of the input.
    pub(super) observation: Matrix<R>,
    /// `[T·n]`: 0 where an episode begins, else 1.
    pub(super) not_done: Vec<R>,
    /// The branches that the trunk takes; `None` where it takes the observations.
    pub(super) branches: Option<Branches<R>>,
    /// Outputs of the trunk's layers. Those of the last are followed by the reward, and without an
    /// LSTM by the privileged observation.
    pub(super) trunk: Vec<Matrix<R>>,
    /// The LSTM, and its hidden states followed by the privileged observation, `[T·n, S + P]`.
    pub(super) lstm: Option<(Lstm<R>, Matrix<R>)>,
    /// The critic's hidden layer, `[T·n, 64]`; `None` without a privileged observation.
    pub(super) critic: Option<Matrix<R>>,
    /// `[T·n, A]`: the logits of the policy.
    pub(super) logits: Matrix<R>,
    /// `[T·n, K]`: the baselines, V(x).
    pub(super) baseline: Matrix<R>,
}

impl<R: Real> Pass<R> {
    pub(super) fn new(shape: &Shape) -> Self {
        let mut trunk: Vec<_> = shape
            .hidden
            .iter()
            .map(|&width| Matrix::new(width))
            .collect();
        let before_lstm = shape.hidden.last().map_or(0, |last| last + 1);
        if let Some(last) = trunk.last_mut() {
            let beside = if shape.lstm.is_none() {
                shape.privileged
            } else {
                0
            };
            *last = Matrix::new(before_lstm + beside);
        }
        Self {
            sequences: 0..0,
            observation: Matrix::new(shape.observation),
            not_done: Vec::new(),
            branches: Branches::new(shape),
            trunk,
            lstm: shape
                .lstm
                .map(|units| (Lstm::new(units), Matrix::new(units + shape.privileged))),
            critic: (shape.privileged > 0).then(|| Matrix::new(CRITIC_WIDTH)),
            logits: Matrix::new(shape.outputs()),
            baseline: Matrix::new(shape.values),
        }
    }

    /// Computes the features and the logits of some sequences of the batch.
    pub(super) fn policy(
        &mut self,
        weights: &Weights<R>,
        input: &Sequences<'_, R>,
        sequences: Range<usize>,
    ) {
        self.begin(weights.shape(), input, sequences);
        let layout = weights.layout();
        if let Some(branches) = &mut self.branches {
            branches.forward(weights, self.observation.view());
        }
        let mut below = trunk_input(&self.branches, &self.observation).view();
        for (layer, out) in layout.trunk.iter().zip(&mut self.trunk) {
            let activation = weights.shape().activation;
            multiply(
                below,
                weights.matrix(&layer.weights),
                out.view_mut().columns(layer.bias.cols),
                Write::Replace,
            );
            let bias = layer.bias.of(weights.parameters());
            activate(out, bias, activation);
            below = out.view();
        }
        let arrays = layout.lstm.as_ref().zip(weights.recurrent());
        if let (Some((lstm, h)), Some((arrays, recurrent))) = (&mut self.lstm, arrays) {
            multiply(
                below.columns(arrays.input.rows),
                weights.matrix(&arrays.input),
                lstm.gates.view_mut(),
                Write::Replace,
            );
            let units = arrays.recurrent.rows;
            let state = [input.h, input.c]
                .map(|all| View::of(all, input.batch_size, units).rows(self.sequences.clone()));
            let bias = arrays.bias.of(weights.parameters());
            lstm.forward(recurrent, bias, &self.not_done, state, h);
        }
        let features = match &self.lstm {
            Some((_, h)) => h,
            None => &self.trunk[self.trunk.len() - 1],
        };
        linear(weights, &layout.policy, features.view(), &mut self.logits);
    }

    /// Computes the baselines of the same sequences, after [`policy`](Self::policy).
    pub(super) fn baseline(&mut self, weights: &Weights<R>, input: &Sequences<'_, R>) {
        let shape = weights.shape();
        let sequences = self.sequences.clone();
        let beside = self
            .features_mut()
            .rows_mut()
            .map(|row| &mut row[shape.features()..]);
        copy(
            input.privileged,
            input.batch_size,
            sequences,
            shape.privileged,
            beside,
        );
        let features = match &self.lstm {
            Some((_, h)) => h,
            None => &self.trunk[self.trunk.len() - 1],
        };
        let critic = &weights.layout().critic;
        let below = match &mut self.critic {
            None => features,
            Some(hidden) => {
                multiply(
                    features.view(),
                    weights.matrix(&critic[0].weights),
                    hidden.view_mut(),
                    Write::Replace,
                );
                activate(
                    hidden,
                    critic[0].bias.of(weights.parameters()),
                    Activation::Relu,
                );
                hidden
            }
        };
        linear(
            weights,
            &critic[critic.len() - 1],
            below.view(),
            &mut self.baseline,
        );
    }

    /// The input of the trunk: the outputs of the branches, or without any the observations.
    pub(super) fn trunk_input(&self) -> &Matrix<R> {
        trunk_input(&self.branches, &self.observation)
    }

    /// The input of the heads, `[T·n, F + P]`.
    pub(super) fn features(&self) -> &Matrix<R> {
        match &self.lstm {
            Some((_, h)) => h,
            None => &self.trunk[self.trunk.len() - 1],
        }
    }

    /// Copies the outputs of these sequences into those of a whole batch of `all` sequences.
    pub(super) fn give(&self, all: usize, output: &mut Outputs<R>) {
        let sequences = self.sequences.clone();
        let actions = self.logits.cols();
        spread(
            self.logits.rows(),
            all,
            sequences.clone(),
            actions,
            &mut output.logits,
        );
        spread(
            self.baseline.rows(),
            all,
            sequences.clone(),
            self.baseline.cols(),
            &mut output.baseline,
        );
        if let Some((lstm, h)) = &self.lstm {
            let units = lstm.units();
            let last = h.view().len().saturating_sub(sequences.len());
            spread(
                h.rows().skip(last),
                all,
                sequences.clone(),
                units,
                &mut output.h,
            );
            spread(lstm.c_after(), all, sequences, units, &mut output.c);
        }
    }

    fn features_mut(&mut self) -> &mut Matrix<R> {
        match &mut self.lstm {
            Some((_, h)) => h,
            None => {
                let last = self.trunk.len() - 1;
                &mut self.trunk[last]
            }
        }
    }

    /// Makes room for some sequences of the batch, and copies the policy's input.
    fn begin(&mut self, shape: &Shape, input: &Sequences<'_, R>, sequences: Range<usize>) {
        let rows = input.steps * sequences.len();
        let heads = [&mut self.observation, &mut self.logits, &mut self.baseline];
        for matrix in heads
            .into_iter()
            .chain(&mut self.trunk)
            .chain(&mut self.critic)
        {
            matrix.resize(rows);
        }
        if let Some(branches) = &mut self.branches {
            branches.outputs.resize(rows);
        }
        if let Some((lstm, h)) = &mut self.lstm {
            lstm.resize(input.steps, sequences.len());
            h.resize(rows);
        }
        self.not_done.resize(rows, R::ZERO);
        self.sequences = sequences.clone();

        let observation = self.observation.rows_mut();
        copy(
            input.observation,
            input.batch_size,
            sequences.clone(),
            shape.observation,
            observation,
        );
        let width = shape.hidden.last().copied().unwrap_or(0);
        let last = self.trunk.len() - 1;
        let reward = self.trunk[last]
            .rows_mut()
            .map(|row| &mut row[width..=width]);
        copy(input.reward, input.batch_size, sequences.clone(), 1, reward);
        copy(
            input.not_done,
            input.batch_size,
            sequences,
            1,
            self.not_done.chunks_exact_mut(1),
        );
    }
}

/// As [`Pass::trunk_input`], while other fields of the pass are borrowed.
fn trunk_input<'a, R>(
    branches: &'a Option<Branches<R>>,
    observation: &'a Matrix<R>,
) -> &'a Matrix<R> {
    branches
        .as_ref()
        .map_or(observation, |branches| &branches.outputs)
}

/// Copies some sequences of an array `[T, all, width]` into rows.
pub(super) fn copy<'a, R: Real>(
    from: &[R],
    all: usize,
    sequences: Range<usize>,
    width: usize,
    into: impl Iterator<Item = &'a mut [R]>,
) {
    let steps = from.chunks_exact((all * width).max(1));
    let rows = steps.flat_map(|step| {
        step[sequences.start * width..sequences.end * width].chunks_exact(width.max(1))
    });
    for (into, row) in into.zip(rows) {
        into[..width].copy_from_slice(row);
    }
}

/// Copies rows to some sequences of an array `[T, all, width]`.
fn spread<'a, R: Real>(
    mut from: impl Iterator<Item = &'a [R]>,
    all: usize,
    sequences: Range<usize>,
    width: usize,
    into: &mut [R],
) {
    for step in into.chunks_exact_mut((all * width).max(1)) {
        let rows =
            step[sequences.start * width..sequences.end * width].chunks_exact_mut(width.max(1));
        for (into, row) in rows.zip(&mut from) {
            into.copy_from_slice(&row[..width]);
        }
    }
}

/// Computes the layer x W + b.
fn linear<R: Real>(weights: &Weights<R>, layer: &Layer, x: View<'_, R>, out: &mut Matrix<R>) {
    let matrix = weights.matrix(&layer.weights);
    let bias = layer.bias.of(weights.parameters());
    for row in out.rows_mut() {
        row.copy_from_slice(bias);
    }
    multiply(x.columns(matrix.len()), matrix, out.view_mut(), Write::Add);
}
