//! The mean of the network's parameters over the last updates.
//!
//! An update leaves the parameters where its batch has pushed them, and the most likely actions
//! change with every one. Their mean over many updates lies nearer to what the updates move about
//! (Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", SIAM Journal on
//! Control and Optimization 30(4), 1992). It acts nowhere in training.

/// A mean of parameters that forgets exponentially; of none before the first update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterAverage(Vec<f32>);

impl ParameterAverage {
    /// The mean that was kept in a checkpoint; empty for none.
    pub fn new(mean: Vec<f32>) -> Self {
        Self(mean)
    }

    /// The mean, in the order of the parameters; empty for none.
    pub fn parameters(&self) -> &[f32] {
        &self.0
    }

    /// Takes in the parameters after the `update`-th update, from 1. Each counts 1/`over`, and as
    /// long as there are fewer of them all count alike.
    pub(super) fn learn(&mut self, parameters: &[f32], update: u64, over: u64) {
        if self.0.is_empty() {
            self.0.extend_from_slice(parameters);
            return;
        }
        let weight = 1.0 / update.clamp(1, over.max(1)) as f32;
        for (mean, &new) in self.0.iter_mut().zip(parameters) {
            *mean += (new - *mean) * weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The plain mean at first, then one in which each update counts 1/over.
        #[test]
        fn it_is_the_weighted_mean(
            values in prop::collection::vec(-10.0..10.0f32, 1..60),
            over in 1..20u64,
        ) {
            let mut average = ParameterAverage::default();
            for (&value, update) in values.iter().zip(1..) {
                average.learn(&[value, -value], update, over);
            }
            let first = values.len().min(over as usize);
            let start = values[..first].iter().map(|&x| f64::from(x)).sum::<f64>() / first as f64;
            let keep = 1.0 - 1.0 / over as f64;
            let mean = values[first..]
                .iter()
                .fold(start, |mean, &new| keep * mean + (1.0 - keep) * f64::from(new));
            prop_assert!((f64::from(average.parameters()[0]) - mean).abs() < 1e-4);
            prop_assert_eq!(average.parameters()[0], -average.parameters()[1]);
        }
    }
}
