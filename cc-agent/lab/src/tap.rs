//! An agent in miniature.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use cc_agent::kernel::{Datapath, Options, clock::now_ns};
use cc_ebpf::{
    AckRecord, ClosedRecord, Counter, Decision, OpenedRecord, Record, Settings, WindowRecord,
};

use super::eventually;

/// The datapath's options as the agent has them by default, with few slots.
pub fn options(name: &str) -> Options {
    Options {
        name: name.to_owned(),
        slots: 64,
        settings: Settings {
            heartbeat_limit_ns: 1_000_000_000,
            ..Settings::default()
        },
        cgroup: None,
    }
}

/// Serves a datapath of this process: beats the heartbeat, keeps every record, and answers every
/// window as it was told to.
pub struct Pump {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the datapath sent and what was answered.
#[derive(Default)]
pub struct Log {
    pub opened: Vec<OpenedRecord>,
    pub windows: Vec<WindowRecord>,
    pub closed: Vec<ClosedRecord>,
    pub acks: Vec<AckRecord>,
    /// What was published, with a time at which the datapath could see it.
    pub published: Vec<(u64, u32, Decision)>,
}

/// The window to publish in answer to a record, if any.
type Rule = Box<dyn FnMut(&WindowRecord) -> Option<u32> + Send>;

struct Shared {
    datapath: Mutex<Datapath>,
    log: Mutex<Log>,
    rule: Mutex<Rule>,
    beating: AtomicBool,
    running: AtomicBool,
}

impl Pump {
    /// Attaches a datapath and serves it, without decisions at first.
    pub fn attach(options: &Options) -> Self {
        let datapath = Datapath::attach(options).unwrap_or_else(|error| panic!("{error}"));
        datapath.beat(now_ns());
        let shared = Arc::new(Shared {
            datapath: Mutex::new(datapath),
            log: Mutex::default(),
            rule: Mutex::new(Box::new(|_| None)),
            beating: AtomicBool::new(true),
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

    /// From now on answers every window with this window.
    pub fn decide(&self, cwnd: u32) {
        self.decide_by(move |_| Some(cwnd));
    }

    /// From now on answers windows by a rule.
    pub fn decide_by(&self, rule: impl FnMut(&WindowRecord) -> Option<u32> + Send + 'static) {
        *lock(&self.shared.rule) = Box::new(rule);
    }

    /// From now on answers nothing.
    pub fn rest(&self) {
        self.decide_by(|_| None);
    }

    /// Beats the heartbeat, or stops to: then the agent seems gone.
    pub fn set_beating(&self, beating: bool) {
        self.shared.beating.store(beating, Ordering::Relaxed);
    }

    /// Uses the datapath itself. The pump stands still meanwhile.
    pub fn with_datapath<T>(&self, work: impl FnOnce(&mut Datapath) -> T) -> T {
        work(&mut lock(&self.shared.datapath))
    }

    /// Reads the log.
    pub fn log<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        read(&lock(&self.shared.log))
    }

    /// Waits until the log has what `find` looks for.
    pub fn wait_for<T>(&self, what: &str, mut find: impl FnMut(&Log) -> Option<T>) -> T {
        eventually(what, || self.log(&mut find))
    }

    /// Waits for a window that begins after now and of which `accept` approves.
    pub fn wait_for_window(
        &self,
        what: &str,
        mut accept: impl FnMut(&WindowRecord) -> bool,
    ) -> WindowRecord {
        let from = self.log(|log| log.windows.len());
        self.wait_for(what, |log| {
            log.windows[from..]
                .iter()
                .copied()
                .find(|window| accept(window))
        })
    }

    /// A counter of the datapath.
    pub fn counter(&self, counter: Counter) -> u64 {
        let counters = self.with_datapath(|datapath| datapath.counters());
        counters.expect("the datapath is attached")[counter as usize]
    }

    /// Asserts that the datapath lost no record and no slot.
    pub fn assert_nothing_lost(&self) {
        for counter in [
            Counter::RecordsDropped,
            Counter::AckRecordsDropped,
            Counter::SlotsLeaked,
        ] {
            assert_eq!(self.counter(counter), 0, "{}", counter.name());
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.shared.running.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn turn(&self) {
        let mut datapath = lock(&self.datapath);
        if self.beating.load(Ordering::Relaxed) {
            datapath.beat(now_ns());
        }
        // Per-ACK records first: once a window is in the log, all of its ACKs are.
        let windows = datapath.records().drain(usize::MAX);
        let acks = datapath.acks().drain(usize::MAX);
        let mut log = lock(&self.log);
        for bytes in acks.iter().chain(&windows) {
            match Record::decode(bytes).expect("the datapath of this build") {
                Record::Opened(record) => log.opened.push(record),
                Record::Closed(record) => log.closed.push(record),
                Record::Ack(record) => log.acks.push(record),
                Record::Window(record) => {
                    log.windows.push(record);
                    if let Some(cwnd) = lock(&self.rule)(&record) {
                        let slot = record.header.slot;
                        let decision = Decision {
                            generation: record.header.generation,
                            window: record.index,
                            cwnd,
                        };
                        datapath.publish(slot, decision);
                        // The store has left this processor before the clock is read.
                        fence(Ordering::SeqCst);
                        log.published.push((now_ns(), slot, decision));
                    }
                }
            }
        }
        datapath.flush_messages();
    }
}

/// A test that panicked elsewhere has failed already; the lock is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
