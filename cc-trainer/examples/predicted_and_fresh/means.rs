//! Means over flows and their differences, with intervals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Standard deviations from a mean to the end of its 95 % interval.
const DEVIATIONS: f64 = 1.96;

/// What one flow earned, as sums over time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// Identifier of the flow in its recording.
    pub(crate) id: u64,
    /// Rewards times the seconds in which they were earned.
    pub(crate) reward: f64,
    /// The number of these seconds.
    pub(crate) seconds: f64,
}

/// A mean over flows with its 95 % interval.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Mean {
    /// The mean over the flows.
    pub(crate) value: f64,
    /// The lower end of its interval.
    pub(crate) low: f64,
    /// The upper end of its interval.
    pub(crate) high: f64,
}

impl Mean {
    fn new(value: f64, error: f64) -> Self {
        Self {
            value,
            low: value - DEVIATIONS * error,
            high: value + DEVIATIONS * error,
        }
    }

    /// The standard error behind the interval.
    pub(crate) fn error(&self) -> f64 {
        0.5 * (self.high - self.low) / DEVIATIONS
    }

    /// Whether the interval contains a value.
    pub(crate) fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether two independent means differ by less than 1.96 errors of their difference.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        (self.value - other.value).abs() <= DEVIATIONS * self.error().hypot(other.error())
    }
}

/// The ratio of sums, and what each flow contributes to its error (a linearisation).
fn ratio(flows: &[Flow]) -> (f64, BTreeMap<u64, f64>) {
    let sum = |of: fn(&Flow) -> f64| flows.iter().map(of).sum::<f64>();
    let seconds = sum(|flow| flow.seconds);
    let value = sum(|flow| flow.reward) / seconds;
    let own = |flow: &Flow| (flow.id, (flow.reward - value * flow.seconds) / seconds);
    (value, flows.iter().map(own).collect())
}

/// The error of a sum of independent contributions.
fn error(contributions: impl Iterator<Item = f64>) -> f64 {
    contributions.map(|own| own * own).sum::<f64>().sqrt()
}

/// What flows earned per window.
pub(crate) fn mean(flows: &[Flow]) -> Mean {
    let (value, own) = ratio(flows);
    Mean::new(value, error(own.into_values()))
}

/// The difference of what two sets of flows earned. Flows of the same run are paired.
pub(crate) fn difference(a: &[Flow], b: &[Flow]) -> Mean {
    let (a, mut contributions) = ratio(a);
    let (b, others) = ratio(b);
    for (id, other) in others {
        *contributions.entry(id).or_default() -= other;
    }
    Mean::new(a - b, error(contributions.into_values()))
}
