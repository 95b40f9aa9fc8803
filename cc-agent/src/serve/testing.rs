//! A datapath in memory, and policies for tests of the event loop and of the policies' thread.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use bytemuck::{Pod, Zeroable, bytes_of};
use bytes::Bytes;
use cc_ebpf::{
    ClosedRecord, Counter, Decision, FEATURES, Flow, Header, Identity, OpenedRecord, Record,
    WindowRecord,
};
use tokio::{sync::Notify, time::Instant};

use super::datapath::DatapathIo;
use crate::kernel;
use cc_core::{
    ServedPolicy,
    agent::{Agent, Batch},
    canary::{Arm, CanaryBy, CanaryPlan, GuardRails},
    interface::Interface,
    policy::{Choice, Fixed, Policy, Query},
};

/// How many slots a [`FakeDatapath`] has.
pub(crate) const SLOTS: usize = 8;

/// A policy that sets every flow's cwnd to `cwnd` segments.
pub(crate) fn fixed(cwnd: u32) -> Box<dyn Policy> {
    Box::new(Fixed::new(cwnd, Interface::default()))
}

/// Blocks a policy until it is opened.
pub(crate) struct Gate(mpsc::Sender<()>);

impl Gate {
    /// A policy that sets every cwnd to `cwnd`, but does not answer until the gate is opened. The
    /// gate also opens when it is dropped.
    pub(crate) fn before(cwnd: u32) -> (Self, Box<dyn Policy>) {
        let (open, opened) = mpsc::channel();
        let policy = Gated {
            opened,
            policy: fixed(cwnd),
        };
        (Self(open), Box::new(policy))
    }

    /// Lets the policy answer from now on.
    pub(crate) fn open(self) {
        drop(self);
    }

    /// Lets the policy answer one batch.
    pub(crate) fn pass(&self) {
        self.0.send(()).expect("the policy lives");
    }
}

struct Gated {
    opened: mpsc::Receiver<()>,
    policy: Box<dyn Policy>,
}

impl Policy for Gated {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        // An error means that the gate is open for good.
        let _ = self.opened.recv();
        self.policy.decide(queries)
    }

    fn interface(&self) -> &Interface {
        self.policy.interface()
    }
}

/// A batch of one query for the policy of an arm.
pub(crate) fn batch(arm: Arm) -> Batch {
    let mut agent = Agent::new(Interface::default(), SLOTS);
    if arm == Arm::Candidate {
        let candidate = ServedPolicy {
            interface: Interface::default(),
            header: None,
        };
        let plan = CanaryPlan {
            percent: 100.0,
            by: CanaryBy::Path,
            block: Duration::from_secs(10),
            salt: 0,
        };
        agent.start_canary(candidate, plan, GuardRails::default(), 0);
    }
    for bytes in [opened(0, 0), window(0, 1, 0)] {
        let record = Record::decode(&bytes).expect("a whole record");
        agent.on_record(record.header().time_ns, &record, |_| None);
    }
    let batch = agent.take_batch(1);
    assert_eq!((batch.len(), batch.arm()), (1, arm));
    batch
}

/// The record of a flow that was given a slot. Its generation is 1, as in all records here.
pub(crate) fn opened(slot: u32, now_ns: u64) -> Bytes {
    let mut record = OpenedRecord::zeroed();
    record.header = Header::of::<OpenedRecord>(slot, 1, now_ns);
    record.identity = Identity {
        family: 2,
        mss: 1_448,
        initial_cwnd: 10,
        ..Identity::default()
    };
    bytes(&record)
}

/// The record of a window that ended at `now_ns`, with a cwnd of 10 segments.
pub(crate) fn window(slot: u32, index: u32, now_ns: u64) -> Bytes {
    let mut record = WindowRecord::zeroed();
    record.header = Header::of::<WindowRecord>(slot, 1, now_ns);
    record.start_ns = now_ns.saturating_sub(100_000_000);
    record.index = index;
    record.cwnd = 10;
    record.mss = 1_448;
    record.add(&[1_000; FEATURES]);
    bytes(&record)
}

/// The record of a flow that gave its slot back.
pub(crate) fn closed(slot: u32, now_ns: u64) -> Bytes {
    let mut record = ClosedRecord::zeroed();
    record.header = Header::of::<ClosedRecord>(slot, 1, now_ns);
    bytes(&record)
}

fn bytes<T: Pod>(record: &T) -> Bytes {
    Bytes::copy_from_slice(bytes_of(record))
}

/// A datapath in memory, on tokio's clock. Its clones are the same datapath.
#[derive(Clone)]
pub(crate) struct FakeDatapath {
    state: Arc<Mutex<State>>,
    arrived: Arc<Notify>,
    start: Instant,
}

#[derive(Default)]
struct State {
    records: VecDeque<Bytes>,
    published: Vec<(u32, Decision)>,
    beats: u64,
    vacated: Vec<u32>,
    /// Records keep coming, whatever is taken.
    flooded: bool,
    /// The slots freed so far, in their order.
    freed: Vec<u32>,
}

impl FakeDatapath {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            arrived: Arc::new(Notify::new()),
            start: Instant::now(),
        }
    }

    /// Puts records into the ring buffer.
    pub(crate) fn send(&self, records: impl IntoIterator<Item = Bytes>) {
        self.state().records.extend(records);
        self.arrived.notify_one();
    }

    /// Closes the flow in this slot without a record.
    pub(crate) fn vacate(&self, slot: u32) {
        self.state().vacated.push(slot);
    }

    /// Has a full batch of records at every look from now on.
    pub(crate) fn flood(&self) {
        self.state().flooded = true;
        self.arrived.notify_one();
    }

    /// The decisions published so far, with their slots.
    pub(crate) fn published(&self) -> Vec<(u32, Decision)> {
        self.state().published.clone()
    }

    /// The slots freed so far.
    pub(crate) fn freed(&self) -> Vec<u32> {
        self.state().freed.clone()
    }

    /// The number of heartbeats so far.
    pub(crate) fn beats(&self) -> u64 {
        self.state().beats
    }

    /// Whether all records have been taken.
    pub(crate) fn is_drained(&self) -> bool {
        self.state().records.is_empty()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DatapathIo for FakeDatapath {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn flow(&self, _slot: u32) -> Option<Flow> {
        None
    }

    fn occupant(&self, slot: u32) -> Option<u32> {
        // The generation of all flows in tests.
        (!self.state().vacated.contains(&slot)).then_some(1)
    }

    async fn next_records(&mut self, most: usize) -> Result<Vec<Bytes>, kernel::Error> {
        self.arrived.notified().await;
        let records = self.drain_records(most);
        if !self.is_drained() || self.state().flooded {
            self.arrived.notify_one();
        }
        Ok(records)
    }

    fn drain_records(&mut self, most: usize) -> Vec<Bytes> {
        let mut state = self.state();
        if state.flooded {
            // Windows of a flow that is long gone.
            return vec![window(0, 1, self.now_ns()); most];
        }
        let count = most.min(state.records.len());
        state.records.drain(..count).collect()
    }

    fn drain_acks(&mut self, most: usize) -> Vec<Bytes> {
        match self.state().flooded {
            true => vec![window(0, 1, 0); most],
            false => Vec::new(),
        }
    }

    fn publish(&self, slot: u32, decision: Decision) {
        self.state().published.push((slot, decision));
    }

    fn free(&mut self, slot: u32, _generation: u32) -> Result<bool, kernel::Error> {
        self.state().freed.push(slot);
        Ok(true)
    }

    fn beat(&self, _now_ns: u64) {
        self.state().beats += 1;
    }

    fn now_ns(&self) -> u64 {
        // A boot that was a second ago keeps every time of a test above zero.
        1_000_000_000 + self.start.elapsed().as_nanos() as u64
    }

    fn counters(&self) -> Result<Vec<u64>, kernel::Error> {
        Ok(vec![0; Counter::ALL.len()])
    }

    fn flush_messages(&mut self) {}
}
