//! Programs that observe flows of other congestion controls: they trace the kernel's TCP and change
//! nothing.
//!
//! An ACK is seen in one of two ways. `tcp_ack` (net/ipv4/tcp_input.c, Linux 6.18) completes the
//! rate sample in `tcp_rate_gen` and passes it to the congestion control right after, so when
//! `tcp_rate_gen` returns, the socket is as `cong_control` would find it. Where functions cannot be
//! traced, the tracepoint `tcp_probe` shows the socket before each segment, and the effect of an
//! ACK is what has changed by the next segment ([`Glimpse`](cc_ebpf::Glimpse)).

use aya_ebpf::helpers::bpf_ktime_get_ns;
use cc_ebpf::{AckSample, CaState, Counter, Observed, Settings, SocketState};

use crate::{
    arguments::{Arguments, entry_point},
    follow::{Rings, close, flow_of, open},
    maps::{OBSERVED, SELECTION, SETTINGS, count},
    socket::Socket,
};

/// Position of the rate sample in the arguments of `tcp_rate_gen(sk, delivered, lost,
/// is_sack_reneg, rs)`, and also of `tcp_cong_control(sk, ack, acked_sacked, flag, rs)`.
const RATE_SAMPLE: usize = 4;
/// `TCP_ESTABLISHED` (include/net/tcp_states.h).
const ESTABLISHED: u32 = 1;

/// A new entry of the map of sockets. It is a static because it is too large for a program's stack.
// SAFETY: all fields are integers, for which zero bytes are valid.
static BLANK: Observed = unsafe { core::mem::zeroed() };

entry_point!(
    /// An ACK of any connection, after the kernel has completed its rate sample.
    cc_observe_ack, "fexit/tcp_rate_gen", |arguments| {
        observe_ack(&arguments);
        0
    }
);

entry_point!(
    /// The same moment, on kernels whose `tcp_rate_gen` cannot be traced.
    cc_observe_cc, "fentry/tcp_cong_control", |arguments| {
        observe_ack(&arguments);
        0
    }
);

entry_point!(
    /// A segment arrives at an established connection, on kernels where neither can be traced.
    cc_observe_seg, "tp_btf/tcp_probe", |arguments| {
        observe_segment(&arguments);
        0
    }
);

entry_point!(
    /// A connection is established: where the kernel calls `init`.
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
    /// A connection is destroyed: where the kernel calls `release`.
    cc_observe_end, "tp_btf/tcp_destroy_sock", |arguments| {
        if let Some(socket) = arguments.traced_socket() {
            forget(socket);
        }
        0
    }
);

entry_point!(
    /// Counts retransmission timeouts, for kernels without `tcp_sock.total_rto`: each one sets the
    /// state `Loss`, also where it is set already.
    cc_observe_loss, "tp_btf/tcp_cong_state_set", |arguments| {
        if CaState::from_raw(arguments.get(1) as u8 as u32) == CaState::Loss
            && let Some(socket) = arguments.traced_socket()
            && let Some(observed) = OBSERVED.get_ptr_mut(socket.address())
        {
            // SAFETY: a live value, which is changed only under the socket's lock.
            unsafe { (*observed).state.rtos += 1 };
        }
        0
    }
);

/// Measures an ACK whose rate sample is among the program's arguments.
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

/// Takes a glimpse of the socket, and measures the ACK before the arriving segment, if there was
/// one.
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
    // Rounded down to 1 µs, as TCP's own stamps are, so that neither runs ahead of the other.
    socket.glimpse(now, now_ns / 1_000 * 1_000, observed.state.rtos);
    if observed.pending != 0 {
        let ack = now.ack_before(before);
        take(&mut observed.state, socket, &ack, before.cwnd, settings);
    }
    observed.pending = u32::from(socket.is_acked_by(arguments.segment(1)));
}

/// The entry of a socket that was met before. `None` when the socket is met only now, or anew
/// because it has changed its congestion control: the differences of its next ACK count from here.
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

/// Measures an ACK that found the cwnd at `cwnd` segments, and opens the flow with its first one.
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

/// Enters a socket into the map: its totals count from here. False when the map is full.
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

/// Removes a socket from the map, and closes its flow, if it has one.
#[inline(always)]
fn forget(socket: Socket) {
    let key = socket.address();
    if let Some(observed) = OBSERVED.get_ptr_mut(key) {
        // SAFETY: a live value; copied before it is removed.
        let state = unsafe { (*observed).state };
        close(socket, &state);
        // No other program removes it, and an entry that is gone already is as good.
        let _ = OBSERVED.remove(key);
    }
}

/// Whether the [`SELECTION`] takes the socket.
#[inline(always)]
fn is_selected(socket: Socket) -> bool {
    let Some(selection) = SELECTION.get(0) else {
        return false;
    };
    let mut identity = cc_ebpf::Identity::default();
    socket.identify(&mut identity);
    selection.takes(&identity) && (!selection.asks_cgroup() || socket.is_within(selection))
}
