//! The network on an NVIDIA GPU: products by cuBLAS, the rest by a few kernels that NVRTC compiles when the device is
//! opened. Parameters, gradient, moments and activations stay there; batches and outputs cross.
//!
//! CUDA's libraries are looked for when a device is opened, so a program built with the feature `cuda` starts, and
//! learns on processors, without them. Where the passes are put together knows no GPU: tests run them, kernels included,
//! on a processor.

mod batch;
mod call;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(test)]
mod host;
mod machine;
mod matrix;
mod network;
#[cfg(test)]
mod tests;

#[cfg(feature = "cuda")]
pub use self::{
    device::{Cuda, Unavailable},
    gpu::available,
};
