//! The life of a flow, from its opened record to its closed record, as the agent follows it.
//!
//! The same life is led by flows that a policy decides for ([`crate::agent`]) and by flows of other
//! congestion controls ([`crate::foreign`]):
//!
//! ```text
//!   opened record          record of a window        state left by a former agent
//!        │                 whose opened record            │
//!        │                 was lost: found late           │ adopted
//!        ▼                          │                     ▼
//!     opened ───────────────────────┴───────────────► followed ◄──┐ each window: by its record,
//!        │            first window                        │  └────┘ or closed by the agent when
//!        │                                                │         the flow is silent
//!        └───────────────────────┬────────────────────────┘
//!                                ▼ closed record, or the opened record of the slot's next flow,
//!                             closed   or not found in its slot any more
//! ```
//!
//! A window may arrive twice: closed by the agent for a silent flow, and again in the record that
//! the flow's next ACK sends. Only the first arrival counts.

use std::collections::VecDeque;

use cc_ebpf::{Flow, Header, Identity, OpenedRecord, Record, WindowRecord};
use serde::Serialize;

/// How long after a window's end the agent waits for an ACK that closes it, ns.
const SILENCE_NS: u64 = 5_000_000;

/// Identifies a flow: a slot of the flow map and the generation of the flow that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// Index of the slot in the flow map.
    pub slot: u32,
    /// Counts the flows that have had the slot; 0 is never a flow's.
    pub generation: u32,
}

impl From<&Flow> for FlowId {
    fn from(flow: &Flow) -> Self {
        Self {
            slot: flow.opened.header.slot,
            generation: flow.generation,
        }
    }
}

impl From<&Header> for FlowId {
    fn from(header: &Header) -> Self {
        Self {
            slot: header.slot,
            generation: header.generation,
        }
    }
}

/// Counts of flows and of their windows since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCounts {
    /// Flows opened, found late or adopted from a former agent.
    pub flows: u64,
    /// Flows whose opened record was lost and that were found by the record of a window.
    pub flows_found_late: u64,
    /// Windows received in records or closed by the agent, each counted once.
    pub windows: u64,
    /// Windows that the agent closed because their flow had fallen silent.
    pub windows_closed_silent: u64,
    /// Windows whose records were lost: gaps in the windows' numbers.
    pub windows_missed: u64,
}

/// The cwnd in bytes that a flow begins with.
pub(crate) fn initial_cwnd_bytes(identity: &Identity) -> u64 {
    u64::from(identity.initial_cwnd) * u64::from(identity.mss)
}

/// The live flows by their slots, and the windows whose ends are awaited.
#[derive(Debug)]
pub(crate) struct FlowTable<T> {
    slots: Vec<Option<Box<Entry<T>>>>,
    counts: FlowCounts,
    window_ns: u64,
    /// The earliest first. Windows all have the same length, so they end in the order in which
    /// they began.
    awaited: VecDeque<AwaitedWindow>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// Number of the newest window seen; 0 before the first.
    newest: u32,
    /// The last call of [`FollowFlows::close_lost`] did not find it.
    missing: bool,
    flow: T,
}

/// A window that has begun and has not been closed.
#[derive(Clone, Copy, Debug)]
struct AwaitedWindow {
    /// When the agent closes it, ns: [`SILENCE_NS`] after its end.
    at_ns: u64,
    flow: FlowId,
    index: u32,
}

impl<T> FlowTable<T> {
    /// An empty table for `slots` slots, of flows with windows of `window_ns`.
    pub(crate) fn new(slots: usize, window_ns: u64) -> Self {
        Self {
            slots: (0..slots).map(|_| None).collect(),
            counts: FlowCounts::default(),
            window_ns,
            awaited: VecDeque::new(),
        }
    }

    /// The flow, while it is live.
    pub(crate) fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        self.entry(id).map(|entry| &mut entry.flow)
    }

    /// Whether the slot is still this flow's, and not free or a successor's.
    pub(crate) fn is_live(&self, id: FlowId) -> bool {
        let entry = self.slots.get(id.slot as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.generation == id.generation)
    }

    /// Whether the flow is live and its window `index` has not arrived.
    pub(crate) fn awaits(&self, id: FlowId, index: u32) -> bool {
        let entry = self.slots.get(id.slot as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.generation == id.generation && entry.newest < index)
    }

    /// Whether another flow than this one has its slot.
    pub(crate) fn is_succeeded(&self, id: FlowId) -> bool {
        let entry = self.slots.get(id.slot as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.generation != id.generation)
    }

    /// The live flows with the number of their newest windows, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FlowId, u32, &T)> + Clone {
        self.slots.iter().zip(0..).filter_map(|(entry, slot)| {
            let entry = entry.as_deref()?;
            let generation = entry.generation;
            Some((FlowId { slot, generation }, entry.newest, &entry.flow))
        })
    }

    /// The live flows in slot order, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (FlowId, &mut T)> {
        self.slots.iter_mut().zip(0..).filter_map(|(entry, slot)| {
            let entry = entry.as_deref_mut()?;
            let generation = entry.generation;
            Some((FlowId { slot, generation }, &mut entry.flow))
        })
    }

    /// The live flows in slot order, to change them, without their names.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let entries = self.slots.iter_mut().flatten();
        entries.map(|entry| &mut entry.flow)
    }

    /// Number of flows that are open at the moment.
    pub(crate) fn live(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Counts since the table was made.
    pub(crate) fn counts(&self) -> FlowCounts {
        self.counts
    }

    /// When the next window of a silent flow is to be closed, ns; `None` while no window is
    /// awaited.
    pub(crate) fn silence_due_ns(&self) -> Option<u64> {
        self.awaited.front().map(|window| window.at_ns)
    }

    fn entry(&mut self, id: FlowId) -> Option<&mut Entry<T>> {
        let entry = self.slots.get_mut(id.slot as usize)?.as_deref_mut()?;
        (entry.generation == id.generation).then_some(entry)
    }

    fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        Some(entry.flow)
    }

    /// Puts a flow into its slot, with window `next` as the next to come.
    fn insert(&mut self, id: FlowId, next: u32, flow: T) {
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            self.counts.flows += 1;
            *slot = Some(Box::new(Entry {
                generation: id.generation,
                newest: next.saturating_sub(1),
                missing: false,
                flow,
            }));
        }
    }

    /// Notes that a window of a flow has arrived; false when it had arrived before, or when the
    /// flow is not live.
    fn arrived(&mut self, id: FlowId, index: u32) -> bool {
        let Some(entry) = self.entry(id).filter(|entry| index > entry.newest) else {
            return false;
        };
        let missed = index - entry.newest - 1;
        entry.newest = index;
        self.counts.windows += 1;
        self.counts.windows_missed += u64::from(missed);
        true
    }

    /// Awaits the end of the flow's window `index`, which began at `start_ns`.
    fn expect(&mut self, flow: FlowId, index: u32, start_ns: u64) {
        self.awaited.push_back(AwaitedWindow {
            at_ns: start_ns + self.window_ns + SILENCE_NS,
            flow,
            index,
        });
    }

    /// The flows that `occupant` does not find for the second time in a row.
    fn lost(&mut self, mut occupant: impl FnMut(u32) -> Option<u32>) -> Vec<u32> {
        let mut lost = Vec::new();
        for (entry, slot) in self.slots.iter_mut().zip(0..) {
            let Some(entry) = entry.as_deref_mut() else {
                continue;
            };
            let is_missing = occupant(slot) != Some(entry.generation);
            if is_missing && entry.missing {
                lost.push(slot);
            }
            entry.missing = is_missing;
        }
        lost
    }

    /// The next flow whose window should have been closed by now and was not.
    fn next_silent(&mut self, now_ns: u64) -> Option<FlowId> {
        while let Some(due) = self.awaited.pop_front_if(|window| window.at_ns <= now_ns) {
            let is_open = |entry: &mut Entry<T>| entry.newest < due.index;
            if self.entry(due.flow).is_some_and(is_open) {
                return Some(due.flow);
            }
        }
        None
    }
}

/// Follows flows through their lives: what an owner of a [`FlowTable`] adds to each step.
pub(crate) trait FollowFlows {
    /// What the owner keeps of a flow.
    type Flow;

    /// The table of flows that the implementor owns.
    fn table(&mut self) -> &mut FlowTable<Self::Flow>;

    /// Begins to follow a flow.
    fn on_opened(&mut self, id: FlowId, opened: &OpenedRecord) -> Self::Flow;

    /// Takes a window that has arrived for the first time, of a flow that is live.
    fn on_window(&mut self, id: FlowId, window: &WindowRecord);

    /// Takes back what the owner kept of a flow that has closed.
    fn on_closed(&mut self, flow: Self::Flow);

    /// Opens a flow whose window `next` is the next to come. A flow that still has the slot has
    /// closed, and its closed record was lost.
    fn open(&mut self, id: FlowId, opened: &OpenedRecord, next: u32) {
        if id.slot as usize >= self.table().slots.len() {
            return;
        }
        if let Some(former) = self.table().remove(id.slot) {
            self.on_closed(former);
        }
        let flow = self.on_opened(id, opened);
        self.table().insert(id, next, flow);
    }

    /// Takes a record. `read` reads the flow's state from a slot, for a flow whose opened record
    /// was lost.
    fn follow(&mut self, record: &Record, read: impl FnOnce(u32) -> Option<Flow>) {
        let header = record.header();
        let id = FlowId::from(header);
        match record {
            Record::Opened(opened) => {
                self.open(id, opened, 1);
                self.table().expect(id, 1, header.time_ns);
            }
            Record::Window(window) => {
                if self.table().get_mut(id).is_none() {
                    let Some(flow) = read(id.slot).filter(|f| f.generation == id.generation) else {
                        return;
                    };
                    self.table().counts.flows_found_late += 1;
                    self.open(id, &flow.opened, window.index);
                }
                if self.table().arrived(id, window.index) {
                    self.on_window(id, window);
                }
                let next = window.index.saturating_add(1);
                self.table().expect(id, next, header.time_ns);
            }
            Record::Closed(_) => {
                if self.table().get_mut(id).is_some()
                    && let Some(flow) = self.table().remove(id.slot)
                {
                    self.on_closed(flow);
                }
            }
            Record::Ack(_) => {}
        }
    }

    /// Takes over a flow that a former agent followed.
    fn take_over(&mut self, flow: &Flow) {
        let id = FlowId::from(flow);
        let window = &flow.window;
        self.open(id, &flow.opened, window.index);
        self.table().expect(id, window.index, window.start_ns);
    }

    /// Closes the flows that two calls in a row have not found, because their closed records were
    /// lost. `occupant` returns the generation of the flow that is live in a slot.
    fn close_lost(&mut self, occupant: impl FnMut(u32) -> Option<u32>) {
        for slot in self.table().lost(occupant) {
            if let Some(flow) = self.table().remove(slot) {
                self.on_closed(flow);
            }
        }
    }

    /// Closes the windows of flows that have fallen silent, and returns them. `read` reads the
    /// flow's state from a slot.
    ///
    /// A window is closed when its end is 5 ms past and no ACK has closed it; an empty one is left
    /// open. Nothing can be added to it before the flow's next ACK, so the record that this ACK
    /// sends repeats the window, and is ignored.
    fn close_silent_windows(
        &mut self,
        now_ns: u64,
        mut read: impl FnMut(u32) -> Option<Flow>,
    ) -> Vec<WindowRecord> {
        let mut closed = Vec::new();
        while let Some(id) = self.table().next_silent(now_ns) {
            let Some(flow) = read(id.slot).filter(|flow| FlowId::from(flow) == id) else {
                continue;
            };
            let table = self.table();
            if let Some(window) = flow.silent_window(now_ns, table.window_ns)
                && table.arrived(id, window.index)
            {
                table.counts.windows_closed_silent += 1;
                self.on_window(id, &window);
                closed.push(window);
            }
        }
        closed
    }
}
