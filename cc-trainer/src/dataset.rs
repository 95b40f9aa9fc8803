//! Training material made from recordings: [`Trajectory`]s of decisions, and the [`timeline`], a
//! table with one row per decision and what followed it.
//!
//! A recording interleaves the windows of all flows that were alive, and a flow continues from file
//! to file. The rows are therefore first distributed over [`Partitions`] on disk by their flow.
//! Then one partition at a time is sorted and read flow by flow. Memory depends on the size of a
//! partition and on the longest flow, not on the size of the recordings.
//!
//! There is no query engine here: all that is needed is one partition by key and one pass over each
//! part, and DataFusion alone would be larger than the rest of the program. Input and output are
//! Parquet, which any engine reads, on one host or on many.

pub mod features;
mod partition;
pub mod timeline;
mod trajectory;

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use cc_core::{interface::Interface, rows::FileHeader};
use cc_recording::{self, RecordingError};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

pub use partition::{Gathered, Partitions};
pub use trajectory::{StepOutcome, TERMS, Trajectory, TrajectoryStep};

/// Recordings that belong together: they share one interface, and come from any number
/// of files, hosts and policies.
#[derive(Clone, Debug)]
pub struct Recordings {
    files: Vec<PathBuf>,
    interface: Interface,
    policies: Vec<String>,
    rows: u64,
}

impl Recordings {
    /// Opens files, and all complete files of directories. Files that a killed agent left
    /// incomplete in a directory are completed first.
    ///
    /// # Errors
    ///
    /// Returns an error when nothing is found, a file is not a recording of this version, or a
    /// recording has another interface than the first.
    pub fn open(paths: &[PathBuf]) -> Result<Self, DatasetError> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                complete(path)?;
            }
            files.extend(cc_recording::files(path)?);
        }
        let mut first: Option<(PathBuf, FileHeader)> = None;
        let mut policies = BTreeSet::new();
        let mut rows = 0;
        for path in &files {
            let (header, _) = cc_recording::read(path)?;
            rows += count(path)?;
            policies.insert(header.policy.clone());
            match &first {
                None => first = Some((path.clone(), header)),
                Some((first, expected)) => {
                    let differences = differences(&expected.interface, &header.interface);
                    if !differences.is_empty() {
                        return Err(DatasetError::Mixed {
                            path: path.clone(),
                            first: first.clone(),
                            differences,
                        });
                    }
                }
            }
        }
        let Some((_, header)) = first else {
            return Err(DatasetError::Nothing);
        };
        Ok(Self {
            files,
            interface: header.interface,
            policies: policies.into_iter().collect(),
            rows,
        })
    }

    /// Returns the interface by which observations, actions and rewards are made.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the paths of the files, in the order in which they were named.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the identifiers of the recorded policies, sorted.
    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    /// Returns the number of rows in all files.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// Why recordings cannot be read, or their timeline cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recordings have different interfaces.
    #[error(
        "{}: recorded with other settings than {} ({}), so they cannot be used together: \
         name the files of one of them",
        path.display(),
        first.display(),
        differences.join("; ")
    )]
    Mixed {
        /// Path of the recording that differs.
        path: PathBuf,
        /// Path of the first recording, which it is compared with.
        first: PathBuf,
        /// The settings that differ, each as `setting: this, not that`.
        differences: Vec<String>,
    },
    /// The list of paths is empty.
    #[error("no recording was named")]
    Nothing,
    /// No row of the recordings has a decision with an action.
    #[error(
        "{rows} rows, but not one decision with an action, so nothing can be learned from them; \
         a policy that sets the cwnd directly (fixed:N) chooses no actions"
    )]
    NoDecisions {
        /// Number of rows that were read.
        rows: u64,
    },
    /// There are decisions, but rows before each of them are missing, so
    /// that no observation is known.
    #[error(
        "{decisions} decisions, but rows are missing before each of them, so the policy's \
         observations are unknown: record flows from their beginning, and name all files of \
         a recording"
    )]
    NoneKnown {
        /// Number of decisions that were read.
        decisions: u64,
    },
    /// The recordings contain a row more than once.
    #[error(
        "row {sequence} of flow {flow:#018x} is present twice, in {} and in {}: name each \
         recording once, and no copy of it",
        first.display(),
        second.display()
    )]
    Twice {
        /// Identifier of the row's flow.
        flow: u64,
        /// Number of the row within the flow.
        sequence: u32,
        /// Path of a recording that contains the row.
        first: PathBuf,
        /// Path of another one, or the same path again.
        second: PathBuf,
    },
    /// The output directory already holds a timeline or other Parquet files.
    #[error(
        "{} exists already; a timeline needs a directory of its own, and nothing is overwritten: \
         choose another one with --out",
        path.display()
    )]
    Exists {
        /// Path of the existing file.
        path: PathBuf,
    },
    /// An operation on a file or directory failed.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// The operation, such as `reading`.
        what: &'static str,
        /// Path that the operation concerned.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A Parquet file cannot be written.
    #[error("writing {}: {reason}", path.display())]
    Write {
        /// Path of the file that is incomplete.
        path: PathBuf,
        /// The error of the Parquet library.
        reason: String,
    },
}

impl DatasetError {
    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::System { what, path, source }
    }
}

/// Completes files that a killed agent left incomplete in a directory. In a directory that is not
/// writable they are left as they are.
fn complete(directory: &Path) -> Result<(), DatasetError> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match cc_recording::recover(directory) {
        Err(RecordingError::Io { source, .. })
            if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        outcome => outcome.map(drop).map_err(DatasetError::from),
    }
}

/// Returns the settings in which two interfaces differ, each as `setting: found, not expected`.
pub(crate) fn differences(expected: &Interface, found: &Interface) -> Vec<String> {
    fn compare(path: &str, expected: &Value, found: &Value, into: &mut Vec<String>) {
        match (expected, found) {
            (Value::Object(expected), Value::Object(found)) => {
                for (name, expected) in expected {
                    let path = match path {
                        "" => name.clone(),
                        _ => format!("{path}.{name}"),
                    };
                    compare(&path, expected, &found[name], into);
                }
            }
            _ if expected != found => into.push(format!("{path}: {found}, not {expected}")),
            _ => {}
        }
    }
    let json = |interface| serde_json::to_value(interface).unwrap_or_default();
    let mut all = Vec::new();
    compare("", &json(expected), &json(found), &mut all);
    all
}

/// Returns the number of rows of a Parquet file, from its footer.
fn count(path: &Path) -> Result<u64, DatasetError> {
    let file = File::open(path).map_err(DatasetError::system("opening", path))?;
    let reader = SerializedFileReader::new(file).map_err(|error| DatasetError::Write {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(reader.metadata().file_metadata().num_rows() as u64)
}

#[cfg(test)]
pub(crate) mod tests;
