//! Learning from actions that the learner's own actors did not take.
//!
//! Three kinds of action meet in a batch ([`Origin`]). The policy gradient weights each by
//!
//! - its V-trace advantage, if the probability is known with which it was sampled;
//! - else by advantage-weighted regression (X. B. Peng et al., arXiv 1910.00177): a weight that
//!   rises with the advantage and is never negative. The policy moves towards the best of the
//!   recorded actions, and never to an action that nothing was recorded of.
//!
//! At the start of a run, while the baseline knows little, recorded actions can be cloned
//! instead: all with weight 1.

use super::LearnerSettings;
use crate::rollout::Origin;

/// Largest weight of advantage-weighted regression, so that no single step dominates a batch.
const LARGEST_WEIGHT: f32 = 20.0;

/// Smallest unit of advantages, which keeps a batch without any advantage finite.
const LEAST_UNIT: f32 = 1e-6;

/// How recorded actions are weighted.
pub(super) struct Weighting {
    /// Whether recorded actions are cloned.
    pub(super) cloning: bool,
    /// Added to the weight of every recorded action that is not cloned.
    pub(super) anchor: f32,
    /// Temperature β of advantage-weighted regression.
    pub(super) temperature: f32,
}

impl Weighting {
    /// The weighting of the settings at position `done` of a run, from 0 to 1.
    pub(super) fn of(settings: &LearnerSettings, done: f64) -> Self {
        Self {
            cloning: done < f64::from(settings.cloning),
            anchor: settings.anchor,
            temperature: settings.temperature,
        }
    }

    /// The weight w of each step's action in the policy's loss −w ln π(a|x), `[T, B]`, from the
    /// V-trace advantages, the actions' origins, and whether their outcomes are known.
    pub(super) fn advantage_weights(
        &self,
        advantage: &[f32],
        origin: &[Origin],
        known: &[bool],
    ) -> Vec<f32> {
        let steps = || origin.iter().zip(known).zip(advantage);
        let observed =
            || steps().filter(|((origin, known), _)| **origin == Origin::Observed && **known);
        let squares: f32 = observed().map(|(_, advantage)| advantage * advantage).sum();
        let unit = (squares / observed().count().max(1) as f32)
            .sqrt()
            .max(LEAST_UNIT);
        let regression_weight = |advantage: f32| {
            let log = advantage / (unit * self.temperature);
            log.min(LARGEST_WEIGHT.ln()).exp()
        };
        steps()
            .map(|((origin, known), &advantage)| match origin {
                Origin::Actor => advantage,
                _ if self.cloning => 1.0,
                Origin::Recorded => advantage + self.anchor,
                Origin::Observed if *known => regression_weight(advantage) + self.anchor,
                Origin::Observed => self.anchor,
            })
            .collect()
    }
}
