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

/// The sum of both, or `u32::MAX`: by the carry and not by a branch, which would leave the verifier
/// with a known value of the sum to follow.
#[inline(always)]
pub(crate) fn sum(a: u32, b: u32) -> u32 {
    let sum = u64::from(a) + u64::from(b);
    let carry = (sum >> 32) as u32;
    sum as u32 | carry.wrapping_neg()
}

/// The larger of `value` and `limit`.
#[inline(always)]
pub(crate) fn at_least(value: u32, limit: u32) -> u32 {
    if value < limit { limit } else { value }
}
