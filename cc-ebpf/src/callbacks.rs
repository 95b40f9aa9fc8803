//! The callbacks of `tcp_congestion_ops` (include/net/tcp.h, Linux 6.18).

use aya_log_ebpf::warn;
use cc_ebpf::{
    CaState, Counter, CwndState, Events, Mode, Published, SEND_BUFFER_CWNDS, Settings, SocketState,
    bound, first_flight_rate, pacing_rate, reno, restart_after_idle,
};

use crate::{
    arguments::{Arguments, entry_point},
    follow::{Rings, close, decision_cell, flow_of, open},
    leave::{Outcome, leave},
    maps::{HEARTBEAT, SETTINGS, count, keep},
    socket::{RateSample, Socket},
};

/// `CA_EVENT_TX_START` of `enum tcp_ca_event` (include/net/tcp.h).
const CA_EVENT_TX_START: u32 = 0;

entry_point!(
    /// The congestion control was attached to a connection: remembers where its totals stand. The
    /// flow is opened by its next ACK ([`SocketState::opens`]), since not every `init` is paired
    /// with a `release`. For the same reason a flow that is still open is closed first. A
    /// connection that is not to be served is left to another congestion control here.
    cc_init, "fentry/cc_init", |arguments| {
        let socket = arguments.socket();
        let state = socket.state();
        if state.has_flow() {
            close(socket, &state);
        }
        if leave(socket) != Outcome::Left {
            socket.set_state(SocketState::ready(socket.totals(0)));
        }
        0
    }
);

entry_point!(
    /// The congestion control is detached from the connection: closes its flow.
    cc_release, "fentry/cc_release", |arguments| {
        let socket = arguments.socket();
        let mut state = socket.state();
        if state.has_flow() {
            close(socket, &state);
            state.release();
            socket.set_state(state);
        }
        0
    }
);

entry_point!(
    /// Returns the slow-start threshold on entering recovery, loss or CWR.
    cc_ssthresh, "fentry/cc_ssthresh", |arguments| {
        let socket = arguments.socket();
        match flow_of(&socket.state()) {
            Some(flow) => flow.controller.ssthresh(socket.cwnd()),
            None => reno::ssthresh(socket.cwnd()),
        }
    }
);

entry_point!(
    /// Returns the cwnd to restore after a loss that proved spurious.
    cc_undo_cwnd, "fentry/cc_undo_cwnd", |arguments| {
        let socket = arguments.socket();
        let (cwnd, prior) = (socket.cwnd(), socket.prior_cwnd());
        match flow_of(&socket.state()) {
            Some(flow) => flow.controller.undo(cwnd, prior),
            None => reno::undo(cwnd, prior),
        }
    }
);

entry_point!(
    /// The congestion-avoidance state is about to change, or is set anew: each retransmission
    /// timeout sets `Loss` (`tcp_enter_loss`, net/ipv4/tcp_input.c, Linux 6.1). They are counted
    /// here for kernels without `tcp_sock.total_rto`; `CA_EVENT_LOSS` is not sent for a timeout in
    /// recovery, nor for one that follows another.
    cc_set_state, "fentry/cc_set_state", |arguments| {
        let new = CaState::from_raw(arguments.get(1) as u32);
        let socket = arguments.socket();
        let mut state = socket.state();
        if new == CaState::Loss {
            state.rtos += 1;
            socket.set_state(state);
        }
        if let Some(flow) = flow_of(&state)
            && flow.controller.on_state(new)
        {
            count(Counter::Timeouts);
        }
        0
    }
);

entry_point!(
    /// The connection transmits while nothing is in flight: before Linux 7.1.
    cc_cwnd_event, "fentry/cc_cwnd_event", |arguments| {
        if arguments.get(1) as u32 == CA_EVENT_TX_START {
            transmit(arguments.socket());
        }
        0
    }
);

entry_point!(
    /// Does the same since Linux 7.1, where this event has a callback of its own,
    /// `cwnd_event_tx_start(sk)`.
    cc_tx_start, "fentry/cc_tx_start", |arguments| {
        transmit(arguments.socket());
        0
    }
);

entry_point!(
    /// Returns the fewest segments that are sent together.
    cc_min_tso_segs, "fentry/cc_min_tso_segs", |_arguments| {
        // Without settings there is no flow either, so the default of the kernel will do.
        SETTINGS.get(0).map_or(2, Settings::min_burst)
    }
);

entry_point!(
    /// Returns how many cwnds the send buffer is to hold.
    cc_sndbuf_expand, "fentry/cc_sndbuf_expand", |_arguments| SEND_BUFFER_CWNDS
);

entry_point!(
    /// An ACK, on Linux 6.10 and newer: `cong_control(sk, ack, flag, rs)`.
    cc_cong_control, "fentry/cc_cong_control", |arguments| {
        cong_control(&arguments, arguments.socket(), arguments.rate_sample(3));
        0
    }
);

entry_point!(
    /// An ACK, before Linux 6.10: `cong_control(sk, rs)`.
    cc_cong_control_2, "fentry/cc_cong_control_2", |arguments| {
        cong_control(&arguments, arguments.socket(), arguments.rate_sample(1));
        0
    }
);

/// Handles an ACK: opens the flow if this is its first one, measures it, and sets cwnd and pacing
/// rate. A flow without a slot runs on Reno.
#[inline(always)]
fn cong_control(arguments: &Arguments, socket: Socket, sample: RateSample) {
    let (Some(settings), Some(heartbeat)) = (SETTINGS.get(0), HEARTBEAT.get(0)) else {
        return;
    };
    let mut state = socket.state();
    let now_ns = socket.now_ns();
    let rtos = state.rtos;
    if state.opens(socket.is_synchronised(), now_ns, || socket.totals(rtos)) {
        // Once more, since `init` may have been left out, or called while a BPF program was
        // choosing this congestion control, when no other can be chosen.
        match leave(socket) {
            Outcome::Served => {}
            Outcome::Left => return,
            Outcome::Kept => {
                count(Counter::ConnectionsKept);
            }
        }
        if !open(socket, &mut state, now_ns, socket.cwnd())
            && state.wait(now_ns)
            && count(Counter::FlowsWithoutSlot).is_power_of_two()
        {
            warn!(
                arguments,
                "no free slot: a flow runs on Reno until there is one"
            );
        }
        socket.set_state(state);
    }
    let mut cwnd = socket.cwnd_state();
    let sampled = || socket.ack_sample(sample, socket.totals(rtos));
    let Some(flow) = flow_of(&state) else {
        if state.has_flow() {
            count(Counter::SlotsRevoked);
            state.wait(now_ns);
            socket.set_state(state);
        }
        let ack = sampled();
        reno::on_ack(&mut cwnd, &ack, ack.acked);
        bound(&mut cwnd, settings);
        let rate = pacing_rate(
            &cwnd,
            &ack,
            ack.srtt_us,
            settings.pacing_gains(Mode::Startup),
        );
        return apply(socket, cwnd, rate, settings);
    };
    let Some(ack) = keep(state.slot, sampled()) else {
        return;
    };
    let mut rings = Rings {
        socket,
        state: &state,
        settings,
    };
    let published = || Published {
        cell: decision_cell(state.slot),
        heartbeat,
    };
    let events = flow.on_ack(&mut cwnd, ack, published, settings, &mut rings);
    tally(arguments, events);
    let rate = flow.controller.pacing_rate(&cwnd, ack, settings);
    apply(socket, cwnd, rate, settings);
}

/// Sets the cwnd, and the pacing rate that goes with it, in bytes/s; `None` leaves it as it is.
#[inline(always)]
fn apply(socket: Socket, cwnd: CwndState, rate: Option<u64>, settings: &Settings) {
    socket.set_cwnd_state(cwnd);
    if let Some(rate) = rate {
        socket.set_pacing(rate, settings.pacing_gain_1024 != 0);
    }
}

/// Handles a transmission while nothing is in flight.
#[inline(always)]
fn transmit(socket: Socket) {
    // After a retransmission timeout nothing counts as in flight either: that is no idle time
    // (`tcp_slow_start_after_idle_check`, include/net/tcp.h).
    if socket.packets_out() > 0 {
        return;
    }
    restart(socket);
    let paced = (SETTINGS.get(0)).is_some_and(|settings| settings.pacing_gain_1024 != 0);
    if paced && let Some(rate) = first_flight_rate(socket.cwnd(), socket.srtt_us(), socket.mss()) {
        socket.raise_pacing(rate);
    }
}

/// Restarts the cwnd of a connection that transmits after idle time, where the host asks for that
/// (`net.ipv4.tcp_slow_start_after_idle`).
#[inline(always)]
fn restart(socket: Socket) {
    let (idle, rto) = socket.idle_and_rto();
    if idle <= rto || !socket.decays_unused() {
        return;
    }
    let mut cwnd = socket.cwnd_state();
    match flow_of(&socket.state()) {
        Some(flow) => flow.controller.on_transmission(&mut cwnd, idle, rto),
        None => {
            restart_after_idle(&mut cwnd, idle, rto);
        }
    }
    socket.set_cwnd_state(cwnd);
    count(Counter::IdleRestarts);
}

/// Counts the transitions that an ACK caused.
#[inline(always)]
fn tally(arguments: &Arguments, events: Events) {
    if events.taken() {
        count(Counter::DecisionsTaken);
    }
    if events.clamped() {
        count(Counter::DecisionsClamped);
    }
    if events.stale() {
        count(Counter::DecisionsStale);
    }
    if events.marks_answered() {
        count(Counter::MarksAnswered);
    }
    if events.loss_answered() {
        count(Counter::LossAnswered);
    }
    if events.unanswered() {
        count(Counter::FlowsUnanswered);
    }
    if events.fallback_entered() && count(Counter::FallbacksEntered).is_power_of_two() {
        warn!(
            arguments,
            "a flow falls back to Reno: no heartbeat of the agent, or no decision for the flow"
        );
    }
    if events.fallback_left() {
        count(Counter::FallbacksLeft);
    }
}
