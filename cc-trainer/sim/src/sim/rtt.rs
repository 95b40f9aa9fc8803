//! The RTT estimator: smoothed RTT, its mean deviation and minimum, and the retransmission timeout
//! that follows from them (Linux 6.18, net/ipv4/tcp_input.c).

use cc_ebpf::WindowedMin;

use crate::path::Nanos;

use super::timer::jiffies;

/// Shortest part of the retransmission timeout above the smoothed RTT, µs (`TCP_RTO_MIN`).
pub(super) const RTO_MIN_US: u64 = 200_000;
/// Longest retransmission timeout, jiffies (`TCP_RTO_MAX`, 120 s).
const RTO_MAX: u64 = 30_000;
/// Retransmission timeout before the first sample, jiffies (`TCP_TIMEOUT_INIT`, 1 s).
const TIMEOUT_INIT: u64 = 250;
/// Time for which a smallest RTT counts, ns (`tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Nanos = 300_000_000_000;

/// The estimator of RFC 6298 with Linux's slow decay of the deviation (`tcp_rtt_estimator`).
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    /// Smoothed RTT in eighths of a µs; 0 before the first sample (`srtt_us`).
    srtt_us: u32,
    /// Mean deviation in quarters of a µs (`mdev_us`).
    mdev_us: u32,
    /// Largest mean deviation of the present round trip, and the decaying one that the timeout is
    /// computed from, in quarters of a µs (`mdev_max_us`, `rttvar_us`).
    mdev_max_us: u32,
    rttvar_us: u32,
    /// The round trip ends when this segment is acknowledged (`rtt_seq`).
    rtt_seq: u32,
    /// Retransmission timeout in jiffies, doubled with each timeout in a row (`icsk_rto`).
    rto: u64,
    rtt_min: WindowedMin,
}

impl Rtt {
    /// Creates an estimator without samples.
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

    /// Adds a sample, µs: `first` is the RTT of the first segment that the ACK acknowledged, which
    /// the smoothed RTT takes, `last` that of the last one, which the minimum takes. `una` and
    /// `next` are `snd_una` and `snd_nxt` after the ACK.
    #[inline]
    pub(super) fn sample(&mut self, now: Nanos, first: u32, last: u32, una: u32, next: u32) {
        // To the filter, a time of 0 means that there is no sample.
        self.rtt_min.update(now + 1, last.max(1), MIN_RTT_WINDOW);
        self.rtt_estimator(first, una, next);
        self.rto = self.rto_of_samples();
    }

    /// Smoothed RTT in µs; 0 before the first sample (`srtt_us >> 3`).
    #[inline]
    pub(super) fn srtt_us(&self) -> u32 {
        self.srtt_us >> 3
    }

    /// Mean deviation in µs (`mdev_us >> 2`, which TCP_INFO reports as `tcpi_rttvar`).
    #[inline]
    pub(super) fn mdev_us(&self) -> u32 {
        self.mdev_us >> 2
    }

    /// Smallest RTT of the last 300 s in µs; `u32::MAX` before the first sample (`tcp_min_rtt`).
    #[inline]
    pub(super) fn min_rtt_us(&self) -> u32 {
        match self.srtt_us {
            0 => u32::MAX,
            _ => self.rtt_min.get(),
        }
    }

    /// Retransmission timeout in jiffies (`icsk_rto`).
    #[inline]
    pub(super) fn rto(&self) -> u64 {
        self.rto
    }

    /// Doubles the timeout after it has fired.
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
            // A falling RTT must not look like a growing deviation, as in the Eifel algorithm.
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
