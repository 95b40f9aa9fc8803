//! Between actors and learner: the queue of rollouts, and the newest parameters.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    actor::{Snapshot, StepOutput},
    model::{Shape, Weights},
    rollout::{Episode, Rollout},
    train::config::WhenFull,
};

/// A bounded queue of rollouts from the actors to the learner, oldest first.
#[derive(Debug)]
pub(super) struct RolloutQueue {
    state: Mutex<QueueState>,
    /// Notified when rollouts were put in or taken out, and when the queue was closed.
    changed: Condvar,
    /// Notified when rollouts were taken out, and when the queue was closed: for those who must not
    /// block their thread.
    room: Notify,
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
pub struct QueueReport {
    /// Episodes that ended in that time.
    pub episodes: Vec<Episode>,
    /// Number of rollouts dropped because the queue was full.
    pub dropped: u64,
    /// Number of rollouts that were not learnt from because they were too old.
    pub stale: u64,
    /// Time that actors waited for room, summed over them.
    pub waited: Duration,
}

impl RolloutQueue {
    /// An empty queue of at most `capacity` rollouts.
    pub(super) fn new(capacity: usize, when_full: WhenFull) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            room: Notify::new(),
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

    /// Moves as much of the output into the queue as there is room for, whatever is configured for
    /// a full queue. Returns whether all of it went in, or the queue is [closed](Self::close).
    fn put_what_fits(&self, output: &mut StepOutput) -> bool {
        let mut state = self.lock();
        state.report.episodes.append(&mut output.episodes);
        let room = self.capacity.saturating_sub(state.rollouts.len());
        let fitting = output.rollouts.len().min(room);
        state.rollouts.extend(output.rollouts.drain(..fitting));
        let is_done = output.rollouts.is_empty() || state.closed;
        drop(state);
        self.changed.notify_all();
        is_done
    }

    /// Moves an output into the queue as room comes, without blocking the thread. `waited` is
    /// counted as the time that its actors waited before.
    pub(super) async fn put_when_room(&self, output: &mut StepOutput, waited: Duration) {
        self.lock().report.waited += waited;
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // Before the look at the queue, so that no notification is missed.
            room.as_mut().enable();
            if self.put_what_fits(output) {
                return;
            }
            room.await;
        }
    }

    /// Takes the oldest `count` rollouts and the report. `None` if there are fewer within
    /// `patience`, or when the queue is [closed](Self::close). Rollouts that were begun by a policy
    /// older than version `oldest` are dropped and counted.
    pub(super) fn take(
        &self,
        count: usize,
        oldest: u64,
        patience: Duration,
    ) -> Option<(Vec<Rollout>, QueueReport)> {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.lock(), patience, |state| {
                if state.drop_older_than(oldest) {
                    self.changed.notify_all();
                    self.room.notify_waiters();
                }
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
        self.room.notify_waiters();
        Some((rollouts, report))
    }

    /// Releases actors that wait for room. From now on a full queue drops its oldest rollout.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
        self.room.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    /// Drops rollouts that were begun by a policy older than version `oldest`, and returns whether
    /// there were any.
    fn drop_older_than(&mut self, oldest: u64) -> bool {
        if oldest == 0 {
            return false;
        }
        let before = self.rollouts.len();
        self.rollouts.retain(|rollout| rollout.version >= oldest);
        let dropped = before - self.rollouts.len();
        self.report.stale += dropped as u64;
        dropped > 0
    }
}

/// A policy as the learner publishes it. It is made ready for inference by the first actor that
/// wants to act by it, and not on the learner's thread; nor at all if nobody wants it.
#[derive(Debug)]
pub struct Published {
    /// Version of the policy: the number of updates that made it.
    pub version: u64,
    /// All parameters of the network, in the order of its layout.
    pub parameters: Vec<f32>,
    shape: Arc<Shape>,
    snapshot: OnceLock<Arc<Snapshot>>,
    message: OnceLock<Bytes>,
}

impl Published {
    /// A policy of a network of this shape.
    pub fn new(version: u64, shape: Arc<Shape>, parameters: Vec<f32>) -> Self {
        Self {
            version,
            parameters,
            shape,
            snapshot: OnceLock::new(),
            message: OnceLock::new(),
        }
    }

    /// Returns the policy ready for inference.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let make = || {
            Arc::new(Snapshot {
                version: self.version,
                weights: Weights::new(&self.shape, &self.parameters),
            })
        };
        self.snapshot.get_or_init(make).clone()
    }

    /// Returns the parameters as little-endian bytes, for messages.
    pub(crate) fn message(&self) -> Bytes {
        let make = || {
            self.parameters
                .iter()
                .flat_map(|p| p.to_le_bytes())
                .collect()
        };
        self.message.get_or_init(make).clone()
    }
}

/// The newest policy, published by the learner and read by the actors.
#[derive(Debug)]
pub(super) struct ParameterStore {
    newest: Mutex<Arc<Published>>,
    /// Version of `newest`, so that actors need not take the lock to see that nothing changed.
    version: AtomicU64,
}

impl ParameterStore {
    pub(super) fn new(policy: Published) -> Self {
        Self {
            version: AtomicU64::new(policy.version),
            newest: Mutex::new(Arc::new(policy)),
        }
    }

    /// Replaces the policy by a newer one.
    pub(super) fn publish(&self, policy: Published) {
        let version = policy.version;
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        self.version.store(version, Ordering::Release);
    }

    /// Version of the newest policy.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The newest policy if it is newer than `version`.
    pub(super) fn newer_than(&self, version: u64) -> Option<Arc<Published>> {
        (self.version() > version).then(|| self.newest())
    }

    /// The newest policy, whatever its version.
    pub(super) fn newest(&self) -> Arc<Published> {
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
    use crate::model::{Activation, initialise};

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
        let (batch, report) = queue.take(2, 0, Duration::ZERO).expect("three wait");
        assert_eq!((versions(&batch), report.dropped), (vec![2, 3], 2));
        assert!(queue.take(2, 0, Duration::ZERO).is_none());
        queue.put(&mut rollouts([9]));
        let (batch, report) = queue.take(2, 0, Duration::ZERO).expect("two wait");
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
                .take(1, 0, DEADLINE)
                .expect("the actor puts one in whenever there is room");
            assert_eq!(report.dropped, 0);
            seen.extend(versions(&batch));
        }
        assert_eq!(seen, Vec::from_iter(0..10));
    }

    #[test]
    fn rollouts_beyond_the_bound_are_dropped_and_counted() {
        let queue = RolloutQueue::new(8, WhenFull::Wait);
        queue.put(&mut rollouts([3, 7, 4, 5, 9]));
        let (batch, report) = queue.take(2, 5, Duration::ZERO).expect("three are young");
        assert_eq!((versions(&batch), report.stale), (vec![7, 5], 2));
        assert!(queue.take(1, 10, Duration::ZERO).is_none());
        queue.put(&mut rollouts([10]));
        let (batch, report) = queue
            .take(1, 10, Duration::ZERO)
            .expect("as young as allowed");
        assert_eq!((versions(&batch), report.stale), (vec![10], 1));
    }

    #[test]
    fn a_task_waits_for_room_without_its_thread() {
        let queue = Arc::new(RolloutQueue::new(3, WhenFull::DropOldest));
        let runtime = crate::listening::runtime().expect("a runtime");
        runtime.block_on(async {
            let putting = {
                let queue = queue.clone();
                async move {
                    let mut output = rollouts(0..10);
                    queue
                        .put_when_room(&mut output, Duration::from_secs(1))
                        .await;
                }
            };
            let putting = tokio::spawn(putting);
            let mut seen = Vec::new();
            while seen.len() < 9 {
                tokio::task::yield_now().await;
                if let Some((batch, report)) = queue.take(3, 0, Duration::ZERO) {
                    assert_eq!(report.dropped, 0);
                    seen.extend(versions(&batch));
                }
            }
            assert_eq!(seen, Vec::from_iter(0..9));
            putting.await.expect("all of it has found room");
        });
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
        let (newest, report) = queue
            .take(1, 0, Duration::ZERO)
            .expect("the last one stays");
        assert_eq!((versions(&newest), report.dropped), (vec![9], 9));
    }

    #[test]
    fn actors_see_a_newer_policy_once() {
        let shape = Arc::new(Shape {
            observation: 1,
            hidden: vec![1],
            activation: Activation::Relu,
            lstm: None,
            actions: 2,
            privileged: 0,
            predictions: 0,
            values: 1,
            branches: vec![],
        });
        let policy = |version| Published::new(version, shape.clone(), initialise(&shape, 1));
        let store = ParameterStore::new(policy(0));
        assert!(store.newer_than(0).is_none());
        store.publish(policy(4));
        let newer = store.newer_than(0).expect("published");
        assert_eq!(newer.version, 4);
        assert_eq!(newer.snapshot().version, 4);
        assert!(Arc::ptr_eq(&newer.snapshot(), &newer.snapshot()));
        assert!(store.newer_than(4).is_none());
    }
}
