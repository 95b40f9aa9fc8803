//! Waiting until a time, more accurately than the runtime's timers of whole milliseconds.
//!
//! A thread sleeps until the earliest time that any connection waits for, and wakes its task.

use std::{
    collections::BTreeMap,
    future, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_sim::path::Nanos;
use tokio::sync::oneshot;

/// The thread that wakes tasks. It ends when this is dropped.
pub(super) struct Clock {
    begun: Instant,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What one task waits for.
#[derive(Default)]
pub(super) struct Alarm {
    /// The time that the thread knows, and what it tells when that has come.
    set: Option<(Nanos, oneshot::Receiver<()>)>,
}

#[derive(Default)]
struct Shared {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Default)]
struct Due {
    /// By time, and then in the order in which they were set.
    alarms: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
    /// Number of alarms so far.
    number: u64,
    is_over: bool,
}

impl Clock {
    /// A clock that begins at 0.
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let waker = shared.clone();
        let thread = thread::Builder::new()
            .name("alarms".into())
            .spawn(move || waker.wake())?;
        Ok(Self {
            begun: Instant::now(),
            shared,
            thread: Some(thread),
        })
    }

    /// Time since the start, ns.
    pub(super) fn now(&self) -> Nanos {
        cc_sim::path::nanos(self.begun.elapsed())
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say, not even that it panicked.
            let _ = thread.join();
        }
    }
}

impl Alarm {
    /// Waits until `at`, or for ever. Dropped before, it can be called again.
    pub(super) async fn until(&mut self, at: Option<Nanos>, clock: &Clock) {
        let Some(at) = at else {
            return future::pending().await;
        };
        if at <= clock.now() {
            return;
        }
        let rung = match &mut self.set {
            Some((set, rung)) if *set == at => rung,
            set => {
                let rung = clock.shared.set(clock.begun + Duration::from_nanos(at));
                &mut set.insert((at, rung)).1
            }
        };
        // The thread lives as long as the clock, and rings before it forgets.
        let _ = rung.await;
        self.set = None;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, at: Instant) -> oneshot::Receiver<()> {
        let (alarm, rung) = oneshot::channel();
        let mut due = self.lock();
        let key = (at, due.number);
        due.number += 1;
        due.alarms.insert(key, alarm);
        if due
            .alarms
            .first_key_value()
            .is_some_and(|(first, _)| *first == key)
        {
            self.changed.notify_one();
        }
        rung
    }

    /// Rings all alarms in time until there are to be no more.
    fn wake(&self) {
        let mut due = self.lock();
        while !due.is_over {
            let now = Instant::now();
            let next = due.alarms.first_key_value().map(|((at, _), _)| *at);
            due = match next {
                None => self
                    .changed
                    .wait(due)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let waited = self.changed.wait_timeout(due, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    if let Some((_, alarm)) = due.alarms.pop_first() {
                        // Its task may wait for something else by now.
                        let _ = alarm.send(());
                    }
                    due
                }
            };
        }
    }
}
