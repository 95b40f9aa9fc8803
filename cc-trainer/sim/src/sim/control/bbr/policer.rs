//! Detection of token-bucket policers: two intervals with heavy loss and the same goodput indicate
//! a policer, whose rate is kept for a while (Linux 6.18, `bbr_lt_bw_sampling`,
//! net/ipv4/tcp_bbr.c).

use super::bandwidth::{BW_SCALE, Bandwidth};
use crate::path::Nanos;

/// Shortest interval in rounds; the longest has four times as many (`bbr_lt_intvl_min_rtts`).
const ROUNDS: u32 = 4;
/// Part of the segments that has to be lost in an interval, in 256ths (`bbr_lt_loss_thresh`).
const LOSS: u64 = 50;
/// Goodputs are the same when they differ by less than this part: 1/8 (`bbr_lt_bw_ratio`).
const RATIO: u64 = 8;
/// Goodputs are also the same when they differ by no more bytes/s than this: 4 kbit/s
/// (`bbr_lt_bw_diff`).
const DIFFERENCE: u64 = 4_000 / 8;
/// Number of rounds for which a policer's rate is kept (`bbr_lt_bw_max_rtts`).
const KEPT_ROUNDS: u32 = 48;

/// The state of the detection of a policer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PolicerDetector {
    /// Goodput of the last interval (`lt_bw`).
    goodput: Option<Bandwidth>,
    /// Whether a second interval has confirmed it (`lt_use_bw`).
    found: bool,
    stretch: Option<Stretch>,
    /// Number of rounds since the policer was found (`lt_rtt_cnt`).
    kept: u32,
}

/// An interval of the detection, which starts and ends with a loss.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    start_ms: u64,
    delivered: u64,
    lost: u32,
    rounds: u32,
}

/// What the detection reads of an ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) at: Nanos,
    /// Lifetime totals of delivered and lost segments; the latter wraps.
    pub(super) delivered: u64,
    pub(super) lost: u32,
    pub(super) round_began: bool,
    pub(super) has_loss: bool,
    /// Whether the application limits the flow.
    pub(super) limited: bool,
    /// Payload of a segment in bytes.
    pub(super) mss: u64,
}

/// The result of an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The caller has nothing to do.
    None,
    /// The rate has been kept for long enough: bandwidth has to be probed again.
    Over,
}

impl PolicerDetector {
    /// The policer's rate; `None` unless a policer was found.
    pub(super) fn bandwidth(&self) -> Option<Bandwidth> {
        self.goodput.filter(|_| self.found)
    }

    /// Takes an ACK; `cycling` says whether bandwidth is being probed.
    pub(super) fn update(&mut self, sample: &Interval, cycling: bool) -> Change {
        if self.found {
            self.kept += u32::from(cycling && sample.round_began);
            if self.kept < KEPT_ROUNDS {
                return Change::None;
            }
            *self = Self::default();
            return Change::Over;
        }
        let stretch = match &mut self.stretch {
            Some(stretch) => stretch,
            None if sample.has_loss => self.stretch.insert(Stretch::new(sample)),
            None => return Change::None,
        };
        stretch.rounds += u32::from(sample.round_began);
        if sample.limited || stretch.rounds > 4 * ROUNDS {
            *self = Self::default();
        } else if stretch.rounds >= ROUNDS && sample.has_loss {
            let goodput = stretch.goodput(sample);
            if let Some(goodput) = goodput {
                self.end(goodput, sample);
            }
        }
        Change::None
    }

    /// Ends an interval, and compares its goodput with the last one (`bbr_lt_bw_interval_done`).
    fn end(&mut self, goodput: Bandwidth, sample: &Interval) {
        if let Some(before) = self.goodput {
            let difference = goodput.abs_diff(before);
            let bytes = (difference * sample.mss * 990_000) >> BW_SCALE;
            if difference * RATIO <= before || bytes <= DIFFERENCE {
                self.goodput = Some((goodput + before) / 2);
                self.found = true;
                self.kept = 0;
                return;
            }
        }
        self.goodput = Some(goodput);
        self.stretch = Some(Stretch::new(sample));
    }
}

impl Stretch {
    fn new(sample: &Interval) -> Self {
        Self {
            start_ms: sample.at / 1_000_000,
            delivered: sample.delivered,
            lost: sample.lost,
            rounds: 0,
        }
    }

    /// Goodput since the start; `None` when too little was lost.
    fn goodput(&self, sample: &Interval) -> Option<Bandwidth> {
        let delivered = sample.delivered - self.delivered;
        let lost = u64::from(sample.lost.wrapping_sub(self.lost));
        let ms = sample.at / 1_000_000 - self.start_ms;
        let heavy = delivered > 0 && lost * 256 >= LOSS * delivered;
        (heavy && ms > 0).then(|| (delivered << BW_SCALE) / (ms * 1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    /// `number` rounds of 40 ms, in each of which `delivered` segments are delivered and `lost` are
    /// lost.
    fn rounds(
        policer: &mut PolicerDetector,
        total: &mut Interval,
        delivered: u64,
        lost: u32,
        number: u32,
    ) {
        for _ in 0..number {
            total.at += 40 * MS;
            total.delivered += delivered;
            total.lost += lost;
            total.has_loss = lost > 0;
            policer.update(total, true);
        }
    }

    fn start() -> Interval {
        Interval {
            at: 0,
            delivered: 0,
            lost: 0,
            round_began: true,
            has_loss: false,
            limited: false,
            mss: 1448,
        }
    }

    #[test]
    fn two_lossy_stretches_of_equal_goodput_are_a_policer() {
        let (mut policer, mut total) = (PolicerDetector::default(), start());
        rounds(&mut policer, &mut total, 40, 20, 4);
        assert_eq!(policer.bandwidth(), None);
        rounds(&mut policer, &mut total, 40, 20, 5);
        let found = policer.bandwidth().expect("two stretches");
        let per_second = found as f64 / f64::from(1 << BW_SCALE) * 1e6;
        assert!((990.0..1_010.0).contains(&per_second), "{per_second}");
    }

    #[test]
    fn little_loss_or_different_goodput_is_none() {
        let (mut policer, mut total) = (PolicerDetector::default(), start());
        rounds(&mut policer, &mut total, 40, 7, 15);
        assert_eq!(policer.bandwidth(), None, "7 of 40 is below 50 of 256");
        let (mut policer, mut total) = (PolicerDetector::default(), start());
        for stretch in 0..5 {
            rounds(&mut policer, &mut total, 40 << stretch, 20 << stretch, 4);
        }
        assert_eq!(policer.bandwidth(), None);
    }

    #[test]
    fn it_is_forgotten_after_a_while() {
        let (mut policer, mut total) = (PolicerDetector::default(), start());
        rounds(&mut policer, &mut total, 40, 20, 10);
        assert!(policer.bandwidth().is_some());
        total.has_loss = false;
        let kept = (1..100).find(|_| policer.update(&total, true) == Change::Over);
        assert!((40..=48).contains(&kept.expect("it ends")), "{kept:?}");
        assert_eq!(policer.bandwidth(), None);
    }

    #[test]
    fn an_application_that_limits_the_flow_ends_the_search() {
        let (mut policer, mut total) = (PolicerDetector::default(), start());
        rounds(&mut policer, &mut total, 40, 20, 6);
        total.limited = true;
        policer.update(&total, true);
        total.limited = false;
        rounds(&mut policer, &mut total, 40, 20, 4);
        assert_eq!(
            policer.bandwidth(),
            None,
            "the first stretch does not count"
        );
    }
}
