//! What a file says about all of its rows.

use std::collections::BTreeMap;

use parquet::file::metadata::KeyValue;

use crate::{
    environment::Environment,
    policy::PolicyMeta,
    recording::{Row, addresses::Form},
};

/// The version of the columns and of this header; readers refuse others.
pub const SCHEMA_VERSION: u32 = 1;

/// What holds for every row of a file: the Parquet file's key-value metadata, each key under `cc.`.
#[derive(Clone, Debug, PartialEq)]
pub struct FileHeader {
    /// The settings that observations, actions and rewards are made with (`cc.environment`, JSON).
    pub environment: Environment,
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
    pub(super) fn monotonic_ns(&self, utc_ns: i64) -> u64 {
        utc_ns.wrapping_sub(self.utc_offset_ns) as u64
    }

    /// As a file's metadata.
    pub(super) fn to_key_values(&self) -> Result<Vec<KeyValue>, serde_json::Error> {
        let mut values = vec![
            ("schema_version", SCHEMA_VERSION.to_string()),
            ("environment", serde_json::to_string(&self.environment)?),
            ("policy", self.policy.clone()),
            ("agent_version", self.agent_version.clone()),
            ("kernel", self.kernel.clone()),
            ("host", serde_json::to_string(&self.host)?),
            ("started", self.started_ns.to_string()),
            ("utc_offset_ns", self.utc_offset_ns.to_string()),
            ("addresses", self.addresses.name().to_owned()),
        ];
        if let Some(metadata) = &self.policy_metadata {
            values.push(("policy_metadata", metadata.to_json()));
        }
        let key = |(key, value)| KeyValue::new(format!("cc.{key}"), Some(value));
        Ok(values.into_iter().map(key).collect())
    }

    /// From a file's metadata.
    ///
    /// # Errors
    ///
    /// The key at fault and what is wrong with it.
    pub(super) fn from_key_values(values: &[KeyValue]) -> Result<Self, HeaderError> {
        let find = |name: &'static str| {
            let key = format!("cc.{name}");
            let value = values.iter().find(|value| value.key == key);
            value.and_then(|value| value.value.as_deref())
        };
        let version = find("schema_version").ok_or(HeaderError::Foreign)?;
        if version != SCHEMA_VERSION.to_string() {
            return Err(HeaderError::Version {
                found: version.into(),
            });
        }
        let text = |name| find(name).ok_or(HeaderError::Missing { name });
        let wrong = |name, reason: String| HeaderError::Wrong { name, reason };
        let number = |name| {
            let parsed = text(name)?.parse::<i64>();
            parsed.map_err(|error| wrong(name, error.to_string()))
        };
        let environment: Environment = serde_json::from_str(text("environment")?)
            .map_err(|error| wrong("environment", error.to_string()))?;
        environment
            .validate()
            .map_err(|error| wrong("environment", error.to_string()))?;
        let policy_metadata = find("policy_metadata")
            .map(PolicyMeta::from_json)
            .transpose()
            .map_err(|error| wrong("policy_metadata", error.to_string()))?;
        Ok(Self {
            environment,
            policy: text("policy")?.into(),
            policy_metadata,
            agent_version: text("agent_version")?.into(),
            kernel: text("kernel")?.into(),
            host: serde_json::from_str(text("host")?)
                .map_err(|error| wrong("host", error.to_string()))?,
            started_ns: number("started")?,
            utc_offset_ns: number("utc_offset_ns")?,
            addresses: text("addresses")?
                .parse()
                .map_err(|reason| wrong("addresses", reason))?,
        })
    }
}

/// What is wrong with a file's metadata.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum HeaderError {
    /// No recording of ours.
    #[error(
        "it is Parquet, but no recording: its metadata lack cc.schema_version; \
         leave it away, or name the files that cc-agent recorded"
    )]
    Foreign,
    /// Of another release.
    #[error(
        "its schema is version {found}, but this build reads version {SCHEMA_VERSION}; \
         use the release that recorded it"
    )]
    Version {
        /// The version that it states.
        found: String,
    },
    /// A key that should be there.
    #[error("its metadata lack cc.{name}")]
    Missing {
        /// The key without its prefix.
        name: &'static str,
    },
    /// A value that cannot be.
    #[error("its metadata's cc.{name}: {reason}")]
    Wrong {
        /// The key without its prefix.
        name: &'static str,
        /// Why.
        reason: String,
    },
}
