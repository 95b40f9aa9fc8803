//! Choosing and opening a device.

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
