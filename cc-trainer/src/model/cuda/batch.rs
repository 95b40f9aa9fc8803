//! Where the arrays of a pass lie.

use super::matrix::Matrix;
use crate::model::{CRITIC_WIDTH, Shape};

/// The arrays of the passes over some steps and lanes. Row t · lanes + lane of a matrix belongs to step t of a lane.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) steps: usize,
    pub(super) lanes: usize,
    /// `[T·B, D]`.
    pub(super) observation: Matrix,
    /// `[T·B, 1]`.
    pub(super) reward: Matrix,
    /// `[T·B, P]`.
    pub(super) privileged: Matrix,
    /// `[1, T·B]`, to sum rows by a product.
    pub(super) ones: Matrix,
    /// Outputs of the layers. The last is followed by the reward, and without LSTM by what only the baseline sees.
    pub(super) trunk: Vec<Matrix>,
    pub(super) lstm: Option<LstmBatch>,
    /// `[T·B, F + P]`, what the heads take.
    pub(super) features: Matrix,
    /// `[T·B, 64]`, the baseline's own layer.
    pub(super) critic: Option<Matrix>,
    /// `[T·B, A]`.
    pub(super) logits: Matrix,
    /// `[T·B, 1]`.
    pub(super) baseline: Matrix,
    /// The loss's derivatives by the outputs, and by what the layers put out.
    pub(super) d_logits: Matrix,
    pub(super) d_baseline: Matrix,
    pub(super) d_critic: Option<Matrix>,
    pub(super) d_trunk: Vec<Matrix>,
    end: usize,
}

/// The same of an LSTM.
#[derive(Clone, Copy, Debug)]
pub(super) struct LstmBatch {
    /// `[B, S]`, as given.
    pub(super) h_first: Matrix,
    pub(super) c_first: Matrix,
    /// `[(T + 1)·B, 1]`; of the step after the last, 1.
    pub(super) keep: Matrix,
    /// `[T·B, 4 S]`: sums, then gates, then derivatives by sums.
    pub(super) gates: Matrix,
    /// `[(T + 1)·B, S]`: the h and c that a step begins with, after a new episode forgot the old one. The last B rows
    /// are the state after the last step.
    pub(super) h_before: Matrix,
    pub(super) c_before: Matrix,
    /// `[T·B, S]`: the c that a step ends with.
    pub(super) c: Matrix,
    /// `[T·B, S]`, derivatives by h from the heads.
    pub(super) dh: Matrix,
    /// `[B, S]`, derivatives by the state that the next step begins with.
    pub(super) dh_next: Matrix,
    pub(super) dc: Matrix,
}

impl Batch {
    /// Places the arrays one after the other, from an index on.
    pub(super) fn new(shape: &Shape, steps: usize, lanes: usize, start: usize) -> Self {
        let frames = steps * lanes;
        let mut next = Next { at: start };
        let beside = |without: bool| if without { shape.privileged } else { 0 };

        let observation = next.dense(frames, shape.observation);
        let reward = next.dense(frames, 1);
        let privileged = next.dense(frames, shape.privileged);
        let ones = next.dense(1, frames);
        let mut trunk = shape.hidden.clone();
        if let Some(last) = trunk.last_mut() {
            *last += 1 + beside(shape.lstm.is_none());
        }
        let trunk: Vec<_> = trunk
            .into_iter()
            .map(|width| next.aligned(frames, width))
            .collect();
        let lstm = shape.lstm.map(|units| LstmBatch {
            h_first: next.dense(lanes, units),
            c_first: next.dense(lanes, units),
            keep: next.dense(frames + lanes, 1),
            gates: next.dense(frames, 4 * units),
            h_before: next.dense(frames + lanes, units),
            c_before: next.dense(frames + lanes, units),
            c: next.dense(frames, units),
            dh: next.dense(frames, units),
            dh_next: next.dense(lanes, units),
            dc: next.dense(lanes, units),
        });
        let features = match shape.lstm {
            Some(units) => next.aligned(frames, units + shape.privileged),
            None => trunk[trunk.len() - 1],
        };
        let critic =
            |next: &mut Next| (shape.privileged > 0).then(|| next.dense(frames, CRITIC_WIDTH));
        Self {
            steps,
            lanes,
            observation,
            reward,
            privileged,
            ones,
            trunk,
            lstm,
            features,
            critic: critic(&mut next),
            logits: next.dense(frames, shape.actions),
            baseline: next.dense(frames, 1),
            d_logits: next.dense(frames, shape.actions),
            d_baseline: next.dense(frames, 1),
            d_critic: critic(&mut next),
            d_trunk: shape
                .hidden
                .iter()
                .map(|&width| next.aligned(frames, width))
                .collect(),
            end: next.at,
        }
    }

    /// The index after the last of its elements.
    pub(super) fn end(&self) -> usize {
        self.end
    }
}

/// Places matrices one after the other, at multiples of a GPU's widest load.
pub(super) struct Next {
    /// Where the next one goes.
    pub(super) at: usize,
}

impl Next {
    /// Rows without gaps.
    pub(super) fn dense(&mut self, rows: usize, cols: usize) -> Matrix {
        let matrix = Matrix::dense(self.at, rows, cols);
        self.at += (rows * cols).next_multiple_of(64);
        matrix
    }

    /// Rows that each begin where loads of four floats can.
    fn aligned(&mut self, rows: usize, cols: usize) -> Matrix {
        let stride = cols.next_multiple_of(4);
        let matrix = self.dense(rows, stride);
        matrix.columns(0..cols)
    }
}
