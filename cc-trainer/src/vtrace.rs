//! V-trace: value targets and advantages from what another, older policy did.
//!
//! Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures"
//! (arXiv 1802.01561), section 4.1. Pure arithmetic over `[T, B]` arrays, time-major.

use serde::{Deserialize, Serialize};

/// How far importance weights π(a|x)/μ(a|x) are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clips {
    /// ρ̄: caps the weight of a temporal difference; which policy the values belong to.
    pub rho: f32,
    /// Caps the weight of the policy gradient.
    pub policy_rho: f32,
    /// c̄: caps the weights along a trace; how fast values are learnt.
    pub c: f32,
    /// λ: shortens traces further; 1 leaves them.
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

/// T steps of B trajectories.
#[derive(Clone, Copy, Debug)]
pub struct Trajectories<'a> {
    /// B.
    pub lanes: usize,
    /// `[T, B]`: ln π(a|x) − ln μ(a|x), of the policy that learns and the one that acted.
    pub log_rho: &'a [f32],
    /// `[T, B]`: the reward of the step's action.
    pub reward: &'a [f32],
    /// `[T, B]`: γ, or 0 where the step's action ended the episode.
    pub discount: &'a [f32],
    /// `[T, B]`: whether it is known what the step's action led to. Where not, the step teaches nothing: its temporal
    /// difference and its advantage are 0 (its discount should be, too).
    pub known: &'a [bool],
    /// `[T + 1, B]`: V of each step, and of the one after the last.
    pub value: &'a [f32],
}

/// What V-trace makes of [`Trajectories`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    /// `[T, B]`: v_s, what V should be.
    pub value: Vec<f32>,
    /// `[T, B]`: ρ_s (r_s + γ v_{s+1} − V(x_s)), the weight of the policy's gradient.
    pub advantage: Vec<f32>,
}

impl Targets {
    /// Computes them, in one pass from the last step to the first by remark 1 of the paper:
    /// v_s = V(x_s) + δ_s V + γ_s c_s (v_{s+1} − V(x_{s+1})).
    pub fn compute(&mut self, trajectories: &Trajectories<'_>, clips: &Clips) {
        let Trajectories {
            lanes,
            log_rho,
            reward,
            discount,
            known,
            value,
        } = *trajectories;
        let length = log_rho.len();
        assert!(
            reward.len() == length
                && discount.len() == length
                && known.len() == length
                && value.len() == length + lanes,
            "V-trace arrays of different lengths"
        );
        self.value.resize(length, 0.0);
        self.advantage.resize(length, 0.0);
        for at in (0..length).rev() {
            let next = at + lanes;
            let next_target = match next < length {
                true => self.value[next],
                false => value[next],
            };
            if !known[at] {
                self.value[at] = value[at];
                self.advantage[at] = 0.0;
                continue;
            }
            // Beyond e^60 every cap has long been reached, and the exponential stays finite.
            let weight = log_rho[at].min(60.0).exp();
            let delta =
                weight.min(clips.rho) * (reward[at] + discount[at] * value[next] - value[at]);
            let trace = discount[at] * clips.lambda * weight.min(clips.c);
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

    /// Arrays of a case, owned.
    #[derive(Clone, Debug)]
    struct Case {
        lanes: usize,
        log_rho: Vec<f32>,
        reward: Vec<f32>,
        discount: Vec<f32>,
        known: Vec<bool>,
        value: Vec<f32>,
        clips: Clips,
    }

    impl Case {
        fn targets(&self) -> Targets {
            let mut targets = Targets::default();
            targets.compute(
                &Trajectories {
                    lanes: self.lanes,
                    log_rho: &self.log_rho,
                    reward: &self.reward,
                    discount: &self.discount,
                    known: &self.known,
                    value: &self.value,
                },
                &self.clips,
            );
            targets
        }

        /// Equation 1 of the paper, summed as it stands:
        /// v_s = V(x_s) + Σ_{t≥s} (Π_{i=s}^{t−1} γ_i c_i) δ_t V, for element `[step, lane]`.
        fn target_by_definition(&self, step: usize, lane: usize) -> f64 {
            let steps = self.log_rho.len() / self.lanes;
            let at = |step: usize| step * self.lanes + lane;
            let weight = |step: usize| f64::from(self.log_rho[at(step)]).exp();
            let mut target = f64::from(self.value[at(step)]);
            for t in step..steps {
                let mut product = 1.0;
                for i in step..t {
                    let c = f64::from(self.clips.lambda) * weight(i).min(f64::from(self.clips.c));
                    product *= f64::from(self.discount[at(i)]) * c;
                }
                let delta = weight(t).min(f64::from(self.clips.rho)) * self.difference(t, lane);
                target += product * delta;
            }
            target
        }

        /// r + γ V(x') − V(x), or 0 where nothing is known.
        fn difference(&self, step: usize, lane: usize) -> f64 {
            let at = step * self.lanes + lane;
            if !self.known[at] {
                return 0.0;
            }
            f64::from(self.reward[at])
                + f64::from(self.discount[at]) * f64::from(self.value[at + self.lanes])
                - f64::from(self.value[at])
        }

        fn advantage_by_definition(&self, step: usize, lane: usize) -> f64 {
            let steps = self.log_rho.len() / self.lanes;
            let at = step * self.lanes + lane;
            if !self.known[at] {
                return 0.0;
            }
            let next = match step + 1 < steps {
                true => self.target_by_definition(step + 1, lane),
                false => f64::from(self.value[at + self.lanes]),
            };
            f64::from(self.log_rho[at])
                .exp()
                .min(f64::from(self.clips.policy_rho))
                * (f64::from(self.reward[at]) + f64::from(self.discount[at]) * next
                    - f64::from(self.value[at]))
        }
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
        (1..12usize, 1..4usize, clips).prop_flat_map(|(steps, lanes, clips)| {
            let length = steps * lanes;
            // Of ten steps about one ends an episode and one is cut off.
            let kinds = proptest::collection::vec((0..10u8, 0.5..1.0f32), length);
            (
                proptest::collection::vec(-1.5..1.5f32, length),
                proptest::collection::vec(-2.0..2.0f32, length),
                kinds,
                proptest::collection::vec(-2.0..2.0f32, length + lanes),
            )
                .prop_map(move |(log_rho, reward, kinds, value)| Case {
                    lanes,
                    log_rho,
                    reward,
                    discount: kinds
                        .iter()
                        .map(|&(kind, gamma)| if kind < 2 { 0.0 } else { gamma })
                        .collect(),
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
                let (step, lane) = (at / case.lanes, at % case.lanes);
                let value = case.target_by_definition(step, lane);
                let advantage = case.advantage_by_definition(step, lane);
                // Weights of at most 2 over 11 steps: values reach some thousands.
                let tolerance = |x: f64| 1e-5 * x.abs().max(10.0);
                prop_assert!(
                    (f64::from(targets.value[at]) - value).abs() < tolerance(value),
                    "value at [{step}, {lane}]: {} but {value}", targets.value[at]
                );
                prop_assert!(
                    (f64::from(targets.advantage[at]) - advantage).abs() < tolerance(advantage),
                    "advantage at [{step}, {lane}]: {} but {advantage}", targets.advantage[at]
                );
            }
        }

        #[test]
        fn lanes_do_not_touch_each_other(case in cases()) {
            let all = case.targets();
            for lane in 0..case.lanes {
                let pick = |array: &[f32]| -> Vec<f32> {
                    array.iter().skip(lane).step_by(case.lanes).copied().collect()
                };
                let alone = Case {
                    lanes: 1,
                    log_rho: pick(&case.log_rho),
                    reward: pick(&case.reward),
                    discount: pick(&case.discount),
                    known: case.known.iter().skip(lane).step_by(case.lanes).copied().collect(),
                    value: pick(&case.value),
                    clips: case.clips,
                }
                .targets();
                prop_assert_eq!(&alone.value, &pick(&all.value));
                prop_assert_eq!(&alone.advantage, &pick(&all.advantage));
            }
        }
    }

    #[test]
    fn on_policy_targets_are_discounted_returns() {
        let case = Case {
            lanes: 1,
            log_rho: vec![0.0; 3],
            reward: vec![1.0, 2.0, 3.0],
            discount: vec![0.5; 3],
            known: vec![true; 3],
            value: vec![9.0, -4.0, 7.0, 8.0],
            clips: Clips::default(),
        };
        // 3 + 8/2, 2 + 7/2, 1 + 5.5/2.
        assert_eq!(case.targets().value, [3.75, 5.5, 7.0]);
        assert_eq!(case.targets().advantage, [3.75 - 9.0, 5.5 + 4.0, 0.0]);
    }

    #[test]
    fn huge_weights_stay_finite() {
        let case = Case {
            lanes: 1,
            log_rho: vec![500.0, -500.0],
            reward: vec![1.0; 2],
            discount: vec![0.9; 2],
            known: vec![true; 2],
            value: vec![0.0; 3],
            clips: Clips::default(),
        };
        assert_eq!(case.targets().value, [1.0, 0.0]);
    }
}
