//! A flow's decisions with what each of them led to.

use std::sync::Arc;

use cc_core::{
    interface::Interface,
    reward::Terms,
    rows::{Replay, Row},
};

/// Names of the reward's terms, in the order of [`Outcome::terms`].
pub const TERMS: [&str; 3] = ["throughput_mbps", "delay_ms", "loss_mb"];

/// Consecutive decisions of one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// The flow.
    pub flow: u64,
    /// Which policy decided.
    pub policy: Arc<str>,
    /// Its decisions, in order.
    pub steps: Vec<Step>,
    /// The flow closed after the last of them.
    pub ended: bool,
}

/// A decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Number of its row in the flow.
    pub sequence: u32,
    /// When its window ended, ns since 1970 UTC.
    pub time_ns: i64,
    /// What the policy saw.
    pub observation: Vec<f32>,
    /// The reward of its own window, which the policy saw, too.
    pub observed_reward: f32,
    /// What that window was judged by.
    pub observed_terms: Terms,
    /// The action taken.
    pub action: u8,
    /// Its probability under the policy that took it; none where nobody knows it, as of observed flows.
    pub probability: Option<f32>,
    /// The probabilities of all actions.
    pub probabilities: Option<Vec<f32>>,
    /// The window, segments, that the action was applied to.
    pub base_cwnd: u32,
    /// The window, segments, that was decided.
    pub cwnd: u32,
    /// What it led to; none where the recording does not say, at most of the last step.
    pub outcome: Option<Outcome>,
}

/// What followed a decision, until the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Windows that ended, the next decision's own included. More than one where windows had no decision.
    pub windows: u32,
    /// From the decision's window to the end of the last of them, s.
    pub seconds: f64,
    /// Means over them: throughput, Mbit/s; delay, ms; lost, MB a window.
    pub terms: [f64; 3],
    /// Sum of their rewards, as the trainer counts them in simulated networks.
    pub reward: f32,
}

impl Outcome {
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
    /// Discounted sums of the rewards from each step to the last whose outcome is known.
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

/// The trajectories of a flow, from its rows in order, each with the time of its end, ns since 1970, and who decided. There is
/// more than one where the policy was replaced, and where rows are missing. After a gap, and where the first row is, nobody knows what the observation's past decisions were:
/// the decisions until it is all known again are left out.
pub(super) fn assemble(
    environment: &Interface,
    rows: impl Iterator<Item = (Row, i64, Arc<str>)>,
) -> Vec<Trajectory> {
    let mut all = Vec::new();
    let mut current: Option<Trajectory> = None;
    let mut replay = Replay::new();
    let mut expected = 0;
    // Decisions whose observations would hold others that are not known.
    let mut unknown = 0;
    let mut decided_at = 0;
    for (row, time_ns, policy) in rows {
        if row.sequence != expected {
            unknown = environment.history;
            if let Some(mut cut) = current.take() {
                // What the last one led to may be in the rows that are missing.
                if let Some(last) = cut.steps.last_mut() {
                    last.outcome = None;
                }
                all.push(cut);
            }
        }
        expected = row.sequence.wrapping_add(1);
        let observation = replay.next(environment, &row);
        if let Some(last) = current.as_mut().and_then(|own| own.steps.last_mut()) {
            let seconds = (time_ns - decided_at) as f64 / 1e9;
            last.outcome.get_or_insert_default().add(&row, seconds);
        }
        if current.as_ref().is_some_and(|own| own.policy != policy) {
            all.extend(current.take());
        }
        let trajectory = current.get_or_insert_with(|| Trajectory {
            flow: row.flow,
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
        trajectory.steps.push(Step {
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

fn values(terms: &Terms) -> [f64; 3] {
    // MB/s to Mbit/s.
    [terms.throughput * 8.0, terms.delay, terms.loss]
}
