//! HyStart++ (RFC 9406): when the RTTs of a round have grown, slow start goes on at a quarter of
//! its pace. It ends when that lasts for five rounds, and returns to full pace if the growth was
//! spurious. Names in capitals are the RFC's.

use cc_ebpf::{AckSample, CwndState};

use super::super::RateSample;

/// Bounds of the growth of the RTT that counts, µs (MIN_RTT_THRESH, MAX_RTT_THRESH).
const GROWTH_US: (u32, u32) = (4_000, 16_000);
/// The growth that counts, as a part of the RTT (MIN_RTT_DIVISOR).
const GROWTH_DIVISOR: u32 = 8;
/// Number of samples that a round needs (N_RTT_SAMPLE).
const SAMPLES: u32 = 8;
/// Factor by which conservative slow start is slower (CSS_GROWTH_DIVISOR).
const PACE_DIVISOR: u32 = 4;
/// Number of rounds of conservative slow start (CSS_ROUNDS).
const ROUNDS: u32 = 5;
/// Segments by which the cwnd may grow per ACK when segments are not paced (L).
const LIMIT: u32 = 8;

/// The state of HyStart++ for one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HystartPlusPlus {
    phase: CssPhase,
    /// The round is over when this segment is acknowledged (windowEnd).
    end: u64,
    /// Smallest RTT of the previous round in µs (lastRoundMinRTT).
    last_rtt_us: Option<u32>,
    /// Smallest RTT of this round in µs (currentRoundMinRTT).
    rtt_us: Option<u32>,
    samples: u32,
    /// Acknowledged segments that conservative slow start has not grown by yet.
    credit: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CssPhase {
    #[default]
    SlowStart,
    Conservative {
        /// RTT when conservative slow start began, µs (cssBaselineMinRtt).
        baseline_us: u32,
        rounds: u32,
    },
    /// Slow start is over, or follows a loss, when HyStart++ does not apply (section 4.3).
    Off,
}

impl HystartPlusPlus {
    /// The state after a loss: HyStart++ is for the initial slow start only.
    pub(super) fn after_loss() -> Self {
        Self {
            phase: CssPhase::Off,
            ..Self::default()
        }
    }

    /// Takes an ACK with or without an RTT sample (section 4.2).
    pub(super) fn measure(&mut self, ack: &AckSample, rate: &RateSample) {
        if rate.snd_una > self.end {
            self.end = rate.snd_nxt;
            self.last_rtt_us = self.rtt_us.take();
            self.samples = 0;
            if let CssPhase::Conservative { rounds, .. } = &mut self.phase {
                *rounds += 1;
            }
        }
        if ack.rtt_us == 0 {
            return;
        }
        let rtt_us = self.rtt_us.map_or(ack.rtt_us, |rtt| rtt.min(ack.rtt_us));
        self.rtt_us = Some(rtt_us);
        self.samples += 1;
        if self.samples < SAMPLES {
            return;
        }
        match self.phase {
            CssPhase::SlowStart if self.last_rtt_us.is_some_and(|last| has_grown(rtt_us, last)) => {
                self.phase = CssPhase::Conservative {
                    baseline_us: rtt_us,
                    rounds: 0,
                };
                self.credit = 0;
            }
            CssPhase::Conservative { baseline_us, .. } if rtt_us < baseline_us => {
                self.phase = CssPhase::SlowStart;
            }
            _ => {}
        }
    }

    /// Returns the segments by which slow start may grow for `acked` ones. Sets ssthresh when
    /// conservative slow start has lasted for long enough.
    pub(super) fn growth(&mut self, cwnd: &mut CwndState, acked: u32) -> u32 {
        match self.phase {
            CssPhase::SlowStart => acked.min(LIMIT),
            CssPhase::Conservative { rounds, .. } if rounds < ROUNDS => {
                self.credit += acked.min(LIMIT);
                let growth = self.credit / PACE_DIVISOR;
                self.credit %= PACE_DIVISOR;
                growth
            }
            CssPhase::Conservative { .. } => {
                self.phase = CssPhase::Off;
                cwnd.ssthresh = cwnd.cwnd;
                acked
            }
            CssPhase::Off => acked,
        }
    }
}

fn has_grown(rtt_us: u32, last_us: u32) -> bool {
    let (least, most) = GROWTH_US;
    rtt_us >= last_us.saturating_add((last_us / GROWTH_DIVISOR).clamp(least, most))
}
