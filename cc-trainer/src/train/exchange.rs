//! The exchange between those who act and the learner: rollouts one way, policies the other.
//!
//! Whoever acts does so through [`Exchange`], wherever the learner is. [`LocalExchange`] is the
//! learner's own, which threads of its process use directly.

mod queue;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use self::queue::{ParameterStore, RolloutQueue};
pub use self::queue::{Published, QueueReport};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    rollout::Rollout,
    train::config::WhenFull,
};

/// How long the learner waits for rollouts before it looks whether it was interrupted.
const PATIENCE: Duration = Duration::from_millis(100);

/// What an actor sees of the learner, which may be in this process or on another machine.
pub trait Exchange: Sync {
    /// Returns the newest policy if it is newer than `version`, and `None` otherwise.
    fn newer_than(&self, version: u64) -> Option<Arc<Snapshot>>;

    /// Hands an actor's output over and leaves it empty. Waits where the learner holds actors back,
    /// until acting is over.
    fn put(&self, output: &mut StepOutput);

    /// Returns whether acting is over: the learner is done or gone, or somebody panicked.
    fn is_over(&self) -> bool;

    /// Ends acting: every actor returns before its next step, and none waits any more.
    fn end(&self);
}

/// Acts by the newest policy until acting is over. However it returns, also by a panic, acting is
/// over for all others as well.
pub fn act(exchange: &dyn Exchange, mut actor: Actor) {
    let _end = EndOfActing(exchange);
    let mut output = StepOutput::default();
    while !exchange.is_over() {
        if let Some(newer) = exchange.newer_than(actor.version()) {
            actor.adopt(newer);
        }
        actor.step(&mut output);
        if !output.rollouts.is_empty() {
            exchange.put(&mut output);
        }
    }
}

/// Ends acting when it is dropped, also by a panic. Whoever acts or learns holds one, so that none
/// outlives the others.
pub struct EndOfActing<'a>(pub &'a dyn Exchange);

impl Drop for EndOfActing<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The learner's own exchange: a bounded queue of rollouts, the newest policy, and whether acting
/// is over.
#[derive(Debug)]
pub struct LocalExchange {
    queue: RolloutQueue,
    store: ParameterStore,
    /// Largest number of updates between the policy that began a rollout and the learner's.
    max_lag: Option<u64>,
    over: AtomicBool,
}

impl LocalExchange {
    /// An exchange for acting by `policy`, with a queue of at most `capacity` rollouts. Of these
    /// none is learnt from that is more than `max_lag` updates old, if that is given.
    pub fn new(
        capacity: usize,
        when_full: WhenFull,
        max_lag: Option<u64>,
        policy: Published,
    ) -> Self {
        Self {
            queue: RolloutQueue::new(capacity, when_full),
            store: ParameterStore::new(policy),
            max_lag,
            over: AtomicBool::new(false),
        }
    }

    /// Takes the oldest `count` rollouts, with a report of the queue; `None` if there are not as
    /// many within a moment, or before acting is over.
    pub fn take(&self, count: usize) -> Option<(Vec<Rollout>, QueueReport)> {
        let lag = self.max_lag.unwrap_or(u64::MAX);
        let oldest = self.store.version().saturating_sub(lag);
        self.queue.take(count, oldest, PATIENCE)
    }

    /// Returns the newest policy that was published.
    pub fn newest(&self) -> Arc<Published> {
        self.store.newest()
    }

    /// Replaces the policy by a newer one.
    pub fn publish(&self, policy: Published) {
        self.store.publish(policy);
    }

    /// Hands an output over as [`put`](Exchange::put) does, without blocking the thread. It always
    /// waits for room, so that nothing has travelled in vain. `waited` is counted as the time that
    /// its actors waited before.
    pub(crate) async fn put_when_room(&self, output: &mut StepOutput, waited: Duration) {
        self.queue.put_when_room(output, waited).await;
    }
}

impl Exchange for LocalExchange {
    fn newer_than(&self, version: u64) -> Option<Arc<Snapshot>> {
        let newer = self.store.newer_than(version)?;
        Some(newer.snapshot())
    }

    fn put(&self, output: &mut StepOutput) {
        self.queue.put(output);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.queue.close();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::{
        environment::{Environment, Spec, Turn},
        model::{Activation, Shape, initialise},
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

    fn policy() -> Published {
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
        let parameters = initialise(&shape, 1);
        Published::new(0, Arc::new(shape), parameters)
    }

    #[test]
    fn the_panic_of_one_actor_ends_the_others() {
        for when_full in [WhenFull::DropOldest, WhenFull::Wait] {
            // Nobody learns, so that actors which wait for room would wait for ever.
            let exchange = Arc::new(LocalExchange::new(4, when_full, None, policy()));
            let (ended, ends) = mpsc::channel();
            // The third panics before its first rollout is complete.
            for last in [usize::MAX, usize::MAX, 2] {
                let (exchange, ended) = (Arc::clone(&exchange), ended.clone());
                let environment: Box<dyn Environment> = Box::new(Ending { turns: 0, last });
                let actor = Actor::new(vec![environment], policy().snapshot(), 3, 1);
                thread::spawn(move || {
                    let acted = thread::spawn(move || act(&*exchange, actor)).join();
                    // The test may have failed and gone.
                    let _ = ended.send(acted.is_err());
                });
            }
            let mut panicked: Vec<_> = (0..3)
                .map(|_| ends.recv_timeout(DEADLINE).expect("all of them end"))
                .collect();
            panicked.sort_unstable();
            assert_eq!(panicked, [false, false, true]);
            assert!(exchange.is_over());
        }
    }
}
