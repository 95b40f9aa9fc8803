//! Writes rows to files on a thread of its own: a slow or full disk costs rows, never the caller's
//! time.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tracing::{info, warn};

use cc_core::{
    rows::{FileHeader, Recorded, Row},
    status::RecordingStatus,
};

use crate::{FileWriter, RecordingError, file::recover_file, name::COMPLETE, recover};

/// Rows that may wait for the disk: those of a thousand flows in half a minute, some 30 MB. Further
/// rows are lost.
const BACKLOG: u64 = 32_768;
/// The largest number of rows in a row group. It bounds the rows that a crash loses and the time of
/// one write; larger groups compress little better.
const GROUP: usize = 8_192;

/// Where recordings are written, and when files and row groups end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The directory of the recordings. It is created if it is missing.
    pub directory: PathBuf,
    /// Size at which a file is completed, bytes.
    pub file_bytes: u64,
    /// Age at which a file is completed.
    pub file_age: Duration,
    /// The longest time until a row is on the disk: what a crash can lose.
    pub group_age: Duration,
    /// Size of all recordings in the directory beyond which the oldest are removed, bytes.
    pub total_bytes: u64,
}

/// Records rows, one file per header at a time. Dropping it writes all waiting rows and completes
/// the files.
pub struct Recorder {
    rows: Option<Sender<Vec<Recorded>>>,
    thread: Option<thread::JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// State shared by the recorder and its thread.
#[derive(Default)]
struct Shared {
    /// Rows sent to the thread and not yet received by it.
    waiting: AtomicU64,
    /// Rows lost because too many were waiting.
    behind: AtomicU64,
    status: Mutex<RecordingStatus>,
}

impl Recorder {
    /// Completes the files that a former agent left open in the directory, and starts the thread.
    ///
    /// `addresses` names the form of addresses for the status. `prepare` runs on the new thread
    /// first, for example to lower its priority.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory cannot be written to, so that nothing could ever be
    /// recorded.
    pub fn start(
        limits: Limits,
        addresses: &str,
        prepare: impl FnOnce() + Send + 'static,
    ) -> Result<Self, RecordingError> {
        let directory = limits.directory.clone();
        fs::create_dir_all(&directory).map_err(|source| RecordingError::io(&directory, source))?;
        check_writable(&directory).map_err(|source| RecordingError::io(&directory, source))?;
        let mut status = RecordingStatus {
            directory: directory.clone(),
            addresses: addresses.to_owned(),
            ..RecordingStatus::default()
        };
        match recover(&directory) {
            Ok(found) => {
                for recovered in found {
                    let Some(path) = recovered.path else { continue };
                    info!("{}: completed, {} rows", path.display(), recovered.rows);
                    status.files += 1;
                }
            }
            Err(error) => warn!("what a former recording left open stays so: {error}"),
        }
        let shared = Arc::new(Shared {
            status: Mutex::new(status),
            ..Shared::default()
        });
        let (rows, queue) = channel();
        let worker = Worker {
            prefix: prefix(),
            number: 0,
            limits,
            files: Vec::new(),
            incomplete: Vec::new(),
            shared: shared.clone(),
        };
        let thread = thread::Builder::new()
            .name("recorder".into())
            .spawn(move || {
                prepare();
                worker.run(&queue);
            })
            .map_err(|source| RecordingError::io(&directory, source))?;
        Ok(Self {
            rows: Some(rows),
            thread: Some(thread),
            shared,
        })
    }

    /// Passes rows to the thread, or counts them as lost when too many are waiting for the disk.
    /// This never blocks.
    pub fn write(&mut self, rows: Vec<Recorded>) {
        let count = rows.len() as u64;
        if count == 0 {
            return;
        }
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        let sent = waiting + count <= BACKLOG && {
            self.shared.waiting.fetch_add(count, Ordering::Relaxed);
            self.rows
                .as_ref()
                .is_some_and(|queue| queue.send(rows).is_ok())
        };
        if !sent && self.shared.behind.fetch_add(count, Ordering::Relaxed) == 0 {
            warn!("the disk is behind: rows of the recording are being lost");
        }
    }

    /// Returns the counts of rows, files and bytes so far, and the current error if there is one.
    pub fn status(&self) -> RecordingStatus {
        let mut status = self.shared.status().clone();
        status.rows_lost_behind = self.shared.behind.load(Ordering::Relaxed);
        status
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.rows = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread that records panicked");
        }
        let status = self.status();
        let lost = status.rows_lost_behind + status.rows_lost_unwritten;
        info!(
            "recorded {} rows in {}; {lost} were lost",
            status.rows,
            status.directory.display()
        );
    }
}

impl Shared {
    fn status(&self) -> std::sync::MutexGuard<'_, RecordingStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the writing thread: its open files and its limits.
struct Worker {
    /// The start of the names of this run's files.
    prefix: String,
    /// The number of the next file.
    number: u32,
    limits: Limits,
    files: Vec<Open>,
    /// Files that could not be completed yet because the disk is full.
    incomplete: Vec<PathBuf>,
    shared: Arc<Shared>,
}

/// The file being written for one header.
struct Open {
    header: Arc<FileHeader>,
    /// Created with the first row group.
    writer: Option<FileWriter>,
    opened: Instant,
    #[expect(
        clippy::vec_box,
        reason = "sorting moves the pointers, not the rows of 800 bytes each"
    )]
    rows: Vec<Box<Row>>,
    /// When the first of the waiting rows arrived.
    since: Instant,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Vec<Recorded>>) {
        self.keep_within_limit();
        loop {
            let due = self.files.iter().map(|file| self.due(file)).min();
            let patience = due.map_or(Duration::from_secs(3_600), |due| {
                due.saturating_duration_since(Instant::now())
            });
            match queue.recv_timeout(patience) {
                Ok(rows) => self.take(rows),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.write_due();
        }
        for mut file in std::mem::take(&mut self.files) {
            self.write_group(&mut file);
            self.complete(file);
        }
    }

    fn take(&mut self, rows: Vec<Recorded>) {
        self.shared
            .waiting
            .fetch_sub(rows.len() as u64, Ordering::Relaxed);
        for Recorded { header, row } in rows {
            let found = self
                .files
                .iter()
                .position(|file| Arc::ptr_eq(&file.header, &header));
            let index = found.unwrap_or_else(|| {
                self.files.push(Open {
                    header,
                    writer: None,
                    opened: Instant::now(),
                    rows: Vec::new(),
                    since: Instant::now(),
                });
                self.files.len() - 1
            });
            let file = &mut self.files[index];
            if file.rows.is_empty() {
                file.since = Instant::now();
            }
            file.rows.push(row);
        }
    }

    /// Returns when a row group of the file must be written or the file completed.
    fn due(&self, file: &Open) -> Instant {
        let complete = file.opened + self.limits.file_age;
        if file.rows.is_empty() {
            complete
        } else {
            complete.min(file.since + self.limits.group_age)
        }
    }

    fn write_due(&mut self) {
        for mut file in std::mem::take(&mut self.files) {
            let now = Instant::now();
            let old = now >= file.opened + self.limits.file_age;
            if old || file.rows.len() >= GROUP || now >= self.due(&file) {
                self.write_group(&mut file);
            }
            let bytes = file.writer.as_ref().map_or(0, FileWriter::bytes);
            if old || bytes >= self.limits.file_bytes {
                self.complete(file);
            } else {
                self.files.push(file);
            }
        }
    }

    fn write_group(&mut self, file: &mut Open) {
        if file.rows.is_empty() {
            return;
        }
        let mut rows = std::mem::take(&mut file.rows);
        // Similar neighbours compress better, and the rows of a flow lie together.
        rows.sort_by_cached_key(|row| (row.flow, row.sequence));
        let written = match &mut file.writer {
            Some(writer) => writer.write(&rows),
            None => self.create(&file.header).and_then(|mut writer| {
                let written = writer.write(&rows);
                file.opened = Instant::now();
                file.writer = Some(writer);
                written
            }),
        };
        match written {
            Ok(()) => {
                let mut status = self.shared.status();
                status.rows += rows.len() as u64;
                if status.trouble.take().is_some() {
                    info!("rows are being recorded again");
                }
                drop(status);
                for path in std::mem::take(&mut self.incomplete) {
                    self.rescue(&path);
                }
            }
            Err(error) => {
                self.report(&error, rows.len() as u64);
                // The incomplete row group is lost; the file is completed with those before it.
                if let Some(writer) = file.writer.take() {
                    let path = writer.path().to_owned();
                    drop(writer);
                    self.rescue(&path);
                }
            }
        }
        self.keep_within_limit();
    }

    fn create(&mut self, header: &FileHeader) -> Result<FileWriter, RecordingError> {
        let name = format!("{}-{:06}.{COMPLETE}", self.prefix, self.number);
        self.number += 1;
        FileWriter::create(&self.limits.directory.join(name), header.clone())
    }

    fn complete(&mut self, file: Open) {
        let Some(writer) = file.writer else { return };
        let path = writer.path().to_owned();
        match writer.finish() {
            Ok(_) => self.shared.status().files += 1,
            Err(error) => {
                self.report(&error, 0);
                self.rescue(&path);
            }
        }
        self.keep_within_limit();
    }

    /// Completes a file whose last row group could not be written, or keeps it for a later attempt.
    fn rescue(&mut self, path: &Path) {
        match recover_file(path) {
            Ok(Some(recovered)) => {
                self.shared.status().files += u64::from(recovered.path.is_some());
            }
            Ok(None) => {}
            Err(error) => {
                self.report(&error, 0);
                self.incomplete.push(path.to_owned());
            }
        }
    }

    /// Counts `lost` rows, logs the first of consecutive errors, and shows the error in the status.
    fn report(&mut self, error: &RecordingError, lost: u64) {
        let mut status = self.shared.status();
        status.rows_lost_unwritten += lost;
        let text = error.to_string();
        if status.trouble.is_none() {
            warn!("{text}; rows of the recording are being lost until it can be written again");
        }
        status.trouble = Some(text);
    }

    /// Removes the oldest complete files while the recordings exceed their limit.
    fn keep_within_limit(&mut self) {
        let mut files = match own_files(&self.limits.directory) {
            Ok(files) => files,
            Err(error) => {
                return self.report(&RecordingError::io(&self.limits.directory, error), 0);
            }
        };
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        for (path, size) in files {
            if bytes <= self.limits.total_bytes {
                break;
            }
            if path.extension().is_some_and(|e| e == COMPLETE) && fs::remove_file(&path).is_ok() {
                bytes -= size;
                self.shared.status().files_removed += 1;
            }
        }
        self.shared.status().bytes = bytes;
    }
}

/// Returns the paths and sizes in bytes of all recordings by agents in the directory: complete
/// files, open files, and their footer files.
fn own_files(directory: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if is_own(&entry.file_name().to_string_lossy()) {
            // Another agent may have removed the file meanwhile.
            let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
            files.push((entry.path(), bytes));
        }
    }
    Ok(files)
}

/// Returns whether a file has a name as [`Worker::create`] gives it.
fn is_own(name: &str) -> bool {
    let Some((stem, suffix)) = name.split_once('.') else {
        return false;
    };
    let parts: Vec<_> = stem.split('-').collect();
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let named = match parts[..] {
        [time, run, number] => {
            (time.len(), run.len(), number.len()) == (10, 8, 6)
                && digits(time)
                && hex(run)
                && digits(number)
        }
        _ => false,
    };
    named && (suffix == COMPLETE || suffix.starts_with(&format!("{COMPLETE}.")))
}

/// Returns the start of this run's file names: the time in seconds since 1970 UTC, so that names
/// sort by age, and the process id.
fn prefix() -> String {
    let start = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    format!("{start:010}-{:08x}", std::process::id())
}

/// Checks that files can be created in a directory. A full disk is accepted, since it may have room
/// later.
///
/// # Errors
///
/// Returns the file system's error for any other reason.
fn check_writable(directory: &Path) -> io::Result<()> {
    let path = directory.join(format!(".{}", std::process::id()));
    match File::create(&path) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        Err(error) => Err(error),
        Ok(_) => fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests;
