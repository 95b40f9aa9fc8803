//! The machine that the passes are composed for: a memory of floats, matrix products and kernels.

use super::{call::Call, matrix::Sgemm};
use crate::model::DeviceFailure;

/// A GPU, or in tests the CPU with the same kernels. Operations take effect in
/// the order of the calls.
///
/// # Errors
///
/// Every method returns an error if the device fails (see [`Cuda`](super::Cuda)).
///
/// # Panics
///
/// Every method panics if an array is not within the memory.
pub(super) trait Machine: Send {
    /// Makes room for at least this many floats. The content is kept; that
    /// of new memory is unspecified.
    fn grow(&mut self, len: usize) -> Result<(), DeviceFailure>;

    /// Copies floats to the memory, beginning at index `at`.
    fn write(&mut self, at: usize, from: &[f32]) -> Result<(), DeviceFailure>;

    /// Copies floats from the memory, beginning at index `at`, once all operations before are done.
    fn read(&self, at: usize, into: &mut [f32]) -> Result<(), DeviceFailure>;

    /// Computes a matrix product in plain f32: inputs are not rounded to fewer bits.
    fn multiply(&mut self, product: &Sgemm) -> Result<(), DeviceFailure>;

    /// Runs a kernel on its arguments.
    fn call(&mut self, call: &Call) -> Result<(), DeviceFailure>;
}
