//! The conclusion of an off-policy evaluation: on the reward, and on what a better reward must not
//! have cost.
//!
//! A candidate is better when its reward is, and none of throughput, delay, loss and silence is
//! worse by more than its [tolerance](Tolerances), which is that of canaries. Each is judged by
//! the interval of MAGIC's difference from the recorded policy.

use std::fmt;

use cc_core::tolerance::{Tolerance, Tolerances};
use serde::{Deserialize, Serialize};

use super::{Interval, Method, OpeEvaluation, Refusal, Term, recorded::TERM_NAMES};

/// Index of the throughput among [`TERM_NAMES`].
const THROUGHPUT: usize = 0;
/// Index of the reward among [`TERM_NAMES`].
const REWARD: usize = TERM_NAMES.len() - 1;

/// What the estimates say of a candidate by one term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum TermFinding {
    /// The interval of the difference is on the better side of 0.
    Better,
    /// It is on the worse side of 0, or contains it, and within what is tolerated.
    NotWorse,
    /// The interval is beyond what is tolerated; of the reward, on the worse side of 0.
    Worse,
    /// The interval reaches beyond what is tolerated; of the reward, it contains 0.
    Open,
    /// The estimate allows no conclusion.
    Refused {
        /// Why there is no conclusion, with the remedy.
        reason: String,
    },
}

impl fmt::Display for TermFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Better => f.write_str("better"),
            Self::NotWorse => f.write_str("not worse than tolerated"),
            Self::Worse => f.write_str("worse"),
            Self::Open => f.write_str("undecided"),
            Self::Refused { reason } => write!(f, "no conclusion: {reason}"),
        }
    }
}

/// What the estimates say of a candidate by all terms together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// The reward is better, and no other term is worse than tolerated.
    Better,
    /// The reward is worse, or another term is worse than tolerated.
    Worse,
    /// The estimates show neither of the two.
    None,
}

impl fmt::Display for Conclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::None => "no conclusion",
        })
    }
}

/// One term of a [`Verdict`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TermVerdict {
    /// Name of the term, one of [`TERM_NAMES`] or of a joined column.
    pub name: String,
    /// Mean of the recorded policy, in the term's unit.
    pub recorded: f64,
    /// MAGIC's difference of the candidate from it.
    pub difference: Interval,
    /// The difference that is still tolerated, of the sign in which the term is worse; 0 for the
    /// reward, which has to be better.
    pub tolerated: f64,
    /// Effective sample size of the estimate, in clusters.
    pub effective: f64,
    /// What the difference and its interval say of the term.
    #[serde(flatten)]
    pub finding: TermFinding,
}

/// The conclusion about a candidate, and each term's part in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What all terms say together.
    pub conclusion: Conclusion,
    /// The terms, in the order of [`TERM_NAMES`]; joined ones come after them.
    pub terms: Vec<TermVerdict>,
}

impl Verdict {
    /// Concludes from an evaluation whose terms are `names`, each with whether more of it is
    /// better: those of [`TERM_NAMES`], and after them any that were joined, of which a tenth is
    /// tolerated as of the throughput.
    pub fn new(
        evaluation: &OpeEvaluation,
        names: &[(String, bool)],
        tolerances: &Tolerances,
    ) -> Self {
        let terms: Vec<_> = names
            .iter()
            .zip(&evaluation.terms)
            .enumerate()
            .map(|(place, (name, term))| judge(place, name, term, tolerances))
            .collect();
        Self {
            conclusion: conclude(&terms),
            terms,
        }
    }

    /// The verdict about the reward; `None` if it was not evaluated.
    pub fn reward(&self) -> Option<&TermVerdict> {
        self.terms.get(REWARD)
    }

    /// The terms that are found worse, or otherwise those that keep the conclusion from being
    /// "better", each with its finding.
    pub fn reasons(&self) -> Vec<String> {
        let keeps = |term: &&TermVerdict| match self.conclusion {
            Conclusion::Better => term.finding == TermFinding::Better,
            Conclusion::Worse => term.finding == TermFinding::Worse,
            Conclusion::None => is_in_the_way(term),
        };
        self.terms.iter().filter(keeps).map(reason).collect()
    }
}

/// The finding about a term with its figures.
fn reason(term: &TermVerdict) -> String {
    let Interval { value, low, high } = term.difference;
    format!(
        "{} {} ({value:+.4} [{low:+.4}, {high:+.4}] on {:.4})",
        term.name, term.finding, term.recorded
    )
}

fn conclude(terms: &[TermVerdict]) -> Conclusion {
    if terms.iter().any(|term| term.finding == TermFinding::Worse) {
        Conclusion::Worse
    } else if terms.is_empty() || terms.iter().any(is_in_the_way) {
        Conclusion::None
    } else {
        Conclusion::Better
    }
}

/// Whether a term keeps a candidate from being better: the reward has to be better, all others not
/// worse than tolerated.
fn is_in_the_way(term: &TermVerdict) -> bool {
    match term.finding {
        TermFinding::Better => false,
        TermFinding::NotWorse => term.name == TERM_NAMES[REWARD],
        TermFinding::Worse | TermFinding::Open | TermFinding::Refused { .. } => true,
    }
}

fn judge(
    place: usize,
    (name, more_is_better): &(String, bool),
    term: &Term,
    tolerances: &Tolerances,
) -> TermVerdict {
    let magic = term.estimates.iter().find(|e| e.method == Method::Magic);
    let recorded = term.recorded.value;
    let tolerated = tolerated(place, *more_is_better, recorded, tolerances);
    let nothing = Interval {
        value: 0.0,
        low: 0.0,
        high: 0.0,
    };
    let difference = magic.map_or(nothing, |estimate| estimate.difference);
    let finding = match magic.map(|estimate| estimate.refusal) {
        None => TermFinding::Open,
        Some(Some(refusal)) if !(is_absent(term, &difference) && rests_on_model(&refusal)) => {
            TermFinding::Refused {
                reason: refusal.to_string(),
            }
        }
        Some(_) => found(place, *more_is_better, &difference, tolerated),
    };
    TermVerdict {
        name: name.clone(),
        recorded,
        difference,
        tolerated,
        effective: magic.map_or(0.0, |estimate| estimate.effective),
        finding,
    }
}

/// What the interval of the difference says, where up to `tolerated` is tolerated.
fn found(place: usize, more_is_better: bool, difference: &Interval, tolerated: f64) -> TermFinding {
    // On a scale on which more is worse.
    let [least, most, tolerated] = match more_is_better {
        true => [-difference.high, -difference.low, -tolerated],
        false => [difference.low, difference.high, tolerated],
    };
    if most < 0.0 {
        TermFinding::Better
    } else if least > tolerated {
        TermFinding::Worse
    } else if place != REWARD && most <= tolerated {
        TermFinding::NotWorse
    } else {
        TermFinding::Open
    }
}

/// The difference of a term that is tolerated, by the place of the term.
fn tolerated(place: usize, more_is_better: bool, recorded: f64, tolerances: &Tolerances) -> f64 {
    let more = |tolerance: Tolerance| tolerance.allowed(recorded) - recorded;
    match place {
        THROUGHPUT => -tolerances.throughput * recorded,
        1 => more(tolerances.delay),
        2 => more(tolerances.loss),
        3 => more(tolerances.silence),
        REWARD => 0.0,
        _ => {
            let share = tolerances.throughput * recorded.abs();
            if more_is_better { -share } else { share }
        }
    }
}

/// Whether a term was 0 throughout, such as the loss on links that lost nothing. No model of it
/// could be wrong, so what an estimate says of its model is no reason against it.
fn is_absent(term: &Term, difference: &Interval) -> bool {
    let zero = |interval: &Interval| interval.low == 0.0 && interval.high == 0.0;
    zero(&term.recorded) && zero(difference)
}

fn rests_on_model(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Model { .. } | Refusal::Disagreement { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ope::{MethodEstimate, recorded::MORE_IS_BETTER};

    fn names() -> Vec<(String, bool)> {
        let own = TERM_NAMES.into_iter().zip(MORE_IS_BETTER);
        own.map(|(name, more)| (name.to_owned(), more)).collect()
    }

    fn interval(low: f64, high: f64) -> Interval {
        Interval {
            value: 0.5 * (low + high),
            low,
            high,
        }
    }

    const FEW: Refusal = Refusal::Few {
        effective: 3.0,
        least: 30.0,
    };
    const MODEL: Refusal = Refusal::Model {
        share: 80.0,
        whole: 4.0,
        least: 30.0,
        supported: 2,
    };

    /// An evaluation with these recorded means, differences and refusals, in the terms' order.
    fn evaluation(terms: [(f64, [f64; 2], Option<Refusal>); 5]) -> OpeEvaluation {
        let terms = terms.map(|(recorded, [low, high], refusal)| Term {
            recorded: interval(recorded, recorded),
            estimates: vec![MethodEstimate {
                method: Method::Magic,
                candidate: interval(low, high),
                difference: interval(low, high),
                effective: 100.0,
                refusal,
            }],
            blend: Vec::new(),
        });
        OpeEvaluation {
            flows: 1,
            clusters: 1,
            effective_clusters: 1.0,
            sub_trajectories: 1,
            left_out: 0,
            left_out_within_s: 0.0,
            decisions: 1,
            mean_ratio: interval(1.0, 1.0),
            terms: terms.into(),
        }
    }

    type Case = (
        &'static str,
        [(f64, [f64; 2], Option<Refusal>); 5],
        Conclusion,
    );

    #[test]
    fn a_better_reward_must_not_have_cost_more_than_is_tolerated() {
        // 10 Mbit/s, 20 ms, loss 0, silence 0, reward 1: a tenth, 10 ms, half a point are
        // tolerated.
        let none = (0.0, [0.0, 0.0], None);
        let better = (1.0, [0.1, 0.3], None);
        let same = [(10.0, [-0.2, 0.5], None), (20.0, [-1.0, 3.0], None)];
        let [throughput, delay] = same;
        let cases: [Case; 13] = [
            (
                "all is well",
                [throughput, delay, none, none, better],
                Conclusion::Better,
            ),
            (
                "the reward alone is undecided",
                [throughput, delay, none, none, (1.0, [-0.1, 0.3], None)],
                Conclusion::None,
            ),
            (
                "the reward is worse",
                [throughput, delay, none, none, (1.0, [-0.3, -0.1], None)],
                Conclusion::Worse,
            ),
            (
                "the delay is worse, as far as is tolerated",
                [throughput, (20.0, [6.0, 9.0], None), none, none, better],
                Conclusion::Better,
            ),
            (
                "the delay may be worse than tolerated",
                [throughput, (20.0, [6.0, 11.0], None), none, none, better],
                Conclusion::None,
            ),
            (
                "the delay is worse than tolerated",
                [throughput, (20.0, [10.5, 30.0], None), none, none, better],
                Conclusion::Worse,
            ),
            (
                "the throughput is worse than tolerated",
                [(10.0, [-3.0, -1.1], None), delay, none, none, better],
                Conclusion::Worse,
            ),
            (
                "the throughput is worse, as far as is tolerated",
                [(10.0, [-0.9, -0.5], None), delay, none, none, better],
                Conclusion::Better,
            ),
            (
                "the loss is worse than tolerated",
                [throughput, delay, (0.0, [0.006, 0.1], None), none, better],
                Conclusion::Worse,
            ),
            (
                "the flows stall",
                [throughput, delay, none, (0.0, [0.02, 0.1], None), better],
                Conclusion::Worse,
            ),
            (
                "too little is known of the delay",
                [
                    throughput,
                    (20.0, [-1.0, 3.0], Some(FEW)),
                    none,
                    none,
                    better,
                ],
                Conclusion::None,
            ),
            (
                "a loss that never happened needs no model",
                [
                    throughput,
                    delay,
                    (0.0, [0.0, 0.0], Some(MODEL)),
                    none,
                    better,
                ],
                Conclusion::Better,
            ),
            (
                "too little is known of a loss that never happened",
                [
                    throughput,
                    delay,
                    (0.0, [0.0, 0.0], Some(FEW)),
                    none,
                    better,
                ],
                Conclusion::None,
            ),
        ];
        for (what, terms, expected) in cases {
            let verdict = Verdict::new(&evaluation(terms), &names(), &Tolerances::default());
            assert_eq!(verdict.conclusion, expected, "{what}: {verdict:?}");
            assert!(!verdict.reasons().is_empty(), "{what}");
        }
    }

    #[test]
    fn the_reasons_name_what_decided() {
        let none = (0.0, [0.0, 0.0], None);
        let terms = [
            (10.0, [1.0, 2.0], None),
            (20.0, [15.0, 30.0], None),
            none,
            none,
            (1.0, [0.1, 0.3], None),
        ];
        let verdict = Verdict::new(&evaluation(terms), &names(), &Tolerances::default());
        let reasons = verdict.reasons();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert!(reasons[0].starts_with("delay_ms worse ("), "{reasons:?}");
        // What is written to reports can be read again.
        let json = serde_json::to_string(&verdict).expect("plain data");
        let again: Verdict = serde_json::from_str(&json).expect("its own format");
        assert_eq!(again, verdict);
    }

    #[test]
    fn a_joined_term_is_judged_by_its_own_direction() {
        let none = (0.0, [0.0, 0.0], None);
        let terms = [
            (10.0, [1.0, 2.0], None),
            none,
            none,
            none,
            (1.0, [0.1, 0.3], None),
        ];
        let mut names = names();
        names.push(("completion_s".to_owned(), false));
        for ([low, high], expected) in [
            ([-0.3, -0.1], Conclusion::Better),
            ([-0.1, 0.05], Conclusion::Better),
            ([-0.1, 0.2], Conclusion::None),
            ([0.12, 0.4], Conclusion::Worse),
        ] {
            let mut evaluation = evaluation(terms);
            let mut joined = evaluation.terms[0].clone();
            joined.recorded = interval(1.0, 1.0);
            for estimate in &mut joined.estimates {
                estimate.difference = interval(low, high);
            }
            evaluation.terms.push(joined);
            let verdict = Verdict::new(&evaluation, &names, &Tolerances::default());
            assert_eq!(verdict.conclusion, expected, "{verdict:?}");
        }
    }
}
