//! Everything the estimators need of a flow, as sums over its sub-trajectories. The sums add up
//! over flows, so that a bootstrap resample costs additions only.

use super::{
    Method, OpeFlow, OpeSettings, SubTrajectory,
    fitted_q::{FittedQ, Functional, expected},
};

/// The sums of one flow, or of several, in the order of [`SumLayout`].
pub(super) struct Sums(Vec<f64>);

/// The position of each sum in [`Sums`].
///
/// At t = 0..H of a sub-trajectory, ρ_t is the product of the ratios up to and including t, and
/// ρ_{−1} = 1. After the end of a flow the weights stay as they are, and rewards, Q and V are 0.
pub(super) struct SumLayout {
    terms: usize,
    horizon: usize,
    discount: f64,
}

/// Number of sums at the start: sub-trajectories; their decisions; ratios π/μ of single
/// decisions; squares of these ratios.
const HEAD: usize = 4;
const SUB_TRAJECTORIES: usize = 0;
const DECISIONS: usize = 1;
const RATIOS: usize = 2;
const SQUARES: usize = 3;

/// Number of sums per reward term: Σ γ^t r_t; Σ r; Σ of the step-wise doubly robust estimates.
const OVERALL: usize = 3;
const RETURN: usize = 0;
const REWARD: usize = 1;
const BANDIT: usize = 2;

/// Number of sums per step and reward term: ρ_t r_t, ρ_t Q_t, ρ_{t−1} V_t. They follow
/// the step's ρ_t and ρ_t².
const STEP: usize = 3;

impl SumLayout {
    pub(super) fn new(terms: usize, settings: &OpeSettings) -> Self {
        Self {
            terms,
            horizon: settings.horizon,
            discount: settings.discount,
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
                    all[place + 1] += before * before;
                    continue;
                };
                let ratio = step.candidate[step.action] / step.behaviour;
                let weight = before * ratio;
                all[DECISIONS] += 1.0;
                all[RATIOS] += ratio;
                all[SQUARES] += ratio * ratio;
                all[place] += weight;
                all[place + 1] += weight * weight;
                let mut q = vec![0.0; step.candidate.len() * self.terms];
                model.predict(self.horizon - t, &step.features, &mut q);
                let values: Vec<_> = expected(step, &q, self.terms).collect();
                let mut at_once = vec![0.0; q.len()];
                model.predict(1, &step.features, &mut at_once);
                let expected_at_once: Vec<_> = expected(step, &at_once, self.terms).collect();
                for (term, &reward) in step.rewards.iter().enumerate() {
                    let taken = step.action * self.terms + term;
                    let place = place + 2 + term * STEP;
                    all[place] += weight * reward;
                    all[place + 1] += weight * q[taken];
                    all[place + 2] += before * values[term];
                    let overall = HEAD + term * OVERALL;
                    all[overall + RETURN] += discount * reward;
                    all[overall + REWARD] += reward;
                    all[overall + BANDIT] +=
                        expected_at_once[term] + ratio * (reward - at_once[taken]);
                }
                before = weight;
                discount *= self.discount;
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

    /// Adds a sub-trajectory's contribution to the j-step return of `after` = j + 1 steps through
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
        let ratio = |step: &super::OpeStep| step.candidate[step.action] / step.behaviour;
        let weight: f64 = steps[..after].iter().map(ratio).product();
        let norm = self.weight(total, after);
        if norm > 0.0 {
            let discount = self.discount.powi(after as i32);
            source.add_value(step, discount * weight / norm / self.scale());
        }
    }

    /// Computes every estimate. `shift` is added to the j-step returns, `[return][term]`.
    pub(super) fn answers(&self, sums: &Sums, returns: &[usize], shift: &[f64]) -> Answers {
        let all = &sums.0;
        let (sub_trajectories, decisions) = (all[SUB_TRAJECTORIES], all[DECISIONS]);
        let over = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        let scale = self.scale();
        let mut answers = Answers::default();
        for term in 0..self.terms {
            let overall = HEAD + term * OVERALL;
            answers
                .recorded
                .push(over(all[overall + RETURN], sub_trajectories) / scale);
            answers
                .recorded_mean
                .push(over(all[overall + REWARD], decisions));
            answers.bandit.push(over(all[overall + BANDIT], decisions));
            let (mut plain, mut normalised, mut robust, mut weighted) = (0.0, 0.0, 0.0, 0.0);
            let mut own = Vec::with_capacity(returns.len());
            let mut discount = 1.0;
            for t in 0..=self.horizon {
                let before = self.weight(sums, t);
                if returns.contains(&t) {
                    let value = match t < self.horizon {
                        true => all[self.step(t) + 2 + term * STEP + 2],
                        false => 0.0,
                    };
                    own.push((weighted + discount * over(value, before)) / scale);
                }
                if t == self.horizon {
                    break;
                }
                let now = self.weight(sums, t + 1);
                let place = self.step(t) + 2 + term * STEP;
                let (reward, q, value) = (all[place], all[place + 1], all[place + 2]);
                plain += discount * over(reward, sub_trajectories);
                normalised += discount * over(reward, now);
                robust += discount * over(reward - q + value, sub_trajectories);
                weighted += discount * (over(reward - q, now) + over(value, before));
                discount *= self.discount;
            }
            answers.plain.push(plain / scale);
            answers.normalised.push(normalised / scale);
            answers.robust.push(robust / scale);
            for (place, own) in own.iter_mut().enumerate() {
                *own += shift[place * self.terms + term];
            }
            answers.returns.push(own);
        }
        answers
    }

    /// Returns the mean of the ratios of single decisions.
    pub(super) fn mean_ratio(&self, total: &Sums) -> f64 {
        total.0[RATIOS] / total.0[DECISIONS].max(1.0)
    }

    pub(super) fn decisions(&self, total: &Sums) -> usize {
        total.0[DECISIONS] as usize
    }

    /// Returns the effective sample sizes (Σ w)²/Σ w² (A. Kong 1992), over sub-trajectories or
    /// over flows, whichever is smaller.
    pub(super) fn effective(&self, flows: &[Sums], returns: &[usize]) -> Effective {
        let size = |sum: f64, squares: f64| match squares > 0.0 {
            true => sum * sum / squares,
            false => 0.0,
        };
        let of = |place: usize, squares: usize| {
            let (mut sum, mut sub_trajectories, mut whole) = (0.0, 0.0, 0.0);
            for flow in flows {
                sum += flow.0[place];
                sub_trajectories += flow.0[squares];
                whole += flow.0[place].powi(2);
            }
            size(sum, sub_trajectories).min(size(sum, whole))
        };
        let single = of(RATIOS, SQUARES);
        let returns = returns.iter().map(|&after| match after {
            0 => single,
            _ => of(self.step(after - 1), self.step(after - 1) + 1),
        });
        Effective {
            single,
            returns: returns.collect(),
        }
    }

    /// Returns Σ ρ_{t−1}, the sum of the weights before step t.
    fn weight(&self, sums: &Sums, t: usize) -> f64 {
        match t {
            0 => sums.0[SUB_TRAJECTORIES],
            _ => sums.0[self.step(t - 1)],
        }
    }

    /// Returns Σ γ^t over the horizon.
    fn scale(&self) -> f64 {
        (0..self.horizon)
            .map(|t| self.discount.powi(t as i32))
            .sum()
    }

    fn step(&self, t: usize) -> usize {
        HEAD + self.terms * OVERALL + t * (2 + self.terms * STEP)
    }

    fn len(&self) -> usize {
        self.step(self.horizon)
    }
}

/// The estimates of all methods, one value per reward term.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    recorded: Vec<f64>,
    recorded_mean: Vec<f64>,
    plain: Vec<f64>,
    normalised: Vec<f64>,
    bandit: Vec<f64>,
    robust: Vec<f64>,
    /// `[term][return]`: j-step returns, from the model alone to
    /// the weighted doubly robust estimate.
    pub(super) returns: Vec<Vec<f64>>,
}

impl Answers {
    /// Returns the estimate of a method. `weights` are MAGIC's weights of the returns.
    pub(super) fn of(&self, method: Method, term: usize, weights: &[f64]) -> f64 {
        let returns = &self.returns[term];
        match method {
            Method::StepwiseImportance => self.plain[term],
            Method::StepwiseImportanceNormalised => self.normalised[term],
            Method::Direct => returns[0],
            Method::StepwiseDoublyRobust => self.bandit[term],
            Method::SequentialDoublyRobust => self.robust[term],
            Method::SequentialDoublyRobustWeighted => returns[returns.len() - 1],
            Method::Magic => returns.iter().zip(weights).map(|(r, w)| r * w).sum(),
        }
    }

    /// Returns the recorded mean in the form that is comparable with the method's estimate.
    pub(super) fn recorded(&self, method: Method, term: usize) -> f64 {
        match method {
            Method::StepwiseDoublyRobust => self.recorded_mean[term],
            _ => self.recorded[term],
        }
    }
}

/// Effective sample sizes, from which [`Effective::of`] takes that of a method.
pub(super) struct Effective {
    /// From the ratios of single decisions.
    single: f64,
    /// From the weights of each j-step return.
    returns: Vec<f64>,
}

impl Effective {
    pub(super) fn of(&self, method: Method, weights: &[f64]) -> f64 {
        match method {
            Method::Direct | Method::StepwiseDoublyRobust => self.single,
            Method::Magic => self.returns.iter().zip(weights).map(|(n, w)| n * w).sum(),
            _ => self.returns[self.returns.len() - 1],
        }
    }
}
