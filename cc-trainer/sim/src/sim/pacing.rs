//! Pacing: when the next burst may leave, and how many segments it has (Linux 6.18,
//! net/ipv4/tcp_output.c).

use crate::path::Nanos;

use super::wire::MSS;

/// A burst is what the pacing rate sends in a 1024th of a second (`sk_pacing_shift` is 10).
const PACING_SHIFT: u32 = 10;
/// Largest burst in bytes: a GSO packet without headers (`sk_gso_max_size`).
const GSO_MAX_BYTES: u64 = 65_535 - 320;
/// Segments that are sent before pacing begins (`tcp_update_skb_after_send`).
const UNPACED_SEGMENTS: u64 = 10;
/// Bursts get an allowance that halves with every 512 µs of the smallest RTT (`tcp_tso_rtt_log`).
const TSO_RTT_LOG: u32 = 9;

/// The pacing clock of a connection (`tcp_wstamp_ns` and `sk_pacing_rate`).
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    /// Rate in bytes/s; `None` before the first RTT sample, when bursts are as large as they can
    /// be.
    rate: Option<u64>,
    /// Whether the rate also spaces departures, instead of only sizing bursts.
    paced: bool,
    /// When the last burst left or the next one may leave, whichever is later, ns.
    wstamp_ns: Nanos,
}

impl Pacing {
    /// Creates a pacing clock without a rate.
    pub(super) fn new() -> Self {
        Self {
            rate: None,
            paced: false,
            wstamp_ns: 0,
        }
    }

    /// The congestion control paces at `rate`, bytes/s.
    #[inline]
    pub(super) fn pace_at(&mut self, rate: u64) {
        self.rate = Some(rate);
        self.paced = true;
    }

    /// Derives the rate that sizes the bursts of a connection that is not paced: twice the cwnd per
    /// round trip in slow start, 1.2 times the cwnd after it (`tcp_update_pacing_rate`).
    #[inline]
    pub(super) fn update_rate(&mut self, cwnd: u32, ssthresh: u32, packets_out: u32, srtt_us: u32) {
        self.paced = false;
        if srtt_us == 0 {
            return;
        }
        let percent = if cwnd < ssthresh / 2 { 200 } else { 120 };
        let bytes = u64::from(MSS) * u64::from(cwnd.max(packets_out));
        self.rate = Some(bytes * percent * 10_000 / u64::from(srtt_us));
    }

    /// Largest burst in segments (`tcp_tso_autosize`), at least `at_least`.
    #[inline]
    pub(super) fn tso_segments(&self, min_rtt_us: u32, at_least: u32) -> u32 {
        let Some(rate) = self.rate else {
            return (GSO_MAX_BYTES / u64::from(MSS)) as u32;
        };
        let mut bytes = rate >> PACING_SHIFT;
        let shift = min_rtt_us >> TSO_RTT_LOG;
        if shift < u32::BITS {
            bytes += GSO_MAX_BYTES >> shift;
        }
        ((bytes.min(GSO_MAX_BYTES) / u64::from(MSS)) as u32).max(at_least)
    }

    /// Rate in bytes/s that paces or only sizes bursts; `None` before the first RTT sample.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Whether the rate spaces departures.
    pub(super) fn is_paced(&self) -> bool {
        self.paced
    }

    /// The time at which the next burst may leave; `None` when it may leave now
    /// (`tcp_pacing_check`).
    #[inline]
    pub(super) fn check(&self, now: Nanos) -> Option<Nanos> {
        (self.paced && self.wstamp_ns > now).then_some(self.wstamp_ns)
    }

    /// When the last burst left or the next one may leave, whichever is later (`tcp_wstamp_ns`).
    #[inline]
    pub(super) fn wstamp_ns(&self) -> Nanos {
        self.wstamp_ns
    }

    /// Takes note of a burst with `payload` bytes that leaves at `now`, after `sent` segments
    /// before it (`tcp_update_skb_after_send`).
    #[inline]
    pub(super) fn update_after_send(&mut self, now: Nanos, payload: u64, sent: u64) {
        let prior = self.wstamp_ns;
        self.wstamp_ns = self.wstamp_ns.max(now);
        let Some(rate) = self.rate.filter(|&rate| self.paced && rate > 0) else {
            return;
        };
        if sent < UNPACED_SEGMENTS {
            return;
        }
        let gap = (u128::from(payload) * 1_000_000_000 / u128::from(rate)).min(1 << 40) as Nanos;
        // A late departure is made up for, by up to half of the gap.
        let credit = (self.wstamp_ns - prior).min(gap / 2);
        self.wstamp_ns += gap - credit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_grow_with_the_rate_from_two_segments() {
        let mut pacing = Pacing::new();
        assert_eq!(pacing.tso_segments(20_000, 2), 45, "no rate, no limit");
        pacing.update_rate(10, u32::MAX, 0, 20_000);
        assert_eq!(pacing.tso_segments(20_000, 2), 2);
        pacing.update_rate(1_000, 500, 0, 100_000);
        assert_eq!(pacing.tso_segments(100_000, 2), 11, "17.4 MB/s");
        assert!(pacing.tso_segments(1_000, 2) > 20, "a short path");
    }

    #[test]
    fn departures_are_spaced_after_the_first_ten_segments() {
        let mut pacing = Pacing::new();
        pacing.pace_at(1_448_000);
        pacing.update_after_send(0, 9 * 1_448, 0);
        assert_eq!(pacing.check(0), None);
        pacing.update_after_send(5, 1_448, 10);
        assert_eq!(pacing.check(5), Some(1_000_000), "less the credit of 5 ns");
        assert_eq!(pacing.check(1_000_000), None);
        pacing.update_after_send(3_000_000, 1_448, 11);
        assert_eq!(pacing.check(3_000_000), Some(3_500_000), "credit of a half");
    }
}
