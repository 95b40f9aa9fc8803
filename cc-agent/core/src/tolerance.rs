//! How much worse than the policy in service another one may be: what a canary withdraws for, and
//! what off-policy evaluation calls worse.
//!
//! A metric's tolerance is on a scale of *harm*, on which more is worse: delays, losses, timeouts
//! and silence as they are, throughput by its negated logarithm, the objective negated.

use serde::{Deserialize, Serialize};

use crate::objective::Objective;

/// The harm in excess of the other policy's mean that is tolerated: `part` × mean + `amount`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Relative part, as a fraction of the mean of the policy in service.
    pub part: f64,
    /// Absolute part, in the metric's unit.
    pub amount: f64,
}

impl Tolerance {
    /// A throughput that is smaller by this part, on the scale of its logarithm.
    pub fn of_throughput(part: f64) -> Self {
        Self {
            part: 0.0,
            amount: -(1.0 - part).ln(),
        }
    }

    /// What a throughput that is smaller by `part` costs of the objective.
    pub fn of_objective(part: f64, objective: &Objective) -> Self {
        Self {
            part: 0.0,
            amount: objective.throughput * Self::of_throughput(part).amount,
        }
    }

    /// The largest harm that is tolerated where the policy in service has `harm`.
    pub fn allowed(self, harm: f64) -> f64 {
        harm * (1.0 + self.part) + self.amount
    }
}

/// The tolerances of all metrics: one definition for canaries and for off-policy evaluation.
///
/// A canary counts the timeouts of its flows, a recording the time in which a flow waited for an
/// ACK after the end of a window ("silence"). Both are stalls, and each has a tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tolerances {
    /// The part of the throughput that may be missing; the objective may be smaller by what that
    /// costs.
    pub throughput: f64,
    /// For the mean queueing delay, ms.
    pub delay: Tolerance,
    /// For the loss: lost bytes over lost and acknowledged bytes.
    pub loss: Tolerance,
    /// For the retransmission timeouts per minute of a flow.
    pub timeouts: Tolerance,
    /// For the share of the time in which a flow waited for an ACK after the end of a window.
    pub silence: Tolerance,
}

impl Default for Tolerances {
    fn default() -> Self {
        let quarter = |amount| Tolerance { part: 0.25, amount };
        Self {
            throughput: 0.1,
            delay: quarter(5.0),
            loss: quarter(0.005),
            timeouts: quarter(0.5),
            silence: quarter(0.005),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_relative_and_absolute() {
        let delay = Tolerances::default().delay;
        assert_eq!(delay.allowed(40.0), 55.0);
        assert_eq!(delay.allowed(0.0), 5.0);
        let throughput = Tolerance::of_throughput(0.1);
        let allowed = (-throughput.allowed(-(20.0_f64.ln()))).exp();
        assert!((allowed - 18.0).abs() < 1e-9, "{allowed}");
        let objective = Objective {
            throughput: 2.0,
            ..Objective::default()
        };
        let costs = Tolerance::of_objective(0.1, &objective).amount;
        assert!((costs - 2.0 * throughput.amount).abs() < 1e-12);
    }
}
