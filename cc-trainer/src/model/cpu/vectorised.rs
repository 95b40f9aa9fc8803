//! Loops in the best instructions that the processor has.

use pulp::{Arch, Simd, WithSimd};

/// Calls a function that was compiled for each instruction set, AVX-512 or AVX2 for instance, in its best version here.
/// Only what is inlined into it counts: the closure, and what it calls, must be `#[inline(always)]`.
#[inline(always)]
pub(super) fn vectorised(function: impl FnMut()) {
    Arch::new().dispatch(Vectorised(function));
}

/// Not the closure itself, for which pulp would go through `FnOnce`: an outlined function without the instructions.
struct Vectorised<F>(F);

impl<F: FnMut()> WithSimd for Vectorised<F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        (self.0)();
    }
}
