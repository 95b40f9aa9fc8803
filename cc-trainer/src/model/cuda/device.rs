//! The GPU as a [`Device`], and the reasons why it may not be usable.

use std::fmt::Display;

use super::{gpu::Gpu, network::DeviceNetwork};
use crate::model::{Device, Outputs, RmsProp, Sequences, Shape};

/// A network on one NVIDIA GPU.
///
/// It computes in f32 throughout, not in TF32, so that results are those of
/// [`Cpu`](crate::model::Cpu) but for the order of additions. On one kind of GPU with one version
/// of cuBLAS the same calls give the same bits.
///
/// # Panics
///
/// Every method panics if the GPU fails: removed, reset, or out of memory. Nothing can be read from
/// it then, and a learner has to continue from its last checkpoint. Faults that exist from the
/// start are errors of [`Cuda::new`].
#[derive(Debug)]
pub struct Cuda {
    network: DeviceNetwork<Gpu>,
}

/// Why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The library of NVIDIA's driver is not installed.
    #[error(
        "there is no NVIDIA driver (libcuda.so.1); install it, in a container pass it in with the \
         GPU"
    )]
    NoDriver,
    /// The driver is installed but reports an error.
    #[error("NVIDIA's driver reports {0}")]
    Driver(String),
    /// The driver shows no GPU of this number.
    #[error(
        "there is no GPU {ordinal}: NVIDIA's driver shows {gpus}; CUDA_VISIBLE_DEVICES may hide \
         some"
    )]
    NoGpu {
        /// Number of the GPU that was asked for, from 0.
        ordinal: usize,
        /// Number of GPUs that the driver shows.
        gpus: usize,
    },
    /// NVRTC, which compiles the kernels, is not installed.
    #[error(
        "there is no NVRTC (libnvrtc.so, .13 or .12); install the CUDA toolkit, or put the \
         directory that holds it in LD_LIBRARY_PATH"
    )]
    NoCompiler,
    /// cuBLAS, which computes matrix products, is not installed.
    #[error(
        "there is no cuBLAS (libcublas.so, .13 or .12); install the CUDA toolkit, or put the \
         directory that holds it in LD_LIBRARY_PATH"
    )]
    NoBlas,
    /// NVRTC cannot compile the kernels; it is probably older, or much newer, than the GPU.
    #[error(
        "NVRTC cannot compile the kernels for {architecture}, does this version of CUDA support \
         the GPU? {reason}"
    )]
    Kernels {
        /// Architecture of the GPU, such as `sm_90`.
        architecture: String,
        /// The message that NVRTC returned.
        reason: String,
    },
    /// A library of CUDA failed to initialise.
    #[error("CUDA cannot be set up: {0}")]
    Failed(String),
}

impl Unavailable {
    pub(super) fn driver(error: impl Display) -> Self {
        Self::Driver(error.to_string())
    }
}

impl Cuda {
    /// A network with the parameters of [`initialise`](crate::model::initialise) with seed 0, on
    /// GPU number `ordinal`, counted from 0 as the driver does.
    ///
    /// # Errors
    ///
    /// Returns the reason why this GPU cannot be used.
    pub fn new(shape: &Shape, ordinal: usize) -> Result<Self, Unavailable> {
        Ok(Self {
            network: DeviceNetwork::new(Gpu::new(ordinal)?, shape),
        })
    }
}

impl Device for Cuda {
    fn shape(&self) -> &Shape {
        self.network.shape()
    }

    fn set_parameters(&mut self, parameters: &[f32]) {
        self.network.set_parameters(parameters);
    }

    fn parameters(&self, into: &mut Vec<f32>) {
        self.network.parameters(into);
    }

    fn moments(&self, into: &mut Vec<f32>) {
        self.network.moments(into);
    }

    fn set_moments(&mut self, moments: &[f32]) {
        self.network.set_moments(moments);
    }

    fn forward(&mut self, input: &Sequences<'_>, output: &mut Outputs) {
        self.network.forward(input, output);
    }

    fn backward(&mut self, input: &Sequences<'_>, d_logits: &[f32], d_baseline: &[f32]) {
        self.network.backward(input, d_logits, d_baseline);
    }

    fn gradient(&self, into: &mut Vec<f32>) {
        self.network.gradient(into);
    }

    fn step(&mut self, optimiser: &RmsProp) -> f32 {
        self.network.step(optimiser)
    }
}
