//! Programs that observe flows of other congestion controls: they trace the kernel's TCP and change
//! nothing.
//!
//! An ACK is seen in one of two ways. `tcp_ack` (net/ipv4/tcp_input.c, Linux 6.18) completes the
//! rate sample in `tcp_rate_gen` and passes it to the congestion control right after, so when
//! `tcp_rate_gen` returns, the socket is as `cong_control` would find it. Where functions cannot be
//! traced, the tracepoint `tcp_probe` shows the socket before each segment, and the effect of an
//! ACK is what has changed by the next segment ([`Glimpse`](cc_ebpf::Glimpse)).
//!
//! Where tracepoints cannot be used either, kprobes are at the functions that contain them:
//! `tcp_rcv_established` begins with `tcp_probe`, `tcp_v4_destroy_sock`, which serves IPv6 too,
//! with `tcp_destroy_sock`, and `tcp_set_ca_state` with `tcp_cong_state_set`; `tcp_set_state`
//! contains `inet_sock_set_state`. They see the same, one for one.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use cc_ebpf::{AckSample, CaState, Counter, Observed, Settings, SocketState};

use crate::{
    arguments::{Arguments, entry_point},
    follow::{Rings, close, flow_of, open},
    maps::{OBSERVED, SELECTION, SETTINGS, count},
    socket::{ESTABLISHED, Segment, Socket},
    structure::Memory,
};

/// Position of the rate sample in the arguments of `tcp_rate_gen(sk, delivered, lost,
/// is_sack_reneg, rs)`, and also of `tcp_cong_control(sk, ack, acked_sacked, flag, rs)`.
const RATE_SAMPLE: usize = 4;
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
        if let Some(socket) = arguments.traced_socket() {
            observe_segment(socket, arguments.segment(1));
        }
        0
    }
);

entry_point!(
    /// The same by a kprobe: `tcp_rcv_established(sk, skb)`.
    cc_probe_seg, "kprobe/tcp_rcv_established", |arguments| {
        let registers = arguments.registers();
        observe_segment(registers.socket(), registers.segment());
        0
    }
);

entry_point!(
    /// A connection is established: where the kernel calls `init`.
    cc_observe_init, "tp_btf/inet_sock_set_state", |arguments| {
        if arguments.get(2) as u32 == ESTABLISHED
            && let Some(socket) = arguments.traced_socket()
        {
            begin(socket);
        }
        0
    }
);

entry_point!(
    /// The same by a kprobe: `tcp_set_state(sk, state)`.
    cc_probe_init, "kprobe/tcp_set_state", |arguments| {
        let registers = arguments.registers();
        if registers.second() as u32 == ESTABLISHED {
            begin(registers.socket());
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
    /// The same by a kprobe: `tcp_v4_destroy_sock(sk)`.
    cc_probe_end, "kprobe/tcp_v4_destroy_sock", |arguments| {
        forget(arguments.registers().socket());
        0
    }
);

entry_point!(
    /// Counts retransmission timeouts, for kernels without `tcp_sock.total_rto`: each one sets the
    /// state `Loss`, also where it is set already.
    cc_observe_loss, "tp_btf/tcp_cong_state_set", |arguments| {
        if let Some(socket) = arguments.traced_socket() {
            count_timeout(socket, arguments.get(1) as u8);
        }
        0
    }
);

entry_point!(
    /// The same by a kprobe: `tcp_set_ca_state(sk, ca_state)`.
    cc_probe_loss, "kprobe/tcp_set_ca_state", |arguments| {
        let registers = arguments.registers();
        count_timeout(registers.socket(), registers.second() as u8);
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
fn observe_segment<M: Memory>(socket: Socket<M>, segment: Segment<M>) {
    let (Some(settings), Some(observed)) = (SETTINGS.get(0), known(socket)) else {
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
    observed.pending = u32::from(socket.is_acked_by(segment));
}

/// Enters a connection that is established. A former one at the same address has ended.
#[inline(always)]
fn begin<M: Memory>(socket: Socket<M>) {
    forget(socket);
    if !meet(socket) {
        count(Counter::FlowsWithoutSlot);
    }
}

/// Counts a timeout when the congestion-avoidance state is set to `Loss`.
#[inline(always)]
fn count_timeout<M: Memory>(socket: Socket<M>, ca_state: u8) {
    if CaState::from_raw(u32::from(ca_state)) == CaState::Loss
        && let Some(observed) = OBSERVED.get_ptr_mut(socket.address())
    {
        // SAFETY: a live value, which is changed only under the socket's lock.
        unsafe { (*observed).state.rtos += 1 };
    }
}

/// The entry of a socket that was met before. `None` when the socket is met only now, or anew
/// because it has changed its congestion control: the differences of its next ACK count from here.
#[inline(always)]
fn known<M: Memory>(socket: Socket<M>) -> Option<&'static mut Observed> {
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
fn take<M: Memory>(
    kept: &mut SocketState,
    socket: Socket<M>,
    ack: &AckSample,
    cwnd: u32,
    settings: &Settings,
) {
    if kept.is_ready() {
        let mut state = *kept;
        state.pass_over();
        socket.assign_cookie();
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
fn meet<M: Memory>(socket: Socket<M>) -> bool {
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
fn forget<M: Memory>(socket: Socket<M>) {
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
fn is_selected<M: Memory>(socket: Socket<M>) -> bool {
    let Some(selection) = SELECTION.get(0) else {
        return false;
    };
    let mut identity = cc_ebpf::Identity::default();
    socket.identify(&mut identity);
    selection.takes(&identity) && (!selection.asks_cgroup() || socket.is_within(selection))
}
