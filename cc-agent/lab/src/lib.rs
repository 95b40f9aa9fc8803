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
//! - [`Pump`] is an agent in miniature for a datapath in this process, [`Watcher`] one that only observes;
//!   [`assert_window_is`] computes a window anew from its ACKs.
//! - [`Footprint`] lists what a datapath or an observer has in the kernel, to show that it is gone.
//!
//! Everything is taken down when it is dropped, in a panic too. What a killed program left behind is
//! swept away by the next one ([`exclusive`]).

mod agent;
mod cgroup;
mod crowd;
mod eventually;
mod exact;
mod footprint;
pub mod harness;
mod namespace;
mod path;
mod program_time;
mod pump;
mod report;
mod tcp;
mod tcp_info;
mod watcher;

pub use agent::Agent;
pub use cgroup::Cgroup;
pub use crowd::Crowd;
pub use eventually::eventually;
pub use exact::assert_window_is;
pub use footprint::Footprint;
pub use namespace::Namespace;
pub use path::{Bottleneck, Offloads, Path};
pub use program_time::ProgramTime;
pub use pump::{Pump, options};
pub use report::{Report, median};
pub use tcp::{AfterEnd, Flow, Sink};
pub use tcp_info::TcpInfo;
pub use watcher::{Watcher, watching};

use std::{
    path::Path as FilePath,
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
};

use harness::Exclusive;
pub use harness::Outcome;

/// Runs the trials, where this host has what they need.
pub fn run(trials: &[harness::Named<()>]) -> ExitCode {
    harness::run(trials, unmet_requirement(), sweep)
}

/// Runs the trials, where this host has what emulated links need.
pub fn run_on_links(trials: &[harness::Named<Outcome>]) -> ExitCode {
    let no_tun = || {
        let missing = !FilePath::new("/dev/net/tun").exists();
        missing.then(|| "no TUN driver (`modprobe tun`)".to_owned())
    };
    // Emulated links have no names that could be left behind.
    harness::run(trials, harness::unmet_requirement().or_else(no_tun), || {})
}

/// What this host lacks for tests of the datapath, if anything.
pub fn unmet_requirement() -> Option<String> {
    harness::unmet_requirement().or_else(|| {
        if !cc_agent::kernel::datapath::has_object() {
            return Some("built without the BPF object (`cargo xtask build` makes it)".into());
        }
        let missing = !FilePath::new("/sys/kernel/btf/vmlinux").exists();
        missing.then(|| "the kernel shows no BTF at /sys/kernel/btf/vmlinux".into())
    })
}

/// Waits for the right to use the live kernel, and sweeps away what dead programs left behind.
pub fn exclusive() -> Exclusive {
    let exclusive = Exclusive::take();
    sweep();
    exclusive
}

fn sweep() {
    namespace::sweep();
    cgroup::sweep();
}

/// A name for a congestion control that no other test uses.
pub fn unique_name() -> String {
    format!("rlt{}x{}", std::process::id(), next_number())
}

/// Whether this is a [`unique_name`] of this program.
pub fn is_unique_name(name: &str) -> bool {
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
            .is_some_and(|pid| !FilePath::new("/proc").join(pid).exists())
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
