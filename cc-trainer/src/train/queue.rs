//! Between the actors and the learner: rollouts that wait, and the newest policy.

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
    actor::{Harvest, Snapshot},
    rollout::{Episode, Rollout},
};

/// Rollouts that wait for the learner, oldest first.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Something was put in or taken out, or the queue was closed.
    changed: Condvar,
    capacity: usize,
    when_full: WhenFull,
}

#[derive(Debug, Default)]
struct Waiting {
    rollouts: VecDeque<Rollout>,
    taken: Taken,
    closed: bool,
}

/// What the learner learns besides rollouts.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Episodes that ended since the last time.
    pub(super) episodes: Vec<Episode>,
    /// Rollouts dropped since the last time.
    pub(super) dropped: u64,
    /// Time that actors waited since the last time, summed.
    pub(super) waited: Duration,
}

impl Queue {
    pub(super) fn new(capacity: usize, when_full: WhenFull) -> Self {
        Self {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            capacity,
            when_full,
        }
    }

    /// Takes an actor's harvest in and leaves it empty.
    pub(super) fn put(&self, harvest: &mut Harvest) {
        let mut waiting = self.lock();
        waiting.taken.episodes.append(&mut harvest.episodes);
        for rollout in harvest.rollouts.drain(..) {
            if self.when_full == WhenFull::Wait && waiting.rollouts.len() >= self.capacity {
                // The learner may wait for just those that have been put in.
                self.changed.notify_all();
                let since = Instant::now();
                waiting = self
                    .changed
                    .wait_while(waiting, |waiting| {
                        waiting.rollouts.len() >= self.capacity && !waiting.closed
                    })
                    .unwrap_or_else(PoisonError::into_inner);
                waiting.taken.waited += since.elapsed();
            }
            if waiting.rollouts.len() >= self.capacity {
                waiting.rollouts.pop_front();
                waiting.taken.dropped += 1;
            }
            waiting.rollouts.push_back(rollout);
        }
        drop(waiting);
        self.changed.notify_all();
    }

    /// The oldest rollouts and what else there is, or nothing when there are not so many within the time.
    pub(super) fn take(&self, count: usize, patience: Duration) -> Option<(Vec<Rollout>, Taken)> {
        let (mut waiting, _) = self
            .changed
            .wait_timeout_while(self.lock(), patience, |waiting| {
                waiting.rollouts.len() < count
            })
            .unwrap_or_else(PoisonError::into_inner);
        if waiting.rollouts.len() < count {
            return None;
        }
        let batch = waiting.rollouts.drain(..count).collect();
        let taken = std::mem::take(&mut waiting.taken);
        drop(waiting);
        self.changed.notify_all();
        Some((batch, taken))
    }

    /// Nobody waits from now on.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the learner puts the newest policy up.
#[derive(Debug)]
pub(super) struct Board {
    newest: Mutex<Arc<Snapshot>>,
    version: AtomicU64,
}

impl Board {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            version: AtomicU64::new(snapshot.version),
            newest: Mutex::new(snapshot),
        }
    }

    pub(super) fn publish(&self, snapshot: Arc<Snapshot>) {
        let version = snapshot.version;
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        self.version.store(version, Ordering::Release);
    }

    /// The newest policy, if it is newer than the one of this version.
    pub(super) fn newer_than(&self, version: u64) -> Option<Arc<Snapshot>> {
        (self.version.load(Ordering::Acquire) > version).then(|| self.newest())
    }

    pub(super) fn newest(&self) -> Arc<Snapshot> {
        self.newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::model::{Activation, Shape, Weights, initialise};

    fn rollouts(versions: impl IntoIterator<Item = u64>) -> Harvest {
        Harvest {
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
        let queue = Queue::new(3, WhenFull::DropOldest);
        queue.put(&mut rollouts(0..5));
        let (batch, taken) = queue.take(2, Duration::ZERO).expect("three wait");
        assert_eq!((versions(&batch), taken.dropped), (vec![2, 3], 2));
        assert!(queue.take(2, Duration::ZERO).is_none());
        queue.put(&mut rollouts([9]));
        let (batch, taken) = queue.take(2, Duration::ZERO).expect("two wait");
        assert_eq!((versions(&batch), taken.dropped), (vec![4, 9], 0));
    }

    #[test]
    fn a_waiting_actor_loses_nothing() {
        let queue = Queue::new(2, WhenFull::Wait);
        let mut seen = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| queue.put(&mut rollouts(0..10)));
            while seen.len() < 10 {
                let (batch, taken) = queue
                    .take(1, Duration::from_secs(60))
                    .expect("the actor puts one in whenever there is room");
                assert_eq!(taken.dropped, 0);
                seen.extend(versions(&batch));
            }
        });
        assert_eq!(seen, Vec::from_iter(0..10));
    }

    #[test]
    fn a_closed_queue_lets_actors_go() {
        let queue = Queue::new(1, WhenFull::Wait);
        thread::scope(|scope| {
            scope.spawn(|| queue.put(&mut rollouts(0..10)));
            queue.close();
        });
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
        };
        let snapshot = |version| {
            let weights = Weights::new(&shape, &initialise(&shape, 1));
            Arc::new(Snapshot { version, weights })
        };
        let board = Board::new(snapshot(0));
        assert!(board.newer_than(0).is_none());
        board.publish(snapshot(4));
        let newer = board.newer_than(0).expect("published");
        assert_eq!(newer.version, 4);
        assert!(board.newer_than(4).is_none());
    }
}
