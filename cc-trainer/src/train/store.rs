//! A copy of a run in a directory or object store, from which another machine can continue it.
//!
//! The run's own directory comes first: a checkpoint is there before it is copied, and a store that
//! is slow, full or out of reach costs the run nothing. A thread reads the files and writes them to
//! the store. While it is at that, later checkpoints replace each other: the last one is copied.
//!
//! The store has `checkpoint.bin`, `train.json` and what else [`FILES`] names, each written whole
//! or not at all. A run is continued from the checkpoint alone.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use cc_channel::{ChannelError, Store};
use cc_core::{
    durable::{ReplaceError, replace_durably},
    error_chain,
};
use tokio::runtime::Runtime;

use super::checkpoint::{Checkpoint, CheckpointError};
use crate::listening;

/// The files that are copied, in this order, as far as there are such. TensorBoard's are not: they
/// grow, and an object cannot.
const FILES: [&str; 4] = [CHECKPOINT, "train.json", "held_out.csv", "policy.onnx"];
const CHECKPOINT: &str = "checkpoint.bin";
/// Largest file that is fetched, bytes.
const MOST: u64 = 4 << 30;

/// Why a run has no copy in its store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be opened, read or written.
    #[error("--store: {0}")]
    Store(#[from] ChannelError),
    /// The directory cannot take the store's run, or has a checkpoint that cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// What the store has is no checkpoint.
    #[error("--store {place}: {source}")]
    Checkpoint {
        /// The directory or URL of the store, as it was given.
        place: String,
        /// What is wrong with it.
        source: CheckpointError,
    },
    /// The thread that copies cannot be started.
    #[error("starting the thread that copies to {place}: {source}")]
    Thread {
        /// The directory or URL of the store, as it was given.
        place: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The last checkpoint was not copied. The run in the directory is whole.
    #[error(
        "the copy in {place} is not the last checkpoint ({reason}); the run in {dir} is whole: \
         once the store can be written to, the same command copies it",
        dir = dir.display()
    )]
    Behind {
        /// The directory or URL of the store, as it was given.
        place: String,
        /// The directory of the run, which has the last checkpoint.
        dir: PathBuf,
        /// Why the checkpoint was not copied.
        reason: String,
    },
}

/// Why a run is not fetched into a directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The directory has a checkpoint that cannot be compared with the store's.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The directory cannot be made.
    #[error("making {}: {source}", dir.display())]
    Make {
        /// The directory that was to be made.
        dir: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

/// Copies the store's run into `dir` if its checkpoint has learnt from more steps than the one that
/// is there, if any. Returns whether it has.
///
/// # Errors
///
/// Returns an error when the store cannot be read, when one of the two checkpoints cannot, and when
/// the directory cannot be written to.
pub(super) fn fetch(store: &Store, dir: &Path) -> Result<bool, StoreError> {
    let runtime = runtime(store)?;
    let get = |name: &str| runtime.block_on(store.get(name, MOST));
    let Some(bytes) = get(CHECKPOINT)? else {
        return Ok(false);
    };
    let path = dir.join(CHECKPOINT);
    let stored = Checkpoint::read(Path::new(CHECKPOINT), &bytes).map_err(|source| {
        StoreError::Checkpoint {
            place: store.to_string(),
            source,
        }
    })?;
    let own = Checkpoint::load(&path).map_err(DirectoryError::Checkpoint)?;
    let is_further =
        |own: &Checkpoint| stored.header.statistics.steps > own.header.statistics.steps;
    if !own.as_ref().is_none_or(is_further) {
        return Ok(false);
    }
    fs::create_dir_all(dir).map_err(|source| DirectoryError::Make {
        dir: dir.to_owned(),
        source,
    })?;
    let replace =
        |path: &Path, bytes: &[u8]| replace_durably(path, bytes).map_err(DirectoryError::Replace);
    // The checkpoint comes last, as the sign that the others are there.
    for name in FILES.into_iter().filter(|name| *name != CHECKPOINT) {
        if let Some(bytes) = get(name)? {
            replace(&dir.join(name), &bytes)?;
        }
    }
    replace(&path, &bytes)?;
    Ok(true)
}

fn runtime(store: &Store) -> Result<Runtime, StoreError> {
    listening::runtime().map_err(|source| StoreError::Thread {
        place: store.to_string(),
        source,
    })
}

/// The thread that copies a run's directory to a store.
pub(super) struct Copier {
    place: String,
    dir: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There is a checkpoint that was not copied yet.
    due: bool,
    /// No other checkpoint will come.
    closed: bool,
    /// Number of copies that were begun.
    begun: u64,
    /// Number of them that were made or failed.
    done: u64,
    /// Why the last copy failed; `None` if it did not.
    failure: Option<String>,
    /// Whether somebody has been told of the failure.
    told: bool,
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Copier").field(&self.place).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Copier {
    /// Starts the thread, which copies nothing before [`copy`](Self::copy).
    pub(super) fn to(store: Store, dir: &Path) -> Result<Self, StoreError> {
        let (runtime, place) = (runtime(&store)?, store.to_string());
        let put = move |name: &str, bytes| {
            let put = runtime.block_on(store.put(name, bytes));
            put.map_err(|error| error_chain(&error))
        };
        Self::start(place, dir, put)
    }

    /// The same with `put` to write an object to the store.
    fn start(
        place: String,
        dir: &Path,
        mut put: impl FnMut(&str, Vec<u8>) -> Result<(), String> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let work = {
            let (shared, dir) = (shared.clone(), dir.to_owned());
            move || {
                while wait(&shared) {
                    let copied = copy(&dir, &mut put);
                    let mut state = shared.lock();
                    state.done += 1;
                    state.told &= copied.is_err();
                    state.failure = copied.err();
                    drop(state);
                    shared.changed.notify_all();
                }
            }
        };
        let thread = thread::Builder::new().name("store".into()).spawn(work);
        let thread = thread.map_err(|source| StoreError::Thread {
            place: place.clone(),
            source,
        })?;
        Ok(Self {
            place,
            dir: dir.to_owned(),
            shared,
            thread: Some(thread),
        })
    }

    /// Has the directory's present files copied, and does not wait for it.
    pub(super) fn copy(&self) {
        drop(self.ask());
    }

    /// Asks for a copy. None begins before the state is unlocked.
    fn ask(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.lock();
        state.due = true;
        self.shared.changed.notify_all();
        state
    }

    /// Has them copied, and waits.
    ///
    /// # Errors
    ///
    /// Returns an error when they were not copied.
    pub(super) fn copy_now(&self) -> Result<(), StoreError> {
        let state = self.ask();
        // Not the one that may be under way, whose files were read before.
        let awaited = state.begun + 1;
        let waits = |state: &mut State| state.done < awaited;
        let state = self.shared.changed.wait_while(state, waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        match &state.failure {
            None => Ok(()),
            Some(reason) => Err(self.behind(reason)),
        }
    }

    /// Why the last copy was not made, once for each series of failures.
    pub(super) fn news(&self) -> Option<String> {
        let mut state = self.shared.lock();
        let failure = state.failure.clone().filter(|_| !state.told)?;
        state.told = true;
        Some(format!(
            "the copy in {} falls behind ({failure}): training goes on, and the next checkpoint \
             will be copied",
            self.place
        ))
    }

    /// Waits until the last checkpoint has been copied.
    ///
    /// # Errors
    ///
    /// Returns an error when it was not.
    pub(super) fn finish(mut self) -> Result<(), StoreError> {
        self.close();
        if let Some(thread) = self.thread.take() {
            // A panic has printed its message, and left the copy as it was.
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        let failure = match state.due {
            true => Some("the thread that copies has ended early".to_owned()),
            false => state.failure.take(),
        };
        drop(state);
        failure.map_or(Ok(()), |reason| Err(self.behind(&reason)))
    }

    fn behind(&self, reason: &str) -> StoreError {
        StoreError::Behind {
            place: self.place.clone(),
            dir: self.dir.clone(),
            reason: reason.to_owned(),
        }
    }

    fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // A run that has failed does not wait for its store.
        self.close();
    }
}

/// Waits until there is something to copy, and takes note that it is being copied; false when there
/// never will be.
fn wait(shared: &Shared) -> bool {
    let is_idle = |state: &mut State| !state.due && !state.closed;
    let state = shared.changed.wait_while(shared.lock(), is_idle);
    let mut state = state.unwrap_or_else(PoisonError::into_inner);
    let is_due = std::mem::take(&mut state.due);
    state.begun += u64::from(is_due);
    is_due
}

/// Copies the files. Each replaces the store's as a whole, and the directory's are replaced as a
/// whole, so that a checkpoint that is read is one.
fn copy(
    dir: &Path,
    put: &mut impl FnMut(&str, Vec<u8>) -> Result<(), String>,
) -> Result<(), String> {
    for name in FILES {
        let path = dir.join(name);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read.map_err(|error| format!("reading {}: {error}", path.display()))?,
        };
        put(name, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
