//! Monitor intervals (Dong et al., "PCC: Re-architecting Congestion Control for Consistent High
//! Performance", NSDI 2015): what happened to the segments that were sent in a span of time at one
//! rate. Vivace and Aurora decide by them.

use std::collections::VecDeque;

use cc_ebpf::AckSample;

use super::RateSample;
use crate::path::Nanos;

/// Least number of segments that an interval sends, so that loss and RTT can be seen
/// (`kMinimumPacketsPerInterval` of github.com/PCCproject/PCC-Uspace).
const LEAST_SEGMENTS: f64 = 20.0;

/// The monitor intervals of a connection, each for a purpose P.
#[derive(Clone, Debug)]
pub(super) struct Monitor<P> {
    /// The interval that is being sent, last, and those before it whose results are awaited.
    intervals: VecDeque<Interval<P>>,
    /// Time of the last ACK, ns.
    pub(super) now: Nanos,
    pub(super) srtt: Nanos,
    /// Payload of a segment, bits.
    pub(super) segment: f64,
    /// Payload sent so far, bytes.
    sent: u64,
}

impl<P> Monitor<P> {
    pub(super) fn new() -> Self {
        Self {
            intervals: VecDeque::with_capacity(8),
            now: 0,
            srtt: 1_000_000,
            segment: 1448.0 * 8.0,
            sent: 0,
        }
    }

    /// The connection is established; its handshake took `rtt_us`.
    pub(super) fn init(&mut self, now: Nanos, rtt_us: u32) {
        self.now = now;
        self.srtt = Nanos::from(rtt_us.max(1)) * 1_000;
    }

    /// Forgets all intervals: their results are of no use any more.
    pub(super) fn clear(&mut self) {
        self.intervals.clear();
    }

    /// Ends the interval that is being sent, and begins the next one, at `rate` Mbit/s.
    pub(super) fn begin(&mut self, purpose: P, rate: f64) {
        if let Some(present) = self.intervals.back_mut() {
            present.close(self.now, self.sent);
        }
        let end = self.now + length(self.srtt, rate, self.segment);
        let next = Interval::new(purpose, rate, self.now, end, self.sent);
        self.intervals.push_back(next);
    }

    /// Whether the time of the interval that is being sent is over, or there is none.
    pub(super) fn is_due(&self) -> bool {
        let present = self.intervals.back();
        present.is_none_or(|present| self.now >= present.end)
    }

    /// Takes an ACK.
    pub(super) fn acknowledge(&mut self, ack: &AckSample, rate: &RateSample) {
        self.now = ack.now_ns;
        self.segment = f64::from(ack.mss.max(1)) * 8.0;
        self.sent = ack.totals.bytes_sent + ack.totals.bytes_retrans;
        if ack.srtt_us > 0 {
            self.srtt = Nanos::from(ack.srtt_us) * 1_000;
        }
        if rate.sent == 0 {
            return;
        }
        if let Some(interval) = self.of(rate.sent) {
            interval.acknowledge(&Delivery {
                now: ack.now_ns,
                acked: ack.acked,
                sent: rate.sent,
                rtt_us: ack.rtt_us,
                limited: rate.app_limited,
            });
        }
    }

    /// A segment that was sent at this time was lost.
    pub(super) fn lose(&mut self, sent: Nanos) {
        if let Some(interval) = self.of(sent) {
            interval.lose();
        }
    }

    /// Removes the oldest interval if its segments are accounted for, now that those sent at `sent`
    /// are acknowledged. Never the one that is being sent.
    pub(super) fn pop_complete(&mut self, sent: Nanos) -> Option<Interval<P>> {
        let srtt = self.srtt;
        match self.intervals.len() {
            0 | 1 => None,
            _ => (self.intervals).pop_front_if(|first| first.is_complete(sent, srtt)),
        }
    }

    /// Whether the oldest interval ended more than so many round trips ago without its results.
    pub(super) fn is_overdue(&self, round_trips: u64) -> bool {
        let awaited = self.intervals.len() > 1;
        let oldest = self.intervals.front().filter(|_| awaited);
        oldest.is_some_and(|oldest| self.now > oldest.end + round_trips * self.srtt)
    }

    /// The rate of the interval that is being sent, Mbit/s; `None` before the first.
    pub(super) fn rate(&self) -> Option<f64> {
        self.intervals.back().map(|present| present.rate)
    }

    /// The same in bytes/s, as the sender paces.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        self.rate().map(|rate| ((rate * 1e6 / 8.0) as u64).max(1))
    }

    /// The cwnd in segments. Pacing sets the rate; the cwnd only bounds what a stalled path holds
    /// (`pcc_set_cwnd` of PCC-Kernel).
    pub(super) fn cwnd(&self, clamp: u32) -> u32 {
        let in_flight = self.rate().unwrap_or(0.0) * self.srtt as f64 / 1e3 / self.segment;
        let most = (2.0 * in_flight).min(f64::from(1 << 30)) as u32;
        most.max(4).min(clamp)
    }

    /// The interval in which a segment was sent.
    fn of(&mut self, sent: Nanos) -> Option<&mut Interval<P>> {
        let place = self.intervals.partition_point(|one| one.start <= sent);
        self.intervals.get_mut(place.checked_sub(1)?)
    }
}

/// Length of an interval at `rate` Mbit/s: a round trip, or longer where that holds too few
/// segments of so many bits of payload.
fn length(srtt: Nanos, rate: f64, segment: f64) -> Nanos {
    let few = LEAST_SEGMENTS * segment * 1e3 / rate;
    srtt.max(few as Nanos).max(1)
}

/// A monitor interval and what happened to its segments. It is for the `purpose` P.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval<P> {
    pub(super) purpose: P,
    /// The rate that was tried, Mbit/s.
    pub(super) rate: f64,
    start: Nanos,
    /// When it ends, or has ended, ns.
    end: Nanos,
    /// Payload sent before its start, and by its end, bytes.
    sent: (u64, u64),
    acked: u32,
    lost: u32,
    /// Times of the first and the last ACK of its segments, and the segments of the first.
    acks: (Nanos, Nanos, u32),
    /// Whether the application limited the sender.
    limited: bool,
    rtt: Regression,
}

/// An ACK of segments of an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Time of the ACK, ns.
    pub(super) now: Nanos,
    /// Number of segments that it acknowledges.
    pub(super) acked: u32,
    /// When the newest of them was sent, ns.
    pub(super) sent: Nanos,
    /// The RTT of that one, µs; 0 when it is not known.
    pub(super) rtt_us: u32,
    /// Whether the application limited the sender.
    pub(super) limited: bool,
}

impl<P> Interval<P> {
    pub(super) fn new(purpose: P, rate: f64, start: Nanos, end: Nanos, sent: u64) -> Self {
        Self {
            purpose,
            rate,
            start,
            end,
            sent: (sent, sent),
            acked: 0,
            lost: 0,
            acks: (0, 0, 0),
            limited: false,
            rtt: Regression::default(),
        }
    }

    /// Nothing more is sent in the interval; `sent` bytes were sent in all.
    pub(super) fn close(&mut self, now: Nanos, sent: u64) {
        self.end = now;
        self.sent.1 = sent;
    }

    /// Takes an ACK of segments of the interval.
    pub(super) fn acknowledge(&mut self, ack: &Delivery) {
        if self.acked == 0 {
            self.acks = (ack.now, ack.now, ack.acked);
        }
        self.acks.1 = ack.now;
        self.acked += ack.acked;
        self.limited |= ack.limited;
        if ack.rtt_us > 0 {
            let at = ack.sent.saturating_sub(self.start) as f64 / 1e9;
            self.rtt.add(at, f64::from(ack.rtt_us) / 1e6);
        }
    }

    /// One of its segments was lost.
    pub(super) fn lose(&mut self) {
        self.lost += 1;
    }

    /// Whether its segments are accounted for, now that those sent at `sent` are acknowledged:
    /// losses are found a part of a round trip later than deliveries.
    fn is_complete(&self, sent: Nanos, srtt: Nanos) -> bool {
        sent >= self.end + srtt / 4
    }

    /// The rate at which it has sent, Mbit/s; 0 when the application limited the sender.
    pub(super) fn sent_rate(&self) -> f64 {
        if self.limited {
            return 0.0;
        }
        let bits = self.sent.1.saturating_sub(self.sent.0) as f64 * 8.0;
        bits * 1e3 / (self.end - self.start).max(1) as f64
    }

    /// The rate at which its segments arrived, in segments/s; `None` for fewer than two ACKs at
    /// different times.
    pub(super) fn received_rate(&self) -> Option<f64> {
        let (first, last, of_the_first) = self.acks;
        let time = last.saturating_sub(first) as f64 / 1e9;
        (time > 0.0).then(|| f64::from(self.acked - of_the_first) / time)
    }

    /// Part of its segments that was lost.
    pub(super) fn loss(&self) -> f64 {
        let all = self.acked + self.lost;
        f64::from(self.lost) / f64::from(all.max(1))
    }

    /// Growth of the RTT, s per s of sending.
    pub(super) fn rtt_growth(&self) -> f64 {
        self.rtt.slope()
    }

    /// The mean RTT, s; `None` when none is known.
    pub(super) fn mean_rtt(&self) -> Option<f64> {
        (self.rtt.count > 0.0).then(|| self.rtt.y / self.rtt.count)
    }
}

/// A linear regression of values over time.
#[derive(Clone, Copy, Debug, Default)]
struct Regression {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Regression {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// The slope; 0 when the values do not determine it.
    fn slope(&self) -> f64 {
        let spread = self.count * self.xx - self.x * self.x;
        // What rounding leaves of equal values is no spread.
        match spread > 1e-9 * self.count * self.xx {
            true => (self.count * self.xy - self.x * self.y) / spread,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn delivery(now: Nanos, acked: u32) -> Delivery {
        Delivery {
            now,
            acked,
            sent: now,
            rtt_us: 0,
            limited: false,
        }
    }

    #[test]
    fn the_rate_that_was_sent_is_measured() {
        let mut interval = Interval::new((), 10.0, 0, 100 * MS, 1_000);
        interval.close(100 * MS, 101_000);
        assert!((interval.sent_rate() - 8.0).abs() < 1e-9);
        interval.acknowledge(&Delivery {
            limited: true,
            ..delivery(0, 1)
        });
        assert_eq!(interval.sent_rate(), 0.0);
    }

    #[test]
    fn the_rate_that_arrived_is_that_between_the_acks() {
        let mut interval = Interval::new((), 10.0, 0, 100 * MS, 0);
        assert_eq!(interval.received_rate(), None);
        interval.acknowledge(&delivery(300 * MS, 5));
        assert_eq!(interval.received_rate(), None, "no time has passed");
        interval.acknowledge(&delivery(310 * MS, 2));
        interval.acknowledge(&delivery(350 * MS, 2));
        assert_eq!(interval.received_rate(), Some(80.0));
        interval.lose();
        assert_eq!(interval.loss(), 0.1);
    }

    #[test]
    fn mean_and_growth_of_the_rtt_are_those_of_the_samples() {
        let mut interval = Interval::new((), 10.0, 0, 100 * MS, 0);
        assert_eq!((interval.mean_rtt(), interval.rtt_growth()), (None, 0.0));
        for (at, rtt_us) in [(0, 40_000), (50, 50_000), (100, 60_000)] {
            interval.acknowledge(&Delivery {
                rtt_us,
                ..delivery(at * MS, 1)
            });
        }
        let mean = interval.mean_rtt().expect("there are samples");
        assert!((mean - 0.05).abs() < 1e-12, "{mean}");
        assert!((interval.rtt_growth() - 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_segment_belongs_to_the_interval_in_which_it_was_sent() {
        let mut monitor = Monitor::new();
        for start in [0, 10, 20] {
            monitor.now = start;
            monitor.begin(start, 1.0);
        }
        let place = |sent| monitor.of(sent).map(|interval| interval.purpose);
        assert_eq!([9, 10, 25].map(place), [Some(0), Some(10), Some(20)]);
    }

    #[test]
    fn an_interval_has_results_when_later_segments_are_acknowledged() {
        let mut monitor = Monitor::new();
        monitor.init(0, 100_000);
        monitor.begin("first", 10.0);
        assert!(monitor.pop_complete(1_000 * MS).is_none(), "it is sent yet");
        monitor.now = 100 * MS;
        assert!(monitor.is_due());
        monitor.begin("second", 10.0);
        assert!(!monitor.is_due());
        // A quarter of a round trip later, since losses show late.
        assert!(monitor.pop_complete(124 * MS).is_none());
        monitor.now = 500 * MS;
        assert!(!monitor.is_overdue(4));
        monitor.now += 1;
        assert!(monitor.is_overdue(4));
        let first = monitor
            .pop_complete(125 * MS)
            .map(|interval| interval.purpose);
        assert_eq!(first, Some("first"));
        assert!(!monitor.is_overdue(4), "the second is being sent");
    }

    #[test]
    fn the_cwnd_holds_two_round_trips_of_the_rate() {
        let mut monitor = Monitor::new();
        monitor.init(0, 100_000);
        monitor.segment = 12_000.0;
        assert_eq!((monitor.cwnd(1_000), monitor.pacing_rate()), (4, None));
        monitor.begin((), 12.0);
        assert_eq!(monitor.cwnd(1_000), 200);
        assert_eq!(monitor.cwnd(150), 150);
        assert_eq!(monitor.pacing_rate(), Some(1_500_000));
    }

    #[test]
    fn an_interval_has_enough_segments() {
        // 20 segments of 12,000 bits at 1 Mbit/s take 240 ms.
        assert_eq!(length(100 * MS, 1.0, 12_000.0), 240 * MS);
        assert_eq!(length(100 * MS, 10.0, 12_000.0), 100 * MS);
    }
}
