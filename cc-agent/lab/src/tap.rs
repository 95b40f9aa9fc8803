//! Taps: threads of this process that collect every record of a datapath or an observer.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use bytemuck::Zeroable;
use cc_agent::kernel::{self, Datapath, Observer, clock::now_ns, observer};
use cc_ebpf::{
    AckFilter, AckRecord, ClosedRecord, Counter, Decision, Header, OpenedRecord, Record, Selection,
    Settings, WindowRecord,
};

use super::{Flow, eventually};

/// Returns the agent's default options for a datapath of this name, with 64 slots only and a
/// heartbeat limit of 1 s.
pub fn datapath_options(name: &str) -> kernel::Options {
    kernel::Options {
        name: name.to_owned(),
        slots: 64,
        settings: Settings {
            heartbeat_limit_ns: 1_000_000_000,
            ..Settings::default()
        },
        cgroups: Vec::new(),
        cgroups_by_command: false,
        scope: kernel::Scope::default(),
        restricted: false,
    }
}

/// Returns the agent's default options for an observer, with 64 slots only and a record of every
/// ACK. Only flows with this local or remote port are observed, since connections of earlier tests
/// may still be closing.
pub fn observer_options(port: u16) -> observer::Options {
    let mut selection = Selection::zeroed();
    selection.ports_len = 1;
    selection.ports[0] = port;
    observer::Options {
        slots: 64,
        window_ns: 100_000_000,
        min_rtt_window_ns: 10_000_000_000,
        ack_filter: AckFilter::All,
        selection,
        by: None,
    }
}

/// Programs in the kernel that send records: a [`TestAgent`]'s datapath, or an [`Observer`].
pub trait RecordSource: Send + 'static {
    /// Does what is due in each turn and takes all records out of the ring buffers.
    ///
    /// Per-ACK records come first: once a window is in [`Seen`], so are all of its ACKs.
    fn poll(&mut self) -> Vec<Record>;

    /// Returns the decision published in answer to a window, or `None` if there is none. An
    /// observer never decides.
    fn answer(&mut self, _window: &WindowRecord) -> Option<Publication> {
        None
    }

    /// Returns all counters, in the order of [`Counter`].
    fn counters(&self) -> Vec<u64>;

    /// Returns how many kernel events the programs could not handle.
    fn missed(&self) -> u64 {
        0
    }
}

/// Collects every record of a source in the kernel, on a thread of its own that polls once per
/// millisecond. Dropping the tap detaches the source.
pub struct Tap<S: RecordSource> {
    shared: Arc<Shared<S>>,
    thread: Option<JoinHandle<()>>,
}

/// The records received so far, each kind in the order of arrival.
#[derive(Default)]
pub struct Seen {
    /// One record per flow opened.
    pub opened: Vec<OpenedRecord>,
    /// One record per completed window of any flow.
    pub windows: Vec<WindowRecord>,
    /// One record per flow closed.
    pub closed: Vec<ClosedRecord>,
    /// Per-ACK records, of the ACKs that the filter selects.
    pub acks: Vec<AckRecord>,
    /// Decisions published in answer to windows.
    pub published: Vec<Publication>,
}

/// A decision that was published to the datapath.
#[derive(Clone, Copy, Debug)]
pub struct Publication {
    /// A time at which the datapath could see the decision, ns of the kernel's monotonic clock.
    pub time_ns: u64,
    /// The flow's generation, the window answered, and the cwnd in segments.
    pub decision: Decision,
}

struct Shared<S> {
    source: Mutex<S>,
    seen: Mutex<Seen>,
    running: AtomicBool,
}

impl<S: RecordSource> Tap<S> {
    fn start(source: S) -> Self {
        let shared = Arc::new(Shared {
            source: Mutex::new(source),
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

    fn source(&self) -> MutexGuard<'_, S> {
        lock(&self.shared.source)
    }

    /// Calls `read` with the records received so far. No record is added meanwhile.
    pub fn seen<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        read(&lock(&self.shared.seen))
    }

    /// Polls the records received so far until `find` returns a value.
    ///
    /// # Panics
    ///
    /// Panics with `what`, the awaited condition, if it does not hold within 60 s.
    pub fn wait_for<T>(&self, what: &str, mut find: impl FnMut(&Seen) -> Option<T>) -> T {
        eventually(what, || self.seen(&mut find))
    }

    /// Waits for a window that arrives after this call and that `accept` accepts.
    ///
    /// # Panics
    ///
    /// Panics with `what`, the awaited condition, if there is no such window within 60 s.
    pub fn wait_for_window(
        &self,
        what: &str,
        mut accept: impl FnMut(&WindowRecord) -> bool,
    ) -> WindowRecord {
        let from = self.seen(|seen| seen.windows.len());
        self.wait_for(what, |seen| {
            let mut later = seen.windows[from..].iter();
            later.find(|window| accept(window)).copied()
        })
    }

    /// Waits for the opened record of a flow of this process.
    ///
    /// # Panics
    ///
    /// Panics if it does not arrive within 60 s.
    pub fn opened(&self, flow: &Flow) -> OpenedRecord {
        let port = flow.port();
        self.wait_for("the flow was opened", |seen| {
            let mut opened = seen.opened.iter();
            opened.find(|o| o.identity.local_port == port).copied()
        })
    }

    /// Waits for the closed record of a flow that was opened.
    ///
    /// # Panics
    ///
    /// Panics if it does not arrive within 60 s.
    pub fn closed(&self, opened: &OpenedRecord) -> ClosedRecord {
        self.wait_for("the flow was closed", |seen| {
            let mut closed = seen.closed.iter();
            closed
                .find(|c| is_same_flow(&c.header, &opened.header))
                .copied()
        })
    }

    /// Returns a counter's value, summed over all processors.
    ///
    /// # Panics
    ///
    /// Panics if the kernel's map of counters cannot be read.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.source().counters()[counter as usize]
    }

    /// Asserts that no record was dropped, no slot leaked and no kernel event missed.
    ///
    /// # Panics
    ///
    /// Panics with the name of the counter that is not 0.
    pub fn assert_nothing_lost(&self) {
        for counter in [
            Counter::RecordsDropped,
            Counter::AckRecordsDropped,
            Counter::SlotsLeaked,
        ] {
            assert_eq!(self.counter(counter), 0, "{}", counter.name());
        }
        assert_eq!(self.source().missed(), 0, "events missed");
    }
}

impl<S: RecordSource> Drop for Tap<S> {
    fn drop(&mut self) {
        self.shared.running.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<S: RecordSource> Shared<S> {
    fn turn(&self) {
        let mut source = lock(&self.source);
        let records = source.poll();
        let mut seen = lock(&self.seen);
        for record in records {
            match record {
                Record::Opened(record) => seen.opened.push(record),
                Record::Closed(record) => seen.closed.push(record),
                Record::Ack(record) => seen.acks.push(record),
                Record::Window(record) => {
                    seen.windows.push(record);
                    seen.published.extend(source.answer(&record));
                }
            }
        }
    }
}

/// The cwnd in segments to publish in answer to a window, if any.
type Rule = Box<dyn FnMut(&WindowRecord) -> Option<u32> + Send>;

/// A datapath in this process and the least of an agent: a heartbeat in every turn, and decisions
/// by a rule.
pub struct TestAgent {
    datapath: Datapath,
    rule: Rule,
    has_heartbeat: bool,
}

impl Tap<TestAgent> {
    /// Attaches a datapath and serves it. No window is answered until [`Self::decide`] is called.
    ///
    /// # Panics
    ///
    /// Panics if the datapath cannot be attached.
    pub fn serve(options: &kernel::Options) -> Self {
        let datapath = Datapath::attach(options).unwrap_or_else(|error| panic!("{error}"));
        datapath.beat(now_ns());
        Self::start(TestAgent {
            datapath,
            rule: Box::new(|_| None),
            has_heartbeat: true,
        })
    }

    /// Answers every window from now on with this cwnd, in segments.
    pub fn decide(&self, cwnd: u32) {
        self.decide_by(move |_| Some(cwnd));
    }

    /// Answers windows from now on with the cwnd in segments that `rule` returns, if any.
    pub fn decide_by(&self, rule: impl FnMut(&WindowRecord) -> Option<u32> + Send + 'static) {
        self.source().rule = Box::new(rule);
    }

    /// Leaves all windows unanswered from now on.
    pub fn stop_deciding(&self) {
        self.decide_by(|_| None);
    }

    /// Starts or stops the heartbeat. Without one the datapath behaves as if the agent had gone.
    pub fn set_heartbeat(&self, on: bool) {
        self.source().has_heartbeat = on;
    }

    /// Calls `work` with the datapath itself, while the tap pauses.
    pub fn with_datapath<T>(&self, work: impl FnOnce(&mut Datapath) -> T) -> T {
        work(&mut self.source().datapath)
    }
}

impl RecordSource for TestAgent {
    fn poll(&mut self) -> Vec<Record> {
        if self.has_heartbeat {
            self.datapath.beat(now_ns());
        }
        let windows = self.datapath.records().drain(usize::MAX);
        let acks = self.datapath.acks().drain(usize::MAX);
        self.datapath.flush_messages();
        decode(acks.iter().chain(&windows))
    }

    fn answer(&mut self, window: &WindowRecord) -> Option<Publication> {
        let decision = Decision {
            generation: window.header.generation,
            window: window.index,
            cwnd: (self.rule)(window)?,
        };
        self.datapath.publish(window.header.slot, decision);
        // The store has left this processor before the clock is read.
        fence(Ordering::SeqCst);
        Some(Publication {
            time_ns: now_ns(),
            decision,
        })
    }

    fn counters(&self) -> Vec<u64> {
        self.datapath
            .counters()
            .expect("the kernel keeps the maps of an attached datapath")
    }
}

impl Tap<Observer> {
    /// Attaches an observer and collects its records.
    ///
    /// # Panics
    ///
    /// Panics if the observer cannot be attached.
    pub fn observe(options: &observer::Options) -> Self {
        Self::start(Observer::attach(options).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Returns how the observer is attached to this kernel.
    pub fn way(&self) -> observer::Way {
        self.source().way()
    }
}

impl RecordSource for Observer {
    fn poll(&mut self) -> Vec<Record> {
        let windows = self.records().drain(usize::MAX);
        let acks = self.acks().drain(usize::MAX);
        decode(acks.iter().chain(&windows))
    }

    fn counters(&self) -> Vec<u64> {
        Observer::counters(self).expect("the kernel keeps the maps of an attached observer")
    }

    fn missed(&self) -> u64 {
        Observer::missed(self)
    }
}

fn decode<'a, B: AsRef<[u8]> + 'a>(records: impl Iterator<Item = &'a B>) -> Vec<Record> {
    records
        .map(|bytes| Record::decode(bytes.as_ref()).expect("records of this very build"))
        .collect()
}

/// Returns whether two records are about the same flow.
pub fn is_same_flow(a: &Header, b: &Header) -> bool {
    (a.slot, a.generation) == (b.slot, b.generation)
}

/// Locks also after a panic: the test that panicked has failed already, and the data is intact.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
