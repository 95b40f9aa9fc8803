//! Programs that have the kernel give each TCP connection its cookie.
//!
//! A socket has no cookie until somebody asks for it, and callbacks of a congestion control may not
//! ask (`bpf_tcp_ca_get_func_proto`, net/ipv4/bpf_tcp_ca.c, Linux 6.18); tracing programs may.
//! Every connection gets one when it is established, since it may choose this congestion control
//! later. The cookie is a number that is never given twice. `ss -e` has the kernel give them too.

use crate::{arguments::entry_point, socket::ESTABLISHED};

entry_point!(
    /// A connection is established.
    cc_cookie, "tp_btf/inet_sock_set_state", |arguments| {
        if arguments.get(2) as u32 == ESTABLISHED
            && let Some(socket) = arguments.traced_socket()
        {
            socket.assign_cookie();
        }
        0
    }
);

entry_point!(
    /// An application has set a socket's congestion control, possibly that of a connection older
    /// than these programs.
    cc_cookie_set, "fexit/tcp_set_congestion_control", |arguments| {
        if let Some(socket) = arguments.traced_socket() {
            socket.assign_cookie();
        }
        0
    }
);
