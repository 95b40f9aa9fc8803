//! MAGIC's blend of j-step returns, with the weights of the smallest estimated mean squared error
//! (Thomas and Brunskill, section 7).

use super::{Method, sums::Answers};

/// Returns the lengths j of the j-step returns that are blended: 0 (the model alone), 1, 2, 4, 8 …
/// and the horizon (the weighted doubly robust estimate).
pub(super) fn returns(horizon: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |steps| Some(steps * 2));
    let between = powers.take_while(|&steps| steps < horizon);
    std::iter::once(0).chain(between).chain([horizon]).collect()
}

/// Returns the weights, at least 0 and 1 in sum, that minimise xᵀ (Ω + b bᵀ) x.
///
/// Ω is the covariance of the returns over the bootstrap's replicates, which include the
/// model's uncertainty. The bias b of a return is its distance to the 50 % interval of
/// the weighted doubly robust estimate.
///
/// Both are computed for the differences to the recorded mean, which is what an estimate is used
/// for. Rewards on different kinds of link differ so much that a wrong model can still lie within
/// the interval of the candidate's reward; it does not lie within the interval of the difference to
/// the same flows' recorded reward.
pub(super) fn weights(answers: &Answers, replicates: &[Answers], term: usize) -> Vec<f64> {
    let differences = |answers: &Answers| -> Vec<f64> {
        let recorded = answers.recorded(Method::Magic, term);
        let returns = answers.returns[term].iter();
        returns.map(|value| value - recorded).collect()
    };
    let own = differences(answers);
    let replicates: Vec<_> = replicates.iter().map(differences).collect();
    let size = own.len();
    let mut last: Vec<_> = replicates.iter().map(|values| values[size - 1]).collect();
    let middle = super::interval(own[size - 1], &mut last, 0.5);
    let bias = own.iter().map(|value| {
        let low = (middle.low - value).max(0.0);
        let high = (value - middle.high).max(0.0);
        high - low
    });
    let bias: Vec<_> = bias.collect();
    let count = replicates.len() as f64;
    let mean = |i: usize| replicates.iter().map(|values| values[i]).sum::<f64>() / count;
    let means: Vec<_> = (0..size).map(mean).collect();
    let mut error = vec![0.0; size * size];
    for values in &replicates {
        for i in 0..size {
            for j in 0..size {
                error[i * size + j] += (values[i] - means[i]) * (values[j] - means[j]) / count;
            }
        }
    }
    for i in 0..size {
        for j in 0..size {
            error[i * size + j] += bias[i] * bias[j];
        }
    }
    minimise(&error, size)
}

/// Minimises xᵀ M x over the simplex, by moving weight between pairs until no pair improves.
fn minimise(matrix: &[f64], size: usize) -> Vec<f64> {
    let mut x = vec![1.0 / size as f64; size];
    let slope = |x: &[f64], i: usize| -> f64 {
        let row = &matrix[i * size..][..size];
        row.iter().zip(x).map(|(m, x)| m * x).sum()
    };
    for _ in 0..1_000 {
        let mut moved = 0.0_f64;
        for i in 0..size {
            for j in 0..i {
                let curvature =
                    matrix[i * size + i] + matrix[j * size + j] - 2.0 * matrix[i * size + j];
                let difference = slope(&x, j) - slope(&x, i);
                let step = match curvature > 0.0 {
                    true => difference / curvature,
                    false => difference.signum() * f64::from(u8::from(difference != 0.0)),
                };
                let step = step.clamp(-x[i], x[j]);
                x[i] += step;
                x[j] -= step;
                moved = moved.max(step.abs());
            }
        }
        if moved < 1e-12 {
            break;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_double_up_to_the_horizon() {
        assert_eq!(returns(1), [0, 1]);
        assert_eq!(returns(4), [0, 1, 2, 4]);
        assert_eq!(returns(10), [0, 1, 2, 4, 8, 10]);
    }

    #[test]
    fn independent_estimates_are_weighted_by_their_precision() {
        let weights = minimise(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 4.0], 3);
        for (found, expected) in weights.iter().zip([4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]) {
            assert!((found - expected).abs() < 1e-9, "{weights:?}");
        }
    }

    #[test]
    fn no_weight_is_negative() {
        // Without the bound the minimum would be at (1.5, −0.5).
        let weights = minimise(&[1.0, 2.0, 2.0, 5.0], 2);
        assert_eq!(weights, [1.0, 0.0]);
    }
}
