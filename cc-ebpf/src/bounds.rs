//! Minimum and maximum, each as a single branch.
//!
//! For `Ord::min` and `Ord::max` LLVM emits conditional moves, which some BPF instruction sets
//! lower to calls of helpers.

/// The smaller of `value` and `limit`.
#[inline(always)]
pub(crate) fn at_most(value: u32, limit: u32) -> u32 {
    if value > limit { limit } else { value }
}

/// The smaller of `value` and `limit`, for 64 bits.
#[inline(always)]
pub(crate) fn at_most_64(value: u64, limit: u64) -> u64 {
    if value > limit { limit } else { value }
}

/// The larger of `value` and `limit`.
#[inline(always)]
pub(crate) fn at_least(value: u32, limit: u32) -> u32 {
    if value < limit { limit } else { value }
}
