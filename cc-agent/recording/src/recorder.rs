//! Writes rows to files on a thread of its own: a slow or full disk costs rows, never the caller's
//! time.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tracing::{error, info, warn};

use cc_core::{
    rows::{FileHeader, Recorded, Row},
    status::RecordingStatus,
};

use crate::{
    FileWriter, RecordingError,
    directory::Directory,
    file::{recover_file, recover_in},
    name::{COMPLETE, OwnName},
};

/// Rows that may wait for the disk: those of a thousand flows in half a minute, some 30 MB. Further
/// rows are lost.
const BACKLOG: u64 = 32_768;
/// The largest number of rows in a row group. It bounds the rows that a crash loses and the time of
/// one write; larger groups compress little better.
const GROUP: usize = 8_192;
/// Size of the footer at which a file is completed, bytes: it is written anew with every row group.
const FOOTER: u64 = 8 << 20;

/// What is logged and shown when the thread has panicked.
const ENDED: &str = "the thread that records has panicked, which is a defect of cc-agent: please \
                     report it; nothing is recorded until the agent is restarted";

/// Where recordings are written, and when files and row groups end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The directory of the recordings. It is created if it is missing. Only root and its owner may
    /// be able to write it.
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
    thread: Option<JoinHandle<()>>,
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
    /// Starts the thread, which completes the files that a former agent left open in the directory.
    /// Root's thread has the identity of the directory's owner from then on.
    ///
    /// `addresses` names the form of addresses for the status. `prepare` runs on the new thread
    /// before it takes rows, for example to lower its priority.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory cannot be written to, so that nothing could ever be
    /// recorded, or when others than root and its owner can write it.
    pub fn start(
        limits: Limits,
        addresses: &str,
        prepare: impl FnOnce() + Send + 'static,
    ) -> Result<Self, RecordingError> {
        let path = limits.directory.clone();
        let shared = Arc::new(Shared {
            status: Mutex::new(RecordingStatus {
                directory: path.clone(),
                addresses: addresses.to_owned(),
                ..RecordingStatus::default()
            }),
            ..Shared::default()
        });
        let (rows, queue) = channel();
        let (ready, started) = channel();
        let theirs = shared.clone();
        let thread = thread::Builder::new()
            .name("recorder".into())
            .spawn(move || match Worker::begin(limits, theirs) {
                Ok(worker) => {
                    // Whoever started this thread waits for the answer.
                    let _ = ready.send(Ok(()));
                    prepare();
                    worker.run(&queue);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })
            .map_err(|source| RecordingError::io(&path, source))?;
        let ended = || RecordingError::io(&path, io::Error::other(ENDED));
        started.recv().map_err(|_| ended())??;
        Ok(Self {
            rows: Some(rows),
            thread: Some(thread),
            shared,
        })
    }

    /// Passes rows to the thread, or counts them as lost when too many are waiting for the disk or
    /// the thread has ended. This never blocks.
    pub fn write(&mut self, rows: Vec<Recorded>) {
        let count = rows.len() as u64;
        if count == 0 {
            return;
        }
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return self.shared.count_after_the_end(count);
        }
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        if waiting + count > BACKLOG {
            if self.shared.behind.fetch_add(count, Ordering::Relaxed) == 0 {
                warn!("the disk is behind: rows of the recording are being lost");
            }
            return;
        }
        self.shared.waiting.fetch_add(count, Ordering::Relaxed);
        let sent = self.rows.as_ref().is_some_and(|q| q.send(rows).is_ok());
        if !sent {
            self.shared.count_after_the_end(count);
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
            warn!("{ENDED}");
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

    /// Counts rows that come after the thread has panicked, and reports that once.
    fn count_after_the_end(&self, lost: u64) {
        let mut status = self.status();
        status.rows_lost_unwritten += lost;
        if status.trouble.as_deref() != Some(ENDED) {
            error!("{ENDED}");
            status.trouble = Some(ENDED.to_owned());
        }
    }
}

/// The state of the writing thread: its open files and its limits.
struct Worker {
    directory: Arc<Directory>,
    /// The name of the next file.
    next: OwnName,
    limits: Limits,
    files: Vec<Open>,
    /// The names of files that could not be completed yet because the disk is full.
    incomplete: Vec<String>,
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
    /// Opens the directory, with the identity of its owner from then on, and completes what a
    /// former agent left open there.
    fn begin(limits: Limits, shared: Arc<Shared>) -> Result<Self, RecordingError> {
        let directory = Directory::take(&limits.directory)?;
        match recover_in(&directory) {
            Ok(found) => {
                for recovered in found {
                    let Some(path) = recovered.path else { continue };
                    info!("{}: completed, {} rows", path.display(), recovered.rows);
                    shared.status().files += 1;
                }
            }
            Err(error) => warn!("what a former recording left open stays so: {error}"),
        }
        let newest = own_names(&directory)
            .map_err(|source| RecordingError::io(&limits.directory, source))?
            .into_iter()
            .map(|(name, _)| name.start)
            .max();
        Ok(Self {
            directory: Arc::new(directory),
            next: OwnName {
                start: start_after(newest, SystemTime::now()),
                run: std::process::id(),
                number: 0,
            },
            limits,
            files: Vec::new(),
            incomplete: Vec::new(),
            shared,
        })
    }

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
            let writer = file.writer.as_ref();
            let bytes = writer.map_or(0, FileWriter::bytes);
            let footer = writer.map_or(0, FileWriter::footer_bytes);
            if old || bytes >= self.limits.file_bytes || footer >= FOOTER {
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
                for name in std::mem::take(&mut self.incomplete) {
                    self.rescue(name);
                }
            }
            Err(error) => {
                self.report(&error, rows.len() as u64);
                // The incomplete row group is lost; the file is completed with those before it.
                if let Some(writer) = file.writer.take() {
                    let name = writer.name().to_owned();
                    drop(writer);
                    self.rescue(name);
                }
            }
        }
        self.keep_within_limit();
    }

    fn create(&mut self, header: &FileHeader) -> Result<FileWriter, RecordingError> {
        let name = self.next.complete();
        self.next.number += 1;
        FileWriter::create_in(&self.directory, name, header.clone())
    }

    fn complete(&mut self, file: Open) {
        let Some(writer) = file.writer else { return };
        let name = writer.name().to_owned();
        match writer.finish() {
            Ok(_) => self.shared.status().files += 1,
            Err(error) => {
                self.report(&error, 0);
                self.rescue(name);
            }
        }
        self.keep_within_limit();
    }

    /// Completes a file whose last row group could not be written, or keeps it for a later attempt.
    fn rescue(&mut self, name: String) {
        match recover_file(&self.directory, &name) {
            Ok(Some(recovered)) => {
                self.shared.status().files += u64::from(recovered.path.is_some());
            }
            Ok(None) => {}
            Err(error) => {
                self.report(&error, 0);
                self.incomplete.push(name);
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
        let mut files = match own_names(&self.directory) {
            Ok(names) => names,
            Err(error) => {
                return self.report(&RecordingError::io(&self.limits.directory, error), 0);
            }
        };
        files.sort();
        let files: Vec<_> = files
            .into_iter()
            .map(|(_, file)| (self.directory.size(&file), file))
            .collect();
        let mut bytes: u64 = files.iter().map(|(bytes, _)| bytes).sum();
        for (size, file) in files {
            if bytes <= self.limits.total_bytes {
                break;
            }
            let complete = file.ends_with(COMPLETE);
            if complete && self.directory.remove(&file).is_ok() {
                bytes -= size;
                self.shared.status().files_removed += 1;
            }
        }
        self.shared.status().bytes = bytes;
    }
}

/// Returns the names of all recordings by agents in the directory, and the names of their files:
/// complete files, open files, and their footer files.
fn own_names(directory: &Directory) -> io::Result<Vec<(OwnName, String)>> {
    let own = |file: String| Some((OwnName::parse(&file)?.0, file));
    Ok(directory.names()?.into_iter().filter_map(own).collect())
}

/// Returns the start of this run's file names: the time, or one more than the newest of the
/// directory when the clock says less.
fn start_after(newest: Option<u64>, now: SystemTime) -> u64 {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    now.max(newest.map_or(0, |newest| newest + 1))
        .min(OwnName::LATEST)
}

#[cfg(test)]
mod tests;
