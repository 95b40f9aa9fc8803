//! Aggregation of ACKs: how many more segments than expected are acknowledged at once, on paths
//! that hold ACKs back (Linux 6.18, `bbr_update_ack_aggregation`, net/ipv4/tcp_bbr.c). The cwnd has
//! to be that much larger to keep the pipe full.

use super::bandwidth::{BW_SCALE, Bandwidth};
use crate::path::Nanos;

/// Number of rounds that each of the two maxima covers (`bbr_extra_acked_win_rtts`).
pub(in crate::sim::control) const ROUNDS: u32 = 5;
/// An epoch that has acknowledged this many segments starts anew
/// (`bbr_ack_epoch_acked_reset_thresh`).
const MOST_ACKED: u64 = 1 << 20;
/// Largest addition to the cwnd, as the time of sending it, µs (`bbr_extra_acked_max_us`).
const MOST_US: u64 = 100_000;

/// The state of the estimate of segments acknowledged beyond the bandwidth.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim::control) struct Aggregation {
    /// Begin of the epoch, the last time at which no more segments than expected had been
    /// acknowledged, ns.
    epoch: Nanos,
    /// Segments acknowledged in the epoch.
    acked: u64,
    /// Maxima of the present and of the previous rounds.
    extra: [u32; 2],
    present: usize,
    rounds: u32,
}

impl Aggregation {
    pub(in crate::sim::control) fn new(now: Nanos) -> Self {
        Self {
            epoch: now,
            ..Self::default()
        }
    }

    /// Starts a new epoch at `now`.
    pub(in crate::sim::control) fn restart(&mut self, now: Nanos) {
        self.epoch = now;
        self.acked = 0;
    }

    /// Takes an ACK of `acked` segments; `most` bounds the segments that count as extra, and each
    /// of the two maxima covers `window` rounds.
    pub(in crate::sim::control) fn update(
        &mut self,
        now: Nanos,
        acked: u32,
        bandwidth: Bandwidth,
        most: u32,
        round_began: bool,
        window: u32,
    ) {
        if round_began {
            self.rounds += 1;
            if self.rounds >= window {
                self.rounds = 0;
                self.present = 1 - self.present;
                self.extra[self.present] = 0;
            }
        }
        let elapsed_us = now.saturating_sub(self.epoch) / 1_000;
        let mut expected = bandwidth.saturating_mul(elapsed_us) >> BW_SCALE;
        if self.acked <= expected || self.acked + u64::from(acked) >= MOST_ACKED {
            self.restart(now);
            expected = 0;
        }
        self.acked += u64::from(acked);
        let extra = (self.acked - expected).min(u64::from(most)) as u32;
        let maximum = &mut self.extra[self.present];
        *maximum = extra.max(*maximum);
    }

    /// Segments to add to the cwnd (`bbr_ack_aggregation_cwnd`).
    pub(in crate::sim::control) fn extra(&self, bandwidth: Bandwidth) -> u32 {
        let most = bandwidth.saturating_mul(MOST_US) >> BW_SCALE;
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        self.extra[0].max(self.extra[1]).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;
    /// One segment per millisecond.
    const RATE: Bandwidth = (1 << BW_SCALE) / 1_000;

    #[test]
    fn acks_that_come_at_the_rate_leave_nothing_extra() {
        let mut aggregation = Aggregation::new(0);
        for ms in 1..1_000 {
            aggregation.update(ms * MS, 1, RATE, 1_000, ms % 40 == 0, ROUNDS);
        }
        assert!(aggregation.extra(RATE) <= 2, "{aggregation:?}");
    }

    #[test]
    fn acks_that_come_together_do_and_are_forgotten() {
        let mut aggregation = Aggregation::new(0);
        for burst in 1..10 {
            for _ in 0..25 {
                aggregation.update(burst * 50 * MS, 2, RATE, 1_000, false, ROUNDS);
            }
        }
        let extra = aggregation.extra(RATE);
        assert!((48..=52).contains(&extra), "{extra}");
        assert_eq!(aggregation.extra(RATE / 10), 9, "no more than 100 ms");
        for ms in 501..2_000 {
            aggregation.update(ms * MS, 1, RATE, 1_000, ms % 40 == 0, ROUNDS);
        }
        assert!(aggregation.extra(RATE) <= 2, "{aggregation:?}");
    }

    #[test]
    fn the_cwnd_bounds_it() {
        let mut aggregation = Aggregation::new(0);
        aggregation.update(MS, 80, RATE, 30, false, ROUNDS);
        assert_eq!(aggregation.extra(RATE), 30);
    }
}
