//! One file: written row group by row group, and completed by its own writer or, after a crash, by
//! [`recover`].
//!
//! Parquet's footer comes last, so a file is not readable before it is finished. Therefore
//! `NAME.parquet.open.footer` lies beside `NAME.parquet.open`: the file's length after its last
//! complete row group (eight bytes, little-endian), and the footer that would end it there.
//! Truncating the file to that length and appending that footer completes it.

use std::{
    borrow::Borrow,
    fs::{File, TryLockError},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use parquet::{
    arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata},
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{
            FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
        },
        properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion},
        writer::SerializedFileWriter,
    },
    schema::types::SchemaDescPtr,
};

use cc_core::{
    guarded,
    rows::{FileHeader, Row},
};

use crate::{
    RecordingError,
    directory::Directory,
    metadata,
    name::{COMPLETE, FOOTER, OPEN, OwnName, with_suffix},
    row_group::write_group,
    schema::{TEXTS, restless, schema},
};

/// The bytes that Parquet files begin and end with.
const MAGIC: &[u8; 4] = b"PAR1";
/// The largest footer file that is read, bytes. The recorder completes a file long before
/// its footer is as large.
pub(crate) const MAX_FOOTER: u64 = 32 << 20;

/// Writes one file, row group by row group.
///
/// A writer that is dropped without [`Self::finish`] leaves an open file, which [`recover`]
/// completes.
pub struct FileWriter {
    header: FileHeader,
    writer: SerializedFileWriter<File>,
    /// A second handle of the file. It holds the lock that keeps [`recover`] away.
    file: File,
    directory: Arc<Directory>,
    /// The name of the complete file.
    name: String,
    path: PathBuf,
    properties: WriterPropertiesPtr,
    descriptor: SchemaDescPtr,
    rows: u64,
    /// The size of the footer file, bytes.
    footer_bytes: u64,
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
        let (directory, name) = Directory::of(path)?;
        Self::create_in(&Arc::new(directory), name, header)
    }

    /// Does what [`Self::create`] does, for a file of this name in an open directory.
    pub(crate) fn create_in(
        directory: &Arc<Directory>,
        name: String,
        header: FileHeader,
    ) -> Result<Self, RecordingError> {
        let path = directory.path_of(&name);
        let io = |source| RecordingError::io(&path, source);
        if directory.contains(&name).map_err(io)? {
            return Err(io(io::ErrorKind::AlreadyExists.into()));
        }
        let open = with_suffix(&name, OPEN);
        let file = directory
            .create_file(&open)
            .map_err(|source| RecordingError::io(&directory.path_of(&open), source))?;
        file.try_lock().map_err(|error| io(error.into()))?;
        let values = metadata::to_key_values(&header).map_err(|source| io(source.into()))?;
        let mut properties = properties(values);
        add_encoded_arrow_schema_to_metadata(&schema(), &mut properties);
        let properties = Arc::new(properties);
        let wrong = |source| RecordingError::write(&path, source);
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
            directory: directory.clone(),
            name,
            path,
            properties,
            descriptor: Arc::new(descriptor),
            rows: 0,
            footer_bytes: 0,
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
        let place = with_suffix(&with_suffix(&self.name, OPEN), FOOTER);
        self.directory
            .replace(&place, &footer)
            .map_err(|source| RecordingError::io(&self.directory.path_of(&place), source))?;
        self.rows += rows.len() as u64;
        self.footer_bytes = footer.len() as u64;
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
        publish(&self.directory, &self.name).map_err(io)?;
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

    /// Returns the size of the footer so far, bytes. It is written anew with every row group.
    pub(crate) fn footer_bytes(&self) -> u64 {
        self.footer_bytes
    }

    /// Returns the name of the complete file.
    pub(crate) fn name(&self) -> &str {
        &self.name
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

/// Completes the open files in `directory` that agents left, up to their last complete row group.
/// Files whose writer still exists hold a lock and are left alone, as are files with names that
/// agents do not give.
///
/// In another user's directory, root does this with that user's identity.
///
/// # Errors
///
/// Returns an error when the directory cannot be read, when root would work in a directory that
/// others than its owner can write, and when a file cannot be completed. Such a file stays as it
/// is; all others are completed before the first error is returned.
pub fn recover(directory: &Path) -> Result<Vec<Recovered>, RecordingError> {
    let directory = Directory::open(directory)?;
    if open_files(&directory)?.is_empty() {
        return Ok(Vec::new());
    }
    if !rustix::process::geteuid().is_root() {
        return recover_in(&directory);
    }
    directory.expect_guarded()?;
    if !directory.is_foreign_to_root() {
        return recover_in(&directory);
    }
    // An identity is taken for the rest of a thread's life.
    let recover = || {
        directory.take_owners_identity()?;
        recover_in(&directory)
    };
    let outcome = thread::scope(|scope| scope.spawn(recover).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does what [`recover`] does, with the identity of the calling thread.
pub(crate) fn recover_in(directory: &Directory) -> Result<Vec<Recovered>, RecordingError> {
    let open = open_files(directory)?;
    let outcomes: Vec<_> = open
        .iter()
        .map(|name| recover_file(directory, name))
        .collect();
    outcomes.into_iter().filter_map(Result::transpose).collect()
}

/// The names that the open files of agents will have when they are complete, sorted by age.
fn open_files(directory: &Directory) -> Result<Vec<String>, RecordingError> {
    let names = directory.names();
    let names = names.map_err(|source| RecordingError::io(directory.path(), source))?;
    let mut open: Vec<OwnName> = names
        .iter()
        .filter_map(|name| OwnName::parse(name))
        .filter(|(_, suffix)| *suffix == with_suffix(COMPLETE, OPEN))
        .map(|(name, _)| name)
        .collect();
    open.sort_unstable();
    Ok(open.into_iter().map(OwnName::complete).collect())
}

/// Does what [`recover`] does for the one file that will be called `name`. Returns `None` if it is
/// being written or no longer exists.
pub(crate) fn recover_file(
    directory: &Directory,
    name: &str,
) -> Result<Option<Recovered>, RecordingError> {
    let open = with_suffix(name, OPEN);
    let open_path = directory.path_of(&open);
    let io = |source| RecordingError::io(&open_path, source);
    let Some(mut file) = directory.open_file(&open).map_err(io)? else {
        return Ok(None);
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(io(error)),
        Ok(()) => {}
    }
    // The writer or another recovery may have completed the file before this one had the lock.
    if !directory.names_file(&open, &file).map_err(io)? {
        return Ok(None);
    }
    let place = with_suffix(&open, FOOTER);
    let footer = directory.read(&place, MAX_FOOTER);
    let footer = footer.map_err(|source| RecordingError::io(&directory.path_of(&place), source))?;
    let Some(footer) = footer else {
        directory.remove(&open).map_err(io)?;
        return Ok(Some(Recovered {
            path: None,
            rows: 0,
        }));
    };
    let whole = Ending::parse(&footer, &file).map_err(|reason| RecordingError::Broken {
        path: open_path.clone(),
        reason,
    })?;
    let path = directory.path_of(name);
    if directory.contains(name).map_err(io)? {
        return Err(RecordingError::io(
            &path,
            io::ErrorKind::AlreadyExists.into(),
        ));
    }
    file.set_len(whole.length).map_err(io)?;
    file.seek(SeekFrom::Start(whole.length)).map_err(io)?;
    file.write_all(whole.footer).map_err(io)?;
    file.sync_data().map_err(io)?;
    publish(directory, name).map_err(io)?;
    Ok(Some(Recovered {
        path: Some(path),
        rows: whole.rows,
    }))
}

/// What a footer file says of the open file beside it: where that ends, and how.
pub(crate) struct Ending<'a> {
    /// The length of the open file after its last complete row group, bytes.
    pub(crate) length: u64,
    /// The metadata of the complete row groups.
    pub(crate) metadata: ParquetMetaData,
    footer: &'a [u8],
    rows: u64,
}

impl<'a> Ending<'a> {
    /// The length that a footer file states, bytes; `None` if it is cut short.
    pub(crate) fn length(bytes: &[u8]) -> Option<u64> {
        bytes
            .first_chunk()
            .map(|length| u64::from_le_bytes(*length))
    }

    /// Decodes a footer file and compares it with the open file. Nothing of the open file may be
    /// changed before: it is not a recording's if its footer is not.
    ///
    /// The error completes the sentence that begins with the open file's path.
    pub(crate) fn parse(bytes: &'a [u8], file: &File) -> Result<Self, String> {
        let cut = || "the footer beside it is cut short".to_owned();
        let (length, footer) = bytes.split_first_chunk().ok_or_else(cut)?;
        let length = u64::from_le_bytes(*length);
        let (rest, magic) = footer.split_last_chunk().ok_or_else(cut)?;
        let (metadata, size) = rest.split_last_chunk().ok_or_else(cut)?;
        if magic != MAGIC || u32::from_le_bytes(*size) as usize != metadata.len() {
            return Err(cut());
        }
        let io = |error: io::Error| error.to_string();
        let mut begins = [0; MAGIC.len()];
        if length > file.metadata().map_err(io)?.len() {
            return Err("it is shorter than the footer beside it says".to_owned());
        }
        if length < begins.len() as u64
            || file.read_exact_at(&mut begins, 0).is_err()
            || &begins != MAGIC
        {
            return Err("it does not begin as Parquet does".to_owned());
        }
        let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(metadata))
            .map_err(|error| format!("the footer beside it: {error}"))?;
        let rows = rows_within(&metadata, length)
            .ok_or("the footer beside it is of another file".to_owned())?;
        Ok(Self {
            length,
            metadata,
            footer,
            rows,
        })
    }
}

/// Returns the number of rows, if these are the metadata of a recording whose columns lie within
/// the first `length` bytes.
fn rows_within(metadata: &ParquetMetaData, length: u64) -> Option<u64> {
    let file = metadata.file_metadata();
    let values = file.key_value_metadata().map_or(&[][..], Vec::as_slice);
    if !metadata::is_recording(values) {
        return None;
    }
    let mut rows = 0u64;
    for group in metadata.row_groups() {
        rows = rows.checked_add(u64::try_from(group.num_rows()).ok()?)?;
        for column in group.columns() {
            let data = column.data_page_offset();
            let start = column.dictionary_page_offset().unwrap_or(data).min(data);
            let start = u64::try_from(start).ok()?;
            let end = start.checked_add(u64::try_from(column.compressed_size()).ok()?)?;
            if start < MAGIC.len() as u64 || end > length {
                return None;
            }
        }
    }
    (u64::try_from(file.num_rows()).ok()? == rows).then_some(rows)
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

/// Renames a complete open file to its final name, durably, and removes its footer file.
fn publish(directory: &Directory, name: &str) -> io::Result<()> {
    let open = with_suffix(name, OPEN);
    directory.rename(&open, name)?;
    directory.remove(&with_suffix(&open, FOOTER))?;
    // The directory entry, too, must survive a crash of the host.
    directory.flush()
}
