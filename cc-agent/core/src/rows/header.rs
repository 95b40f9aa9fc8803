//! What a file says about all of its rows.

use std::collections::BTreeMap;

use super::{Row, addresses::Form};
use crate::{interface::Interface, policy::PolicyMeta};

/// What holds for every row of a file: the Parquet file's key-value metadata, each key under `cc.`.
#[derive(Clone, Debug, PartialEq)]
pub struct FileHeader {
    /// The settings that observations, actions and rewards are made with (`cc.environment`, JSON).
    pub interface: Interface,
    /// The policy that decided (`cc.policy`): SHA-256 of its file in hexadecimal, or a name such as `heuristic`,
    /// `random`, `fixed:N`, `observed:cubic`.
    pub policy: String,
    /// What the policy's file says about itself (`cc.policy_metadata`, JSON); none without a file.
    pub policy_metadata: Option<PolicyMeta>,
    /// Version of the agent that recorded (`cc.agent_version`).
    pub agent_version: String,
    /// Release of its kernel (`cc.kernel`).
    pub kernel: String,
    /// Settings of its host that bear on TCP (`cc.host`, JSON).
    pub host: BTreeMap<String, String>,
    /// When the recording agent started, ns since 1970 UTC (`cc.started`).
    pub started_ns: i64,
    /// UTC minus `CLOCK_MONOTONIC`, ns (`cc.utc_offset_ns`); one value a run, so that times never jump.
    pub utc_offset_ns: i64,
    /// How addresses are recorded (`cc.addresses`).
    pub addresses: Form,
}

impl FileHeader {
    /// The time of a moment on `CLOCK_MONOTONIC`, ns since 1970 UTC.
    pub fn utc_ns(&self, monotonic_ns: u64) -> i64 {
        (monotonic_ns as i64).wrapping_add(self.utc_offset_ns)
    }

    /// When a row's window ended, ns since 1970 UTC.
    pub fn time_ns(&self, row: &Row) -> i64 {
        self.utc_ns(row.window.header.time_ns)
    }

    /// The moment on `CLOCK_MONOTONIC` of a time in ns since 1970 UTC.
    pub fn monotonic_ns(&self, utc_ns: i64) -> u64 {
        utc_ns.wrapping_sub(self.utc_offset_ns) as u64
    }
}
