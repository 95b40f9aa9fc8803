//! The terms of the loss that depend on the logits, and their derivatives.
//!
//! Actions that have the same effect count as one where they are to be merged: with P the
//! probability of an effect, the sum of the probabilities p of its actions, the terms are
//! −w ln P(effect of a), the entropy −Σ P ln P, and the divergence Σ P ln(P / Q). Where every
//! action has an effect of its own, P is p.
//!
//! Masked actions, whose logits are [`MASKED`](crate::softmax::MASKED), have p = 0: the sums are
//! those over the allowed actions alone, and the derivatives by masked logits are exactly 0.

use crate::softmax::log_sum_exp;

/// The logarithms of the probabilities of actions and of their effects.
#[derive(Clone, Debug, Default)]
pub(super) struct ActionLogs {
    /// `[A]`: ln p of each action.
    own: Vec<f32>,
    /// `[A]`: ln P of each action's effect.
    effect: Vec<f32>,
    /// `[A]`: the first action with the same effect.
    effects: Vec<u8>,
    /// The logits of the actions with one effect.
    alike: Vec<f32>,
}

impl ActionLogs {
    /// Takes logits, masked where actions are not allowed, and effects,
    /// [`Turn::effects`](crate::environment::Turn::effects).
    pub(super) fn set(&mut self, logits: &[f32], effects: &[u8]) {
        let norm = log_sum_exp(logits);
        self.own.clear();
        self.own.extend(logits.iter().map(|logit| logit - norm));
        self.effect.clone_from(&self.own);
        self.effects.clear();
        self.effects.extend_from_slice(effects);
        for first in 0..effects.len() {
            let is_alike = |action: &usize| usize::from(effects[*action]) == first;
            let of_effect = || (first..effects.len()).filter(is_alike);
            self.alike.clear();
            self.alike.extend(of_effect().map(|action| logits[action]));
            if self.alike.len() > 1 {
                let log = log_sum_exp(&self.alike) - norm;
                of_effect().for_each(|action| self.effect[action] = log);
            }
        }
    }

    /// Writes the derivatives of −weight · ln P(effect of `action`) − entropy_cost · H by the
    /// logits, and returns the entropy H of the effects, nats.
    pub(super) fn policy_gradient(
        &self,
        action: usize,
        weight: f32,
        entropy_cost: f32,
        into: &mut [f32],
    ) -> f32 {
        let pairs = || self.own.iter().zip(&self.effect);
        let entropy: f32 = pairs().map(|(own, effect)| -own.exp() * effect).sum();
        for ((at, (own, effect)), into) in pairs().enumerate().zip(into) {
            let probability = own.exp();
            // The action's share of its effect, where that is the one that was had.
            let taken = match self.effects[at] == self.effects[action] {
                true => (own - effect).exp(),
                false => 0.0,
            };
            *into =
                weight * (probability - taken) + entropy_cost * probability * (effect + entropy);
        }
        entropy
    }

    /// Adds the derivatives of cost · KL(P‖Q) by the logits, with Q the effects' probabilities
    /// under the behaviour policy.
    pub(super) fn divergence_gradient(&self, behaviour: &Self, cost: f32, into: &mut [f32]) {
        let ratio = |at: usize| self.effect[at] - behaviour.effect[at];
        let shares = || self.own.iter().map(|own| own.exp()).enumerate();
        let divergence: f32 = shares().map(|(at, share)| share * ratio(at)).sum();
        for ((at, share), into) in shares().zip(into) {
            *into += cost * share * (ratio(at) - divergence);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::softmax::mask;

    const ACTIONS: usize = 5;

    /// Effects of actions that lead to these cwnds.
    fn effects(cwnds: &[u8]) -> Vec<u8> {
        let first = |cwnd| cwnds.iter().position(|other| other == cwnd);
        cwnds
            .iter()
            .map(|cwnd| first(cwnd).unwrap_or(0) as u8)
            .collect()
    }

    /// Probabilities of the effects, by the first action of each, in f64.
    fn shares(logits: &[f64], effects: &[u8]) -> Vec<f64> {
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let mut shares = vec![0.0; logits.len()];
        for (logit, &effect) in logits.iter().zip(effects) {
            shares[usize::from(effect)] += logit.exp() / sum;
        }
        shares
    }

    proptest! {
        /// Against differences of the three terms, written out over effects in f64.
        #[test]
        fn derivatives_are_those_of_the_terms_over_effects(
            logits in proptest::collection::vec(-3.0..3.0f64, ACTIONS),
            behaviour in proptest::collection::vec(-3.0..3.0f64, ACTIONS),
            cwnds in proptest::collection::vec(0..4u8, ACTIONS),
            action in 0..ACTIONS,
            weight in -2.0..2.0f64,
            entropy_cost in 0.0..1.0f64,
            cost in 0.0..1.0f64,
        ) {
            let effects = effects(&cwnds);
            let loss = |logits: &[f64]| {
                let own = shares(logits, &effects);
                let other = shares(&behaviour, &effects);
                let of = |pair: (&f64, &f64), by: fn(f64, f64) -> f64| match *pair.0 > 0.0 {
                    true => by(*pair.0, *pair.1),
                    false => 0.0,
                };
                let sum = |by: fn(f64, f64) -> f64| -> f64 {
                    own.iter().zip(&other).map(|pair| of(pair, by)).sum()
                };
                -weight * own[usize::from(effects[action])].ln()
                    - entropy_cost * sum(|p, _| -p * p.ln())
                    + cost * sum(|p, q| p * (p / q).ln())
            };
            let narrow = |logits: &[f64]| logits.iter().map(|&x| x as f32).collect::<Vec<_>>();
            let (mut logs, mut other) = (ActionLogs::default(), ActionLogs::default());
            logs.set(&narrow(&logits), &effects);
            other.set(&narrow(&behaviour), &effects);
            let mut found = [0.0; ACTIONS];
            let entropy =
                logs.policy_gradient(action, weight as f32, entropy_cost as f32, &mut found);
            logs.divergence_gradient(&other, cost as f32, &mut found);
            let own = shares(&logits, &effects);
            let expected: f64 = own.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
            prop_assert!((f64::from(entropy) - expected).abs() < 1e-5);
            for at in 0..ACTIONS {
                const STEP: f64 = 1e-5;
                let moved = |by: f64| {
                    let mut logits = logits.clone();
                    logits[at] += by;
                    loss(&logits)
                };
                let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                prop_assert!((f64::from(found[at]) - expected).abs() < 1e-4,
                    "by logit {at}: {} but {expected}", found[at]);
            }
        }

        /// Against differences of the three terms over the allowed actions alone, written out over
        /// their effects in f64, as if the masked ones did not exist. By these the derivatives are
        /// exactly 0.
        #[test]
        fn masked_actions_do_not_exist(
            actions in proptest::collection::vec(
                (-3.0..3.0f64, -3.0..3.0f64, 0..4u8, any::<bool>()),
                ACTIONS,
            ),
            action in 0..ACTIONS,
            weight in -2.0..2.0f64,
            entropy_cost in 0.0..1.0f64,
            cost in 0.0..1.0f64,
        ) {
            let mut allowed: Vec<bool> = actions.iter().map(|own| own.3).collect();
            allowed[action] = true;
            let logits: Vec<f64> = actions.iter().map(|own| own.0).collect();
            let cwnds: Vec<u8> = actions.iter().map(|own| own.2).collect();
            let kept: Vec<usize> = (0..ACTIONS).filter(|&at| allowed[at]).collect();
            let reduced = effects(&kept.iter().map(|&at| cwnds[at]).collect::<Vec<_>>());
            let taken = kept.iter().position(|&at| at == action).expect("it is allowed");
            let behaviour: Vec<f64> = kept.iter().map(|&at| actions[at].1).collect();
            let other = shares(&behaviour, &reduced);
            let loss = |logits: &[f64]| {
                let own: Vec<f64> = kept.iter().map(|&at| logits[at]).collect();
                let own = shares(&own, &reduced);
                let pairs = || own.iter().zip(&other).filter(|(p, _)| **p > 0.0);
                let entropy: f64 = pairs().map(|(p, _)| -p * p.ln()).sum();
                let divergence: f64 = pairs().map(|(p, q)| p * (p / q).ln()).sum();
                -weight * own[usize::from(reduced[taken])].ln() - entropy_cost * entropy
                    + cost * divergence
            };

            let (mut logs, mut recorded) = (ActionLogs::default(), ActionLogs::default());
            let masked = |of: &dyn Fn(usize) -> f64| -> Vec<f32> {
                let mut all: Vec<f32> = (0..ACTIONS).map(|at| of(at) as f32).collect();
                mask(&mut all, &allowed);
                all
            };
            let effects = effects(&cwnds);
            logs.set(&masked(&|at| logits[at]), &effects);
            recorded.set(&masked(&|at| actions[at].1), &effects);
            let mut found = [0.0; ACTIONS];
            let entropy =
                logs.policy_gradient(action, weight as f32, entropy_cost as f32, &mut found);
            logs.divergence_gradient(&recorded, cost as f32, &mut found);
            let own: Vec<f64> = kept.iter().map(|&at| logits[at]).collect();
            let own = shares(&own, &reduced);
            let expected: f64 = own.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
            prop_assert!((f64::from(entropy) - expected).abs() < 1e-5, "{} {}", entropy, expected);
            for at in 0..ACTIONS {
                const STEP: f64 = 1e-5;
                if !allowed[at] {
                    prop_assert_eq!(found[at], 0.0, "by masked logit {}", at);
                    continue;
                }
                let moved = |by: f64| {
                    let mut logits = logits.clone();
                    logits[at] += by;
                    loss(&logits)
                };
                let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                prop_assert!((f64::from(found[at]) - expected).abs() < 1e-4,
                    "by logit {at}: {} but {expected}", found[at]);
            }
        }

        /// With actions of one effect each, the terms are those of actions, to the bit: as if there
        /// were no merging.
        #[test]
        fn actions_of_different_effects_are_left_alone(
            logits in proptest::collection::vec(-9.0..9.0f32, ACTIONS),
            action in 0..ACTIONS,
        ) {
            let mut logs = ActionLogs::default();
            logs.set(&logits, &[0, 1, 2, 3, 4]);
            prop_assert_eq!(&logs.own, &logs.effect);
            let mut found = [0.0; ACTIONS];
            logs.policy_gradient(action, 1.0, 0.0, &mut found);
            let norm = log_sum_exp(&logits);
            for (at, &logit) in logits.iter().enumerate() {
                let taken = f32::from(u8::from(at == action));
                prop_assert_eq!(found[at], (logit - norm).exp() - taken);
            }
        }
    }

    /// The gradient of a policy is no more random for having two names for one thing.
    #[test]
    fn a_second_name_for_an_action_changes_no_gradient() {
        let (mut one, mut two) = (ActionLogs::default(), ActionLogs::default());
        let half = 0.5f32.ln();
        one.set(&[0.3, -0.2], &[0, 1]);
        two.set(&[0.3 + half, -0.2, 0.3 + half], &[0, 1, 0]);
        let (mut single, mut double) = ([0.0; 2], [0.0; 3]);
        let entropy = one.policy_gradient(0, 1.5, 0.1, &mut single);
        for action in [0, 2] {
            let merged = two.policy_gradient(action, 1.5, 0.1, &mut double);
            assert!((merged - entropy).abs() < 1e-6);
            assert!(
                (double[0] + double[2] - single[0]).abs() < 1e-6,
                "{double:?} {single:?}"
            );
            assert!((double[1] - single[1]).abs() < 1e-6);
        }
    }
}
