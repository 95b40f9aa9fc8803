//! Round trips of a flow, by what it has delivered, and what it has lost in them.

use bytemuck::{Pod, Zeroable};

use crate::AckSample;

/// Losses count as heavy from this many segments in a round trip on ...
const HEAVY_SEGMENTS: u32 = 4;
/// ... when they are also at least one in this many segments.
const HEAVY_ONE_IN: u32 = 4;

/// The congestion that began the round trip has been answered by a reduction.
const ANSWERED: u32 = 1;
/// The round trip before lost heavily, and nothing has answered it.
const HEAVY: u32 = 2;

/// The round trip under way: it ends once everything that was in flight at its beginning has been
/// delivered, or as much in its place.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Round {
    /// The segments delivered in all ([`Totals`]) when the round trip began, modulo 2^32.
    ///
    /// [`Totals`]: crate::Totals
    begin: u32,
    /// The round trip ends when this many segments have been delivered in all.
    end: u32,
    /// Segments found lost in this round trip.
    lost: u32,
    /// [`ANSWERED`], [`HEAVY`] or 0.
    congestion: u32,
}

impl Round {
    /// Begins the first round trip of a flow that has delivered this many segments, with this many
    /// in flight, or one whose losses so far have been answered by other means.
    #[inline(always)]
    pub(crate) fn start(&mut self, delivered: u32, in_flight: u32) {
        self.begin(delivered, in_flight, 0);
    }

    #[inline(always)]
    fn begin(&mut self, delivered: u32, in_flight: u32, congestion: u32) {
        self.begin = delivered;
        self.end = delivered.wrapping_add(in_flight);
        self.lost = 0;
        self.congestion = congestion;
    }

    /// Counts an ACK. Returns whether it began a new round trip, to which it then belongs.
    #[inline(always)]
    pub(crate) fn on_ack(&mut self, ack: &AckSample) -> bool {
        let delivered = ack.totals.delivered;
        let begins = delivered.wrapping_sub(self.end) as i32 >= 0;
        if begins {
            let sent = delivered.wrapping_sub(self.begin).saturating_add(self.lost);
            let congestion = if !self.is_answered() && is_heavy(self.lost, sent) {
                HEAVY
            } else {
                0
            };
            self.begin(delivered, ack.in_flight, congestion);
        }
        self.lost = self.lost.saturating_add(ack.lost);
        begins
    }

    /// Whether so much was lost that it has to be answered before the next decision: at least four
    /// segments, and a quarter of the cwnd within this round trip, or of all that the one before
    /// delivered or lost. The former is known sooner, the latter holds for flows that lose too
    /// steadily to ever fill their cwnd.
    #[inline(always)]
    pub(crate) fn has_heavy_loss(&self, cwnd: u32) -> bool {
        self.congestion == HEAVY || is_heavy(self.lost, cwnd)
    }

    /// Whether congestion in this round trip has been answered.
    #[inline(always)]
    pub(crate) fn is_answered(&self) -> bool {
        self.congestion == ANSWERED
    }

    /// Records that congestion is answered with this ACK, which begins a round trip: further losses
    /// and marks of what is in flight now belong to the same congestion.
    #[inline(always)]
    pub(crate) fn answer(&mut self, ack: &AckSample) {
        // The ACK of the last segment in flight still belongs to it, with its mark.
        let flight = ack.in_flight.wrapping_add(1);
        self.begin(ack.totals.delivered, flight, ANSWERED);
    }
}

/// Whether `lost` segments of these are heavy loss.
#[inline(always)]
fn is_heavy(lost: u32, of: u32) -> bool {
    lost >= HEAVY_SEGMENTS && u64::from(lost) * u64::from(HEAVY_ONE_IN) >= of.into()
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
        round.start(u32::MAX - 1, 0);
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

    #[test]
    fn heavy_loss_is_a_quarter_of_what_a_round_trip_sent() {
        // A flow that has 30 of 300 segments in flight, because it keeps losing.
        for (lost, heavy) in [(10, true), (9, false)] {
            let mut round = Round::default();
            round.on_ack(&delivered(1, 30));
            round.on_ack(&AckSample {
                lost,
                ..delivered(11, 30)
            });
            assert!(!round.has_heavy_loss(300), "known at the end");
            assert!(round.on_ack(&delivered(31, 30)));
            assert_eq!(round.has_heavy_loss(300), heavy, "{lost} of {}", 30 + lost);
            assert!(round.on_ack(&delivered(61, 30)));
            assert!(!round.has_heavy_loss(300), "of the round trip before only");
        }
        let mut round = Round::default();
        round.on_ack(&delivered(1, 30));
        round.answer(&delivered(1, 30));
        round.on_ack(&AckSample {
            lost: 20,
            ..delivered(11, 30)
        });
        assert!(round.on_ack(&delivered(32, 30)));
        assert!(!round.has_heavy_loss(300), "answered when it began");
    }
}
