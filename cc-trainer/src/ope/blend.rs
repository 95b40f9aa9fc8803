//! MAGIC's blend of j-step returns, with the weights of the smallest estimated mean squared error
//! (Thomas and Brunskill, section 7).

use super::{Method, interval::Kind, sums::Answers};

/// Sweeps of [`minimise`] for the estimate itself, and for a replicate, which begins with the
/// weights of that.
const SWEEPS: usize = 2_000;
const SWEEPS_AGAIN: usize = 50;

/// Returns the lengths j of the j-step returns that are blended: 0 (the model alone), 1, 2, 4, 8 …
/// and the horizon (the weighted doubly robust estimate).
pub(super) fn returns(horizon: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |steps| Some(steps * 2));
    let between = powers.take_while(|&steps| steps < horizon);
    std::iter::once(0).chain(between).chain([horizon]).collect()
}

/// What the weights of one reward term's returns are computed from: those that are at least 0, 1 in
/// sum, and minimise xᵀ (Ω + b bᵀ) x.
///
/// Ω is the covariance of the returns over the bootstrap's replicates, which include the
/// model's uncertainty. The bias b of a return is its distance to the 50 % interval of
/// the weighted doubly robust estimate.
///
/// Both are computed for the differences to the recorded mean, which is what an estimate is used
/// for. Rewards on different kinds of link differ so much that a wrong model can still lie within
/// the interval of the candidate's reward; it does not lie within the interval of the difference to
/// the same flows' recorded reward.
pub(super) struct Blend {
    term: usize,
    /// `[J][J]`: Ω, the covariance of the returns.
    covariance: Vec<f64>,
    /// Distances from the weighted doubly robust estimate to the ends of its 50 % interval.
    below: f64,
    above: f64,
    /// The weights of the estimate itself.
    pub(super) weights: Vec<f64>,
}

impl Blend {
    pub(super) fn new(answers: &Answers, replicates: &[Answers], term: usize) -> Self {
        let own = differences(answers, term);
        let replicates: Vec<_> = replicates.iter().map(|r| differences(r, term)).collect();
        let size = own.len();
        let mut last: Vec<_> = replicates.iter().map(|values| values[size - 1]).collect();
        let middle = Kind::Percentile { tail: 0.25 }.around(own[size - 1], &mut last);
        let count = replicates.len() as f64;
        let mean = |i: usize| replicates.iter().map(|values| values[i]).sum::<f64>() / count;
        let means: Vec<_> = (0..size).map(mean).collect();
        let mut covariance = vec![0.0; size * size];
        for values in &replicates {
            for i in 0..size {
                for j in 0..size {
                    covariance[i * size + j] +=
                        (values[i] - means[i]) * (values[j] - means[j]) / count;
                }
            }
        }
        let mut blend = Self {
            term,
            covariance,
            below: middle.value - middle.low,
            above: middle.high - middle.value,
            weights: vec![1.0 / size as f64; size],
        };
        blend.weights = blend.minimised(&own, SWEEPS);
        blend
    }

    /// Returns the weights for a replicate: those of an estimate with the same Ω and the same width
    /// of the 50 % interval, but with the replicate's distances between the returns. That the
    /// weights depend on the data is then part of the interval.
    pub(super) fn weights_of(&self, replicate: &Answers) -> Vec<f64> {
        self.minimised(&differences(replicate, self.term), SWEEPS_AGAIN)
    }

    fn minimised(&self, returns: &[f64], sweeps: usize) -> Vec<f64> {
        let size = returns.len();
        let whole = returns[size - 1];
        let bias = returns.iter().map(|value| {
            let low = (whole - self.below - value).max(0.0);
            let high = (value - whole - self.above).max(0.0);
            high - low
        });
        let bias: Vec<_> = bias.collect();
        let mut error = self.covariance.clone();
        for i in 0..size {
            for j in 0..size {
                error[i * size + j] += bias[i] * bias[j];
            }
        }
        minimise(&error, self.weights.clone(), sweeps)
    }
}

/// Returns the differences of the j-step returns to the recorded mean.
fn differences(answers: &Answers, term: usize) -> Vec<f64> {
    let recorded = answers.recorded(Method::Magic, term);
    let returns = answers.returns(term).iter();
    returns.map(|value| value - recorded).collect()
}

/// Minimises xᵀ M x over the simplex, from a point in it, by moving weight between pairs until no
/// pair improves.
fn minimise(matrix: &[f64], mut x: Vec<f64>, sweeps: usize) -> Vec<f64> {
    let size = x.len();
    // M x, half the gradient.
    let mut slope: Vec<f64> = matrix
        .chunks_exact(size)
        .map(|row| row.iter().zip(&x).map(|(m, x)| m * x).sum())
        .collect();
    for _ in 0..sweeps {
        let mut moved = 0.0_f64;
        for i in 0..size {
            for j in 0..i {
                let curvature =
                    matrix[i * size + i] + matrix[j * size + j] - 2.0 * matrix[i * size + j];
                let difference = slope[j] - slope[i];
                let step = match curvature > 0.0 {
                    true => difference / curvature,
                    false => difference.signum() * f64::from(u8::from(difference != 0.0)),
                };
                let step = step.clamp(-x[i], x[j]);
                if step == 0.0 {
                    continue;
                }
                x[i] += step;
                x[j] -= step;
                for (k, slope) in slope.iter_mut().enumerate() {
                    *slope += step * (matrix[k * size + i] - matrix[k * size + j]);
                }
                moved = moved.max(step.abs());
            }
        }
        if moved < 1e-9 {
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
        let matrix = [1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 4.0];
        let expected = [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0];
        for start in [vec![1.0 / 3.0; 3], vec![0.0, 0.0, 1.0]] {
            let weights = minimise(&matrix, start, SWEEPS);
            for (found, expected) in weights.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-8, "{weights:?}");
            }
        }
    }

    #[test]
    fn no_weight_is_negative() {
        // Without the bound the minimum would be at (1.5, −0.5).
        let weights = minimise(&[1.0, 2.0, 2.0, 5.0], vec![0.5; 2], SWEEPS);
        assert_eq!(weights, [1.0, 0.0]);
    }
}
