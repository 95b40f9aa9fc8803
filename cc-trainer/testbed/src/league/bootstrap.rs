//! Means over links with their intervals, and differences between schemes on the same links.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

/// Level of all intervals, as a share of 1.
pub const CONFIDENCE: f64 = 0.95;
/// Number of resamples of which an interval is the percentiles.
const RESAMPLES: usize = 2_000;
/// Seed of the resamples, fixed so that the same results always give the same interval.
const SEED: u64 = 1;

/// A figure with its interval at the level [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure over all links.
    pub mean: f64,
    /// Lower end of the interval; `None` where a single link gives none.
    pub low: Option<f64>,
    /// Upper end of the interval.
    pub high: Option<f64>,
}

/// What several schemes have on the same links.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Paired {
    /// One list per scheme, each with a value per link.
    pub(super) values: Vec<Vec<f64>>,
    /// Weight of each link, positive.
    pub(super) weights: Vec<f64>,
}

/// The figures of several schemes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Estimates {
    /// The weighted mean of each scheme over the links.
    pub(super) means: Vec<Estimate>,
    /// The first scheme's mean less that of each scheme; the first one is exactly 0.
    pub(super) differences: Vec<Estimate>,
}

impl Paired {
    /// Estimates the means and the differences of the schemes by the paired percentile bootstrap
    /// over links (Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapters 8 and 13).
    ///
    /// Each resample draws links with replacement, the same ones for all schemes. How much harder
    /// one link is than another is therefore not part of the uncertainty of a difference. `None`
    /// without a link.
    ///
    /// # Panics
    ///
    /// Panics if a scheme has another number of values than there are weights.
    pub(super) fn estimate(&self) -> Option<Estimates> {
        let links = self.weights.len();
        assert!(
            self.values.iter().all(|values| values.len() == links),
            "one value per scheme and link"
        );
        if links == 0 {
            return None;
        }
        let ones = vec![1_u32; links];
        let means = self.means(&ones);
        let mut random = StdRng::seed_from_u64(SEED);
        let mut resampled: Vec<Vec<f64>> = vec![Vec::with_capacity(RESAMPLES); means.len()];
        for _ in 0..RESAMPLES {
            let mut counts = vec![0_u32; links];
            for _ in 0..links {
                counts[random.random_range(0..links)] += 1;
            }
            for (list, mean) in resampled.iter_mut().zip(self.means(&counts)) {
                list.push(mean);
            }
        }
        let first = resampled.first().cloned().unwrap_or_default();
        let of = |mean: f64, list: Vec<f64>| {
            let interval = (links > 1).then(|| interval(list));
            Estimate {
                mean,
                low: interval.map(|(low, _)| low),
                high: interval.map(|(_, high)| high),
            }
        };
        let difference = |(&mean, list): (&f64, &Vec<f64>)| {
            let pairs = first.iter().zip(list).map(|(first, other)| first - other);
            of(means[0] - mean, pairs.collect())
        };
        Some(Estimates {
            differences: means.iter().zip(&resampled).map(difference).collect(),
            means: means
                .iter()
                .zip(resampled)
                .map(|(&mean, list)| of(mean, list))
                .collect(),
        })
    }

    /// The weighted mean of each scheme, where each link counts as often as `counts` says.
    fn means(&self, counts: &[u32]) -> Vec<f64> {
        let weights: Vec<f64> = counts
            .iter()
            .zip(&self.weights)
            .map(|(&count, weight)| f64::from(count) * weight)
            .collect();
        let total: f64 = weights.iter().sum();
        let mean = |values: &Vec<f64>| {
            let terms = values
                .iter()
                .zip(&weights)
                .map(|(value, weight)| value * weight);
            terms.sum::<f64>() / total
        };
        self.values.iter().map(mean).collect()
    }
}

impl Estimate {
    /// The figure of the logarithm's figure.
    pub fn exp(self) -> Self {
        self.map(f64::exp)
    }

    /// A rising function of the figure and of the ends of its interval.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self {
            mean: f(self.mean),
            low: self.low.map(&f),
            high: self.high.map(&f),
        }
    }

    /// Whether the interval contains the value, or is missing.
    pub fn may_be(&self, value: f64) -> bool {
        self.low.is_none_or(|low| low <= value) && self.high.is_none_or(|high| value <= high)
    }
}

/// The ends of the interval of resampled means, by nearest rank.
fn interval(mut means: Vec<f64>) -> (f64, f64) {
    means.sort_by(f64::total_cmp);
    let tail = ((1.0 - CONFIDENCE) / 2.0 * means.len() as f64).round() as usize;
    let tail = tail.clamp(1, means.len());
    (means[tail - 1], means[means.len() - tail])
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn paired(values: Vec<Vec<f64>>) -> Estimates {
        let weights = vec![1.0; values[0].len()];
        let paired = Paired { values, weights };
        paired.estimate().expect("there are links")
    }

    #[test]
    fn equal_differences_have_no_uncertainty_however_links_differ() {
        let hard: Vec<f64> = (0..40).map(f64::from).collect();
        let easier: Vec<f64> = hard.iter().map(|value| value - 0.5).collect();
        let found = paired(vec![hard, easier]);
        assert_eq!(found.means[0].mean, 19.5);
        let (low, high) = (found.means[0].low, found.means[0].high);
        assert!(
            low.is_some_and(|low| low < 17.0) && high.is_some_and(|high| high > 22.0),
            "{found:?}"
        );
        let difference = found.differences[1];
        assert_eq!(difference.mean, 0.5);
        for end in [difference.low, difference.high] {
            assert!(end.is_some_and(|end| (end - 0.5).abs() < 1e-9), "{found:?}");
        }
        assert!(!difference.may_be(0.0) && found.differences[0].may_be(0.0));
    }

    #[test]
    fn links_count_by_their_weight() {
        let paired = Paired {
            values: vec![vec![1.0, 0.0]],
            weights: vec![3.0, 1.0],
        };
        let found = paired.estimate().expect("two links");
        assert_eq!(found.means[0].mean, 0.75);
        assert_eq!(
            (found.means[0].low, found.means[0].high),
            (Some(0.0), Some(1.0))
        );
    }

    #[test]
    fn a_single_link_has_no_interval_and_none_has_no_mean() {
        let one = paired(vec![vec![2.0], vec![1.5]]);
        assert_eq!(
            (one.means[0].mean, one.means[0].low, one.differences[1].mean),
            (2.0, None, 0.5)
        );
        let none = Paired {
            values: vec![Vec::new()],
            weights: Vec::new(),
        };
        assert_eq!(none.estimate(), None);
    }

    /// A 95 % interval of a difference covers the true one in about 95 % of the cases.
    #[test]
    fn intervals_cover_the_difference() {
        let mut random = StdRng::seed_from_u64(5);
        let covered = (0..40).filter(|_| {
            let first: Vec<f64> = (0..40).map(|_| random.random_range(0.0..9.0)).collect();
            let second = first
                .iter()
                .map(|value| value - random.random_range(0.0..2.0));
            let found = paired(vec![first.clone(), second.collect()]);
            found.differences[1].may_be(1.0)
        });
        let covered = covered.count();
        assert!((33..=40).contains(&covered), "{covered} of 40");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn estimates_do_not_depend_on_the_other_schemes(
            values in vec(vec(-5.0..5.0_f64, 12), 2..5),
        ) {
            let all = paired(values.clone());
            for (scheme, values) in values.iter().enumerate() {
                let alone = paired(vec![values.clone()]);
                prop_assert_eq!(alone.means[0], all.means[scheme]);
            }
            prop_assert_eq!(all.differences[0].mean, 0.0);
            prop_assert_eq!(all.differences[0].high, Some(0.0));
        }
    }
}
