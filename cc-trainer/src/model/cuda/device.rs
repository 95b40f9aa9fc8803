//! The GPU as a [`Device`].

use super::{gpu::Gpu, network::DeviceNetwork, unavailable::Unavailable};
use crate::model::{Device, DeviceFailure, Outputs, RmsProp, Sequences, Shape, StepError};

/// A network on one NVIDIA GPU.
///
/// It computes in f32 throughout, not in TF32, so that results are those of
/// [`Cpu`](crate::model::Cpu) but for the order of additions. On one kind of GPU with one version
/// of cuBLAS the same calls give the same bits.
///
/// A GPU fails when it is removed, reset, or out of memory. Nothing can be read from it then, and a
/// learner has to continue from its last checkpoint. Faults that exist from the start are errors of
/// [`Cuda::new`].
#[derive(Debug)]
pub struct Cuda {
    network: DeviceNetwork<Gpu>,
}

impl Cuda {
    /// A network with the parameters of [`initialise`](crate::model::initialise) with seed 0, on
    /// GPU number `ordinal`, counted from 0 as the driver does.
    ///
    /// # Errors
    ///
    /// Returns the reason why this GPU cannot be used.
    pub fn new(shape: &Shape, ordinal: usize) -> Result<Self, Unavailable> {
        let network = DeviceNetwork::new(Gpu::new(ordinal)?, shape);
        Ok(Self {
            network: network.map_err(|failure| Unavailable::Failed(failure.to_string()))?,
        })
    }
}

impl Device for Cuda {
    fn shape(&self) -> &Shape {
        self.network.shape()
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), DeviceFailure> {
        self.network.set_parameters(parameters)
    }

    fn parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.network.parameters(into)
    }

    fn moments(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.network.moments(into)
    }

    fn set_moments(&mut self, moments: &[f32]) -> Result<(), DeviceFailure> {
        self.network.set_moments(moments)
    }

    fn forward(
        &mut self,
        input: &Sequences<'_>,
        output: &mut Outputs,
    ) -> Result<(), DeviceFailure> {
        self.network.forward(input, output)
    }

    fn backward(
        &mut self,
        input: &Sequences<'_>,
        d_logits: &[f32],
        d_baseline: &[f32],
    ) -> Result<(), DeviceFailure> {
        self.network.backward(input, d_logits, d_baseline)
    }

    fn gradient(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.network.gradient(into)
    }

    fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), DeviceFailure> {
        self.network.set_gradient(gradient)
    }

    fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError> {
        self.network.step(optimiser)
    }
}
