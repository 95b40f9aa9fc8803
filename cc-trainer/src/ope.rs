//! Off-policy evaluation: estimates what a candidate policy would earn from flows that another
//! policy (the behaviour policy) was recorded on.
//!
//! Recorded flows are cut into sub-trajectories of [`OpeSettings::horizon`] decisions. The quantity
//! of interest is the candidate's return from the first state of a sub-trajectory to its end. Each
//! of seven [`Method`]s estimates it for each reward term, with a bootstrap interval over flows
//! (the sub-trajectories of one flow are not independent of each other). An estimate is refused
//! ([`Refusal`]) when it rests on too few decisions, or when the behaviour policy hardly ever took
//! the candidate's actions.
//!
//! The module is pure arithmetic over [`OpeFlow`]s; [`recorded`] makes these from recordings.
//!
//! Sources:
//!
//! - N. Jiang, L. Li, "Doubly Robust Off-policy Value Evaluation for Reinforcement Learning" (ICML
//!   2016);
//! - P. Thomas, E. Brunskill, "Data-Efficient Off-Policy Policy Evaluation for Reinforcement
//!   Learning" (ICML 2016);
//! - M. Dudík, J. Langford, L. Li, "Doubly Robust Policy Evaluation and Learning" (ICML 2011);
//! - J. Gauci et al., "Horizon" (arXiv 1811.00260), section 5, for the set of methods.

mod blend;
mod fitted_q;
pub mod recorded;
mod sums;
#[cfg(test)]
mod tests;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use fitted_q::{FittedQ, Functional};
use sums::{SumLayout, Sums};

/// Smallest mean of π(a|x)/μ(a|x) that allows a conclusion. The mean is 1 where the behaviour
/// policy has tried all that the candidate would do.
pub const LEAST_MEAN_RATIO: f64 = 0.8;

/// A recorded flow, in the form that the estimators need.
#[derive(Clone, Debug, PartialEq)]
pub struct OpeFlow {
    /// Identifier of the flow, for error messages.
    pub id: u64,
    /// The decisions of the flow, in order.
    pub steps: Vec<OpeStep>,
    /// Whether the flow terminated, so that the value after the last step is 0.
    /// Otherwise what follows is unknown.
    ///
    /// Whether it is known must not depend on what it is, or terminations are counted too often.
    pub ended: bool,
}

/// A recorded decision with its rewards and the candidate's probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct OpeStep {
    /// `[D]`: the features that the fitted Q function is linear in.
    pub features: Vec<f32>,
    /// Index of the action that was taken.
    pub action: usize,
    /// μ(a|x): probability of that action under the behaviour policy, above 0.
    pub behaviour: f64,
    /// `[A]`, π(·|x): probabilities of all actions under the candidate.
    pub candidate: Vec<f64>,
    /// `[R]`: reward of the action, one value per reward term.
    pub rewards: Vec<f64>,
}

/// Settings of an off-policy evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpeSettings {
    /// H, the number of decisions of a sub-trajectory. Importance weights are products of up to H
    /// ratios: the longer the horizon, the smaller the effective sample size.
    pub horizon: usize,
    /// Discount γ of the rewards, per decision.
    pub discount: f64,
    /// Confidence level of the intervals, between 0 and 1.
    pub confidence: f64,
    /// Number of bootstrap resamples, at least 20.
    pub resamples: usize,
    /// Ridge penalty of the fitted Q's regressions. It acts like this many further decisions in
    /// each direction of the features, all with the mean target.
    pub ridge: f64,
    /// Smallest effective sample size that allows a conclusion.
    pub least_effective: f64,
    /// Fixes the two folds and the resamples.
    pub seed: u64,
}

impl Default for OpeSettings {
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

/// An estimator of the candidate's reward.
///
/// All but the step-wise doubly robust one estimate the same quantity: the discounted mean
/// of the candidate's rewards over a sub-trajectory, Σ γ^t r_t / Σ γ^t, from the states in
/// which the recorded sub-trajectories start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Per-decision importance sampling: each reward times the product of the ratios up to it
    /// (Jiang and Li, equation 3).
    StepwiseImportance,
    /// The same, normalised by the sum of the weights at each step instead of their number.
    StepwiseImportanceNormalised,
    /// The direct method: value of the first states under a fitted Q function.
    Direct,
    /// Each decision on its own, as in a contextual bandit (Dudík et al.): the immediate
    /// reward of one decision of the candidate in the states that the *behaviour policy*
    /// reaches, averaged over all decisions.
    StepwiseDoublyRobust,
    /// The sequential doubly robust estimator (Jiang and Li, equation 10).
    SequentialDoublyRobust,
    /// The same with normalised weights (Thomas and Brunskill, section 5).
    SequentialDoublyRobustWeighted,
    /// MAGIC: the blend of the direct and the weighted doubly robust estimate with the smallest
    /// estimated error (Thomas and Brunskill, section 7).
    Magic,
}

impl Method {
    /// All methods, in the order of [`Term::estimates`].
    pub const ALL: [Self; 7] = [
        Self::StepwiseImportance,
        Self::StepwiseImportanceNormalised,
        Self::Direct,
        Self::StepwiseDoublyRobust,
        Self::SequentialDoublyRobust,
        Self::SequentialDoublyRobustWeighted,
        Self::Magic,
    ];

    /// Returns the name for tables; variants of the method above are indented.
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

/// An estimate with its bootstrap percentile interval.
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
}

/// Result of one method for one reward term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodEstimate {
    /// The method that made the estimate.
    pub method: Method,
    /// The candidate's mean reward per decision.
    pub candidate: Interval,
    /// The candidate's mean minus the recorded one, both from the same resamples.
    pub difference: Interval,
    /// Effective sample size: the number of flows recorded with the candidate itself
    /// that would be as informative.
    pub effective: f64,
    /// Why the estimate allows no conclusion; `None` when it does.
    pub refusal: Option<Refusal>,
}

/// Why an estimate allows no conclusion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// The effective sample size is too small.
    #[error(
        "effective sample size {effective:.1} is below {least}: record more flows, shorten the \
         horizon, or evaluate a policy closer to the recorded one"
    )]
    Few {
        /// The effective sample size of the estimate.
        effective: f64,
        /// The smallest one that allows a conclusion.
        least: f64,
    },
    /// The behaviour policy has hardly tried what the candidate would do.
    #[error(
        "the mean ratio of probabilities is {mean_ratio:.2} where it should be 1: the recorded \
         policy hardly ever does what this one would; record with more exploration"
    )]
    Unsupported {
        /// The mean of π(a|x)/μ(a|x) over all decisions.
        mean_ratio: f64,
    },
}

/// All results for one reward term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// The recorded policy's mean reward per decision, discounted over the sub-trajectories.
    pub recorded: Interval,
    /// One estimate per method, in the order of [`Method::ALL`].
    pub estimates: Vec<MethodEstimate>,
}

/// The result of an off-policy evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpeEvaluation {
    /// Number of flows with at least one sub-trajectory.
    pub flows: usize,
    /// Number of sub-trajectories of all flows.
    #[serde(rename = "stretches")]
    pub sub_trajectories: usize,
    /// Number of decisions in all sub-trajectories.
    pub decisions: usize,
    /// Mean of π(a|x)/μ(a|x) over these decisions.
    pub mean_ratio: f64,
    /// One result per reward term, in the order of [`OpeStep::rewards`].
    pub terms: Vec<Term>,
}

/// Why flows cannot be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpeError {
    /// A step is not valid.
    #[error("flow {flow:#018x}, decision {step}: {problem}")]
    Step {
        /// Identifier of the step's flow.
        flow: u64,
        /// Index of the step in the flow, from 0.
        step: usize,
        /// What is wrong with the step.
        problem: String,
    },
    /// Fewer than four flows are long enough.
    #[error(
        "{flows} flows have a sub-trajectory of {horizon} decisions, but at least 4 are needed: \
         record more, or shorten the horizon"
    )]
    TooFew {
        /// Number of flows that are long enough.
        flows: usize,
        /// The configured horizon, in decisions.
        horizon: usize,
    },
    /// A setting is out of its range.
    #[error("{setting} is {found}; expected {expected}")]
    Setting {
        /// Name of the setting, as in messages.
        setting: &'static str,
        /// The value that it has.
        found: f64,
        /// The valid range, in words.
        expected: &'static str,
    },
}

/// Estimates the candidate's rewards from recorded flows.
///
/// The fitted Q function behind an estimate of a flow has not been fitted on that flow (two folds).
/// Its own uncertainty is part of the intervals, to first order ([`FittedQ::influence`]).
///
/// # Errors
///
/// Returns an error when a setting is out of range, a step has values that are not finite, of
/// another size, or no probability, or fewer than four flows are long enough.
pub fn evaluate(flows: &[OpeFlow], settings: &OpeSettings) -> Result<OpeEvaluation, OpeError> {
    settings.validate()?;
    let sizes = Sizes::of(flows, settings)?;
    let sub_trajectories: Vec<_> = flows
        .iter()
        .map(|flow| sub_trajectories(flow, settings.horizon))
        .collect();
    let usable = sub_trajectories
        .iter()
        .filter(|own| !own.is_empty())
        .count();
    if usable < 4 {
        return Err(OpeError::TooFew {
            flows: usable,
            horizon: settings.horizon,
        });
    }

    // Two folds, so that each flow is judged by a model that was not fitted on it.
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

    let layout = SumLayout::new(sizes.terms, settings);
    let sums: Vec<Sums> = (0..flows.len())
        .into_par_iter()
        .map(|flow| layout.of(&flows[flow], &sub_trajectories[flow], &models[fold[flow]]))
        .collect();
    let total = layout.total(sums.iter().map(|sums| (sums, 1.0)));
    let returns = blend::returns(settings.horizon);

    // How each flow's data shift the j-step returns through the models: `[flow][return][term]`.
    let mut influence = vec![0.0; flows.len() * returns.len() * sizes.terms];
    for (own, model) in models.iter().enumerate() {
        let judged = (0..flows.len()).filter(|&flow| fold[flow] == own);
        let sources: Vec<_> = returns
            .iter()
            .map(|&after| {
                let mut source = Functional::new(settings.horizon - after, &sizes);
                for flow in judged.clone() {
                    for sub_trajectory in &sub_trajectories[flow] {
                        layout.add_tail(&mut source, &flows[flow], sub_trajectory, after, &total);
                    }
                }
                source
            })
            .collect();
        model.influence(&sources, &mut influence);
    }

    let resample = |number: usize| {
        let mut random = StdRng::seed_from_u64(cc_sim::seed::output(settings.seed, number as u64));
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
            MethodEstimate {
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
    Ok(OpeEvaluation {
        flows: usable,
        sub_trajectories: sub_trajectories.iter().map(Vec::len).sum(),
        decisions: layout.decisions(&total),
        mean_ratio,
        terms: terms.collect(),
    })
}

impl OpeSettings {
    /// Checks that every setting is in its range.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first setting out of range, and the valid range.
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

/// The sizes D, A and R, which are the same for all steps.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    features: usize,
    actions: usize,
    terms: usize,
}

impl Sizes {
    fn of(flows: &[OpeFlow], settings: &OpeSettings) -> Result<Self, OpeError> {
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

    fn problem(&self, step: &OpeStep) -> Option<String> {
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

/// Indices of consecutive decisions of one flow.
type SubTrajectory = std::ops::Range<usize>;

/// Cuts a flow into sub-trajectories of full length, plus a shorter last one if
/// the flow terminated in it.
fn sub_trajectories(flow: &OpeFlow, horizon: usize) -> Vec<SubTrajectory> {
    let steps = flow.steps.len();
    (0..steps)
        .step_by(horizon)
        .map(|start| start..(start + horizon).min(steps))
        .filter(|sub_trajectory| sub_trajectory.len() == horizon || flow.ended)
        .collect()
}

/// Returns the percentile interval of bootstrap values, which it sorts.
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
