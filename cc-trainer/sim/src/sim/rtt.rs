//! Round-trip time: smoothed, its deviation, its minimum, and the retransmission timeout from them.

use cc_ebpf::WindowedMin;

use crate::path::Nanos;

use super::timer::jiffies;

/// Least retransmission timeout above the smoothed RTT, µs (`TCP_RTO_MIN`).
pub(super) const RTO_MIN_US: u64 = 200_000;
/// Longest retransmission timeout, jiffies (`TCP_RTO_MAX`, 120 s).
const RTO_MAX: u64 = 30_000;
/// Timeout before the first sample, jiffies (`TCP_TIMEOUT_INIT`, 1 s).
const RTO_INITIAL: u64 = 250;
/// Window of the smallest RTT, ns (`tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Nanos = 300_000_000_000;

/// The estimator of RFC 6298 with Linux's slow decay of the deviation (`tcp_rtt_estimator`, net/ipv4/tcp_input.c).
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    /// Eighths of a µs; 0 before the first sample (`srtt_us`).
    smoothed: u32,
    /// Quarters of a µs (`mdev_us`).
    deviation: u32,
    /// Largest deviation of the present round, and of the ones before, quarters of a µs (`mdev_max_us`, `rttvar_us`).
    deviation_max: u32,
    variation: u32,
    /// The round ends when this segment is acknowledged (`rtt_seq`).
    round_end: u32,
    /// Jiffies, doubled with each timeout in a row (`icsk_rto`).
    timeout: u64,
    min: WindowedMin,
}

impl Rtt {
    /// Before the first sample.
    pub(super) fn new() -> Self {
        Self {
            smoothed: 0,
            deviation: 0,
            deviation_max: 0,
            variation: 0,
            round_end: 0,
            timeout: RTO_INITIAL,
            min: WindowedMin::default(),
        }
    }

    /// Takes a sample: of the first segment that an ACK acknowledged for the average, of the last one for the
    /// minimum, µs. `una` and `next` are the sender's, after the ACK.
    #[inline]
    pub(super) fn sample(&mut self, now: Nanos, first: u32, last: u32, una: u32, next: u32) {
        // The filter takes a time of 0 for none.
        self.min.update(now + 1, last.max(1), MIN_RTT_WINDOW);
        self.estimate(first, una, next);
        self.timeout = self.fresh_timeout();
    }

    /// Smoothed RTT, µs; 0 before the first sample.
    #[inline]
    pub(super) fn smoothed_us(&self) -> u32 {
        self.smoothed >> 3
    }

    /// Mean deviation, µs (`mdev_us >> 2`).
    #[inline]
    pub(super) fn deviation_us(&self) -> u32 {
        self.deviation >> 2
    }

    /// Smallest RTT of the last 300 s, µs; `u32::MAX` before the first sample (`tcp_min_rtt`).
    #[inline]
    pub(super) fn min_us(&self) -> u32 {
        match self.smoothed {
            0 => u32::MAX,
            _ => self.min.get(),
        }
    }

    /// The retransmission timeout, jiffies.
    #[inline]
    pub(super) fn timeout(&self) -> u64 {
        self.timeout
    }

    /// A timeout has fired: the next one comes after twice the time.
    pub(super) fn back_off(&mut self) {
        self.timeout = (self.timeout * 2).min(RTO_MAX);
    }

    fn fresh_timeout(&self) -> u64 {
        jiffies(u64::from((self.smoothed >> 3) + self.variation)).min(RTO_MAX)
    }

    #[inline]
    fn estimate(&mut self, sample: u32, una: u32, next: u32) {
        let sample = sample.clamp(1, 1 << 28);
        if self.smoothed == 0 {
            self.smoothed = sample << 3;
            self.deviation = sample << 1;
            self.variation = self.deviation.max(RTO_MIN_US as u32);
            self.deviation_max = self.variation;
            self.round_end = next;
            return;
        }
        let error = sample as i32 - (self.smoothed >> 3) as i32;
        self.smoothed = self.smoothed.saturating_add_signed(error).max(1);
        let mut change = error.abs() - (self.deviation >> 2) as i32;
        if error < 0 && change > 0 {
            // A falling RTT must not look like a growing deviation (Eifel algorithm).
            change >>= 3;
        }
        self.deviation = self.deviation.saturating_add_signed(change);
        if self.deviation > self.deviation_max {
            self.deviation_max = self.deviation;
            self.variation = self.variation.max(self.deviation_max);
        }
        if una > self.round_end {
            if self.deviation_max < self.variation {
                self.variation -= (self.variation - self.deviation_max) >> 2;
            }
            self.round_end = next;
            self.deviation_max = RTO_MIN_US as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_at_least_200_ms_above_the_smoothed_rtt() {
        let mut rtt = Rtt::new();
        assert_eq!((rtt.timeout(), rtt.min_us()), (250, u32::MAX));
        for round in 0..100 {
            rtt.sample(0, 20_000, 20_000, round, round + 1);
        }
        assert_eq!(rtt.smoothed_us(), 20_000);
        assert_eq!(rtt.timeout(), 55, "220 ms");
        rtt.back_off();
        assert_eq!(rtt.timeout(), 110);
        rtt.sample(0, 20_000, 20_000, 101, 102);
        assert_eq!(rtt.timeout(), 55, "a sample ends the back-off");
    }

    #[test]
    fn a_rising_rtt_raises_the_timeout_at_once() {
        let mut rtt = Rtt::new();
        rtt.sample(0, 100_000, 100_000, 0, 10);
        for una in 1..20 {
            rtt.sample(0, 100_000, 90_000, una, una + 10);
        }
        let before = rtt.timeout();
        rtt.sample(0, 2_000_000, 2_000_000, 20, 30);
        assert!(rtt.timeout() > before + 100);
        assert_eq!(rtt.min_us(), 90_000);
    }
}
