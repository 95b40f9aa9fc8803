//! The layout of the activations of a pass in a machine's memory.

use super::matrix::DeviceMatrix;
use crate::model::{CRITIC_WIDTH, Shape};

/// The arrays of the passes over T steps of B sequences. Row t·B + b of a matrix belongs to
/// step t of sequence b.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) steps: usize,
    pub(super) batch_size: usize,
    /// `[T·B, D]`: the observations of the input.
    pub(super) observation: DeviceMatrix,
    /// `[T·B, 1]`: the rewards of the input.
    pub(super) reward: DeviceMatrix,
    /// `[T·B, P]`: the privileged observations of the input.
    pub(super) privileged: DeviceMatrix,
    /// `[1, T·B]`: ones, to sum rows by a product.
    pub(super) ones: DeviceMatrix,
    /// `[T·B, outputs]`: the outputs of the branches, next to each other; `None` without branches.
    pub(super) branches: Option<DeviceMatrix>,
    /// Outputs of the trunk's layers. Those of the last are followed by the reward, and without an
    /// LSTM by the privileged observation.
    pub(super) trunk: Vec<DeviceMatrix>,
    pub(super) lstm: Option<LstmWorkspace>,
    /// `[T·B, F + P]`: the input of the heads.
    pub(super) features: DeviceMatrix,
    /// `[T·B, 64]`: the critic's hidden layer; `None` without a privileged observation.
    pub(super) critic: Option<DeviceMatrix>,
    /// `[T·B, A]`: the logits of the policy.
    pub(super) logits: DeviceMatrix,
    /// `[T·B, 1]`: the baselines, V(x).
    pub(super) baseline: DeviceMatrix,
    /// Derivatives of the loss by the logits.
    pub(super) d_logits: DeviceMatrix,
    /// Derivatives of the loss by the baselines.
    pub(super) d_baseline: DeviceMatrix,
    /// Derivatives by the output of the critic's hidden layer.
    pub(super) d_critic: Option<DeviceMatrix>,
    /// Derivatives by the outputs of the branches.
    pub(super) d_branches: Option<DeviceMatrix>,
    /// Derivatives by the outputs of the trunk's layers.
    pub(super) d_trunk: Vec<DeviceMatrix>,
    end: usize,
}

/// The arrays of an LSTM.
#[derive(Clone, Copy, Debug)]
pub(super) struct LstmWorkspace {
    /// `[B, S]`: the hidden state of the input.
    pub(super) h_first: DeviceMatrix,
    /// `[B, S]`: the cell state of the input.
    pub(super) c_first: DeviceMatrix,
    /// `[(T + 1)·B, 1]`: 1 for the step after the last.
    pub(super) not_done: DeviceMatrix,
    /// `[T·B, 4 S]`: pre-activations, then gates, then derivatives by pre-activations.
    pub(super) gates: DeviceMatrix,
    /// `[(T + 1)·B, S]`: the hidden state before a step, 0 where an episode begins. The last B rows
    /// are the state after the last step.
    pub(super) h_before: DeviceMatrix,
    /// `[(T + 1)·B, S]`: the cell state, likewise.
    pub(super) c_before: DeviceMatrix,
    /// `[T·B, S]`: the cell state after a step.
    pub(super) c: DeviceMatrix,
    /// `[T·B, S]`: derivatives by the hidden state from the heads.
    pub(super) dh: DeviceMatrix,
    /// `[B, S]`: derivatives by the hidden state before the next step.
    pub(super) dh_next: DeviceMatrix,
    /// `[B, S]`: derivatives by the cell state before the next step.
    pub(super) dc: DeviceMatrix,
}

impl Workspace {
    /// Places the arrays one after the other, beginning at index `start`.
    pub(super) fn new(shape: &Shape, steps: usize, batch_size: usize, start: usize) -> Self {
        let frames = steps * batch_size;
        let mut next = DeviceAllocator { at: start };
        let beside = |without: bool| if without { shape.privileged } else { 0 };

        let observation = next.dense(frames, shape.observation);
        let reward = next.dense(frames, 1);
        let privileged = next.dense(frames, shape.privileged);
        let ones = next.dense(1, frames);
        let branches = |next: &mut DeviceAllocator| {
            (!shape.branches.is_empty()).then(|| next.aligned(frames, shape.trunk_input()))
        };
        let own_branches = branches(&mut next);
        let mut trunk = shape.hidden.clone();
        if let Some(last) = trunk.last_mut() {
            *last += 1 + beside(shape.lstm.is_none());
        }
        let trunk: Vec<_> = trunk
            .into_iter()
            .map(|width| next.aligned(frames, width))
            .collect();
        let lstm = shape.lstm.map(|units| LstmWorkspace {
            h_first: next.dense(batch_size, units),
            c_first: next.dense(batch_size, units),
            not_done: next.dense(frames + batch_size, 1),
            gates: next.dense(frames, 4 * units),
            h_before: next.dense(frames + batch_size, units),
            c_before: next.dense(frames + batch_size, units),
            c: next.dense(frames, units),
            dh: next.dense(frames, units),
            dh_next: next.dense(batch_size, units),
            dc: next.dense(batch_size, units),
        });
        let features = match shape.lstm {
            Some(units) => next.aligned(frames, units + shape.privileged),
            None => trunk[trunk.len() - 1],
        };
        let critic = |next: &mut DeviceAllocator| {
            (shape.privileged > 0).then(|| next.dense(frames, CRITIC_WIDTH))
        };
        Self {
            steps,
            batch_size,
            observation,
            reward,
            privileged,
            ones,
            branches: own_branches,
            trunk,
            lstm,
            features,
            critic: critic(&mut next),
            logits: next.dense(frames, shape.outputs()),
            baseline: next.dense(frames, shape.values),
            d_logits: next.dense(frames, shape.outputs()),
            d_baseline: next.dense(frames, shape.values),
            d_critic: critic(&mut next),
            d_branches: branches(&mut next),
            d_trunk: shape
                .hidden
                .iter()
                .map(|&width| next.aligned(frames, width))
                .collect(),
            end: next.at,
        }
    }

    /// The input of the trunk: the outputs of the branches, or without any the observations.
    pub(super) fn trunk_input(&self) -> DeviceMatrix {
        self.branches.unwrap_or(self.observation)
    }

    /// The index after the last element of all arrays.
    pub(super) fn end(&self) -> usize {
        self.end
    }
}

/// Places matrices one after the other, each aligned to 64 elements for the GPU's widest loads.
pub(super) struct DeviceAllocator {
    /// The index at which the next matrix begins.
    pub(super) at: usize,
}

impl DeviceAllocator {
    /// Places a matrix without gaps between its rows.
    pub(super) fn dense(&mut self, rows: usize, cols: usize) -> DeviceMatrix {
        let matrix = DeviceMatrix::dense(self.at, rows, cols);
        self.at += (rows * cols).next_multiple_of(64);
        matrix
    }

    /// Places a matrix whose rows are all aligned to four elements.
    fn aligned(&mut self, rows: usize, cols: usize) -> DeviceMatrix {
        let stride = cols.next_multiple_of(4);
        let matrix = self.dense(rows, stride);
        matrix.columns(0..cols)
    }
}
