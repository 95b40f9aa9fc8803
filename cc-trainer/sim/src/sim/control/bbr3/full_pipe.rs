//! Whether the pipe is full: by a plateau of the delivery rate (section 5.3.1.2), or by loss in
//! startup (section 5.3.1.3).

use super::Input;
use crate::sim::control::LostSegment;
use crate::sim::control::bbr::{bandwidth::Bandwidth, gain::Gain};

/// Number of rounds of growth below a quarter after which the pipe counts as full.
const ROUNDS: u32 = 3;
/// Number of separate ranges of lost segments in a round that end startup
/// (`BBRStartupFullLossCnt`).
pub(super) const LOST_RANGES: u32 = 6;

/// The search for a plateau of the delivery rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipe {
    /// The rate from which growth counts (`full_bw`).
    baseline: Bandwidth,
    /// Number of rounds without much growth (`full_bw_count`).
    rounds: u32,
    /// Whether the pipe was found full since the search last began (`full_bw_now`).
    pub(super) now: bool,
    /// Whether it was found full ever (`full_bw_reached`).
    pub(super) reached: bool,
}

impl FullPipe {
    /// Begins the search anew (`ResetFullBW`) from a baseline.
    pub(super) fn restart(&mut self, baseline: Bandwidth) {
        self.baseline = baseline;
        self.rounds = 0;
        self.now = false;
    }

    /// Takes an ACK, which may show a full pipe (`CheckFullBWReached`).
    pub(super) fn update(&mut self, input: &Input, round_began: bool) {
        let Some(bandwidth) = input.bandwidth else {
            return;
        };
        if self.now || !round_began || input.limited {
            return;
        }
        if bandwidth >= Gain::FULL_PIPE.of(self.baseline) {
            return self.restart(bandwidth);
        }
        self.rounds += 1;
        self.now = self.rounds >= ROUNDS;
        self.reached |= self.now;
    }
}

/// Counts the separate ranges of segments that a round loses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StartupLoss {
    ranges: u32,
    /// The segment after the one lost last.
    next: Option<u64>,
}

impl StartupLoss {
    /// Takes note of a lost segment.
    pub(super) fn update(&mut self, lost: &LostSegment) {
        self.ranges += u32::from(self.next != Some(lost.number));
        self.next = Some(lost.number + 1);
    }

    /// Ends the round and returns its number of ranges.
    pub(super) fn take(&mut self) -> u32 {
        std::mem::take(&mut self.ranges)
    }
}
