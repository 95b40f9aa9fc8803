//! Recordings: what every flow did, one row per window, as Parquet.
//!
//! A [`cc_core::rows::Row`] is one ended window of one flow with the decision that answered it, if one did. A file holds rows of
//! one policy, and its [`cc_core::rows::FileHeader`] says everything about that policy and the host. Observations are not stored:
//! [`cc_core::rows::Replay`] rebuilds them from a flow's rows, bit for bit.
//!
//! `DIR/<start>-<run>-<number>.parquet` is a complete file. While it is being written it is called
//! `….parquet.open`, which readers ignore; [`recover`] completes what a killed agent left behind.

pub mod columns;
mod error;
mod file;
mod metadata;
mod name;
mod read;
mod recorder;
mod row_group;
#[cfg(test)]
mod samples;
mod schema;

pub use error::RecordingError;
pub use file::{FileWriter, Recovered, recover};
pub use metadata::SCHEMA_VERSION;
pub use name::files;
pub use read::{Rows, read};
pub use recorder::{Limits, Recorder};
pub use schema::{feature_name, schema};
