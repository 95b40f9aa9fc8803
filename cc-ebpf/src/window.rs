//! The observation window: the statistics of a flow's ACKs between two decisions.

use bytemuck::{Pod, Zeroable};

use crate::{FEATURES, Feature, Features, Header};

/// Sum, squares, minimum and maximum of every feature over a window, in integers.
///
/// Arrays are indexed by [`Feature`](crate::Feature). They are undefined while the window has no
/// ACK.
///
/// Squares are of the deviation from the window's first value, so that 64 bits suffice and a
/// variance loses nothing to cancellation. Sums of squares saturate.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Statistics {
    /// Sum of the values: Σ value.
    pub sum: [u64; FEATURES],
    /// Squared deviations from the reference: Σ (value − reference)², saturating.
    pub squares: [u64; FEATURES],
    /// The smallest value in the window.
    pub min: [u32; FEATURES],
    /// The largest value in the window.
    pub max: [u32; FEATURES],
    /// The first value in the window.
    pub reference: [u32; FEATURES],
}

impl Statistics {
    /// Mean of a feature over the window's `count` ACKs; 0 when there was none.
    ///
    /// # Panics
    ///
    /// Panics when `feature` is not below [`FEATURES`].
    pub fn mean(&self, feature: usize, count: u32) -> f64 {
        if count == 0 {
            return 0.0;
        }
        self.sum[feature] as f64 / f64::from(count)
    }

    /// Sample variance (n − 1) of a feature over the window's `count` ACKs; 0 when there were fewer
    /// than two, as in mvfst-rl.
    ///
    /// # Panics
    ///
    /// Panics when `feature` is not below [`FEATURES`].
    pub fn variance(&self, feature: usize, count: u32) -> f64 {
        if count < 2 {
            return 0.0;
        }
        let n = f64::from(count);
        let offset = u128::from(self.reference[feature]) * u128::from(count);
        let deviation = self.sum[feature] as i128 - offset as i128;
        let deviation = deviation as f64;
        let variance = (self.squares[feature] as f64 - deviation * deviation / n) / (n - 1.0);
        variance.max(0.0)
    }

    /// Begins a window with its first ACK.
    #[inline(always)]
    fn start(&mut self, features: &Features) {
        for (index, &value) in features.iter().enumerate() {
            self.sum[index] = u64::from(value);
            self.squares[index] = 0;
            self.min[index] = value;
            self.max[index] = value;
            self.reference[index] = value;
        }
    }

    /// Adds a further ACK.
    #[inline(always)]
    fn add(&mut self, features: &Features) {
        for (index, &value) in features.iter().enumerate() {
            self.sum[index] += u64::from(value);
            let reference = self.reference[index];
            // Half of the features are the same on most ACKs: nothing more to do for them.
            if value == reference {
                continue;
            }
            let deviation = u64::from(value.abs_diff(reference));
            self.squares[index] = self.squares[index].saturating_add(deviation * deviation);
            if value < self.min[index] {
                self.min[index] = value;
            }
            if value > self.max[index] {
                self.max[index] = value;
            }
        }
    }
}

/// A flow's current window. When it is over, this struct itself goes into the ring buffer.
///
/// The fields from `decision` to `mss` are filled in by [`Flow::close_window`](crate::Flow); until
/// then they describe the window before.
///
/// ```
/// use bytemuck::Zeroable;
/// use cc_ebpf::{FEATURES, Feature, WindowRecord};
///
/// let mut window = WindowRecord::zeroed();
/// window.add(&[20; FEATURES]);
/// window.add(&[40; FEATURES]);
/// let rtt = Feature::LatestRtt as usize;
/// assert_eq!(window.features.mean(rtt, window.acks), 30.0);
/// assert_eq!(window.features.variance(rtt, window.acks), 200.0);
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct WindowRecord {
    /// Kind, slot, generation, and the time when the window was closed: that of the first ACK after
    /// its end.
    pub header: Header,
    /// Number of this window in the flow, from 1. Windows without an ACK are not counted.
    pub index: u32,
    /// Number of ACKs in the window that had features.
    pub acks: u32,
    /// Time when the window began, ns.
    pub start_ns: u64,
    /// The newest decision that the datapath had taken up by the end of the window (a cell, see
    /// [`crate::Decision`]), 0 before the first.
    pub decision: u64,
    /// Time of the ACK that took the decision up, ns.
    pub decision_taken_ns: u64,
    /// Congestion window in segments when the observation window was closed.
    pub cwnd: u32,
    /// [`crate::Mode`] when the window was closed.
    pub mode: u32,
    /// Sender's maximum segment size in bytes when the window was closed.
    pub mss: u32,
    /// Number of the window's ACKs of segments that were sent while the application had too little
    /// to send ([`AckSample::app_limited`](crate::AckSample)), and of those before a pause of the
    /// application in the window or at its end ([`Flow::measure`](crate::Flow::measure)).
    pub app_limited_acks: u32,
    /// Segments that the window's ACKs delivered with the ECN echo, which reports
    /// congestion-experienced marks.
    pub marked: u32,
    /// 1 where the flow was in slow start when the window was closed and had found no limit of the
    /// path ([`Controller::slow_starts`](crate::Controller::slow_starts)), otherwise 0.
    pub slow_start: u32,
    /// Statistics of the features of the window's ACKs.
    pub features: Statistics,
}

impl WindowRecord {
    /// Whether a window of length `window_ns` is over at `now_ns`.
    #[inline(always)]
    pub fn is_over(&self, now_ns: u64, window_ns: u64) -> bool {
        now_ns.wrapping_sub(self.start_ns) >= window_ns
    }

    /// Begins the next window at `now_ns`, under the next number unless this one had no ACK. The
    /// statistics stay until the next window's first ACK replaces them.
    #[inline(always)]
    pub fn restart(&mut self, now_ns: u64) {
        if self.acks > 0 {
            self.index = self.index.wrapping_add(1);
        }
        self.acks = 0;
        self.app_limited_acks = 0;
        self.marked = 0;
        self.start_ns = now_ns;
    }

    /// Whether the application limited the flow in this window, rather than the network: in more
    /// than half of its ACKs, as [`Self::app_limited_acks`] counts them. Such a window says little
    /// about the path, so no decision is made on it.
    #[inline(always)]
    pub fn is_application_limited(&self) -> bool {
        u64::from(self.app_limited_acks) * 2 > u64::from(self.acks)
    }

    /// Fraction of the segments delivered in this window that were delivered with the ECN echo, 0
    /// to 1; 0 when none was delivered.
    ///
    /// A receiver with accurate ECN echoes every mark once, so that this is the fraction of marked
    /// segments. A receiver of RFC 3168 repeats the echo until the sender has answered it, which
    /// takes a round trip, so that one mark counts for all segments of a round trip.
    pub fn marked_fraction(&self) -> f64 {
        let bytes = self.features.sum[Feature::Acked as usize];
        if self.acks == 0 || bytes == 0 {
            return 0.0;
        }
        // Every ACK's share of the sum is a multiple of the MSS. When the MSS has changed within
        // the window, or marks were counted before the first RTT was known, the quotient is off.
        let marked = f64::from(self.marked) * f64::from(self.mss);
        (marked / bytes as f64).min(1.0)
    }

    /// Fraction of this window's ACKs that [`Self::app_limited_acks`] counts, 0 to 1; 0 without an
    /// ACK.
    pub fn application_limited_fraction(&self) -> f64 {
        if self.acks == 0 {
            return 0.0;
        }
        (f64::from(self.app_limited_acks) / f64::from(self.acks)).min(1.0)
    }

    /// Adds one ACK's features to the statistics.
    #[inline(always)]
    pub fn add(&mut self, features: &Features) {
        if self.acks == 0 {
            self.features.start(features);
        } else {
            self.features.add(features);
        }
        self.acks += 1;
    }
}

/// A fraction of a window, 0 to 1, which observations have from version 2 of the features on.
///
/// These are counters of the window rather than features of an ACK, so they have no statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fraction {
    /// Segments delivered with the ECN echo, of all that were delivered: congestion that shows
    /// before a queue overflows.
    Marked,
    /// [`WindowRecord::app_limited_acks`] of all ACKs: whether a fall of throughput is the
    /// application's doing. No decision is asked for when it is above one half.
    AppLimited,
}

impl Fraction {
    /// Every fraction, in the order of the observation.
    pub const ALL: [Self; 2] = [Self::Marked, Self::AppLimited];

    /// The name in lists of inputs, such as `features.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Marked => "marked",
            Self::AppLimited => "app_limited",
        }
    }

    /// The fraction in a window.
    pub fn of(self, window: &WindowRecord) -> f64 {
        match self {
            Self::Marked => window.marked_fraction(),
            Self::AppLimited => window.application_limited_fraction(),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn window_of(values: &[u32]) -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        for &value in values {
            window.add(&[value; FEATURES]);
        }
        window
    }

    #[test]
    fn one_ack_has_no_variance() {
        let window = window_of(&[7]);
        assert_eq!(window.features.mean(3, window.acks), 7.0);
        assert_eq!(window.features.variance(3, window.acks), 0.0);
    }

    #[test]
    fn restart_counts_only_windows_with_acks() {
        let mut window = WindowRecord::zeroed();
        window.index = 1;
        window.restart(100);
        assert_eq!(window.index, 1);
        window.add(&[1; FEATURES]);
        window.restart(200);
        assert_eq!((window.index, window.acks, window.start_ns), (2, 0, 200));
        window.add(&[9; FEATURES]);
        assert_eq!(window.features.min[0], 9, "the last window left no minimum");
        assert_eq!(window.features.sum[0], 9);
    }

    #[test]
    fn fractions_are_of_delivered_segments_and_of_acks() {
        let mut window = WindowRecord::zeroed();
        assert_eq!(window.marked_fraction(), 0.0);
        assert_eq!(window.application_limited_fraction(), 0.0);
        // Five ACKs of eight segments each.
        for _ in 0..5 {
            let mut features = [7; FEATURES];
            features[Feature::Acked as usize] = 8 * 1_448;
            window.add(&features);
        }
        window.mss = 1_448;
        window.marked = 10;
        window.app_limited_acks = 2;
        assert_eq!(window.marked_fraction(), 0.25);
        assert_eq!(window.application_limited_fraction(), 0.4);
        window.marked = 41;
        assert_eq!(window.marked_fraction(), 1.0, "never more than all");

        // ACKs that deliver nothing, such as duplicates.
        window.restart(1);
        window.add(&[0; FEATURES]);
        window.marked = 3;
        assert_eq!(window.marked_fraction(), 0.0);
        // The sum of the former window stays until an ACK replaces it.
        window.restart(2);
        window.features.sum[Feature::Acked as usize] = 1_448;
        assert_eq!(window.marked_fraction(), 0.0);
    }

    #[test]
    fn squares_saturate() {
        let mut values = std::vec![0];
        values.extend([u32::MAX; 3]);
        assert_eq!(window_of(&values).features.squares[0], u64::MAX);
    }

    proptest! {
        /// Against the textbook two-pass formulas in f64.
        #[test]
        fn agrees_with_two_passes(values in proptest::collection::vec(0u32..50_000_000, 2..300)) {
            let window = window_of(&values);
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let variance =
                values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let statistics = &window.features;
            prop_assert!((statistics.mean(0, window.acks) - mean).abs() <= 1e-9 * mean.max(1.0));
            let got = statistics.variance(0, window.acks);
            let tolerance = 1e-6 * variance.max(1.0);
            prop_assert!((got - variance).abs() <= tolerance, "{} {}", got, variance);
            prop_assert_eq!(statistics.min[0], *values.iter().min().expect("not empty"));
            prop_assert_eq!(statistics.max[0], *values.iter().max().expect("not empty"));
        }

        /// A constant offset moves the mean and nothing else, however large.
        #[test]
        fn variance_ignores_an_offset(values in proptest::collection::vec(0u32..1_000, 2..50)) {
            let shifted: Vec<u32> = values.iter().map(|v| v + 4_000_000_000).collect();
            let (a, b) = (window_of(&values), window_of(&shifted));
            prop_assert_eq!(a.features.variance(0, a.acks), b.features.variance(0, b.acks));
        }
    }
}
