//! The forward pass of some lanes, on one thread.

use std::ops::Range;

use super::{
    lstm::Lstm,
    matrix::{Matrix, View, Write, multiply},
    real::Real,
    vectorised::vectorised,
    weights::Weights,
};
use crate::model::{Activation, CRITIC_WIDTH, Layer, Outputs, Sequences, Shape};

/// What the network computed for some lanes. Row t · lanes + lane of a matrix belongs to step t of a lane.
#[derive(Debug)]
pub(super) struct Pass<R> {
    pub(super) lanes: Range<usize>,
    /// `[T·B, D]`.
    pub(super) observation: Matrix<R>,
    /// `[T·B]`.
    pub(super) keep: Vec<R>,
    /// Outputs of the layers. The last is followed by what is appended to it: the reward, and without LSTM what only
    /// the baseline sees.
    pub(super) trunk: Vec<Matrix<R>>,
    /// The LSTM and its `[T·B, S + P]` output h, followed by what only the baseline sees.
    pub(super) lstm: Option<(Lstm<R>, Matrix<R>)>,
    /// `[T·B, 64]`, the baseline's own layer.
    pub(super) critic: Option<Matrix<R>>,
    /// `[T·B, A]`.
    pub(super) logits: Matrix<R>,
    /// `[T·B, 1]`.
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
            lanes: 0..0,
            observation: Matrix::new(shape.observation),
            keep: Vec::new(),
            trunk,
            lstm: shape
                .lstm
                .map(|units| (Lstm::new(units), Matrix::new(units + shape.privileged))),
            critic: (shape.privileged > 0).then(|| Matrix::new(CRITIC_WIDTH)),
            logits: Matrix::new(shape.actions),
            baseline: Matrix::new(1),
        }
    }

    /// Computes the features and the logits of some lanes of the input.
    pub(super) fn policy(
        &mut self,
        weights: &Weights<R>,
        input: &Sequences<'_, R>,
        lanes: Range<usize>,
    ) {
        self.begin(weights.shape(), input, lanes);
        let layout = weights.layout();
        let mut below = self.observation.view();
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
                .map(|all| View::of(all, input.lanes, units).rows(self.lanes.clone()));
            let bias = arrays.bias.of(weights.parameters());
            lstm.forward(recurrent, bias, &self.keep, state, h);
        }
        let features = match &self.lstm {
            Some((_, h)) => h,
            None => &self.trunk[self.trunk.len() - 1],
        };
        linear(weights, &layout.policy, features.view(), &mut self.logits);
    }

    /// Computes the baselines, after [`policy`](Self::policy).
    pub(super) fn baseline(&mut self, weights: &Weights<R>, input: &Sequences<'_, R>) {
        let shape = weights.shape();
        let lanes = self.lanes.clone();
        let beside = self
            .features_mut()
            .rows_mut()
            .map(|row| &mut row[shape.features()..]);
        copy(
            input.privileged,
            input.lanes,
            lanes,
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

    /// What the heads take: `[T·B, F + P]`.
    pub(super) fn features(&self) -> &Matrix<R> {
        match &self.lstm {
            Some((_, h)) => h,
            None => &self.trunk[self.trunk.len() - 1],
        }
    }

    /// Puts the outputs of these lanes to those of the others.
    pub(super) fn give(&self, all: usize, output: &mut Outputs<R>) {
        let lanes = self.lanes.clone();
        let actions = self.logits.cols();
        spread(
            self.logits.rows(),
            all,
            lanes.clone(),
            actions,
            &mut output.logits,
        );
        spread(
            self.baseline.rows(),
            all,
            lanes.clone(),
            1,
            &mut output.baseline,
        );
        if let Some((lstm, h)) = &self.lstm {
            let units = lstm.units();
            let last = h.view().len().saturating_sub(lanes.len());
            spread(
                h.rows().skip(last),
                all,
                lanes.clone(),
                units,
                &mut output.h,
            );
            spread(lstm.c_after(), all, lanes, units, &mut output.c);
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

    /// Takes in some lanes of what the policy sees.
    fn begin(&mut self, shape: &Shape, input: &Sequences<'_, R>, lanes: Range<usize>) {
        let rows = input.steps * lanes.len();
        let heads = [&mut self.observation, &mut self.logits, &mut self.baseline];
        for matrix in heads
            .into_iter()
            .chain(&mut self.trunk)
            .chain(&mut self.critic)
        {
            matrix.resize(rows);
        }
        if let Some((lstm, h)) = &mut self.lstm {
            lstm.resize(input.steps, lanes.len());
            h.resize(rows);
        }
        self.keep.resize(rows, R::ZERO);
        self.lanes = lanes.clone();

        let observation = self.observation.rows_mut();
        copy(
            input.observation,
            input.lanes,
            lanes.clone(),
            shape.observation,
            observation,
        );
        let width = shape.hidden.last().copied().unwrap_or(0);
        let last = self.trunk.len() - 1;
        let reward = self.trunk[last]
            .rows_mut()
            .map(|row| &mut row[width..=width]);
        copy(input.reward, input.lanes, lanes.clone(), 1, reward);
        copy(
            input.keep,
            input.lanes,
            lanes,
            1,
            self.keep.chunks_exact_mut(1),
        );
    }
}

/// Copies some lanes of an array `[T, B, width]` into rows.
pub(super) fn copy<'a, R: Real>(
    from: &[R],
    all: usize,
    lanes: Range<usize>,
    width: usize,
    into: impl Iterator<Item = &'a mut [R]>,
) {
    let steps = from.chunks_exact((all * width).max(1));
    let rows = steps
        .flat_map(|step| step[lanes.start * width..lanes.end * width].chunks_exact(width.max(1)));
    for (into, row) in into.zip(rows) {
        into[..width].copy_from_slice(row);
    }
}

/// Copies rows to some lanes of an array `[T, B, width]`.
fn spread<'a, R: Real>(
    mut from: impl Iterator<Item = &'a [R]>,
    all: usize,
    lanes: Range<usize>,
    width: usize,
    into: &mut [R],
) {
    for step in into.chunks_exact_mut((all * width).max(1)) {
        let rows = step[lanes.start * width..lanes.end * width].chunks_exact_mut(width.max(1));
        for (into, row) in rows.zip(&mut from) {
            into.copy_from_slice(&row[..width]);
        }
    }
}

/// x W + b.
fn linear<R: Real>(weights: &Weights<R>, layer: &Layer, x: View<'_, R>, out: &mut Matrix<R>) {
    let matrix = weights.matrix(&layer.weights);
    let bias = layer.bias.of(weights.parameters());
    for row in out.rows_mut() {
        row.copy_from_slice(bias);
    }
    multiply(x.columns(matrix.len()), matrix, out.view_mut(), Write::Add);
}

/// Adds a bias to the columns that it has, and bends them.
fn activate<R: Real>(out: &mut Matrix<R>, bias: &[R], activation: Activation) {
    vectorised(
        #[inline(always)]
        || {
            for row in out.rows_mut() {
                match activation {
                    Activation::Relu => {
                        for (x, &b) in row.iter_mut().zip(bias) {
                            let sum = *x + b;
                            *x = if sum > R::ZERO { sum } else { R::ZERO };
                        }
                    }
                    Activation::Tanh => {
                        for (x, &b) in row.iter_mut().zip(bias) {
                            *x = (*x + b).tanh();
                        }
                    }
                }
            }
        },
    );
}
