//! The network on the CPU: hand-written passes over matrix products.
//!
//! The sequences of a batch are divided among threads, each of which runs the forward and the
//! backward pass of its own; only summing the gradient and the optimiser's step see all of them.

mod activation;
mod backward;
mod branches;
mod inference;
mod lstm;
mod matrix;
mod optimiser;
mod pass;
mod real;
#[cfg(test)]
mod tests;
mod vectorised;
mod weights;

use std::iter;

use rayon::prelude::*;

use self::{
    backward::Backward,
    matrix::Packed,
    optimiser::{RmsPropStep, sum_of_squares},
    pass::Pass,
    vectorised::vectorised,
};
pub use self::{inference::Inference, real::Real, weights::Weights};
use super::{Device, DeviceFailure, Outputs, RmsProp, Sequences, Shape, StepError, initialise};

/// A network on the CPU. The order of additions depends on the number of threads and on nothing
/// else: the same calls with the same number of threads give the same bits.
#[derive(Debug)]
pub struct Cpu<R: Real = f32> {
    weights: Weights<R>,
    /// The LSTM's recurrent weights transposed, for the backward pass.
    recurrent_transposed: Option<Packed<R>>,
    mean_square: Vec<R>,
    /// RMSprop's velocity; empty without momentum.
    velocity: Vec<R>,
    /// The work of each thread.
    shards: Vec<Shard<R>>,
    /// `None` for a single thread, the caller's.
    pool: Option<rayon::ThreadPool>,
}

/// The passes over the sequences of one thread.
#[derive(Debug)]
struct Shard<R> {
    pass: Pass<R>,
    backward: Backward<R>,
}

/// Number of parameters that a thread takes at a time when the work goes over all of them.
const CHUNK: usize = 1 << 14;

impl<R: Real> Cpu<R> {
    /// A network with the parameters of [`initialise`] with seed 0, computed on this
    /// many threads (at least one).
    ///
    /// # Errors
    ///
    /// Returns an error when the threads cannot be started.
    pub fn new(shape: &Shape, threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let threads = threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("learner-{i}"));
        let parameters: Vec<R> = initialise(shape, 0).into_iter().map(R::from).collect();
        let shard = || Shard {
            pass: Pass::new(shape),
            backward: Backward::new(shape),
        };
        let mut cpu = Self {
            weights: Weights::new(shape, &parameters),
            recurrent_transposed: shape.lstm.map(|units| Packed::new(4 * units, units)),
            mean_square: vec![R::ZERO; parameters.len()],
            velocity: Vec::new(),
            shards: iter::repeat_with(shard).take(threads).collect(),
            pool: (threads > 1).then(|| pool.build()).transpose()?,
        };
        cpu.pack();
        Ok(cpu)
    }

    /// The sizes of the network, as [`Device::shape`].
    pub fn shape(&self) -> &Shape {
        self.weights.shape()
    }

    /// The parameters in the form that forward passes read.
    pub fn weights(&self) -> &Weights<R> {
        &self.weights
    }

    /// Replaces the parameters, as [`Device::set_parameters`].
    ///
    /// # Panics
    ///
    /// Panics if their number is not the layout's.
    pub fn set_parameters(&mut self, parameters: &[R]) {
        assert_eq!(
            parameters.len(),
            self.weights.parameters().len(),
            "the shape's parameters"
        );
        self.weights.parameters_mut().copy_from_slice(parameters);
        self.pack();
    }

    /// Copies the parameters to `into`, as [`Device::parameters`].
    pub fn parameters(&self, into: &mut Vec<R>) {
        into.clear();
        into.extend_from_slice(self.weights.parameters());
    }

    /// Copies the optimiser's moments to `into`, as [`Device::moments`].
    pub fn moments(&self, into: &mut Vec<R>) {
        into.clear();
        into.extend_from_slice(&self.mean_square);
        into.extend_from_slice(&self.velocity);
    }

    /// Replaces the optimiser's moments, as [`Device::set_moments`].
    ///
    /// # Panics
    ///
    /// Panics if their number is neither that of the parameters nor twice that.
    pub fn set_moments(&mut self, moments: &[R]) {
        let (mean_square, velocity) = moments.split_at(self.mean_square.len());
        assert!(
            velocity.is_empty() || velocity.len() == mean_square.len(),
            "mean squares, then no velocities or as many"
        );
        self.mean_square.copy_from_slice(mean_square);
        self.velocity = velocity.to_vec();
    }

    /// Runs the forward pass, as [`Device::forward`].
    ///
    /// # Panics
    ///
    /// Panics if an array's length does not follow from shape, steps and batch size.
    pub fn forward(&mut self, input: &Sequences<'_, R>, output: &mut Outputs<R>) {
        input.check(self.shape());
        let (weights, batch_size) = (&self.weights, input.batch_size);
        let active = self.shards.len().min(batch_size);
        let forward = |i: usize, shard: &mut Shard<R>| {
            let sequences = batch_size * i / active..batch_size * (i + 1) / active;
            shard.pass.policy(weights, input, sequences);
            shard.pass.baseline(weights, input);
        };
        each(&self.pool, &mut self.shards[..active], forward);

        output.resize(weights.shape(), input.steps, batch_size);
        for shard in &self.shards[..active] {
            shard.pass.give(batch_size, output);
        }
    }

    /// Runs the backward pass, as [`Device::backward`].
    ///
    /// # Panics
    ///
    /// Panics if an array's length is not that of the forward pass's output.
    pub fn backward(&mut self, input: &Sequences<'_, R>, d_logits: &[R], d_baseline: &[R]) {
        let shape = self.weights.shape();
        let frames = input.steps * input.batch_size;
        assert_eq!(d_logits.len(), frames * shape.outputs(), "[T, B, A + M]");
        assert_eq!(d_baseline.len(), frames * shape.values, "[T, B, K]");
        let (weights, transposed) = (&self.weights, self.recurrent_transposed.as_ref());
        let active = self.shards.len().min(input.batch_size);
        let backward = |_: usize, Shard { pass, backward }: &mut Shard<R>| {
            backward.resize(pass.not_done.len(), weights.parameters().len());
            backward.take(
                input.batch_size,
                pass.sequences.clone(),
                d_logits,
                d_baseline,
            );
            backward.run(weights, transposed, pass);
        };
        each(&self.pool, &mut self.shards[..active], backward);

        let Some((first, rest)) = self.shards[..active].split_first_mut() else {
            return;
        };
        let mut chunks: Vec<_> = first.backward.gradient.chunks_mut(CHUNK).collect();
        let add = |i: usize, sum: &mut &mut [R]| {
            for shard in rest.iter() {
                let part = &shard.backward.gradient[i * CHUNK..][..sum.len()];
                vectorised(
                    #[inline(always)]
                    || {
                        for (sum, &x) in sum.iter_mut().zip(part) {
                            *sum += x;
                        }
                    },
                );
            }
        };
        each(&self.pool, &mut chunks, add);
    }

    /// Copies the gradient to `into`, as [`Device::gradient`].
    pub fn gradient(&self, into: &mut Vec<R>) {
        into.clear();
        into.extend_from_slice(&self.shards[0].backward.gradient);
    }

    /// Replaces the gradient, as [`Device::set_gradient`].
    ///
    /// # Panics
    ///
    /// Panics if its length is not that of the parameters, or before the first backward pass.
    pub fn set_gradient(&mut self, gradient: &[R]) {
        let own = &mut self.shards[0].backward.gradient;
        assert_eq!(gradient.len(), own.len(), "the shape's parameters");
        own.copy_from_slice(gradient);
    }

    /// Takes a step of the optimiser, as [`Device::step`].
    ///
    /// # Errors
    ///
    /// Returns [`StepError::Gradient`] when the gradient is not finite.
    pub fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError> {
        let gradient = self.shards[0].backward.gradient.as_slice();
        let mut squares: Vec<_> = gradient.chunks(CHUNK).map(|chunk| (chunk, 0.0)).collect();
        each(&self.pool, &mut squares, |_, (chunk, sum)| {
            *sum = sum_of_squares(chunk);
        });
        let norm = squares.iter().map(|(_, sum)| sum).sum::<f64>().sqrt() as f32;

        let update = RmsPropStep::new(optimiser, optimiser.scale(norm)?);
        let velocity = if optimiser.momentum > 0.0 {
            gradient.len()
        } else {
            0
        };
        self.velocity.resize(velocity, R::ZERO);
        let velocities = self.velocity.chunks_mut(CHUNK).map(Some);
        let mut chunks: Vec<_> = gradient
            .chunks(CHUNK)
            .zip(self.weights.parameters_mut().chunks_mut(CHUNK))
            .zip(self.mean_square.chunks_mut(CHUNK))
            .zip(velocities.chain(iter::repeat_with(|| None)))
            .collect();
        each(
            &self.pool,
            &mut chunks,
            |_, (((gradient, parameters), mean_square), velocity)| {
                update.apply(gradient, parameters, mean_square, velocity.as_deref_mut());
            },
        );
        self.pack();
        Ok(norm)
    }

    /// Updates the packed weights after the parameters have changed.
    fn pack(&mut self) {
        self.weights.pack();
        let lstm = &self.weights.layout().lstm;
        if let (Some(packed), Some(lstm)) = (&mut self.recurrent_transposed, lstm) {
            packed.fill(self.weights.matrix(&lstm.recurrent).transposed());
        }
    }
}

impl Device for Cpu<f32> {
    fn shape(&self) -> &Shape {
        self.shape()
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), DeviceFailure> {
        self.set_parameters(parameters);
        Ok(())
    }

    fn parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.parameters(into);
        Ok(())
    }

    fn moments(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.moments(into);
        Ok(())
    }

    fn set_moments(&mut self, moments: &[f32]) -> Result<(), DeviceFailure> {
        self.set_moments(moments);
        Ok(())
    }

    fn forward(
        &mut self,
        input: &Sequences<'_>,
        output: &mut Outputs,
    ) -> Result<(), DeviceFailure> {
        self.forward(input, output);
        Ok(())
    }

    fn backward(
        &mut self,
        input: &Sequences<'_>,
        d_logits: &[f32],
        d_baseline: &[f32],
    ) -> Result<(), DeviceFailure> {
        self.backward(input, d_logits, d_baseline);
        Ok(())
    }

    fn gradient(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.gradient(into);
        Ok(())
    }

    fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), DeviceFailure> {
        self.set_gradient(gradient);
        Ok(())
    }

    fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError> {
        self.step(optimiser)
    }
}

/// Calls `function` for every item, divided among the pool's threads.
fn each<T: Send>(
    pool: &Option<rayon::ThreadPool>,
    items: &mut [T],
    function: impl Fn(usize, &mut T) + Sync,
) {
    let call = |(i, item)| function(i, item);
    match pool {
        Some(pool) => pool.install(|| items.par_iter_mut().enumerate().for_each(call)),
        None => items.iter_mut().enumerate().for_each(call),
    }
}
