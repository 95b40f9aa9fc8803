//! A laboratory for TCP on the running kernel, for tests and benchmarks.
//!
//! - [`harness`] decides whether this host can run such tests, runs them one at a time and keeps two
//!   test programs from running them at once: they share one kernel and its processors.
//! - [`Namespace`] and [`Path`] build what packets travel through: network namespaces of unique
//!   names, joined by veth pairs, with a rate limit on a router between them. The queue of the limit
//!   is where delay comes from: a path without one has an RTT of some 30 µs and teaches nothing.
//! - [`Flow`], [`Crowd`] and [`Sink`] send and receive; [`TcpInfo`] is what the kernel itself says
//!   about a connection.
//! - [`Agent`] is the agent's own binary, [`Cgroup`] a place for sockets that it may be told to serve.
//! - [`Pump`] is an agent in miniature for a datapath in this process.
//! - [`Footprint`] lists what a datapath has in the kernel, to show that it is gone.
//!
//! Everything is taken down when it is dropped, in a panic too. What a killed program left behind is
//! swept away by the next one ([`harness::run`]).
#![allow(dead_code, unused_imports, reason = "each program uses its own part")]

mod agent;
mod cgroup;
mod crowd;
mod footprint;
mod harness;
mod namespace;
mod path;
mod program_time;
mod pump;
mod tcp;
mod tcp_info;

pub(crate) use agent::Agent;
pub(crate) use cgroup::Cgroup;
pub(crate) use crowd::Crowd;
pub(crate) use footprint::Footprint;
pub(crate) use harness::{Exclusive, run, unmet_requirement};
pub(crate) use namespace::Namespace;
pub(crate) use path::{Bottleneck, Offloads, Path};
pub(crate) use program_time::ProgramTime;
pub(crate) use pump::{Pump, options};
pub(crate) use tcp::{AfterEnd, Flow, Sink};
pub(crate) use tcp_info::TcpInfo;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long [`eventually`] is patient. Far beyond what anything takes on a busy machine: reaching it
/// means that the thing does not happen at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls until `attempt` gives something.
///
/// # Panics
///
/// When it never does; `what` says what was waited for.
pub(crate) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "this never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A name for a congestion control that no other test uses.
pub(crate) fn unique_name() -> String {
    format!("rlt{}x{}", std::process::id(), next_number())
}

/// Whether this is a [`unique_name`] of this program.
pub(crate) fn is_unique_name(name: &str) -> bool {
    name.starts_with(&format!("rlt{}x", std::process::id()))
}

/// Begins the names of namespaces and cgroups.
const PREFIX: &str = "cclab";

/// A name for a namespace or a cgroup: [`PREFIX`], the process id, a number, and the role.
fn unique_place(role: &str) -> String {
    format!("{PREFIX}-{}-{}-{role}", std::process::id(), next_number())
}

/// Whether this is a name by [`unique_place`] of a program that is no more.
fn belongs_to_the_dead(name: &str) -> bool {
    let mut parts = name.split('-');
    parts.next() == Some(PREFIX)
        && parts
            .next()
            .is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists())
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
