//! Off-policy evaluation: estimates what a candidate policy would earn from flows that another
//! policy (the behaviour policy) was recorded on.
//!
//! Recorded flows are cut into sub-trajectories of [`OpeSettings::horizon`] decisions. The quantity
//! of interest is the candidate's return from the first state of a sub-trajectory to its end, per
//! decision or per second ([`Per`]). Each of seven [`Method`]s estimates it for each reward term.
//!
//! Flows that may depend on each other form a cluster ([`ClusterBy`]). Clusters are the units of
//! folds, of the bootstrap behind the intervals, and of the effective sample size. An estimate is
//! refused ([`Refusal`]) when it rests on too few of them, on the model alone, or on probabilities
//! that contradict the recorded actions.
//!
//! The module is pure arithmetic over [`OpeFlow`]s; [`recorded`] makes these from recordings,
//! [`estimate`](mod@estimate) does all of it, and [`verdict`] concludes.
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
mod clusters;
mod cut;
pub mod estimate;
mod fitted_q;
mod interval;
pub mod recorded;
mod sums;
#[cfg(test)]
mod tests;
pub mod verdict;

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use clusters::ClusterBy;
pub use cut::RecordingEnd;
pub use interval::Interval;
pub(crate) use interval::student_quantile;

use blend::Blend;
use cut::Selected;
use fitted_q::{FittedQ, Functional};
use interval::Kind;
use sums::{Answers, Effective, SumLayout, Sums};

/// Smallest number of clusters that are evaluated at all. The bootstrap knows nothing of
/// a population from fewer.
pub const LEAST_CLUSTERS: usize = 10;

/// Smallest mean of π(a|x)/μ(a|x) that allows a conclusion. The mean is 1 where the behaviour
/// policy has tried all that the candidate would do.
pub const LEAST_MEAN_RATIO: f64 = 0.8;

/// Confidence level of the interval of the mean ratio, which must contain 1 within
/// [`RATIO_TOLERANCE`]. It is high because the check is not what the evaluation is made for: it
/// should stop hardly any sound one.
pub const RATIO_CONFIDENCE: f64 = 0.99;

/// Distance from 1 at which a mean ratio does not matter. Probabilities are recorded as 32-bit
/// floats, and many decisions would show any difference as significant.
pub const RATIO_TOLERANCE: f64 = 0.01;

/// Smallest effective sample size of the weights over the whole horizon with which the weighted
/// doubly robust estimate can still contradict the model.
pub const LEAST_WHOLE: f64 = 10.0;

/// Largest weight of the model alone in MAGIC's blend when the intervals of the direct and of the
/// weighted doubly robust estimate have no point in common.
pub const MOST_DISPUTED: f64 = 0.1;

/// A recorded flow, in the form that the estimators need.
#[derive(Clone, Debug, PartialEq)]
pub struct OpeFlow {
    /// Identifier of the flow, for error messages.
    pub id: u64,
    /// Identifier of its cluster. Flows of different clusters are independent of each other.
    pub cluster: u64,
    /// The decisions of the flow, in order.
    pub steps: Vec<OpeStep>,
    /// Whether the flow terminated, so that the value after the last step is 0.
    /// Otherwise what follows is unknown.
    ///
    /// Whether it is known must not depend on what it is, or terminations are counted too often.
    pub ended: bool,
    /// When a clock ended the flow's recording; `None` where none did. What it cut off is allowed
    /// for: what began too shortly before it is left out.
    pub end: Option<RecordingEnd>,
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
    /// `[R]`: reward of the action, one value per reward term. For rates per second
    /// ([`Per::Second`]) it is what was earned in all of `seconds`.
    pub rewards: Vec<f64>,
    /// How long the action was in force, s. It matters with [`Per::Second`] only.
    pub seconds: f64,
}

impl OpeStep {
    /// Returns a reward, or the time for the index after that of the last reward.
    fn amount(&self, index: usize) -> f64 {
        self.rewards.get(index).copied().unwrap_or(self.seconds)
    }
}

/// What a rate of rewards refers to, and what the discount depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Rewards are per decision: Σ γ^t r_t / Σ γ^t over a sub-trajectory. A policy whose decisions
    /// take longer, because its flow is silent, does not pay for the time.
    #[default]
    Decision,
    /// Rewards are per second: with s_t the time in which the t-th decision was in force, and τ_t
    /// that of all before it in the sub-trajectory, E Σ γ^τ_t r_t / E Σ γ^τ_t s_t. This is a
    /// semi-Markov decision process; numerator and denominator are estimated alike.
    Second,
}

/// The discount of what follows a step.
#[derive(Clone, Copy, Debug)]
struct Discounting {
    per: Per,
    factor: f64,
}

impl Discounting {
    /// Returns the discount over a step.
    fn after(&self, step: &OpeStep) -> f64 {
        match self.per {
            Per::Decision => self.factor,
            Per::Second => self.factor.powf(step.seconds),
        }
    }
}

/// Settings of an off-policy evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpeSettings {
    /// H, the number of decisions of a sub-trajectory. Importance weights are products of up to H
    /// ratios: the longer the horizon, the smaller the effective sample size.
    pub horizon: usize,
    /// Whether rewards are per decision or per second.
    pub per: Per,
    /// Discount γ of the rewards, over a decision or over a second.
    pub discount: f64,
    /// Confidence level of the intervals, between 0 and 1.
    pub confidence: f64,
    /// Number of bootstrap resamples, at least 20.
    pub resamples: usize,
    /// Ridge penalty of the fitted Q's regressions. It acts like this many further decisions in
    /// each direction of the features, all with the mean target.
    pub ridge: f64,
    /// Smallest effective sample size, in clusters, that allows a conclusion.
    pub least_effective: f64,
    /// Makes the intervals a confidence sequence over clusters, which begins and is narrowest at
    /// this number of them: repeated evaluations of a growing recording then leave the truth out of
    /// *any* of their intervals with probability 1 − `confidence` at most. The number must be the
    /// same each time. `None` makes intervals for a single look.
    pub anytime: Option<usize>,
    /// Fixes the two folds and the resamples.
    pub seed: u64,
}

impl Default for OpeSettings {
    fn default() -> Self {
        Self {
            horizon: 10,
            per: Per::default(),
            discount: 0.95,
            confidence: 0.95,
            resamples: 1000,
            ridge: 1.0,
            least_effective: 30.0,
            anytime: None,
            seed: 1,
        }
    }
}

/// An estimator of the candidate's reward.
///
/// All but the step-wise doubly robust one estimate the same quantity: the discounted mean
/// of the candidate's rewards over a sub-trajectory ([`Per`]), from the states in which
/// the recorded sub-trajectories start.
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

/// Result of one method for one reward term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodEstimate {
    /// The method that made the estimate.
    pub method: Method,
    /// The candidate's mean reward, per decision or per second.
    pub candidate: Interval,
    /// The candidate's mean minus the recorded one, both from the same resamples.
    pub difference: Interval,
    /// Effective sample size: the number of clusters of equal size, recorded with the candidate
    /// itself, that would be as informative.
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
        "effective sample size {effective:.1} is below {least}: record more clusters, shorten the \
         horizon, or evaluate a policy closer to the recorded one"
    )]
    Few {
        /// The effective sample size of the estimate, in clusters.
        effective: f64,
        /// The smallest one that allows a conclusion.
        least: f64,
    },
    /// The behaviour policy has hardly tried what the candidate would do.
    #[error(
        "the mean ratio of probabilities is {mean_ratio:.2} [{low:.2}, {high:.2}] where it should \
         be 1: the recorded policy hardly ever does what this one would; record with more \
         exploration"
    )]
    Unsupported {
        /// The mean of π(a|x)/μ(a|x) over all decisions.
        mean_ratio: f64,
        /// Lower end of its interval.
        low: f64,
        /// Upper end of its interval.
        high: f64,
    },
    /// Actions were taken more often than their recorded probabilities say.
    #[error(
        "the mean ratio of probabilities is {mean_ratio:.2} [{low:.2}, {high:.2}] where it should \
         be 1: actions were taken with other probabilities than the recorded ones, or decisions \
         are missing depending on what was done; no estimate from this recording can be trusted"
    )]
    Improbable {
        /// The mean of π(a|x)/μ(a|x) over all decisions.
        mean_ratio: f64,
        /// Lower end of its interval.
        low: f64,
        /// Upper end of its interval.
        high: f64,
    },
    /// There are too few clusters for the first look of a confidence sequence.
    #[error(
        "the looks begin at {first} clusters (--anytime), and these are {clusters}: record more"
    )]
    Early {
        /// Number of clusters in the recordings.
        clusters: usize,
        /// Number of clusters of the first look, [`OpeSettings::anytime`].
        first: usize,
    },
    /// The estimate is that of the fitted Q function, which the weights do not confirm.
    #[error(
        "it rests on the model: {share:.0}% of the estimate has an effective sample size below \
         {least}, and the weights over the whole horizon have {whole:.1}; {}",
        remedy(*supported)
    )]
    Model {
        /// Weight in MAGIC's blend of returns whose own effective sample size is below `least`, in
        /// percent.
        share: f64,
        /// The effective sample size of the weights over the whole horizon.
        whole: f64,
        /// The smallest one that allows a conclusion.
        least: f64,
        /// Number of decisions over which the weights have an effective sample size of `least`.
        supported: usize,
    },
    /// The fitted Q function and the weights contradict each other.
    #[error(
        "the model says {:.4} [{:.4}, {:.4}] more than recorded, the weighted doubly robust \
         estimate {:.4} [{:.4}, {:.4}]: one of the two is wrong; check that the recording has all \
         of the policy's inputs, and its probabilities",
        direct.value, direct.low, direct.high, weighted.value, weighted.low, weighted.high
    )]
    Disagreement {
        /// The direct method's difference from the recorded policy.
        direct: Interval,
        /// The weighted doubly robust estimate of the difference.
        weighted: Interval,
    },
}

/// Returns what helps where the weights support a horizon of so many decisions.
fn remedy(supported: usize) -> String {
    match supported {
        0 => "record more clusters, or evaluate a policy closer to the recorded one".to_owned(),
        _ => format!("the recording supports a horizon of {supported}"),
    }
}

/// One of the j-step returns that MAGIC blends: weighted rewards of j decisions, and the fitted Q
/// function for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlendedReturn {
    /// j; 0 is the model alone, the horizon the weighted doubly robust estimate.
    pub decisions: usize,
    /// Its weight in the blend.
    pub weight: f64,
    /// Effective sample size of its weights, in clusters; for the model alone that of the weights
    /// over the whole horizon, for which it speaks.
    pub effective: f64,
}

/// All results for one reward term.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// The recorded policy's mean reward, per decision or per second, discounted over the
    /// sub-trajectories.
    pub recorded: Interval,
    /// One estimate per method, in the order of [`Method::ALL`].
    pub estimates: Vec<MethodEstimate>,
    /// What MAGIC's estimate is blended from.
    pub blend: Vec<BlendedReturn>,
}

/// The result of an off-policy evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpeEvaluation {
    /// Number of flows with at least one sub-trajectory.
    pub flows: usize,
    /// Number of clusters of these flows.
    pub clusters: usize,
    /// The number of clusters of equal size that would be as informative about the recorded policy:
    /// (Σ n)²/Σ n² of their numbers of sub-trajectories.
    pub effective_clusters: f64,
    /// Number of sub-trajectories of all flows.
    #[serde(rename = "stretches")]
    pub sub_trajectories: usize,
    /// Number of sub-trajectories that are left out although they are whole, because they began so
    /// shortly before the end of a flow's recording that others were cut off there.
    pub left_out: usize,
    /// How shortly before the end that is, s.
    pub left_out_within_s: f64,
    /// Number of decisions in all sub-trajectories.
    pub decisions: usize,
    /// Mean of π(a|x)/μ(a|x) over these decisions, with its interval at [`RATIO_CONFIDENCE`].
    pub mean_ratio: Interval,
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
    /// The flows that are long enough form too few clusters.
    #[error(
        "{flows} flows have a sub-trajectory of {horizon} decisions{}, in {clusters} clusters, but \
         nothing can be said from fewer than {}: record more clusters, shorten the horizon, or, \
         where flows did not share links, take each as its own cluster",
        but(*left_out),
        LEAST_CLUSTERS
    )]
    TooFew {
        /// Number of flows that are long enough.
        flows: usize,
        /// Number of the clusters that these form.
        clusters: usize,
        /// The configured horizon, in decisions.
        horizon: usize,
        /// Number of sub-trajectories that began too shortly before the end of a recording.
        left_out: usize,
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

/// Returns what was left out, for a message.
fn but(left_out: usize) -> String {
    match left_out {
        0 => String::new(),
        _ => {
            format!(" (not counting {left_out} near the ends of recordings, where others are cut)")
        }
    }
}

/// Estimates the candidate's rewards from recorded flows.
///
/// The fitted Q function behind an estimate of a flow has not been fitted on that flow's cluster
/// (two folds). Its own uncertainty is part of the intervals, to first order
/// ([`FittedQ::influence`]), and so is the dependence of MAGIC's weights on the data.
///
/// # Errors
///
/// Returns an error when a setting is out of range, a step has values that are not finite, of
/// another size, or no probability, or the flows that are long enough form fewer than
/// [`LEAST_CLUSTERS`] clusters.
pub fn evaluate(flows: &[OpeFlow], settings: &OpeSettings) -> Result<OpeEvaluation, OpeError> {
    settings.validate()?;
    let sizes = Sizes::of(flows, settings)?;
    let Selected {
        of: sub_trajectories,
        left_out,
        within_s,
    } = Selected::new(flows, settings.horizon);
    let clusters = Clusters::of(flows);
    let usable = sub_trajectories
        .iter()
        .filter(|own| !own.is_empty())
        .count();
    let mut in_cluster = vec![0; clusters.count];
    for (own, &cluster) in sub_trajectories.iter().zip(&clusters.of) {
        in_cluster[cluster] += own.len();
    }
    in_cluster.retain(|&count| count > 0);
    let evaluated = in_cluster.len();
    if evaluated < LEAST_CLUSTERS {
        return Err(OpeError::TooFew {
            flows: usable,
            clusters: evaluated,
            horizon: settings.horizon,
            left_out,
        });
    }
    let effective_clusters = sums::effective(in_cluster.iter().map(|&count| count as f64));

    // Two folds, so that each cluster is judged by a model that was not fitted on it.
    let mut order: Vec<usize> = (0..clusters.count).collect();
    order.shuffle(&mut StdRng::seed_from_u64(settings.seed));
    let mut fold = vec![0; clusters.count];
    for (place, &cluster) in order.iter().enumerate() {
        fold[cluster] = place % 2;
    }
    let fold = |flow: usize| fold[clusters.of[flow]];
    let models = [0, 1].map(|own| {
        let others = (0..flows.len()).filter(|&flow| fold(flow) != own);
        FittedQ::fit(flows, others.collect(), &sizes, settings)
    });

    let layout = SumLayout::new(&sizes, settings);
    let sums: Vec<Sums> = (0..flows.len())
        .into_par_iter()
        .map(|flow| layout.of(&flows[flow], &sub_trajectories[flow], &models[fold(flow)]))
        .collect();
    let sums: Vec<Sums> = clusters
        .members()
        .iter()
        .map(|own| layout.total(own.iter().map(|&flow| (&sums[flow], 1.0))))
        .collect();
    let total = layout.total(sums.iter().map(|sums| (sums, 1.0)));
    let returns = blend::returns(settings.horizon);

    // How each cluster's data shift the j-step returns through the models:
    // `[cluster][return][amount]`.
    let width = returns.len() * sizes.amounts;
    let mut by_flow = vec![0.0; flows.len() * width];
    for (own, model) in models.iter().enumerate() {
        let judged = (0..flows.len()).filter(|&flow| fold(flow) == own);
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
        model.influence(&sources, &mut by_flow);
    }
    let mut influence = vec![0.0; clusters.count * width];
    for (flow, own) in by_flow.chunks_exact(width).enumerate() {
        let into = &mut influence[clusters.of[flow] * width..][..width];
        for (into, own) in into.iter_mut().zip(own) {
            *into += own;
        }
    }

    let resample = |number: usize| {
        let mut random = StdRng::seed_from_u64(cc_sim::seed::output(settings.seed, number as u64));
        let mut counts = vec![0.0; clusters.count];
        for _ in 0..clusters.count {
            counts[random.random_range(0..clusters.count)] += 1.0;
        }
        let resampled = layout.total(sums.iter().zip(counts.iter().copied()));
        let mut shift = vec![0.0; width];
        for (own, count) in influence.chunks_exact(width).zip(&counts) {
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
    let answers = layout.answers(&total, &returns, &vec![0.0; width]);
    let mut ratios: Vec<_> = replicates.iter().map(|r| r.mean_ratio).collect();
    let check = Kind::expanded(0.5 * (1.0 - RATIO_CONFIDENCE), effective_clusters);
    let found = Found {
        kind: Kind::of(settings, evaluated, effective_clusters),
        early: settings
            .anytime
            .filter(|&first| evaluated < first)
            .map(|first| Refusal::Early {
                clusters: evaluated,
                first,
            }),
        mean_ratio: check.around(answers.mean_ratio, &mut ratios),
        effective: layout.effective(&sums, &returns),
        returns,
        answers,
        replicates,
    };
    Ok(OpeEvaluation {
        flows: usable,
        clusters: evaluated,
        effective_clusters,
        sub_trajectories: sub_trajectories.iter().map(Vec::len).sum(),
        left_out,
        left_out_within_s: within_s,
        decisions: layout.decisions(&total),
        mean_ratio: found.mean_ratio,
        terms: (0..sizes.terms)
            .map(|term| found.term(term, settings.least_effective))
            .collect(),
    })
}

/// The estimates with their replicates, from which intervals and refusals are made.
struct Found {
    kind: Kind,
    early: Option<Refusal>,
    mean_ratio: Interval,
    effective: Effective,
    /// The lengths of the j-step returns.
    returns: Vec<usize>,
    answers: Answers,
    replicates: Vec<Answers>,
}

impl Found {
    /// Returns the results for one reward term.
    fn term(&self, term: usize, least: f64) -> Term {
        let blend = Blend::new(&self.answers, &self.replicates, term);
        let weights: Vec<_> = self
            .replicates
            .par_iter()
            .map(|replicate| blend.weights_of(replicate))
            .collect();
        let spread = |of: &dyn Fn(&Answers, &[f64]) -> f64| {
            let replicates = self.replicates.iter().zip(&weights);
            let mut values: Vec<_> = replicates.map(|(own, weights)| of(own, weights)).collect();
            self.kind
                .around(of(&self.answers, &blend.weights), &mut values)
        };
        let estimate = |method: Method| {
            let effective = self.effective.of(method, &blend.weights);
            MethodEstimate {
                method,
                candidate: spread(&|answers, weights| answers.of(method, term, weights)),
                difference: spread(&|answers, weights| {
                    answers.of(method, term, weights) - answers.recorded(method, term)
                }),
                effective,
                refusal: match effective < least {
                    true => Some(Refusal::Few { effective, least }),
                    false => self.improbable().or(self.early),
                },
            }
        };
        let mut estimates = Method::ALL.map(estimate);
        let [_, _, direct, _, _, weighted, magic] = &mut estimates;
        let rounding = ROUNDING * direct.candidate.value.abs();
        let differences = [direct.difference, weighted.difference];
        magic.refusal = magic.refusal.or_else(|| {
            unconfirmed(
                &self.effective,
                &blend.weights,
                differences,
                rounding,
                least,
            )
        });
        let lengths = self.returns.iter().zip(&self.effective.returns);
        Term {
            recorded: spread(&|answers, _| answers.recorded(Method::Magic, term)),
            estimates: estimates.into(),
            blend: lengths
                .zip(&blend.weights)
                .map(|((&decisions, &effective), &weight)| BlendedReturn {
                    decisions,
                    weight,
                    effective,
                })
                .collect(),
        }
    }

    /// Returns why the ratios of probabilities allow no conclusion.
    fn improbable(&self) -> Option<Refusal> {
        let Interval { value, low, high } = self.mean_ratio;
        let mean_ratio = value;
        if mean_ratio < LEAST_MEAN_RATIO || high < 1.0 - RATIO_TOLERANCE {
            return Some(Refusal::Unsupported {
                mean_ratio,
                low,
                high,
            });
        }
        (low > 1.0 + RATIO_TOLERANCE).then_some(Refusal::Improbable {
            mean_ratio,
            low,
            high,
        })
    }
}

/// Relative error of sums that are equal but for the order of their terms.
const ROUNDING: f64 = 1e-9;

/// Returns why MAGIC's estimate allows no conclusion although its effective sample size does:
/// because it rests on the model, or because the model and the weights contradict each other.
/// `direct` and `weighted` are the differences of the direct method and of the weighted doubly
/// robust estimate, of which up to `rounding` is that of the arithmetic.
///
/// Intervals of the two without a common point are harmless where both are on the same side of
/// 0 and the blend does without the model alone: with enough data, those of any linear model
/// come apart.
fn unconfirmed(
    effective: &Effective,
    weights: &[f64],
    [direct, weighted]: [Interval; 2],
    rounding: f64,
    least: f64,
) -> Option<Refusal> {
    let whole = effective.whole();
    let own = effective.returns.iter().zip(weights);
    let share: f64 = own
        .filter(|&(&effective, _)| effective < least)
        .map(|(_, weight)| weight)
        .sum();
    if share > 0.5 || whole < LEAST_WHOLE.min(least) {
        return Some(Refusal::Model {
            share: 100.0 * share,
            whole,
            least,
            supported: effective.supported(least),
        });
    }
    let disputed = direct.value * weighted.value <= 0.0 || weights[0] > MOST_DISPUTED;
    (direct.gap(&weighted) > rounding && disputed)
        .then_some(Refusal::Disagreement { direct, weighted })
}

/// The clusters of flows, numbered.
struct Clusters {
    count: usize,
    /// Number of each flow's cluster.
    of: Vec<usize>,
}

impl Clusters {
    fn of(flows: &[OpeFlow]) -> Self {
        let mut numbers = BTreeMap::new();
        let of = flows.iter().map(|flow| {
            let next = numbers.len();
            *numbers.entry(flow.cluster).or_insert(next)
        });
        let of = of.collect();
        Self {
            count: numbers.len(),
            of,
        }
    }

    /// Returns the flows of each cluster.
    fn members(&self) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.count];
        for (flow, &cluster) in self.of.iter().enumerate() {
            members[cluster].push(flow);
        }
        members
    }
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
        )?;
        check(
            self.anytime != Some(0),
            "number of clusters at which the intervals are tightest",
            0.0,
            "at least 1",
        )
    }

    fn discounting(&self) -> Discounting {
        Discounting {
            per: self.per,
            factor: self.discount,
        }
    }
}

/// The sizes D, A and R, which are the same for all steps.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    features: usize,
    actions: usize,
    terms: usize,
    /// Number of quantities that are estimated: R, and the time for estimates per second.
    amounts: usize,
}

impl Sizes {
    fn of(flows: &[OpeFlow], settings: &OpeSettings) -> Result<Self, OpeError> {
        let first = flows.iter().find_map(|flow| flow.steps.first());
        let Some(first) = first else {
            return Err(OpeError::TooFew {
                flows: 0,
                clusters: 0,
                horizon: settings.horizon,
                left_out: 0,
            });
        };
        let sizes = Self {
            features: first.features.len(),
            actions: first.candidate.len(),
            terms: first.rewards.len(),
            amounts: first.rewards.len() + usize::from(settings.per == Per::Second),
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
        if self.amounts > self.terms && !(step.seconds.is_finite() && step.seconds >= 0.0) {
            return Some(format!(
                "it lasts {} s; expected a number of at least 0",
                step.seconds
            ));
        }
        let finite = step.features.iter().all(|value| value.is_finite())
            && step.rewards.iter().all(|value| value.is_finite());
        (!finite).then(|| "a feature or a reward is not a finite number".to_owned())
    }
}
