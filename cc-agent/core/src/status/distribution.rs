//! How often durations and sizes fell into each of some ranges, since the start of the agent.
//!
//! Percentiles since the start hide a bad hour in a good month. From the counts of two times anyone
//! can compute those of the time between them, which is what monitoring systems do.

use cc_ebpf::{Feature, WindowRecord};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::objective::Measured;

/// Upper ends of the ranges of delays within the host, ms.
pub const DELAY_MS: [f64; 12] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 50.0, 100.0, 250.0, 1000.0,
];

/// Upper ends of the ranges of round-trip times and queueing delays, ms.
pub const RTT_MS: [f64; 14] = [
    0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 30.0, 50.0, 100.0, 150.0, 200.0, 300.0, 1000.0, 3000.0,
];

/// Upper ends of the ranges of windows' lengths, ms. A window ends with the first ACK after its
/// time is up, 100 ms by default, or is closed 5 ms after that.
const WINDOW_MS: [f64; 16] = [
    10.0, 15.0, 20.0, 30.0, 50.0, 55.0, 60.0, 75.0, 100.0, 102.0, 105.0, 110.0, 125.0, 150.0,
    200.0, 500.0,
];

/// Upper ends of the ranges of cwnds, segments.
const CWND_SEGMENTS: [f64; 14] = [
    1.0, 2.0, 4.0, 8.0, 10.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16_384.0,
];

/// Counts of values by ranges: of durations in ms, or of cwnds in segments. In JSON its fields have
/// the names from when there were only durations, so that older clients understand it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// `[N]`: the upper ends of the ranges, ascending. They belong to their ranges.
    #[serde(rename = "upper_ms")]
    pub upper: Vec<f64>,
    /// `[N + 1]`: the number of values in each range; the last is of those above all of them.
    pub counts: Vec<u64>,
    /// The sum of the values.
    #[serde(rename = "sum_ms")]
    pub sum: f64,
}

impl Distribution {
    /// No values yet, in ranges with these upper ends, which must ascend.
    pub fn new(upper: &[f64]) -> Self {
        Self {
            upper: upper.to_vec(),
            counts: vec![0; upper.len() + 1],
            sum: 0.0,
        }
    }

    /// The durations of a histogram in µs, to its resolution, by ranges in ms.
    pub fn of(micros: &Histogram<u64>, upper_ms: &[f64]) -> Self {
        let mut all = Self::new(upper_ms);
        for value in micros.iter_recorded() {
            let ms = value.value_iterated_to() as f64 / 1e3;
            all.count(ms, value.count_since_last_iteration());
        }
        all
    }

    /// Adds a value; one that is no number is left out.
    pub fn add(&mut self, value: f64) {
        self.count(value, 1);
    }

    /// Adds the values of another distribution with the same ranges.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.upper, other.upper);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    /// How many values there are in all ranges together.
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn count(&mut self, value: f64, times: u64) {
        let range = self.upper.partition_point(|&upper| upper < value);
        if let Some(count) = self.counts.get_mut(range).filter(|_| value.is_finite()) {
            *count += times;
            self.sum += value * times as f64;
        }
    }
}

/// The distributions that a [`Snapshot`](super::Snapshot) has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distributions {
    /// Delays from a window's end to the publication of its decision.
    pub decision_delay: Distribution,
    /// Times that the policy took for a batch.
    pub inference: Distribution,
    /// What the windows of all flows were like.
    #[serde(flatten)]
    pub windows: WindowDistributions,
}

/// What the windows of all flows were like, each window with ACKs counted once. All are empty from
/// an agent that does not tell them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowDistributions {
    /// Lengths of the windows, ms: from a window's start to the ACK that closed it, or to when the
    /// agent closed it.
    pub length: Distribution,
    /// Mean smoothed RTTs of the windows, ms.
    pub srtt: Distribution,
    /// Mean queueing delays of the windows, ms.
    pub queueing: Distribution,
    /// The cwnds at the windows' ends, segments.
    pub cwnd: Distribution,
}

impl WindowDistributions {
    /// No windows yet, in the usual ranges.
    pub fn new() -> Self {
        Self {
            length: Distribution::new(&WINDOW_MS),
            srtt: Distribution::new(&RTT_MS),
            queueing: Distribution::new(&RTT_MS),
            cwnd: Distribution::new(&CWND_SEGMENTS),
        }
    }

    /// Adds a window with ACKs; one without any is left out. `measured` is of the time since the
    /// window before.
    pub(crate) fn add(&mut self, window: &WindowRecord, measured: &Measured) {
        if window.acks == 0 {
            return;
        }
        let length_ns = window.header.time_ns.saturating_sub(window.start_ns);
        let srtt_us = (window.features).mean(Feature::SmoothedRtt as usize, window.acks);
        self.length.add(length_ns as f64 / 1e6);
        self.srtt.add(srtt_us / 1e3);
        self.queueing.add(measured.delay_ms());
        self.cwnd.add(f64::from(window.cwnd));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ends_belong_to_their_ranges() {
        let mut all = Distribution::new(&[1.0, 10.0]);
        assert!(all.is_empty());
        for ms in [0.0, 1.0, 1.1, 10.0, 10.1, f64::NAN, f64::INFINITY] {
            all.add(ms);
        }
        assert_eq!(all.counts, [2, 2, 1]);
        assert_eq!(all.len(), 5);
        assert!((all.sum - 22.2).abs() < 1e-9);
    }

    #[test]
    fn an_older_agent_tells_fewer_distributions_of_windows() {
        let old = r#"{"upper_ms": [1.0], "counts": [2, 1], "sum_ms": 4.5}"#;
        let text = format!(
            r#"{{"decision_delay": {old}, "inference": {old}, "srtt": {old}, "queueing": {old}}}"#
        );
        let found: Distributions = serde_json::from_str(&text).expect("it is read");
        assert_eq!((found.windows.srtt.len(), found.windows.srtt.sum), (3, 4.5));
        assert_eq!(found.windows.length, Distribution::default());
        // And an older client finds what it knows.
        let told = serde_json::to_value(&found).expect("it is plain data");
        assert_eq!(told["srtt"]["sum_ms"], 4.5);
    }

    #[test]
    fn a_window_is_added_to_each_distribution() {
        let mut window: WindowRecord = bytemuck::Zeroable::zeroed();
        let mut all = WindowDistributions::new();
        all.add(&window, &Measured::default());
        assert_eq!(all, WindowDistributions::new(), "it had no ACK");
        (window.start_ns, window.header.time_ns, window.cwnd) = (7_000_000, 110_500_000, 40);
        window.add(&[20_000; cc_ebpf::FEATURES]);
        all.add(&window, &Measured::of(&window));
        for (found, sum) in [
            (&all.length, 103.5),
            (&all.srtt, 20.0),
            (&all.queueing, 20.0),
            (&all.cwnd, 40.0),
        ] {
            assert_eq!((found.len(), found.sum), (1, sum));
        }
        let of_40 = CWND_SEGMENTS.iter().position(|&upper| upper == 64.0);
        assert_eq!(all.cwnd.counts[of_40.expect("a range")], 1);
    }

    proptest! {
        /// A histogram's durations fall where they would fall one by one, but next to an end.
        #[test]
        fn a_histogram_has_the_same_counts(
            micros in prop::collection::vec(1_u64..5_000_000, 0..200),
        ) {
            let mut histogram = Histogram::<u64>::new(3).expect("three digits");
            let mut low = Distribution::new(&DELAY_MS);
            let mut high = Distribution::new(&DELAY_MS);
            for &micros in &micros {
                histogram.record(micros).expect("it grows");
                low.add(micros as f64 / 1e3 * 0.998);
                high.add(micros as f64 / 1e3 * 1.002);
            }
            let all = Distribution::of(&histogram, &DELAY_MS);
            prop_assert_eq!(all.len(), micros.len() as u64);
            let below = |all: &Distribution, range: usize| all.counts[..=range].iter().sum::<u64>();
            for range in 0..DELAY_MS.len() {
                let found = below(&all, range);
                prop_assert!((below(&high, range)..=below(&low, range)).contains(&found));
            }
        }
    }
}
