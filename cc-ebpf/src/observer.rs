//! Observing flows of other congestion controls: programs that trace the kernel's TCP and change nothing.
//!
//! `tcp_ack` (net/ipv4/tcp_input.c) completes the rate sample in `tcp_rate_gen` and hands it to the congestion control
//! right after, so at the end of the one the socket is as our own `cong_control` finds it: the same features come out.

use cc_ebpf::{CaState, Counter, SocketState};

use crate::{
    arguments::{Arguments, entry_point},
    follow::{close, flow_of, measure, open},
    maps::{OBSERVED, SELECTION, SETTINGS, count},
    socket::Socket,
};

/// Position of the rate sample in `tcp_rate_gen(sk, delivered, lost, is_sack_reneg, rs)` and, by chance, in
/// `tcp_cong_control(sk, ack, acked_sacked, flag, rs)`.
const RATE_SAMPLE: usize = 4;

/// What is kept of a socket that was looked at. One that the selection passes over stays here as well, in stage
/// [`SocketState::OPENED`] without a slot, so that it is not looked at again on each ACK.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Observed {
    state: SocketState,
    /// The congestion control that it had.
    ops: u64,
}

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
    /// A connection is established, or changes its congestion control: where our own `init` would be called.
    cc_observe_init, "fexit/tcp_init_congestion_control", |arguments| {
        if let Some(socket) = arguments.traced_socket() {
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
    let Some(observed) = OBSERVED.get_ptr_mut(socket.address()) else {
        // It is older than we are: its next ACK is compared with this one.
        if socket.is_synchronised() {
            meet(socket);
        }
        return;
    };
    // SAFETY: a live value, which is changed only under the socket's lock.
    let observed = unsafe { &mut *observed };
    if observed.ops != socket.congestion_ops() {
        forget(socket);
        meet(socket);
        return;
    }
    if observed.state.stage == SocketState::READY {
        let mut state = observed.state;
        state.stage = SocketState::OPENED;
        if !open(socket, &mut state) {
            count(Counter::FlowsWithoutSlot);
        }
        observed.state = state;
    }
    let state = observed.state;
    if let Some(flow) = flow_of(&state) {
        let ack = socket.ack_sample(arguments.rate_sample(RATE_SAMPLE), socket.totals(state.rtos));
        measure(flow, socket, &ack, socket.cwnd(), &state, settings);
    }
}

/// Looks at a socket for the first time: its totals count from here. False when there is no room to remember it.
#[inline(always)]
fn meet(socket: Socket) -> bool {
    let stage = if is_selected(socket) {
        SocketState::READY
    } else {
        SocketState::OPENED
    };
    let observed = Observed {
        state: SocketState {
            stage,
            base: socket.totals(0),
            ..SocketState::default()
        },
        ops: socket.congestion_ops(),
    };
    OBSERVED.insert(socket.address(), observed, 0).is_ok()
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
