//! A `sock_ops` program on a cgroup that makes the cgroup's sockets use this congestion control.

use aya_ebpf::{
    EbpfContext, cty::c_void, helpers::bpf_setsockopt, macros::sock_ops, programs::SockOpsContext,
};
use aya_log_ebpf::debug;

use crate::layout::NAME;

// Operations of include/uapi/linux/bpf.h, socket options of include/uapi/linux/tcp.h.
const BPF_SOCK_OPS_TCP_CONNECT_CB: u32 = 3;
const BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB: u32 = 5;
const SOL_TCP: i32 = 6;
const TCP_CONGESTION: i32 = 13;

/// Sets the congestion control of connections that the cgroup opens or accepts.
#[sock_ops]
pub(crate) fn cc_choose(context: SockOpsContext) -> u32 {
    if !matches!(
        context.op(),
        BPF_SOCK_OPS_TCP_CONNECT_CB | BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB
    ) {
        return 0;
    }
    // SAFETY: a static that the loader has filled; the helper reads the copy on the stack.
    let refused = unsafe {
        let mut name = core::ptr::read_volatile(&raw const NAME);
        bpf_setsockopt(
            context.as_ptr(),
            SOL_TCP,
            TCP_CONGESTION,
            (&raw mut name).cast::<c_void>(),
            size_of_val(&name) as i32,
        )
    };
    if refused != 0 {
        debug!(
            &context,
            "a socket of the cgroup kept its congestion control: error {}", refused
        );
    }
    0
}
