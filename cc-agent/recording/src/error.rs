//! Errors of reading and writing recordings.

use std::{
    io,
    path::{Path, PathBuf},
};

use parquet::errors::ParquetError;

/// What is wrong with a recording, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// No complete Parquet file.
    #[error(
        "{path}: {reason}; either it is no Parquet, or it was cut short or damaged on its way: copy it again, \
         or leave it away"
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the reader stumbled over.
        reason: String,
    },
    /// A column that is missing, or of another type.
    #[error("{path}: column {column} is {found}; expected {expected}")]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A file that is not complete.
    #[error(
        "{path}: its agent is still writing it, or was killed: wait for it to be completed (--record-file-s says when at the \
         latest), or stop the agent, and name the directory"
    )]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// A directory without recordings.
    #[error(
        "{path}: no recording there; expected at least one file *.parquet, as cc-agent run --record writes them \
         (directories in it are not looked into)"
    )]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// Parquet of something else, of another version, or with metadata that cannot be.
    #[error("{path}: {reason}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// Whether it is no recording at all.
        foreign: bool,
    },
    /// The file system refuses.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written on.
    #[error("{path}: it cannot be written: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A value that no recording has.
    #[error("{path}: row {row}, column {column}: {reason}; the file is damaged, leave it away")]
    Value {
        /// The file.
        path: PathBuf,
        /// The row, from 0.
        row: u64,
        /// The column.
        column: &'static str,
        /// What is wrong with the value.
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

    /// What the Parquet library said on writing.
    pub(crate) fn write(path: &Path, source: ParquetError) -> Self {
        Self::Write {
            path: path.into(),
            reason: source.to_string(),
        }
    }

    /// What the Parquet library said on reading.
    pub(crate) fn parquet(path: &Path, source: ParquetError) -> Self {
        Self::Broken {
            path: path.into(),
            reason: source.to_string(),
        }
    }
}
