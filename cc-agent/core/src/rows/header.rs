//! The header of a file: the metadata that hold for all of its rows.

use std::collections::BTreeMap;

use super::{Row, addresses::Form};
use crate::{interface::Interface, policy::PolicyMeta};

/// The metadata of a file, which hold for every row: the Parquet file's key-value metadata, whose
/// keys begin with `cc.`.
#[derive(Clone, Debug, PartialEq)]
pub struct FileHeader {
    /// The interface that defines observations, actions and rewards (`cc.environment`, JSON).
    pub interface: Interface,
    /// The policy that decided (`cc.policy`): SHA-256 of its file in hexadecimal, or a name such as
    /// `heuristic`, `random`, `fixed:N` or `observed:cubic`.
    pub policy: String,
    /// The metadata of the policy's file (`cc.policy_metadata`, JSON); `None` for a policy without
    /// a file.
    pub policy_metadata: Option<PolicyMeta>,
    /// Address of the policy server that decided (`cc.server`); `None` where the agent's own policy
    /// did.
    pub server: Option<String>,
    /// Version of the agent that made the recording (`cc.agent_version`).
    pub agent_version: String,
    /// Release of the host's kernel (`cc.kernel`).
    pub kernel: String,
    /// Settings of the host that affect TCP (`cc.host`, JSON).
    pub host: BTreeMap<String, String>,
    /// When the recording agent started, ns since 1970 UTC (`cc.started`).
    pub started_ns: i64,
    /// UTC minus `CLOCK_MONOTONIC`, ns (`cc.utc_offset_ns`). A run has one value, so that times
    /// never jump.
    pub utc_offset_ns: i64,
    /// The form of the addresses in the rows (`cc.addresses`).
    pub addresses: Form,
}

impl FileHeader {
    /// Converts a time on `CLOCK_MONOTONIC`, ns, to ns since 1970 UTC.
    pub fn utc_ns(&self, monotonic_ns: u64) -> i64 {
        (monotonic_ns as i64).wrapping_add(self.utc_offset_ns)
    }

    /// The end of a row's window, ns since 1970 UTC.
    pub fn time_ns(&self, row: &Row) -> i64 {
        self.utc_ns(row.window.header.time_ns)
    }

    /// Converts ns since 1970 UTC to a time on `CLOCK_MONOTONIC`, ns.
    pub fn monotonic_ns(&self, utc_ns: i64) -> u64 {
        utc_ns.wrapping_sub(self.utc_offset_ns) as u64
    }
}
