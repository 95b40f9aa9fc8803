//! Finds token-bucket policers: two stretches with heavy loss and the same goodput are taken for one, and its rate is
//! kept for a while (`bbr_lt_bw_sampling`, net/ipv4/tcp_bbr.c).

use super::{BW_SCALE, Bandwidth};
use crate::path::Nanos;

/// Rounds of a stretch, at least, and four times as many at most (`bbr_lt_intvl_min_rtts`).
const ROUNDS: u32 = 4;
/// The part of the segments that has to be lost in it, of 256 (`bbr_lt_loss_thresh`).
const LOSS: u64 = 50;
/// Goodputs that differ by this part of one are the same: 1/8 (`bbr_lt_bw_ratio`).
const RATIO: u64 = 8;
/// Those that differ by no more are as well, bytes/s: 4 kbit/s (`bbr_lt_bw_diff`).
const DIFFERENCE: u64 = 4_000 / 8;
/// Rounds for which a policer's rate is kept (`bbr_lt_bw_max_rtts`).
const KEPT_ROUNDS: u32 = 48;

/// The search for a policer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PolicerDetector {
    /// The goodput of the last stretch.
    goodput: Option<Bandwidth>,
    /// It was confirmed, and rules.
    found: bool,
    stretch: Option<Stretch>,
    /// Rounds since the policer was found.
    kept: u32,
}

/// Starts and ends with a loss.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    start_ms: u64,
    delivered: u64,
    lost: u32,
    rounds: u32,
}

/// What an ACK says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) at: Nanos,
    /// Lifetime totals, segments; that of lost ones wraps.
    pub(super) delivered: u64,
    pub(super) lost: u32,
    pub(super) round_began: bool,
    pub(super) has_loss: bool,
    /// The application limits the flow.
    pub(super) limited: bool,
    /// Bytes of a segment.
    pub(super) mss: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing that anybody has to do anything about.
    None,
    /// The rate has been kept for long enough: bandwidth should be probed again.
    Over,
}

impl PolicerDetector {
    /// The policer's rate, once one was found.
    pub(super) fn bandwidth(&self) -> Option<Bandwidth> {
        self.goodput.filter(|_| self.found)
    }

    /// Takes an ACK; `cycling` when bandwidth is being probed.
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

    /// `bbr_lt_bw_interval_done`.
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

    /// The goodput since the start; none when too little was lost.
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

    /// A round of 40 ms in which `delivered` segments came through and `lost` did not, `number` of them in all.
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
