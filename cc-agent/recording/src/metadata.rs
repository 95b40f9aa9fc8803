//! The file header as Parquet key-value metadata, under keys `cc.…`.

use cc_core::{interface::Interface, policy::PolicyMeta, rows::FileHeader};
use parquet::file::metadata::KeyValue;

/// Version of the columns and of the key-value metadata of files that are written. Files of earlier
/// versions are read as well, those of later ones are refused.
///
/// Version 2 added the columns from `cookie` on, version 3 those from `path_rtt_us` on.
pub const SCHEMA_VERSION: u32 = 3;

/// Returns a header as key-value metadata.
///
/// # Errors
///
/// Returns an error when a value has no JSON form.
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
    if let Some(server) = &header.server {
        values.push(("server", server.clone()));
    }
    let key = |(key, value)| KeyValue::new(format!("cc.{key}"), Some(value));
    Ok(values.into_iter().map(key).collect())
}

/// Returns whether these are the key-value metadata of a recording, of whatever version.
pub(crate) fn is_recording(values: &[KeyValue]) -> bool {
    values.iter().any(|value| value.key == "cc.schema_version")
}

/// Reads the version of the schema and a header from key-value metadata.
///
/// # Errors
///
/// Returns an error with the key at fault when one is missing or invalid, or when the file is of
/// another version or not a recording.
pub(crate) fn from_key_values(values: &[KeyValue]) -> Result<(u32, FileHeader), HeaderError> {
    let find = |name: &'static str| {
        let key = format!("cc.{name}");
        let value = values.iter().find(|value| value.key == key);
        value.and_then(|value| value.value.as_deref())
    };
    let version = find("schema_version").ok_or(HeaderError::Foreign)?;
    let Ok(schema_version @ 1..=SCHEMA_VERSION) = version.parse() else {
        return Err(HeaderError::Version {
            found: version.into(),
        });
    };
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
    let header = FileHeader {
        interface,
        policy: text("policy")?.into(),
        policy_metadata,
        server: find("server").map(Into::into),
        agent_version: text("agent_version")?.into(),
        kernel: text("kernel")?.into(),
        host: serde_json::from_str(text("host")?)
            .map_err(|error| wrong("host", error.to_string()))?,
        started_ns: number("started")?,
        utc_offset_ns: number("utc_offset_ns")?,
        addresses: text("addresses")?
            .parse()
            .map_err(|reason| wrong("addresses", reason))?,
    };
    Ok((schema_version, header))
}

/// An error in a file's key-value metadata.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum HeaderError {
    /// The file has no schema version, so it is not a recording.
    #[error(
        "it is Parquet, but no recording: its metadata lack cc.schema_version; \
         leave it out, or name the files that cc-agent recorded"
    )]
    Foreign,
    /// The file was recorded by a release with another schema.
    #[error(
        "its schema is version {found}, but this build reads versions 1 to {SCHEMA_VERSION}; \
         use the release that recorded it"
    )]
    Version {
        /// The version that the file states.
        found: String,
    },
    /// A required key is missing.
    #[error("its metadata lack cc.{name}")]
    Missing {
        /// The key without its prefix.
        name: &'static str,
    },
    /// A value cannot be parsed or is invalid.
    #[error("its metadata's cc.{name}: {reason}")]
    Wrong {
        /// The key without its prefix.
        name: &'static str,
        /// What is wrong with the value.
        reason: String,
    },
}
