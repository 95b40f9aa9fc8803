//! The callbacks of `tcp_congestion_ops` (include/net/tcp.h, Linux 6.18).

use aya_log_ebpf::warn;
use cc_ebpf::{CaState, Counter, Events, Published, Settings, SocketState, pacing_rate, reno};

use crate::{
    arguments::{Arguments, entry_point},
    follow::{Rings, close, decision_cell, flow_of, open},
    maps::{HEARTBEAT, SETTINGS, count},
    socket::{RateSample, Socket},
};

/// `CA_EVENT_LOSS` of `enum tcp_ca_event` (include/net/tcp.h).
const CA_EVENT_LOSS: u64 = 3;

entry_point!(
    /// The congestion control was attached to a connection: remembers where its totals stand. The
    /// flow is opened by its next ACK ([`SocketState::opens`]), since not every `init` is paired
    /// with a `release`. For the same reason a flow that is still open is closed first.
    cc_init, "fentry/cc_init", |arguments| {
        let socket = arguments.socket();
        let state = socket.state();
        if state.has_flow() {
            close(socket, &state);
        }
        socket.set_state(SocketState::ready(socket.totals(0)));
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
    /// The congestion-avoidance state is about to change.
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

entry_point!(
    /// Counts retransmission timeouts, for kernels without `tcp_sock.total_rto`.
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

entry_point!(
    /// Returns the fewest segments that are sent together.
    cc_min_tso_segs, "fentry/cc_min_tso_segs", |_arguments| {
        // Without settings there is no flow either, so the default of the kernel will do.
        SETTINGS.get(0).map_or(2, Settings::min_burst)
    }
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
    let totals = socket.totals(state.rtos);
    if state.opens(socket.is_synchronised(), totals) {
        if !open(socket, &mut state, socket.now_ns(), socket.cwnd())
            && count(Counter::FlowsWithoutSlot).is_power_of_two()
        {
            warn!(
                arguments,
                "no free slot: a flow runs on the fallback for life"
            );
        }
        socket.set_state(state);
    }
    let ack = socket.ack_sample(sample, totals);
    let mut cwnd = socket.cwnd_state();
    match flow_of(&state) {
        Some(flow) => {
            let published = || Published {
                cell: decision_cell(state.slot),
                heartbeat,
            };
            let mut rings = Rings {
                socket,
                state: &state,
                settings,
            };
            let events = flow.on_ack(&mut cwnd, &ack, published, settings, &mut rings);
            tally(arguments, events);
        }
        None => {
            reno::on_ack(&mut cwnd, &ack);
            if cwnd.cwnd > settings.cwnd_max {
                cwnd.cwnd = settings.cwnd_max;
            }
        }
    }
    socket.set_cwnd_state(cwnd);
    if let Some(rate) = pacing_rate(&cwnd, &ack, settings.pacing_gain_1024) {
        socket.set_pacing(rate, settings.pacing_gain_1024 != 0);
    }
}

/// Counts the transitions that an ACK caused.
#[inline(always)]
fn tally(arguments: &Arguments, events: Events) {
    let Events {
        taken,
        clamped,
        stale,
        fallback_entered,
        fallback_left,
    } = events;
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
