//! The life of a flow in the maps: it takes a slot, emits records, and gives the slot back.
//!
//! This is the same for flows under this congestion control and for flows that are only observed.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use cc_ebpf::{
    AckRecord, AckSample, ClosedRecord, Counter, Features, Flow, Header, OpenedRecord, RecordSink,
    Settings, SocketState, WindowRecord,
    slot::{self, DatapathMaps, Tenure},
};

use crate::{
    layout::load_number,
    maps::{ACKS, DECISIONS, FLOWS, FREE_SLOTS, RECORDS, count},
    socket::Socket,
    structure::Memory,
};

/// Flag of a ring-buffer submission without a wake-up: the agent polls for per-ACK records.
const BPF_RB_NO_WAKEUP: u64 = 1;

/// The maps of the slots.
struct Maps;

impl DatapathMaps for Maps {
    type Slot = &'static mut Flow;

    #[inline(always)]
    fn cell(&self, slot: u32) -> u64 {
        decision_cell(slot)
    }

    #[inline(always)]
    fn slot(&self, slot: u32) -> Option<&'static mut Flow> {
        // SAFETY: the slot is this socket's until it is released or revoked, and the kernel calls
        // the programs under the socket's lock, so nothing else changes the flow.
        FLOWS.get_ptr_mut(slot).map(|flow| unsafe { &mut *flow })
    }

    #[inline(always)]
    fn take_free(&self) -> Option<u32> {
        FREE_SLOTS.pop().ok().flatten()
    }

    #[inline(always)]
    fn give_back(&self, slot: u32) -> bool {
        FREE_SLOTS.push(slot, 0).is_ok()
    }
}

/// The flow of a socket, if it has one ([`slot::find`]).
#[inline(always)]
pub(crate) fn flow_of(state: &SocketState) -> Option<&'static mut Flow> {
    slot::find(&Maps, state)
}

/// Takes a slot for a new flow, whose first ACK came at `now_ns` and found the cwnd at `cwnd`
/// segments, and announces it; false when no slot is free.
#[inline(always)]
pub(crate) fn open<M: Memory>(
    socket: Socket<M>,
    state: &mut SocketState,
    now_ns: u64,
    cwnd: u32,
) -> bool {
    let Some(flow) = slot::open(&Maps, state) else {
        return false;
    };
    let cell = decision_cell(state.slot);
    flow.open(state.slot, state.generation, now_ns, state.base, cell);
    socket.identify(&mut flow.opened.identity);
    flow.opened.identity.initial_cwnd = cwnd;
    flow.opened.identity.programs = load_number();
    flow.end_change();
    count(Counter::FlowsOpened);
    if RECORDS.output::<OpenedRecord>(&flow.opened, 0).is_err() {
        count(Counter::RecordsDropped);
    }
    true
}

/// Gives the flow's slot back and announces it; does nothing for a socket without a flow.
#[inline(always)]
pub(crate) fn close<M: Memory>(socket: Socket<M>, state: &SocketState) {
    let Some(flow) = slot::close(&Maps, state) else {
        return;
    };
    count(Counter::FlowsClosed);
    match RECORDS.reserve::<ClosedRecord>(0) {
        Some(mut entry) => {
            // SAFETY: the entry is as large as the record, which is filled before it is submitted;
            // the helper has no arguments.
            unsafe {
                let record = &mut *entry.as_mut_ptr();
                record.header =
                    Header::of::<ClosedRecord>(state.slot, state.generation, bpf_ktime_get_ns());
                record.windows = flow.window.index;
                socket.summarise(record, state.rtos);
            }
            entry.submit(0);
        }
        None => {
            count(Counter::RecordsDropped);
        }
    }
    if !Maps.give_back(state.slot) {
        count(Counter::SlotsLeaked);
    }
}

/// The entry of a slot in the cwnd map; 0, which is no decision, for a slot out of range.
#[inline(always)]
pub(crate) fn decision_cell(slot: u32) -> u64 {
    match DECISIONS.get_ptr(slot) {
        // SAFETY: a valid map value, written whole by the agent's one store.
        Some(cell) => unsafe { core::ptr::read_volatile(cell) },
        None => 0,
    }
}

/// The ring buffers, for the records of one socket's flow.
pub(crate) struct Rings<'a, M> {
    /// The socket, whose ports the per-ACK filter may ask for.
    pub(crate) socket: Socket<M>,
    /// The flow's slot and generation.
    pub(crate) state: &'a SocketState,
    /// The settings, with the per-ACK filter.
    pub(crate) settings: &'a Settings,
}

impl<M: Memory> RecordSink for Rings<'_, M> {
    #[inline(always)]
    fn window(&mut self, record: &WindowRecord) {
        if RECORDS.output::<WindowRecord>(record, 0).is_err() {
            count(Counter::RecordsDropped);
        }
    }

    #[inline(always)]
    fn ack(&mut self, window: u32, ack: &AckSample, cwnd: u32, features: &Features) {
        let (slot, generation) = (self.state.slot, self.state.generation);
        let (local_port, remote_port) = self.socket.ports();
        if !self.settings.records_acks_of(slot, local_port, remote_port) {
            return;
        }
        let Some(mut entry) = ACKS.reserve::<AckRecord>(0) else {
            count(Counter::AckRecordsDropped);
            return;
        };
        let record = entry.as_mut_ptr();
        // SAFETY: the entry is as large as the record, and is submitted only when filled.
        unsafe {
            (*record).header = Header::of::<AckRecord>(slot, generation, ack.now_ns);
            (*record).window = window;
            (*record).cwnd = cwnd;
            (*record).features = *features;
        }
        entry.submit(BPF_RB_NO_WAKEUP);
    }
}
