//! V-trace: off-policy value targets and advantages from the actions of an older policy.
//!
//! Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
//! Architectures" (arXiv 1802.01561), section 4.1. The arrays are `[T, B]` and time-major: element
//! `[t, b]` is at index t·B + b. Steps may differ in how long their actions were in force
//! ([`crate::discount`]): each has a discount and a λ of its own.

use serde::{Deserialize, Serialize};

/// The thresholds that importance weights ρ = π(a|x)/μ(a|x) are clipped to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clips {
    /// ρ̄: largest weight of a temporal difference. It determines the policy that the values
    /// converge to: the larger, the nearer to the learner's policy π.
    pub rho: f32,
    /// Largest weight of an advantage in the policy gradient.
    pub policy_rho: f32,
    /// c̄: largest weight along a trace. It determines the speed of convergence, not its limit.
    pub c: f32,
    /// λ: factor of the trace's weights per interval between two actions, from 0 to 1, which
    /// trades variance for bias; 1 leaves them.
    pub lambda: f32,
}

impl Default for Clips {
    fn default() -> Self {
        Self {
            rho: 1.0,
            policy_rho: 1.0,
            c: 1.0,
            lambda: 1.0,
        }
    }
}

/// T steps of B trajectories, and the network's values for them.
#[derive(Clone, Copy, Debug)]
pub struct Trajectories<'a> {
    /// B, the number of trajectories.
    pub batch_size: usize,
    /// `[T, B]`: ln ρ = ln π(a|x) − ln μ(a|x), with π the learner's policy
    /// and μ the behaviour policy.
    pub log_rho: &'a [f32],
    /// `[T, B]`: reward of the step's action.
    pub reward: &'a [f32],
    /// `[T, B]`: γ over the time that the step's action was in force
    /// ([`over`](crate::discount::over)), or 0 where it ended the episode.
    pub discount: &'a [f32],
    /// `[T, B]`: λ over the same time.
    pub lambda: &'a [f32],
    /// `[T, B]`: whether the outcome of the step's action is known. The others are masked: their
    /// temporal difference and their advantage are 0 (their discount should be 0, too).
    pub known: &'a [bool],
    /// `[T + 1, B]`: V(x) of each step, and of the one after the last.
    pub value: &'a [f32],
}

/// The targets that V-trace computes from [`Trajectories`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    /// `[T, B]`: v_s, the target of V(x_s).
    pub value: Vec<f32>,
    /// `[T, B]`: ρ_s (r_s + γ v_{s+1} − V(x_s)), the advantage in the policy gradient.
    pub advantage: Vec<f32>,
}

impl Targets {
    /// Computes the targets in one pass from the last step to the first, by remark 1 of the paper:
    /// v_s = V(x_s) + δ_s V + γ_s c_s (v_{s+1} − V(x_{s+1})).
    ///
    /// # Panics
    ///
    /// Panics if the lengths of the arrays do not agree.
    pub fn compute(&mut self, trajectories: &Trajectories<'_>, clips: &Clips) {
        let Trajectories {
            batch_size,
            log_rho,
            reward,
            discount,
            lambda,
            known,
            value,
        } = *trajectories;
        let length = log_rho.len();
        assert!(
            reward.len() == length
                && discount.len() == length
                && lambda.len() == length
                && known.len() == length
                && value.len() == length + batch_size,
            "V-trace arrays of different lengths"
        );
        self.value.resize(length, 0.0);
        self.advantage.resize(length, 0.0);
        for at in (0..length).rev() {
            let next = at + batch_size;
            let next_target = match next < length {
                true => self.value[next],
                false => value[next],
            };
            if !known[at] {
                self.value[at] = value[at];
                self.advantage[at] = 0.0;
                continue;
            }
            // At e^60 every threshold has long been reached, and the exponential is still finite.
            let weight = log_rho[at].min(60.0).exp();
            let delta =
                weight.min(clips.rho) * (reward[at] + discount[at] * value[next] - value[at]);
            let trace = discount[at] * lambda[at] * weight.min(clips.c);
            self.value[at] = value[at] + delta + trace * (next_target - value[next]);
            self.advantage[at] = weight.min(clips.policy_rho)
                * (reward[at] + discount[at] * next_target - value[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::discount;

    /// The arrays of [`Trajectories`], owned.
    #[derive(Clone, Debug)]
    struct Case {
        batch_size: usize,
        log_rho: Vec<f32>,
        reward: Vec<f32>,
        gamma: f32,
        /// How long the actions were in force, intervals.
        intervals: Vec<f32>,
        /// Whether the actions ended the episode.
        ended: Vec<bool>,
        known: Vec<bool>,
        value: Vec<f32>,
        clips: Clips,
    }

    impl Case {
        /// The discounts as V-trace gets them.
        fn discounts(&self) -> Vec<f32> {
            self.intervals
                .iter()
                .zip(&self.ended)
                .map(|(&intervals, &ended)| match ended {
                    true => 0.0,
                    false => over(self.gamma, intervals),
                })
                .collect()
        }

        fn targets(&self) -> Targets {
            let lambda: Vec<_> = (self.intervals.iter())
                .map(|&intervals| over(self.clips.lambda, intervals))
                .collect();
            let mut targets = Targets::default();
            targets.compute(
                &Trajectories {
                    batch_size: self.batch_size,
                    log_rho: &self.log_rho,
                    reward: &self.reward,
                    discount: &self.discounts(),
                    lambda: &lambda,
                    known: &self.known,
                    value: &self.value,
                },
                &self.clips,
            );
            targets
        }

        /// Equation 1 of the paper, term by term:
        /// v_s = V(x_s) + Σ_{t≥s} (Π_{i=s}^{t−1} γ_i c_i) δ_t V, for element `[step, sequence]`.
        fn target_by_definition(&self, step: usize, sequence: usize) -> f64 {
            let steps = self.log_rho.len() / self.batch_size;
            let at = |step: usize| step * self.batch_size + sequence;
            let weight = |step: usize| f64::from(self.log_rho[at(step)]).exp();
            let mut target = f64::from(self.value[at(step)]);
            for t in step..steps {
                let mut product = 1.0;
                for i in step..t {
                    let intervals = f64::from(self.intervals[at(i)]);
                    let lambda = f64::from(self.clips.lambda).powf(intervals);
                    product *=
                        self.discount(at(i)) * lambda * weight(i).min(f64::from(self.clips.c));
                }
                let delta = weight(t).min(f64::from(self.clips.rho)) * self.difference(t, sequence);
                target += product * delta;
            }
            target
        }

        /// r + γ V(x') − V(x), or 0 where the outcome is unknown.
        fn difference(&self, step: usize, sequence: usize) -> f64 {
            let at = step * self.batch_size + sequence;
            if !self.known[at] {
                return 0.0;
            }
            f64::from(self.reward[at])
                + self.discount(at) * f64::from(self.value[at + self.batch_size])
                - f64::from(self.value[at])
        }

        /// γ^d by its definition, or 0 after the end of an episode.
        fn discount(&self, at: usize) -> f64 {
            match self.ended[at] {
                true => 0.0,
                false => f64::from(self.gamma).powf(f64::from(self.intervals[at])),
            }
        }

        fn advantage_by_definition(&self, step: usize, sequence: usize) -> f64 {
            let steps = self.log_rho.len() / self.batch_size;
            let at = step * self.batch_size + sequence;
            if !self.known[at] {
                return 0.0;
            }
            let next = match step + 1 < steps {
                true => self.target_by_definition(step + 1, sequence),
                false => f64::from(self.value[at + self.batch_size]),
            };
            f64::from(self.log_rho[at])
                .exp()
                .min(f64::from(self.clips.policy_rho))
                * (f64::from(self.reward[at]) + self.discount(at) * next
                    - f64::from(self.value[at]))
        }
    }

    fn over(factor: f32, intervals: f32) -> f32 {
        discount::over(factor.into(), intervals.into()) as f32
    }

    fn cases() -> impl Strategy<Value = Case> {
        let clips = (0.3..3.0f32, 0.3..3.0f32, 0.3..2.0f32, 0.0..=1.0f32).prop_map(
            |(rho, policy_rho, c, lambda)| Clips {
                rho,
                policy_rho,
                c,
                lambda,
            },
        );
        let sizes = (1..12usize, 1..4usize, 0.5..=1.0f32);
        (sizes, clips).prop_flat_map(|((steps, batch_size, gamma), clips)| {
            let length = steps * batch_size;
            // About one step in ten terminates an episode, and one truncates it.
            let intervals = prop_oneof![Just(1.0f32), 0.0..3.0f32, 0.0..40.0f32];
            let kinds = proptest::collection::vec((0..10u8, intervals), length);
            (
                proptest::collection::vec(-1.5..1.5f32, length),
                proptest::collection::vec(-2.0..2.0f32, length),
                kinds,
                proptest::collection::vec(-2.0..2.0f32, length + batch_size),
            )
                .prop_map(move |(log_rho, reward, kinds, value)| Case {
                    batch_size,
                    log_rho,
                    reward,
                    gamma,
                    intervals: kinds.iter().map(|&(_, intervals)| intervals).collect(),
                    ended: kinds.iter().map(|&(kind, _)| kind < 2).collect(),
                    known: kinds.iter().map(|&(kind, _)| kind != 0).collect(),
                    value,
                    clips,
                })
        })
    }

    proptest! {
        #[test]
        fn the_recursion_is_equation_1(case in cases()) {
            let targets = case.targets();
            for at in 0..case.log_rho.len() {
                let (step, sequence) = (at / case.batch_size, at % case.batch_size);
                let value = case.target_by_definition(step, sequence);
                let advantage = case.advantage_by_definition(step, sequence);
                // With weights of at most 2 over 11 steps, values reach some thousands.
                let tolerance = |x: f64| 1e-5 * x.abs().max(10.0);
                prop_assert!(
                    (f64::from(targets.value[at]) - value).abs() < tolerance(value),
                    "value at [{step}, {sequence}]: {} but {value}", targets.value[at]
                );
                prop_assert!(
                    (f64::from(targets.advantage[at]) - advantage).abs() < tolerance(advantage),
                    "advantage at [{step}, {sequence}]: {} but {advantage}", targets.advantage[at]
                );
            }
        }

        #[test]
        fn sequences_of_a_batch_are_independent(case in cases()) {
            let all = case.targets();
            for sequence in 0..case.batch_size {
                let pick = |array: &[f32]| -> Vec<f32> {
                    array.iter().skip(sequence).step_by(case.batch_size).copied().collect()
                };
                let alone = Case {
                    batch_size: 1,
                    log_rho: pick(&case.log_rho),
                    reward: pick(&case.reward),
                    gamma: case.gamma,
                    intervals: pick(&case.intervals),
                    ended: case
                        .ended
                        .iter()
                        .skip(sequence)
                        .step_by(case.batch_size)
                        .copied()
                        .collect(),
                    known: case
                        .known
                        .iter()
                        .skip(sequence)
                        .step_by(case.batch_size)
                        .copied()
                        .collect(),
                    value: pick(&case.value),
                    clips: case.clips,
                }
                .targets();
                prop_assert_eq!(&alone.value, &pick(&all.value));
                prop_assert_eq!(&alone.advantage, &pick(&all.advantage));
            }
        }

        /// With equal durations the results are those of one discount and one λ for all steps.
        #[test]
        fn equal_durations_are_ordinary_discounting_to_the_bit(case in cases()) {
            let case = Case { intervals: vec![1.0; case.reward.len()], ..case };
            prop_assert_eq!(case.targets(), per_decision(&case));
        }
    }

    /// V-trace with a discount per decision, whatever the time.
    fn per_decision(case: &Case) -> Targets {
        let length = case.reward.len();
        let mut targets = Targets {
            value: vec![0.0; length],
            advantage: vec![0.0; length],
        };
        for at in (0..length).rev() {
            let next = at + case.batch_size;
            let next_target = *targets.value.get(next).unwrap_or(&case.value[next]);
            if !case.known[at] {
                targets.value[at] = case.value[at];
                continue;
            }
            let discount = if case.ended[at] { 0.0 } else { case.gamma };
            let weight = case.log_rho[at].exp();
            let delta = weight.min(case.clips.rho)
                * (case.reward[at] + discount * case.value[next] - case.value[at]);
            let trace = discount * case.clips.lambda * weight.min(case.clips.c);
            targets.value[at] = case.value[at] + delta + trace * (next_target - case.value[next]);
            targets.advantage[at] = weight.min(case.clips.policy_rho)
                * (case.reward[at] + discount * next_target - case.value[at]);
        }
        targets
    }

    /// On-policy, a step may be split into two that share its time and have its rate.
    #[test]
    fn the_target_of_a_step_is_that_of_its_parts() {
        let targets = |intervals: &[f32]| {
            let (gamma, rate) = (0.9, 2.0);
            let earned = |&d: &f32| rate * discount::discounted_length(gamma, d.into()) as f32;
            Case {
                batch_size: 1,
                log_rho: vec![0.0; intervals.len()],
                reward: intervals.iter().map(earned).collect(),
                gamma: gamma as f32,
                intervals: intervals.to_vec(),
                ended: vec![false; intervals.len()],
                known: vec![true; intervals.len()],
                value: vec![4.0; intervals.len() + 1],
                clips: Clips::default(),
            }
            .targets()
            .value[0]
        };
        let whole = targets(&[1.0, 10.0, 1.0]);
        for split in [&[1.0, 4.0, 6.0, 1.0][..], &[12.0], &[1.0; 12], &[0.0, 12.0]] {
            assert!((targets(split) - whole).abs() < 1e-4, "{split:?}");
        }
        // A silence of ten intervals before the bootstrap value, and one of one interval.
        assert!(targets(&[10.0]) != targets(&[1.0]));
    }

    #[test]
    fn on_policy_targets_are_discounted_returns() {
        let case = Case {
            batch_size: 1,
            log_rho: vec![0.0; 3],
            reward: vec![1.0, 2.0, 3.0],
            gamma: 0.5,
            intervals: vec![1.0; 3],
            ended: vec![false; 3],
            known: vec![true; 3],
            value: vec![9.0, -4.0, 7.0, 8.0],
            clips: Clips::default(),
        };
        // 3 + 8/2, 2 + 7/2, 1 + 5.5/2.
        assert_eq!(case.targets().value, [3.75, 5.5, 7.0]);
        assert_eq!(case.targets().advantage, [3.75 - 9.0, 5.5 + 4.0, 0.0]);
    }

    #[test]
    fn huge_importance_weights_give_finite_targets() {
        let case = Case {
            batch_size: 1,
            log_rho: vec![500.0, -500.0],
            reward: vec![1.0; 2],
            gamma: 0.9,
            intervals: vec![1.0; 2],
            ended: vec![false; 2],
            known: vec![true; 2],
            value: vec![0.0; 3],
            clips: Clips::default(),
        };
        assert_eq!(case.targets().value, [1.0, 0.0]);
    }
}
