//! What `cc-agent run --record` sets up: who records, where, and what a file says about this host.

use std::{
    collections::BTreeMap,
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::warn;

use crate::kernel::{clock, priority};
use cc_core::{
    interface::Interface,
    policy::PolicyMeta,
    rows::{Addresses, Episodes, FileHeader},
};
use cc_recording::{Limits, Recorder, RecordingError};

/// Niceness of the thread that writes: it has seconds, the others milliseconds.
const NICENESS: i32 = 10;

/// Settings under `/proc/sys` that bear on what TCP does, or on what is measured of it.
const SYSCTLS: [&str; 14] = [
    "net.core.default_qdisc",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_recovery",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
];

/// What to record.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Where, and how much.
    pub limits: Limits,
    /// How addresses are recorded.
    pub addresses: Addresses,
}

/// This run of an agent on this host, as its recordings tell.
#[derive(Clone, Debug)]
pub struct Run {
    started_ns: i64,
    utc_offset_ns: i64,
    kernel: String,
    host: BTreeMap<String, String>,
    addresses: Addresses,
}

impl Run {
    /// A run that begins now.
    pub fn begin(addresses: Addresses) -> Self {
        let started_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as i64);
        Self {
            started_ns,
            utc_offset_ns: started_ns - clock::now_ns() as i64,
            kernel: read("kernel.osrelease"),
            host: host(),
            addresses,
        }
    }

    /// The names of its episodes.
    pub fn episodes(&self) -> Episodes {
        Episodes::new(&read("kernel.random.boot_id"), self.started_ns)
    }

    /// The header of the files of one policy.
    pub fn header(
        &self,
        interface: Interface,
        policy: &str,
        policy_metadata: Option<PolicyMeta>,
    ) -> FileHeader {
        FileHeader {
            interface,
            policy: policy.into(),
            policy_metadata,
            agent_version: env!("CARGO_PKG_VERSION").into(),
            kernel: self.kernel.clone(),
            host: self.host.clone(),
            started_ns: self.started_ns,
            utc_offset_ns: self.utc_offset_ns,
            addresses: self.addresses.form(),
        }
    }

    /// Starts to write, at a low priority.
    ///
    /// # Errors
    ///
    /// The directory cannot be written to.
    pub fn record(&self, limits: Limits) -> Result<Recorder, RecordingError> {
        Recorder::start(limits, self.addresses.form().name(), || {
            if let Err(error) = priority::set_niceness(NICENESS) {
                warn!("the recorder keeps the agent's priority: {error}");
            }
        })
    }
}

fn host() -> BTreeMap<String, String> {
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    let mut host = BTreeMap::from([
        ("arch".to_owned(), std::env::consts::ARCH.to_owned()),
        ("cpus".to_owned(), cpus.to_string()),
    ]);
    for name in SYSCTLS {
        let value = read(name);
        if !value.is_empty() {
            host.insert(name.into(), value);
        }
    }
    host
}

/// A value under `/proc/sys`, its parts separated by single spaces; empty where there is none.
fn read(sysctl: &str) -> String {
    let path = format!("/proc/sys/{}", sysctl.replace('.', "/"));
    let value = fs::read_to_string(path).unwrap_or_default();
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}
