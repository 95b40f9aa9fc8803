//! Reading recordings, row by row, in memory that does not depend on their size.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    vec,
};

use arrow_schema::{Field, Fields};
use parquet::{
    arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder},
    errors::ParquetError,
};

use cc_core::rows::{FileHeader, Row};

use crate::{
    file::{COMPLETE, OPEN},
    metadata::{self, HeaderError},
    schema::{from_batch, schema},
};

/// Rows in memory at once, at most.
const BATCH: usize = 2_048;

/// Opens a complete file: its header, and its rows in the order in which they were written.
///
/// Rows of one flow are in the order of their sequence numbers; a flow's rows may go on in the next file.
///
/// # Errors
///
/// It cannot be read, is cut short, is no recording, or is one of another schema version.
pub fn read(path: &Path) -> Result<(FileHeader, Rows), RecordingError> {
    let builder = open(path)?;
    let metadata = builder.metadata().file_metadata();
    let values = metadata.key_value_metadata().map_or(&[][..], Vec::as_slice);
    let header = metadata::from_key_values(values).map_err(|error| RecordingError::Header {
        path: path.into(),
        reason: error.to_string(),
        foreign: error == HeaderError::Foreign,
    })?;
    let expected = schema();
    for field in expected.fields() {
        let found = builder.schema().field_with_name(field.name()).ok();
        let fits = |found: &Field| {
            found.data_type() == field.data_type() && (field.is_nullable() || !found.is_nullable())
        };
        if !found.is_some_and(fits) {
            return Err(RecordingError::Column {
                path: path.into(),
                column: field.name().clone(),
                found: found.map_or("missing".into(), describe),
                expected: describe(field),
            });
        }
    }
    let names = |fields: &Fields| fields.iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    if names(builder.schema().fields()) != names(expected.fields()) {
        return Err(RecordingError::Broken {
            path: path.into(),
            reason: "it has other columns than a recording, or in another order".into(),
        });
    }
    let batches = builder
        .with_batch_size(BATCH)
        .build()
        .map_err(|source| RecordingError::parquet(path, source))?;
    let rows = Rows {
        path: path.into(),
        header: header.clone(),
        batches,
        batch: Vec::new().into_iter(),
        before: 0,
        failed: false,
    };
    Ok((header, rows))
}

/// The complete files of a directory, oldest first; of a file, itself.
///
/// # Errors
///
/// There is nothing to read, or none in the directory.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, RecordingError> {
    let io = |source| RecordingError::io(path, source);
    let is = |path: &Path, kind: &str| path.extension().is_some_and(|e| e == kind);
    if !fs::metadata(path).map_err(io)?.is_dir() {
        return match is(path, OPEN) {
            true => Err(RecordingError::Open { path: path.into() }),
            false => Ok(vec![path.into()]),
        };
    }
    let mut files = Vec::new();
    let mut open = None;
    for entry in fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?.path();
        if is(&entry, COMPLETE) {
            files.push(entry);
        } else if is(&entry, OPEN) {
            open = Some(entry);
        }
    }
    if files.is_empty() {
        return Err(match open {
            Some(path) => RecordingError::Open { path },
            None => RecordingError::Empty { path: path.into() },
        });
    }
    files.sort();
    Ok(files)
}

/// The rows of a file. After an error there are no more.
pub struct Rows {
    path: PathBuf,
    header: FileHeader,
    batches: ParquetRecordBatchReader,
    batch: vec::IntoIter<Row>,
    /// Rows in the batches before the next one.
    before: u64,
    failed: bool,
}

impl Iterator for Rows {
    type Item = Result<Row, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.batch.next() {
                return Some(Ok(row));
            }
            if self.failed {
                return None;
            }
            match self.next_batch()? {
                Ok(rows) => self.batch = rows.into_iter(),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Rows {
    fn next_batch(&mut self) -> Option<Result<Vec<Row>, RecordingError>> {
        let batch = match self.batches.next()? {
            Ok(batch) => batch,
            Err(error) => {
                return Some(Err(RecordingError::Broken {
                    path: self.path.clone(),
                    reason: format!("after row {}: {error}", self.before),
                }));
            }
        };
        let before = self.before;
        self.before += batch.num_rows() as u64;
        let rows = from_batch(&self.header, &batch).map_err(|wrong| RecordingError::Value {
            path: self.path.clone(),
            row: before + wrong.row as u64,
            column: wrong.column,
            reason: wrong.reason,
        });
        Some(rows)
    }
}

/// The rows of a complete file, by its footer.
pub(super) fn count(path: &Path) -> Result<u64, RecordingError> {
    let rows = open(path)?.metadata().file_metadata().num_rows();
    Ok(rows as u64)
}

fn describe(field: &Field) -> String {
    let null = if field.is_nullable() { " or null" } else { "" };
    format!("{}{null}", field.data_type())
}

fn open(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>, RecordingError> {
    let file = File::open(path).map_err(|source| RecordingError::io(path, source))?;
    ParquetRecordBatchReaderBuilder::try_new(file)
        .map_err(|source| RecordingError::parquet(path, source))
}

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
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }

    /// What the Parquet library said on writing.
    pub(super) fn write(path: &Path, source: ParquetError) -> Self {
        Self::Write {
            path: path.into(),
            reason: source.to_string(),
        }
    }

    /// What the Parquet library said on reading.
    pub(super) fn parquet(path: &Path, source: ParquetError) -> Self {
        Self::Broken {
            path: path.into(),
            reason: source.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
