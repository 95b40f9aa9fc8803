//! Bounds of rate and segments in flight that loss sets: short-term ones while BBR does not probe,
//! and a long-term one by what probing finds (section 5.5.10).

use super::{Bbr3, Input, State};
use crate::path::Nanos;
use crate::sim::control::LostSegment;
use crate::sim::control::bbr::bandwidth::Bandwidth;

/// A bound that is not set.
pub(super) const UNBOUNDED: u32 = u32::MAX;
/// More is lost than is tolerated above one segment in so many: 2 % (`LossThresh`).
const LOSS_THRESHOLD: u64 = 50;

/// The bounds, and the signals of the last round trip that set them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The bandwidth that is safe for now (`bw_shortterm`).
    pub(super) bandwidth: Bandwidth,
    /// The segments in flight that are safe for now (`inflight_shortterm`).
    pub(super) in_flight: u32,
    /// The segments in flight that the last probes found safe (`inflight_longterm`).
    pub(super) long_term: u32,
    /// Largest bandwidth and most segments delivered in a sample of this round trip (`bw_latest`,
    /// `inflight_latest`).
    pub(super) latest: (Bandwidth, u32),
    /// Whether there was congestion in this round trip (`is_loss_in_round`).
    pub(super) congested: bool,
    /// The round trip ends with a segment sent after this many were delivered
    /// (`loss_round_delivered`).
    round_end: u64,
    /// Whether this ACK began a round trip (`loss_round_start`).
    pub(super) round_began: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bandwidth: Bandwidth::MAX,
            in_flight: UNBOUNDED,
            long_term: UNBOUNDED,
            latest: (0, 0),
            congested: false,
            round_end: 0,
            round_began: false,
        }
    }
}

/// Whether the losses among so many segments in flight are more than is tolerated
/// (`IsInflightTooHigh`).
pub(super) fn is_too_high(lost: u32, in_flight: u32) -> bool {
    u64::from(lost) * LOSS_THRESHOLD > in_flight.into()
}

/// Seven tenths: what congestion leaves at least (`Beta`).
fn reduced(value: u64) -> u64 {
    value.saturating_mul(7) / 10
}

/// The segments in flight at which losses crossed the threshold: those sent before the lost one,
/// and the part of it that the threshold still allows (`InflightAtLoss`).
fn in_flight_at_loss(lost: &LostSegment) -> u32 {
    let before = u64::from(lost.tx_in_flight.saturating_sub(1));
    let lost_before = u64::from(lost.lost.saturating_sub(1));
    // lost_prefix = (LossThresh · inflight_prev - lost_prev) / (1 - LossThresh)
    let part = before.saturating_sub(LOSS_THRESHOLD * lost_before) / (LOSS_THRESHOLD - 1);
    (before + part) as u32
}

impl Bounds {
    /// Takes the sample into the latest round trip's (`UpdateLatestDeliverySignals`).
    pub(super) fn update_latest(&mut self, input: &Input) {
        self.round_began = false;
        let Some(bandwidth) = input.bandwidth else {
            return;
        };
        let delivered = input.rate.delivered.unwrap_or_default();
        self.latest.0 = self.latest.0.max(bandwidth);
        self.latest.1 = self.latest.1.max(delivered);
        if input.rate.prior_delivered >= self.round_end {
            self.round_end = input.rate.total_delivered;
            self.round_began = true;
        }
    }

    /// Begins the next round trip with the sample (`AdvanceLatestDeliverySignals`).
    pub(super) fn advance_latest(&mut self, input: &Input) {
        if self.round_began {
            let delivered = input.rate.delivered.unwrap_or_default();
            self.latest = (input.bandwidth.unwrap_or_default(), delivered);
        }
    }

    /// Forgets the round's signals of congestion (`ResetCongestionSignals`).
    pub(super) fn forget_signals(&mut self) {
        self.congested = false;
        self.latest = (0, 0);
    }

    /// Removes the short-term bounds (`ResetShortTermModel`).
    pub(super) fn reset_short_term(&mut self) {
        self.bandwidth = Bandwidth::MAX;
        self.in_flight = UNBOUNDED;
    }
}

impl Bbr3 {
    /// Once per round trip, lowers the short-term bounds where there was congestion
    /// (`UpdateCongestionSignals`, `AdaptLowerBoundsFromCongestion`, section 5.5.10.3).
    pub(super) fn update_bounds(&mut self, input: &Input) {
        if !self.bounds.round_began {
            return;
        }
        let congested = std::mem::take(&mut self.bounds.congested);
        if !congested || self.state.is_accelerating() {
            return;
        }
        let highest = self.max_bandwidth.get();
        let bounds = &mut self.bounds;
        if bounds.bandwidth == Bandwidth::MAX {
            bounds.bandwidth = highest;
        }
        if bounds.in_flight == UNBOUNDED {
            bounds.in_flight = input.cwnd;
        }
        // The kernel keeps the bandwidth above 0, from which it could not grow.
        bounds.bandwidth = reduced(bounds.bandwidth).max(bounds.latest.0).max(1);
        let in_flight = reduced(bounds.in_flight.into()) as u32;
        bounds.in_flight = in_flight.max(bounds.latest.1);
    }

    /// Takes note of congestion; the first in a round trip starts one, so that a whole one is
    /// looked at (`NoteLoss`).
    pub(super) fn note_congestion(&mut self, total_delivered: u64) {
        if !self.bounds.congested {
            self.bounds.round_end = total_delivered;
        }
        self.bounds.congested = true;
    }

    /// Takes a lost segment (`HandleLostPacket`, section 5.5.10.2).
    pub(super) fn handle_lost(&mut self, cwnd: u32, lost: &LostSegment) {
        self.startup_loss.update(lost);
        self.note_congestion(lost.total_delivered);
        if self.cycle.is_probe_sample && is_too_high(lost.lost, lost.tx_in_flight) {
            let in_flight = in_flight_at_loss(lost);
            let (limited, delivered) = (lost.app_limited, lost.total_delivered);
            self.inflight_too_high(lost.at, in_flight, limited, cwnd, delivered);
        }
    }

    /// Lowers the long-term bound, once per probe, and stops probing (`HandleInflightTooHigh`).
    pub(super) fn inflight_too_high(
        &mut self,
        now: Nanos,
        in_flight: u32,
        limited: bool,
        cwnd: u32,
        total_delivered: u64,
    ) {
        self.cycle.was_too_high = true;
        self.cycle.is_probe_sample = false;
        if !limited {
            let least = reduced(self.target_inflight(cwnd).into()) as u32;
            self.bounds.long_term = in_flight.max(least);
        }
        if self.state == State::Up {
            self.undo.state = Some(State::Up);
            self.start_down(now, total_delivered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_two_percent_is_too_much() {
        assert!(!is_too_high(0, 0) && !is_too_high(2, 100));
        assert!(is_too_high(3, 100) && is_too_high(1, 49));
    }

    #[test]
    fn the_volume_at_which_losses_crossed_the_threshold_is_found() {
        let lost = |tx_in_flight, lost| LostSegment {
            tx_in_flight,
            lost,
            ..LostSegment::default()
        };
        // The first loss of a flight of 40 crossed it at once: all before were delivered.
        assert_eq!(in_flight_at_loss(&lost(40, 1)), 39);
        // Earlier losses had crossed it.
        assert_eq!(in_flight_at_loss(&lost(100, 10)), 99);
        assert_eq!(in_flight_at_loss(&lost(0, 0)), 0);
    }
}
