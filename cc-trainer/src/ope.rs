//! Off-policy evaluation: what a policy would have earned, from what another one did.
//!
//! Recorded flows are cut into stretches of [`Settings::horizon`] decisions. The question is what a candidate would earn
//! from the first state of a stretch to its end, and each of seven [`Method`]s answers it for each reward term, with a
//! bootstrap interval over flows (the stretches of a flow are not independent of each other). An answer that rests on too
//! few decisions, or on a recording that hardly ever did what the candidate would do, is refused ([`Refusal`]).
//!
//! Pure arithmetic over [`Flow`]s; where these come from is not its business.
//!
//! Sources: N. Jiang, L. Li, "Doubly Robust Off-policy Value Evaluation for Reinforcement Learning" (ICML 2016); P. Thomas,
//! E. Brunskill, "Data-Efficient Off-Policy Policy Evaluation for Reinforcement Learning" (ICML 2016); M. Dudík, J. Langford,
//! L. Li, "Doubly Robust Policy Evaluation and Learning" (ICML 2011); the set of methods is that of J. Gauci et al., "Horizon"
//! (arXiv 1811.00260), section 5.

mod blend;
mod fitted_q;
pub mod recorded;
mod sums;
#[cfg(test)]
mod tests;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use fitted_q::{FittedQ, Source};
use sums::{Layout, Sums};

/// Below this mean of π(a|x)/μ(a|x), which is 1 where the recording tried all that the candidate would do, there is no
/// conclusion.
pub const LEAST_MEAN_RATIO: f64 = 0.8;

/// A recorded flow, as estimators see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Names it in errors.
    pub id: u64,
    /// Its decisions, in order.
    pub steps: Vec<Step>,
    /// Nothing can be earned after the last step. Otherwise it is not known what came after it; whether it is known must not depend
    /// on what it was, or ends are counted too often.
    pub ended: bool,
}

/// A recorded decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// `[D]`: what the fitted Q is linear in.
    pub features: Vec<f32>,
    /// The action taken.
    pub action: usize,
    /// μ(a|x): with which probability it was taken, above 0.
    pub behaviour: f64,
    /// `[A]`, π(·|x): the candidate's probabilities.
    pub candidate: Vec<f64>,
    /// `[R]`: what the action earned, a value a reward term.
    pub rewards: Vec<f64>,
}

/// How to estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Decisions of a stretch, H. Weights are products of as many ratios: the longer, the less is left of the data.
    pub horizon: usize,
    /// γ.
    pub discount: f64,
    /// Of the intervals, within (0, 1).
    pub confidence: f64,
    /// Resamples of the bootstrap.
    pub resamples: usize,
    /// Ridge of the fitted Q's regressions, as if so many decisions in each direction had earned the mean of all.
    pub ridge: f64,
    /// The least effective sample size that allows a conclusion.
    pub least_effective: f64,
    /// Fixes folds and resamples.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            horizon: 10,
            discount: 0.95,
            confidence: 0.95,
            resamples: 1000,
            ridge: 1.0,
            least_effective: 30.0,
            seed: 1,
        }
    }
}

/// An estimator. All but the step-wise doubly robust one estimate the same: the discounted mean of the candidate's rewards
/// over a stretch, Σ γ^t r_t / Σ γ^t, from the states in which recorded stretches begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Each reward times the product of the ratios up to it (Jiang and Li, equation 3).
    StepwiseImportance,
    /// The same, over the sum of those weights at each step instead of their number.
    StepwiseImportanceNormalised,
    /// What a fitted Q expects of the candidate in the first states.
    Direct,
    /// Each decision on its own, as in a contextual bandit (Dudík et al.): what one decision of the candidate earns at once in
    /// the states that the *recorded* policy gets into, a mean over all decisions.
    StepwiseDoublyRobust,
    /// Jiang and Li, equation 10.
    SequentialDoublyRobust,
    /// The same with normalised weights (Thomas and Brunskill, section 5).
    SequentialDoublyRobustWeighted,
    /// The blend of model and weighted doubly robust estimate of the least estimated error (Thomas and Brunskill, section 7).
    Magic,
}

impl Method {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::StepwiseImportance,
        Self::StepwiseImportanceNormalised,
        Self::Direct,
        Self::StepwiseDoublyRobust,
        Self::SequentialDoublyRobust,
        Self::SequentialDoublyRobustWeighted,
        Self::Magic,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::StepwiseImportance => "step-wise importance sampling",
            Self::StepwiseImportanceNormalised => "  self-normalised",
            Self::Direct => "direct method (fitted Q)",
            Self::StepwiseDoublyRobust => "step-wise doubly robust",
            Self::SequentialDoublyRobust => "sequential doubly robust",
            Self::SequentialDoublyRobustWeighted => "  weighted",
            Self::Magic => "MAGIC",
        }
    }
}

/// A value and its bootstrap interval (percentiles).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The estimate.
    pub value: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a number lies in it.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// What a method says of one reward term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The method.
    pub method: Method,
    /// Of the candidate, a decision.
    pub candidate: Interval,
    /// The candidate's less what was recorded; both from the same resamples.
    pub difference: Interval,
    /// Effective sample size: as many flows under the candidate itself would tell as much.
    pub effective: f64,
    /// Why nothing can be concluded from it.
    pub refusal: Option<Refusal>,
}

/// Why an estimate allows no conclusion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// It rests on too few flows.
    #[error(
        "effective sample size {effective:.1} is below {least}: record more flows, shorten the horizon, or compare with a \
         policy nearer to the recorded one"
    )]
    Few {
        /// The effective sample size.
        effective: f64,
        /// What is needed.
        least: f64,
    },
    /// The recording has not tried what the candidate would do.
    #[error(
        "the mean ratio of probabilities is {mean_ratio:.2} where it should be 1: the recorded policy hardly ever does what \
         this one would; record with more exploration"
    )]
    Unsupported {
        /// The mean of π(a|x)/μ(a|x).
        mean_ratio: f64,
    },
}

/// All that is said of one reward term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// What the recorded policy earned, a decision: its discounted mean over the stretches.
    pub recorded: Interval,
    /// In [`Method::ALL`]'s order.
    pub estimates: Vec<Estimate>,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Flows with at least one stretch.
    pub flows: usize,
    /// Stretches.
    pub stretches: usize,
    /// Decisions in them.
    pub decisions: usize,
    /// Mean of π(a|x)/μ(a|x) over them.
    pub mean_ratio: f64,
    /// A reward term each, in the steps' order.
    pub terms: Vec<Term>,
}

/// Why flows cannot be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpeError {
    /// A step is not as it has to be.
    #[error("flow {flow:#018x}, decision {step}: {problem}")]
    Step {
        /// The flow.
        flow: u64,
        /// Its step, from 0.
        step: usize,
        /// What is wrong.
        problem: String,
    },
    /// Not enough to evaluate anything.
    #[error(
        "{flows} flows have a stretch of {horizon} decisions, and at least 4 are needed: record more, or shorten the horizon"
    )]
    TooFew {
        /// Flows that are long enough.
        flows: usize,
        /// The horizon.
        horizon: usize,
    },
    /// A setting out of its range.
    #[error("{setting} is {found}; expected {expected}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// Its value.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
}

/// Estimates what the candidate would earn.
///
/// The fitted Q that an estimate of a flow uses has never seen that flow (two folds); its own uncertainty is in the
/// intervals, to first order ([`FittedQ::influence`]).
///
/// # Errors
///
/// Steps that are not finite, not of one size or without probabilities; too few flows; settings out of range.
pub fn evaluate(flows: &[Flow], settings: &Settings) -> Result<Evaluation, OpeError> {
    settings.validate()?;
    let sizes = Sizes::of(flows, settings)?;
    let stretches: Vec<_> = flows
        .iter()
        .map(|flow| stretches(flow, settings.horizon))
        .collect();
    let usable = stretches.iter().filter(|own| !own.is_empty()).count();
    if usable < 4 {
        return Err(OpeError::TooFew {
            flows: usable,
            horizon: settings.horizon,
        });
    }

    // Two folds, so that each flow is judged by a model that has not seen it.
    let mut order: Vec<usize> = (0..flows.len()).collect();
    order.shuffle(&mut StdRng::seed_from_u64(settings.seed));
    let mut fold = vec![0; flows.len()];
    for (place, &flow) in order.iter().enumerate() {
        fold[flow] = place % 2;
    }
    let models = [0, 1].map(|own| {
        let others = (0..flows.len()).filter(|&flow| fold[flow] != own);
        FittedQ::fit(flows, others.collect(), &sizes, settings)
    });

    let layout = Layout::new(sizes.terms, settings);
    let sums: Vec<Sums> = (0..flows.len())
        .into_par_iter()
        .map(|flow| layout.of(&flows[flow], &stretches[flow], &models[fold[flow]]))
        .collect();
    let total = layout.total(sums.iter().map(|sums| (sums, 1.0)));
    let returns = blend::returns(settings.horizon);

    // How the data of each flow shift the j-step returns through the models: `[flow][return][term]`.
    let mut influence = vec![0.0; flows.len() * returns.len() * sizes.terms];
    for (own, model) in models.iter().enumerate() {
        let judged = (0..flows.len()).filter(|&flow| fold[flow] == own);
        let sources: Vec<_> = returns
            .iter()
            .map(|&after| {
                let mut source = Source::new(settings.horizon - after, &sizes);
                for flow in judged.clone() {
                    for stretch in &stretches[flow] {
                        layout.add_tail(&mut source, &flows[flow], stretch, after, &total);
                    }
                }
                source
            })
            .collect();
        model.influence(&sources, &mut influence);
    }

    let resample = |number: usize| {
        let mut random = StdRng::seed_from_u64(crate::seed::output(settings.seed, number as u64));
        let mut counts = vec![0.0; flows.len()];
        for _ in 0..flows.len() {
            counts[random.random_range(0..flows.len())] += 1.0;
        }
        let resampled = layout.total(sums.iter().zip(counts.iter().copied()));
        let mut shift = vec![0.0; returns.len() * sizes.terms];
        for (own, count) in influence.chunks_exact(shift.len()).zip(&counts) {
            for (shift, own) in shift.iter_mut().zip(own) {
                *shift += (count - 1.0) * own;
            }
        }
        layout.answers(&resampled, &returns, &shift)
    };
    let replicates: Vec<_> = (0..settings.resamples)
        .into_par_iter()
        .map(resample)
        .collect();
    let still = vec![0.0; returns.len() * sizes.terms];
    let answers = layout.answers(&total, &returns, &still);
    let mean_ratio = layout.mean_ratio(&total);
    let effective = layout.effective(&sums, &returns);

    let terms = (0..sizes.terms).map(|term| {
        let spread = |of: &dyn Fn(&sums::Answers) -> f64| {
            let mut values: Vec<_> = replicates.iter().map(of).collect();
            interval(of(&answers), &mut values, settings.confidence)
        };
        let weights = blend::weights(&answers, &replicates, term);
        let estimate = |method: Method| {
            let of = |answers: &sums::Answers| answers.of(method, term, &weights);
            let effective = effective.of(method, &weights);
            let refusal = if effective < settings.least_effective {
                Some(Refusal::Few {
                    effective,
                    least: settings.least_effective,
                })
            } else {
                (mean_ratio < LEAST_MEAN_RATIO).then_some(Refusal::Unsupported { mean_ratio })
            };
            Estimate {
                method,
                candidate: spread(&of),
                difference: spread(&|answers| of(answers) - answers.recorded(method, term)),
                effective,
                refusal,
            }
        };
        Term {
            recorded: spread(&|answers| answers.recorded(Method::Magic, term)),
            estimates: Method::ALL.map(estimate).into(),
        }
    });
    Ok(Evaluation {
        flows: usable,
        stretches: stretches.iter().map(Vec::len).sum(),
        decisions: layout.decisions(&total),
        mean_ratio,
        terms: terms.collect(),
    })
}

impl Settings {
    /// Checks every setting.
    ///
    /// # Errors
    ///
    /// The first one out of its range, and what it may be.
    pub fn validate(&self) -> Result<(), OpeError> {
        let check = |fits: bool, setting, found, expected| match fits {
            true => Ok(()),
            false => Err(OpeError::Setting {
                setting,
                found,
                expected,
            }),
        };
        check(
            (1..=10_000).contains(&self.horizon),
            "horizon",
            self.horizon as f64,
            "1 to 10000 decisions",
        )?;
        check(
            (0.0..=1.0).contains(&self.discount) && self.discount > 0.0,
            "discount",
            self.discount,
            "above 0 and at most 1",
        )?;
        check(
            self.confidence > 0.0 && self.confidence < 1.0,
            "confidence",
            self.confidence,
            "between 0 and 1",
        )?;
        check(
            self.resamples >= 20,
            "resamples",
            self.resamples as f64,
            "at least 20",
        )?;
        check(
            self.ridge.is_finite() && self.ridge > 0.0,
            "ridge",
            self.ridge,
            "above 0",
        )?;
        check(
            self.least_effective.is_finite(),
            "least effective sample size",
            self.least_effective,
            "a number",
        )
    }
}

/// D, A and R, the same for all steps.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    features: usize,
    actions: usize,
    terms: usize,
}

impl Sizes {
    fn of(flows: &[Flow], settings: &Settings) -> Result<Self, OpeError> {
        let first = flows.iter().find_map(|flow| flow.steps.first());
        let Some(first) = first else {
            return Err(OpeError::TooFew {
                flows: 0,
                horizon: settings.horizon,
            });
        };
        let sizes = Self {
            features: first.features.len(),
            actions: first.candidate.len(),
            terms: first.rewards.len(),
        };
        for flow in flows {
            for (index, step) in flow.steps.iter().enumerate() {
                if let Some(problem) = sizes.problem(step) {
                    return Err(OpeError::Step {
                        flow: flow.id,
                        step: index,
                        problem,
                    });
                }
            }
        }
        Ok(sizes)
    }

    fn problem(&self, step: &Step) -> Option<String> {
        let found = [
            step.features.len(),
            step.candidate.len(),
            step.rewards.len(),
        ];
        let expected = [self.features, self.actions, self.terms];
        if found != expected {
            return Some(format!(
                "{found:?} features, actions and rewards where the first has {expected:?}"
            ));
        }
        if step.action >= self.actions {
            return Some(format!("action {} of {}", step.action, self.actions));
        }
        if !(step.behaviour > 0.0 && step.behaviour <= 1.0 + 1e-4) {
            return Some(format!(
                "the recorded probability is {}; expected above 0 and at most 1",
                step.behaviour
            ));
        }
        let sum: f64 = step.candidate.iter().sum();
        let fits = step.candidate.iter().all(|&p| p >= 0.0) && (sum - 1.0).abs() < 1e-3;
        if !fits {
            return Some(format!(
                "the candidate's probabilities are {:?}",
                step.candidate
            ));
        }
        let finite = step.features.iter().all(|value| value.is_finite())
            && step.rewards.iter().all(|value| value.is_finite());
        (!finite).then(|| "a feature or a reward is not a finite number".to_owned())
    }
}

/// Some decisions of a flow.
type Stretch = std::ops::Range<usize>;

/// Whole stretches, and a last shorter one where the flow ended in it.
fn stretches(flow: &Flow, horizon: usize) -> Vec<Stretch> {
    let steps = flow.steps.len();
    (0..steps)
        .step_by(horizon)
        .map(|start| start..(start + horizon).min(steps))
        .filter(|stretch| stretch.len() == horizon || flow.ended)
        .collect()
}

/// The percentile interval of a bootstrap's values.
fn interval(value: f64, values: &mut [f64], confidence: f64) -> Interval {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let at = |share: f64| values[((share * last as f64).round() as usize).min(last)];
    let tail = 0.5 * (1.0 - confidence);
    Interval {
        value,
        low: at(tail),
        high: at(1.0 - tail),
    }
}
