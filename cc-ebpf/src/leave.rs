//! Connections that are left to another congestion control, by their remote address and by the
//! device that they are routed over.
//!
//! This is done in the congestion control's own callbacks, so that it holds for every socket that
//! comes under it, in whatever network namespace and cgroup, and while no agent runs.

use aya_ebpf::{cty::c_void, helpers::bpf_setsockopt, maps::lpm_trie::Key};
use cc_ebpf::{Counter, Scope, Verdict};

use crate::{
    layout::scope,
    maps::{DEVICES, NETWORKS, count},
    socket::Socket,
};

// Socket options of include/uapi/linux/tcp.h.
const SOL_TCP: i32 = 6;
const TCP_CONGESTION: i32 = 13;
/// Bits of an address in the trie of networks.
const WHOLE: u32 = 128;

/// What became of a connection that came under this congestion control.
#[derive(PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No list leaves it to another one.
    Served,
    /// It is under another one. Then the socket has that one's state, and nothing is to be written
    /// to it any more.
    Left,
    /// A list leaves it to another one, and the kernel would not have that.
    Kept,
}

/// Leaves a connection to another congestion control where the lists say so.
#[inline(always)]
pub(crate) fn leave(socket: Socket) -> Outcome {
    if !is_out_of_scope(socket, socket.is_chosen()) {
        return Outcome::Served;
    }
    let other = scope!(other);
    // SAFETY: the socket of a callback, which the kernel has locked.
    if unsafe { set_congestion_control(socket.pointer(), other) } != 0 {
        return Outcome::Kept;
    }
    count(Counter::ConnectionsLeft);
    Outcome::Left
}

/// Whether the lists leave a connection to another congestion control. `is_chosen` says whether
/// somebody has chosen this one for the socket.
#[inline(always)]
pub(crate) fn is_out_of_scope(socket: Socket, is_chosen: bool) -> bool {
    let (mut network, mut device) = (Verdict::Serve as u32, Verdict::Serve as u32);
    if scope!(lists_networks) != 0
        && let Some(&verdict) = NETWORKS.get(Key::new(WHOLE, socket.remote6()))
    {
        network = verdict;
    }
    if scope!(lists_devices) != 0 {
        device = scope!(other_devices);
        let name = socket.device();
        // SAFETY: entries are written before the programs run, and never after.
        if let Some(&verdict) = unsafe { DEVICES.get(&name) } {
            device = verdict;
        }
    }
    Scope::leaves(network, device, is_chosen)
}

/// Sets the congestion control of a socket (TCP_CONGESTION) to that of this name. Returns 0, or the
/// kernel's error, a negative number.
///
/// # Safety
///
/// `of` must be what the helper takes in a program of this type: the locked socket of a callback,
/// or the context of a `sock_ops` program.
#[inline(always)]
pub(crate) unsafe fn set_congestion_control(of: *mut c_void, mut name: [u32; 4]) -> i64 {
    // SAFETY: the caller vouches for `of`; the name is on the stack, as long as is said.
    unsafe {
        bpf_setsockopt(
            of,
            SOL_TCP,
            TCP_CONGESTION,
            (&raw mut name).cast::<c_void>(),
            size_of_val(&name) as i32,
        )
    }
}
