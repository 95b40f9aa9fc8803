//! Monitor intervals (Dong et al., "PCC: Re-architecting Congestion Control for Consistent High
//! Performance", NSDI 2015): what happened to the segments that were sent in a span of time at one
//! rate. Vivace and Aurora decide by them.

use std::collections::VecDeque;

use crate::path::Nanos;

/// Least number of segments that an interval sends, so that loss and RTT can be seen
/// (`kMinimumPacketsPerInterval` of github.com/PCCproject/PCC-Uspace).
const LEAST_SEGMENTS: f64 = 20.0;

/// A monitor interval and what happened to its segments. It is for the `purpose` P.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval<P> {
    pub(super) purpose: P,
    /// The rate that was tried, Mbit/s.
    pub(super) rate: f64,
    pub(super) start: Nanos,
    /// When it ends, or has ended, ns.
    pub(super) end: Nanos,
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

/// Length of an interval at `rate` Mbit/s: a round trip, or longer where that holds too few
/// segments of so many bits of payload.
pub(super) fn length(srtt: Nanos, rate: f64, segment: f64) -> Nanos {
    let few = LEAST_SEGMENTS * segment * 1e3 / rate;
    srtt.max(few as Nanos).max(1)
}

/// The interval in which a segment was sent.
pub(super) fn of<P>(
    intervals: &mut VecDeque<Interval<P>>,
    sent: Nanos,
) -> Option<&mut Interval<P>> {
    let place = intervals.partition_point(|interval| interval.start <= sent);
    intervals.get_mut(place.checked_sub(1)?)
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
    pub(super) fn is_complete(&self, sent: Nanos, srtt: Nanos) -> bool {
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
        let starts = [0, 10, 20].map(|start| Interval::new(start, 1.0, start, start + 10, 0));
        let mut intervals = VecDeque::from(starts);
        let place = |sent| of(&mut intervals, sent).map(|interval| interval.purpose);
        assert_eq!([9, 10, 25].map(place), [Some(0), Some(10), Some(20)]);
    }

    #[test]
    fn an_interval_has_enough_segments() {
        // 20 segments of 12,000 bits at 1 Mbit/s take 240 ms.
        assert_eq!(length(100 * MS, 1.0, 12_000.0), 240 * MS);
        assert_eq!(length(100 * MS, 10.0, 12_000.0), 100 * MS);
    }
}
