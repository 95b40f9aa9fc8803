//! Errors of reading and writing recordings.

use std::{
    io,
    path::{Path, PathBuf},
};

use cc_core::ownership::Exposure;
use parquet::errors::ParquetError;

/// An error of reading, writing or completing a recording. Its message names the file and, where
/// there is one, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file is not Parquet, or is truncated or damaged.
    #[error(
        "{path}: {reason}; either it is not Parquet, or it was cut short or damaged in transit: \
         copy it again, or leave it out"
    )]
    Broken {
        /// The path of the file.
        path: PathBuf,
        /// The message of the Parquet library.
        reason: String,
    },
    /// A column is missing or has another type.
    #[error("{path}: column {column} is {found}; expected {expected}")]
    Column {
        /// The path of the file.
        path: PathBuf,
        /// Name of the column in the schema.
        column: String,
        /// The column's type in the file, or `missing`.
        found: String,
        /// The type that recordings have.
        expected: String,
    },
    /// Others than root and its owner could write the directory, or put another in its place.
    #[error(
        "{path}: recordings are not written there: {exposure}, and whoever can change it decides \
         where the agent writes; take that permission away (chmod go-w), change the owner, or name \
         another directory"
    )]
    Exposed {
        /// The path of the directory.
        path: PathBuf,
        /// The directory, or one on the way to it, that others can change.
        exposure: Exposure,
    },
    /// Root cannot take the identity of the owner of the directory.
    #[error(
        "{path}: it belongs to uid {owner}, with whose identity root would record there, but that \
         cannot be taken: {source}; grant CAP_SETUID and CAP_SETGID, or change the directory's \
         owner"
    )]
    Identity {
        /// The path of the directory.
        path: PathBuf,
        /// The user id of the directory's owner.
        owner: u32,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// The file is not complete: its agent is writing it, or was killed.
    #[error(
        "{path}: its agent is still writing it, or was killed: wait until it is completed \
         (--record-file-s sets its maximum age), or stop the agent, and name the directory"
    )]
    Open {
        /// The path of the file.
        path: PathBuf,
    },
    /// The directory holds no recordings.
    #[error(
        "{path}: no recording there; expected at least one file *.parquet, as cc-agent run \
         --record writes them (subdirectories are not searched)"
    )]
    Empty {
        /// The path of the directory.
        path: PathBuf,
    },
    /// The file is Parquet, but its key-value metadata are absent, invalid, or of another version.
    #[error("{path}: {reason}")]
    Header {
        /// The path of the file.
        path: PathBuf,
        /// The key at fault and what is wrong with it.
        reason: String,
        /// Whether the file is not a recording at all.
        foreign: bool,
    },
    /// The file system refuses an operation.
    #[error("{path}: {source}")]
    Io {
        /// The path of the file or directory.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// Reading the file would take too much memory.
    #[error("{path}: {reason}; leave it out, or write it anew with smaller pages and row groups")]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
        /// The column, what is too large about it, and the limit.
        reason: String,
    },
    /// The file cannot be written any further.
    #[error("{path}: it cannot be written: {reason}")]
    Write {
        /// The path of the complete file.
        path: PathBuf,
        /// The message of the Parquet library.
        reason: String,
    },
    /// A value is outside what a recording can hold.
    #[error("{path}: row {row}, column {column}: {reason}; the file is damaged, leave it out")]
    Value {
        /// The path of the file.
        path: PathBuf,
        /// The row's number in the file, from 0.
        row: u64,
        /// Name of the column in the schema.
        column: &'static str,
        /// The value and what is expected instead.
        reason: String,
    },
}

impl RecordingError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }

    /// Wraps the Parquet library's error on writing.
    pub(crate) fn write(path: &Path, source: ParquetError) -> Self {
        Self::Write {
            path: path.into(),
            reason: source.to_string(),
        }
    }

    /// Wraps the Parquet library's error on reading.
    pub(crate) fn broken(path: &Path, reason: String) -> Self {
        Self::Broken {
            path: path.into(),
            reason,
        }
    }
}
