//! Following a flow: it takes a slot, each ACK adds to its window, and it gives the slot back. The same for the flows
//! that we control and for those that we only observe.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use cc_ebpf::{
    AckRecord, AckSample, ClosedRecord, Counter, Decision, Features, Flow, Header, OpenedRecord,
    Settings, SocketState, WindowRecord,
};

use crate::{
    maps::{ACKS, DECISIONS, FLOWS, FREE_SLOTS, RECORDS, count},
    socket::Socket,
};

/// The agent fetches per-ACK records by the clock, so they never wake it.
const BPF_RB_NO_WAKEUP: u64 = 1;

/// The flow of a socket, if it has a slot.
#[inline(always)]
pub(crate) fn flow_of(state: &SocketState) -> Option<&'static mut Flow> {
    if state.generation == 0 {
        return None;
    }
    // SAFETY: the slot is this socket's until it is released, and the kernel calls us under the
    // socket's lock, so nobody else changes the flow.
    let flow = unsafe { &mut *FLOWS.get_ptr_mut(state.slot)? };
    (flow.generation == state.generation).then_some(flow)
}

/// Takes a slot for a new flow, whose first ACK came at `now_ns` and found the window at `cwnd` segments, and announces
/// it; false when no slot is free.
#[inline(always)]
pub(crate) fn open(socket: Socket, state: &mut SocketState, now_ns: u64, cwnd: u32) -> bool {
    let Ok(Some(slot)) = FREE_SLOTS.pop() else {
        return false;
    };
    // SAFETY: a slot from the free list belongs to nobody else.
    let Some(flow) = FLOWS.get_ptr_mut(slot).map(|flow| unsafe { &mut *flow }) else {
        return false;
    };
    let generation = Decision::next_generation(flow.generation);
    state.slot = slot;
    state.generation = generation;
    flow.begin_change();
    flow.open(slot, generation, now_ns, state.base, decision_cell(slot));
    socket.identify(&mut flow.opened.identity);
    flow.opened.identity.initial_cwnd = cwnd;
    flow.end_change();
    count(Counter::FlowsOpened);
    if RECORDS.output::<OpenedRecord>(&flow.opened, 0).is_err() {
        count(Counter::RecordsDropped);
    }
    true
}

/// Gives the slot back and announces it.
#[inline(always)]
pub(crate) fn close(socket: Socket, state: &SocketState) {
    let Some(flow) = flow_of(state) else {
        return;
    };
    if flow.live == 0 {
        return;
    }
    flow.begin_change();
    flow.live = 0;
    flow.end_change();
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
    if FREE_SLOTS.push(state.slot, 0).is_err() {
        count(Counter::SlotsLeaked);
    }
}

/// Adds an ACK that found the window at `cwnd` segments to the flow's window, after closing the window if its time is
/// up.
#[inline(always)]
pub(crate) fn measure(
    flow: &mut Flow,
    socket: Socket,
    ack: &AckSample,
    cwnd: u32,
    state: &SocketState,
    settings: &Settings,
) {
    flow.begin_change();
    if flow.window.is_over(ack.now_ns, settings.window_ns) {
        if flow.window.acks > 0 {
            emit_window(flow, ack, cwnd);
        }
        flow.window.restart(ack.now_ns);
    }
    let features = flow
        .extractor
        .extract(ack, cwnd, settings.min_rtt_window_ns);
    if let Some(features) = features {
        flow.window.add(&features);
        let (local_port, remote_port) = socket.ports();
        if settings.records_acks_of(state.slot, local_port, remote_port) {
            emit_ack(flow, ack, cwnd, state, &features);
        }
    }
    flow.end_change();
}

/// What the cwnd map holds for a slot.
#[inline(always)]
pub(crate) fn decision_cell(slot: u32) -> u64 {
    match DECISIONS.get_ptr(slot) {
        // SAFETY: a valid map value, written whole by the agent's one store.
        Some(cell) => unsafe { core::ptr::read_volatile(cell) },
        None => 0,
    }
}

#[inline(always)]
fn emit_window(flow: &mut Flow, ack: &AckSample, cwnd: u32) {
    flow.complete_window(ack, cwnd);
    if RECORDS.output::<WindowRecord>(&flow.window, 0).is_err() {
        count(Counter::RecordsDropped);
    }
}

#[inline(always)]
fn emit_ack(flow: &Flow, ack: &AckSample, cwnd: u32, state: &SocketState, features: &Features) {
    let Some(mut entry) = ACKS.reserve::<AckRecord>(0) else {
        count(Counter::AckRecordsDropped);
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record, and is submitted only when filled.
    unsafe {
        (*record).header = Header::of::<AckRecord>(state.slot, state.generation, ack.now_ns);
        (*record).window = flow.window.index;
        (*record).cwnd = cwnd;
        (*record).features = *features;
    }
    entry.submit(BPF_RB_NO_WAKEUP);
}
