//! Discounting over decisions that are in force for different times.
//!
//! A flow is asked for a decision when its window ends, which takes longer where ACKs are sparse,
//! and far longer where none comes. Decisions therefore form a semi-Markov decision process: γ and
//! λ are factors per unit of *time*, and rewards are rates. The unit is the interval between two
//! decisions that an environment is meant to have (a policy's window): a decision in force for d
//! intervals is discounted by γ^d, and a reward of rate r earns r (1 − γ^d)/(1 − γ), which is what
//! d decisions of one interval each would earn. With d = 1 throughout, this is the ordinary
//! discounting per decision, to the bit.
//!
//! S. Bradtke, M. Duff, "Reinforcement Learning Methods for Continuous-Time Markov Decision
//! Problems" (NIPS 1994); R. Sutton, D. Precup, S. Singh, "Between MDPs and semi-MDPs" (Artificial
//! Intelligence 112, 1999).

/// A factor per interval, γ or λ, over a duration in intervals: γ^d.
pub fn over(factor: f64, intervals: f64) -> f64 {
    if intervals == 1.0 {
        return factor;
    }
    factor.powf(intervals)
}

/// The discounted length of a duration in intervals, (1 − γ^d)/(1 − γ): what a rate of 1 earns in
/// it, seen from its beginning. It is d itself for γ = 1.
pub fn discounted_length(discount: f64, intervals: f64) -> f64 {
    if intervals == 1.0 {
        return 1.0;
    }
    if discount == 1.0 {
        return intervals;
    }
    (1.0 - discount.powf(intervals)) / (1.0 - discount)
}

/// The rate of a reward that was earned in a duration; 0 for a duration of 0.
pub fn rate(reward: f32, intervals: f32) -> f32 {
    if intervals > 0.0 {
        reward / intervals
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A decision that is in force for d intervals is worth as much as two that follow each
        /// other and share the time, whatever comes after.
        #[test]
        fn a_decision_is_worth_the_sum_of_its_parts(
            discount in 0.0..=1.0f64,
            parts in (0.0..8.0f64, 0.0..8.0f64),
            rate in -5.0..5.0f64,
            after in -50.0..50.0f64,
        ) {
            let worth = |d: f64, after: f64| {
                rate * discounted_length(discount, d) + over(discount, d) * after
            };
            let whole = worth(parts.0 + parts.1, after);
            let split = worth(parts.0, worth(parts.1, after));
            prop_assert!((whole - split).abs() < 1e-9, "{} and {}", whole, split);
        }

        #[test]
        fn one_interval_is_one_decision(discount in 0.0..=1.0f64, reward in -9.0..9.0f32) {
            prop_assert_eq!(over(discount, 1.0), discount);
            prop_assert_eq!(discounted_length(discount, 1.0), 1.0);
            prop_assert_eq!(rate(reward, 1.0), reward);
            prop_assert_eq!(over(discount, 0.0), 1.0);
            prop_assert_eq!(discounted_length(discount, 0.0), 0.0);
        }
    }
}
