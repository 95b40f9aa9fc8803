//! Loops in the best instruction set that the CPU has.

use pulp::{Arch, Simd, WithSimd};

/// Calls a closure that is compiled once per instruction set (AVX-512, AVX2 and so on), in the best
/// version for this CPU. That holds only for code that is inlined: the closure, and the functions
/// it calls, must be `#[inline(always)]`.
#[inline(always)]
pub(super) fn vectorised(function: impl FnMut()) {
    Arch::new().dispatch(Vectorised(function));
}

/// Wraps the closure: pulp would call it through `FnOnce`, an outlined function that is
/// compiled without the instruction set.
struct Vectorised<F>(F);

impl<F: FnMut()> WithSimd for Vectorised<F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        (self.0)();
    }
}
