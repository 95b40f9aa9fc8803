//! Which device computes.

use serde::{Deserialize, Serialize};

use super::{Cpu, Device, Shape};

/// Where a learner computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// On processors.
    #[default]
    Cpu,
    /// On the first NVIDIA GPU.
    Cuda,
}

/// Why a device cannot be had. Each says all of it in one line, and so has no source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The threads cannot be started.
    #[error("cannot start {threads} threads for the device cpu: {reason}; ask for fewer")]
    Threads {
        /// How many.
        threads: usize,
        /// Why not.
        reason: rayon::ThreadPoolBuildError,
    },
    /// The program was built without it.
    #[error(
        "this program was built without the device cuda; build it with `cargo xtask build`, or with `--features \
         cc-trainer/cuda`, or learn on the device cpu"
    )]
    NotBuilt,
    /// There is no GPU to compute on.
    #[cfg(feature = "cuda")]
    #[error("no device cuda: {0}; or learn on the device cpu")]
    Cuda(super::cuda::Unavailable),
}

/// A network with parameters from [`initialise`](super::initialise) with seed 0, on a device of this kind. Only
/// processors have threads.
///
/// # Errors
///
/// When it cannot be had here, with the remedy.
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
    fn each_device_opens_or_says_what_is_missing() {
        let shape = Shape {
            observation: 3,
            hidden: vec![4],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
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
