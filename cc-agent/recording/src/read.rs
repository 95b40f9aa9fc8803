//! Reading recordings row by row, in memory that does not depend on their size.

use std::{
    fs::File,
    path::{Path, PathBuf},
    vec,
};

use arrow_schema::{Field, Fields};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use cc_core::{
    guarded, regular_file,
    rows::{FileHeader, Row},
};

use crate::{
    RecordingError,
    metadata::{self, HeaderError},
    pages,
    schema::{from_batch, schema_like},
};

/// The largest number of rows in memory at once.
const BATCH: usize = 2_048;
/// The most memory that the texts of a batch may take, bytes, were every row the largest.
const TEXTS: u64 = 256 << 20;

/// Opens a complete file and returns its header and an iterator over its rows, in the order in
/// which they were written.
///
/// The rows of one flow are in the order of their sequence numbers, and may continue in the next
/// file.
///
/// # Errors
///
/// Returns an error when the file cannot be read, is truncated, is not a recording, has another
/// schema version, or has pages that are too large to read.
pub fn read(path: &Path) -> Result<(FileHeader, Rows), RecordingError> {
    let (file, builder) = open(path)?;
    rows_of(path, &file, builder, 0)
}

/// Does what [`read()`] does for a file whose metadata are known, which need not be complete, from
/// row group `from` on.
pub(crate) fn rows_of(
    path: &Path,
    file: &File,
    builder: ParquetRecordBatchReaderBuilder<File>,
    from: usize,
) -> Result<(FileHeader, Rows), RecordingError> {
    let metadata = builder.metadata().file_metadata();
    let values = metadata.key_value_metadata().map_or(&[][..], Vec::as_slice);
    let (schema_version, header) =
        metadata::from_key_values(values).map_err(|error| RecordingError::Header {
            path: path.into(),
            reason: error.to_string(),
            foreign: error == HeaderError::Foreign,
        })?;
    let expected = schema_like(builder.schema());
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
    let groups = builder.metadata().row_groups();
    let from = from.min(groups.len());
    let (all, largest) = (groups.len(), pages::check(path, file, &groups[from..])?);
    let batch = usize::try_from(TEXTS / largest.max(1)).unwrap_or(BATCH);
    let builder = builder
        .with_batch_size(batch.clamp(1, BATCH))
        .with_row_groups((from..all).collect());
    let batches = guarded(|| builder.build());
    let batches = batches.map_err(|reason| RecordingError::broken(path, reason))?;
    let rows = Rows {
        path: path.into(),
        header: header.clone(),
        schema_version,
        batches,
        batch: Vec::new().into_iter(),
        before: 0,
        failed: false,
    };
    Ok((header, rows))
}

/// Iterator over the rows of a file, made by [`read()`]. It ends after the first error.
pub struct Rows {
    path: PathBuf,
    header: FileHeader,
    schema_version: u32,
    batches: ParquetRecordBatchReader,
    batch: vec::IntoIter<Row>,
    /// The number of rows in all batches read so far.
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
    /// Version of the file's schema, from 1 to [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    /// Quantities whose columns came with a later version are 0 in every row.
    pub fn schema_version(&self) -> u32 {
        self.schema_version
    }

    fn next_batch(&mut self) -> Option<Result<Vec<Row>, RecordingError>> {
        let batch = match guarded(|| self.batches.next().transpose()) {
            Ok(batch) => batch?,
            Err(error) => {
                let reason = format!("after row {}: {error}", self.before);
                return Some(Err(RecordingError::broken(&self.path, reason)));
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

/// Describes a column's type for an error message.
fn describe(field: &Field) -> String {
    let null = if field.is_nullable() { " or null" } else { "" };
    format!("{}{null}", field.data_type())
}

fn open(path: &Path) -> Result<(File, ParquetRecordBatchReaderBuilder<File>), RecordingError> {
    let io = |source| RecordingError::io(path, source);
    let file = regular_file::open(path).map_err(io)?;
    let own = file.try_clone().map_err(io)?;
    let builder = guarded(|| ParquetRecordBatchReaderBuilder::try_new(own));
    let builder = builder.map_err(|reason| RecordingError::broken(path, reason))?;
    Ok((file, builder))
}

#[cfg(test)]
mod tests;
