//! What becomes of a candidate: the rules by which it is refused, tried on live flows, and put in
//! force.

use serde::{Deserialize, Serialize};

use super::config::{Estimate, NoConclusion};
use crate::ope::verdict::{Conclusion, Verdict};

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Decision {
    /// The candidate passed and is in force.
    Promoted {
        /// What it passed, in words for reports.
        reason: String,
    },
    /// It was not put in force.
    Refused {
        /// What it did not pass, and why.
        reason: String,
    },
    /// A guard rail of the canary withdrew it.
    Withdrawn {
        /// The guard rail, in the agent's words.
        reason: String,
    },
}

impl Decision {
    /// Whether the candidate is in force.
    pub fn is_promotion(&self) -> bool {
        matches!(self, Self::Promoted { .. })
    }

    /// The outcome in a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Promoted { .. } => "promoted",
            Self::Refused { .. } => "refused",
            Self::Withdrawn { .. } => "withdrawn",
        }
    }

    /// Why the outcome is what it is, in words for reports.
    pub fn reason(&self) -> &str {
        match self {
            Self::Promoted { reason } | Self::Refused { reason } | Self::Withdrawn { reason } => {
                reason
            }
        }
    }
}

/// Mean entropies of what policies would do on the same recordings, nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entropies {
    /// Mean entropy of the candidate's actions.
    pub candidate: f64,
    /// That of the policy that the loop began with, as it was first recorded.
    pub first: f64,
}

/// How the phases of a canary ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "kebab-case")]
pub enum CanaryEnd {
    /// All phases found the candidate not worse.
    Passed,
    /// A guard rail withdrew it in a phase.
    Withdrawn {
        /// The guard rail, in the agent's words.
        reason: String,
    },
    /// A phase found nothing in its time.
    Open {
        /// Number of the phase, from 0.
        phase: usize,
    },
}

/// The decision that the estimate leads to; `None` where the canary decides.
///
/// A candidate is refused when it is estimated to be worse, in its reward or beyond what is
/// tolerated in anything else; when it explores too little for the next turn to learn from; and,
/// if the configuration says so, when the estimate allows no conclusion.
pub fn after_estimate(
    verdict: &Verdict,
    entropies: Entropies,
    rules: &Estimate,
) -> Option<Decision> {
    let least = rules.least_entropy * entropies.first;
    let why = || verdict.reasons().join("; ");
    let reason = match (verdict.conclusion, rules.no_conclusion) {
        (Conclusion::Worse, _) => format!("estimated to be worse: {}", why()),
        (Conclusion::None, NoConclusion::Refuse) => format!("no conclusion: {}", why()),
        _ if entropies.candidate < least => format!(
            "it explores too little: its entropy is {:.3} nats, and {least:.3} ({} of the first \
             policy's) is the least",
            entropies.candidate, rules.least_entropy
        ),
        (Conclusion::Better, _) | (Conclusion::None, NoConclusion::Canary) => return None,
    };
    Some(Decision::Refused { reason })
}

/// The decision that the canary leads to. `estimated` is what the estimate said before.
pub fn after_canary(end: &CanaryEnd, estimated: Conclusion) -> Decision {
    match end {
        CanaryEnd::Passed => Decision::Promoted {
            reason: format!("estimate: {estimated}; canary: not worse in any phase"),
        },
        CanaryEnd::Withdrawn { reason } => Decision::Withdrawn {
            reason: reason.clone(),
        },
        CanaryEnd::Open { phase } => Decision::Refused {
            reason: format!(
                "phase {} of the canary found nothing in its time: give it longer \
                 (canary.phase.seconds), or more flows",
                phase + 1
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ope::{
        Interval,
        recorded::TERM_NAMES,
        verdict::{TermFinding, TermVerdict},
    };

    fn verdict(conclusion: Conclusion) -> Verdict {
        let finding = match conclusion {
            Conclusion::Better => TermFinding::Better,
            Conclusion::Worse => TermFinding::Worse,
            Conclusion::None => TermFinding::Open,
        };
        let term = |name: &&str| TermVerdict {
            name: (*name).to_owned(),
            recorded: 1.0,
            difference: Interval {
                value: 0.0,
                low: 0.0,
                high: 0.0,
            },
            tolerated: 0.0,
            effective: 50.0,
            finding: finding.clone(),
        };
        Verdict {
            conclusion,
            terms: TERM_NAMES.iter().map(term).collect(),
        }
    }

    #[test]
    fn the_estimate_refuses_or_leaves_it_to_the_canary() {
        use Conclusion::{Better, None as Nothing, Worse};
        use NoConclusion::{Canary, Refuse};
        // The conclusion, the rule, the candidate's entropy (the first policy's is 1), and what the
        // refusal says; `None` goes on.
        let cases: [(Conclusion, NoConclusion, f64, Option<&str>); 9] = [
            (Better, Canary, 0.9, None),
            (Better, Refuse, 0.9, None),
            (Better, Canary, 0.49, Some("explores too little")),
            (
                Worse,
                Canary,
                0.9,
                Some("estimated to be worse: throughput_mbps worse"),
            ),
            (Worse, Refuse, 0.9, Some("estimated to be worse")),
            (Worse, Canary, 0.1, Some("estimated to be worse")),
            (Nothing, Canary, 0.9, None),
            (Nothing, Canary, 0.1, Some("explores too little")),
            (
                Nothing,
                Refuse,
                0.9,
                Some("no conclusion: throughput_mbps undecided"),
            ),
        ];
        for (conclusion, no_conclusion, candidate, expected) in cases {
            let rules = Estimate {
                no_conclusion,
                ..Estimate::default()
            };
            let entropies = Entropies {
                candidate,
                first: 1.0,
            };
            let decision = after_estimate(&verdict(conclusion), entropies, &rules);
            match (&decision, expected) {
                (None, None) => {}
                (Some(Decision::Refused { reason }), Some(part)) if reason.contains(part) => {}
                _ => panic!("{conclusion}, {no_conclusion:?}, {candidate}: {decision:?}"),
            }
        }
    }

    #[test]
    fn only_a_canary_that_passed_promotes() {
        let withdrawn = CanaryEnd::Withdrawn {
            reason: "its flows lost 90 % of their bytes".to_owned(),
        };
        for (end, word, part) in [
            (CanaryEnd::Passed, "promoted", "estimate: no conclusion"),
            (withdrawn, "withdrawn", "lost 90 %"),
            (
                CanaryEnd::Open { phase: 1 },
                "refused",
                "phase 2 of the canary",
            ),
        ] {
            let decision = after_canary(&end, Conclusion::None);
            assert_eq!(decision.word(), word);
            assert!(decision.reason().contains(part), "{decision:?}");
            assert_eq!(decision.is_promotion(), word == "promoted");
        }
    }
}
