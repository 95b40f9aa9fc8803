//! Round-trip time: smoothed, its deviation, its minimum, and the retransmission timeout from them.

use cc_ebpf::WindowedMin;

use crate::path::Nanos;

use super::timer::jiffies;

/// Least retransmission timeout above the smoothed RTT, µs (`TCP_RTO_MIN`).
pub(super) const RTO_MIN_US: u64 = 200_000;
/// Longest retransmission timeout, jiffies (`TCP_RTO_MAX`, 120 s).
const RTO_MAX: u64 = 30_000;
/// Timeout before the first sample, jiffies (`TCP_TIMEOUT_INIT`, 1 s).
const TIMEOUT_INIT: u64 = 250;
/// Window of the smallest RTT, ns (`tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Nanos = 300_000_000_000;

/// The estimator of RFC 6298 with Linux's slow decay of the deviation (`tcp_rtt_estimator`, net/ipv4/tcp_input.c).
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    /// Eighths of a µs; 0 before the first sample (`srtt_us`).
    srtt_us: u32,
    /// Quarters of a µs (`mdev_us`).
    mdev_us: u32,
    /// Largest deviation of the present round, and of the ones before, quarters of a µs (`mdev_max_us`, `rttvar_us`).
    mdev_max_us: u32,
    rttvar_us: u32,
    /// The round ends when this segment is acknowledged (`rtt_seq`).
    rtt_seq: u32,
    /// Jiffies, doubled with each timeout in a row (`icsk_rto`).
    rto: u64,
    rtt_min: WindowedMin,
}

impl Rtt {
    /// Before the first sample.
    pub(super) fn new() -> Self {
        Self {
            srtt_us: 0,
            mdev_us: 0,
            mdev_max_us: 0,
            rttvar_us: 0,
            rtt_seq: 0,
            rto: TIMEOUT_INIT,
            rtt_min: WindowedMin::default(),
        }
    }

    /// Takes a sample: of the first segment that an ACK acknowledged for the average, of the last one for the
    /// minimum, µs. `una` and `next` are the sender's, after the ACK.
    #[inline]
    pub(super) fn sample(&mut self, now: Nanos, first: u32, last: u32, una: u32, next: u32) {
        // The filter takes a time of 0 for none.
        self.rtt_min.update(now + 1, last.max(1), MIN_RTT_WINDOW);
        self.rtt_estimator(first, una, next);
        self.rto = self.rto_of_samples();
    }

    /// Smoothed RTT, µs; 0 before the first sample.
    #[inline]
    pub(super) fn srtt_us(&self) -> u32 {
        self.srtt_us >> 3
    }

    /// Mean deviation, µs (`mdev_us >> 2`).
    #[inline]
    pub(super) fn mdev_us(&self) -> u32 {
        self.mdev_us >> 2
    }

    /// Smallest RTT of the last 300 s, µs; `u32::MAX` before the first sample (`tcp_min_rtt`).
    #[inline]
    pub(super) fn min_rtt_us(&self) -> u32 {
        match self.srtt_us {
            0 => u32::MAX,
            _ => self.rtt_min.get(),
        }
    }

    /// The retransmission timeout, jiffies.
    #[inline]
    pub(super) fn rto(&self) -> u64 {
        self.rto
    }

    /// A timeout has fired: the next one comes after twice the time.
    pub(super) fn back_off(&mut self) {
        self.rto = (self.rto * 2).min(RTO_MAX);
    }

    fn rto_of_samples(&self) -> u64 {
        jiffies(u64::from((self.srtt_us >> 3) + self.rttvar_us)).min(RTO_MAX)
    }

    #[inline]
    fn rtt_estimator(&mut self, sample: u32, una: u32, next: u32) {
        let sample = sample.clamp(1, 1 << 28);
        if self.srtt_us == 0 {
            self.srtt_us = sample << 3;
            self.mdev_us = sample << 1;
            self.rttvar_us = self.mdev_us.max(RTO_MIN_US as u32);
            self.mdev_max_us = self.rttvar_us;
            self.rtt_seq = next;
            return;
        }
        let error = sample as i32 - (self.srtt_us >> 3) as i32;
        self.srtt_us = self.srtt_us.saturating_add_signed(error).max(1);
        let mut change = error.abs() - (self.mdev_us >> 2) as i32;
        if error < 0 && change > 0 {
            // A falling RTT must not look like a growing deviation (Eifel algorithm).
            change >>= 3;
        }
        self.mdev_us = self.mdev_us.saturating_add_signed(change);
        if self.mdev_us > self.mdev_max_us {
            self.mdev_max_us = self.mdev_us;
            self.rttvar_us = self.rttvar_us.max(self.mdev_max_us);
        }
        if una > self.rtt_seq {
            if self.mdev_max_us < self.rttvar_us {
                self.rttvar_us -= (self.rttvar_us - self.mdev_max_us) >> 2;
            }
            self.rtt_seq = next;
            self.mdev_max_us = RTO_MIN_US as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_at_least_200_ms_above_the_smoothed_rtt() {
        let mut rtt = Rtt::new();
        assert_eq!((rtt.rto(), rtt.min_rtt_us()), (250, u32::MAX));
        for round in 0..100 {
            rtt.sample(0, 20_000, 20_000, round, round + 1);
        }
        assert_eq!(rtt.srtt_us(), 20_000);
        assert_eq!(rtt.rto(), 55, "220 ms");
        rtt.back_off();
        assert_eq!(rtt.rto(), 110);
        rtt.sample(0, 20_000, 20_000, 101, 102);
        assert_eq!(rtt.rto(), 55, "a sample ends the back-off");
    }

    #[test]
    fn a_rising_rtt_raises_the_timeout_at_once() {
        let mut rtt = Rtt::new();
        rtt.sample(0, 100_000, 100_000, 0, 10);
        for una in 1..20 {
            rtt.sample(0, 100_000, 90_000, una, una + 10);
        }
        let before = rtt.rto();
        rtt.sample(0, 2_000_000, 2_000_000, 20, 30);
        assert!(rtt.rto() > before + 100);
        assert_eq!(rtt.min_rtt_us(), 90_000);
    }
}
