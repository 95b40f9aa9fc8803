//! Activation functions of whole matrices, forward and backward.

use super::{matrix::Matrix, real::Real, vectorised::vectorised};
use crate::model::Activation;

/// Adds the bias to as many columns as it has, and applies the activation function to them.
pub(super) fn activate<R: Real>(out: &mut Matrix<R>, bias: &[R], activation: Activation) {
    vectorised(
        #[inline(always)]
        || {
            for row in out.rows_mut() {
                match activation {
                    Activation::Relu => {
                        for (x, &b) in row.iter_mut().zip(bias) {
                            let sum = *x + b;
                            *x = if sum > R::ZERO { sum } else { R::ZERO };
                        }
                    }
                    Activation::Tanh => {
                        for (x, &b) in row.iter_mut().zip(bias) {
                            *x = (*x + b).tanh();
                        }
                    }
                }
            }
        },
    );
}

/// Turns the derivatives by a layer's outputs y into those by its pre-activations.
pub(super) fn through_activation<R: Real>(
    derivative: &mut Matrix<R>,
    y: &Matrix<R>,
    activation: Activation,
) {
    vectorised(
        #[inline(always)]
        || {
            for (row, y) in derivative.rows_mut().zip(y.rows()) {
                match activation {
                    Activation::Relu => {
                        for (d, &y) in row.iter_mut().zip(y) {
                            *d = if y > R::ZERO { *d } else { R::ZERO };
                        }
                    }
                    Activation::Tanh => {
                        for (d, &y) in row.iter_mut().zip(y) {
                            *d *= R::ONE - y * y;
                        }
                    }
                }
            }
        },
    );
}
