//! The network's passes and the optimiser's step, as matrix products and kernels in a machine's memory. The same
//! mathematics as on processors ([`Cpu`](crate::model::Cpu)), which its tests hold it to.

use super::{
    batch::{Batch, LstmBatch, Next},
    call::Call,
    machine::Machine,
    matrix::{
        Factor::{self, Plain, Transposed},
        Matrix, Sgemm, Write,
    },
};
use crate::model::{
    Activation, Array, Layer, Layout, LstmArrays, Outputs, RmsProp, Sequences, Shape, initialise,
};

/// How many parts the sum of the gradient's squares is taken in; the host adds them in f64.
const PARTS: usize = 1 << 14;

/// A network in a machine's memory: parameters and what belongs to each of them at its beginning, then the arrays of
/// the passes.
#[derive(Debug)]
pub(super) struct Network<M> {
    machine: M,
    shape: Shape,
    layout: Layout,
    /// `[1, parameters]`, as the next three.
    parameters: Matrix,
    gradient: Matrix,
    mean_square: Matrix,
    velocity: Matrix,
    /// Whether the last step had momentum, and the velocity says anything.
    momentum: bool,
    /// `[1, PARTS]`.
    squares: Matrix,
    /// Where passes may lie.
    free: usize,
    batch: Option<Batch>,
}

impl<M: Machine> Network<M> {
    /// A network with parameters from [`initialise`] with seed 0.
    pub(super) fn new(mut machine: M, shape: &Shape) -> Self {
        let layout = Layout::of(shape);
        let mut next = Next { at: 0 };
        let mut vector = || next.dense(1, layout.len());
        let [parameters, gradient, mean_square, velocity] = std::array::from_fn(|_| vector());
        let squares = next.dense(1, PARTS);
        let free = next.at;
        machine.grow(free);
        let mut network = Self {
            machine,
            shape: shape.clone(),
            layout,
            parameters,
            gradient,
            mean_square,
            velocity,
            momentum: false,
            squares,
            free,
            batch: None,
        };
        for vector in [gradient, mean_square] {
            network.fill(vector, 0.0);
        }
        network.set_parameters(&initialise(shape, 0));
        network
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn set_parameters(&mut self, parameters: &[f32]) {
        assert_eq!(
            parameters.len(),
            self.layout.len(),
            "the shape's parameters"
        );
        self.machine.write(self.parameters.at, parameters);
    }

    pub(super) fn parameters(&self, into: &mut Vec<f32>) {
        self.read(self.parameters, into);
    }

    pub(super) fn gradient(&self, into: &mut Vec<f32>) {
        self.read(self.gradient, into);
    }

    pub(super) fn moments(&self, into: &mut Vec<f32>) {
        self.read(self.mean_square, into);
        if self.momentum {
            let mut velocity = Vec::new();
            self.read(self.velocity, &mut velocity);
            into.append(&mut velocity);
        }
    }

    pub(super) fn set_moments(&mut self, moments: &[f32]) {
        let (mean_square, velocity) = moments.split_at(self.layout.len());
        assert!(
            velocity.is_empty() || velocity.len() == mean_square.len(),
            "mean squares, then no velocities or as many"
        );
        self.machine.write(self.mean_square.at, mean_square);
        self.machine.write(self.velocity.at, velocity);
        self.momentum = !velocity.is_empty();
    }

    pub(super) fn forward(&mut self, input: &Sequences<'_>, output: &mut Outputs) {
        input.check(&self.shape);
        output.resize(&self.shape, input.steps, input.lanes);
        if input.steps * input.lanes == 0 {
            self.batch = None;
            return;
        }
        let batch = self.begin(input);

        // The trunk, then the reward beside its output.
        let layout = self.layout.clone();
        let mut below = batch.observation;
        for (layer, &out) in layout.trunk.iter().zip(&batch.trunk) {
            let activation = Some(self.shape.activation);
            below = self.layer(layer, below, out.columns(0..layer.bias.cols), activation);
        }
        let width = below.cols;
        let top = batch.trunk[batch.trunk.len() - 1];
        self.copy(batch.reward, top.columns(width..width + 1));

        if let (Some(lstm), Some(arrays)) = (&batch.lstm, &layout.lstm) {
            let below = top.columns(0..arrays.input.rows);
            self.lstm(arrays, lstm, below, batch.features, batch.lanes);
        }

        // The heads.
        let own = self.shape.features();
        let seen = batch.features.columns(0..own);
        self.layer(&layout.policy, seen, batch.logits, None);
        if self.shape.privileged > 0 {
            let beside = batch.features.columns(own..batch.features.cols);
            self.copy(batch.privileged, beside);
        }
        let mut below = batch.features;
        if let Some(hidden) = batch.critic {
            let activation = Some(Activation::Relu);
            below = self.layer(&layout.critic[0], below, hidden, activation);
        }
        let last = &layout.critic[layout.critic.len() - 1];
        self.layer(last, below, batch.baseline, None);

        self.machine.read(batch.logits.at, &mut output.logits);
        self.machine.read(batch.baseline.at, &mut output.baseline);
        if let Some(lstm) = &batch.lstm {
            let after = batch.steps * batch.lanes..(batch.steps + 1) * batch.lanes;
            let (h, c) = (lstm.h_before, lstm.c_before);
            self.machine.read(h.rows(after.clone()).at, &mut output.h);
            self.machine.read(c.rows(after).at, &mut output.c);
        }
        self.batch = Some(batch);
    }

    pub(super) fn backward(&mut self, input: &Sequences<'_>, d_logits: &[f32], d_baseline: &[f32]) {
        let frames = input.steps * input.lanes;
        assert_eq!(d_logits.len(), frames * self.shape.actions, "[T, B, A]");
        assert_eq!(d_baseline.len(), frames, "[T, B]");
        let Some(batch) = self.batch.take() else {
            assert_eq!(frames, 0, "backward follows forward");
            self.fill(self.gradient, 0.0);
            return;
        };
        assert_eq!(
            (input.steps, input.lanes),
            (batch.steps, batch.lanes),
            "the input of the forward pass"
        );
        self.machine.write(batch.d_logits.at, d_logits);
        self.machine.write(batch.d_baseline.at, d_baseline);
        let layout = self.layout.clone();
        let top = batch.trunk.len() - 1;

        // The heads, down to the features.
        let features = batch.features;
        let below = batch.lstm.map_or(batch.d_trunk[top], |lstm| lstm.dh);
        self.of_layer(&layout.policy, features, batch.d_logits, batch.ones);
        self.down(
            &layout.policy.weights,
            batch.d_logits,
            below,
            Write::Replace,
        );
        let mut d = batch.d_baseline;
        if let (Some(hidden), Some(d_hidden)) = (batch.critic, batch.d_critic) {
            let second = &layout.critic[1];
            self.of_layer(second, hidden, d, batch.ones);
            self.down(&second.weights, d, d_hidden, Write::Replace);
            self.activate_backward(d_hidden, hidden, Activation::Relu);
            d = d_hidden;
        }
        self.of_layer(&layout.critic[0], features, d, batch.ones);
        self.down(&layout.critic[0].weights, d, below, Write::Add);

        if let (Some(lstm), Some(arrays)) = (&batch.lstm, &layout.lstm) {
            self.lstm_backward(arrays, lstm, batch.lanes);
            let (d, rows) = (lstm.gates, 0..lstm.gates.rows);
            self.of_matrix(&arrays.input, batch.trunk[top], d);
            self.of_matrix(&arrays.recurrent, lstm.h_before.rows(rows), d);
            self.sum_rows(d, &arrays.bias, batch.ones);
            self.down(&arrays.input, d, batch.d_trunk[top], Write::Replace);
        }

        // The trunk, from its last layer to its first.
        for (i, layer) in layout.trunk.iter().enumerate().rev() {
            let d = batch.d_trunk[i];
            self.activate_backward(d, batch.trunk[i].columns(0..d.cols), self.shape.activation);
            let input = match i.checked_sub(1) {
                Some(before) => batch.trunk[before],
                None => batch.observation,
            };
            self.of_layer(layer, input, d, batch.ones);
            if let Some(before) = i.checked_sub(1) {
                self.down(&layer.weights, d, batch.d_trunk[before], Write::Replace);
            }
        }
        self.batch = Some(batch);
    }

    pub(super) fn step(&mut self, optimiser: &RmsProp) -> f32 {
        self.machine.call(&Call::SumSquares {
            x: self.gradient,
            sums: self.squares,
        });
        let mut squares = Vec::new();
        self.read(self.squares, &mut squares);
        let norm = squares.into_iter().map(f64::from).sum::<f64>().sqrt() as f32;
        let scale = if optimiser.clip > 0.0 && norm > optimiser.clip {
            optimiser.clip / norm
        } else {
            1.0
        };
        let momentum = optimiser.momentum > 0.0;
        if momentum && !self.momentum {
            self.fill(self.velocity, 0.0);
        }
        self.momentum = momentum;
        self.machine.call(&Call::RmsProp {
            parameters: self.parameters,
            gradient: self.gradient,
            mean_square: self.mean_square,
            velocity: self.velocity,
            scale,
            optimiser: *optimiser,
        });
        norm
    }

    /// Takes the input in, and gives the arrays of its pass: the last pass's where that was as large.
    fn begin(&mut self, input: &Sequences<'_>) -> Batch {
        let (steps, lanes) = (input.steps, input.lanes);
        let same = |last: &Batch| (last.steps, last.lanes) == (steps, lanes);
        let batch = self.batch.take().filter(same).unwrap_or_else(|| {
            let batch = Batch::new(&self.shape, steps, lanes, self.free);
            self.machine.grow(batch.end());
            self.fill(batch.ones, 1.0);
            if let Some(LstmBatch { keep, .. }) = batch.lstm {
                self.fill(keep.rows(steps * lanes..keep.rows), 1.0);
            }
            batch
        });
        let machine = &mut self.machine;
        machine.write(batch.observation.at, input.observation);
        machine.write(batch.reward.at, input.reward);
        machine.write(batch.privileged.at, input.privileged);
        if let Some(lstm) = &batch.lstm {
            machine.write(lstm.keep.at, input.keep);
            machine.write(lstm.h_first.at, input.h);
            machine.write(lstm.c_first.at, input.c);
        }
        batch
    }

    /// activation(x W + b). Gives the result's place.
    fn layer(
        &mut self,
        layer: &Layer,
        x: Matrix,
        y: Matrix,
        activation: Option<Activation>,
    ) -> Matrix {
        let weights = self.array(self.parameters, &layer.weights);
        self.multiply(Plain(x), Plain(weights), y, Write::Replace);
        let bias = self.array(self.parameters, &layer.bias);
        self.machine.call(&Call::Activate {
            y,
            bias,
            activation,
        });
        y
    }

    /// The LSTM's steps, from its input `[T·B, last hidden + 1]` to the first columns of the features.
    fn lstm(
        &mut self,
        arrays: &LstmArrays,
        lstm: &LstmBatch,
        below: Matrix,
        features: Matrix,
        lanes: usize,
    ) {
        let parameters = self.parameters;
        let [input, recurrent, bias] = [&arrays.input, &arrays.recurrent, &arrays.bias]
            .map(|array| self.array(parameters, array));
        self.multiply(Plain(below), Plain(input), lstm.gates, Write::Replace);
        self.machine.call(&Call::LstmBegin {
            h: lstm.h_first,
            c: lstm.c_first,
            keep: lstm.keep.rows(0..lanes),
            h_before: lstm.h_before.rows(0..lanes),
            c_before: lstm.c_before.rows(0..lanes),
        });
        for start in (0..lstm.gates.rows).step_by(lanes) {
            let now = start..start + lanes;
            let next = now.end..now.end + lanes;
            let gates = lstm.gates.rows(now.clone());
            let h_before = lstm.h_before.rows(now.clone());
            self.multiply(Plain(h_before), Plain(recurrent), gates, Write::Add);
            self.machine.call(&Call::LstmForward {
                gates,
                bias,
                c_before: lstm.c_before.rows(now.clone()),
                c: lstm.c.rows(now.clone()),
                h: features.rows(now).columns(0..arrays.recurrent.rows),
                keep_next: lstm.keep.rows(next.clone()),
                h_before_next: lstm.h_before.rows(next.clone()),
                c_before_next: lstm.c_before.rows(next),
            });
        }
    }

    /// The LSTM's steps back: leaves the derivatives by the gates' sums.
    fn lstm_backward(&mut self, arrays: &LstmArrays, lstm: &LstmBatch, lanes: usize) {
        let recurrent = self.array(self.parameters, &arrays.recurrent);
        self.fill(lstm.dh_next, 0.0);
        self.fill(lstm.dc, 0.0);
        for start in (0..lstm.gates.rows).step_by(lanes).rev() {
            let now = start..start + lanes;
            let gates = lstm.gates.rows(now.clone());
            self.machine.call(&Call::LstmBackward {
                gates,
                c_before: lstm.c_before.rows(now.clone()),
                c: lstm.c.rows(now.clone()),
                dh: lstm.dh.rows(now.clone()),
                keep_next: lstm.keep.rows(now.end..now.end + lanes),
                dh_next: lstm.dh_next,
                dc: lstm.dc,
            });
            if start > 0 {
                let (d, into) = (Plain(gates), lstm.dh_next);
                self.multiply(d, Transposed(recurrent), into, Write::Replace);
            }
        }
    }

    /// The gradient of a layer's parameters, from the derivatives by its sums.
    fn of_layer(&mut self, layer: &Layer, input: Matrix, d: Matrix, ones: Matrix) {
        self.of_matrix(&layer.weights, input, d);
        self.sum_rows(d, &layer.bias, ones);
    }

    /// The gradient of weights, xᵀ d, from the columns of the input that they take.
    fn of_matrix(&mut self, weights: &Array, input: Matrix, d: Matrix) {
        let into = self.array(self.gradient, weights);
        let input = input.columns(0..weights.rows);
        self.multiply(Transposed(input), Plain(d), into, Write::Replace);
    }

    /// The gradient of a bias.
    fn sum_rows(&mut self, d: Matrix, bias: &Array, ones: Matrix) {
        let into = self.array(self.gradient, bias);
        self.multiply(Plain(ones), Plain(d), into, Write::Replace);
    }

    /// The derivatives by a layer's input, as many of its columns as `below` has.
    fn down(&mut self, weights: &Array, d: Matrix, below: Matrix, write: Write) {
        let weights = self.array(self.parameters, weights).rows(0..below.cols);
        self.multiply(Plain(d), Transposed(weights), below, write);
    }

    fn activate_backward(&mut self, d: Matrix, y: Matrix, activation: Activation) {
        self.machine
            .call(&Call::ActivateBackward { d, y, activation });
    }

    fn multiply(&mut self, x: Factor, y: Factor, into: Matrix, write: Write) {
        self.machine.multiply(&Sgemm::row_major(x, y, into, write));
    }

    fn copy(&mut self, from: Matrix, into: Matrix) {
        self.machine.call(&Call::CopyColumns { from, into });
    }

    fn fill(&mut self, into: Matrix, value: f32) {
        self.machine.call(&Call::Fill { into, value });
    }

    fn read(&self, vector: Matrix, into: &mut Vec<f32>) {
        into.resize(vector.count(), 0.0);
        self.machine.read(vector.at, into);
    }

    /// An array of the layout in one of the vectors that follow it.
    fn array(&self, vector: Matrix, array: &Array) -> Matrix {
        Matrix::dense(vector.at + array.offset, array.rows, array.cols)
    }
}
