//! The LSTM over time: a product with the recurrent weights and a cell at
//! every step, forward and backward.
//!
//! i, f, o = σ(…), g = tanh(…) of x W + h U + b;  c ← f c + i g;  h ← o tanh c (Hochreiter and
//! Schmidhuber 1997, with the forget gate of Gers et al. 2000).

use super::{
    matrix::{Matrix, Packed, View},
    real::Real,
    vectorised::vectorised,
};
use crate::model::Write;

/// The LSTM's activations for T steps of B sequences. Row t·B + b of a matrix belongs to
/// step t of sequence b.
#[derive(Debug)]
pub(super) struct Lstm<R> {
    units: usize,
    /// `[T·B, 4 S]`: x W before the forward pass; the gates i, f, g, o after it; and the loss's
    /// derivatives by the gates' pre-activations after the backward pass.
    pub(super) gates: Matrix<R>,
    /// `[T·B, S]`: the hidden state before a step; 0 where an episode begins.
    pub(super) h_before: Matrix<R>,
    /// `[T·B, S]`: the cell state before a step; 0 where an episode begins.
    c_before: Matrix<R>,
    /// `[T·B, S]`: the cell state after a step.
    c: Matrix<R>,
    /// `[B, S]`: in the backward pass, the derivatives by the hidden state from the next step.
    dh: Matrix<R>,
    /// `[B, S]`: in the backward pass, the derivatives by the cell state from the next step.
    dc: Matrix<R>,
    /// Memory for products with few rows.
    scratch: Vec<R>,
}

impl<R: Real> Lstm<R> {
    pub(super) fn new(units: usize) -> Self {
        Self {
            units,
            gates: Matrix::new(4 * units),
            h_before: Matrix::new(units),
            c_before: Matrix::new(units),
            c: Matrix::new(units),
            dh: Matrix::new(units),
            dc: Matrix::new(units),
            scratch: Vec::new(),
        }
    }

    pub(super) fn units(&self) -> usize {
        self.units
    }

    pub(super) fn resize(&mut self, steps: usize, batch_size: usize) {
        let rows = steps * batch_size;
        self.gates.resize(rows);
        for matrix in [&mut self.h_before, &mut self.c_before, &mut self.c] {
            matrix.resize(rows);
        }
        self.dh.resize(batch_size);
        self.dc.resize(batch_size);
    }

    /// Runs the forward pass: turns x W in `gates` into the gates, and writes the hidden
    /// states to the first S columns of `h`, `[T·B, S…]`. `not_done` is `[T·B]`, the
    /// state before is `[B, S]`.
    pub(super) fn forward(
        &mut self,
        recurrent: &Packed<R>,
        bias: &[R],
        not_done: &[R],
        [h_first, c_first]: [View<'_, R>; 2],
        h: &mut Matrix<R>,
    ) {
        let batch_size = h_first.len();
        for start in (0..not_done.len()).step_by(batch_size.max(1)) {
            let rows = start..start + batch_size;
            for sequence in 0..batch_size {
                let row = start + sequence;
                let (h, c) = if start == 0 {
                    (h_first.row(sequence), c_first.row(sequence))
                } else {
                    (
                        &h.row(row - batch_size)[..self.units],
                        self.c.row(row - batch_size),
                    )
                };
                scale(h, not_done[row], self.h_before.row_mut(row));
                scale(c, not_done[row], self.c_before.row_mut(row));
            }
            recurrent.multiply(
                self.h_before.view().rows(rows.clone()),
                self.gates.view_mut().rows(rows.clone()),
                Write::Add,
                &mut self.scratch,
            );
            vectorised(
                #[inline(always)]
                || {
                    for row in rows.clone() {
                        cell(
                            self.gates.row_mut(row),
                            bias,
                            self.c_before.row(row),
                            self.c.row_mut(row),
                            &mut h.row_mut(row)[..self.units],
                        );
                    }
                },
            );
        }
    }

    /// Runs the backward pass: turns the gates in `gates` into derivatives by their
    /// pre-activations, from the derivatives by the hidden states in the first S
    /// columns of `dh`, `[T·B, S…]`.
    pub(super) fn backward(
        &mut self,
        recurrent_transposed: &Packed<R>,
        not_done: &[R],
        dh: &Matrix<R>,
    ) {
        let batch_size = self.dh.view().len();
        self.dh.fill(R::ZERO);
        self.dc.fill(R::ZERO);
        for start in (0..not_done.len()).step_by(batch_size.max(1)).rev() {
            vectorised(
                #[inline(always)]
                || {
                    for sequence in 0..batch_size {
                        let row = start + sequence;
                        // The mask of the next step: 0 where an episode begins there.
                        let not_done_after =
                            not_done.get(row + batch_size).copied().unwrap_or(R::ZERO);
                        cell_backward(
                            self.gates.row_mut(row),
                            not_done_after,
                            (&dh.row(row)[..self.units], self.dh.row(sequence)),
                            self.dc.row_mut(sequence),
                            self.c_before.row(row),
                            self.c.row(row),
                        );
                    }
                },
            );
            if start > 0 {
                recurrent_transposed.multiply(
                    self.gates.view().rows(start..start + batch_size),
                    self.dh.view_mut(),
                    Write::Replace,
                    &mut self.scratch,
                );
            }
        }
    }

    /// The cell state of each sequence after the last step.
    pub(super) fn c_after(&self) -> impl Iterator<Item = &[R]> {
        let batch_size = self.dh.view().len();
        self.c
            .rows()
            .skip(self.c.view().len().saturating_sub(batch_size))
    }
}

fn scale<R: Real>(from: &[R], factor: R, into: &mut [R]) {
    for (into, &from) in into.iter_mut().zip(from) {
        *into = from * factor;
    }
}

/// One step of one sequence. `gates` holds x W + h U before, and the gates after.
#[inline(always)]
fn cell<R: Real>(gates: &mut [R], bias: &[R], c_before: &[R], c: &mut [R], h: &mut [R]) {
    let units = c.len();
    let [i, f, g, o] = quarters_mut(gates, units);
    let (bias_i, bias_f) = bias[..2 * units].split_at(units);
    let (bias_g, bias_o) = bias[2 * units..4 * units].split_at(units);
    let (c_before, h) = (&c_before[..units], &mut h[..units]);
    for j in 0..units {
        i[j] = (i[j] + bias_i[j]).sigmoid();
        f[j] = (f[j] + bias_f[j]).sigmoid();
        g[j] = (g[j] + bias_g[j]).tanh();
        o[j] = (o[j] + bias_o[j]).sigmoid();
        c[j] = f[j] * c_before[j] + i[j] * g[j];
        h[j] = o[j] * c[j].tanh();
    }
}

/// One step of one sequence in the backward pass. `gates` holds the gates before, and the
/// derivatives by their pre-activations after; `dh` has the derivatives by h from the
/// heads and from the next step; `dc` has those by the c after this step before, and by
/// the c before this step after.
#[inline(always)]
fn cell_backward<R: Real>(
    gates: &mut [R],
    not_done_after: R,
    dh: (&[R], &[R]),
    dc: &mut [R],
    c_before: &[R],
    c: &[R],
) {
    let units = c.len();
    let [i, f, g, o] = quarters_mut(gates, units);
    let (dh_heads, dh_after) = (&dh.0[..units], &dh.1[..units]);
    let (dc, c_before) = (&mut dc[..units], &c_before[..units]);
    for j in 0..units {
        let dh = dh_heads[j] + not_done_after * dh_after[j];
        let tanh_c = c[j].tanh();
        let by_c = not_done_after * dc[j] + dh * o[j] * (R::ONE - tanh_c * tanh_c);
        let (by_i, by_f, by_g, by_o) = (by_c * g[j], by_c * c_before[j], by_c * i[j], dh * tanh_c);
        dc[j] = by_c * f[j];
        i[j] = by_i * i[j] * (R::ONE - i[j]);
        f[j] = by_f * f[j] * (R::ONE - f[j]);
        g[j] = by_g * (R::ONE - g[j] * g[j]);
        o[j] = by_o * o[j] * (R::ONE - o[j]);
    }
}

#[inline(always)]
fn quarters_mut<R>(gates: &mut [R], units: usize) -> [&mut [R]; 4] {
    let (i, rest) = gates.split_at_mut(units);
    let (f, rest) = rest.split_at_mut(units);
    let (g, o) = rest.split_at_mut(units);
    [i, f, g, &mut o[..units]]
}
