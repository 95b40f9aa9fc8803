//! Observing flows of other congestion controls: programs that trace the kernel's TCP and change nothing.
//!
//! An ACK is seen in one of two ways. `tcp_ack` (net/ipv4/tcp_input.c) completes the rate sample in `tcp_rate_gen` and
//! hands it to the congestion control right after: at the end of the one the socket is as our own `cong_control` finds
//! it. Where functions cannot be traced, the tracepoint `tcp_probe` shows the socket before each segment, and what an ACK
//! did is told by the next one ([`Glimpse`]).

use aya_ebpf::helpers::bpf_ktime_get_ns;
use cc_ebpf::{AckSample, CaState, Counter, Observed, Settings, SocketState};

use crate::{
    arguments::{Arguments, entry_point},
    follow::{Rings, close, flow_of, open},
    maps::{OBSERVED, SELECTION, SETTINGS, count},
    socket::Socket,
};

/// Position of the rate sample in `tcp_rate_gen(sk, delivered, lost, is_sack_reneg, rs)` and, by chance, in
/// `tcp_cong_control(sk, ack, acked_sacked, flag, rs)`.
const RATE_SAMPLE: usize = 4;
/// `TCP_ESTABLISHED` (include/net/tcp_states.h).
const ESTABLISHED: u32 = 1;

/// A new entry: too large for a program's stack.
// SAFETY: integers only, of which any bytes are some.
static BLANK: Observed = unsafe { core::mem::zeroed() };

entry_point!(
    /// An ACK of any connection.
    cc_observe_ack, "fexit/tcp_rate_gen", |arguments| {
        observe_ack(&arguments);
        0
    }
);

entry_point!(
    /// The same moment, for kernels whose `tcp_rate_gen` cannot be traced.
    cc_observe_cc, "fentry/tcp_cong_control", |arguments| {
        observe_ack(&arguments);
        0
    }
);

entry_point!(
    /// A segment arrives at an established connection, for kernels where neither can.
    cc_observe_seg, "tp_btf/tcp_probe", |arguments| {
        observe_segment(&arguments);
        0
    }
);

entry_point!(
    /// A connection is established: where our own `init` would be called.
    cc_observe_init, "tp_btf/inet_sock_set_state", |arguments| {
        if arguments.get(2) as u32 == ESTABLISHED
            && let Some(socket) = arguments.traced_socket()
        {
            forget(socket);
            if !meet(socket) {
                count(Counter::FlowsWithoutSlot);
            }
        }
        0
    }
);

entry_point!(
    /// A connection is no more: where our own `release` would be called.
    cc_observe_end, "tp_btf/tcp_destroy_sock", |arguments| {
        if let Some(socket) = arguments.traced_socket() {
            forget(socket);
        }
        0
    }
);

entry_point!(
    /// Counts timeouts, for kernels that do not.
    cc_observe_loss, "tp_btf/tcp_cong_state_set", |arguments| {
        if CaState::from_raw(arguments.get(1) as u8 as u32) == CaState::Loss
            && let Some(socket) = arguments.traced_socket()
            && socket.ca_state() != CaState::Loss
            && let Some(observed) = OBSERVED.get_ptr_mut(socket.address())
        {
            // SAFETY: a live value, which is changed only under the socket's lock.
            unsafe { (*observed).state.rtos += 1 };
        }
        0
    }
);

#[inline(always)]
fn observe_ack(arguments: &Arguments) {
    let (Some(settings), Some(socket)) = (SETTINGS.get(0), arguments.traced_socket()) else {
        return;
    };
    let Some(observed) = known(socket) else {
        return;
    };
    if observed.state.is_passed_over() {
        return;
    }
    let totals = socket.totals(observed.state.rtos);
    let ack = socket.ack_sample(arguments.rate_sample(RATE_SAMPLE), totals);
    take(&mut observed.state, socket, &ack, socket.cwnd(), settings);
}

#[inline(always)]
fn observe_segment(arguments: &Arguments) {
    let (Some(settings), Some(socket)) = (SETTINGS.get(0), arguments.traced_socket()) else {
        return;
    };
    let Some(observed) = known(socket) else {
        return;
    };
    if observed.state.is_passed_over() {
        return;
    }
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let [first, second] = &mut observed.glimpses;
    let (before, now) = if observed.last == 0 {
        observed.last = 1;
        (first, second)
    } else {
        observed.last = 0;
        (second, first)
    };
    // To the µs, as TCP's own stamps are, so that neither runs before the other.
    socket.glimpse(now, now_ns / 1_000 * 1_000, observed.state.rtos);
    if observed.pending != 0 {
        let ack = now.ack_before(before);
        take(&mut observed.state, socket, &ack, before.cwnd, settings);
    }
    observed.pending = u32::from(socket.is_acked_by(arguments.segment(1)));
}

/// What is known of a socket; nothing where it is looked at for the first time, or anew, as it has changed its
/// congestion control: its next ACK is compared with this one.
#[inline(always)]
fn known(socket: Socket) -> Option<&'static mut Observed> {
    let Some(observed) = OBSERVED.get_ptr_mut(socket.address()) else {
        if socket.is_synchronised() {
            meet(socket);
        }
        return None;
    };
    // SAFETY: a live value, which is changed only under the socket's lock.
    let observed = unsafe { &mut *observed };
    if observed.ops == socket.congestion_ops() {
        return Some(observed);
    }
    forget(socket);
    meet(socket);
    None
}

/// Takes an ACK that found the window at `cwnd` segments.
#[inline(always)]
fn take(kept: &mut SocketState, socket: Socket, ack: &AckSample, cwnd: u32, settings: &Settings) {
    if kept.is_ready() {
        let mut state = *kept;
        state.pass_over();
        if !open(socket, &mut state, ack.now_ns, cwnd) {
            count(Counter::FlowsWithoutSlot);
        }
        *kept = state;
    }
    if let Some(flow) = flow_of(kept) {
        let mut rings = Rings {
            socket,
            state: kept,
            settings,
        };
        flow.measure(ack, cwnd, settings, &mut rings);
    }
}

/// Looks at a socket for the first time: its totals count from here. False when there is no room to remember it.
#[inline(always)]
fn meet(socket: Socket) -> bool {
    let key = socket.address();
    if OBSERVED.insert(key, &BLANK, 0).is_err() {
        return false;
    }
    if let Some(observed) = OBSERVED.get_ptr_mut(key) {
        // SAFETY: a live value, which is changed only under the socket's lock.
        let observed = unsafe { &mut *observed };
        observed.ops = socket.congestion_ops();
        observed.state.base = socket.totals(0);
        observed.state.stage = if is_selected(socket) {
            SocketState::READY
        } else {
            SocketState::OPENED
        };
    }
    true
}

/// Ends the socket's flow, if it has one.
#[inline(always)]
fn forget(socket: Socket) {
    let key = socket.address();
    if let Some(observed) = OBSERVED.get_ptr_mut(key) {
        // SAFETY: a live value; copied before it is removed.
        let state = unsafe { (*observed).state };
        close(socket, &state);
        // Nobody else removes it, and if it were gone nothing would be lost.
        let _ = OBSERVED.remove(key);
    }
}

#[inline(always)]
fn is_selected(socket: Socket) -> bool {
    let Some(selection) = SELECTION.get(0) else {
        return false;
    };
    let mut identity = cc_ebpf::Identity::default();
    socket.identify(&mut identity);
    selection.takes(&identity) && (!selection.asks_cgroup() || socket.is_within(selection))
}
