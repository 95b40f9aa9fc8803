//! HyStart++ (RFC 9406): leaving slow start when the RTT rises, before the queue overflows.
//!
//! The limit L on the growth per ACK is left out, as Linux has none either: its ACKs cover up to a
//! whole TSO burst, and the sender is paced.
//!
//! The RTT rises a round trip after the path is full, when slow start has sent twice what the path
//! holds. A flow that leaves slow start at once ([`Settings::drains_slow_start`]) can do so
//! earlier, by the length of an *ACK train* (Ha, Rhee: Taming the elephants, Computer Networks 55,
//! 2011; and `hystart_update` in net/ipv4/tcp_cubic.c, Linux 6.18): ACKs of one round trip that
//! follow one another closely, as a bottleneck spaces them.
//!
//! [`Settings::drains_slow_start`]: crate::Settings::drains_slow_start

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample, CwndState,
    bounds::{at_least, at_most},
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
const TRAIN_GAP_DIVISOR: u64 = 6;
/// A train that is longer than this many eighths of the smoothed RTT has been spaced by the path.
/// The sender itself spaces a round trip's segments over a quarter of one ([`Gains::UNDECIDED`]).
///
/// [`Gains::UNDECIDED`]: crate::Gains::UNDECIDED
const TRAIN_EIGHTHS: u64 = 5;

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
    /// When this round trip began, ns; 0 before the first.
    began_ns: u64,
    /// The last ACK of this round trip's train, ns.
    train_ns: u64,
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
            self.began_ns = ack.now_ns;
            self.train_ns = ack.now_ns;
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
        if by_trains && self.baseline_us == 0 && self.is_spaced_by_path(ack) {
            self.baseline_us = at_least(self.current_us, 1);
            self.rounds = 0;
        }
        if self.baseline_us == 0 {
            return ack.acked;
        }
        let credit = self.credit.saturating_add(ack.acked);
        self.credit = credit % SLOWDOWN;
        credit / SLOWDOWN
    }

    /// Adds an ACK to the round trip's train, and returns whether that has become longer than the
    /// sender's own spacing would make it.
    #[inline(always)]
    fn is_spaced_by_path(&mut self, ack: &AckSample) -> bool {
        let rtt_ns = u64::from(ack.srtt_us) * 1_000;
        let gap_ns = ack.now_ns.wrapping_sub(self.train_ns);
        if self.began_ns == 0 || gap_ns > rtt_ns / TRAIN_GAP_DIVISOR {
            return false;
        }
        self.train_ns = ack.now_ns;
        let length_ns = ack.now_ns.wrapping_sub(self.began_ns);
        self.samples >= SAMPLES && length_ns > rtt_ns / 8 * TRAIN_EIGHTHS
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

    /// Runs one round trip of 32 ms, with ACKs of two segments this many µs apart, and returns the
    /// one after which slow start was conservative.
    fn train(acks: u32, gap_us: u64, by_trains: bool) -> Option<u32> {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        let mut sample = AckSample {
            rtt_us: 32_000,
            srtt_us: 32_000,
            ..ack()
        };
        (0..acks).find(|&index| {
            hystart.on_ack(&mut cwnd, &sample, index == 0, by_trains);
            sample.now_ns += gap_us * 1_000;
            hystart.is_conservative()
        })
    }

    #[test]
    fn a_train_longer_than_the_senders_own_spacing_shows_that_the_path_is_full() {
        // Five eighths of 32 ms are 20 ms: after 20 gaps of 1 ms, and a little.
        assert_eq!(train(32, 1_000, true), Some(21));
        assert_eq!(train(20, 1_000, true), None, "half of an RTT and a little");
        assert_eq!(train(32, 1_000, false), None, "only the RTT counts");
        assert_eq!(train(32, 3_000, true), Some(7), "not before eight samples");
        assert_eq!(train(32, 6_000, true), None, "too far apart");
    }

    #[test]
    fn a_gap_ends_a_train_for_the_rest_of_the_round_trip() {
        let (mut hystart, mut cwnd) = (HyStart::default(), slow_start());
        let mut sample = AckSample {
            rtt_us: 32_000,
            srtt_us: 32_000,
            ..ack()
        };
        for index in 0..40 {
            sample.now_ns += if index == 10 { 6_000_000 } else { 1_000_000 };
            hystart.on_ack(&mut cwnd, &sample, index == 0, true);
            assert!(!hystart.is_conservative(), "after {index}");
        }
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
