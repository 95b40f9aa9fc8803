//! The network's passes and the optimiser's step, composed of matrix products and kernels. The
//! mathematics is that of [`Cpu`](crate::model::Cpu), against which it is tested.

use super::{
    call::Call,
    machine::Machine,
    matrix::{
        DeviceMatrix,
        Factor::{self, Plain, Transposed},
        Sgemm,
    },
    workspace::{DeviceAllocator, LstmWorkspace, Workspace},
};
use crate::model::{
    Activation, Array, DeviceFailure, Layer, LstmArrays, Outputs, ParameterLayout, RmsProp,
    Sequences, Shape, StepError, Write, initialise,
};

/// Number of partial sums of the gradient's squares, which the host adds in f64.
const PARTS: usize = 1 << 14;

/// A network in a machine's memory: first the parameters and the vectors of the same length, then
/// the arrays of the passes.
#[derive(Debug)]
pub(super) struct DeviceNetwork<M> {
    machine: M,
    shape: Shape,
    layout: ParameterLayout,
    /// `[1, parameters]`, like the next three.
    parameters: DeviceMatrix,
    gradient: DeviceMatrix,
    mean_square: DeviceMatrix,
    velocity: DeviceMatrix,
    /// Whether the last step had momentum; without it the velocity is meaningless.
    momentum: bool,
    /// Partial sums of the gradient's squares, `[1, PARTS]`.
    squares: DeviceMatrix,
    /// The index at which the arrays of the passes begin.
    free: usize,
    /// The arrays of the last pass; `None` before the first, and after one without steps.
    workspace: Option<Workspace>,
}

impl<M: Machine> DeviceNetwork<M> {
    /// A network with the parameters of [`initialise`] with seed 0.
    pub(super) fn new(mut machine: M, shape: &Shape) -> Result<Self, DeviceFailure> {
        let layout = ParameterLayout::of(shape);
        let mut next = DeviceAllocator { at: 0 };
        let mut vector = || next.dense(1, layout.len());
        let [parameters, gradient, mean_square, velocity] = std::array::from_fn(|_| vector());
        let squares = next.dense(1, PARTS);
        let free = next.at;
        machine.grow(free)?;
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
            workspace: None,
        };
        for vector in [gradient, mean_square] {
            network.fill(vector, 0.0)?;
        }
        network.set_parameters(&initialise(shape, 0))?;
        Ok(network)
    }

    /// The machine, whose memory another network can take.
    pub(super) fn into_machine(self) -> M {
        self.machine
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), DeviceFailure> {
        assert_eq!(
            parameters.len(),
            self.layout.len(),
            "the shape's parameters"
        );
        self.machine.write(self.parameters.at, parameters)
    }

    pub(super) fn parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.read(self.parameters, into)
    }

    pub(super) fn gradient(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.read(self.gradient, into)
    }

    pub(super) fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), DeviceFailure> {
        assert_eq!(gradient.len(), self.layout.len(), "the shape's parameters");
        self.machine.write(self.gradient.at, gradient)
    }

    pub(super) fn moments(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.read(self.mean_square, into)?;
        if self.momentum {
            let mut velocity = Vec::new();
            self.read(self.velocity, &mut velocity)?;
            into.append(&mut velocity);
        }
        Ok(())
    }

    pub(super) fn set_moments(&mut self, moments: &[f32]) -> Result<(), DeviceFailure> {
        let (mean_square, velocity) = moments.split_at(self.layout.len());
        assert!(
            velocity.is_empty() || velocity.len() == mean_square.len(),
            "mean squares, then no velocities or as many"
        );
        self.machine.write(self.mean_square.at, mean_square)?;
        self.machine.write(self.velocity.at, velocity)?;
        self.momentum = !velocity.is_empty();
        Ok(())
    }

    pub(super) fn forward(
        &mut self,
        input: &Sequences<'_>,
        output: &mut Outputs,
    ) -> Result<(), DeviceFailure> {
        input.check(&self.shape);
        output.resize(&self.shape, input.steps, input.batch_size);
        if input.steps * input.batch_size == 0 {
            self.workspace = None;
            return Ok(());
        }
        let workspace = self.begin(input)?;

        // The branches, then the trunk, then the reward next to its output.
        let (layout, shape) = (self.layout.clone(), self.shape.clone());
        if let Some(branches) = workspace.branches {
            for position in layout.positions(&shape) {
                let x = workspace.observation.columns(position.inputs);
                let y = branches.columns(position.outputs);
                self.layer(position.layer, x, y, Some(shape.activation))?;
            }
        }
        let mut below = workspace.trunk_input();
        for (layer, &out) in layout.trunk.iter().zip(&workspace.trunk) {
            let activation = Some(self.shape.activation);
            below = self.layer(layer, below, out.columns(0..layer.bias.cols), activation)?;
        }
        let width = below.cols;
        let top = workspace.trunk[workspace.trunk.len() - 1];
        self.copy(workspace.reward, top.columns(width..width + 1))?;

        if let (Some(lstm), Some(arrays)) = (&workspace.lstm, &layout.lstm) {
            let below = top.columns(0..arrays.input.rows);
            self.lstm(
                arrays,
                lstm,
                below,
                workspace.features,
                workspace.batch_size,
            )?;
        }

        // The heads.
        let own = self.shape.features();
        let seen = workspace.features.columns(0..own);
        self.layer(&layout.policy, seen, workspace.logits, None)?;
        if self.shape.privileged > 0 {
            let beside = workspace.features.columns(own..workspace.features.cols);
            self.copy(workspace.privileged, beside)?;
        }
        let mut below = workspace.features;
        if let Some(hidden) = workspace.critic {
            let activation = Some(Activation::Relu);
            below = self.layer(&layout.critic[0], below, hidden, activation)?;
        }
        let last = &layout.critic[layout.critic.len() - 1];
        self.layer(last, below, workspace.baseline, None)?;

        self.machine.read(workspace.logits.at, &mut output.logits)?;
        self.machine
            .read(workspace.baseline.at, &mut output.baseline)?;
        if let Some(lstm) = &workspace.lstm {
            let after = workspace.steps * workspace.batch_size
                ..(workspace.steps + 1) * workspace.batch_size;
            let (h, c) = (lstm.h_before, lstm.c_before);
            self.machine.read(h.rows(after.clone()).at, &mut output.h)?;
            self.machine.read(c.rows(after).at, &mut output.c)?;
        }
        self.workspace = Some(workspace);
        Ok(())
    }

    pub(super) fn backward(
        &mut self,
        input: &Sequences<'_>,
        d_logits: &[f32],
        d_baseline: &[f32],
    ) -> Result<(), DeviceFailure> {
        let frames = input.steps * input.batch_size;
        assert_eq!(
            d_logits.len(),
            frames * self.shape.outputs(),
            "[T, B, A + M]"
        );
        assert_eq!(d_baseline.len(), frames * self.shape.values, "[T, B, K]");
        let Some(workspace) = self.workspace.take() else {
            assert_eq!(frames, 0, "backward follows forward");
            return self.fill(self.gradient, 0.0);
        };
        assert_eq!(
            (input.steps, input.batch_size),
            (workspace.steps, workspace.batch_size),
            "the input of the forward pass"
        );
        self.machine.write(workspace.d_logits.at, d_logits)?;
        self.machine.write(workspace.d_baseline.at, d_baseline)?;
        let layout = self.layout.clone();
        let top = workspace.trunk.len() - 1;

        // The heads, down to the features.
        let features = workspace.features;
        let below = workspace
            .lstm
            .map_or(workspace.d_trunk[top], |lstm| lstm.dh);
        self.of_layer(&layout.policy, features, workspace.d_logits, workspace.ones)?;
        self.down(
            &layout.policy.weights,
            workspace.d_logits,
            below,
            Write::Replace,
        )?;
        let mut d = workspace.d_baseline;
        if let (Some(hidden), Some(d_hidden)) = (workspace.critic, workspace.d_critic) {
            let second = &layout.critic[1];
            self.of_layer(second, hidden, d, workspace.ones)?;
            self.down(&second.weights, d, d_hidden, Write::Replace)?;
            self.activate_backward(d_hidden, hidden, Activation::Relu)?;
            d = d_hidden;
        }
        self.of_layer(&layout.critic[0], features, d, workspace.ones)?;
        self.down(&layout.critic[0].weights, d, below, Write::Add)?;

        if let (Some(lstm), Some(arrays)) = (&workspace.lstm, &layout.lstm) {
            self.lstm_backward(arrays, lstm, workspace.batch_size)?;
            let (d, rows) = (lstm.gates, 0..lstm.gates.rows);
            self.of_matrix(&arrays.input, workspace.trunk[top], d)?;
            self.of_matrix(&arrays.recurrent, lstm.h_before.rows(rows), d)?;
            self.sum_rows(d, &arrays.bias, workspace.ones)?;
            self.down(&arrays.input, d, workspace.d_trunk[top], Write::Replace)?;
        }

        // The trunk, from its last layer to its first.
        for (i, layer) in layout.trunk.iter().enumerate().rev() {
            let d = workspace.d_trunk[i];
            self.activate_backward(
                d,
                workspace.trunk[i].columns(0..d.cols),
                self.shape.activation,
            )?;
            let input = match i.checked_sub(1) {
                Some(before) => workspace.trunk[before],
                None => workspace.trunk_input(),
            };
            self.of_layer(layer, input, d, workspace.ones)?;
            let below = match i.checked_sub(1) {
                Some(before) => Some(workspace.d_trunk[before]),
                None => workspace.d_branches,
            };
            if let Some(below) = below {
                self.down(&layer.weights, d, below, Write::Replace)?;
            }
        }

        if let (Some(d), Some(branches)) = (workspace.d_branches, workspace.branches) {
            let shape = self.shape.clone();
            self.activate_backward(d, branches, shape.activation)?;
            for position in layout.positions(&shape) {
                let (layer, d) = (position.layer, d.columns(position.outputs));
                let input = workspace.observation.columns(position.inputs);
                self.add_of_matrix(&layer.weights, input, d, position.write)?;
                self.add_sum_rows(d, &layer.bias, workspace.ones, position.write)?;
            }
        }
        self.workspace = Some(workspace);
        Ok(())
    }

    pub(super) fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError> {
        self.machine.call(&Call::SumSquares {
            x: self.gradient,
            sums: self.squares,
        })?;
        let mut squares = Vec::new();
        self.read(self.squares, &mut squares)?;
        let norm = squares.into_iter().map(f64::from).sum::<f64>().sqrt() as f32;
        let scale = optimiser.scale(norm)?;
        let momentum = optimiser.momentum > 0.0;
        if momentum && !self.momentum {
            self.fill(self.velocity, 0.0)?;
        }
        self.momentum = momentum;
        self.machine.call(&Call::RmsProp {
            parameters: self.parameters,
            gradient: self.gradient,
            mean_square: self.mean_square,
            velocity: self.velocity,
            scale,
            optimiser: *optimiser,
        })?;
        Ok(norm)
    }

    /// Copies the input to the machine, and returns the arrays of its pass: those of the last pass
    /// if it had the same size.
    fn begin(&mut self, input: &Sequences<'_>) -> Result<Workspace, DeviceFailure> {
        let (steps, batch_size) = (input.steps, input.batch_size);
        let same = |last: &Workspace| (last.steps, last.batch_size) == (steps, batch_size);
        let workspace = match self.workspace.take().filter(same) {
            Some(last) => last,
            None => {
                let workspace = Workspace::new(&self.shape, steps, batch_size, self.free);
                self.machine.grow(workspace.end())?;
                self.fill(workspace.ones, 1.0)?;
                if let Some(LstmWorkspace { not_done, .. }) = workspace.lstm {
                    self.fill(not_done.rows(steps * batch_size..not_done.rows), 1.0)?;
                }
                workspace
            }
        };
        let machine = &mut self.machine;
        machine.write(workspace.observation.at, input.observation)?;
        machine.write(workspace.reward.at, input.reward)?;
        machine.write(workspace.privileged.at, input.privileged)?;
        if let Some(lstm) = &workspace.lstm {
            machine.write(lstm.not_done.at, input.not_done)?;
            machine.write(lstm.h_first.at, input.h)?;
            machine.write(lstm.c_first.at, input.c)?;
        }
        Ok(workspace)
    }

    /// Computes activation(x W + b) into `y`, and returns `y`.
    fn layer(
        &mut self,
        layer: &Layer,
        x: DeviceMatrix,
        y: DeviceMatrix,
        activation: Option<Activation>,
    ) -> Result<DeviceMatrix, DeviceFailure> {
        let weights = self.array(self.parameters, &layer.weights);
        self.multiply(Plain(x), Plain(weights), y, Write::Replace)?;
        let bias = self.array(self.parameters, &layer.bias);
        self.machine.call(&Call::Activate {
            y,
            bias,
            activation,
        })?;
        Ok(y)
    }

    /// Runs the LSTM's steps, from its input `[T·B, last hidden + 1]` to the first
    /// S columns of the features.
    fn lstm(
        &mut self,
        arrays: &LstmArrays,
        lstm: &LstmWorkspace,
        below: DeviceMatrix,
        features: DeviceMatrix,
        batch_size: usize,
    ) -> Result<(), DeviceFailure> {
        let parameters = self.parameters;
        let [input, recurrent, bias] = [&arrays.input, &arrays.recurrent, &arrays.bias]
            .map(|array| self.array(parameters, array));
        self.multiply(Plain(below), Plain(input), lstm.gates, Write::Replace)?;
        self.machine.call(&Call::LstmBegin {
            h: lstm.h_first,
            c: lstm.c_first,
            not_done: lstm.not_done.rows(0..batch_size),
            h_before: lstm.h_before.rows(0..batch_size),
            c_before: lstm.c_before.rows(0..batch_size),
        })?;
        for start in (0..lstm.gates.rows).step_by(batch_size) {
            let now = start..start + batch_size;
            let next = now.end..now.end + batch_size;
            let gates = lstm.gates.rows(now.clone());
            let h_before = lstm.h_before.rows(now.clone());
            self.multiply(Plain(h_before), Plain(recurrent), gates, Write::Add)?;
            self.machine.call(&Call::LstmForward {
                gates,
                bias,
                c_before: lstm.c_before.rows(now.clone()),
                c: lstm.c.rows(now.clone()),
                h: features.rows(now).columns(0..arrays.recurrent.rows),
                not_done_next: lstm.not_done.rows(next.clone()),
                h_before_next: lstm.h_before.rows(next.clone()),
                c_before_next: lstm.c_before.rows(next),
            })?;
        }
        Ok(())
    }

    /// Runs the LSTM's steps backward, which leaves the derivatives by the
    /// gates' pre-activations in their place.
    fn lstm_backward(
        &mut self,
        arrays: &LstmArrays,
        lstm: &LstmWorkspace,
        batch_size: usize,
    ) -> Result<(), DeviceFailure> {
        let recurrent = self.array(self.parameters, &arrays.recurrent);
        self.fill(lstm.dh_next, 0.0)?;
        self.fill(lstm.dc, 0.0)?;
        for start in (0..lstm.gates.rows).step_by(batch_size).rev() {
            let now = start..start + batch_size;
            let gates = lstm.gates.rows(now.clone());
            self.machine.call(&Call::LstmBackward {
                gates,
                c_before: lstm.c_before.rows(now.clone()),
                c: lstm.c.rows(now.clone()),
                dh: lstm.dh.rows(now.clone()),
                not_done_next: lstm.not_done.rows(now.end..now.end + batch_size),
                dh_next: lstm.dh_next,
                dc: lstm.dc,
            })?;
            if start > 0 {
                let (d, into) = (Plain(gates), lstm.dh_next);
                self.multiply(d, Transposed(recurrent), into, Write::Replace)?;
            }
        }
        Ok(())
    }

    /// Computes the gradient of a layer's parameters from the derivatives by its pre-activations.
    fn of_layer(
        &mut self,
        layer: &Layer,
        input: DeviceMatrix,
        d: DeviceMatrix,
        ones: DeviceMatrix,
    ) -> Result<(), DeviceFailure> {
        self.of_matrix(&layer.weights, input, d)?;
        self.sum_rows(d, &layer.bias, ones)
    }

    /// Computes the gradient of weights, xᵀ d, from as many columns of the input as they have rows.
    fn of_matrix(
        &mut self,
        weights: &Array,
        input: DeviceMatrix,
        d: DeviceMatrix,
    ) -> Result<(), DeviceFailure> {
        self.add_of_matrix(weights, input, d, Write::Replace)
    }

    /// As [`of_matrix`](Self::of_matrix); the gradient replaces the one that is there, or is added
    /// to it.
    fn add_of_matrix(
        &mut self,
        weights: &Array,
        input: DeviceMatrix,
        d: DeviceMatrix,
        write: Write,
    ) -> Result<(), DeviceFailure> {
        let into = self.array(self.gradient, weights);
        let input = input.columns(0..weights.rows);
        self.multiply(Transposed(input), Plain(d), into, write)
    }

    /// Computes the gradient of a bias: the sum of the rows of d.
    fn sum_rows(
        &mut self,
        d: DeviceMatrix,
        bias: &Array,
        ones: DeviceMatrix,
    ) -> Result<(), DeviceFailure> {
        self.add_sum_rows(d, bias, ones, Write::Replace)
    }

    /// As [`sum_rows`](Self::sum_rows); the gradient replaces the one that is there, or is added to
    /// it.
    fn add_sum_rows(
        &mut self,
        d: DeviceMatrix,
        bias: &Array,
        ones: DeviceMatrix,
        write: Write,
    ) -> Result<(), DeviceFailure> {
        let into = self.array(self.gradient, bias);
        self.multiply(Plain(ones), Plain(d), into, write)
    }

    /// Computes the derivatives by a layer's input, for as many of its columns as `below` has.
    fn down(
        &mut self,
        weights: &Array,
        d: DeviceMatrix,
        below: DeviceMatrix,
        write: Write,
    ) -> Result<(), DeviceFailure> {
        let weights = self.array(self.parameters, weights).rows(0..below.cols);
        self.multiply(Plain(d), Transposed(weights), below, write)
    }

    fn activate_backward(
        &mut self,
        d: DeviceMatrix,
        y: DeviceMatrix,
        activation: Activation,
    ) -> Result<(), DeviceFailure> {
        self.machine
            .call(&Call::ActivateBackward { d, y, activation })
    }

    fn multiply(
        &mut self,
        x: Factor,
        y: Factor,
        into: DeviceMatrix,
        write: Write,
    ) -> Result<(), DeviceFailure> {
        self.machine.multiply(&Sgemm::row_major(x, y, into, write))
    }

    fn copy(&mut self, from: DeviceMatrix, into: DeviceMatrix) -> Result<(), DeviceFailure> {
        self.machine.call(&Call::CopyColumns { from, into })
    }

    fn fill(&mut self, into: DeviceMatrix, value: f32) -> Result<(), DeviceFailure> {
        self.machine.call(&Call::Fill { into, value })
    }

    fn read(&self, vector: DeviceMatrix, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        into.resize(vector.count(), 0.0);
        self.machine.read(vector.at, into)
    }

    /// An array of the layout in one of the vectors that have the parameters' length.
    fn array(&self, vector: DeviceMatrix, array: &Array) -> DeviceMatrix {
        DeviceMatrix::dense(vector.at + array.offset, array.rows, array.cols)
    }
}
