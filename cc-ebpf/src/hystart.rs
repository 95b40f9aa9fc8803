//! HyStart++ (RFC 9406): leaving slow start when the RTT rises, before the queue overflows.
//!
//! The limit L on the growth per ACK is left out, as Linux has none either: its ACKs cover up to a
//! whole TSO burst, and the sender is paced.

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
}

impl HyStart {
    /// Begins slow start anew, with nothing measured.
    #[inline(always)]
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Whether the RTT has risen, so that slow start is conservative (`CSS`).
    #[inline(always)]
    pub(crate) fn is_conservative(&self) -> bool {
        self.baseline_us != 0
    }

    /// Takes an ACK in slow start. `begins_round` says whether it begins a new round trip.
    ///
    /// Returns the acknowledged segments by which slow start may grow. At its end, sets ssthresh to
    /// the cwnd.
    #[inline(always)]
    pub(crate) fn on_ack(
        &mut self,
        cwnd: &mut CwndState,
        ack: &AckSample,
        begins_round: bool,
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
        if self.baseline_us == 0 {
            return ack.acked;
        }
        let credit = self.credit.saturating_add(ack.acked);
        self.credit = credit % SLOWDOWN;
        credit / SLOWDOWN
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
            .map(|index| hystart.on_ack(cwnd, &sample, index == 0))
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
