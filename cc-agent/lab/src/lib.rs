//! A laboratory for TCP on the running kernel, used by tests and benchmarks only.
//!
//! | purpose | items |
//! |---|---|
//! | running trials, one at a time | [`run()`], [`run_on_links`], [`trials!`], [`harness`] |
//! | paths | [`Network`], [`Path`], [`Bottleneck`], [`Namespace`], [`Cgroup`] |
//! | traffic | [`Flow`], [`Crowd`], [`Churn`], [`Sink`] |
//! | a scripted TCP peer, segment by segment | [`peer`] |
//! | the kernel's view of a connection | [`TcpInfo`] |
//! | the agent's own binary as a child process | [`Agent`], [`agent_beside`] |
//! | an API server of Kubernetes, with faults | [`ApiServer`], [`Fault`] |
//! | manifests against the types of the Kubernetes API | [`manifest`] |
//! | killing a process at any of its system calls, or making one fail | [`supervise`] |
//! | little disk, little memory | [`SmallDisk`], [`MemoryCgroup`] |
//! | records of a datapath or an observer | [`Tap`], [`TestAgent`], [`assert_window_is`] |
//! | BPF programs and maps | [`Footprint`], [`ProgramTime`] |
//! | the kernel's own bbr, measured as a BPF program | [`register_kernel_bbr`] |
//! | waiting | [`eventually`], [`within_five_attempts`] |
//! | reporting | [`Report`], [`figure`], [`median`] |
//!
//! A path without a rate limit has an RTT of some 30 µs and no queue: any loss then looks like a
//! thousandfold delay. Tests therefore send through a [`Bottleneck`], whose queue provides the
//! delay.
//!
//! Namespaces, cgroups and processes are removed when their values are dropped, also while a panic
//! unwinds. Names contain the process id, so that the next program can remove what a killed one
//! left behind ([`exclusive`]).
//!
//! A test program of its own, with `harness = false` in its Cargo.toml, looks like this. It needs
//! root, so the example is only compiled:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use cc_lab::{Bottleneck, Network};
//!
//! fn main() -> ExitCode {
//!     cc_lab::run(cc_lab::trials![a_flow_arrives_whole])
//! }
//!
//! fn a_flow_arrives_whole() {
//!     let network = Network::through(Bottleneck {
//!         rate_mbit: 20,
//!         queue_bytes: 100_000,
//!     });
//!     let flow = network.connect("reno");
//!     flow.send(1_000_000);
//!     let info = flow.finish();
//!     assert_eq!(network.sink.received_from(flow.port()), 1_000_000);
//!     assert!(info.min_rtt > 0);
//! }
//! ```

mod agent;
mod api_server;
mod cgroup;
mod churn;
mod crowd;
mod eventually;
mod exact;
mod footprint;
pub mod harness;
mod kernel_bbr;
pub mod manifest;
mod namespace;
mod network;
mod path;
pub mod peer;
mod program_time;
mod report;
mod small_disk;
mod steps;
mod tap;
mod tcp;
mod tcp_info;

pub use agent::{Agent, agent_beside, beyond_unit, is_slow};
pub use api_server::{ApiServer, Fault};
pub use cgroup::{Cgroup, MemoryCgroup};
pub use churn::Churn;
pub use crowd::Crowd;
pub use eventually::{eventually, within_five_attempts};
pub use exact::assert_window_is;
pub use footprint::Footprint;
pub use kernel_bbr::{BBR_PROGRAM, register_kernel_bbr};
pub use namespace::Namespace;
pub use network::Network;
pub use path::{Bottleneck, Offloads, Path};
pub use program_time::ProgramTime;
pub use report::{Report, figure, median};
pub use small_disk::SmallDisk;
pub use steps::{Step, Verdict, supervise};
pub use tap::{
    Publication, RecordSource, Seen, Tap, TestAgent, datapath_options, is_same_flow,
    observer_options,
};
pub use tcp::{AfterEnd, Flow, Sink};
pub use tcp_info::TcpInfo;

use std::{
    path::Path as FilePath,
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
};

use harness::Exclusive;
pub use harness::Outcome;

/// Runs trials that need a datapath in the kernel, and returns the program's exit code.
///
/// Where this host lacks a requirement ([`unmet_requirement`]), all trials are reported as ignored.
pub fn run(trials: &[harness::Named]) -> ExitCode {
    harness::run(trials, unmet_requirement())
}

/// Runs trials that need emulated links (TUN devices), and returns the program's exit code.
///
/// Where this host lacks root, iproute2, network namespaces or the TUN driver, all trials are
/// reported as ignored.
pub fn run_on_links(trials: &[harness::Named]) -> ExitCode {
    let no_tun = || {
        let missing = !FilePath::new("/dev/net/tun").exists();
        missing.then(|| "no TUN driver (`modprobe tun`)".to_owned())
    };
    harness::run(trials, harness::unmet_requirement().or_else(no_tun))
}

/// Returns what this host lacks for tests of the datapath, or `None` if they can run here.
pub fn unmet_requirement() -> Option<String> {
    harness::unmet_requirement().or_else(|| {
        if !cc_agent::kernel::datapath::has_object() {
            return Some("built without the BPF object (`cargo xtask build` makes it)".into());
        }
        let missing = !FilePath::new("/sys/kernel/btf/vmlinux").exists();
        missing.then(|| "the kernel shows no BTF at /sys/kernel/btf/vmlinux".into())
    })
}

/// Returns whether this kernel registers a congestion control by a link (Linux 6.4), so that its
/// name ends with the agent, whatever ends that.
pub fn links_register() -> bool {
    let report = cc_agent::kernel::host::check();
    let mut needs = report.needs.iter();
    needs.any(|need| need.name == "struct_ops links" && need.ok == Some(true))
}

/// Waits for the exclusive use of the live kernel, then removes the namespaces and cgroups that
/// killed programs left behind.
///
/// # Panics
///
/// Panics if the lock file in /run cannot be created or locked.
pub fn exclusive() -> Exclusive {
    let exclusive = Exclusive::take();
    sweep();
    exclusive
}

/// Returns a name for a congestion control, unique over this host's running programs.
pub fn unique_name() -> String {
    format!("rlt{}x{}", std::process::id(), next_number())
}

/// Returns whether `name` was made by [`unique_name`] in this process.
pub fn is_unique_name(name: &str) -> bool {
    name.starts_with(&format!("rlt{}x", std::process::id()))
}

/// Removes the namespaces and cgroups that killed programs left behind.
fn sweep() {
    remove_places(has_ended);
}

/// Removes this process's own namespaces and cgroups, for an exit that runs no destructors.
fn remove_own_places() {
    remove_places(|pid| pid == std::process::id().to_string());
}

/// Removes namespaces and cgroups whose names contain a process id that `belongs` accepts.
fn remove_places(belongs: fn(&str) -> bool) {
    let selected = |name: &str| process_of(name).is_some_and(belongs);
    namespace::remove_all(selected);
    cgroup::remove_all(selected);
}

/// The start of the names of namespaces and cgroups.
const PREFIX: &str = "cclab";

/// Returns a name for a namespace or a cgroup: [`PREFIX`], the process id, a number, and the role.
fn unique_place(role: &str) -> String {
    format!("{PREFIX}-{}-{}-{role}", std::process::id(), next_number())
}

/// Returns the process id in a name by [`unique_place`], or `None` for any other name.
fn process_of(name: &str) -> Option<&str> {
    let mut parts = name.split('-');
    (parts.next() == Some(PREFIX)).then(|| parts.next())?
}

fn has_ended(pid: &str) -> bool {
    !FilePath::new("/proc").join(pid).exists()
}

fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_places_contain_their_process() {
        let own = unique_place("s");
        assert_eq!(process_of(&own), Some(&*std::process::id().to_string()));
        assert_eq!(process_of("cclab-12-1-s"), Some("12"));
        assert_eq!(process_of("cclab"), None);
        assert_eq!(process_of("docker-12-1"), None);
    }
}
