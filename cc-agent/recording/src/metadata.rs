//! What a file says about all of its rows: the Parquet file's key-value metadata.

use cc_core::{interface::Interface, policy::PolicyMeta, rows::FileHeader};
use parquet::file::metadata::KeyValue;

/// The version of the columns and of the file's metadata; readers refuse others.
pub const SCHEMA_VERSION: u32 = 1;

/// As a file's metadata.
pub(crate) fn to_key_values(header: &FileHeader) -> Result<Vec<KeyValue>, serde_json::Error> {
    let mut values = vec![
        ("schema_version", SCHEMA_VERSION.to_string()),
        ("environment", serde_json::to_string(&header.interface)?),
        ("policy", header.policy.clone()),
        ("agent_version", header.agent_version.clone()),
        ("kernel", header.kernel.clone()),
        ("host", serde_json::to_string(&header.host)?),
        ("started", header.started_ns.to_string()),
        ("utc_offset_ns", header.utc_offset_ns.to_string()),
        ("addresses", header.addresses.name().to_owned()),
    ];
    if let Some(metadata) = &header.policy_metadata {
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
pub(crate) fn from_key_values(values: &[KeyValue]) -> Result<FileHeader, HeaderError> {
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
    let interface: Interface = serde_json::from_str(text("environment")?)
        .map_err(|error| wrong("environment", error.to_string()))?;
    interface
        .validate()
        .map_err(|error| wrong("environment", error.to_string()))?;
    let policy_metadata = find("policy_metadata")
        .map(PolicyMeta::from_json)
        .transpose()
        .map_err(|error| wrong("policy_metadata", error.to_string()))?;
    Ok(FileHeader {
        interface,
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

/// What is wrong with a file's metadata.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum HeaderError {
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
