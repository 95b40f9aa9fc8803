//! The token bucket in front of the queue.

use crate::scenario::Policer;

use super::Nanos;

/// A token is a billionth of a bit, so that an integer of them comes every nanosecond and no fraction is ever
/// lost: the rate is exact to the bit/s that it is rounded to.
const TOKENS_PER_BYTE: u128 = 8_000_000_000;

/// A bucket of tokens.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_nanosecond: u128,
    capacity: u128,
    tokens: u128,
    /// When `tokens` was counted.
    counted: Nanos,
}

impl TokenBucket {
    /// A full bucket.
    pub(super) fn new(policer: &Policer) -> Self {
        let capacity = u128::from(policer.burst) * TOKENS_PER_BYTE;
        let per_nanosecond = policer.bits_per_second.round() as u64;
        Self {
            per_nanosecond: per_nanosecond.into(),
            capacity,
            tokens: capacity,
            counted: 0,
        }
    }

    /// Takes a packet's tokens; false, and none are taken, when there are too few.
    pub(super) fn passes(&mut self, now: Nanos, bytes: u32) -> bool {
        let come = u128::from(now - self.counted) * self.per_nanosecond;
        let tokens = (self.tokens + come).min(self.capacity);
        let needed = u128::from(bytes) * TOKENS_PER_BYTE;
        self.counted = now;
        self.tokens = tokens.checked_sub(needed).unwrap_or(tokens);
        tokens >= needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_and_rate_are_exact_to_the_packet() {
        // 7.3 Mbit/s: a packet's tokens take 1 643 835.6 ns to come.
        let mut bucket = TokenBucket::new(&Policer {
            bits_per_second: 7.3e6,
            burst: 30_000,
        });
        let burst = (0..100).filter(|_| bucket.passes(0, 1500)).count();
        assert_eq!(burst, 20);
        // An hour, offered a packet every 100 µs: nothing but the tokens that came may pass.
        let passed = (1..=36_000_000u64)
            .filter(|tick| bucket.passes(tick * 100_000, 1500))
            .count();
        assert_eq!(passed, (7.3e6 * 3600.0 / 12_000.0) as usize);
    }

    #[test]
    fn never_holds_more_than_the_burst() {
        let mut bucket = TokenBucket::new(&Policer {
            bits_per_second: 1e9,
            burst: 4500,
        });
        let day = 86_400_000_000_000;
        assert!(!bucket.passes(day, 4501));
        assert!(bucket.passes(day, 4500));
        assert!(!bucket.passes(day, 1));
        assert!(!bucket.passes(day + 7, 1));
        assert!(bucket.passes(day + 8, 1), "8 ns at 1 Gbit/s are a byte");
    }
}
