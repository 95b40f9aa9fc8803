//! Intervals from the replicates of a bootstrap over clusters.

use serde::{Deserialize, Serialize};

use super::OpeSettings;

/// An estimate with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate from all flows.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// Returns whether `value` lies in the interval, ends included.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns the distance between the two intervals, in their unit; 0 or less where they have a
    /// point in common.
    pub fn gap(&self, other: &Self) -> f64 {
        (self.low - other.high).max(other.low - self.high)
    }
}

/// How an interval is made from an estimate and its replicates.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Percentiles, with this share of the replicates beyond each end.
    Percentile { tail: f64 },
    /// The estimate ± this many standard deviations of the replicates.
    Anytime { deviations: f64 },
}

impl Kind {
    /// The kind that the settings ask for, from `clusters` clusters that are worth `effective`
    /// clusters of equal size.
    pub(super) fn of(settings: &OpeSettings, clusters: usize, effective: f64) -> Self {
        let tail = 0.5 * (1.0 - settings.confidence);
        match settings.anytime {
            None => Self::expanded(tail, effective),
            Some(tightest) => {
                let normal = anytime(clusters as f64, tightest as f64, 2.0 * tail);
                let quantile = student_quantile(1.0 - normal_tail(normal), effective - 1.0);
                Self::Anytime {
                    deviations: expansion(effective) * quantile,
                }
            }
        }
    }

    /// Percentiles that allow for the number of clusters: the bootstrap takes the spread of
    /// the clusters for that of their population, as an interval with normal quantiles and the
    /// variance over n would. With `tail` replaced by Φ(−√(n/(n−1)) t), where t is Student's
    /// quantile with n − 1 degrees of freedom, it is as wide as Student's interval
    /// (T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician
    /// 69, 2015, section 5.3).
    pub(super) fn expanded(tail: f64, clusters: f64) -> Self {
        let quantile = student_quantile(1.0 - tail, clusters.max(2.0) - 1.0);
        Self::Percentile {
            tail: normal_tail(expansion(clusters) * quantile),
        }
    }

    /// Returns the interval around an estimate. Sorts the replicates.
    pub(super) fn around(self, value: f64, replicates: &mut [f64]) -> Interval {
        match self {
            Self::Percentile { tail } => {
                replicates.sort_by(f64::total_cmp);
                // The k-th smallest of R replicates estimates the quantile k/(R + 1).
                let rank = (tail * (replicates.len() + 1) as f64) as usize;
                let beyond = rank.saturating_sub(1).min(replicates.len() / 2);
                Interval {
                    value,
                    low: replicates[beyond],
                    high: replicates[replicates.len() - 1 - beyond],
                }
            }
            Self::Anytime { deviations } => {
                let count = replicates.len() as f64;
                let mean = replicates.iter().sum::<f64>() / count;
                let squares: f64 = replicates.iter().map(|x| (x - mean).powi(2)).sum();
                let half = deviations * (squares / count).sqrt();
                Interval {
                    value,
                    low: value - half,
                    high: value + half,
                }
            }
        }
    }
}

/// √(n/(n−1)), for at least two clusters.
fn expansion(clusters: f64) -> f64 {
    let clusters = clusters.max(2.0);
    (clusters / (clusters - 1.0)).sqrt()
}

/// Half the width of a confidence sequence after `clusters` clusters, in standard errors: intervals
/// of this width contain the truth at all numbers of clusters at once with probability 1 − `alpha`,
/// however often they are looked at. They are narrowest, for their number of clusters, at
/// `tightest`, which must be fixed beforehand.
///
/// That holds for many clusters. For skewed quantities 30 are too few, so nothing is concluded
/// before `tightest` ([`super::Refusal::Early`]).
///
/// This is the asymptotic confidence sequence with the boundary of Robbins' normal mixture
/// (I. Waudby-Smith, D. Arbour, R. Sinha, E. Kennedy, A. Ramdas, "Time-uniform central limit theory
/// and asymptotic confidence sequences", Annals of Statistics 52, 2024, theorem 2.2 and, for the
/// choice of ρ, appendix B.2).
pub(super) fn anytime(clusters: f64, tightest: f64, alpha: f64) -> f64 {
    let twice = -2.0 * alpha.ln();
    let intrinsic = clusters * (twice + twice.ln_1p()) / tightest;
    let grown = intrinsic + 1.0;
    (2.0 * grown / intrinsic * (grown.sqrt() / alpha).ln()).sqrt()
}

/// Returns P(Z > x) of a standard normal Z, for x ≥ 0.
fn normal_tail(x: f64) -> f64 {
    let density = |z: f64| (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    (0.5 - integral(density, x)).max(0.0)
}

/// Returns the quantile of Student's t distribution for a `share` from 0.5 to 1 (excluded).
/// `freedom` are the degrees of freedom, at least 1; from 10,000 on they make no difference that
/// matters.
///
/// With t = √ν tan θ, the density of θ is proportional to cos^(ν−1) θ.
pub(crate) fn student_quantile(share: f64, freedom: f64) -> f64 {
    let freedom = freedom.clamp(1.0, 1e4);
    let density = |angle: f64| angle.cos().max(0.0).powf(freedom - 1.0);
    let right = std::f64::consts::FRAC_PI_2;
    let wanted = (share - 0.5) * 2.0 * integral(density, right);
    let (mut low, mut high) = (0.0, right);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        match integral(density, middle) < wanted {
            true => low = middle,
            false => high = middle,
        }
    }
    freedom.sqrt() * low.tan()
}

/// Integrates a smooth function from 0 to `to` by Simpson's rule.
fn integral(of: impl Fn(f64) -> f64, to: f64) -> f64 {
    const PANELS: usize = 500;
    let step = to / (2 * PANELS) as f64;
    let weighted = (0..=2 * PANELS).map(|i| {
        let weight = match i {
            0 => 1.0,
            i if i == 2 * PANELS => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        weight * of(i as f64 * step)
    });
    weighted.sum::<f64>() * step / 3.0
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn quantiles_and_tails_agree_with_printed_tables() {
        for (share, freedom, expected) in [
            (0.975, 1.0, 12.706),
            (0.975, 4.0, 2.776),
            (0.975, 9.0, 2.262),
            (0.95, 9.0, 1.833),
            (0.995, 29.0, 2.756),
            (0.975, 120.0, 1.980),
            (0.975, 1e9, 1.960),
        ] {
            let found = student_quantile(share, freedom);
            assert!(
                (found - expected).abs() < 6e-4,
                "{share}, {freedom}: {found}"
            );
        }
        for (x, expected) in [
            (0.0, 0.5),
            (1.0, 0.158_655),
            (1.96, 0.024_998),
            (3.0, 0.001_350),
        ] {
            let found = normal_tail(x);
            assert!((found - expected).abs() < 1e-6, "{x}: {found}");
        }
    }

    #[test]
    fn few_clusters_widen_the_percentiles() {
        let tail = |clusters| match Kind::expanded(0.025, clusters) {
            Kind::Percentile { tail } => tail,
            Kind::Anytime { .. } => panic!("percentiles"),
        };
        // Φ(−√(10/9) · 2.262).
        assert!((tail(10.0) - 0.008_55).abs() < 2e-5, "{}", tail(10.0));
        assert!((tail(1e6) - 0.025).abs() < 3e-5, "{}", tail(1e6));
        assert!(tail(3.0) < tail(10.0));
        // Ends that 5 % of 999 replicates are beyond, and of 20.
        for (count, low) in [(999, 50), (20, 1), (10, 1)] {
            let mut replicates: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let interval = Kind::Percentile { tail: 0.05 }.around(0.0, &mut replicates);
            let expected = (f64::from(low), f64::from(count + 1 - low));
            assert_eq!((interval.low, interval.high), expected);
        }
    }

    #[test]
    fn intervals_overlap_when_they_have_a_point_in_common() {
        let interval = |low, high| Interval {
            value: 0.0,
            low,
            high,
        };
        assert_eq!(interval(0.0, 1.0).gap(&interval(1.0, 2.0)), 0.0);
        assert!(interval(0.0, 9.0).gap(&interval(1.0, 2.0)) < 0.0);
        assert_eq!(interval(0.0, 0.5).gap(&interval(1.0, 2.0)), 0.5);
        assert_eq!(interval(2.25, 3.0).gap(&interval(1.0, 2.0)), 0.25);
    }

    /// Looks at the mean of growing samples after every single observation, from the hundredth.
    #[test]
    fn a_confidence_sequence_may_be_looked_at_after_every_cluster() {
        const REPETITIONS: usize = 1_000;
        let (mut sequence, mut fixed) = (0, 0);
        for repetition in 0..REPETITIONS {
            let mut random = StdRng::seed_from_u64(repetition as u64);
            let (mut sum, mut squares) = (0.0, 0.0);
            let mut left = [false; 2];
            for count in 1..=1_000 {
                // Exponential with mean 1: as skewed as weighted rewards are.
                let value = -(1.0 - random.random::<f64>()).ln();
                sum += value;
                squares += value * value;
                if count < 100 {
                    continue;
                }
                let count = f64::from(count);
                let mean = sum / count;
                let error = (squares / count - mean * mean).sqrt() / (count - 1.0).sqrt();
                let away = (mean - 1.0).abs() / error;
                left[0] |= away > anytime(count, 100.0, 0.05);
                left[1] |= away > 1.96;
            }
            sequence += usize::from(left[0]);
            fixed += usize::from(left[1]);
        }
        println!("{sequence} of {REPETITIONS} by the sequence, {fixed} by fixed intervals");
        // At most 5 %, within two standard deviations; fixed intervals leave the truth out at one
        // of so many looks far more often than the 5 % that they claim.
        assert!(sequence <= 64, "{sequence} of {REPETITIONS}");
        assert!(fixed > 200, "{fixed} of {REPETITIONS}");
    }

    #[test]
    fn a_confidence_sequence_is_tightest_where_it_was_asked_to_be() {
        // In standard errors, so that the half width over n clusters is this over √n.
        let width = |clusters: f64, tightest| anytime(clusters, tightest, 0.05) / clusters.sqrt();
        let choices = [25.0, 50.0, 100.0, 200.0, 400.0];
        for clusters in choices {
            let best = choices
                .iter()
                .min_by(|a, b| width(clusters, **a).total_cmp(&width(clusters, **b)));
            assert_eq!(best, Some(&clusters));
        }
        assert!((anytime(100.0, 100.0, 0.05) - 3.035).abs() < 2e-3);
    }
}
