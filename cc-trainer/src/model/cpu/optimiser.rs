//! RMSprop on slices of the parameters.

use super::{real::Real, vectorised::vectorised};
use crate::model::RmsProp;

/// A step of [`RmsProp`] along a gradient g that is scaled first, as PyTorch's `RMSprop`, not
/// centred: v ← α v + (1 − α) g²;  u = g / (√(κ v) + ε);  m ← μ m + u;  θ ← θ − η m, with κ the
/// [correction](RmsProp::correction).
pub(super) struct RmsPropStep<R> {
    /// Factor of the gradient, which clips its norm.
    scale: R,
    decay: R,
    /// 1 − α, the weight of the new square.
    rest: R,
    correction: R,
    epsilon: R,
    momentum: R,
    learning_rate: R,
}

impl<R: Real> RmsPropStep<R> {
    pub(super) fn new(optimiser: &RmsProp, scale: f32) -> Self {
        let decay = R::from(optimiser.decay);
        Self {
            scale: R::from(scale),
            decay,
            rest: R::ONE - decay,
            correction: R::from(optimiser.correction),
            epsilon: R::from(optimiser.epsilon),
            momentum: R::from(optimiser.momentum),
            learning_rate: R::from(optimiser.learning_rate),
        }
    }

    /// Takes the step on the same part of all arrays. `velocity` is `None` without momentum.
    pub(super) fn apply(
        &self,
        gradient: &[R],
        parameters: &mut [R],
        mean_square: &mut [R],
        velocity: Option<&mut [R]>,
    ) {
        let len = gradient.len();
        let (parameters, mean_square) = (&mut parameters[..len], &mut mean_square[..len]);
        match velocity {
            None => vectorised(
                #[inline(always)]
                || {
                    for i in 0..len {
                        let direction = self.direction(gradient[i], &mut mean_square[i]);
                        parameters[i] += -self.learning_rate * direction;
                    }
                },
            ),
            Some(velocity) => {
                let velocity = &mut velocity[..len];
                vectorised(
                    #[inline(always)]
                    || {
                        for i in 0..len {
                            let direction = self.direction(gradient[i], &mut mean_square[i]);
                            velocity[i] = self.momentum * velocity[i] + direction;
                            parameters[i] += -self.learning_rate * velocity[i];
                        }
                    },
                );
            }
        }
    }

    #[inline(always)]
    fn direction(&self, gradient: R, mean_square: &mut R) -> R {
        let gradient = gradient * self.scale;
        *mean_square = self.decay * *mean_square + self.rest * gradient * gradient;
        gradient / ((self.correction * *mean_square).sqrt() + self.epsilon)
    }
}

/// The sum of squares in f64, by 16 partial sums.
pub(super) fn sum_of_squares<R: Real>(slice: &[R]) -> f64 {
    let mut sums = [0.0; 16];
    let (whole, rest) = slice.as_chunks::<16>();
    vectorised(
        #[inline(always)]
        || {
            for chunk in whole {
                for (sum, &x) in sums.iter_mut().zip(chunk) {
                    let x: f64 = x.into();
                    *sum += x * x;
                }
            }
        },
    );
    let rest = rest.iter().map(|&x| {
        let x: f64 = x.into();
        x * x
    });
    sums.into_iter().chain(rest).sum()
}
