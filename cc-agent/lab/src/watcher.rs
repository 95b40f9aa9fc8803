//! An agent in miniature that only watches.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use cc_agent::kernel::{
    Observer,
    observer::{Options, Source},
};
use cc_ebpf::{
    AckFilter, AckRecord, ClosedRecord, Counter, OpenedRecord, Record, Selection, WindowRecord,
};

use super::eventually;

/// The observer's options as the agent has them by default, with few slots and every ACK recorded. Only flows with
/// that port are observed: other tests' remains may still be closing.
pub fn watching(port: u16) -> Options {
    let mut selection = <Selection as bytemuck::Zeroable>::zeroed();
    selection.ports_len = 1;
    selection.ports[0] = port;
    Options {
        slots: 64,
        window_ns: 100_000_000,
        min_rtt_window_ns: 10_000_000_000,
        ack_filter: AckFilter::All,
        selection,
        source: None,
    }
}

/// Keeps every record of an observer of this process.
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the observer sent.
#[derive(Default)]
pub struct Seen {
    pub opened: Vec<OpenedRecord>,
    pub windows: Vec<WindowRecord>,
    pub closed: Vec<ClosedRecord>,
    pub acks: Vec<AckRecord>,
}

struct Shared {
    observer: Mutex<Observer>,
    seen: Mutex<Seen>,
    running: AtomicBool,
}

impl Watcher {
    /// Attaches an observer.
    pub fn attach(options: &Options) -> Self {
        let observer = Observer::attach(options).unwrap_or_else(|error| panic!("{error}"));
        let shared = Arc::new(Shared {
            observer: Mutex::new(observer),
            seen: Mutex::default(),
            running: AtomicBool::new(true),
        });
        let ours = shared.clone();
        let thread = thread::spawn(move || {
            while ours.running.load(Ordering::Relaxed) {
                ours.turn();
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Reads what was seen.
    pub fn seen<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        read(&lock(&self.shared.seen))
    }

    /// Waits until `find` finds something in what was seen.
    pub fn wait_for<T>(&self, what: &str, mut find: impl FnMut(&Seen) -> Option<T>) -> T {
        eventually(what, || self.seen(&mut find))
    }

    /// How it sees ACKs.
    pub fn source(&self) -> Source {
        lock(&self.shared.observer).source()
    }

    /// A counter of the observer.
    pub fn counter(&self, counter: Counter) -> u64 {
        let counters = lock(&self.shared.observer).counters();
        counters.expect("the observer is attached")[counter as usize]
    }

    /// Asserts that the observer lost no record, no slot and no event.
    pub fn assert_nothing_lost(&self) {
        for counter in [
            Counter::RecordsDropped,
            Counter::AckRecordsDropped,
            Counter::SlotsLeaked,
        ] {
            assert_eq!(self.counter(counter), 0, "{}", counter.name());
        }
        assert_eq!(lock(&self.shared.observer).missed(), 0, "events missed");
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.running.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn turn(&self) {
        let mut observer = lock(&self.observer);
        // Per-ACK records first: once a window is in the list, all of its ACKs are.
        let windows = observer.records().drain(usize::MAX);
        let acks = observer.acks().drain(usize::MAX);
        let mut seen = lock(&self.seen);
        for bytes in acks.iter().chain(&windows) {
            match Record::decode(bytes).expect("the observer of this build") {
                Record::Opened(record) => seen.opened.push(record),
                Record::Window(record) => seen.windows.push(record),
                Record::Closed(record) => seen.closed.push(record),
                Record::Ack(record) => seen.acks.push(record),
            }
        }
    }
}

/// A test that panicked elsewhere has failed already; the lock is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
