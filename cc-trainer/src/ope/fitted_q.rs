//! Fitted Q evaluation for a finite horizon.
//!
//! Q_h(x, a) is the value of h more decisions, the first of which is `a` while the others are the
//! candidate's. It is fitted by regressions of r + γ V_{h−1}(x') on the features, one per action
//! (H. Le, C. Voloshin, Y. Yue, "Batch Policy Learning under Constraints", ICML 2019, here with
//! linear functions). All transitions are used for every h. The ridge penalty pulls towards the
//! mean of all targets: a pull towards 0 would lose a fraction of the remaining return in each of
//! the h regressions.
//!
//! A function has one value per amount: the reward terms and, for estimates per second, the time.

use rayon::prelude::*;

use super::{Discounting, OpeFlow, OpeSettings, OpeStep, Sizes};
use crate::cholesky::Cholesky;

/// Number of parts that the flows are split into for parallel work. It fixes the order of
/// sums, and so their rounding.
const PARTS: usize = 16;

/// The functions Q_1 to Q_H, fitted on some of the flows.
pub(super) struct FittedQ<'a> {
    flows: &'a [OpeFlow],
    /// Indices of the flows that it is fitted on.
    own: Vec<usize>,
    sizes: Sizes,
    horizon: usize,
    discounting: Discounting,
    /// The factorised regression matrix of each action.
    grams: Vec<Cholesky>,
    /// Sums of the features by action, `[A][D]`.
    sums: Vec<f64>,
    /// Number of transitions that it is fitted on.
    count: f64,
    /// Weights of Q_h at index h − 1, to be added to the mean: `[D][A][R]`.
    weights: Vec<Vec<f64>>,
    /// Mean of the targets of Q_h at index h − 1: `[R]`.
    means: Vec<Vec<f64>>,
    /// V_h of all its flows' steps at index h, flow by flow: `[step][R]`.
    values: Vec<Vec<f64>>,
    /// Index of each of its flows' first step in `values`.
    offsets: Vec<usize>,
}

/// A linear functional of Q_h: coefficients of its weights and of its mean.
pub(super) struct Functional {
    /// h; the functional is 0 when it is 0.
    left: usize,
    /// Coefficient of each weight of Q_h, `[A][D]`, followed by the coefficient of the mean.
    coefficients: Vec<f64>,
}

impl Functional {
    /// Creates a functional of Q_`left` that is 0.
    pub(super) fn new(left: usize, sizes: &Sizes) -> Self {
        Self {
            left,
            coefficients: vec![0.0; sizes.actions * sizes.features + 1],
        }
    }

    /// Adds V_h of a step, multiplied by `weight`.
    pub(super) fn add_value(&mut self, step: &OpeStep, weight: f64) {
        add_value(&mut self.coefficients, step, weight);
    }
}

impl<'a> FittedQ<'a> {
    /// Fits Q_1 to Q_H on the transitions of the flows `own`.
    pub(super) fn fit(
        flows: &'a [OpeFlow],
        own: Vec<usize>,
        sizes: &Sizes,
        settings: &OpeSettings,
    ) -> Self {
        let mut steps = 0;
        let offsets = own
            .iter()
            .map(|&flow| {
                let offset = steps;
                steps += flows[flow].steps.len();
                offset
            })
            .collect();
        let mut model = Self {
            flows,
            own,
            sizes: *sizes,
            horizon: settings.horizon,
            discounting: settings.discounting(),
            grams: Vec::new(),
            sums: Vec::new(),
            count: 0.0,
            weights: Vec::new(),
            means: Vec::new(),
            values: vec![vec![0.0; steps * sizes.amounts]],
            offsets,
        };
        model.factorise(settings.ridge);
        for _ in 0..settings.horizon {
            model.stage();
        }
        model
    }

    /// Writes Q_h(x, ·) for h = `left` to `into`, `[A][R]`.
    pub(super) fn predict(&self, left: usize, features: &[f32], into: &mut [f64]) {
        predict(
            &self.weights[left - 1],
            &self.means[left - 1],
            features,
            into,
        );
    }

    /// Adds each flow's influence on each functional to `into[flow][functional][amount]`, where
    /// flows are numbered over all folds.
    ///
    /// The influence is the derivative of the functional with respect to the flow's weight in the
    /// fit. Changing the flows' weights by c − 1 moves the weights of Q_h by G⁻¹ Σ (c − 1) φ e,
    /// its mean by that of (c − 1) times the targets' deviations, and all later functions through
    /// V_h. The error e is r + γ V_{h−1} − Q_h as if the fit had not seen that very transition:
    /// its residual over 1 − φᵀ G⁻¹ φ (the jackknife), because a fit reproduces the transitions
    /// it has seen too well.
    pub(super) fn influence(&self, functionals: &[Functional], into: &mut [f64]) {
        let Sizes {
            features,
            actions,
            amounts,
            ..
        } = self.sizes;
        let width = actions * features + 1;
        let leverages = self.leverages();
        let mut ahead = vec![0.0; functionals.len() * width];
        for left in (1..=self.horizon).rev() {
            for (ahead, functional) in ahead.chunks_exact_mut(width).zip(functionals) {
                if functional.left == left {
                    for (ahead, coefficient) in ahead.iter_mut().zip(&functional.coefficients) {
                        *ahead += coefficient;
                    }
                }
                let (ahead, mean) = ahead.split_at_mut(width - 1);
                for (gram, ahead) in self.grams.iter().zip(ahead.chunks_exact_mut(features)) {
                    gram.solve(ahead, 1);
                }
                // The part of the mean's effect that the weights do not cancel, shared among all
                // targets.
                let taken_back: f64 = ahead.iter().zip(&self.sums).map(|(a, b)| a * b).sum();
                mean[0] = (mean[0] - taken_back) / self.count.max(1.0);
            }
            let directions = std::mem::take(&mut ahead);
            let (weights, mean) = (&self.weights[left - 1], &self.means[left - 1]);
            let parts = self.parts(|part| {
                let mut next = vec![0.0; directions.len()];
                let mut own = Vec::new();
                for &place in part {
                    let flow = &self.flows[self.own[place]];
                    let mut moved = vec![0.0; functionals.len() * amounts];
                    self.transitions(place, left, |index, follows, target| {
                        let step = &flow.steps[index];
                        let deviation: Vec<f64> = target
                            .iter()
                            .zip(mean)
                            .map(|(target, mean)| target - mean)
                            .collect();
                        let mut error = deviation.clone();
                        for (feature, row) in step
                            .features
                            .iter()
                            .zip(weights.chunks_exact(actions * amounts))
                        {
                            let own = &row[step.action * amounts..][..amounts];
                            for (error, weight) in error.iter_mut().zip(own) {
                                *error -= f64::from(*feature) * weight;
                            }
                        }
                        let unseen = 1.0 - leverages[self.offsets[place] + index];
                        error
                            .iter_mut()
                            .for_each(|error| *error /= unseen.max(0.05));
                        for (functional, (direction, next)) in directions
                            .chunks_exact(width)
                            .zip(next.chunks_exact_mut(width))
                            .enumerate()
                        {
                            let along = &direction[step.action * features..][..features];
                            let pull: f64 = along
                                .iter()
                                .zip(&step.features)
                                .map(|(along, &feature)| along * f64::from(feature))
                                .sum();
                            let share = direction[width - 1];
                            let errors = error.iter().zip(&deviation);
                            for (moved, (error, deviation)) in
                                moved[functional * amounts..].iter_mut().zip(errors)
                            {
                                *moved += pull * error + share * deviation;
                            }
                            if follows {
                                let counted = self.discounting.after(step) * (pull + share);
                                add_value(next, &flow.steps[index + 1], counted);
                            }
                        }
                    });
                    own.push((self.own[place], moved));
                }
                (own, next)
            });
            ahead = vec![0.0; directions.len()];
            for (own, next) in parts {
                for (flow, moved) in own {
                    let into = &mut into[flow * moved.len()..][..moved.len()];
                    for (into, moved) in into.iter_mut().zip(moved) {
                        *into += moved;
                    }
                }
                for (ahead, next) in ahead.iter_mut().zip(next) {
                    *ahead += next;
                }
            }
        }
    }

    /// Computes the regressions' matrices Σ φ φᵀ + ridge, factorises them, and computes Σ φ.
    fn factorise(&mut self, ridge: f64) {
        let Sizes {
            features, actions, ..
        } = self.sizes;
        let square = features * features;
        let first = actions * square;
        let size = first + actions * features + 1;
        let parts = self.parts(|part| {
            let mut all = vec![0.0; size];
            for &place in part {
                let flow = &self.flows[self.own[place]];
                self.transitions(place, 1, |index, _, _| {
                    let step = &flow.steps[index];
                    all[size - 1] += 1.0;
                    let sums = &mut all[first + step.action * features..];
                    for (sum, &x) in sums.iter_mut().zip(&step.features) {
                        *sum += f64::from(x);
                    }
                    let gram = &mut all[step.action * square..][..square];
                    for (i, &x) in step.features.iter().enumerate() {
                        if x == 0.0 {
                            continue;
                        }
                        let row = &mut gram[i * features..][..=i];
                        for (sum, &y) in row.iter_mut().zip(&step.features) {
                            *sum += f64::from(x) * f64::from(y);
                        }
                    }
                });
            }
            all
        });
        let mut grams = sum(parts, size);
        self.count = grams[size - 1];
        self.sums = grams[first..size - 1].to_vec();
        grams.truncate(first);
        self.grams = grams
            .chunks_exact_mut(square)
            .map(|gram| {
                for i in 0..features {
                    gram[i * features + i] += ridge;
                }
                Cholesky::new(gram, features)
            })
            .collect();
    }

    /// Fits Q_h for the next h.
    fn stage(&mut self) {
        let Sizes {
            features,
            actions,
            amounts,
            ..
        } = self.sizes;
        let left = self.weights.len() + 1;
        let parts = self.parts(|part| {
            let mut sums = vec![0.0; amounts];
            for &place in part {
                self.transitions(place, left, |_, _, target| {
                    for (sum, target) in sums.iter_mut().zip(target) {
                        *sum += target;
                    }
                });
            }
            sums
        });
        let mut mean = sum(parts, amounts);
        mean.iter_mut().for_each(|sum| *sum /= self.count.max(1.0));
        let parts = self.parts(|part| {
            let mut right = vec![0.0; actions * features * amounts];
            for &place in part {
                let flow = &self.flows[self.own[place]];
                self.transitions(place, left, |index, _, target| {
                    let step = &flow.steps[index];
                    let right = &mut right[step.action * features * amounts..];
                    for (row, &feature) in right.chunks_exact_mut(amounts).zip(&step.features) {
                        for ((sum, target), mean) in row.iter_mut().zip(target).zip(&mean) {
                            *sum += f64::from(feature) * (target - mean);
                        }
                    }
                });
            }
            right
        });
        let mut right = sum(parts, actions * features * amounts);
        let mut weights = vec![0.0; right.len()];
        for (action, (gram, solution)) in self
            .grams
            .iter()
            .zip(right.chunks_exact_mut(features * amounts))
            .enumerate()
        {
            gram.solve(solution, amounts);
            for (row, solved) in weights
                .chunks_exact_mut(actions * amounts)
                .zip(solution.chunks_exact(amounts))
            {
                row[action * amounts..][..amounts].copy_from_slice(solved);
            }
        }
        let parts = self.parts(|part| {
            let mut values = Vec::new();
            let mut q = vec![0.0; actions * amounts];
            for &place in part {
                for step in &self.flows[self.own[place]].steps {
                    predict(&weights, &mean, &step.features, &mut q);
                    values.extend(expected(step, &q, amounts));
                }
            }
            values
        });
        self.values.push(parts.concat());
        self.weights.push(weights);
        self.means.push(mean);
    }

    /// Returns the leverage φᵀ G⁻¹ φ of each step: the weight of its own outcome in the
    /// value that is fitted there.
    fn leverages(&self) -> Vec<f64> {
        let parts = self.parts(|part| {
            let mut leverages = Vec::new();
            for &place in part {
                leverages.extend(self.flows[self.own[place]].steps.iter().map(|step| {
                    let mut along: Vec<_> = step.features.iter().map(|&x| f64::from(x)).collect();
                    self.grams[step.action].solve_lower(&mut along, 1);
                    along.iter().map(|x| x * x).sum::<f64>()
                }));
            }
            leverages
        });
        parts.concat()
    }

    /// Calls `each` with every transition of one of its flows for Q_`left`: the step's index,
    /// whether another step follows it, and the target r + γ V_{left−1}, where γ is the discount
    /// over the step. A last step is a transition only if the flow terminated.
    fn transitions(&self, place: usize, left: usize, mut each: impl FnMut(usize, bool, &[f64])) {
        let amounts = self.sizes.amounts;
        let flow = &self.flows[self.own[place]];
        let values = &self.values[left - 1][self.offsets[place] * amounts..];
        let mut target = vec![0.0; amounts];
        for (index, step) in flow.steps.iter().enumerate() {
            let follows = index + 1 < flow.steps.len();
            if !follows && !flow.ended {
                continue;
            }
            for (amount, target) in target.iter_mut().enumerate() {
                *target = step.amount(amount);
            }
            if follows {
                let discount = self.discounting.after(step);
                for (target, value) in target.iter_mut().zip(&values[(index + 1) * amounts..]) {
                    *target += discount * value;
                }
            }
            each(index, follows, &target);
        }
    }

    /// Applies `of` to each part of its flows in parallel, and returns the results in order.
    fn parts<T: Send>(&self, of: impl Fn(&[usize]) -> T + Sync + Send) -> Vec<T> {
        let places: Vec<usize> = (0..self.own.len()).collect();
        let size = places.len().div_ceil(PARTS).max(1);
        places.par_chunks(size).map(of).collect()
    }
}

/// Returns Σ_a π(a|x) Q(x, a), one value per amount.
pub(super) fn expected(step: &OpeStep, q: &[f64], amounts: usize) -> impl Iterator<Item = f64> {
    (0..amounts).map(move |amount| {
        let each = step
            .candidate
            .iter()
            .zip(q[amount..].iter().step_by(amounts));
        each.map(|(share, q)| share * q).sum()
    })
}

/// Writes the mean plus the weights' prediction to `into`, `[A][R]`.
fn predict(weights: &[f64], mean: &[f64], features: &[f32], into: &mut [f64]) {
    for own in into.chunks_exact_mut(mean.len()) {
        own.copy_from_slice(mean);
    }
    for (&feature, row) in features.iter().zip(weights.chunks_exact(into.len())) {
        if feature == 0.0 {
            continue;
        }
        for (into, weight) in into.iter_mut().zip(row) {
            *into += f64::from(feature) * weight;
        }
    }
}

/// Adds Σ_a π(a|x) Q(x, a), multiplied by `weight`, to the coefficients of a functional.
fn add_value(coefficients: &mut [f64], step: &OpeStep, weight: f64) {
    let features = step.features.len();
    // The candidate's probabilities sum to 1.
    if let Some(mean) = coefficients.last_mut() {
        *mean += weight;
    }
    for (row, share) in coefficients.chunks_exact_mut(features).zip(&step.candidate) {
        let factor = share * weight;
        if factor == 0.0 {
            continue;
        }
        for (sum, &feature) in row.iter_mut().zip(&step.features) {
            *sum += factor * f64::from(feature);
        }
    }
}

/// Adds up the parts' vectors, in order.
fn sum(parts: Vec<Vec<f64>>, len: usize) -> Vec<f64> {
    let mut total = vec![0.0; len];
    for part in parts {
        for (total, part) in total.iter_mut().zip(part) {
            *total += part;
        }
    }
    total
}
