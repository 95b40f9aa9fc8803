//! The comparison of a canary's arms: per metric, the excess of the candidate's harm over what is
//! tolerated, with its interval.
//!
//! Every metric is brought to a scale on which more is worse and differences add up: delay, loss
//! and timeouts as they are, the objective negated, and the throughput as its negated logarithm, so
//! that a unit at 1 Mbit/s counts like one at 1 Gbit/s. The excess is the candidate's mean minus
//! the allowed one, `part` × the incumbent's mean + `amount`.
//!
//! # Looking again and again
//!
//! The arms are compared several times a second, for as long as the canary runs. The intervals are
//! valid at all of these times together: asymptotic confidence sequences (Waudby-Smith, Arbour,
//! Sinha, Kennedy and Ramdas 2021, "Time-uniform central limit theory and asymptotic confidence
//! sequences", equation 6), with ρ = 1. They are about as wide as three to four standard errors.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Tally;
use crate::{objective::Measured, tolerance::Tolerance};

/// A quantity by which the arms of a canary are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The [objective](crate::objective::Objective), per unit of time.
    Objective,
    /// Acknowledged bytes over time of a flow, Mbit/s.
    Throughput,
    /// Queueing delay, its mean over the ACKs, ms.
    Delay,
    /// Lost bytes over lost and acknowledged bytes.
    Loss,
    /// Retransmission timeouts of a flow per minute.
    Timeouts,
}

/// The smallest throughput whose logarithm is taken, Mbit/s.
const LEAST_MBPS: f64 = 1e-3;

impl Metric {
    /// All metrics, in the order of reports.
    pub const ALL: [Self; 5] = [
        Self::Objective,
        Self::Throughput,
        Self::Delay,
        Self::Loss,
        Self::Timeouts,
    ];

    /// The metric's name in reports and reasons.
    pub fn name(self) -> &'static str {
        match self {
            Self::Objective => "objective",
            Self::Throughput => "throughput",
            Self::Delay => "queueing delay",
            Self::Loss => "loss",
            Self::Timeouts => "timeouts",
        }
    }

    /// A value with its unit.
    fn text(self, value: f64) -> String {
        match self {
            Self::Objective => format!("{value:.3}"),
            Self::Throughput => format!("{value:.2} Mbit/s"),
            Self::Delay => format!("{value:.2} ms"),
            Self::Loss => format!("{:.2} %", 100.0 * value),
            Self::Timeouts => format!("{value:.2} per minute"),
        }
    }

    /// The value on the scale on which more is worse.
    fn harm(self, value: f64) -> f64 {
        match self {
            Self::Objective => -value,
            Self::Throughput => -value.max(LEAST_MBPS).ln(),
            Self::Delay | Self::Loss | Self::Timeouts => value,
        }
    }

    /// The metric's value at a place on the scale of harm, the inverse of [`Self::harm`].
    fn value(self, harm: f64) -> f64 {
        match self {
            Self::Objective => -harm,
            Self::Throughput => (-harm).exp(),
            Self::Delay | Self::Loss | Self::Timeouts => harm,
        }
    }

    /// The value of what a unit's flows came to.
    fn of(self, tally: &Tally) -> f64 {
        let measured = &tally.measured;
        match self {
            Self::Objective => tally.objective(),
            Self::Throughput => measured.throughput_mbps(),
            Self::Delay => measured.delay_ms(),
            Self::Loss => measured.loss(),
            Self::Timeouts => measured.timeouts_per_minute(),
        }
    }
}

/// The throughput on the scale of harm: its negated logarithm.
pub(super) fn harm_of_throughput(measured: &Measured) -> f64 {
    Metric::Throughput.harm(measured.throughput_mbps())
}

/// Mean and spread over units (Welford 1962).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) count: u64,
    pub(super) mean: f64,
    squares: f64,
}

impl Spread {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Variance of the mean: the sample variance over the number of units.
    pub(super) fn error(&self) -> f64 {
        if self.count < 2 {
            return f64::INFINITY;
        }
        self.squares / (self.count - 1) as f64 / self.count as f64
    }
}

/// The units of a canary, compared by one metric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Harm of the incumbent's and of the candidate's units.
    arms: [Spread; 2],
    /// Of units in pairs, the candidate's harm minus what the incumbent's allows.
    excess: Option<Spread>,
}

impl Sample {
    /// Adds a pair of units: the incumbent's and the candidate's.
    pub(super) fn add_pair(&mut self, metric: Metric, tolerance: Tolerance, pair: [&Tally; 2]) {
        let [incumbent, candidate] = pair.map(|tally| metric.harm(metric.of(tally)));
        self.arms[0].add(incumbent);
        self.arms[1].add(candidate);
        let excess = candidate - tolerance.allowed(incumbent);
        self.excess.get_or_insert_default().add(excess);
    }

    /// Adds a unit of one arm, 0 for the incumbent.
    pub(super) fn add(&mut self, metric: Metric, arm: usize, tally: &Tally) {
        self.arms[arm].add(metric.harm(metric.of(tally)));
    }

    /// The number of units: of pairs, or in the arm that has fewer.
    pub(super) fn units(&self) -> u64 {
        self.arms[0].count.min(self.arms[1].count)
    }

    /// The comparison of the arms, which finds nothing before there are `needed` units.
    pub(super) fn compare(&self, metric: Metric, tolerance: Tolerance, needed: u64) -> Comparison {
        let [incumbent, candidate] = &self.arms;
        let allowed = tolerance.allowed(incumbent.mean);
        let (excess, variance) = match &self.excess {
            Some(pairs) => (pairs.mean, pairs.error()),
            None => (
                candidate.mean - allowed,
                candidate.error() + (1.0 + tolerance.part).powi(2) * incumbent.error(),
            ),
        };
        let units = self.units();
        let half_width = |alpha| half_width(units, variance.sqrt(), alpha);
        let finding = if units < needed.max(2) {
            Finding::Open
        } else if excess > half_width(CHANCE_OF_BREACH) {
            Finding::Worse
        } else if excess < -half_width(CHANCE_OF_PASSING) {
            Finding::NotWorse
        } else {
            Finding::Open
        };
        let value = |harm: f64| if units == 0 { 0.0 } else { metric.value(harm) };
        Comparison {
            metric,
            incumbent: value(incumbent.mean),
            candidate: value(candidate.mean),
            tolerated: value(allowed),
            units,
            finding,
        }
    }
}

/// Probability with which the interval of an excess that is in truth 0 shows a breach at any time,
/// per metric.
const CHANCE_OF_BREACH: f64 = 0.001;
/// Probability with which a candidate that is worse than tolerated is found not to be, at any time.
const CHANCE_OF_PASSING: f64 = 0.05;

/// Half of the width of the interval of a mean over `units` with this standard error, which at all
/// times together leaves the true mean out with probability `alpha`.
pub(super) fn half_width(units: u64, error: f64, alpha: f64) -> f64 {
    let n = units as f64;
    error * (2.0 * (n + 1.0) / n * ((n + 1.0).sqrt() / alpha).ln()).sqrt()
}

/// What the data say of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Neither of the other two beyond chance, yet.
    #[default]
    Open,
    /// It is not worse than the incumbent by more than is tolerated.
    NotWorse,
    /// It is worse than tolerated.
    Worse,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::NotWorse => "not worse",
            Self::Worse => "worse",
        })
    }
}

/// The arms of a canary, compared by one metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The metric; the next three values are in its unit.
    pub metric: Metric,
    /// Mean over the incumbent's units; of throughputs, the geometric mean.
    pub incumbent: f64,
    /// Mean over the candidate's units.
    pub candidate: f64,
    /// The worst mean of the candidate that is tolerated.
    pub tolerated: f64,
    /// Number of pairs of units, or of units in the arm that has fewer.
    pub units: u64,
    /// What the intervals say of the candidate by this metric.
    pub finding: Finding,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = match self.metric {
            Metric::Objective | Metric::Throughput => "at least",
            Metric::Delay | Metric::Loss | Metric::Timeouts => "at most",
        };
        write!(
            f,
            "{} {}, against {}; {bound} {} is tolerated",
            self.metric.name(),
            self.metric.text(self.candidate),
            self.metric.text(self.incumbent),
            self.metric.text(self.tolerated),
        )
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// What a flow came to with this delay over ten ACKs.
    fn delayed(ms: f64) -> Tally {
        Tally {
            measured: Measured {
                ns: 1_000_000_000,
                acks: 10,
                delay_sum_us: (ms * 1e4) as u64,
                ..Measured::default()
            },
            ..Tally::default()
        }
    }

    const TOLERANCE: Tolerance = Tolerance {
        part: 0.25,
        amount: 5.0,
    };

    fn about_normal(random: &mut StdRng) -> f64 {
        (0..12).map(|_| random.random_range(-0.5..0.5)).sum()
    }

    /// Compares pairs after each one, and returns whether the candidate was ever found worse, and
    /// whether it was ever found not to be. Both delays have the same disturbance in a pair, and
    /// one of their own.
    fn look_again_and_again(delays: [f64; 2], seed: u64, pairs: u32) -> (bool, bool) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut sample = Sample::default();
        let (mut worse, mut not_worse) = (false, false);
        for pair in 1..=pairs {
            let common = 4.0 * about_normal(&mut random);
            let tallies = delays.map(|delay| {
                let own = 3.0 * about_normal(&mut random);
                delayed((delay + common + own).max(0.0))
            });
            sample.add_pair(Metric::Delay, TOLERANCE, [&tallies[0], &tallies[1]]);
            let found = sample.compare(Metric::Delay, TOLERANCE, 10).finding;
            assert!(pair >= 10 || found == Finding::Open);
            worse |= found == Finding::Worse;
            not_worse |= found == Finding::NotWorse;
        }
        (worse, not_worse)
    }

    #[test]
    fn looking_after_every_pair_misleads_rarely() {
        const RUNS: u64 = 400;
        // At the border of what is tolerated: both conclusions would be mistakes.
        let border = [40.0, 55.0];
        let found: Vec<_> = (0..RUNS)
            .map(|seed| look_again_and_again(border, seed, 300))
            .collect();
        let worse = found.iter().filter(|found| found.0).count() as u64;
        let passed = found.iter().filter(|found| found.1).count() as u64;
        assert!(worse * 100 <= RUNS, "{worse} of {RUNS} were withdrawn");
        // 5 % and three standard deviations of a proportion of 400.
        assert!(passed * 100 <= 8 * RUNS, "{passed} of {RUNS} passed");
    }

    #[test]
    fn what_is_clear_is_found() {
        let mut found = [0, 0];
        for seed in 0..50 {
            found[0] += u32::from(look_again_and_again([40.0, 40.0], seed, 15) == (false, true));
            found[1] += u32::from(look_again_and_again([40.0, 80.0], seed, 15) == (true, false));
        }
        assert!(found.iter().all(|&count| count >= 48), "{found:?}");
    }

    #[test]
    fn throughputs_are_compared_by_their_ratios() {
        let metric = Metric::Throughput;
        let tolerance = Tolerance::of_throughput(0.1);
        let rate = |mbps: u64| Tally {
            measured: Measured {
                ns: 1_000_000_000,
                acked_bytes: mbps * 125_000,
                ..Measured::default()
            },
            ..Tally::default()
        };
        let mut sample = Sample::default();
        for incumbent in [1, 1_000, 10, 100, 5_000, 50] {
            let [incumbent, candidate] = [rate(20 * incumbent), rate(17 * incumbent)];
            sample.add_pair(metric, tolerance, [&incumbent, &candidate]);
        }
        let found = sample.compare(metric, tolerance, 6);
        assert!((found.candidate / found.incumbent - 0.85).abs() < 1e-9);
        assert!((found.tolerated / found.incumbent - 0.9).abs() < 1e-9);
        assert_eq!(found.finding, Finding::Worse);
        assert_eq!(sample.compare(metric, tolerance, 7).finding, Finding::Open);
        // Nothing acknowledged at all has a finite logarithm.
        sample.add_pair(metric, tolerance, [&rate(0), &rate(0)]);
        assert!(sample.compare(metric, tolerance, 6).candidate.is_finite());
    }

    #[test]
    fn one_unit_or_none_says_nothing() {
        let mut sample = Sample::default();
        let says_nothing = |sample: &Sample| {
            let found = sample.compare(Metric::Delay, TOLERANCE, 0);
            found.finding == Finding::Open && found.candidate.is_finite()
        };
        assert!(says_nothing(&sample));
        sample.add(Metric::Delay, 0, &delayed(10.0));
        assert!(says_nothing(&sample));
        sample.add(Metric::Delay, 1, &delayed(90.0));
        assert!(says_nothing(&sample));
        for i in 0..10 {
            sample.add(Metric::Delay, 0, &delayed(10.0 + f64::from(i % 3)));
            sample.add(Metric::Delay, 1, &delayed(90.0 + f64::from(i % 2)));
        }
        let found = sample.compare(Metric::Delay, TOLERANCE, 10);
        assert_eq!(found.finding, Finding::Worse);
        assert_eq!(
            found.to_string(),
            "queueing delay 90.45 ms, against 10.82 ms; at most 18.52 ms is tolerated"
        );
    }
}
