//! The LSTM over time: a product with the recurrent weights and a cell at every step, forward and backward.
//!
//! i, f, o = σ(…), g = tanh(…) of x W + h U + b;  c ← f c + i g;  h ← o tanh c. (Hochreiter and Schmidhuber 1997, with the
//! forget gate of Gers et al. 2000.)

use super::{
    matrix::{Matrix, Packed, View, Write},
    real::Real,
    vectorised::vectorised,
};

/// What the LSTM computed at the steps of some sequences. Row t · lanes + lane of a matrix belongs to step t of a lane.
#[derive(Debug)]
pub(super) struct Lstm<R> {
    units: usize,
    /// `[T·B, 4 S]`: x W before the forward pass, the gates i, f, g, o after it, and the loss's derivatives by what
    /// the gates' nonlinearities took after the backward pass.
    pub(super) gates: Matrix<R>,
    /// `[T·B, S]`: the h that a step began with, after a new episode forgot the old one.
    pub(super) h_before: Matrix<R>,
    /// `[T·B, S]`: c, likewise.
    c_before: Matrix<R>,
    /// `[T·B, S]`: the c that a step ended with.
    c: Matrix<R>,
    /// `[B, S]`: the derivatives by h and c that the step after the current one gives.
    dh: Matrix<R>,
    dc: Matrix<R>,
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

    pub(super) fn resize(&mut self, steps: usize, lanes: usize) {
        let rows = steps * lanes;
        self.gates.resize(rows);
        for matrix in [&mut self.h_before, &mut self.c_before, &mut self.c] {
            matrix.resize(rows);
        }
        self.dh.resize(lanes);
        self.dc.resize(lanes);
    }

    /// Takes `gates` from x W to the gates and gives `h [T·B, S…]`, from `keep [T·B]` and the state before, `[B, S]`.
    pub(super) fn forward(
        &mut self,
        recurrent: &Packed<R>,
        bias: &[R],
        keep: &[R],
        [h_first, c_first]: [View<'_, R>; 2],
        h: &mut Matrix<R>,
    ) {
        let lanes = h_first.len();
        for start in (0..keep.len()).step_by(lanes.max(1)) {
            let rows = start..start + lanes;
            for lane in 0..lanes {
                let row = start + lane;
                let (h, c) = if start == 0 {
                    (h_first.row(lane), c_first.row(lane))
                } else {
                    (&h.row(row - lanes)[..self.units], self.c.row(row - lanes))
                };
                scale(h, keep[row], self.h_before.row_mut(row));
                scale(c, keep[row], self.c_before.row_mut(row));
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

    /// Takes `gates` from the gates to derivatives, from those by h, `dh [T·B, S…]`.
    pub(super) fn backward(
        &mut self,
        recurrent_transposed: &Packed<R>,
        keep: &[R],
        dh: &Matrix<R>,
    ) {
        let lanes = self.dh.view().len();
        self.dh.fill(R::ZERO);
        self.dc.fill(R::ZERO);
        for start in (0..keep.len()).step_by(lanes.max(1)).rev() {
            vectorised(
                #[inline(always)]
                || {
                    for lane in 0..lanes {
                        let row = start + lane;
                        // Of the step after this one: 0 where an episode began there.
                        let keep_after = keep.get(row + lanes).copied().unwrap_or(R::ZERO);
                        cell_backward(
                            self.gates.row_mut(row),
                            keep_after,
                            (&dh.row(row)[..self.units], self.dh.row(lane)),
                            self.dc.row_mut(lane),
                            self.c_before.row(row),
                            self.c.row(row),
                        );
                    }
                },
            );
            if start > 0 {
                recurrent_transposed.multiply(
                    self.gates.view().rows(start..start + lanes),
                    self.dh.view_mut(),
                    Write::Replace,
                    &mut self.scratch,
                );
            }
        }
    }

    /// Of each lane, c after the last step.
    pub(super) fn c_after(&self) -> impl Iterator<Item = &[R]> {
        let lanes = self.dh.view().len();
        self.c
            .rows()
            .skip(self.c.view().len().saturating_sub(lanes))
    }
}

fn scale<R: Real>(from: &[R], factor: R, into: &mut [R]) {
    for (into, &from) in into.iter_mut().zip(from) {
        *into = from * factor;
    }
}

/// One step of one lane. `gates`: x W + h U, then the gates.
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

/// One step of one lane back. `gates`: the gates, then the derivatives by what their nonlinearities took; `dh`: by h
/// from the heads, and from the step after; `dc`: by c from the step after, then by the c before this step.
#[inline(always)]
fn cell_backward<R: Real>(
    gates: &mut [R],
    keep_after: R,
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
        let dh = dh_heads[j] + keep_after * dh_after[j];
        let tanh_c = c[j].tanh();
        let by_c = keep_after * dc[j] + dh * o[j] * (R::ONE - tanh_c * tanh_c);
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
