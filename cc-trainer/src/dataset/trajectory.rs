//! Trajectories: the decisions of a flow, each with its outcome.

use std::sync::Arc;

use cc_core::{
    interface::Interface,
    reward::Terms,
    rows::{Replay, Row},
};

use super::FlowOrigin;

/// Names of the reward's terms, in the order of [`StepOutcome::terms`].
pub const TERMS: [&str; 3] = ["throughput_mbps", "delay_ms", "loss_mb"];

/// Consecutive decisions of one flow under one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// Identifier of the flow in its recordings.
    pub flow: u64,
    /// Where and when the flow was recorded.
    pub origin: FlowOrigin,
    /// Identifier of the policy that took the decisions.
    pub policy: Arc<str>,
    /// The decisions, in order; never empty.
    pub steps: Vec<TrajectoryStep>,
    /// Whether the flow closed after the last decision.
    pub ended: bool,
}

/// One decision with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct TrajectoryStep {
    /// Number of the recorded row within the flow.
    pub sequence: u32,
    /// End of the decision's window, ns since 1970 UTC.
    pub time_ns: i64,
    /// The observation that the policy saw.
    pub observation: Vec<f32>,
    /// Reward of the decision's own window, which is part of the policy's input.
    pub observed_reward: f32,
    /// Throughput, delay and loss of that window.
    pub observed_terms: Terms,
    /// Index of the action that was taken.
    pub action: u8,
    /// Probability of the action under the behaviour policy; `None` where it is
    /// unknown, as for observed flows.
    pub probability: Option<f32>,
    /// Probabilities of all actions under the behaviour policy; `None` where they are unknown.
    pub probabilities: Option<Vec<f32>>,
    /// The cwnd that the action was applied to, segments.
    pub base_cwnd: u32,
    /// The cwnd that the action set, segments.
    pub cwnd: u32,
    /// What followed; `None` where the recording does not contain it, which is possible
    /// for the last step only.
    pub outcome: Option<StepOutcome>,
}

/// What followed a decision, up to and including the next decision's window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Number of windows that ended, the next decision's own included. It is more than one
    /// where windows have no decision.
    pub windows: u32,
    /// Time from the end of the decision's window to the end of the last of them, s.
    pub seconds: f64,
    /// Means over these windows: throughput in Mbit/s, delay in ms, loss in MB per window.
    pub terms: [f64; 3],
    /// Sum of the windows' rewards, which is how the trainer counts reward in simulated networks.
    pub reward: f32,
}

impl StepOutcome {
    fn add(&mut self, row: &Row, seconds: f64) {
        self.windows += 1;
        self.seconds = seconds;
        self.reward += row.reward;
        for (mean, value) in self.terms.iter_mut().zip(values(&row.terms)) {
            *mean += (value - *mean) / f64::from(self.windows);
        }
    }
}

impl Trajectory {
    /// Returns the discounted sum of rewards from each step to the last whose outcome is known.
    pub fn values(&self, discount: f64) -> Vec<f64> {
        let mut values = vec![0.0; self.steps.len()];
        let mut after = 0.0;
        for (value, step) in values.iter_mut().zip(&self.steps).rev() {
            let reward = step
                .outcome
                .map_or(0.0, |outcome| f64::from(outcome.reward));
            after = reward + discount * after;
            *value = after;
        }
        values
    }
}

/// Assembles the trajectories of one flow of this origin from its rows. Each row comes in order with
/// the end of its window (ns since 1970) and the identifier of its policy.
///
/// A new trajectory starts where the policy was replaced and where rows are missing. After missing
/// rows, and when the first rows are missing, the past decisions in the observation are unknown;
/// decisions are left out until the observation is complete again.
pub(super) fn assemble(
    interface: &Interface,
    origin: FlowOrigin,
    rows: impl Iterator<Item = (Row, i64, Arc<str>)>,
) -> Vec<Trajectory> {
    let mut all = Vec::new();
    let mut current: Option<Trajectory> = None;
    let mut replay = Replay::new();
    let mut expected = 0;
    // Number of decisions to leave out until the observation's past decisions are known.
    let mut unknown = 0;
    let mut decided_at = 0;
    for (row, time_ns, policy) in rows {
        if row.sequence != expected {
            unknown = interface.history;
            if let Some(mut cut) = current.take() {
                // Part of what followed the last decision may be in the missing rows.
                if let Some(last) = cut.steps.last_mut() {
                    last.outcome = None;
                }
                all.push(cut);
            }
        }
        expected = row.sequence.wrapping_add(1);
        let observation = replay.next(interface, &row);
        if let Some(last) = current.as_mut().and_then(|own| own.steps.last_mut()) {
            let seconds = (time_ns - decided_at) as f64 / 1e9;
            last.outcome.get_or_insert_default().add(&row, seconds);
        }
        if current.as_ref().is_some_and(|own| own.policy != policy) {
            all.extend(current.take());
        }
        let trajectory = current.get_or_insert_with(|| Trajectory {
            flow: row.flow,
            origin,
            policy,
            steps: Vec::new(),
            ended: false,
        });
        trajectory.ended = row.end;
        let Some(decision) = row.decision else {
            continue;
        };
        let known = unknown == 0;
        unknown = unknown.saturating_sub(1);
        let Some(action) = decision.action.filter(|_| known) else {
            continue;
        };
        decided_at = time_ns;
        trajectory.steps.push(TrajectoryStep {
            sequence: row.sequence,
            time_ns,
            observation,
            observed_reward: row.reward,
            observed_terms: row.terms,
            action,
            probability: decision.probability,
            probabilities: decision.probabilities,
            base_cwnd: decision.base_cwnd,
            cwnd: decision.cwnd,
            outcome: None,
        });
    }
    all.extend(current);
    all.retain(|trajectory| !trajectory.steps.is_empty());
    all
}

/// Returns the terms in the order and units of [`TERMS`].
fn values(terms: &Terms) -> [f64; 3] {
    // MB/s to Mbit/s.
    [terms.throughput * 8.0, terms.delay, terms.loss]
}
