//! A `sock_ops` program on cgroups that makes their sockets use this congestion control.

use aya_ebpf::{
    EbpfContext, helpers::bpf_skc_to_tcp_sock, macros::sock_ops, programs::SockOpsContext,
};
use aya_log_ebpf::debug;

use crate::{
    layout::NAME,
    leave::{is_out_of_scope, set_congestion_control},
    socket::Socket,
    structure::Structure,
};

// Operations of include/uapi/linux/bpf.h.
const BPF_SOCK_OPS_TCP_CONNECT_CB: u32 = 3;
const BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB: u32 = 5;

/// Sets the congestion control of connections that the cgroup opens or accepts, but for those that
/// the lists leave to another one: these keep what they have.
#[sock_ops]
pub(crate) fn cc_choose(context: SockOpsContext) -> u32 {
    if !matches!(
        context.op(),
        BPF_SOCK_OPS_TCP_CONNECT_CB | BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB
    ) || socket(&context).is_some_and(|socket| is_out_of_scope(socket, true))
    {
        return 0;
    }
    // SAFETY: a static that the loader has filled.
    let name = unsafe { core::ptr::read_volatile(&raw const NAME) };
    // SAFETY: the context of a `sock_ops` program.
    let refused = unsafe { set_congestion_control(context.as_ptr(), name) };
    if refused != 0 {
        debug!(
            &context,
            "a socket of the cgroup kept its congestion control: error {}", refused
        );
    }
    0
}

/// The socket that the program was called for.
#[inline(always)]
fn socket(context: &SockOpsContext) -> Option<Socket> {
    // SAFETY: a member of the context, which the verifier knows; it may be null.
    let socket = unsafe { (*context.ops).__bindgen_anon_2.sk };
    if socket.is_null() {
        return None;
    }
    // SAFETY: the helper takes any socket, and returns null unless it is a `tcp_sock`.
    let socket = unsafe { bpf_skc_to_tcp_sock(socket.cast()) };
    // SAFETY: the helper returns a `tcp_sock`, locked as both operations have it.
    (!socket.is_null()).then(|| unsafe { Socket::new(Structure::at(socket.cast())) })
}
