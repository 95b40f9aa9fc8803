//! Monitor intervals: what happened to the segments that were sent at a rate, and how useful that
//! was (sections 3 and 4.3).

use crate::path::Nanos;

/// Exponent of the rate in the utility (t, section 3).
const EXPONENT: f64 = 0.9;
/// Weight of the RTT's growth (b).
const LATENCY: f64 = 900.0;
/// Weight of loss (c).
const LOSS: f64 = 11.35;
/// Growth of the RTT, s per s, below which it counts as noise (section 4.3, low-pass filtering).
const NOISE: f64 = 0.01;

/// A monitor interval and what happened to its segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) purpose: Purpose,
    /// The rate that was tried, Mbit/s.
    pub(super) rate: f64,
    pub(super) start: Nanos,
    /// When it ends, or has ended, ns.
    pub(super) end: Nanos,
    /// Payload sent before its start, and by its end, bytes.
    sent: (u64, u64),
    acked: u32,
    lost: u32,
    /// Whether the application limited the sender.
    limited: bool,
    rtt: Regression,
}

/// What an interval is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It is the measurement of this number.
    Measure(usize),
    /// It passes the time until measurements are complete.
    Wait,
}

impl Interval {
    pub(super) fn new(purpose: Purpose, rate: f64, start: Nanos, end: Nanos, sent: u64) -> Self {
        Self {
            purpose,
            rate,
            start,
            end,
            sent: (sent, sent),
            acked: 0,
            lost: 0,
            limited: false,
            rtt: Regression::default(),
        }
    }

    /// Nothing more is sent in the interval; `sent` bytes were sent in all.
    pub(super) fn close(&mut self, now: Nanos, sent: u64) {
        self.end = now;
        self.sent.1 = sent;
    }

    /// Takes an ACK of `acked` segments, of which the newest was sent at `sent` and took `rtt_us`
    /// (0 when that is not known).
    pub(super) fn acknowledge(&mut self, acked: u32, sent: Nanos, rtt_us: u32, limited: bool) {
        self.acked += acked;
        self.limited |= limited;
        if rtt_us > 0 {
            let at = sent.saturating_sub(self.start) as f64 / 1e9;
            self.rtt.add(at, f64::from(rtt_us) / 1e6);
        }
    }

    /// One of its segments was lost.
    pub(super) fn lose(&mut self) {
        self.lost += 1;
    }

    /// The rate at which it has sent, Mbit/s; 0 when the application limited the sender.
    pub(super) fn sent_rate(&self) -> f64 {
        if self.limited {
            return 0.0;
        }
        let bits = self.sent.1.saturating_sub(self.sent.0) as f64 * 8.0;
        bits * 1e3 / (self.end - self.start).max(1) as f64
    }

    /// The utility x⁰·⁹ - 900 · x · dRTT/dt - 11.35 · x · L of the rate x in Mbit/s (equation 1).
    /// `starting` says whether a falling RTT counts as one that stays: then it only shows that what
    /// was sent before has left the queue.
    pub(super) fn utility(&self, starting: bool) -> f64 {
        let growth = match self.rtt.slope() {
            growth if growth.abs() < NOISE || (starting && growth < 0.0) => 0.0,
            growth => growth,
        };
        let all = self.acked + self.lost;
        let loss = f64::from(self.lost) / f64::from(all.max(1));
        self.rate.powf(EXPONENT) - LATENCY * self.rate * growth - LOSS * self.rate * loss
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

    /// An interval of 100 ms at 10 Mbit/s in which 100 segments were acknowledged, with an RTT that
    /// grows by `growth` µs for each.
    fn interval(growth: f64, lost: u32) -> Interval {
        let mut interval = Interval::new(Purpose::Wait, 10.0, 0, 100 * MS, 0);
        for number in 0..100_u32 {
            let rtt_us = 40_000.0 + growth * f64::from(number);
            interval.acknowledge(1, MS * Nanos::from(number), rtt_us as u32, false);
        }
        (0..lost).for_each(|_| interval.lose());
        interval
    }

    #[test]
    fn without_queue_and_loss_the_utility_is_that_of_the_rate() {
        assert!((interval(0.0, 0).utility(false) - 10.0_f64.powf(0.9)).abs() < 1e-9);
    }

    #[test]
    fn a_growing_queue_costs_and_a_falling_one_pays() {
        let steady = interval(0.0, 0).utility(false);
        // 50 µs in 1 ms: a growth of 0.05.
        let growing = interval(50.0, 0).utility(false);
        assert!(
            (steady - growing - 900.0 * 10.0 * 0.05).abs() < 1.0,
            "{growing}"
        );
        let falling = interval(-50.0, 0).utility(false);
        assert!(
            (falling - steady - 900.0 * 10.0 * 0.05).abs() < 1.0,
            "{falling}"
        );
        assert_eq!(interval(-50.0, 0).utility(true), steady);
    }

    #[test]
    fn noise_of_the_rtt_is_none() {
        assert_eq!(
            interval(9.0, 0).utility(false),
            interval(0.0, 0).utility(false)
        );
    }

    #[test]
    fn loss_costs_in_proportion() {
        let steady = interval(0.0, 0).utility(false);
        let lossy = interval(0.0, 25).utility(false);
        assert!(
            (steady - lossy - 11.35 * 10.0 * 0.2).abs() < 1e-9,
            "{lossy}"
        );
    }

    #[test]
    fn one_sample_has_no_slope() {
        let mut interval = Interval::new(Purpose::Wait, 10.0, 0, MS, 0);
        interval.acknowledge(1, 0, 40_000, false);
        assert!(interval.utility(false).is_finite());
    }

    #[test]
    fn the_rate_that_was_sent_is_measured() {
        let mut interval = Interval::new(Purpose::Wait, 10.0, 0, 100 * MS, 1_000);
        interval.close(100 * MS, 101_000);
        assert!((interval.sent_rate() - 8.0).abs() < 1e-9);
        interval.acknowledge(1, 0, 0, true);
        assert_eq!(interval.sent_rate(), 0.0);
    }
}
