//! The network on an NVIDIA GPU: matrix products by cuBLAS, everything else by a few kernels that
//! NVRTC compiles when the device is opened.
//!
//! Parameters, gradient, moments and activations stay on the GPU; inputs and outputs are copied.
//! CUDA's libraries are loaded when a device is opened, so that a program with the feature `cuda`
//! starts, and learns on the CPU, without them. The passes are composed independently of a GPU
//! (`machine.rs`): tests run them, kernels included, on the CPU.

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
mod try_out;
#[cfg(feature = "cuda")]
mod unavailable;
mod workspace;

#[cfg(feature = "cuda")]
pub use self::{device::Cuda, gpu::available, unavailable::Unavailable};
