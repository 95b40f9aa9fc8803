//! One file: written row group by row group, and completed by its own writer or, after a crash, by
//! [`recover`].
//!
//! Parquet's footer comes last, so a file is not readable before it is finished. Therefore
//! `NAME.parquet.open.footer` lies beside `NAME.parquet.open`: the file's length after its last
//! complete row group (eight bytes, little-endian), and the footer that would end it there.
//! Truncating the file to that length and appending that footer completes it.

use std::{
    borrow::Borrow,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parquet::{
    arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata},
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter},
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion},
        writer::SerializedFileWriter,
    },
    schema::types::SchemaDescPtr,
};

use cc_core::rows::{FileHeader, Row};

use crate::{
    RecordingError, metadata,
    name::{COMPLETE, FOOTER, OPEN, with_suffix},
    read,
    row_group::write_group,
    schema::{TEXTS, restless, schema},
};

/// Writes one file, row group by row group.
///
/// A writer that is dropped without [`Self::finish`] leaves an open file, which [`recover`]
/// completes.
pub struct FileWriter {
    header: FileHeader,
    writer: SerializedFileWriter<File>,
    /// A second handle of the file. It holds the lock that keeps [`recover`] away.
    file: File,
    path: PathBuf,
    properties: WriterPropertiesPtr,
    descriptor: SchemaDescPtr,
    rows: u64,
}

/// The outcome of recovering an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The path of the completed file, or `None` if the file had no complete row group and was
    /// removed.
    pub path: Option<PathBuf>,
    /// The number of rows in the completed file.
    pub rows: u64,
}

impl FileWriter {
    /// Creates the open file `path` + `.open` and locks it. `path`, whose name ends in `.parquet`,
    /// appears with [`Self::finish`].
    ///
    /// # Errors
    ///
    /// Returns an error when `path` or the open file exists, or the file cannot be created.
    pub fn create(path: &Path, header: FileHeader) -> Result<Self, RecordingError> {
        let io = |source| RecordingError::io(path, source);
        if path.exists() {
            return Err(io(io::ErrorKind::AlreadyExists.into()));
        }
        let open = with_suffix(path, OPEN);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&open)
            .map_err(|source| RecordingError::io(&open, source))?;
        file.try_lock().map_err(|error| io(error.into()))?;
        let values = metadata::to_key_values(&header).map_err(|source| io(source.into()))?;
        let mut properties = properties(values);
        add_encoded_arrow_schema_to_metadata(&schema(), &mut properties);
        let properties = Arc::new(properties);
        let wrong = |source| RecordingError::write(path, source);
        let descriptor = ArrowSchemaConverter::new()
            .convert(&schema())
            .map_err(wrong)?;
        let handle = file.try_clone().map_err(io)?;
        let root = descriptor.root_schema_ptr();
        let writer = SerializedFileWriter::new(handle, root, properties.clone()).map_err(wrong)?;
        Ok(Self {
            header,
            writer,
            file,
            path: path.into(),
            properties,
            descriptor: Arc::new(descriptor),
            rows: 0,
        })
    }

    /// Writes rows as one row group. They are on the disk when this returns; an empty slice writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// Returns an error when the file system refuses. Then drop the writer and call [`recover`]:
    /// the file is completed without these rows.
    pub fn write<R: Borrow<Row>>(&mut self, rows: &[R]) -> Result<(), RecordingError> {
        if rows.is_empty() {
            return Ok(());
        }
        let wrong = |source| RecordingError::write(&self.path, source);
        let io = |source| RecordingError::io(&self.path, source);
        let borrowed: Vec<_> = rows.iter().map(Borrow::borrow).collect();
        write_group(&mut self.writer, &self.header, &borrowed).map_err(wrong)?;
        self.writer.flush().map_err(io)?;
        self.file.sync_data().map_err(io)?;
        let footer = self.footer(self.rows + rows.len() as u64).map_err(wrong)?;
        let place = with_suffix(&with_suffix(&self.path, OPEN), FOOTER);
        let fresh = with_suffix(&place, "new");
        replace(&fresh, &place, &footer).map_err(|source| RecordingError::io(&place, source))?;
        self.rows += rows.len() as u64;
        Ok(())
    }

    /// Completes the file and renames it to its final path, which is returned.
    ///
    /// # Errors
    ///
    /// Returns an error when the file system refuses. The open file remains for [`recover`].
    pub fn finish(mut self) -> Result<PathBuf, RecordingError> {
        let io = |source| RecordingError::io(&self.path, source);
        let wrong = |source| RecordingError::write(&self.path, source);
        self.writer.finish().map_err(wrong)?;
        self.writer.flush().map_err(io)?;
        self.file.sync_data().map_err(io)?;
        publish(&self.path).map_err(io)?;
        Ok(self.path.clone())
    }

    /// Returns the number of rows written so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of bytes written so far, without the footer.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// Returns the header, which states what all rows have in common.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Returns the path of the complete file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of the footer file for the row groups written so far.
    fn footer(&self, rows: u64) -> Result<Vec<u8>, ParquetError> {
        let metadata = FileMetaData::new(
            self.properties.writer_version().as_num(),
            rows as i64,
            Some(self.properties.created_by().to_owned()),
            self.properties.key_value_metadata().cloned(),
            self.descriptor.clone(),
            None,
        );
        let groups = self.writer.flushed_row_groups().to_vec();
        let metadata = ParquetMetaData::new(metadata, groups);
        let mut bytes = (self.writer.bytes_written() as u64).to_le_bytes().to_vec();
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish()?;
        Ok(bytes)
    }
}

/// Completes the open files in `directory` up to their last complete row group. Files whose writer
/// still exists hold a lock and are left alone.
///
/// # Errors
///
/// Returns an error when the directory cannot be read or a file cannot be completed. Such a file
/// stays as it is; all others are completed before the first error is returned.
pub fn recover(directory: &Path) -> Result<Vec<Recovered>, RecordingError> {
    let entries =
        fs::read_dir(directory).map_err(|source| RecordingError::io(directory, source))?;
    let mut open = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|source| RecordingError::io(directory, source))?
            .path();
        let complete = path.with_extension("");
        if path.extension().is_some_and(|e| e == OPEN)
            && complete.extension().is_some_and(|e| e == COMPLETE)
        {
            open.push(complete);
        }
    }
    open.sort();
    let outcomes: Vec<_> = open.iter().map(|path| recover_file(path)).collect();
    outcomes.into_iter().filter_map(Result::transpose).collect()
}

/// Does what [`recover`] does for the one file that will be called `path`. Returns `None` if it is
/// being written or no longer exists.
pub(crate) fn recover_file(path: &Path) -> Result<Option<Recovered>, RecordingError> {
    let open = with_suffix(path, OPEN);
    let io = |source| RecordingError::io(&open, source);
    let mut file = match OpenOptions::new().read(true).write(true).open(&open) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(io)?,
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(io(error)),
        Ok(()) => {}
    }
    // The writer or another recovery may have completed the file before this one had the lock.
    let ours = file.metadata().map_err(io)?;
    match fs::metadata(&open) {
        Ok(named) if named.ino() == ours.ino() && named.dev() == ours.dev() => {}
        _ => return Ok(None),
    }
    let footer = match fs::read(with_suffix(&open, FOOTER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::remove_file(&open).map_err(io)?;
            return Ok(Some(Recovered {
                path: None,
                rows: 0,
            }));
        }
        footer => footer.map_err(io)?,
    };
    let broken = |reason: &str| RecordingError::Broken {
        path: open.clone(),
        reason: reason.into(),
    };
    let (length, footer) = footer
        .split_first_chunk()
        .ok_or_else(|| broken("the footer beside it is cut short"))?;
    let length = u64::from_le_bytes(*length);
    if length > ours.len() {
        return Err(broken("it is shorter than the footer beside it says"));
    }
    if path.exists() {
        return Err(RecordingError::io(
            path,
            io::ErrorKind::AlreadyExists.into(),
        ));
    }
    file.set_len(length).map_err(io)?;
    file.seek(SeekFrom::Start(length)).map_err(io)?;
    file.write_all(footer).map_err(io)?;
    file.sync_data().map_err(io)?;
    let rows = read::count(&open)?;
    publish(path).map_err(io)?;
    Ok(Some(Recovered {
        path: Some(path.into()),
        rows,
    }))
}

/// Returns Parquet's settings for a file with this key-value metadata.
fn properties(values: Vec<KeyValue>) -> WriterProperties {
    // Numbers are stored plain: rows of a flow are neighbours and alike, and zstd compresses them
    // better than dictionaries, in half the time.
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("cc-agent ", env!("CARGO_PKG_VERSION")).into())
        .set_key_value_metadata(Some(values));
    for name in TEXTS {
        builder = builder.set_column_dictionary_enabled(name.into(), true);
    }
    // Numbers that hardly repeat are stored as packed differences: as small, in a quarter of the
    // time.
    for path in restless() {
        builder = builder
            .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
            .set_column_compression(path, Compression::UNCOMPRESSED);
    }
    // Readers skip row groups by the statistics of these columns.
    for name in ["flow", "sequence", "time"] {
        builder = builder.set_column_statistics_enabled(name.into(), EnabledStatistics::Chunk);
    }
    builder.build()
}

/// Renames a complete open file to its final path, durably, and removes its footer file.
fn publish(path: &Path) -> io::Result<()> {
    let open = with_suffix(path, OPEN);
    fs::rename(&open, path)?;
    match fs::remove_file(with_suffix(&open, FOOTER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The directory entry, too, must survive a crash of the host.
    if let Some(directory) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Replaces `place` with `bytes` at once, by way of `fresh`.
fn replace(fresh: &Path, place: &Path, bytes: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = File::create(fresh)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(fresh, place)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(fresh);
    })
}
