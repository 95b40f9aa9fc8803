//! The reasons why a GPU may not be usable.

use std::fmt::Display;

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
