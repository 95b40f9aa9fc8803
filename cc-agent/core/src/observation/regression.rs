//! What the regressions of a flow's RTT on its cwnd have in common: which cwnd an RTT is put
//! beside, and sums that forget.

use cc_ebpf::{Feature, WindowRecord};

/// How far back the cwnd of a round trip ago is looked for, in windows.
pub(super) const LONGEST_LAG: usize = 16;

/// Mean cwnd in bytes and mean RTT in µs of a window with ACKs, at least 1 each.
pub(super) fn cwnd_and_rtt(window: &WindowRecord) -> (f64, f64) {
    let mean = |feature| window.features.mean(feature as usize, window.acks).max(1.0);
    (mean(Feature::Cwnd), mean(Feature::LatestRtt))
}

/// How many windows ago the packets were sent whose RTT was measured, at most [`LONGEST_LAG`].
pub(super) fn lag(rtt_us: f64, window_us: f64) -> usize {
    ((rtt_us / window_us).round() as usize).min(LONGEST_LAG)
}

/// The weighted sums that a slope is made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sums {
    /// The part of a pair's weight that the next pair leaves; 0 where nothing is observed.
    kept: f64,
    /// Sum of the pairs' weights.
    pub(super) weight: f64,
    /// Weighted sum of the squares of what ln cwnd is regarded by.
    pub(super) square: f64,
    /// Weighted sum of its products with that of ln RTT.
    pub(super) product: f64,
}

impl Sums {
    /// Those of no pairs, whose weights will fall by a factor of e in so many.
    pub(super) fn new(pairs: usize) -> Self {
        Self {
            kept: (-1.0 / pairs as f64).exp(),
            weight: 0.0,
            square: 0.0,
            product: 0.0,
        }
    }

    /// Whether nothing is observed: weights fall within 0 pairs.
    pub(super) fn is_off(&self) -> bool {
        self.kept == 0.0
    }

    /// Has the former pairs weigh less and one more weigh 1; its square and product are added next.
    pub(super) fn turn(&mut self) {
        self.weight = self.kept * self.weight + 1.0;
        self.square *= self.kept;
        self.product *= self.kept;
    }

    /// The slope, −1 to 2, drawn to 0 where the mean square is not far above `least`; 0 before the
    /// first pair.
    pub(super) fn slope(&self, least: f64) -> f64 {
        if self.weight == 0.0 {
            return 0.0;
        }
        (self.product / (self.square + least * self.weight)).clamp(-1.0, 2.0)
    }

    /// The root of the mean square, at most 2.
    pub(super) fn swing(&self) -> f64 {
        if self.weight == 0.0 {
            return 0.0;
        }
        (self.square / self.weight).max(0.0).sqrt().min(2.0)
    }
}
