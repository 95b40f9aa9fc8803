//! Actors on threads of their own, and how they end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    config::WhenFull,
    queue::{ParameterStore, QueueReport, RolloutQueue},
};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    rollout::Rollout,
};

/// How long the learner waits for rollouts before it looks whether it was interrupted.
const PATIENCE: Duration = Duration::from_millis(100);

/// What actors and the learner share: the queue of rollouts, the newest policy, and whether acting
/// is over.
#[derive(Debug)]
pub(super) struct Acting {
    queue: RolloutQueue,
    store: ParameterStore,
    over: AtomicBool,
}

/// Ends acting when it is dropped, also by a panic: every actor returns before its next step, and
/// none waits for room in the queue. Whoever acts or learns holds one, so that none outlives the
/// others.
#[derive(Debug)]
pub(super) struct EndOfActing<'a>(&'a Acting);

impl Acting {
    /// Acting by the policy of `snapshot`, with a queue of at most `capacity` rollouts.
    pub(super) fn new(capacity: usize, when_full: WhenFull, snapshot: Arc<Snapshot>) -> Self {
        Self {
            queue: RolloutQueue::new(capacity, when_full),
            store: ParameterStore::new(snapshot),
            over: AtomicBool::new(false),
        }
    }

    /// Ends acting once the result is dropped.
    pub(super) fn end_later(&self) -> EndOfActing<'_> {
        EndOfActing(self)
    }

    /// Whether acting is over: the learner is done, or somebody panicked.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Acts by the newest policy until acting is over.
    pub(super) fn act(&self, mut actor: Actor) {
        let _end = self.end_later();
        let mut output = StepOutput::default();
        while !self.is_over() {
            if let Some(newer) = self.store.newer_than(actor.version()) {
                actor.adopt(newer);
            }
            actor.step(&mut output);
            if !output.rollouts.is_empty() {
                self.queue.put(&mut output);
            }
        }
    }

    /// Takes the oldest `count` rollouts, with a report of the queue; `None` if there are not as
    /// many within a moment, or before acting is over.
    pub(super) fn take(&self, count: usize) -> Option<(Vec<Rollout>, QueueReport)> {
        self.queue.take(count, PATIENCE)
    }

    /// The newest policy that was published.
    pub(super) fn newest(&self) -> Arc<Snapshot> {
        self.store.newest()
    }

    /// Replaces the policy by a newer one.
    pub(super) fn publish(&self, snapshot: Arc<Snapshot>) {
        self.store.publish(snapshot);
    }
}

impl Drop for EndOfActing<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.queue.close();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::{
        environment::{Environment, Spec, Turn},
        model::{Activation, Shape, Weights, initialise},
    };

    /// How long a test waits for another thread before it fails.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// An environment of one observation and two actions that panics at a turn.
    struct Ending {
        turns: usize,
        last: usize,
    }

    impl Environment for Ending {
        fn spec(&self) -> Spec {
            Spec {
                seats: 1,
                observation: 1,
                privileged: 0,
                actions: 2,
                tasks: 1,
            }
        }

        fn next(&mut self, turn: &mut Turn) {
            assert!(self.turns < self.last, "the end that this test asks for");
            self.turns += 1;
            turn.observation.clear();
            turn.observation.push(0.5);
        }

        fn act(&mut self, _: usize) {}
    }

    fn snapshot() -> Arc<Snapshot> {
        let shape = Shape {
            observation: 1,
            hidden: vec![2],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let weights = Weights::new(&shape, &initialise(&shape, 1));
        let version = 0;
        Arc::new(Snapshot { version, weights })
    }

    #[test]
    fn the_panic_of_one_actor_ends_the_others() {
        for when_full in [WhenFull::DropOldest, WhenFull::Wait] {
            // Nobody learns, so that actors which wait for room would wait for ever.
            let acting = Arc::new(Acting::new(4, when_full, snapshot()));
            let (ended, ends) = mpsc::channel();
            // The third panics before its first rollout is complete.
            for last in [usize::MAX, usize::MAX, 2] {
                let (acting, ended) = (Arc::clone(&acting), ended.clone());
                let environment: Box<dyn Environment> = Box::new(Ending { turns: 0, last });
                let actor = Actor::new(vec![environment], snapshot(), 3, 1);
                thread::spawn(move || {
                    let acted = thread::spawn(move || acting.act(actor)).join();
                    // The test may have failed and gone.
                    let _ = ended.send(acted.is_err());
                });
            }
            let mut panicked: Vec<_> = (0..3)
                .map(|_| ends.recv_timeout(DEADLINE).expect("all of them end"))
                .collect();
            panicked.sort_unstable();
            assert_eq!(panicked, [false, false, true]);
            assert!(acting.is_over());
        }
    }
}
