//! Following a directory of recordings: rows are read as soon as they are on the disk, from files
//! that their agents still write.
//!
//! The footer beside an open file ([`crate::file`]) says which row groups are complete. Nothing is
//! locked and nothing is changed, so that agents do not notice.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parquet::{
    arrow::arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
    },
    file::metadata::{ParquetMetaData, ParquetMetaDataReader},
};

use cc_core::{
    guarded, regular_file,
    rows::{FileHeader, Row},
};

use crate::{
    RecordingError,
    file::{Ending, MAX_FOOTER},
    name::{COMPLETE, FOOTER, OPEN, OwnName, with_suffix},
    read::rows_of,
};

/// Reads the recordings in a directory while agents write them, each row once.
///
/// Files with names that agents do not give are left alone. What an agent removes before it was
/// read is lost.
#[derive(Debug)]
pub struct Follower {
    directory: PathBuf,
    /// What was read of each file that is there.
    read: BTreeMap<OwnName, Place>,
}

/// Rows that have become readable, all of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// What the rows have in common, as the file states it.
    pub header: Arc<FileHeader>,
    /// The rows in the order in which they were written.
    pub rows: Vec<Row>,
}

/// How far a file was read.
#[derive(Debug, Default)]
struct Place {
    /// Number of row groups that were read.
    groups: usize,
    /// Length of the open file after its last complete row group when it was last looked at, bytes.
    length: u64,
    /// Whether all of the complete file was read.
    ended: bool,
}

/// A file with the row groups that are complete.
struct Part {
    path: PathBuf,
    file: File,
    metadata: ParquetMetaData,
    /// Length of an open file after these row groups, bytes; `None` for a complete file.
    length: Option<u64>,
}

impl Follower {
    /// Follows a directory, which need not exist yet, from the oldest recording in it on.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            read: BTreeMap::new(),
        }
    }

    /// Passes over what is there now: only rows that are written later are read.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Self::poll`].
    pub fn skip(&mut self) -> Result<(), RecordingError> {
        for (name, part) in self.look()? {
            self.note(name, &part);
        }
        Ok(())
    }

    /// Reads the rows that were written since the last call, file by file from the oldest file on.
    /// There are none while the directory does not exist.
    ///
    /// The rows of a flow come in their order, also where a change of the policy has put them in
    /// different files.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory or a file cannot be read, or is not as agents write it.
    /// The next call begins with the same file.
    pub fn poll(&mut self) -> Result<Vec<Followed>, RecordingError> {
        let mut all = Vec::new();
        for (name, part) in self.look()? {
            let from = self.read.get(&name).map_or(0, |place| place.groups);
            if part.metadata.num_row_groups() > from {
                match part.read(from) {
                    Ok(followed) => all.push(followed),
                    Err(error) if all.is_empty() => return Err(error),
                    // The next call will find it.
                    Err(_) => break,
                }
            }
            self.note(name, &part);
        }
        Ok(all)
    }

    /// The files with row groups that were not read yet, or that have ended, from the oldest on.
    fn look(&mut self) -> Result<Vec<(OwnName, Part)>, RecordingError> {
        let names = self.names()?;
        self.read
            .retain(|name, _| names.binary_search(name).is_ok());
        let mut found = Vec::new();
        // The newest first: what was written before a row group that is seen is seen after it.
        for name in names.into_iter().rev() {
            let place = self.read.entry(name).or_default();
            if place.ended {
                continue;
            }
            if let Some(part) = Part::open(&self.directory, name, place.length)? {
                found.push((name, part));
            }
        }
        found.reverse();
        Ok(found)
    }

    fn note(&mut self, name: OwnName, part: &Part) {
        let place = self.read.entry(name).or_default();
        place.groups = part.metadata.num_row_groups();
        place.ended = part.length.is_none();
        place.length = part.length.unwrap_or(place.length);
    }

    /// The names of all recordings of agents, complete or open, sorted by age.
    fn names(&self) -> Result<Vec<OwnName>, RecordingError> {
        let failed = |source| RecordingError::io(&self.directory, source);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(failed)?.file_name();
            // Names that are not UTF-8 are none of an agent's.
            names.extend(
                file.to_str()
                    .and_then(OwnName::parse)
                    .filter(|(_, suffix)| *suffix == COMPLETE || *suffix == open_suffix())
                    .map(|(name, _)| name),
            );
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

impl Part {
    /// Opens the recording of this name. `None` where there is nothing new: an open file has no
    /// row group beyond its first `length` bytes, or the file has just been completed or removed.
    fn open(directory: &Path, name: OwnName, length: u64) -> Result<Option<Self>, RecordingError> {
        let path = directory.join(name.complete());
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RecordingError::io(&path, source)
        };
        if let Some(file) = if_there(regular_file::open(&path)).map_err(failed(&path))? {
            let metadata = guarded(|| ParquetMetaDataReader::new().parse_and_finish(&file));
            let metadata = metadata.map_err(|reason| RecordingError::broken(&path, reason))?;
            return Ok(Some(Self {
                path,
                file,
                metadata,
                length: None,
            }));
        }
        let path = directory.join(with_suffix(&name.complete(), OPEN));
        let Some(file) = if_there(regular_file::open(&path)).map_err(failed(&path))? else {
            return Ok(None);
        };
        let beside = directory.join(with_suffix(&with_suffix(&name.complete(), OPEN), FOOTER));
        let footer = if_there(regular_file::read(&beside, MAX_FOOTER)).map_err(failed(&beside))?;
        let Some(footer) = footer.filter(|footer| Ending::length(footer) != Some(length)) else {
            return Ok(None);
        };
        let ending = Ending::parse(&footer, &file).map_err(|reason| RecordingError::Broken {
            path: path.clone(),
            reason,
        })?;
        Ok(Some(Self {
            length: Some(ending.length),
            metadata: ending.metadata,
            path,
            file,
        }))
    }

    /// Reads the row groups from number `from` on.
    fn read(&self, from: usize) -> Result<Followed, RecordingError> {
        let file = self.file.try_clone();
        let file = file.map_err(|source| RecordingError::io(&self.path, source))?;
        let metadata = Arc::new(self.metadata.clone());
        let metadata =
            guarded(|| ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::default()));
        let metadata = metadata.map_err(|reason| RecordingError::broken(&self.path, reason))?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
        let (header, rows) = rows_of(&self.path, &self.file, builder, from)?;
        Ok(Followed {
            header: Arc::new(header),
            rows: rows.collect::<Result<_, _>>()?,
        })
    }
}

/// The rest of the name of an open file.
fn open_suffix() -> String {
    with_suffix(COMPLETE, OPEN)
}

/// `None` for what does not exist, which is no error.
fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{FileWriter, samples};

    fn header(policy: &str) -> FileHeader {
        samples::header(policy)
    }

    fn name(number: u64) -> OwnName {
        OwnName {
            start: 1_795_000_000,
            run: 7,
            number,
        }
    }

    fn create(directory: &TempDir, number: u64, policy: &str) -> FileWriter {
        let path = directory.path().join(name(number).complete());
        FileWriter::create(&path, header(policy)).expect("a new file")
    }

    /// Rows of one flow with these sequence numbers.
    fn rows(sequences: std::ops::Range<u32>) -> Vec<Row> {
        let row = samples::one_row();
        let numbered = |sequence| Row {
            sequence,
            ..row.clone()
        };
        sequences.map(numbered).collect()
    }

    /// What a poll finds: the policy and the sequence numbers of each file.
    fn found(follower: &mut Follower) -> Vec<(String, Vec<u32>)> {
        let all = follower.poll().expect("sound recordings").into_iter();
        all.map(|Followed { header, rows }| {
            let sequences = rows.iter().map(|row| row.sequence).collect();
            (header.policy.clone(), sequences)
        })
        .collect()
    }

    fn of(policy: &str, sequences: std::ops::Range<u32>) -> (String, Vec<u32>) {
        (policy.to_owned(), sequences.collect())
    }

    #[test]
    fn each_row_is_read_once_when_it_is_on_the_disk() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut follower = Follower::new(&directory.path().join("recording"));
        assert_eq!(found(&mut follower), []);
        let mut follower = Follower::new(directory.path());
        let mut writer = create(&directory, 0, "a");
        assert_eq!(found(&mut follower), [], "a file without a row group");
        writer.write(&rows(0..3)).expect("space");
        assert_eq!(found(&mut follower), [of("a", 0..3)]);
        assert_eq!(found(&mut follower), []);
        writer.write(&rows(3..5)).expect("space");
        writer.write(&rows(5..6)).expect("space");
        assert_eq!(found(&mut follower), [of("a", 3..6)]);
        writer.write(&rows(6..8)).expect("space");
        let path = writer.finish().expect("space");
        assert_eq!(
            found(&mut follower),
            [of("a", 6..8)],
            "of the complete file"
        );
        assert_eq!(found(&mut follower), []);
        fs::remove_file(path).expect("it is there");
        assert_eq!(found(&mut follower), []);
    }

    #[test]
    fn the_rows_of_a_flow_are_in_order_across_files() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut follower = Follower::new(directory.path());
        let (mut old, mut new) = (create(&directory, 0, "a"), create(&directory, 1, "b"));
        old.write(&rows(0..2)).expect("space");
        new.write(&rows(2..4)).expect("space");
        assert_eq!(found(&mut follower), [of("a", 0..2), of("b", 2..4)]);
        old.finish().expect("space");
        new.write(&rows(4..5)).expect("space");
        assert_eq!(found(&mut follower), [of("b", 4..5)]);
    }

    #[test]
    fn what_is_there_can_be_passed_over() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut complete = create(&directory, 0, "a");
        complete.write(&rows(0..2)).expect("space");
        complete.finish().expect("space");
        let mut open = create(&directory, 1, "b");
        open.write(&rows(2..4)).expect("space");
        // Not an agent's, and not read.
        fs::write(directory.path().join("notes.parquet"), "none").expect("space");
        let mut follower = Follower::new(directory.path());
        follower.skip().expect("sound recordings");
        open.write(&rows(4..6)).expect("space");
        assert_eq!(found(&mut follower), [of("b", 4..6)]);
    }

    #[test]
    fn damage_is_an_error_that_names_the_file() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut writer = create(&directory, 0, "a");
        writer.write(&rows(0..2)).expect("space");
        let open = directory
            .path()
            .join(with_suffix(&name(0).complete(), OPEN));
        fs::write(
            directory
                .path()
                .join(with_suffix(&with_suffix(&name(0).complete(), OPEN), FOOTER)),
            [7; 40],
        )
        .expect("space");
        let error = Follower::new(directory.path())
            .poll()
            .expect_err("no footer");
        let error = error.to_string();
        assert!(error.contains(&*open.to_string_lossy()), "{error}");
    }
}
