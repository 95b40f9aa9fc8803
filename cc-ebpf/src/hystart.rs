//! HyStart++ (RFC 9406): leaving slow start when the RTT rises, before the queue overflows.
//!
//! The limit L on the growth per ACK is left out, as Linux has none either: its ACKs cover up to a
//! whole TSO burst, and the sender is paced.
//!
//! The RTT rises a round trip after the path is full, when slow start has sent twice what the path
//! holds. A flow that leaves slow start at once ([`Settings::drains_slow_start`]) can do so
//! earlier, by the length of an *ACK train* (Ha, Rhee: Taming the elephants, Computer Networks 55,
//! 2011; and `hystart_update` in net/ipv4/tcp_cubic.c, Linux 6.18): ACKs that follow one another
//! closely, as a bottleneck spaces them.
//!
//! [`Settings::drains_slow_start`]: crate::Settings::drains_slow_start

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample, CwndState,
    bounds::{at_least, at_most, exceeds, select},
};

/// `MIN_RTT_THRESH`: the smallest rise of the RTT that counts, µs.
const LEAST_RISE_US: u32 = 4_000;
/// `MAX_RTT_THRESH`: the largest rise that is waited for, µs.
const MOST_RISE_US: u32 = 16_000;
/// `MIN_RTT_DIVISOR`: between the two, the rise that counts is this part of the RTT.
const RISE_DIVISOR: u32 = 8;
/// `N_RTT_SAMPLE`: RTT samples that a round trip needs before it is judged.
const SAMPLES: u32 = 8;
/// `CSS_GROWTH_DIVISOR`: how much slower conservative slow start grows.
const SLOWDOWN: u32 = 4;
/// `CSS_ROUNDS`: round trips of conservative slow start before slow start ends.
const CONSERVATIVE_ROUNDS: u32 = 5;

/// An ACK belongs to the train where it follows the last one within this part of the smoothed RTT.
/// Receivers acknowledge two segments at a time: a path that holds fewer than twelve has no train.
const TRAIN_GAP_DIVISOR: u32 = 6;
/// A train that is longer than this many sixteenths of the smoothed RTT has been spaced by the
/// path. The sender itself spaces a round trip's segments over a quarter of one
/// ([`Gains::UNDECIDED`](crate::Gains::UNDECIDED)).
const TRAIN_SIXTEENTHS: u32 = 9;

/// The ACK train under way: ACKs that follow one another closely.
///
/// Round trips do not cut it. A round trip of HyStart++ ends with the last ACK of what was in
/// flight at its beginning, which in slow start is the last one before a gap: a train that began
/// there would be that one ACK. (CUBIC's round trips end one ACK later, behind the gap.)
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Train {
    /// Segments delivered in all up to its first ACK, modulo 2^32.
    first: u32,
    /// From its first ACK to its last one, µs.
    length_us: u32,
    /// When its last ACK came, ns; 0 before the first of all, which is long ago.
    last_ns: u64,
}

// Nothing here branches: the verifier would follow all that comes after an ACK on either path.
impl Train {
    #[inline(always)]
    fn on_ack(&mut self, ack: &AckSample) {
        let gap_us = ack.now_ns.wrapping_sub(self.last_ns) / 1_000;
        let begins = exceeds(gap_us, ack.srtt_us / TRAIN_GAP_DIVISOR);
        self.first = select(begins, ack.totals.delivered, self.first);
        self.length_us = self.length_us.wrapping_add(gap_us as u32) & !begins;
        self.last_ns = ack.now_ns;
    }

    /// All ones where the train is longer than the sender's own spacing would make it, otherwise 0.
    #[inline(always)]
    fn spaced_by_path(&self, ack: &AckSample) -> u32 {
        exceeds(self.length_us.into(), ack.srtt_us / 16 * TRAIN_SIXTEENTHS)
    }
}

/// The state of HyStart++ of one flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct HyStart {
    /// Least RTT of the last round trip, µs; 0 when it measured none.
    last_us: u32,
    /// Least RTT of this round trip so far, µs; 0 before the first sample.
    current_us: u32,
    /// RTT samples in this round trip.
    samples: u32,
    /// The RTT at which conservative slow start began, µs; 0 outside it.
    baseline_us: u32,
    /// Round trips of conservative slow start that have ended.
    rounds: u32,
    /// Acknowledged segments that conservative slow start has not yet counted.
    credit: u32,
    train: Train,
}

impl HyStart {
    /// Begins slow start anew, with nothing measured.
    #[inline(always)]
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Whether the RTT has risen, or an ACK train has shown that the path is full, so that slow
    /// start is conservative (`CSS`).
    #[inline(always)]
    pub(crate) fn is_conservative(&self) -> bool {
        self.baseline_us != 0
    }

    /// Takes an ACK in slow start. `begins_round` says whether it begins a new round trip,
    /// `by_trains` whether the length of an ACK train counts as well as the RTT.
    ///
    /// Returns the acknowledged segments by which slow start may grow. At its end, sets ssthresh to
    /// the cwnd.
    #[inline(always)]
    pub(crate) fn on_ack(
        &mut self,
        cwnd: &mut CwndState,
        ack: &AckSample,
        begins_round: bool,
        by_trains: bool,
    ) -> u32 {
        if begins_round {
            self.last_us = self.current_us;
            self.current_us = 0;
            self.samples = 0;
            if self.baseline_us != 0 {
                self.rounds += 1;
                if self.rounds >= CONSERVATIVE_ROUNDS {
                    cwnd.ssthresh = cwnd.cwnd;
                    self.restart();
                    return ack.acked;
                }
            }
        }
        if ack.rtt_us != 0 {
            self.samples = self.samples.saturating_add(1);
            if self.current_us == 0 || ack.rtt_us < self.current_us {
                self.current_us = ack.rtt_us;
            }
        }
        if self.samples >= SAMPLES {
            if self.baseline_us == 0 {
                let rise = at_most(self.last_us / RISE_DIVISOR, MOST_RISE_US);
                let rise = at_least(rise, LEAST_RISE_US);
                if self.last_us != 0 && self.current_us >= self.last_us.saturating_add(rise) {
                    self.baseline_us = self.current_us;
                    self.rounds = 0;
                }
            } else if self.current_us < self.baseline_us {
                // The rise was not a queue: slow start goes on.
                self.baseline_us = 0;
            }
        }
        if by_trains {
            self.train.on_ack(ack);
            let spaced = self.train.spaced_by_path(ack) != 0;
            if self.baseline_us == 0 && self.samples >= SAMPLES && spaced {
                self.baseline_us = at_least(self.current_us, 1);
                self.rounds = 0;
            }
        }
        if self.baseline_us == 0 {
            return ack.acked;
        }
        let credit = self.credit.saturating_add(ack.acked);
        self.credit = credit % SLOWDOWN;
        credit / SLOWDOWN
    }

    /// The rate at which the path delivers, as segments and the time for them in µs: the train's,
    /// where the path has spaced it, otherwise that of the ACK's rate sample.
    ///
    /// The rate sample of an ACK in a train has in it the time before the train in which the path
    /// had nothing to deliver.
    #[inline(always)]
    pub(crate) fn rate(&self, ack: &AckSample) -> (u32, u32) {
        let spaced = self.train.spaced_by_path(ack);
        let segments = ack.totals.delivered.wrapping_sub(self.train.first);
        (
            select(spaced, segments, ack.delivered),
            select(spaced, self.train.length_us, ack.interval_us),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::tests::ack;

    /// Runs one round trip of `acks` ACKs of two segments each with this RTT, and returns by how
    /// much slow start may grow.
    fn round(hystart: &mut HyStart, cwnd: &mut CwndState, rtt_us: u32, acks: u32) -> u32 {
        let sample = AckSample { rtt_us, ..ack() };
        (0..acks)
            .map(|index| hystart.on_ack(cwnd, &sample, index == 0, false))
            .sum()
    }

    fn slow_start() -> CwndState {
        CwndState {
            cwnd: 50,
            ssthresh: u32::MAX,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        }
    }

    #[test]
    fn a_constant_rtt_leaves_slow_start_as_it_is() {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        for _ in 0..20 {
            assert_eq!(round(&mut hystart, &mut cwnd, 30_000, 10), 20);
        }
        assert_eq!(cwnd.ssthresh, u32::MAX);
    }

    #[test]
    fn a_rise_of_the_rtt_slows_the_growth_and_then_ends_it() {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        round(&mut hystart, &mut cwnd, 40_000, 10);
        let grown = round(&mut hystart, &mut cwnd, 45_000, 16);
        assert_eq!(
            grown,
            7 * 2 + 9 * 2 / 4,
            "an eighth more, from the eighth sample on"
        );
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, &mut cwnd, 46_000, 16), 8);
            assert_eq!(cwnd.ssthresh, u32::MAX);
        }
        round(&mut hystart, &mut cwnd, 46_000, 1);
        assert_eq!(cwnd.ssthresh, 50);
    }

    #[test]
    fn a_rise_that_passes_resumes_slow_start() {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        round(&mut hystart, &mut cwnd, 40_000, 10);
        round(&mut hystart, &mut cwnd, 46_000, 10);
        round(&mut hystart, &mut cwnd, 41_000, 10);
        assert_eq!(round(&mut hystart, &mut cwnd, 41_000, 10), 20);
    }

    /// Sends ACKs of two segments each, with an RTT of 32 ms, after these gaps in µs; every
    /// `round`th of them begins a round trip. Returns the one after which slow start was
    /// conservative, and the rate that its train shows.
    fn train(
        gaps_us: impl IntoIterator<Item = u64>,
        round: usize,
        by_trains: bool,
    ) -> Option<(usize, (u32, u32))> {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        let mut sample = AckSample {
            rtt_us: 32_000,
            srtt_us: 32_000,
            ..ack()
        };
        gaps_us.into_iter().enumerate().find_map(|(index, gap_us)| {
            sample.now_ns += gap_us * 1_000;
            sample.totals.delivered += 2;
            hystart.on_ack(&mut cwnd, &sample, index % round == 0, by_trains);
            (hystart.is_conservative()).then(|| (index, hystart.rate(&sample)))
        })
    }

    #[test]
    fn a_train_longer_than_the_senders_own_spacing_shows_that_the_path_is_full() {
        // Nine sixteenths of 32 ms are 18 ms: after 18 gaps of 1 ms, and a little.
        let steady = |acks, gap_us| core::iter::repeat_n(gap_us, acks);
        let full = |acks, time_us| Some((acks, (2 * acks as u32, time_us)));
        assert_eq!(train(steady(32, 1_000), 99, true), full(19, 19_000));
        assert_eq!(train(steady(19, 1_000), 99, true), None, "not longer");
        assert_eq!(train(steady(32, 1_000), 99, false), None, "only the RTT");
        assert_eq!(train(steady(32, 3_000), 99, true), full(7, 21_000));
        assert_eq!(train(steady(7, 3_000), 99, true), None, "seven samples");
        assert_eq!(train(steady(32, 6_000), 99, true), None, "too far apart");
    }

    #[test]
    fn a_gap_begins_a_train_and_a_round_trip_does_not() {
        // Ten ACKs, a gap of 22 ms, and the other ACKs of a full path.
        let gaps = || (0..40).map(|index| if index == 10 { 22_000 } else { 1_000 });
        let full = Some((29, (38, 19_000)));
        for round in [99, 20, 11] {
            assert_eq!(train(gaps(), round, true), full, "round trips of {round}");
        }
        let bursts = (0..99).map(|index| if index % 16 == 0 { 17_000 } else { 1_000 });
        assert_eq!(train(bursts, 16, true), None);
    }

    #[test]
    fn small_rises_and_few_samples_do_not_count() {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        round(&mut hystart, &mut cwnd, 1_000, 10);
        assert_eq!(round(&mut hystart, &mut cwnd, 4_900, 10), 20, "under 4 ms");
        assert_eq!(
            round(&mut hystart, &mut cwnd, 90_000, 7),
            14,
            "seven samples"
        );
    }
}
