//! Round trips of a flow, by what it has delivered, and what it has lost in them.

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample,
    bounds::{at_least, at_most, at_most_64},
};

/// Losses count as heavy from this many segments in a round trip on ...
const HEAVY_SEGMENTS: u32 = 4;
/// ... when they are also at least one in this many segments, ...
const HEAVY_ONE_IN: u32 = 4;
/// Where packets wait in a queue, so that it is the queue that loses them, losses count from this
/// many segments on ...
const QUEUE_SEGMENTS: u32 = 2;
/// ... when they are at least one in this many.
const QUEUE_ONE_IN: u32 = 20;
/// A cwnd of fewer segments than this is small: hardly ever does it lose two of them in one round
/// trip, so that what it loses is looked at over several, ...
pub(crate) const SMALL_CWND: u32 = 16;
/// ... in which losses count from this many segments on ...
const SMALL_SEGMENTS: u32 = 8;
/// ... when they are at least one in this many, ...
const SMALL_ONE_IN: u32 = 12;
/// ... of the last segments sent. Once they are this many, they and their losses count half.
const MEMORY: u32 = 256;
/// Packets wait in a queue where no RTT of a round trip is within one in this many of the least one
/// of the flow. A single one is enough to tell that none wait: jitter and ACKs that come in batches
/// make most RTTs longer than the path, a queue makes all of them longer.
const QUEUED_ONE_IN: u32 = 4;

/// The congestion that began the round trip has been answered by a reduction.
const ANSWERED: u32 = 1;
/// The round trip before lost heavily, and nothing has answered it.
const HEAVY: u32 = 2;

/// The shortest and the longest RTT of a round trip, µs; 0 where it has measured none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Rtts {
    shortest_us: u32,
    longest_us: u32,
}

impl Rtts {
    /// Takes the RTT that an ACK has measured, µs; 0 where it has measured none.
    #[inline(always)]
    fn take(&mut self, rtt_us: u32) {
        self.shortest_us = shorter(self.shortest_us, rtt_us);
        self.longest_us = at_least(self.longest_us, rtt_us);
    }

    #[inline(always)]
    fn is_known(&self) -> bool {
        self.longest_us != 0
    }
}

/// The shorter of two RTTs, of which either may be 0, which is not known.
#[inline(always)]
fn shorter(one_us: u32, other_us: u32) -> u32 {
    match (one_us, other_us) {
        (0, known) | (known, 0) => known,
        _ => at_most(one_us, other_us),
    }
}

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
    /// The least RTT that the flow has measured, µs; 0 before the first.
    least_rtt_us: u32,
    /// The RTTs of this round trip.
    rtts: Rtts,
    /// The RTTs of the last round trip before that has measured any.
    former_rtts: Rtts,
    /// Segments found lost in former round trips, halved whenever `past_sent` is.
    past_lost: u32,
    /// Segments delivered or lost in the same round trips, halved whenever they are [`MEMORY`].
    past_sent: u32,
}

impl Round {
    /// Begins the first round trip of a flow that has delivered this many segments.
    #[inline(always)]
    pub(crate) fn open(&mut self, delivered: u32) {
        *self = Self::default();
        self.start(delivered, 0);
    }

    /// Begins a round trip of a flow that has delivered this many segments, with this many in
    /// flight, whose losses so far have been answered by other means.
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
        if self.rtts.is_known() {
            self.former_rtts = self.rtts;
            self.rtts = Rtts::default();
        }
    }

    /// Counts an ACK. Returns whether it began a new round trip, to which it then belongs.
    #[inline(always)]
    pub(crate) fn on_ack(&mut self, ack: &AckSample) -> bool {
        self.least_rtt_us = shorter(self.least_rtt_us, ack.rtt_us);
        self.rtts.take(ack.rtt_us);
        let delivered = ack.totals.delivered;
        let begins = delivered.wrapping_sub(self.end) as i32 >= 0;
        if begins {
            let sent = self.sent(delivered);
            let congestion = if !self.is_answered() && self.is_heavy(sent) {
                HEAVY
            } else {
                0
            };
            self.remember(sent);
            self.begin(delivered, ack.in_flight, congestion);
        }
        self.lost = self.lost.saturating_add(ack.lost);
        begins
    }

    /// Segments delivered or lost in this round trip, with this many delivered in all.
    #[inline(always)]
    fn sent(&self, delivered: u32) -> u32 {
        delivered.wrapping_sub(self.begin).saturating_add(self.lost)
    }

    /// Counts the round trip, which ends with so many segments delivered or lost in it, among the
    /// former ones.
    #[inline(always)]
    fn remember(&mut self, sent: u32) {
        self.past_lost = self.past_lost.saturating_add(self.lost);
        self.past_sent = self.past_sent.saturating_add(sent);
        if self.past_sent >= MEMORY {
            self.past_lost /= 2;
            self.past_sent /= 2;
        }
    }

    /// Whether packets wait in a queue, by the shortest RTT of this round trip, or of the one
    /// before where this one has measured none yet.
    #[inline(always)]
    fn is_queued(&self) -> bool {
        let rtts = match self.rtts.is_known() {
            true => self.rtts,
            false => self.former_rtts,
        };
        let longer = rtts.shortest_us.saturating_sub(self.least_rtt_us);
        longer > self.least_rtt_us / QUEUED_ONE_IN
    }

    /// The longest RTT of this round trip and the one before, µs; 0 before the first.
    #[inline(always)]
    pub(crate) fn longest_rtt_us(&self) -> u32 {
        at_least(self.rtts.longest_us, self.former_rtts.longest_us)
    }

    /// The segments that the path holds without a queue: by the time in which it has delivered so
    /// many, µs, and the least RTT of the flow. 0 where either is not known.
    #[inline(always)]
    pub(crate) fn held_by_path(&self, segments: u32, time_us: u32) -> u32 {
        let time_us = u64::from(at_least(time_us, 1));
        let held = u64::from(segments) * u64::from(self.least_rtt_us) / time_us;
        at_most_64(held, u32::MAX.into()) as u32
    }

    /// Whether so much was lost that it has to be answered before the next decision: at least four
    /// segments, and a quarter of the cwnd within this round trip, or of all that the one before
    /// delivered or lost. The former is known sooner, the latter holds for flows that lose too
    /// steadily to ever fill their cwnd.
    ///
    /// Where packets wait in a queue, two segments and a twentieth are enough: those who share a
    /// full queue lose what all of them together send too much, and each of them alone would lose
    /// hardly less by sending less.
    ///
    /// Where the cwnd is small, a single segment is enough while losses
    /// [persist](Self::loss_persists), whether or not the RTT shows a queue: a queue that was full
    /// before the flow began is in its least RTT.
    #[inline(always)]
    pub(crate) fn has_heavy_loss(&self, cwnd: u32) -> bool {
        self.congestion == HEAVY || self.is_heavy(cwnd)
    }

    /// Whether what was lost of these segments is heavy loss.
    #[inline(always)]
    fn is_heavy(&self, of: u32) -> bool {
        let (segments, one_in) = match self.is_queued() {
            false => (HEAVY_SEGMENTS, HEAVY_ONE_IN),
            true => (QUEUE_SEGMENTS, QUEUE_ONE_IN),
        };
        if of < SMALL_CWND && self.lost > 0 && self.loss_persists(of) {
            return true;
        }
        self.lost >= segments && u64::from(self.lost) * u64::from(one_in) >= of.into()
    }

    /// Whether a flow with this cwnd has lost at least eight segments and a twelfth of the last two
    /// hundred or so.
    #[inline(always)]
    pub(crate) fn loss_persists(&self, cwnd: u32) -> bool {
        let lost = self.past_lost.saturating_add(self.lost);
        let sent = u64::from(self.past_sent) + u64::from(cwnd);
        lost >= SMALL_SEGMENTS && u64::from(lost) * u64::from(SMALL_ONE_IN) >= sent
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
        self.remember(self.sent(ack.totals.delivered));
        // The ACK of the last segment in flight still belongs to it, with its mark.
        let flight = ack.in_flight.wrapping_add(1);
        self.begin(ack.totals.delivered, flight, ANSWERED);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::feature::tests::ack;
    use std::vec::Vec;

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
        assert!(!round.has_heavy_loss(16), "three segments are few");
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
    fn where_the_cwnd_is_small_losses_that_persist_are_heavy() {
        // Round trips of eight segments, of which the n-th loses `lost[n]`; returns in which of
        // them the loss is heavy.
        let heavy = |lost: &[u32]| -> Vec<usize> {
            let mut round = Round::default();
            round.open(0);
            let mut delivered = 0;
            let mut heavy = Vec::new();
            for (n, &lost) in lost.iter().enumerate() {
                delivered += 8 - lost;
                let ack = AckSample {
                    lost,
                    ..self::delivered(delivered, 5)
                };
                assert!(round.on_ack(&ack));
                if round.has_heavy_loss(8) {
                    heavy.push(n);
                    round.answer(&ack);
                }
            }
            heavy
        };
        let often = [1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1];
        assert_eq!(heavy(&often), [10], "from the eighth segment on");
        let seldom: [u32; 120] = core::array::from_fn(|n| (n % 3 == 0).into());
        assert_eq!(heavy(&seldom), [0; 0], "one in 24");
        let mut once = [0; 160];
        (once[..8]).fill(1);
        once[159] = 1;
        assert_eq!(heavy(&once), [7], "former losses are forgotten");

        let mut round = Round::default();
        round.open(0);
        round.on_ack(&delivered(1, 12));
        for (lost, segments) in [(6, 12), (2, 60)] {
            round.on_ack(&AckSample {
                lost,
                ..delivered(segments, 12)
            });
        }
        assert!(round.has_heavy_loss(SMALL_CWND - 1) && !round.has_heavy_loss(SMALL_CWND));
    }

    fn with_rtt(rtt_us: u32, sample: AckSample) -> AckSample {
        AckSample { rtt_us, ..sample }
    }

    #[test]
    fn where_packets_wait_in_a_queue_less_loss_is_heavy() {
        let mut round = Round::default();
        round.open(0);
        // The least RTT is that of all round trips.
        round.on_ack(&with_rtt(20_000, delivered(1, 100)));
        round.on_ack(&with_rtt(30_000, delivered(102, 100)));
        let lost = |rtt_us, lost| AckSample {
            lost,
            ..with_rtt(rtt_us, delivered(110, 100))
        };
        let mut idle = round;
        idle.on_ack(&lost(25_000, 5));
        assert!(
            !idle.has_heavy_loss(100),
            "a quarter longer is no queue yet"
        );
        let mut queued = round;
        queued.on_ack(&lost(25_001, 5));
        assert!(queued.has_heavy_loss(100) && !queued.has_heavy_loss(101));
        queued = round;
        queued.on_ack(&lost(25_001, 1));
        assert!(!queued.has_heavy_loss(10), "a single segment is little");
        // Before its first RTT a round trip is taken to be like the one before.
        queued = round;
        queued.on_ack(&lost(0, 5));
        assert!(queued.has_heavy_loss(100) && !queued.has_heavy_loss(101));
        // A single RTT tells that the others have jitter, or come with ACKs of later packets.
        let mut jitter = round;
        jitter.on_ack(&with_rtt(24_000, delivered(105, 100)));
        jitter.on_ack(&lost(60_000, 5));
        assert!(!jitter.has_heavy_loss(100));
        // A slot's next flow has another path.
        round.open(200);
        round.on_ack(&with_rtt(0, delivered(201, 100)));
        round.on_ack(&lost(0, 5));
        assert!(round.has_heavy_loss(20) && !round.has_heavy_loss(21));
    }

    #[test]
    fn the_longest_rtt_is_that_of_two_round_trips() {
        let mut round = Round::default();
        round.open(0);
        assert_eq!(round.longest_rtt_us(), 0);
        let mut longest = |rtt_us, segments| {
            round.on_ack(&with_rtt(rtt_us, delivered(segments, 10)));
            round.longest_rtt_us()
        };
        assert_eq!(longest(50, 1), 50, "it ends a round trip");
        assert_eq!(longest(30, 2), 50);
        assert_eq!(longest(0, 11), 30, "the first one is over");
        assert_eq!(longest(20, 12), 30);
        assert_eq!(longest(0, 21), 20);
        assert_eq!(
            longest(0, 31),
            20,
            "a round trip without an RTT is passed over"
        );
    }

    #[test]
    fn a_path_holds_its_rate_times_its_least_rtt() {
        let mut round = Round::default();
        assert_eq!(round.held_by_path(30, 40_000), 0, "no RTT yet");
        round.on_ack(&AckSample {
            rtt_us: 20_000,
            ..ack()
        });
        assert_eq!(round.held_by_path(30, 40_000), 15);
        assert_eq!(round.held_by_path(0, 0), 0);
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
