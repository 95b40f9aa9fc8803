//! Token buckets: of the policer ahead of the queue, and of a shaper that serves it.

use super::Nanos;

/// Tokens per byte. A token is a billionth of a bit, so that a whole number of tokens arrives per
/// nanosecond and no fraction is ever lost: the rate is exact to the bit/s that it is rounded to.
const TOKENS_PER_BYTE: i128 = 8_000_000_000;

/// A token bucket at a rate rounded to 1 bit/s.
#[derive(Debug)]
pub(super) struct TokenBucket {
    per_nanosecond: i128,
    capacity: i128,
    /// Negative after a packet that was larger than the bucket.
    tokens: i128,
    /// Time at which `tokens` was computed.
    counted: Nanos,
}

impl TokenBucket {
    /// Creates a full bucket for `burst` bytes.
    pub(super) fn new(bits_per_second: f64, burst: u64) -> Self {
        let capacity = i128::from(burst) * TOKENS_PER_BYTE;
        Self {
            per_nanosecond: i128::from(bits_per_second.round() as u64),
            capacity,
            tokens: capacity,
            counted: 0,
        }
    }

    /// Takes the tokens of a packet and returns true, or takes none and returns false when there
    /// are too few.
    pub(super) fn passes(&mut self, now: Nanos, bytes: u32) -> bool {
        self.count(now);
        let needed = i128::from(bytes) * TOKENS_PER_BYTE;
        let passes = self.tokens >= needed;
        if passes {
            self.tokens -= needed;
        }
        passes
    }

    /// Takes the tokens of a packet as soon as there are enough from `now` on, and returns when
    /// that is. A packet that is larger than the bucket needs a full one.
    pub(super) fn take(&mut self, now: Nanos, bytes: u32) -> Nanos {
        self.count(now);
        let needed = i128::from(bytes) * TOKENS_PER_BYTE;
        let missing = needed.min(self.capacity) - self.tokens;
        let wait = match missing > 0 {
            // Rounded up to a whole nanosecond. Without a rate it is never.
            true => (missing + self.per_nanosecond - 1) / self.per_nanosecond.max(1),
            false => 0,
        };
        let at = now.saturating_add(Nanos::try_from(wait).unwrap_or(Nanos::MAX));
        self.count(at);
        self.tokens -= needed;
        at
    }

    /// Adds the tokens that have come until `now`.
    fn count(&mut self, now: Nanos) {
        let come = i128::from(now.saturating_sub(self.counted)) * self.per_nanosecond;
        self.tokens = (self.tokens + come).min(self.capacity);
        self.counted = self.counted.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_and_rate_are_exact_to_the_packet() {
        // 7.3 Mbit/s: the tokens of a packet take 1 643 835.6 ns to arrive.
        let mut bucket = TokenBucket::new(7.3e6, 30_000);
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
        let mut bucket = TokenBucket::new(1e9, 4500);
        let day = 86_400_000_000_000;
        assert!(!bucket.passes(day, 4501));
        assert!(bucket.passes(day, 4500));
        assert!(!bucket.passes(day, 1));
        assert!(!bucket.passes(day + 7, 1));
        assert!(bucket.passes(day + 8, 1), "8 ns at 1 Gbit/s are a byte");
    }

    #[test]
    fn who_waits_gets_burst_and_rate_exactly() {
        let mut bucket = TokenBucket::new(7.3e6, 30_000);
        let mut now = 0;
        let mut at = |packets: u64| {
            for _ in 0..packets {
                now = bucket.take(now, 1500);
            }
            now
        };
        assert_eq!(at(20), 0);
        assert_eq!(at(1), 1_643_836);
        // Rounding up costs no rate: 73 packets are 876,000 bits, 120 ms.
        assert_eq!(at(72), 120_000_000);
        assert_eq!(at(73 * 1_000), 120_120_000_000);
    }

    #[test]
    fn a_packet_larger_than_the_bucket_leaves_a_debt() {
        let mut bucket = TokenBucket::new(12e6, 1500);
        assert_eq!(bucket.take(0, 4500), 0);
        assert_eq!(bucket.take(0, 1500), 3_000_000);
    }
}
