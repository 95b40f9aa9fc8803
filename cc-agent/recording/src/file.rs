//! One file: written row group by row group, completed by its own writer or by who finds it later.
//!
//! Parquet's footer comes last, so a file is no Parquet before it is finished. Beside `NAME.parquet.open` lies
//! therefore `NAME.parquet.open.footer`: how long the file was after its last complete row group, and the footer
//! that would end it there. Cutting the file to that length and appending that footer completes it.

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

/// Writes one file. Dropped before [`Self::finish`] it leaves an open file, for [`recover`].
pub struct FileWriter {
    header: FileHeader,
    writer: SerializedFileWriter<File>,
    /// The same file again, which holds the lock that says that somebody writes it.
    file: File,
    path: PathBuf,
    properties: WriterPropertiesPtr,
    descriptor: SchemaDescPtr,
    rows: u64,
}

/// What became of a file that was found open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The completed file; none where it had no complete row group, and was removed.
    pub path: Option<PathBuf>,
    /// Rows in it.
    pub rows: u64,
}

impl FileWriter {
    /// Creates `path`, whose name ends in `.parquet` and which must not exist, as an open file.
    ///
    /// # Errors
    ///
    /// It exists, or cannot be created.
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

    /// Writes rows as one row group, on the disk when it returns.
    ///
    /// # Errors
    ///
    /// The file system refuses: the file is then to be dropped and recovered, and these rows are not in it.
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

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    ///
    /// The file system refuses: the open file is left, for [`recover`].
    pub fn finish(mut self) -> Result<PathBuf, RecordingError> {
        let io = |source| RecordingError::io(&self.path, source);
        let wrong = |source| RecordingError::write(&self.path, source);
        self.writer.finish().map_err(wrong)?;
        self.writer.flush().map_err(io)?;
        self.file.sync_data().map_err(io)?;
        publish(&self.path).map_err(io)?;
        Ok(self.path.clone())
    }

    /// Rows in it so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of it so far.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// What its rows have in common.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The name that it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is to lie beside the file after its last row group.
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

/// Completes the files in `directory` that their writers left open, up to their last complete row group. Files
/// that somebody is writing are left alone.
///
/// # Errors
///
/// A file cannot be completed: it stays as it is, and the first of such errors is returned when the others have been
/// completed.
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

/// [`recover`] for the one file that would be called `path`; `None` when it is being written or is gone.
pub(super) fn recover_file(path: &Path) -> Result<Option<Recovered>, RecordingError> {
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
    // Its writer, or another that recovers, may have completed it before we had the lock.
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

/// How files are encoded.
fn properties(values: Vec<KeyValue>) -> WriterProperties {
    // Numbers as they are: neighbours are alike, as rows are in the order of their flows, and zstd makes less of them
    // than of dictionaries, in half the time.
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
    // Of numbers that are never twice the same, the bits of their differences are as few, in a quarter of the time.
    for path in restless() {
        builder = builder
            .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
            .set_column_compression(path, Compression::UNCOMPRESSED);
    }
    // What readers skip row groups by.
    for name in ["flow", "sequence", "time"] {
        builder = builder.set_column_statistics_enabled(name.into(), EnabledStatistics::Chunk);
    }
    builder.build()
}

/// Gives a complete open file its name.
fn publish(path: &Path) -> io::Result<()> {
    let open = with_suffix(path, OPEN);
    fs::rename(&open, path)?;
    match fs::remove_file(with_suffix(&open, FOOTER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // So that the name, too, survives the host.
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
