//! Everything the estimators need of a cluster of flows, as sums over its sub-trajectories. The
//! sums add up over clusters, so that a bootstrap resample costs additions only.

use super::{
    Discounting, Method, OpeFlow, OpeSettings, OpeStep, Per, Sizes,
    cut::SubTrajectory,
    fitted_q::{FittedQ, Functional, expected},
};

/// The sums of one flow, or of several, in the order of [`SumLayout`].
pub(super) struct Sums(Vec<f64>);

/// The position of each sum in [`Sums`].
///
/// At t = 0..H of a sub-trajectory, ρ_t is the product of the ratios up to and including t, with
/// ρ_{−1} = 1, and Γ_t is the discount of what is earned from step t on, with Γ_0 = 1. After the
/// end of a flow the weights stay as they are, and rewards, Q and V are 0.
///
/// Amounts are the rewards and, for estimates per second, the time; the sums of each are the same.
pub(super) struct SumLayout {
    /// R, the number of rewards.
    terms: usize,
    /// The number of amounts, R or R + 1.
    amounts: usize,
    horizon: usize,
    discounting: Discounting,
}

/// Number of sums at the start: sub-trajectories; their decisions; ratios π/μ of single
/// decisions.
const HEAD: usize = 3;
const SUB_TRAJECTORIES: usize = 0;
const DECISIONS: usize = 1;
const RATIOS: usize = 2;

/// Number of sums per amount: Σ Γ_t r_t; Σ r; Σ of the step-wise doubly robust estimates.
const OVERALL: usize = 3;
const RETURN: usize = 0;
const REWARD: usize = 1;
const BANDIT: usize = 2;

/// Number of sums per step and amount: Γ_t ρ_t r_t, Γ_t ρ_t Q_t, Γ_t ρ_{t−1} V_t. They follow
/// the step's ρ_t.
const STEP: usize = 3;

impl SumLayout {
    pub(super) fn new(sizes: &Sizes, settings: &OpeSettings) -> Self {
        Self {
            terms: sizes.terms,
            amounts: sizes.amounts,
            horizon: settings.horizon,
            discounting: settings.discounting(),
        }
    }

    /// Returns the sums of a flow, with Q and V from a model.
    pub(super) fn of(
        &self,
        flow: &OpeFlow,
        sub_trajectories: &[SubTrajectory],
        model: &FittedQ<'_>,
    ) -> Sums {
        let mut sums = Sums(vec![0.0; self.len()]);
        let all = &mut sums.0;
        for sub_trajectory in sub_trajectories {
            all[SUB_TRAJECTORIES] += 1.0;
            let (mut before, mut discount) = (1.0, 1.0);
            for t in 0..self.horizon {
                let place = self.step(t);
                let Some(step) = flow.steps[sub_trajectory.clone()].get(t) else {
                    all[place] += before;
                    continue;
                };
                let ratio = ratio(step);
                let weight = before * ratio;
                all[DECISIONS] += 1.0;
                all[RATIOS] += ratio;
                all[place] += weight;
                let mut q = vec![0.0; step.candidate.len() * self.amounts];
                model.predict(self.horizon - t, &step.features, &mut q);
                let values: Vec<_> = expected(step, &q, self.amounts).collect();
                let mut at_once = vec![0.0; q.len()];
                model.predict(1, &step.features, &mut at_once);
                let expected_at_once: Vec<_> = expected(step, &at_once, self.amounts).collect();
                for amount in 0..self.amounts {
                    let reward = step.amount(amount);
                    let taken = step.action * self.amounts + amount;
                    let place = place + 1 + amount * STEP;
                    all[place] += discount * weight * reward;
                    all[place + 1] += discount * weight * q[taken];
                    all[place + 2] += discount * before * values[amount];
                    let overall = HEAD + amount * OVERALL;
                    all[overall + RETURN] += discount * reward;
                    all[overall + REWARD] += reward;
                    all[overall + BANDIT] +=
                        expected_at_once[amount] + ratio * (reward - at_once[taken]);
                }
                before = weight;
                discount *= self.discounting.after(step);
            }
        }
        sums
    }

    /// Adds up sums, each multiplied by its factor.
    pub(super) fn total<'a>(&self, all: impl Iterator<Item = (&'a Sums, f64)>) -> Sums {
        let mut total = vec![0.0; self.len()];
        for (sums, factor) in all {
            if factor != 0.0 {
                for (total, sum) in total.iter_mut().zip(&sums.0) {
                    *total += factor * sum;
                }
            }
        }
        Sums(total)
    }

    /// Adds a sub-trajectory's contribution to the j-step return of `after` = j steps through
    /// the V that stands for the remaining steps.
    pub(super) fn add_tail(
        &self,
        source: &mut Functional,
        flow: &OpeFlow,
        sub_trajectory: &SubTrajectory,
        after: usize,
        total: &Sums,
    ) {
        let steps = &flow.steps[sub_trajectory.clone()];
        let Some(step) = steps.get(after) else { return };
        let before = steps[..after].iter();
        let weight: f64 = before
            .map(|step| ratio(step) * self.discounting.after(step))
            .product();
        let norm = self.weight(total, after);
        if norm > 0.0 {
            source.add_value(step, weight / norm);
        }
    }

    /// Computes every estimate. `shift` is added to the j-step returns, `[return][amount]`.
    pub(super) fn answers(&self, sums: &Sums, returns: &[usize], shift: &[f64]) -> Answers {
        let found: Vec<_> = (0..self.amounts)
            .map(|amount| self.quantities(sums, returns, shift, amount))
            .collect();
        let measures = match self.discounting.per {
            Per::Second => found[self.terms].clone(),
            Per::Decision => {
                let mut measures = vec![self.scale(); FIXED + returns.len()];
                (measures[RECORDED_MEAN], measures[BANDIT_MEAN]) = (1.0, 1.0);
                measures
            }
        };
        let rate = |amounts: Vec<f64>| -> Vec<f64> {
            let pairs = amounts.into_iter().zip(&measures);
            pairs
                .map(|(amount, measure)| over(amount, *measure))
                .collect()
        };
        Answers {
            values: found.into_iter().take(self.terms).map(rate).collect(),
            mean_ratio: over(sums.0[RATIOS], sums.0[DECISIONS]),
        }
    }

    /// Returns what the estimators find of one amount over a sub-trajectory, or over one decision
    /// for the last two of the [`FIXED`], in the order of [`Answers::values`].
    fn quantities(&self, sums: &Sums, returns: &[usize], shift: &[f64], amount: usize) -> Vec<f64> {
        let all = &sums.0;
        let (sub_trajectories, decisions) = (all[SUB_TRAJECTORIES], all[DECISIONS]);
        let overall = HEAD + amount * OVERALL;
        let mut found = vec![0.0; FIXED];
        found[RECORDED] = over(all[overall + RETURN], sub_trajectories);
        found[RECORDED_MEAN] = over(all[overall + REWARD], decisions);
        found[BANDIT_MEAN] = over(all[overall + BANDIT], decisions);
        let mut weighted = 0.0;
        for t in 0..=self.horizon {
            let before = self.weight(sums, t);
            if let Some(number) = returns.iter().position(|&after| after == t) {
                let value = match t < self.horizon {
                    true => all[self.step(t) + 1 + amount * STEP + 2],
                    false => 0.0,
                };
                found.push(weighted + over(value, before) + shift[number * self.amounts + amount]);
            }
            if t == self.horizon {
                break;
            }
            let now = self.weight(sums, t + 1);
            let place = self.step(t) + 1 + amount * STEP;
            let (reward, q, value) = (all[place], all[place + 1], all[place + 2]);
            found[PLAIN] += over(reward, sub_trajectories);
            found[NORMALISED] += over(reward, now);
            found[ROBUST] += over(reward - q + value, sub_trajectories);
            weighted += over(reward - q, now) + over(value, before);
        }
        found
    }

    pub(super) fn decisions(&self, total: &Sums) -> usize {
        total.0[DECISIONS] as usize
    }

    /// Returns the effective sample sizes over clusters.
    ///
    /// No weight is negative, so that those over flows or sub-trajectories could not be smaller.
    pub(super) fn effective(&self, clusters: &[Sums], returns: &[usize]) -> Effective {
        let of = |place: usize| effective(clusters.iter().map(|cluster| cluster.0[place]));
        let steps: Vec<_> = (0..self.horizon).map(|t| of(self.step(t))).collect();
        let returns = returns.iter().map(|&after| match after {
            // The model speaks for as many decisions as the weights over the whole horizon do.
            0 => steps[self.horizon - 1],
            _ => steps[after - 1],
        });
        Effective {
            single: of(RATIOS),
            returns: returns.collect(),
            steps,
        }
    }

    /// Returns Σ ρ_{t−1}, the sum of the weights before step t.
    fn weight(&self, sums: &Sums, t: usize) -> f64 {
        match t {
            0 => sums.0[SUB_TRAJECTORIES],
            _ => sums.0[self.step(t - 1)],
        }
    }

    /// Returns Σ γ^t over the horizon, for a discount per decision.
    fn scale(&self) -> f64 {
        (0..self.horizon)
            .map(|t| self.discounting.factor.powi(t as i32))
            .sum()
    }

    fn step(&self, t: usize) -> usize {
        HEAD + self.amounts * OVERALL + t * (1 + self.amounts * STEP)
    }

    fn len(&self) -> usize {
        self.step(self.horizon)
    }
}

/// Returns π(a|x)/μ(a|x) of the action that was taken.
fn ratio(step: &OpeStep) -> f64 {
    step.candidate[step.action] / step.behaviour
}

/// Returns a quotient, or 0 where nothing was counted.
fn over(sum: f64, count: f64) -> f64 {
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Returns the effective sample size (Σ w)²/Σ w² of weights (A. Kong 1992).
pub(super) fn effective(weights: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), weight| {
        (sum + weight, squares + weight * weight)
    });
    over(sum * sum, squares)
}

// Places in `Answers::values`, before the j-step returns.
const RECORDED: usize = 0;
const PLAIN: usize = 1;
const NORMALISED: usize = 2;
const ROBUST: usize = 3;
/// Means over single decisions, as those of the step-wise doubly robust estimate.
const RECORDED_MEAN: usize = 4;
const BANDIT_MEAN: usize = 5;
const FIXED: usize = 6;

/// The estimates of all methods, one value per reward term, as rates per decision or per second.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    /// `[term][FIXED + J]`; the last are the j-step returns, from the model alone to the weighted
    /// doubly robust estimate.
    values: Vec<Vec<f64>>,
    /// The mean of the ratios of single decisions.
    pub(super) mean_ratio: f64,
}

impl Answers {
    /// Returns the estimate of a method. `weights` are MAGIC's weights of the returns.
    pub(super) fn of(&self, method: Method, term: usize, weights: &[f64]) -> f64 {
        let values = &self.values[term];
        match method {
            Method::StepwiseImportance => values[PLAIN],
            Method::StepwiseImportanceNormalised => values[NORMALISED],
            Method::Direct => values[FIXED],
            Method::StepwiseDoublyRobust => values[BANDIT_MEAN],
            Method::SequentialDoublyRobust => values[ROBUST],
            Method::SequentialDoublyRobustWeighted => values[values.len() - 1],
            Method::Magic => {
                let returns = self.returns(term).iter();
                returns.zip(weights).map(|(r, w)| r * w).sum()
            }
        }
    }

    /// Returns the j-step returns of one reward term.
    pub(super) fn returns(&self, term: usize) -> &[f64] {
        &self.values[term][FIXED..]
    }

    /// Returns the recorded mean in the form that is comparable with the method's estimate.
    pub(super) fn recorded(&self, method: Method, term: usize) -> f64 {
        match method {
            Method::StepwiseDoublyRobust => self.values[term][RECORDED_MEAN],
            _ => self.values[term][RECORDED],
        }
    }
}

/// Effective sample sizes in clusters, from which [`Effective::of`] takes that of a method.
pub(super) struct Effective {
    /// From the ratios of single decisions.
    pub(super) single: f64,
    /// `[J]`: from the weights of each j-step return, and for the model alone from those over the
    /// whole horizon.
    pub(super) returns: Vec<f64>,
    /// `[H]`: from the weights ρ_t.
    pub(super) steps: Vec<f64>,
}

impl Effective {
    pub(super) fn of(&self, method: Method, weights: &[f64]) -> f64 {
        match method {
            Method::Direct | Method::StepwiseDoublyRobust => self.single,
            Method::Magic => self.returns.iter().zip(weights).map(|(n, w)| n * w).sum(),
            _ => self.whole(),
        }
    }

    /// Returns that of the weights over the whole horizon.
    pub(super) fn whole(&self) -> f64 {
        self.steps[self.steps.len() - 1]
    }

    /// Returns the number of decisions over which all weights have at least this effective sample
    /// size.
    pub(super) fn supported(&self, least: f64) -> usize {
        let short = self.steps.iter().position(|&effective| effective < least);
        short.unwrap_or(self.steps.len())
    }
}
