//! The `tcp_congestion_ops` callbacks.

use aya_ebpf::{EbpfContext, cty::c_void, helpers::bpf_ktime_get_ns};
use aya_log_ebpf::warn;
use cc_ebpf::{
    AckRecord, CaState, ClosedRecord, Counter, Cwnd, Events, Flow, Header, OpenedRecord, Settings,
    SocketState, WindowRecord, pacing_rate, reno,
};

use crate::{
    maps::{ACKS, DECISIONS, FLOWS, FREE_SLOTS, HEARTBEAT, RECORDS, SETTINGS, count},
    socket::{RateSample, Socket},
};

/// `CA_EVENT_LOSS` of `enum tcp_ca_event` (include/net/tcp.h).
const CA_EVENT_LOSS: u64 = 3;
/// The agent fetches per-ACK records by the clock, so they never wake it.
const BPF_RB_NO_WAKEUP: u64 = 1;

/// What the kernel passes to a struct_ops program: its arguments, eight bytes each.
struct Arguments(*mut c_void);

impl EbpfContext for Arguments {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

impl Arguments {
    #[inline(always)]
    fn get(&self, index: usize) -> u64 {
        // SAFETY: the verifier knows how many arguments the callback has, and their types.
        unsafe { *self.0.cast::<u64>().add(index) }
    }

    #[inline(always)]
    fn socket(&self) -> Socket {
        // SAFETY: every callback's first argument is the socket.
        unsafe { Socket::new(*self.0.cast::<*mut c_void>()) }
    }

    #[inline(always)]
    fn rate_sample(&self, index: usize) -> RateSample {
        // SAFETY: `index` is the position of the rate sample in this callback's signature.
        unsafe { RateSample::new(*self.0.cast::<*const c_void>().add(index)) }
    }
}

macro_rules! callback {
    ($(#[$doc:meta])* $name:ident, $section:literal, |$arguments:ident| $body:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = $section)]
        pub(crate) extern "C" fn $name(context: *mut c_void) -> u32 {
            let $arguments = Arguments(context);
            $body
        }
    };
}

callback!(
    /// The congestion control was attached to a connection: remember where its totals stand. The
    /// flow is opened by its next ACK, since not every `init` is paired with a `release`; for the same
    /// reason one that is still open is closed first.
    cc_init, "fentry/cc_init", |arguments| {
        let socket = arguments.socket();
        let state = socket.state();
        if state.generation != 0 {
            close(socket, &state);
        }
        socket.set_state(SocketState {
            stage: SocketState::READY,
            base: socket.totals(0),
            ..SocketState::default()
        });
        0
    }
);

callback!(
    /// The congestion control is leaving the connection.
    cc_release, "fentry/cc_release", |arguments| {
        let socket = arguments.socket();
        let mut state = socket.state();
        if state.generation != 0 {
            close(socket, &state);
            state.generation = 0;
            socket.set_state(state);
        }
        0
    }
);

callback!(
    /// Slow-start threshold on entering recovery, loss or CWR.
    cc_ssthresh, "fentry/cc_ssthresh", |arguments| {
        let socket = arguments.socket();
        match flow_of(&socket.state()) {
            Some(flow) => flow.controller.ssthresh(socket.cwnd()),
            None => reno::ssthresh(socket.cwnd()),
        }
    }
);

callback!(
    /// The window after a loss that was none.
    cc_undo_cwnd, "fentry/cc_undo_cwnd", |arguments| {
        let socket = arguments.socket();
        let (cwnd, prior) = (socket.cwnd(), socket.prior_cwnd());
        match flow_of(&socket.state()) {
            Some(flow) => flow.controller.undo(cwnd, prior),
            None => reno::undo(cwnd, prior),
        }
    }
);

callback!(
    /// The congestion-avoidance state changes.
    cc_set_state, "fentry/cc_set_state", |arguments| {
        let new = CaState::from_raw(arguments.get(1) as u32);
        if let Some(flow) = flow_of(&arguments.socket().state())
            && flow.controller.on_state(new)
        {
            count(Counter::Timeouts);
        }
        0
    }
);

callback!(
    /// Counts timeouts, for kernels that do not.
    cc_cwnd_event, "fentry/cc_cwnd_event", |arguments| {
        if arguments.get(1) as u32 as u64 == CA_EVENT_LOSS {
            let socket = arguments.socket();
            let mut state = socket.state();
            state.rtos += 1;
            socket.set_state(state);
        }
        0
    }
);

callback!(
    /// The fewest segments that are sent together.
    cc_min_tso_segs, "fentry/cc_min_tso_segs", |_arguments| {
        // Before the agent has set anything, no flow is there to ask.
        SETTINGS.get(0).map_or(2, Settings::min_burst)
    }
);

callback!(
    /// An ACK, on Linux 6.10 and newer: `cong_control(sk, ack, flag, rs)`.
    cc_cong_control, "fentry/cc_cong_control", |arguments| {
        cong_control(&arguments, arguments.socket(), arguments.rate_sample(3));
        0
    }
);

callback!(
    /// An ACK, before Linux 6.10: `cong_control(sk, rs)`.
    cc_cong_control_2, "fentry/cc_cong_control_2", |arguments| {
        cong_control(&arguments, arguments.socket(), arguments.rate_sample(1));
        0
    }
);

#[inline(always)]
fn cong_control(arguments: &Arguments, socket: Socket, sample: RateSample) {
    let Some(settings) = SETTINGS.get(0) else {
        return;
    };
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let mut state = socket.state();
    if state.stage == SocketState::READY {
        state.stage = SocketState::OPENED;
        open(arguments, socket, &mut state, now_ns);
        socket.set_state(state);
    }
    let totals = socket.totals(state.rtos);
    let ack = socket.ack_sample(sample, now_ns, totals);
    let mut window = socket.window();
    match flow_of(&state) {
        Some(flow) => {
            observe(flow, socket, &ack, &window, &state, settings);
            control(arguments, flow, &ack, &mut window, &state, settings);
        }
        None => {
            reno::on_ack(&mut window, &ack);
            if window.cwnd > settings.cwnd_max {
                window.cwnd = settings.cwnd_max;
            }
        }
    }
    socket.set_window(window);
    if let Some(rate) = pacing_rate(&window, &ack, settings.pacing_gain_1024) {
        socket.set_pacing(rate, settings.pacing_gain_1024 != 0);
    }
}

/// The flow of a socket, if it has a slot.
#[inline(always)]
fn flow_of(state: &SocketState) -> Option<&'static mut Flow> {
    if state.generation == 0 {
        return None;
    }
    // SAFETY: the slot is this socket's until it is released, and the kernel calls us under the
    // socket's lock, so nobody else changes the flow.
    let flow = unsafe { &mut *FLOWS.get_ptr_mut(state.slot)? };
    (flow.generation == state.generation).then_some(flow)
}

/// Takes a slot for a new flow and announces it.
#[inline(always)]
fn open(arguments: &Arguments, socket: Socket, state: &mut SocketState, now_ns: u64) {
    let Ok(Some(slot)) = FREE_SLOTS.pop() else {
        if count(Counter::FlowsWithoutSlot).is_power_of_two() {
            warn!(
                arguments,
                "no free slot: a flow runs on the fallback for life"
            );
        }
        return;
    };
    // SAFETY: a slot from the free list belongs to nobody else.
    let Some(flow) = FLOWS.get_ptr_mut(slot).map(|flow| unsafe { &mut *flow }) else {
        return;
    };
    let generation = cc_ebpf::Decision::next_generation(flow.generation);
    state.slot = slot;
    state.generation = generation;
    flow.begin_change();
    flow.open(slot, generation, now_ns, state.base, decision_cell(slot));
    socket.identify(&mut flow.opened.identity);
    flow.end_change();
    count(Counter::FlowsOpened);
    if RECORDS.output::<OpenedRecord>(&flow.opened, 0).is_err() {
        count(Counter::RecordsDropped);
    }
}

/// Gives the slot back and announces it.
#[inline(always)]
fn close(socket: Socket, state: &SocketState) {
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

/// Adds the ACK to the flow's window, after closing the window if its time is up.
#[inline(always)]
fn observe(
    flow: &mut Flow,
    socket: Socket,
    ack: &cc_ebpf::AckSample,
    window: &Cwnd,
    state: &SocketState,
    settings: &Settings,
) {
    flow.begin_change();
    if flow.window.is_over(ack.now_ns, settings.window_ns) {
        if flow.window.acks > 0 {
            emit_window(flow, ack, window);
        }
        flow.window.restart(ack.now_ns);
    }
    let features = flow
        .extractor
        .extract(ack, window.cwnd, settings.min_rtt_window_ns);
    if let Some(features) = features {
        flow.window.add(&features);
        let (local_port, remote_port) = socket.ports();
        if settings.records_acks_of(state.slot, local_port, remote_port) {
            emit_ack(flow, ack, window, state, &features);
        }
    }
    flow.end_change();
}

#[inline(always)]
fn emit_window(flow: &mut Flow, ack: &cc_ebpf::AckSample, window: &Cwnd) {
    flow.complete_window(ack, window.cwnd);
    if RECORDS.output::<WindowRecord>(&flow.window, 0).is_err() {
        count(Counter::RecordsDropped);
    }
}

#[inline(always)]
fn emit_ack(
    flow: &Flow,
    ack: &cc_ebpf::AckSample,
    window: &Cwnd,
    state: &SocketState,
    features: &cc_ebpf::Features,
) {
    let Some(mut entry) = ACKS.reserve::<AckRecord>(0) else {
        count(Counter::AckRecordsDropped);
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is as large as the record, and is submitted only when filled.
    unsafe {
        (*record).header = Header::of::<AckRecord>(state.slot, state.generation, ack.now_ns);
        (*record).window = flow.window.index;
        (*record).cwnd = window.cwnd;
        (*record).features = *features;
    }
    entry.submit(BPF_RB_NO_WAKEUP);
}

/// Sets the window from the newest decision, or without one.
#[inline(always)]
fn control(
    arguments: &Arguments,
    flow: &mut Flow,
    ack: &cc_ebpf::AckSample,
    window: &mut Cwnd,
    state: &SocketState,
    settings: &Settings,
) {
    let Some(heartbeat) = HEARTBEAT.get(0) else {
        return;
    };
    let cell = decision_cell(state.slot);
    let generation = state.generation;
    let Events {
        taken,
        clamped,
        stale,
        fallback_entered,
        fallback_left,
    } = flow
        .controller
        .on_ack(window, ack, cell, generation, heartbeat, settings);
    if taken {
        count(Counter::DecisionsTaken);
    }
    if clamped {
        count(Counter::DecisionsClamped);
    }
    if stale {
        count(Counter::DecisionsStale);
    }
    if fallback_entered && count(Counter::FallbacksEntered).is_power_of_two() {
        warn!(
            arguments,
            "the agent's heartbeat is too old: a flow falls back to Reno"
        );
    }
    if fallback_left {
        count(Counter::FallbacksLeft);
    }
}

#[inline(always)]
fn decision_cell(slot: u32) -> u64 {
    match DECISIONS.get_ptr(slot) {
        // SAFETY: a valid map value, written whole by the agent's one store.
        Some(cell) => unsafe { core::ptr::read_volatile(cell) },
        None => 0,
    }
}
