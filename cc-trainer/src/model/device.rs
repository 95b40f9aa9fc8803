//! Choosing and opening a device, and how it fails.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Cpu, Device, Shape};

/// The kind of device that a learner computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The CPU, with one or more threads.
    #[default]
    Cpu,
    /// The first NVIDIA GPU that the driver shows.
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

/// A call that a device did not carry out: a GPU was removed or reset, or its memory is full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct DeviceFailure {
    /// What was asked of the device, such as `taking 12 MiB of its memory`.
    pub call: String,
    /// The error that the device returned.
    pub reason: String,
}

/// Why [`Device::step`] took no step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The device failed before or in the step.
    #[error(transparent)]
    Device(#[from] DeviceFailure),
    /// The gradient is not finite, or so large that its square is not.
    #[error("the gradient's norm is {norm}")]
    Gradient {
        /// Norm of the gradient before clipping.
        norm: f32,
    },
}

/// Why a device cannot be used. Every message is complete in one line, so that there is no source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The threads of the CPU device cannot be started.
    #[error("cannot start {threads} threads for the device cpu: {reason}; ask for fewer")]
    Threads {
        /// Number of threads that were asked for.
        threads: usize,
        /// The error of the thread pool.
        reason: rayon::ThreadPoolBuildError,
    },
    /// The program was built without the feature `cuda`.
    #[error(
        "this program was built without the device cuda; build it with `cargo xtask build`, or \
         with `--features cc-trainer/cuda`, or learn on the device cpu"
    )]
    NotBuilt,
    /// There is no usable GPU on this host.
    #[cfg(feature = "cuda")]
    #[error("no device cuda: {0}; or learn on the device cpu")]
    Cuda(super::cuda::Unavailable),
}

/// Opens a device with a network whose parameters are those of [`initialise`](super::initialise)
/// with seed 0. `threads` counts for the CPU only.
///
/// # Errors
///
/// Returns an error, with its remedy, when the device cannot be used on this host.
pub fn device(
    kind: DeviceKind,
    shape: &Shape,
    threads: usize,
) -> Result<Box<dyn Device>, DeviceError> {
    match kind {
        DeviceKind::Cpu => match Cpu::<f32>::new(shape, threads) {
            Ok(cpu) => Ok(Box::new(cpu)),
            Err(reason) => Err(DeviceError::Threads { threads, reason }),
        },
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => match super::cuda::Cuda::new(shape, 0) {
            Ok(cuda) => Ok(Box::new(cuda)),
            Err(error) => Err(DeviceError::Cuda(error)),
        },
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => Err(DeviceError::NotBuilt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Activation;

    #[test]
    fn each_kind_of_device_opens_or_names_the_remedy() {
        let shape = Shape {
            observation: 3,
            hidden: vec![4],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let cpu = device(DeviceKind::Cpu, &shape, 2).expect("processors");
        assert_eq!(*cpu.shape(), shape);
        match device(DeviceKind::Cuda, &shape, 1) {
            Ok(cuda) => assert_eq!(*cuda.shape(), shape),
            Err(error) => {
                let remedy = error.to_string();
                assert!(remedy.contains("device cpu"), "{remedy}");
            }
        }
    }
}
