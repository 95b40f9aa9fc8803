//! What a recording says about this run of the agent and about its host, and the start of the
//! recorder.

use std::{
    collections::BTreeMap,
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::warn;

use crate::kernel::{
    clock, priority,
    privileges::{self, Capabilities},
};
use cc_core::{
    interface::Interface,
    policy::PolicyMeta,
    rows::{Addresses, Episodes, FileHeader},
};
use cc_recording::{Limits, Recorder, RecordingError};

/// Niceness of the thread that writes recordings: it has seconds where the other threads have
/// milliseconds.
const RECORDER_NICENESS: i32 = 10;

/// Settings under `/proc/sys` that affect what TCP does or what is measured of it.
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

/// The resolved `--record…` options.
#[derive(Clone, Debug)]
pub struct RecordingSettings {
    /// The directory, and the sizes and ages at which files are completed or removed.
    pub limits: Limits,
    /// The form in which addresses are recorded.
    pub addresses: Addresses,
}

/// A recording that has begun: its thread runs.
pub struct Recording {
    /// What its files say of this run and host.
    pub session: RecordingSession,
    /// The writer of its files.
    pub recorder: Recorder,
    /// The form in which addresses are recorded.
    pub addresses: Addresses,
}

impl RecordingSettings {
    /// Begins a session and starts the recorder's thread, at a low priority.
    ///
    /// The calling thread must still have CAP_SETUID and CAP_SETGID if the directory is another
    /// user's; the recorder's gives all capabilities up once it has that user's identity.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory cannot be written to, or others could write it.
    pub fn begin(self) -> Result<Recording, RecordingError> {
        let session = RecordingSession::begin(self.addresses.clone());
        let form = self.addresses.form().name();
        let recorder = Recorder::start(self.limits, form, || {
            if let Err(error) = priority::set_niceness(RECORDER_NICENESS) {
                warn!("the recorder keeps the agent's priority: {error}");
            }
            if let Err(error) = privileges::keep_only(Capabilities::NONE) {
                warn!("the recorder keeps its capabilities: {error}");
            }
        })?;
        Ok(Recording {
            session,
            recorder,
            addresses: self.addresses,
        })
    }
}

/// One run of an agent on this host, as its recordings describe it.
#[derive(Clone, Debug)]
pub struct RecordingSession {
    started_ns: i64,
    utc_offset_ns: i64,
    kernel: String,
    host: BTreeMap<String, String>,
    addresses: Addresses,
}

impl RecordingSession {
    /// Begins a session now, on this host.
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

    /// The source of episode names, unique to this boot of the host and this session.
    pub fn episodes(&self) -> Episodes {
        Episodes::new(&read("kernel.random.boot_id"), self.started_ns)
    }

    /// The header of the files with the rows of one policy. `policy` is its identifier in
    /// recordings, and `policy_metadata` that of its file, `None` without one. It decides on this
    /// host.
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
            server: None,
            agent_version: env!("CARGO_PKG_VERSION").into(),
            kernel: self.kernel.clone(),
            host: self.host.clone(),
            started_ns: self.started_ns,
            utc_offset_ns: self.utc_offset_ns,
            addresses: self.addresses.form(),
        }
    }
}

/// Architecture, number of processors and the sysctls that this kernel has.
fn host() -> BTreeMap<String, String> {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
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

/// The value of a sysctl, its fields separated by single spaces; empty when the kernel has none of
/// that name.
fn read(sysctl: &str) -> String {
    let path = format!("/proc/sys/{}", sysctl.replace('.', "/"));
    let value = fs::read_to_string(path).unwrap_or_default();
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_describes_the_host_and_the_policy() {
        let session = RecordingSession::begin(Addresses::Absent);
        let header = session.header(Interface::default(), "fixed:10", None);
        assert_eq!(header.policy, "fixed:10");
        assert_eq!(header.host["arch"], std::env::consts::ARCH);
        assert!(header.started_ns > 0 && !header.kernel.is_empty());
        assert_eq!(read("no.such.setting"), "");
    }
}
