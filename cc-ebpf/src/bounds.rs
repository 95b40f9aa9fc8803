//! Minimum and maximum, each as a single branch, and choices without one.
//!
//! For `Ord::min` and `Ord::max` LLVM emits conditional moves, which some BPF instruction sets
//! lower to calls of helpers.

use core::hint::black_box;

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

/// All ones where the value is greater than the limit, otherwise 0, without a branch, both of
/// whose paths the verifier would follow to the end: the black box keeps LLVM from making one.
/// Values have less than 63 bits.
#[inline(always)]
pub(crate) fn exceeds(value: u64, limit: u32) -> u32 {
    black_box((u64::from(limit).wrapping_sub(value) as i64 >> 63) as u32)
}

/// The first value where the mask is all ones, the second where it is 0.
#[inline(always)]
pub(crate) fn select(mask: u32, first: u32, second: u32) -> u32 {
    first & mask | second & !mask
}
