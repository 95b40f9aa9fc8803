//! Programs that have the kernel give each TCP connection a cookie, by which rows pair with what
//! `ss` shows and applications measure.

use aya::{Btf, Ebpf};

use super::{
    btf,
    hook::{Hook, Kind},
};

/// Where a connection is established, whatever its congestion control.
const ESTABLISHED: Hook = Hook {
    program: "cc_cookie",
    target: "inet_sock_set_state",
    kind: Kind::Tracepoint,
};

/// Where an application sets a socket's congestion control: for connections that were established
/// before the agent started.
const SET: Hook = Hook {
    program: "cc_cookie_set",
    target: "tcp_set_congestion_control",
    kind: Kind::Exit,
};

/// Attaches the programs for as long as `programs` lives. Where the host forbids one, the datapath
/// works without, and the log says which rows have no cookie.
pub(super) fn attach(programs: &mut Ebpf, kernel: &btf::Kernel) {
    let types = match Btf::from_sys_fs() {
        Ok(types) => types,
        Err(error) => {
            tracing::warn!("rows will have no cookies: reading the kernel's BTF: {error}");
            return;
        }
    };
    if let Err(error) = ESTABLISHED.attach(programs, &types) {
        tracing::warn!("rows will have no cookies: {error}");
    }
    let without = "connections that are older than the agent and choose its congestion control \
                   will have no cookies in their rows";
    if !SET.exists(kernel) {
        tracing::info!("{without}: this kernel has no {SET}");
    } else if let Err(error) = SET.attach(programs, &types) {
        tracing::info!("{without}: {error}");
    }
}
