//! [`Device`] on a GPU, and why there may be none.

use std::fmt::Display;

use super::{gpu::Gpu, network::Network};
use crate::model::{Device, Outputs, RmsProp, Sequences, Shape};

/// A network on one NVIDIA GPU. Computes in f32 throughout, not in TF32, so that results are those of
/// [`Cpu`](crate::model::Cpu) but for the order of sums; on one kind of GPU with one version of cuBLAS the same calls give the
/// same bits.
///
/// # Panics
///
/// Every method, when the GPU fails at what it was asked for: taken away, reset, out of memory. Nothing can be saved
/// from it then, and a learner goes on from its last checkpoint. What can be wrong from the start, [`Cuda::new`]
/// reports.
#[derive(Debug)]
pub struct Cuda {
    network: Network<Gpu>,
}

/// Why there is no GPU to compute on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The library of NVIDIA's driver is not here.
    #[error(
        "there is no NVIDIA driver (libcuda.so.1); install it, in a container pass it in with the GPU"
    )]
    NoDriver,
    /// The driver is here but does not work.
    #[error("NVIDIA's driver reports {0}")]
    Driver(String),
    /// The driver does not know this GPU.
    #[error(
        "there is no GPU {ordinal}: NVIDIA's driver shows {gpus}; CUDA_VISIBLE_DEVICES may hide some"
    )]
    NoGpu {
        /// Which was asked for, from 0.
        ordinal: usize,
        /// How many there are.
        gpus: usize,
    },
    /// The compiler of kernels is not here.
    #[error(
        "there is no NVRTC (libnvrtc.so, .13 or .12); install the CUDA toolkit, or put the directory that holds it in \
         LD_LIBRARY_PATH"
    )]
    NoCompiler,
    /// The library of matrix products is not here.
    #[error(
        "there is no cuBLAS (libcublas.so, .13 or .12); install the CUDA toolkit, or put the directory that holds it \
         in LD_LIBRARY_PATH"
    )]
    NoBlas,
    /// NVRTC refuses the kernels: most likely it is older, or much newer, than the GPU.
    #[error(
        "NVRTC cannot compile the kernels for {architecture}, does this version of CUDA support the GPU? {reason}"
    )]
    Kernels {
        /// Such as `sm_90`.
        architecture: String,
        /// NVRTC's words.
        reason: String,
    },
    /// Something in CUDA's libraries failed on being set up.
    #[error("CUDA cannot be set up: {0}")]
    Failed(String),
}

impl Unavailable {
    pub(super) fn driver(error: impl Display) -> Self {
        Self::Driver(error.to_string())
    }
}

impl Cuda {
    /// A network with parameters from [`initialise`](crate::model::initialise) with seed 0, on one of the GPUs that the
    /// driver counts from 0.
    ///
    /// # Errors
    ///
    /// What is missing, when this GPU cannot be computed on.
    pub fn new(shape: &Shape, ordinal: usize) -> Result<Self, Unavailable> {
        Ok(Self {
            network: Network::new(Gpu::new(ordinal)?, shape),
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
