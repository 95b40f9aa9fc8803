//! Westwood+ (Grieco and Mascolo, "Performance Evaluation and Comparison of Westwood+, New Reno,
//! and Vegas TCP Congestion Control", ACM CCR 34(2), 2004) as in Linux
//! (net/ipv4/tcp_westwood.c): Reno, but after a loss the cwnd is what the measured bandwidth
//! delivers in the smallest RTT. Losses that congestion did not cause then cost little.

use cc_ebpf::{AckSample, CwndState, reno};

use super::{Acked, CongestionControl, CwndEvent, RateSample};
use crate::path::Nanos;
use crate::sim::timer::{HZ, jiffies, tick};

/// Shortest time over which bandwidth is measured, ticks: 50 ms (`TCP_WESTWOOD_RTT_MIN`).
const SHORTEST: u64 = HZ / 20;
/// The RTT before the first sample, ticks: 20 s (`TCP_WESTWOOD_INIT_RTT`).
const INITIAL_RTT: u64 = 20 * HZ;

/// The state of Westwood+ for one connection (`struct westwood`).
#[derive(Clone, Debug)]
pub struct Westwood {
    bandwidth: Bandwidth,
    /// Tick at which the present measurement began (`rtt_win_sx`), and the bytes acknowledged since
    /// (`bk`).
    since: u64,
    bytes: u64,
    /// Bytes that duplicate ACKs have counted and no cumulative ACK has covered yet (`accounted`).
    ahead: u64,
    /// Newest and smallest RTT in ticks (`rtt`, `rtt_min`).
    rtt: u64,
    min_rtt: u64,
    /// Whether the next ACK is the first one (`first_ack`).
    first: bool,
    /// Whether the smallest RTT begins again with the next ACK (`reset_rtt_min`).
    renews_min_rtt: bool,
    /// Payload of a segment in bytes; 1 before the first ACK.
    mss: u64,
}

/// Low-pass filters of the bandwidth in bytes per tick, one behind the other (`bw_ns_est`,
/// `bw_est`).
#[derive(Clone, Copy, Debug, Default)]
struct Bandwidth {
    once: u64,
    twice: u64,
}

impl Westwood {
    /// Creates the control of a new connection.
    pub fn new() -> Self {
        Self {
            bandwidth: Bandwidth::default(),
            since: 0,
            bytes: 0,
            ahead: 0,
            rtt: INITIAL_RTT,
            min_rtt: INITIAL_RTT,
            first: true,
            renews_min_rtt: true,
            mss: 1,
        }
    }

    /// The cwnd in segments that the bandwidth fills without a queue (`tcp_westwood_bw_rttmin`).
    fn pipe(&self) -> u32 {
        let segments = self.bandwidth.twice * self.min_rtt / self.mss;
        u32::try_from(segments).unwrap_or(u32::MAX).max(2)
    }

    /// Bytes that an ACK newly tells of (`westwood_acked_count`). Duplicate ACKs count as a segment
    /// each, which is taken from later cumulative ACKs of several segments.
    fn count(&mut self, acknowledged: u64) -> u64 {
        let mss = self.mss;
        if acknowledged == 0 {
            self.ahead += mss;
            return mss;
        }
        if acknowledged <= mss {
            return acknowledged;
        }
        if self.ahead >= acknowledged {
            self.ahead -= acknowledged;
            return mss;
        }
        acknowledged - std::mem::take(&mut self.ahead)
    }
}

impl Default for Westwood {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Westwood {
    fn init(&mut self, now: Nanos, _cwnd: &mut CwndState, _rtt_us: u32) {
        self.since = tick(now);
    }

    fn on_acked(&mut self, _cwnd: &CwndState, acked: &Acked) {
        if acked.rtt_us > 0 {
            self.rtt = jiffies(acked.rtt_us.into());
        }
        self.mss = acked.mss.into();
        let now = tick(acked.now);
        let time = now - self.since;
        if time > self.rtt.max(SHORTEST) {
            self.bandwidth.add(self.bytes / time);
            self.bytes = 0;
            self.since = now;
        }
        // What the first ACK acknowledges is not counted.
        let segments = match std::mem::take(&mut self.first) {
            true => 0,
            false => acked.segments,
        };
        let acknowledged = u64::from(segments) * self.mss;
        self.bytes += match acked.slow_path {
            true => self.count(acknowledged),
            false => acknowledged,
        };
        self.min_rtt = match std::mem::take(&mut self.renews_min_rtt) {
            true => self.rtt,
            false => self.min_rtt.min(self.rtt),
        };
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _rate: &RateSample) {
        reno::on_ack(cwnd, ack, ack.acked);
    }

    /// Reno's, for the time of recovery only.
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        reno::ssthresh(cwnd.cwnd)
    }

    fn on_event(&mut self, cwnd: &mut CwndState, event: CwndEvent) {
        cwnd.ssthresh = self.pipe();
        match event {
            CwndEvent::Loss => self.renews_min_rtt = true,
            CwndEvent::ReductionComplete => cwnd.cwnd = cwnd.ssthresh,
        }
    }
}

impl Bandwidth {
    /// Adds a measurement to the smoothed bandwidth (`westwood_filter`).
    fn add(&mut self, measured: u64) {
        if self.once == 0 && self.twice == 0 {
            *self = Self {
                once: measured,
                twice: measured,
            };
            return;
        }
        self.once = (7 * self.once + measured) / 8;
        self.twice = (7 * self.twice + self.once) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, cwnd};
    use super::*;

    fn acked(now: Nanos, segments: u32, slow_path: bool) -> Acked {
        Acked {
            now,
            segments,
            rtt_us: 40_000,
            mss: 1_000,
            slow_path,
            ..Acked::default()
        }
    }

    /// A connection that was served 1,000 segments/s at an RTT of 40 ms for five seconds.
    fn measured() -> Westwood {
        let mut westwood = Westwood::new();
        westwood.init(0, &mut cwnd(10, 1_000), 40_000);
        for ms in 1..=5_000 {
            westwood.on_acked(&cwnd(100, 10), &acked(ms * MS, 1, false));
        }
        westwood
    }

    #[test]
    fn a_reduction_leaves_the_bandwidth_times_the_smallest_rtt() {
        let (mut westwood, mut w) = (measured(), cwnd(100, 50));
        assert_eq!(westwood.ssthresh(&w), 50, "during recovery");
        westwood.on_event(&mut w, CwndEvent::ReductionComplete);
        assert_eq!(w.cwnd, w.ssthresh);
        assert!((38..=40).contains(&w.cwnd), "{}", w.cwnd);
    }

    #[test]
    fn a_timeout_sets_the_threshold_and_forgets_the_smallest_rtt() {
        let (mut westwood, mut w) = (measured(), cwnd(100, 50));
        westwood.on_event(&mut w, CwndEvent::Loss);
        assert_eq!(w.cwnd, 100, "the sender sets it");
        assert!((38..=40).contains(&w.ssthresh), "{}", w.ssthresh);
        let late = Acked {
            rtt_us: 400_000,
            ..acked(5_001 * MS, 1, false)
        };
        westwood.on_acked(&w, &late);
        assert_eq!(westwood.min_rtt, 100);
    }

    #[test]
    fn nothing_measured_leaves_two_segments() {
        let mut westwood = Westwood::new();
        let mut w = cwnd(10, 1_000);
        westwood.on_event(&mut w, CwndEvent::Loss);
        assert_eq!((w.cwnd, w.ssthresh), (10, 2));
    }

    #[test]
    fn bandwidth_is_measured_over_an_rtt_or_50_ms() {
        let mut westwood = Westwood::new();
        let w = cwnd(10, 1_000);
        westwood.init(0, &mut w.clone(), 40_000);
        for ms in 1..=51 {
            westwood.on_acked(&w, &acked(ms * MS, 1, false));
        }
        assert_eq!(westwood.bandwidth.twice, 0);
        // 50 segments after the first one, in 13 ticks.
        westwood.on_acked(&w, &acked(52 * MS, 1, false));
        assert_eq!(westwood.bandwidth.twice, 50_000 / 13);
    }

    #[test]
    fn two_filters_smooth_it() {
        let mut bandwidth = Bandwidth::default();
        bandwidth.add(6_400);
        assert_eq!((bandwidth.once, bandwidth.twice), (6_400, 6_400));
        bandwidth.add(0);
        assert_eq!((bandwidth.once, bandwidth.twice), (5_600, 6_300));
    }

    #[test]
    fn duplicate_acks_are_not_counted_twice() {
        let mut westwood = Westwood::new();
        let w = cwnd(10, 1_000);
        westwood.on_acked(&w, &acked(MS, 1, false));
        for _ in 0..9 {
            westwood.on_acked(&w, &acked(MS, 0, true));
        }
        assert_eq!(westwood.bytes, 9_000);
        // The missing segment arrives: ten segments are acknowledged, nine of them known.
        westwood.on_acked(&w, &acked(MS, 10, true));
        assert_eq!((westwood.bytes, westwood.ahead), (10_000, 0));
        westwood.on_acked(&w, &acked(MS, 2, true));
        assert_eq!(westwood.bytes, 12_000);
    }
}
