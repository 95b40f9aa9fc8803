//! Round trips of a flow, by what it has delivered.

use bytemuck::{Pod, Zeroable};

use crate::AckSample;

/// Losses count as heavy from this many segments in a round trip on ...
const HEAVY_SEGMENTS: u32 = 4;
/// ... when they are also at least one in this many segments of the cwnd.
const HEAVY_ONE_IN: u32 = 4;

/// The round trip under way: it ends once everything that was in flight at its beginning has been
/// delivered, or as much in its place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Round {
    /// The round trip ends when this many segments have been delivered in all ([`Totals`]), modulo
    /// 2^32.
    ///
    /// [`Totals`]: crate::Totals
    end: u32,
    /// Segments found lost in this round trip.
    lost: u32,
    /// 1 while the congestion that began this round trip is answered by a reduction, otherwise 0.
    answered: u32,
    _reserved: u32,
}

impl Round {
    /// Begins the first round trip of a flow that has delivered this many segments.
    #[inline(always)]
    pub(crate) fn start(&mut self, delivered: u32) {
        self.end = delivered;
        self.lost = 0;
        self.answered = 0;
    }

    /// Counts an ACK. Returns whether it began a new round trip, to which it then belongs.
    #[inline(always)]
    pub(crate) fn on_ack(&mut self, ack: &AckSample) -> bool {
        let delivered = ack.totals.delivered;
        let begins = delivered.wrapping_sub(self.end) as i32 >= 0;
        if begins {
            self.start(delivered.wrapping_add(ack.in_flight));
        }
        self.lost = self.lost.saturating_add(ack.lost);
        begins
    }

    /// Whether so much of a cwnd of `cwnd` segments was lost in this round trip that it has to be
    /// answered before the next decision: a quarter, and at least four segments.
    #[inline(always)]
    pub(crate) fn has_heavy_loss(&self, cwnd: u32) -> bool {
        self.lost >= HEAVY_SEGMENTS && u64::from(self.lost) * u64::from(HEAVY_ONE_IN) >= cwnd.into()
    }

    /// Whether congestion in this round trip has been answered.
    #[inline(always)]
    pub(crate) fn is_answered(&self) -> bool {
        self.answered != 0
    }

    /// Records that congestion is answered with this ACK, which begins a round trip: further losses
    /// and marks of what is in flight now belong to the same congestion.
    #[inline(always)]
    pub(crate) fn answer(&mut self, ack: &AckSample) {
        // The ACK of the last segment in flight still belongs to it, with its mark.
        let flight = ack.in_flight.wrapping_add(1);
        self.start(ack.totals.delivered.wrapping_add(flight));
        self.answered = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::tests::ack;

    fn delivered(segments: u32, in_flight: u32) -> AckSample {
        let mut sample = ack();
        sample.totals.delivered = segments;
        sample.in_flight = in_flight;
        sample
    }

    #[test]
    fn a_round_trip_lasts_until_its_flight_is_delivered() {
        let mut round = Round::default();
        round.start(u32::MAX - 1);
        assert!(round.on_ack(&delivered(u32::MAX, 10)));
        assert!(!round.on_ack(&delivered(8, 12)));
        assert!(round.on_ack(&delivered(9, 12)));
        assert!(!round.on_ack(&delivered(20, 12)));
        assert!(round.on_ack(&delivered(21, 0)));
        assert!(round.on_ack(&delivered(22, 0)), "nothing was in flight");
    }

    #[test]
    fn heavy_loss_is_a_quarter_of_the_cwnd_within_one_round_trip() {
        let mut round = Round::default();
        round.on_ack(&delivered(1, 30));
        round.on_ack(&AckSample {
            lost: 3,
            ..delivered(5, 26)
        });
        assert!(!round.has_heavy_loss(10), "three segments are few");
        round.on_ack(&AckSample {
            lost: 1,
            ..delivered(6, 25)
        });
        assert!(round.has_heavy_loss(16) && !round.has_heavy_loss(17));
        assert!(!round.is_answered());
        round.answer(&delivered(6, 25));
        assert!(round.is_answered() && !round.has_heavy_loss(10));
        assert!(!round.on_ack(&delivered(31, 20)), "the last of the flight");
        assert!(round.is_answered());
        assert!(round.on_ack(&delivered(32, 30)));
        assert!(!round.is_answered());
    }
}
