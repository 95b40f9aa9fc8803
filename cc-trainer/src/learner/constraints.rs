//! Constraints with learned multipliers: "as much power as possible, with at most 1 % of loss".
//!
//! A weight in the objective says what a percent of loss is worth, which nobody knows; a limit says
//! what is tolerable. The Lagrangian of the limited problem has a multiplier for each constraint,
//! which is the weight with which the limit is just kept, and is found by raising it while the
//! limit is exceeded and lowering it while it is not. Plain ascent of this kind oscillates, because
//! the policy answers with a delay; a PID control of the multiplier damps it (A. Stooke, J. Achiam
//! and P. Abbeel, "Responsive Safety in Reinforcement Learning by PID Lagrangian Methods", ICML
//! 2020, arXiv 2007.03964, algorithm 2). With a proportional and a derivative gain of 0 it is plain
//! dual ascent.
//!
//! Limits are about means over what is trained on: one link may exceed what another one saves.

use serde::{Deserialize, Serialize};

use crate::environment::Quantities;

/// Limits that the policy is to keep: the `[learner.constraints]` table of a configuration. Each is
/// one on a mean over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constraints {
    /// Largest share of the bytes sent that are retransmissions, from 0 to 1; `None` for no limit.
    pub loss_at_most: Option<f64>,
    /// Least throughput relative to the fair share of the link, above 0, while others have flows
    /// on it; `None` for no limit.
    pub share_at_least: Option<f64>,
    /// Gain of the sum of all violations: what a multiplier grows by in an update per unit of
    /// violation.
    pub integral: f64,
    /// Gain of the present violation.
    pub proportional: f64,
    /// Gain of the violation's growth since the update before.
    pub derivative: f64,
    /// Weight of an update's batch in the violation that the gains act on, which is noisy; above 0,
    /// up to 1.
    pub smoothing: f64,
    /// Largest multiplier, in units of the normalised reward.
    pub most: f64,
}

impl Default for Constraints {
    /// Settings without a limit on anything.
    fn default() -> Self {
        Self {
            loss_at_most: None,
            share_at_least: None,
            integral: 0.01,
            proportional: 0.1,
            derivative: 0.0,
            smoothing: 0.1,
            most: 100.0,
        }
    }
}

/// The quantities that can be limited, in the order of [`Multipliers`].
pub const QUANTITIES: [&str; 2] = ["loss", "share"];

impl Constraints {
    /// Whether there is no limit at all.
    pub fn is_empty(&self) -> bool {
        self.loss_at_most.is_none() && self.share_at_least.is_none()
    }

    /// Number of the [`sums`](Self::sums) over a batch.
    pub(super) fn number_of_sums(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => 2 * QUANTITIES.len(),
        }
    }

    /// The sums over a batch that [`Multipliers::apply`] needs: of each quantity the violations of
    /// the steps that are `known`, weighted by their time (`intervals`), and that time. Empty
    /// without a limit.
    pub(super) fn sums(
        &self,
        quantities: &[Quantities],
        intervals: &[f32],
        known: &[bool],
    ) -> Vec<f64> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut sums = [[0.0; 2]; QUANTITIES.len()];
        for ((step, &intervals), _) in quantities
            .iter()
            .zip(intervals)
            .zip(known)
            .filter(|(_, known)| **known)
        {
            for (sum, violation) in sums.iter_mut().zip(self.violations(step)) {
                if let Some(violation) = violation {
                    sum[0] += f64::from(intervals) * violation;
                    sum[1] += f64::from(intervals);
                }
            }
        }
        sums.as_flattened().to_vec()
    }

    /// By how much a step exceeds each limit, or falls short of it; below 0 where the limit is
    /// kept with room. `None` where there is no limit or the quantity was not measured.
    fn violations(&self, step: &Quantities) -> [Option<f64>; QUANTITIES.len()] {
        let loss = self.loss_at_most.zip(step.loss);
        let share = self.share_at_least.zip(step.share);
        [
            loss.map(|(most, loss)| f64::from(loss) - most),
            share.map(|(least, share)| least - f64::from(share)),
        ]
    }
}

/// The multipliers of the constraints, and what the control remembers of the updates before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multipliers {
    controls: [Control; QUANTITIES.len()],
}

/// The control of one multiplier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Control {
    /// λ, the weight of the violation in the reward.
    multiplier: f64,
    /// Sum of all violations times its gain, at least 0.
    integral: f64,
    /// The smoothed violation; `None` before the first update that measured one.
    violation: Option<f64>,
}

impl Control {
    /// Moves the multiplier after a batch with this mean violation.
    fn learn(&mut self, violation: f64, settings: &Constraints) {
        let before = self.violation.unwrap_or(violation);
        let smooth = before + settings.smoothing * (violation - before);
        // A sum that went on below 0 or beyond the limit would take long to come back.
        self.integral = (self.integral + settings.integral * smooth).clamp(0.0, settings.most);
        let growth = (smooth - before).max(0.0);
        self.multiplier =
            (settings.proportional * smooth + self.integral + settings.derivative * growth)
                .clamp(0.0, settings.most);
        self.violation = Some(smooth);
    }
}

/// A constraint after an update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConstraintPoint {
    /// Name of the quantity, one of [`QUANTITIES`].
    pub name: String,
    /// Smoothed mean of the quantity's violation: above 0 while the limit is not kept.
    pub violation: f64,
    /// The multiplier: what a unit of violation costs, in units of the normalised reward.
    pub multiplier: f64,
}

impl Multipliers {
    /// Moves the multipliers by the mean violations of a batch, given by its
    /// [`sums`](Constraints::sums), and then turns its rewards r, which are rates, into
    /// (r − Σ λ · violation) / (1 + Σ λ): with large multipliers the size of the rewards stays that
    /// of the objective's.
    pub(super) fn apply(
        &mut self,
        rewards: &mut [f32],
        quantities: &[Quantities],
        sums: &[f64],
        settings: &Constraints,
    ) {
        if settings.is_empty() {
            return;
        }
        for (control, [violation, time]) in self.controls.iter_mut().zip(sums.as_chunks().0) {
            if *time > 0.0 {
                control.learn(violation / time, settings);
            }
        }
        let all: f64 = self.controls.iter().map(|control| control.multiplier).sum();
        for (reward, step) in rewards.iter_mut().zip(quantities) {
            let of = |(control, violation): (&Control, Option<f64>)| {
                control.multiplier * violation.unwrap_or(0.0)
            };
            let violations = settings.violations(step).into_iter();
            let cost: f64 = self.controls.iter().zip(violations).map(of).sum();
            *reward = ((f64::from(*reward) - cost) / (1.0 + all)) as f32;
        }
    }

    /// The constraints that there are, and their multipliers.
    pub fn points(&self, settings: &Constraints) -> Vec<ConstraintPoint> {
        let limited = [
            settings.loss_at_most.is_some(),
            settings.share_at_least.is_some(),
        ];
        let all = QUANTITIES.into_iter().zip(&self.controls).zip(limited);
        all.filter(|(_, limited)| *limited)
            .map(|((name, control), _)| ConstraintPoint {
                name: name.to_owned(),
                violation: control.violation.unwrap_or(0.0),
                multiplier: control.multiplier,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loss_at_most(limit: f64) -> Constraints {
        Constraints {
            loss_at_most: Some(limit),
            ..Constraints::default()
        }
    }

    fn step(loss: f32) -> Quantities {
        Quantities {
            loss: Some(loss),
            share: None,
        }
    }

    /// Has the multipliers learn a batch, and charges its rewards.
    fn apply(
        multipliers: &mut Multipliers,
        rewards: &mut [f32],
        quantities: &[Quantities],
        intervals: &[f32],
        known: &[bool],
        settings: &Constraints,
    ) {
        let sums = settings.sums(quantities, intervals, known);
        multipliers.apply(rewards, quantities, &sums, settings);
    }

    /// The multiplier after a batch of one step, and that step's reward of 1.
    fn after(multipliers: &mut Multipliers, loss: f32, settings: &Constraints) -> (f64, f32) {
        let mut rewards = [1.0];
        apply(
            multipliers,
            &mut rewards,
            &[step(loss)],
            &[1.0],
            &[true],
            settings,
        );
        (multipliers.controls[0].multiplier, rewards[0])
    }

    #[test]
    fn without_limits_rewards_and_multipliers_stay() {
        let mut multipliers = Multipliers::default();
        let (multiplier, reward) = after(&mut multipliers, 0.5, &Constraints::default());
        assert_eq!((multiplier, reward), (0.0, 1.0));
        assert_eq!(multipliers, Multipliers::default());
        assert_eq!(multipliers.points(&Constraints::default()), []);
    }

    #[test]
    fn rewards_are_the_lagrangians() {
        // Without gains the multipliers stay what the sums of the past are.
        let settings = Constraints {
            share_at_least: Some(0.8),
            integral: 0.0,
            proportional: 0.0,
            ..loss_at_most(0.01)
        };
        let mut multipliers = Multipliers::default();
        multipliers.controls[0].integral = 3.0;
        multipliers.controls[1].integral = 2.0;
        let of = |loss, share| Quantities { loss, share };
        let steps = [
            of(Some(0.03), Some(0.5)),
            of(Some(0.0), None),
            of(None, Some(1.0)),
            of(None, None),
        ];
        // 3 × 0.02 + 2 × 0.3; 3 × −0.01; 2 × −0.2; nothing.
        let costs = [0.66, -0.03, -0.4, 0.0];
        let mut rewards = [0.5_f32; 4];
        apply(
            &mut multipliers,
            &mut rewards,
            &steps,
            &[1.0; 4],
            &[true; 4],
            &settings,
        );
        for (reward, cost) in rewards.iter().zip(costs) {
            assert!(
                (f64::from(*reward) - (0.5 - cost) / 6.0).abs() < 1e-6,
                "{rewards:?}"
            );
        }
        let points = multipliers.points(&settings);
        let found: Vec<_> = points
            .iter()
            .map(|own| (&*own.name, own.multiplier))
            .collect();
        assert_eq!(found, [("loss", 3.0), ("share", 2.0)]);
    }

    #[test]
    fn what_is_not_known_moves_no_multiplier_and_time_counts() {
        let settings = Constraints {
            smoothing: 1.0,
            integral: 1.0,
            proportional: 0.0,
            ..loss_at_most(0.0)
        };
        let mut multipliers = Multipliers::default();
        let steps = [step(0.1), step(0.9), step(0.4)];
        let known = [true, false, true];
        apply(
            &mut multipliers,
            &mut [0.0; 3],
            &steps,
            &[3.0, 1.0, 1.0],
            &known,
            &settings,
        );
        let expected = (3.0 * 0.1 + 0.4) / 4.0;
        assert!((multipliers.controls[0].multiplier - expected).abs() < 1e-6);
        let before = multipliers.clone();
        apply(
            &mut multipliers,
            &mut [0.0],
            &steps[..1],
            &[1.0],
            &[false],
            &settings,
        );
        assert_eq!(multipliers, before);
    }

    proptest! {
        /// Multipliers are weights: never negative, never beyond the largest; they rise while a
        /// limit is exceeded, and are 0 in the end where it is kept with room.
        #[test]
        fn multipliers_stay_in_range_and_follow_the_violation(
            losses in proptest::collection::vec(0.0..1.0f32, 1..50),
            integral in 0.0..1.0f64,
            proportional in 0.0..1.0f64,
            derivative in 0.0..1.0f64,
        ) {
            let settings = Constraints {
                integral, proportional, derivative, most: 2.0, ..loss_at_most(0.5)
            };
            let mut multipliers = Multipliers::default();
            for &loss in &losses {
                let (multiplier, _) = after(&mut multipliers, loss, &settings);
                prop_assert!((0.0..=2.0).contains(&multiplier), "{multiplier}");
            }
            let settings = Constraints { integral: 0.1, ..settings };
            for _ in 0..200 {
                after(&mut multipliers, 0.0, &settings);
            }
            prop_assert_eq!(after(&mut multipliers, 0.0, &settings).0, 0.0);
            let mut last = 0.0;
            for _ in 0..100 {
                after(&mut multipliers, 1.0, &settings);
            }
            for _ in 0..20 {
                let (multiplier, _) = after(&mut multipliers, 1.0, &settings);
                prop_assert!(multiplier >= last);
                last = multiplier;
            }
        }
    }

    /// Two actions: one earns 1 and loses a tenth, the other earns nothing and loses nothing. At
    /// most a share of 0.04 may be lost, so that the best policy takes the first in 0.4 of all
    /// cases. Gradient ascent on a softmax with an entropy bonus finds it, together with the
    /// multiplier.
    #[test]
    fn a_limited_problem_is_solved_at_its_limit() {
        let settings = Constraints {
            integral: 0.5,
            proportional: 50.0,
            smoothing: 1.0,
            ..loss_at_most(0.04)
        };
        let (mut multipliers, mut logit) = (Multipliers::default(), 0.0_f64);
        const ENTROPY_COST: f64 = 0.05;
        for _ in 0..20_000 {
            let share = 1.0 / (1.0 + (-logit).exp());
            let mut rewards = [1.0, 0.0];
            let steps = [step(0.1), step(0.0)];
            let times = [share as f32, 1.0 - share as f32];
            apply(
                &mut multipliers,
                &mut rewards,
                &steps,
                &times,
                &[true; 2],
                &settings,
            );
            let advantage = f64::from(rewards[0] - rewards[1]);
            logit += share * (1.0 - share) * (advantage - ENTROPY_COST * logit);
        }
        let share = 1.0 / (1.0 + (-logit).exp());
        assert!((share - 0.4).abs() < 0.01, "{share}");
        // There the multiplier leaves as much advantage as the entropy takes:
        // (1 − 0.1 λ) / (1 + λ) = 0.05 ln(0.4 / 0.6).
        let slope = ENTROPY_COST * (0.4_f64 / 0.6).ln();
        let expected = (1.0 - slope) / (0.1 + slope);
        let multiplier = multipliers.controls[0].multiplier;
        assert!(
            (multiplier - expected).abs() < 0.1,
            "{multiplier} for {expected}"
        );
    }
}
