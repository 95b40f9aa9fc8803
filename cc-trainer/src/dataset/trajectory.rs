//! Trajectories: the decisions of a flow, each with its outcome.
//!
//! The outcome of a decision is what the flow measured while the decision was *in force*: from the
//! ACK with which the datapath took it up, until the datapath took up the next one. Rows tell both
//! times ([`WindowRecord::decision`]). Time in which no decision was in force is nobody's outcome:
//! the trajectory ends before it.

use std::sync::Arc;

use cc_core::{
    interface::Interface,
    objective::{Measured, Objective, waited_ns},
    reward::Terms,
    rows::{NO_MODE, Replay, Row},
};
use cc_ebpf::{Decision, Mode, WindowRecord};

use super::FlowOrigin;

/// Names of the terms of an outcome, in the order of [`StepOutcome::terms`].
pub const TERMS: [&str; 4] = ["throughput_mbps", "delay_ms", "loss", "silence"];

/// Most windows that may end while one decision is in force. A flow is usually asked once a window;
/// after more windows than this without a new decision the policy or its agent hung, and what
/// follows says little about the decision.
pub const MOST_WINDOWS: u32 = 5;

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
    /// When the recording of these decisions would have ended at the latest, whatever was decided,
    /// ns since 1970 UTC: when the flow closed, its agent stopped recording, or another policy took
    /// over.
    pub until_ns: i64,
    /// Whether they go on until then, rather than to a gap in the recording or to time in which no
    /// decision was in force.
    pub reached: bool,
    /// What an application measured of the flow, in the order of [`Joined::names`](super::Joined);
    /// `None` where nothing was joined, or not about this flow.
    pub figures: Option<Arc<[f64]>>,
}

/// One decision with its outcome.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// What set the cwnd at the end of that window, a [`Mode`]; [`NO_MODE`] for observed flows.
    pub mode: u32,
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
    /// Delay from the nominal end of the decision's window to its publication, ns; `None` for
    /// observed flows.
    pub delay_ns: Option<u64>,
    /// Time from the end of the decision's window until the datapath took it up, ns; `None` where
    /// it never did, or the recording does not tell.
    pub taken_after_ns: Option<u64>,
    /// What followed; `None` where it is not known, which is possible for the last step only.
    pub outcome: Option<StepOutcome>,
}

/// What a flow measured while a decision was in force. All figures but the first two are rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// Number of windows that ended. It is more than one where windows have no decision, and 0
    /// where the next decision took the place of this one before any ended.
    pub windows: u32,
    /// How long the decision was in force, s, pauses of the application left out.
    pub seconds: f64,
    /// In the order of [`TERMS`]: acknowledged payload over the time, in Mbit/s; mean queueing
    /// delay, ms; the share of the bytes that were lost; and the share of the time in which the
    /// flow waited for an ACK after the end of a window.
    pub terms: [f64; 4],
    /// The [`Objective`] of this time: what was earned per interval between two decisions, which is
    /// a window.
    pub reward: f32,
    /// The measurements behind these figures.
    pub measured: Measured,
}

impl StepOutcome {
    /// The outcome of a span with this many windows, of which the flow waited `waited_ns` for an
    /// ACK. This is where a reward is made of what was measured.
    fn of(objective: &Objective, windows: u32, measured: Measured, waited_ns: u64) -> Self {
        if measured.ns == 0 {
            return Self::default();
        }
        Self {
            windows,
            seconds: measured.ns as f64 / 1e9,
            terms: [
                measured.throughput_mbps(),
                measured.delay_ms(),
                measured.loss(),
                waited_ns as f64 / measured.ns as f64,
            ],
            reward: objective.value(&measured) as f32,
            measured,
        }
    }

    /// How long the decision was in force, in windows of this interface.
    pub fn intervals(&self, interface: &Interface) -> f64 {
        self.seconds * 1e3 / f64::from(interface.window_ms)
    }
}

impl Trajectory {
    /// Returns the discounted sum of rewards from each step to the last whose outcome is known.
    /// `discount` is per window of this interface ([`crate::discount`]).
    pub fn values(&self, discount: f64, interface: &Interface) -> Vec<f64> {
        let mut values = vec![0.0; self.steps.len()];
        let mut after = 0.0;
        for (value, step) in values.iter_mut().zip(&self.steps).rev() {
            if let Some(outcome) = step.outcome {
                let intervals = outcome.intervals(interface);
                let length = crate::discount::discounted_length(discount, intervals);
                after = f64::from(outcome.reward) * length
                    + crate::discount::over(discount, intervals) * after;
            }
            *value = after;
        }
        values
    }
}

/// Assembles the trajectories of one flow from its rows. Each row comes in order with the end of
/// its window (ns since 1970) and the identifier of its policy.
///
/// A new trajectory starts in each of these places:
///
/// - where the policy was replaced;
/// - where rows or windows are missing. After missing rows, and when the first rows are missing,
///   the past decisions in the observation are unknown; decisions are left out until the
///   observation is complete again;
/// - after a window in which no decision was in force: the flow was on its fallback, or its
///   application limited it;
/// - after more than [`MOST_WINDOWS`] windows under one decision.
pub(super) fn assemble(
    interface: &Interface,
    rows: impl Iterator<Item = (Row, i64, Arc<str>)>,
) -> Vec<Trajectory> {
    let mut assembly = Assembly::new(interface);
    for (row, time_ns, policy) in rows {
        assembly.add(interface, row, time_ns, policy);
    }
    assembly.trajectories()
}

/// A decision of which is known what followed, or that it cannot be known.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// The decision; its outcome is `None` where it cannot be known.
    pub step: TrajectoryStep,
    /// Identifier of the policy that took it.
    pub policy: Arc<str>,
    /// Whether it ends what the decision that was settled before it led to, whose outcome is known.
    /// A trajectory begins where it does not.
    pub follows: bool,
}

/// The decisions of a flow, as far as its rows have been read.
pub(super) struct Assembly {
    objective: Objective,
    replay: Replay,
    flow: u64,
    decisions: Vec<FlowDecision>,
    /// Index of the decision in force; `None` while none is, or an unknown one.
    in_force: Option<usize>,
    /// Index of the first decision that the datapath may still take up.
    open: usize,
    /// The window of the row before.
    before: Option<WindowRecord>,
    /// Number of the next row.
    expected: u32,
    /// Number of decisions to leave out until the observation's past decisions and windows are
    /// known.
    unknown: usize,
    /// Whether the flow closed with the newest row.
    closed: bool,
    /// Whether the last decision was in force no more, or unknown, at some later time.
    broken: bool,
    /// Whether the outcome of the decision that was settled last is known.
    follows: bool,
}

/// A decision whose outcome is still being gathered.
struct FlowDecision {
    step: TrajectoryStep,
    policy: Arc<str>,
    /// Number of the window that it answers.
    window: u32,
    /// End of that window on the datapath's clock, ns.
    window_end_ns: u64,
    progress: Progress,
    windows: u32,
    measured: Measured,
    waited_ns: u64,
}

/// Whether the outcome of a decision can be known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The datapath has not taken the decision up.
    Open,
    /// It has: what was measured from then on is the outcome.
    Taken,
    /// What was measured is not, or not only, the decision's doing.
    Lost,
}

impl Assembly {
    pub(super) fn new(interface: &Interface) -> Self {
        Self {
            objective: interface.objective(),
            replay: Replay::new(),
            flow: 0,
            decisions: Vec::new(),
            in_force: None,
            open: 0,
            before: None,
            expected: 0,
            unknown: 0,
            closed: false,
            broken: false,
            follows: false,
        }
    }

    /// Adds the flow's next row. `interface` must always be the same.
    pub(super) fn add(&mut self, interface: &Interface, row: Row, time_ns: i64, policy: Arc<str>) {
        self.flow = row.flow;
        if row.sequence != self.expected {
            self.unknown = interface.history.max(interface.series);
            self.lose();
        } else if let Some(before) = &self.before
            && row.window.index != before.index.wrapping_add(1)
        {
            self.lose();
        }
        self.expected = row.sequence.wrapping_add(1);
        let observation = self.replay.next(interface, &row);
        self.measure(&row.window);
        self.before = Some(row.window);
        self.closed = row.end;
        let Some(decision) = row.decision else {
            return;
        };
        let known = self.unknown == 0;
        self.unknown = self.unknown.saturating_sub(1);
        let Some(action) = decision.action.filter(|_| known) else {
            return;
        };
        self.broken = false;
        self.decisions.push(FlowDecision {
            step: TrajectoryStep {
                sequence: row.sequence,
                time_ns,
                observation,
                observed_reward: row.reward,
                observed_terms: row.terms,
                mode: row.window.mode,
                action,
                probability: decision.probability,
                probabilities: decision.probabilities,
                base_cwnd: decision.base_cwnd,
                cwnd: decision.cwnd,
                delay_ns: decision.delay_ns,
                taken_after_ns: None,
                outcome: None,
            },
            policy,
            window: row.window.index,
            window_end_ns: row.window.header.time_ns,
            progress: Progress::Open,
            windows: 0,
            measured: Measured::default(),
            waited_ns: 0,
        });
    }

    /// Adds a window to the outcome of the decision that was in force in most of it.
    fn measure(&mut self, window: &WindowRecord) {
        // The wait for the window's first ACK is over before a decision can be taken up.
        if let Some(before) = &self.before {
            let waited = waited_ns(before, window);
            if let Some(former) = self.in_force {
                let former = &mut self.decisions[former];
                former.measured += Measured::silence(waited);
                former.waited_ns += waited;
            }
        }
        let former = self.in_force;
        let taken_ns = self.take_up(window);
        if !is_ruled(window) {
            self.cut();
            return;
        }
        let length = window.header.time_ns.saturating_sub(window.start_ns);
        let is_late = taken_ns.is_some_and(|taken_ns| {
            let into = taken_ns.saturating_sub(window.start_ns);
            into > length / 2
        });
        let Some(ruler) = (if is_late { former } else { self.in_force }) else {
            return;
        };
        let decision = &mut self.decisions[ruler];
        decision.measured += Measured::of(window);
        decision.windows += 1;
        if decision.windows > MOST_WINDOWS {
            decision.progress = Progress::Lost;
            if self.in_force == Some(ruler) {
                self.in_force = None;
            }
        }
    }

    /// Finds the decision that was in force at the window's end. Returns when it was taken up,
    /// ns, if that happened in this window.
    fn take_up(&mut self, window: &WindowRecord) -> Option<u64> {
        let newest = self.decisions.len().checked_sub(1);
        let (taken, at_ns) = match Decision::from_cell(window.decision) {
            // What others decide, they carry out at once. Recordings in which decided flows name no
            // decision do not tell when it was taken up.
            None if window.mode == NO_MODE || Mode::from_raw(window.mode).is_decided() => {
                (newest.filter(|&newest| newest >= self.open), None)
            }
            None => (None, None),
            Some(cell) => {
                let open = self.open..self.decisions.len();
                let answers = |&index: &usize| cell.answers(self.decisions[index].window);
                let taken = open.rev().find(answers);
                if taken.is_none() && !self.in_force.as_ref().is_some_and(answers) {
                    // Another decision than those that are known.
                    self.cut();
                }
                (taken, Some(window.decision_taken_ns))
            }
        };
        let taken = taken?;
        for superseded in &mut self.decisions[self.open..=taken] {
            superseded.progress = Progress::Taken;
        }
        let decision = &mut self.decisions[taken];
        decision.step.taken_after_ns =
            at_ns.map(|at_ns| at_ns.saturating_sub(decision.window_end_ns));
        self.open = taken + 1;
        self.in_force = Some(taken);
        at_ns
    }

    /// No decision is in force any more, and what the last one led to is not known.
    fn cut(&mut self) {
        if let Some(former) = self.in_force.take() {
            self.decisions[former].progress = Progress::Lost;
            self.broken |= former + 1 == self.decisions.len();
        }
    }

    /// Something is missing before the next row. The outcome of the last decision is not known.
    /// Those before it were in force until about its time.
    fn lose(&mut self) {
        for decision in &mut self.decisions[self.open..] {
            decision.progress = Progress::Taken;
        }
        if let Some(last) = self.decisions.last_mut() {
            last.progress = Progress::Lost;
        }
        self.in_force = None;
        self.open = self.decisions.len();
        self.broken = true;
    }

    /// Number of the next row that is expected.
    pub(super) fn expected(&self) -> u32 {
        self.expected
    }

    /// Takes out the decisions that no later row can tell more of: those before the one that is in
    /// force, and all of them once the flow has closed.
    pub(super) fn take_settled(&mut self) -> Vec<Settled> {
        let count = match self.closed {
            true => self.decisions.len(),
            false => self.in_force.unwrap_or(self.open),
        };
        self.settle(count)
    }

    /// Takes out the oldest `count` decisions.
    fn settle(&mut self, count: usize) -> Vec<Settled> {
        let all = self.decisions.len();
        let settled = self.decisions.drain(..count).enumerate();
        let settled = settled.map(|(index, decision)| {
            let FlowDecision {
                mut step,
                policy,
                progress,
                windows,
                measured,
                waited_ns,
                ..
            } = decision;
            let is_known = progress == Progress::Taken && (windows > 0 || index + 1 < all);
            step.outcome =
                is_known.then(|| StepOutcome::of(&self.objective, windows, measured, waited_ns));
            Settled {
                step,
                policy,
                follows: std::mem::replace(&mut self.follows, is_known),
            }
        });
        let settled = settled.collect();
        self.open = self.open.saturating_sub(count);
        self.in_force = self.in_force.and_then(|index| index.checked_sub(count));
        settled
    }

    fn trajectories(mut self) -> Vec<Trajectory> {
        let mut all: Vec<Trajectory> = Vec::new();
        for settled in self.settle(self.decisions.len()) {
            let Settled {
                step,
                policy,
                follows,
            } = settled;
            match all.last_mut() {
                Some(last) if follows && last.policy == policy => last.steps.push(step),
                _ => all.push(Trajectory {
                    flow: self.flow,
                    origin: FlowOrigin::default(),
                    policy,
                    steps: vec![step],
                    ended: false,
                    until_ns: 0,
                    reached: false,
                    figures: None,
                }),
            }
        }
        if let Some(last) = all.last_mut() {
            last.ended = self.closed && !self.broken;
            last.reached = !self.broken;
        }
        all
    }
}

/// Notes when the recording of each of a flow's trajectories would have ended at the latest, where
/// that of the flow ended at `until_ns`.
pub(super) fn end_at(trajectories: &mut [Trajectory], until_ns: i64) {
    let mut until_ns = until_ns;
    let mut later: Option<&Trajectory> = None;
    for own in trajectories.iter_mut().rev() {
        if let Some(later) = later
            && later.policy != own.policy
        {
            until_ns = later.steps[0].time_ns;
            own.reached = true;
        }
        own.until_ns = until_ns;
        later = Some(own);
    }
}

/// Whether a decision set the cwnd at the end of the window, as far as the window tells.
fn is_ruled(window: &WindowRecord) -> bool {
    window.mode == NO_MODE || Mode::from_raw(window.mode).is_decided()
}

#[cfg(test)]
mod tests;
