//! The softmax of a network's logits in f32, computed without overflow for any finite logits.
//!
//! ActionSelection has its own in f64 with a temperature ([`cc_core::policy::ActionSelection`]).
//! The two are kept apart: training is repeated bit for bit, and a sampled action depends on the
//! last bit.

/// The largest logit, and of each logit z the weight exp(z − max), which is at most 1.
///
/// Softmax probabilities are these weights divided by their sum, which is at least 1.
fn weights(logits: &[f32]) -> (f32, impl Iterator<Item = f32>) {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    (max, logits.iter().map(move |logit| (logit - max).exp()))
}

/// Turns the logits z of the softmax at temperature 1 into those of softmax(z / `temperature`).
pub(crate) fn at_temperature(logits: &mut [f32], temperature: f32) {
    if temperature != 1.0 {
        logits.iter_mut().for_each(|logit| *logit /= temperature);
    }
}

/// The logit of a masked action, whose probability is then exactly 0 beside any larger logit.
///
/// It is finite, so that products of that probability and its logarithm are 0 and not NaN.
pub(crate) const MASKED: f32 = f32::MIN;

/// Masks the actions that are not allowed: what is computed of the logits afterwards is about the
/// allowed actions alone. Nothing is changed where `allowed` is empty, or all are allowed. To be
/// called after [`at_temperature`], by which a masked logit must not be divided.
pub(crate) fn mask(logits: &mut [f32], allowed: &[bool]) {
    for (logit, allowed) in logits.iter_mut().zip(allowed) {
        if !allowed {
            *logit = MASKED;
        }
    }
}

/// ln Σ exp(z) over all logits z.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    let (max, weights) = weights(logits);
    max + weights.sum::<f32>().ln()
}

/// ln π(action), the logarithm of an action's softmax probability.
///
/// # Panics
///
/// Panics if there is no such action.
pub(crate) fn log_probability(logits: &[f32], action: usize) -> f32 {
    logits[action] - log_sum_exp(logits)
}

/// The logarithm of the softmax probability of an action's effect: of all actions whose entry in
/// `effects`, the first action with the same effect, is that of `action`.
pub(crate) fn log_probability_of_effect(logits: &[f32], effects: &[u8], action: usize) -> f32 {
    let is_alike = |other: &usize| effects[*other] == effects[action];
    let mut alike = (0..logits.len())
        .filter(is_alike)
        .map(|other| logits[other]);
    match (alike.next(), alike.next()) {
        (Some(first), Some(second)) => {
            let all: Vec<f32> = [first, second].into_iter().chain(alike).collect();
            log_sum_exp(&all) - log_sum_exp(logits)
        }
        _ => log_probability(logits, action),
    }
}

/// Samples an action from the softmax by inverting its cumulative distribution: the action whose
/// part of the unit interval holds `uniform`, a number in [0, 1).
pub(crate) fn sample(logits: &[f32], uniform: f32) -> usize {
    let sum: f32 = weights(logits).1.sum();
    let mut left = uniform * sum;
    for (action, weight) in weights(logits).1.enumerate() {
        left -= weight;
        if left < 0.0 {
            return action;
        }
    }
    // Rounding alone leads here: to the last action that has a probability.
    let possible = weights(logits)
        .1
        .enumerate()
        .filter(|(_, weight)| *weight > 0.0);
    possible.last().map_or(0, |(action, _)| action)
}

/// The action with the largest logit, the first of equal ones.
pub(crate) fn most_likely(logits: &[f32]) -> usize {
    let best = (0..logits.len()).reduce(|best, action| match logits[action] > logits[best] {
        true => action,
        false => best,
    });
    best.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_most_likely_action_is_the_first_of_equal_ones() {
        assert_eq!(most_likely(&[-1.0, 3.0, 3.0, 0.0]), 1);
        assert_eq!(most_likely(&[2.0]), 0);
    }

    #[test]
    fn actions_are_sampled_with_their_probabilities() {
        let logits = [0.0, 2.0f32.ln(), 5.0f32.ln()].map(|logit| logit + 7.0);
        let mut counts = [0; 3];
        for at in 0..800 {
            counts[sample(&logits, (at as f32 + 0.5) / 800.0)] += 1;
        }
        assert_eq!(counts, [100, 200, 500]);
    }

    #[test]
    fn an_action_of_probability_0_is_never_sampled() {
        assert_eq!(sample(&[-200.0, 0.0, -200.0], 0.0), 1);
        assert_eq!(sample(&[-200.0, 0.0, -200.0], 0.999_999_9), 1);
    }

    #[test]
    fn rounding_never_leads_to_an_action_of_probability_0() {
        // Each of the small weights adds a third more to the sum, by rounding, than is subtracted
        // for it later, so that something is left in the end.
        let mut logits = vec![0.0];
        logits.resize(9, (0.75 * f32::EPSILON).ln());
        logits.push(MASKED);
        assert_eq!(sample(&logits, 1.0 - f32::EPSILON / 2.0), 8);
    }

    proptest! {
        /// Against the softmax over the allowed actions alone, in f64; masked actions have a
        /// probability of exactly 0, and are never sampled.
        #[test]
        fn masked_actions_do_not_exist(
            actions in proptest::collection::vec((-30.0..30.0f32, any::<bool>()), 1..9),
            allowed_one: prop::sample::Index,
            uniform in 0.0..1.0f32,
        ) {
            let (mut logits, mut allowed): (Vec<f32>, Vec<bool>) = actions.into_iter().unzip();
            let allowed_one = allowed_one.index(logits.len());
            allowed[allowed_one] = true;
            let own = |logits: &[f32]| -> Vec<f64> {
                let pairs = logits.iter().zip(&allowed).filter(|(_, allowed)| **allowed);
                pairs.map(|(logit, _)| f64::from(*logit)).collect()
            };
            let reduced = own(&logits);
            mask(&mut logits, &allowed);
            prop_assert_eq!(own(&logits), reduced.clone(), "the others are left alone");
            let norm = reduced.iter().map(|logit| logit.exp()).sum::<f64>().ln();
            prop_assert!((f64::from(log_sum_exp(&logits)) - norm).abs() < 1e-4);
            for (action, &allowed) in allowed.iter().enumerate() {
                let log = log_probability(&logits, action);
                match allowed {
                    true => {
                        let expected = f64::from(logits[action]) - norm;
                        prop_assert!((f64::from(log) - expected).abs() < 1e-4);
                    }
                    false => prop_assert_eq!((log.exp(), log.is_finite()), (0.0, true)),
                }
            }
            prop_assert!(allowed[sample(&logits, uniform)]);
            prop_assert!(allowed[sample(&logits, 0.0)]);
            prop_assert!(allowed[sample(&logits, 1.0 - f32::EPSILON / 2.0)]);
            prop_assert!(allowed[most_likely(&logits)]);
        }
    }

    #[test]
    fn probabilities_sum_to_1_for_large_logits() {
        for logits in [[1e4, 1e4 + 1.0, -1e4], [-3e38, 0.0, 3e38]] {
            let sum: f32 = (0..3)
                .map(|action| log_probability(&logits, action).exp())
                .sum();
            assert!((sum - 1.0).abs() < 2e-3, "{logits:?}: {sum}");
        }
    }
}
