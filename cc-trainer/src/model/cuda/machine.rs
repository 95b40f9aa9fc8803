//! What computes: a memory of floats, matrix products and the kernels.

use super::{call::Call, matrix::Sgemm};

/// A GPU; in tests, a processor that does the same by the same kernels. What it is asked to do happens in order.
///
/// # Panics
///
/// All that it does panics when an array lies outside of its memory, and when the device fails (see
/// [`Cuda`](super::Cuda)).
pub(super) trait Machine: Send {
    /// Makes room for at least this many floats. Keeps what there is; what comes new holds anything.
    fn grow(&mut self, len: usize);

    /// Copies to its memory.
    fn write(&mut self, at: usize, from: &[f32]);

    /// Copies from its memory, after all that was asked for.
    fn read(&self, at: usize, into: &mut [f32]);

    /// A product in plain f32: inputs are not rounded to fewer bits.
    fn multiply(&mut self, product: &Sgemm);

    /// Runs a kernel.
    fn call(&mut self, call: &Call);
}
