//! How often durations fell into each of some ranges, since the start of the agent.
//!
//! Percentiles since the start hide a bad hour in a good month. From the counts of two times anyone
//! can compute those of the time between them, which is what monitoring systems do.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Upper ends of the ranges of delays within the host, ms.
pub const DELAY_MS: [f64; 12] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 50.0, 100.0, 250.0, 1000.0,
];

/// Upper ends of the ranges of round-trip times and queueing delays, ms.
pub const RTT_MS: [f64; 14] = [
    0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 30.0, 50.0, 100.0, 150.0, 200.0, 300.0, 1000.0, 3000.0,
];

/// Counts of durations by ranges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// `[N]`: the upper ends of the ranges, ascending, ms. They belong to their ranges.
    pub upper_ms: Vec<f64>,
    /// `[N + 1]`: the number of durations in each range; the last is of those above all of them.
    pub counts: Vec<u64>,
    /// The sum of the durations, ms.
    pub sum_ms: f64,
}

impl Distribution {
    /// No durations yet, in ranges with these upper ends, which must ascend.
    pub fn new(upper_ms: &[f64]) -> Self {
        Self {
            upper_ms: upper_ms.to_vec(),
            counts: vec![0; upper_ms.len() + 1],
            sum_ms: 0.0,
        }
    }

    /// The durations of a histogram in µs, to its resolution.
    pub fn of(micros: &Histogram<u64>, upper_ms: &[f64]) -> Self {
        let mut all = Self::new(upper_ms);
        for value in micros.iter_recorded() {
            let ms = value.value_iterated_to() as f64 / 1e3;
            all.count(ms, value.count_since_last_iteration());
        }
        all
    }

    /// Adds a duration; one that is no number is left out.
    pub fn add(&mut self, ms: f64) {
        self.count(ms, 1);
    }

    /// Adds the durations of another distribution with the same ranges.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.upper_ms, other.upper_ms);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ms += other.sum_ms;
    }

    /// How many durations there are in all ranges together.
    pub fn len(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether there is no duration.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn count(&mut self, ms: f64, times: u64) {
        let range = self.upper_ms.partition_point(|&upper| upper < ms);
        if let Some(count) = self.counts.get_mut(range).filter(|_| ms.is_finite()) {
            *count += times;
            self.sum_ms += ms * times as f64;
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
    /// Mean smoothed RTTs of windows with ACKs.
    pub srtt: Distribution,
    /// Mean queueing delays of windows with ACKs.
    pub queueing: Distribution,
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
        assert!((all.sum_ms - 22.2).abs() < 1e-9);
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
