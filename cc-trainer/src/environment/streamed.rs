//! Flows that an agent serves by the learner's policy at this moment, as an environment: each
//! decision becomes a turn that has been answered, as soon as it is known what followed it.
//!
//! [`StreamedFlows`] makes the turns of the rows of a recording, and a [`StreamedEnvironment`]
//! hands them to an actor. A flow has a seat while it is alive, so that none waits for another. The
//! turns are those that learning from complete recordings has ([`super::recorded`]).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, mpsc::Receiver},
};

use cc_core::{interface::Interface, rows::Row};

use super::{End, Environment, FlowTask, Series, Spec, Turn, recorded::answered};
use crate::dataset::{LiveFlows, News, Settled, StepOutcome};

/// How many decisions came, and how many of them nothing is learnt from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Decisions whose outcome was settled.
    pub decisions: u64,
    /// Those of other policies than the learner's, or without the probabilities of all actions.
    pub foreign: u64,
    /// Those of flows beyond the number of seats.
    pub unseated: u64,
    /// Rows that came after later rows of their flow.
    pub late: u64,
}

/// Makes turns of the rows of recordings. P is what the caller knows of a policy of the learner's,
/// and gets back with each turn that the policy answered.
pub struct StreamedFlows<P> {
    interface: Interface,
    flows: LiveFlows,
    /// The flows that have decided, each with its seat.
    seated: HashMap<u64, Seated>,
    /// Seats that no flow has; the one that became free last is taken first, so that what is
    /// gathered of it does not wait for long.
    free: Vec<usize>,
    /// Outcome of the last decision of each seat.
    last: Vec<StepOutcome>,
    waiting: VecDeque<(P, Turn)>,
    counts: StreamCounts,
}

/// A flow that has decided.
struct Seated {
    /// `None` where all seats were taken.
    seat: Option<usize>,
    /// Whether the flow's last decision became a turn.
    continues: bool,
}

impl<P> StreamedFlows<P> {
    /// No flows yet, and room for `seats` at a time. `interface` is that of the learner's policies.
    pub fn new(interface: Interface, seats: usize) -> Self {
        Self {
            flows: LiveFlows::new(interface.clone()),
            interface,
            seated: HashMap::new(),
            free: (0..seats).rev().collect(),
            last: vec![StepOutcome::default(); seats],
            waiting: VecDeque::new(),
            counts: StreamCounts::default(),
        }
    }

    /// Adds a row with the end of its window (ns since 1970 UTC), the identifier of its policy and
    /// what its flow's decisions count as. `known` says what is known of a policy by its
    /// identifier; `None` of another than the learner's, whose decisions end an episode.
    pub fn add(
        &mut self,
        row: Row,
        time_ns: i64,
        policy: &Arc<str>,
        of: FlowTask,
        known: impl Fn(&str) -> Option<P>,
    ) {
        let flow = row.flow;
        let News {
            settled,
            over,
            late,
        } = self.flows.add(row, time_ns, policy);
        self.counts.late += u64::from(late);
        for settled in settled {
            self.settle(flow, settled, of, &known);
        }
        for flow in over {
            let freed = self.seated.remove(&flow).and_then(|flow| flow.seat);
            self.free.extend(freed);
        }
    }

    /// Takes out the oldest turn, with what is known of the policy that answered it; `None` while
    /// there is none.
    pub fn take_turn(&mut self) -> Option<(P, Turn)> {
        self.waiting.pop_front()
    }

    /// How many decisions came, whatever became of them.
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }

    fn settle(
        &mut self,
        flow: u64,
        settled: Settled,
        of: FlowTask,
        known: &impl Fn(&str) -> Option<P>,
    ) {
        let Settled {
            step,
            policy,
            follows,
        } = settled;
        self.counts.decisions += 1;
        let free = &mut self.free;
        let own = self.seated.entry(flow).or_insert_with(|| Seated {
            seat: free.pop(),
            continues: false,
        });
        let Some(seat) = own.seat else {
            self.counts.unseated += 1;
            return;
        };
        let actions = self.interface.actions.len();
        let shares = step.probabilities.as_ref();
        let is_usable =
            shares.is_some_and(|all| all.len() == actions) && usize::from(step.action) < actions;
        let Some(known) = known(&policy).filter(|_| is_usable) else {
            own.continues = false;
            self.counts.foreign += 1;
            return;
        };
        let continues = std::mem::replace(&mut own.continues, true) && follows;
        let last = &mut self.last[seat];
        let mut turn = Turn {
            seat,
            first: (!continues).then_some(End::Truncated),
            task: of.task,
            ..Turn::default()
        };
        answered(&step, last, &self.interface, &mut turn);
        if let Some(taken) = &mut turn.taken {
            taken.own = true;
        }
        *last = step
            .outcome
            .map_or_else(StepOutcome::default, |outcome| of.rewards.apply(outcome));
        self.waiting.push_back((known, turn));
    }
}

/// The turns of [`StreamedFlows`], of as many seats. An actor that steps it must have been sent a
/// turn before.
pub struct StreamedEnvironment {
    spec: Spec,
    series: Vec<Series>,
    turns: Receiver<Turn>,
}

impl StreamedEnvironment {
    /// An environment for policies with this interface, with so many seats and tasks, whose turns
    /// come through `turns`.
    pub fn new(interface: &Interface, seats: usize, tasks: usize, turns: Receiver<Turn>) -> Self {
        Self {
            spec: Spec {
                seats,
                observation: interface.observation_len(),
                privileged: 0,
                actions: interface.actions.len(),
                tasks,
            },
            series: Series::of(interface),
            turns,
        }
    }
}

impl Environment for StreamedEnvironment {
    fn spec(&self) -> Spec {
        self.spec
    }

    fn series(&self) -> Vec<Series> {
        self.series.clone()
    }

    /// # Panics
    ///
    /// Panics if no turn was sent.
    fn next(&mut self, turn: &mut Turn) {
        let sent = self.turns.try_recv();
        *turn = sent.unwrap_or_else(|_| panic!("a streamed environment is stepped without a turn"));
    }

    fn act(&mut self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use cc_recording::read;
    use tempfile::TempDir;

    use super::*;
    use crate::{
        actor::{Actor, Snapshot, StepOutput},
        dataset::tests::{interface, record},
        environment::RewardScale,
        model::{Activation, Shape, Weights, initialise},
        rollout::{Origin, Rollout},
        softmax,
    };

    const SHARES: [f32; 5] = [0.1, 0.2, 0.3, 0.25, 0.15];

    fn policy(version: u64) -> Arc<Snapshot> {
        let shape = Shape {
            observation: interface().observation_len(),
            hidden: vec![4],
            activation: Activation::Tanh,
            lstm: Some(3),
            actions: interface().actions.len(),
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        Arc::new(Snapshot {
            version,
            weights: Weights::new(&shape, &initialise(&shape, version)),
        })
    }

    /// The rows of three simulated flows of four seconds, interleaved.
    fn rows() -> Vec<Row> {
        let directory = TempDir::new().expect("a scratch directory");
        let path = directory.path().join("a.parquet");
        record(&path, &interface(), 0, 3, 4, true, &|_| SHARES.to_vec());
        let (_, rows) = read(&path).expect("a recording");
        rows.map(|row| row.expect("sound")).collect()
    }

    /// Streams rows, each with its policy's name, to an actor with `seats` seats. The learner's
    /// policies are called `1`, `2` and so on, which are their versions.
    fn stream(
        rows: impl IntoIterator<Item = (Row, &'static str)>,
        seats: usize,
        of: FlowTask,
    ) -> (StepOutput, StreamCounts) {
        let (sender, turns) = mpsc::channel();
        let environment = StreamedEnvironment::new(&interface(), seats, 2, turns);
        let mut actor = Actor::new(vec![Box::new(environment)], policy(1), 5, 1);
        let mut flows = StreamedFlows::new(interface(), seats);
        let mut output = StepOutput::default();
        for (row, name) in rows {
            flows.add(row, 0, &name.into(), of, |name| name.parse().ok());
            while let Some((version, turn)) = flows.take_turn() {
                actor.adopt(policy(version));
                sender.send(turn).expect("the actor has the other end");
                actor.step(&mut output);
            }
        }
        (output, flows.counts())
    }

    fn by(name: &'static str) -> impl Fn(Row) -> (Row, &'static str) {
        move |row| (row, name)
    }

    fn steps(output: &StepOutput) -> impl Iterator<Item = (&Rollout, usize)> {
        let rollouts = output.rollouts.iter();
        rollouts.flat_map(|rollout| (0..rollout.len() - 1).map(move |step| (rollout, step)))
    }

    #[test]
    fn rollouts_have_the_recorded_actions_probabilities_and_objective() {
        let rows = rows();
        let of = FlowTask {
            task: 1,
            rewards: RewardScale {
                factor: 0.5,
                level: 2.0,
            },
        };
        let (output, counts) = stream(rows.clone().into_iter().map(by("1")), 3, of);
        let (plain, _) = stream(rows.into_iter().map(by("1")), 3, FlowTask::default());
        assert!(output.rollouts.len() > 15 && counts.foreign + counts.unseated + counts.late == 0);
        assert_eq!(output.rollouts.len(), plain.rollouts.len());
        // One episode ends with each flow but the last on its seat.
        assert!(
            output.episodes.is_empty(),
            "each flow has a seat of its own"
        );
        for rollout in &output.rollouts {
            assert_eq!((rollout.len(), rollout.version), (6, 1));
            assert!(rollout.origin.iter().all(|origin| *origin == Origin::Actor));
            assert_eq!(rollout.task, [1; 6]);
            for (action, &share) in SHARES.iter().enumerate() {
                let found = softmax::log_probability(&rollout.logits[..5], action).exp();
                assert!((found - share).abs() < 1e-6, "{found}");
            }
        }
        for ((own, step), (plain, _)) in steps(&output).zip(steps(&plain)) {
            let step = step + 1;
            let expected = 0.5 * (plain.reward[step] - 2.0 * plain.intervals[step]);
            assert!((own.reward[step] - expected).abs() < 1e-4);
            assert!(own.reward[step].is_finite() && own.intervals[step] > 0.5);
        }
        assert!(steps(&plain).any(|(rollout, step)| rollout.reward[step + 1] != 0.0));
    }

    /// Number of episodes that begin after the first one of their seat. Rollouts share a step with
    /// the next one, which counts once.
    fn begun(output: &StepOutput) -> usize {
        let later = output.rollouts.iter().flat_map(|own| &own.first[1..]);
        later.flatten().count()
    }

    /// The step at which an episode begins after the first one of its seat: its rollout and place.
    fn second_episode(output: &StepOutput) -> (&Rollout, usize) {
        let begins = |own: &Rollout| own.first[1..].iter().position(Option::is_some);
        let mut found = (output.rollouts.iter()).filter_map(|own| Some((own, 1 + begins(own)?)));
        found.next().expect("a new episode")
    }

    /// The flows interleave on their seats; on one seat they follow each other.
    #[test]
    fn a_flow_takes_the_seat_that_another_left_and_begins_an_episode() {
        let mut rows = rows();
        rows.sort_by_key(|row| (row.flow, row.sequence));
        let (output, counts) = stream(
            rows.clone().into_iter().map(by("1")),
            1,
            FlowTask::default(),
        );
        assert_eq!(counts.unseated, 0);
        assert_eq!(output.episodes.len(), 2);
        let decided = counts.decisions as usize;
        assert_eq!(output.rollouts.len(), (decided - 1) / 5);
        // At the same time there is a seat for one of them.
        rows.sort_by_key(|row| (row.sequence, row.flow));
        let (_, counts) = stream(rows.into_iter().map(by("1")), 1, FlowTask::default());
        assert!(counts.unseated > counts.decisions / 2, "{counts:?}");
    }

    #[test]
    fn a_rollout_goes_on_under_a_newer_policy_and_has_the_version_that_began_it() {
        let rows = rows().into_iter().filter(|row| row.flow == 0);
        let rows = rows.map(|row| match row.sequence {
            0..12 => (row, "1"),
            _ => (row, "2"),
        });
        let (output, counts) = stream(rows, 3, FlowTask::default());
        assert_eq!(counts.foreign, 0);
        let versions: Vec<u64> = output.rollouts.iter().map(|own| own.version).collect();
        assert!(versions.is_sorted() && versions.contains(&1) && versions.contains(&2));
        assert_eq!(begun(&output), 0, "one episode");
    }

    #[test]
    fn decisions_of_another_policy_are_left_out_and_end_the_episode() {
        let rows = rows().into_iter().filter(|row| row.flow == 0);
        let (all, expected) = stream(rows.clone().map(by("1")), 3, FlowTask::default());
        let rows = rows.map(|row| match row.sequence {
            10..15 => (row, "heuristic"),
            _ => (row, "1"),
        });
        let (output, counts) = stream(rows, 3, FlowTask::default());
        assert!((3..=5).contains(&counts.foreign), "{counts:?}");
        assert_eq!(counts.decisions, expected.decisions);
        assert!(output.rollouts.len() < all.rollouts.len());
        assert_eq!(output.episodes.len(), 1);
        assert_eq!(begun(&output), 1);
        // What the last of the learner's decisions led to is known.
        let (across, at) = second_episode(&output);
        assert!(across.intervals[at] > 0.5);
    }

    #[test]
    fn what_a_gap_leaves_unknown_counts_for_no_time() {
        let rows = rows().into_iter().filter(|row| row.flow == 0);
        let rows = rows.filter(|row| !(10..13).contains(&row.sequence));
        let (output, counts) = stream(rows.map(by("1")), 3, FlowTask::default());
        assert_eq!((output.episodes.len(), counts.foreign), (1, 0));
        let (across, at) = second_episode(&output);
        assert_eq!((across.reward[at], across.intervals[at]), (0.0, 0.0));
    }

    #[test]
    fn decisions_without_probabilities_are_left_out() {
        let rows = rows().into_iter().map(|mut row| {
            if let Some(decision) = &mut row.decision {
                decision.probabilities = None;
            }
            (row, "1")
        });
        let (output, counts) = stream(rows, 3, FlowTask::default());
        assert!(output.rollouts.is_empty() && output.episodes.is_empty());
        assert!(counts.foreign > 50 && counts.foreign == counts.decisions);
    }
}
