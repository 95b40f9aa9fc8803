//! Between actors and learner: the queue of rollouts, and the newest parameters.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::config::WhenFull;
use crate::{
    actor::{Snapshot, StepOutput},
    rollout::{Episode, Rollout},
};

/// A bounded queue of rollouts from the actors to the learner, oldest first.
#[derive(Debug)]
pub(super) struct RolloutQueue {
    state: Mutex<QueueState>,
    /// Notified when rollouts were put in or taken out, and when the queue was closed.
    changed: Condvar,
    /// Largest number of rollouts that wait.
    capacity: usize,
    when_full: WhenFull,
}

#[derive(Debug, Default)]
struct QueueState {
    rollouts: VecDeque<Rollout>,
    report: QueueReport,
    closed: bool,
}

/// What happened at the queue since the learner last took a batch.
#[derive(Debug, Default)]
pub(super) struct QueueReport {
    /// Episodes that ended in that time.
    pub(super) episodes: Vec<Episode>,
    /// Number of rollouts dropped because the queue was full.
    pub(super) dropped: u64,
    /// Time that actors waited for room, summed over them.
    pub(super) waited: Duration,
}

impl RolloutQueue {
    /// An empty queue of at most `capacity` rollouts.
    pub(super) fn new(capacity: usize, when_full: WhenFull) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            capacity,
            when_full,
        }
    }

    /// Moves an actor's output into the queue and leaves it empty. Waits for room if the queue is
    /// configured so, until it is [closed](Self::close).
    pub(super) fn put(&self, output: &mut StepOutput) {
        let mut state = self.lock();
        state.report.episodes.append(&mut output.episodes);
        for rollout in output.rollouts.drain(..) {
            if self.when_full == WhenFull::Wait && state.rollouts.len() >= self.capacity {
                // The learner may be waiting for the rollouts that were just put in.
                self.changed.notify_all();
                let since = Instant::now();
                state = self
                    .changed
                    .wait_while(state, |state| {
                        state.rollouts.len() >= self.capacity && !state.closed
                    })
                    .unwrap_or_else(PoisonError::into_inner);
                state.report.waited += since.elapsed();
            }
            if state.rollouts.len() >= self.capacity {
                state.rollouts.pop_front();
                state.report.dropped += 1;
            }
            state.rollouts.push_back(rollout);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the oldest `count` rollouts and the report. `None` if there are fewer within
    /// `patience`, or when the queue is [closed](Self::close).
    pub(super) fn take(
        &self,
        count: usize,
        patience: Duration,
    ) -> Option<(Vec<Rollout>, QueueReport)> {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.lock(), patience, |state| {
                state.rollouts.len() < count && !state.closed
            })
            .unwrap_or_else(PoisonError::into_inner);
        if state.rollouts.len() < count {
            return None;
        }
        let rollouts = state.rollouts.drain(..count).collect();
        let report = std::mem::take(&mut state.report);
        drop(state);
        self.changed.notify_all();
        Some((rollouts, report))
    }

    /// Releases actors that wait for room. From now on a full queue drops its oldest rollout.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest policy, published by the learner and read by the actors.
#[derive(Debug)]
pub(super) struct ParameterStore {
    newest: Mutex<Arc<Snapshot>>,
    /// Version of `newest`, so that actors need not take the lock to see that nothing changed.
    version: AtomicU64,
}

impl ParameterStore {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            version: AtomicU64::new(snapshot.version),
            newest: Mutex::new(snapshot),
        }
    }

    /// Replaces the policy by a newer one.
    pub(super) fn publish(&self, snapshot: Arc<Snapshot>) {
        let version = snapshot.version;
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        self.version.store(version, Ordering::Release);
    }

    /// The newest policy if it is newer than `version`.
    pub(super) fn newer_than(&self, version: u64) -> Option<Arc<Snapshot>> {
        (self.version.load(Ordering::Acquire) > version).then(|| self.newest())
    }

    /// The newest policy, whatever its version.
    pub(super) fn newest(&self) -> Arc<Snapshot> {
        self.newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::model::{Activation, Shape, Weights, initialise};

    /// How long a test waits for another thread before it fails.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn rollouts(versions: impl IntoIterator<Item = u64>) -> StepOutput {
        StepOutput {
            rollouts: versions
                .into_iter()
                .map(|version| Rollout {
                    version,
                    ..Rollout::default()
                })
                .collect(),
            episodes: Vec::new(),
        }
    }

    fn versions(rollouts: &[Rollout]) -> Vec<u64> {
        rollouts.iter().map(|rollout| rollout.version).collect()
    }

    #[test]
    fn a_full_queue_drops_the_oldest_and_counts() {
        let queue = RolloutQueue::new(3, WhenFull::DropOldest);
        queue.put(&mut rollouts(0..5));
        let (batch, report) = queue.take(2, Duration::ZERO).expect("three wait");
        assert_eq!((versions(&batch), report.dropped), (vec![2, 3], 2));
        assert!(queue.take(2, Duration::ZERO).is_none());
        queue.put(&mut rollouts([9]));
        let (batch, report) = queue.take(2, Duration::ZERO).expect("two wait");
        assert_eq!((versions(&batch), report.dropped), (vec![4, 9], 0));
    }

    #[test]
    fn an_actor_that_waits_for_room_loses_no_rollout() {
        let queue = Arc::new(RolloutQueue::new(2, WhenFull::Wait));
        let actor = Arc::clone(&queue);
        thread::spawn(move || actor.put(&mut rollouts(0..10)));
        let mut seen = Vec::new();
        while seen.len() < 10 {
            let (batch, report) = queue
                .take(1, DEADLINE)
                .expect("the actor puts one in whenever there is room");
            assert_eq!(report.dropped, 0);
            seen.extend(versions(&batch));
        }
        assert_eq!(seen, Vec::from_iter(0..10));
    }

    #[test]
    fn closing_the_queue_releases_an_actor_that_waits_for_room() {
        let queue = Arc::new(RolloutQueue::new(1, WhenFull::Wait));
        let (returned, actor) = mpsc::channel();
        thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                queue.put(&mut rollouts(0..10));
                // The test may have failed and gone.
                let _ = returned.send(());
            }
        });
        // `put` gives the lock back between two rollouts only to wait for room. So whoever sees the
        // first rollout in the queue knows that the actor waits.
        let since = Instant::now();
        while queue.lock().rollouts.is_empty() {
            assert!(since.elapsed() < DEADLINE, "the queue never fills");
            thread::yield_now();
        }
        assert!(actor.try_recv().is_err(), "there is no room yet");
        queue.close();
        actor
            .recv_timeout(DEADLINE)
            .expect("a closed queue lets the actor return");
        let (newest, report) = queue.take(1, Duration::ZERO).expect("the last one stays");
        assert_eq!((versions(&newest), report.dropped), (vec![9], 9));
    }

    #[test]
    fn actors_see_a_newer_policy_once() {
        let shape = Shape {
            observation: 1,
            hidden: vec![1],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        };
        let snapshot = |version| {
            let weights = Weights::new(&shape, &initialise(&shape, 1));
            Arc::new(Snapshot { version, weights })
        };
        let store = ParameterStore::new(snapshot(0));
        assert!(store.newer_than(0).is_none());
        store.publish(snapshot(4));
        let newer = store.newer_than(0).expect("published");
        assert_eq!(newer.version, 4);
        assert!(store.newer_than(4).is_none());
    }
}
