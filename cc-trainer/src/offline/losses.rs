//! The losses of the offline methods, each for one state, with their derivatives.
//!
//! They are computed in f64, so that differences can check the derivatives. A derivative is *added*
//! to what is there, times a weight.

/// −ln softmax(logits)·target for a distribution over the actions: cloning of an action where all
/// is on one. Its derivatives by the logits, times `weight`, are added to `into`.
pub(super) fn cross_entropy(logits: &[f64], target: &[f64], weight: f64, into: &mut [f64]) -> f64 {
    let norm = log_sum_exp(logits);
    let mut loss = 0.0;
    let mass: f64 = target.iter().sum();
    for ((logit, target), into) in logits.iter().zip(target).zip(into) {
        loss -= target * (logit - norm);
        *into += weight * (mass * (logit - norm).exp() - target);
    }
    loss
}

/// The squared error of a value up to an error of 1, beyond which it grows linearly (Huber 1964).
/// Its derivative by the value, times `weight`, is added to `into`.
pub(super) fn huber(value: f64, target: f64, weight: f64, into: &mut f64) -> f64 {
    let error = value - target;
    *into += weight * error.clamp(-1.0, 1.0);
    if error.abs() <= 1.0 {
        0.5 * error * error
    } else {
        error.abs() - 0.5
    }
}

/// The quantile regression loss of a distribution's quantiles against samples of its target, with
/// Huber's loss in place of the absolute error (Dabney et al., arXiv 1710.10044, equation 10, with
/// κ = 1). Its derivatives by the quantiles, times `weight`, are added to `into`.
pub(super) fn quantile_huber(
    quantiles: &[f64],
    targets: &[f64],
    weight: f64,
    into: &mut [f64],
) -> f64 {
    let count = quantiles.len() as f64;
    let mut loss = 0.0;
    for ((i, &quantile), into) in quantiles.iter().enumerate().zip(into) {
        let middle = (i as f64 + 0.5) / count;
        for &target in targets {
            let side = if target < quantile {
                1.0 - middle
            } else {
                middle
            };
            let share = side / targets.len() as f64;
            loss += share * huber(quantile, target, weight * share, into);
        }
    }
    loss
}

/// How much larger the values of all actions are, by their softmax, than that of the action in the
/// data: the regulariser of conservative Q-learning (Kumar et al., arXiv 2006.04779, equation 4).
/// Its derivatives by the values, times `weight`, are added to `into`.
pub(super) fn conservative(values: &[f64], taken: usize, weight: f64, into: &mut [f64]) -> f64 {
    let norm = log_sum_exp(values);
    for ((action, value), into) in values.iter().enumerate().zip(into) {
        let here = if action == taken { 1.0 } else { 0.0 };
        *into += weight * ((value - norm).exp() - here);
    }
    norm - values[taken]
}

/// The softmax of values over a temperature.
pub(super) fn softmax(values: &[f64], temperature: f64) -> Vec<f64> {
    let scaled: Vec<f64> = values.iter().map(|value| value / temperature).collect();
    let norm = log_sum_exp(&scaled);
    scaled.iter().map(|value| (value - norm).exp()).collect()
}

/// Index of the largest value; of equal ones the first.
pub(super) fn largest(values: &[f64]) -> usize {
    let better = |best: usize, at: usize| if values[at] > values[best] { at } else { best };
    (1..values.len()).fold(0, better)
}

fn log_sum_exp(values: &[f64]) -> f64 {
    let most = values.iter().copied().fold(f64::MIN, f64::max);
    most + values
        .iter()
        .map(|value| (value - most).exp())
        .sum::<f64>()
        .ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Compares derivatives with central differences of the loss.
    fn check(
        at: &[f64],
        loss: impl Fn(&[f64], f64, &mut [f64]) -> f64,
    ) -> Result<(), TestCaseError> {
        const STEP: f64 = 1e-5;
        let mut found = vec![3.0; at.len()];
        loss(at, 2.0, &mut found);
        for i in 0..at.len() {
            let side = |sign: f64| {
                let mut moved = at.to_vec();
                moved[i] += sign * STEP;
                loss(&moved, 0.0, &mut vec![0.0; at.len()])
            };
            let expected = 3.0 + 2.0 * (side(1.0) - side(-1.0)) / (2.0 * STEP);
            prop_assert!(
                (found[i] - expected).abs() < 1e-6,
                "{} {}",
                found[i],
                expected
            );
        }
        Ok(())
    }

    fn numbers() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-3.0..3.0_f64, 5)
    }

    proptest! {
        #[test]
        fn derivatives_are_those_of_the_losses(
            values in numbers(),
            others in numbers(),
            taken in 0..5_usize,
        ) {
            // Away from the corners of the quantile loss, where it has no derivative.
            let near = values.iter().any(|value| {
                others.iter().any(|other| (value - other).abs() < 1e-3)
            });
            prop_assume!(!near);
            let target = softmax(&others, 0.7);
            check(&values, |at, weight, into| cross_entropy(at, &target, weight, into))?;
            check(&values, |at, weight, into| quantile_huber(at, &others, weight, into))?;
            check(&values, |at, weight, into| conservative(at, taken, weight, into))?;
            check(&values[..1], |at, weight, into| huber(at[0], others[0], weight, &mut into[0]))?;
        }
    }

    /// Quantiles that are fitted to samples are those of the samples.
    #[test]
    fn fitted_quantiles_are_those_of_the_target() {
        let samples: Vec<f64> = (0..200).map(|i| f64::from(i) * 0.1).collect();
        let mut quantiles = vec![0.0; 4];
        for _ in 0..20_000 {
            let mut derivative = vec![0.0; 4];
            quantile_huber(&quantiles, &samples, 1.0, &mut derivative);
            for (quantile, derivative) in quantiles.iter_mut().zip(derivative) {
                *quantile -= 0.1 * derivative;
            }
        }
        // The middles of four equal parts of 0 to 20, a little towards the mean by Huber's loss.
        for (found, expected) in quantiles.iter().zip([2.5, 7.5, 12.5, 17.5]) {
            assert!((found - expected).abs() < 0.5, "{quantiles:?}");
        }
    }

    #[test]
    fn a_certain_action_is_cloned() {
        let mut derivative = vec![0.0; 2];
        let loss = cross_entropy(&[0.0, 0.0], &[0.0, 1.0], 1.0, &mut derivative);
        assert!((loss - 2.0_f64.ln()).abs() < 1e-12);
        assert_eq!(derivative, [0.5, -0.5]);
        assert_eq!(largest(&[1.0, 3.0, 3.0]), 1);
    }
}
