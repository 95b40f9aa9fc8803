//! The token bucket ahead of the queue.

use crate::scenario::Policer;

use super::Nanos;

/// Tokens per byte. A token is a billionth of a bit, so that a whole number of tokens arrives per
/// nanosecond and no fraction is ever lost: the rate is exact to the bit/s that it is rounded to.
const TOKENS_PER_BYTE: u128 = 8_000_000_000;

/// A token bucket at a rate rounded to 1 bit/s.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_nanosecond: u128,
    capacity: u128,
    tokens: u128,
    /// Time at which `tokens` was computed.
    counted: Nanos,
}

impl TokenBucket {
    /// Creates a full bucket for a policer.
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

    /// Takes the tokens of a packet and returns true, or takes none and returns false when there
    /// are too few.
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
        // 7.3 Mbit/s: the tokens of a packet take 1 643 835.6 ns to arrive.
        let mut bucket = TokenBucket::new(&Policer {
            bits_per_second: 7.3e6,
            burst: 30_000,
        });
        let burst = (0..100).filter(|_| bucket.passes(0, 1500)).count();
        assert_eq!(burst, 20);
        // A packet is offered every 100 µs for an hour: only the tokens that arrived may pass
        // packets.
        let passed = (1..=36_000_000u64)
            .filter(|tick| bucket.passes(tick * 100_000, 1500))
            .count();
        assert_eq!(passed, (7.3e6 * 3600.0 / 12_000.0) as usize);
    }

    #[test]
    fn a_bucket_never_holds_more_than_its_burst() {
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
