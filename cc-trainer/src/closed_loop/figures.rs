//! What the stages of a turn find: the figures of its report.

use cc_testbed::summary::{Run, statistics};
use serde::{Deserialize, Serialize};

use super::gate::{CanaryEnd, Decision, Entropies};
use crate::ope::verdict::Verdict;
use cc_core::status::CanaryStatus;

/// Confidence level of the intervals of measured figures.
const CONFIDENCE: f64 = 0.95;
/// Seed of their bootstrap, fixed so that the same runs always give the same interval.
const SEED: u64 = 1;

/// The report of a turn or a trial, `report.json` in its directory. What is `None` was not done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    /// Name of the step: `turn-N`, or `trial-NAME`.
    pub name: String,
    /// How much was recorded of the policy in force.
    pub collected: Option<Collected>,
    /// How long the candidate was trained; `None` in a trial too.
    pub trained: Option<Trained>,
    /// What the candidate was estimated to do.
    pub estimated: Option<Estimated>,
    /// How the candidate did on live flows.
    pub tried: Option<Tried>,
    /// What became of the candidate.
    pub decision: Option<Decision>,
    /// SHA-256 of the candidate's file.
    pub candidate: Option<String>,
    /// SHA-256 of the file of the policy in force at the end.
    pub in_force: String,
    /// The policy in force on fresh runs.
    pub measured: Option<Measured>,
    /// The measured power as a multiple of turn 0's.
    pub against_first: Option<Figure>,
    /// The measured power as a multiple of that before.
    pub against_former: Option<Figure>,
    /// Time that the stages took, by their names, s.
    pub seconds: std::collections::BTreeMap<String, f64>,
}

impl TurnReport {
    /// Whether the candidate was put in force and the fresh runs show that it is worse than the
    /// former policy, beyond the interval of their ratio.
    pub fn is_regression(&self) -> bool {
        let is_promotion = self.decision.as_ref().is_some_and(Decision::is_promotion);
        let is_worse = |figure: &Figure| figure.interval.is_some_and(|(_, high)| high < 1.0);
        is_promotion && self.against_former.as_ref().is_some_and(is_worse)
    }
}

/// What was recorded in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Collected {
    /// Number of rows to learn from.
    pub rows: u64,
    /// Rows that are held out.
    pub held_out: u64,
    /// Mean entropy of the policy's actions in the held-out recordings, nats.
    pub entropy: f64,
}

/// What was trained in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// Number of environment steps (decisions) learnt from.
    pub steps: u64,
    /// Passes over the recordings after which the policy was best on the flows that training held
    /// out.
    pub epoch: u64,
}

/// What a candidate was estimated to do on the held-out recordings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimated {
    /// The conclusion, and each term's part in it.
    pub verdict: Verdict,
    /// Effective sample size of the reward's estimate, in clusters.
    pub effective: f64,
    /// Number of clusters in the held-out recordings.
    pub clusters: usize,
    /// What they have in common.
    pub cluster: String,
    /// Entropies of the candidate and of the first policy.
    pub entropies: Entropies,
}

/// How a candidate did on live flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// How the phases of the canary ended.
    pub end: CanaryEnd,
    /// Its phases, as the agent last described them.
    pub phases: Vec<PhaseReport>,
}

/// A phase of a canary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// The candidate's share of the flows, percent.
    pub percent: f64,
    /// Number of flows that shared each link.
    pub flows: usize,
    /// How long it took until it ended, s.
    pub seconds: f64,
    /// The agent's status of the canary when last seen; `None` when it was withdrawn before.
    pub status: Option<CanaryStatus>,
}

/// A mean over rounds of runs, with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The mean over the rounds, geometric for powers and their ratios.
    pub mean: f64,
    /// Its interval by the bootstrap over rounds; `None` for a single round.
    pub interval: Option<(f64, f64)>,
}

impl Figure {
    /// The mean of samples, one for each round; `None` without any.
    fn of(samples: &[f64]) -> Option<Self> {
        Some(Self {
            mean: statistics::mean(samples)?,
            interval: statistics::bootstrap_interval(samples, CONFIDENCE, SEED),
        })
    }

    /// The geometric mean of values whose logarithms these are.
    fn of_logarithms(samples: &[f64]) -> Option<Self> {
        let Self { mean, interval } = Self::of(samples)?;
        Some(Self {
            mean: mean.exp(),
            interval: interval.map(|(low, high)| (low.exp(), high.exp())),
        })
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$}", self.mean)?;
        match self.interval {
            Some((low, high)) => write!(f, " [{low:.digits$}, {high:.digits$}]"),
            None => Ok(()),
        }
    }
}

/// The policy in force on fresh runs. A round has one run on each link; the seeds of a round are
/// the same in every turn, so that turns can be compared round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Throughput over the 95th percentile of the one-way delay, Mbit/s per s, geometric mean over
    /// the links.
    pub power: Figure,
    /// Throughput, Mbit/s, mean over the links.
    pub throughput_mbps: Figure,
    /// 95th percentile of the one-way delay, ms, mean over the links.
    pub p95_owd_ms: Figure,
    /// Fraction of the packets that the links dropped, mean over the links.
    pub loss: Figure,
    /// Its part of the throughput beside one cubic flow, mean over the links; 0.5 is the fair one.
    pub beside_cubic: Option<Figure>,
    /// Mean entropy of its actions in these runs, nats.
    pub entropy: f64,
    /// Logarithm of the power in each complete round.
    pub rounds: Vec<f64>,
}

impl Measured {
    /// Makes the figures from the runs alone and beside cubic, on so many links. `None` when there
    /// is no round whose runs are all valid.
    pub(super) fn new(links: usize, alone: &[Run], beside: &[Run], entropy: f64) -> Option<Self> {
        let power = |run: &Run| {
            let delay_s = run.p95_owd_ms? / 1e3;
            Some((run.throughput_mbps / delay_s).ln()).filter(|power| power.is_finite())
        };
        let share = |run: &Run| {
            let rates: Vec<f64> = run.flows.iter().map(|flow| flow.throughput_mbps).collect();
            let all: f64 = rates.iter().sum();
            (all > 0.0).then(|| rates[0] / all)
        };
        let rounds = rounds(links, alone, power);
        Some(Self {
            power: Figure::of_logarithms(&rounds)?,
            throughput_mbps: Figure::of(&self::rounds(links, alone, |run| {
                Some(run.throughput_mbps)
            }))?,
            p95_owd_ms: Figure::of(&self::rounds(links, alone, |run| run.p95_owd_ms))?,
            loss: Figure::of(&self::rounds(links, alone, |run| Some(run.loss_rate)))?,
            beside_cubic: Figure::of(&self::rounds(links, beside, share)),
            entropy,
            rounds,
        })
    }

    /// The power as a multiple of another measurement's, by round.
    pub(super) fn against(&self, other: &Self) -> Option<Figure> {
        if self.rounds.len() != other.rounds.len() {
            // A round is missing in one of the two: the means alone can be compared.
            return Some(Figure {
                mean: self.power.mean / other.power.mean,
                interval: None,
            });
        }
        let pairs = self.rounds.iter().zip(&other.rounds);
        Figure::of_logarithms(&pairs.map(|(own, other)| own - other).collect::<Vec<_>>())
    }
}

/// The mean over the links of a measure in each round in which all links have it.
fn rounds(links: usize, runs: &[Run], measure: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
    let last = runs.iter().map(|run| run.run).max();
    let round = |number: u32| {
        let own = runs
            .iter()
            .filter(|run| run.run == number && run.is_valid());
        let values: Vec<f64> = own.filter_map(&measure).collect();
        (values.len() == links)
            .then(|| statistics::mean(&values))
            .flatten()
    };
    (0..last.map_or(0, |last| last + 1))
        .filter_map(round)
        .collect()
}

#[cfg(test)]
mod tests {
    use cc_testbed::summary::{FlowRun, Validity};

    use super::*;

    fn run(scenario: &str, number: u32, throughput_mbps: f64, p95_owd_ms: f64) -> Run {
        let flow = |throughput_mbps| FlowRun {
            throughput_mbps,
            ..FlowRun::default()
        };
        Run {
            scenario: scenario.to_owned(),
            run: number,
            throughput_mbps,
            p95_owd_ms: Some(p95_owd_ms),
            flows: vec![flow(1.0), flow(3.0)],
            ..Run::default()
        }
    }

    #[test]
    fn a_round_has_all_links() {
        let mut runs = vec![
            run("a", 0, 1.0, 100.0), // 10
            run("b", 0, 9.0, 100.0), // 90
            run("a", 1, 4.0, 100.0), // 40
            run("b", 1, 4.0, 100.0), // 40
            run("a", 2, 50.0, 1.0),
            run("b", 2, 50.0, 1.0),
        ];
        runs[4].validity = Validity {
            reasons: vec!["busy".to_owned()],
            ..Validity::default()
        };
        let measured = Measured::new(2, &runs, &runs[..4], 1.5).expect("two rounds");
        assert_eq!(
            measured.rounds.len(),
            2,
            "the third has no valid run on `a`"
        );
        // √(√(10·90) · 40).
        assert!((measured.power.mean - (30.0_f64 * 40.0).sqrt()).abs() < 1e-9);
        assert_eq!(measured.throughput_mbps.mean, 4.5);
        assert_eq!(measured.beside_cubic.expect("four runs").mean, 0.25);
        let (low, high) = measured.power.interval.expect("two rounds");
        assert!((low - 30.0).abs() < 1e-9 && (high - 40.0).abs() < 1e-9);
        assert_eq!(Measured::new(3, &runs, &runs, 1.5), None);
    }

    #[test]
    fn turns_are_compared_round_by_round() {
        let power = |factor: f64| {
            let runs: Vec<_> = (0..4)
                .map(|round| run("a", round, factor * f64::from(round + 1), 100.0))
                .collect();
            Measured::new(1, &runs, &[], 1.0).expect("four rounds")
        };
        let ratio = power(1.2).against(&power(1.0)).expect("equal rounds");
        let (low, high) = ratio.interval.expect("four rounds");
        // The rounds differ by factors, their ratios do not.
        assert!((low - 1.2).abs() < 1e-9 && (high - 1.2).abs() < 1e-9);
        assert_eq!(power(1.0).beside_cubic, None);
        let mut report = TurnReport {
            decision: Some(Decision::Promoted {
                reason: String::new(),
            }),
            against_former: power(0.9).against(&power(1.0)),
            ..TurnReport::default()
        };
        assert!(report.is_regression());
        report.against_former = power(1.1).against(&power(1.0));
        assert!(!report.is_regression());
        assert_eq!(
            format!("{:.1}", power(1.0).throughput_mbps),
            "2.5 [1.5, 3.5]"
        );
    }
}
