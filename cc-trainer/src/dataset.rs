//! Recordings as what one learns from: trajectories of decisions, and the timeline, a row a decision with what followed it.
//!
//! A recording interleaves the windows of all flows that were alive, and a flow goes on from file to file. So its rows are
//! first spread over [`Partitions`] by flow, on the disk; then a partition at a time is sorted and its flows are told one
//! after the other. Memory depends on the size of a partition and on the longest flow, not on that of the recording.
//!
//! There is no query engine in here: all that is needed is this one partition by key and a pass over each part, and DataFusion
//! would be most of the program's size for it. What is read and written is Parquet, which any engine takes, on one host or on
//! many.

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
use cc_recording::RecordingError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

pub use partition::{Gathered, Partitions};
pub use trajectory::{Outcome, Step, TERMS, Trajectory};

/// Recordings that go together: one environment, any number of files, hosts and policies.
#[derive(Clone, Debug)]
pub struct Recordings {
    files: Vec<PathBuf>,
    environment: Interface,
    policies: Vec<String>,
    rows: u64,
}

impl Recordings {
    /// Opens files, and all complete files of directories; what a killed agent left open in these is completed first.
    ///
    /// # Errors
    ///
    /// Nothing there, a file that is no recording of this version, or one of another environment than the first.
    pub fn open(paths: &[PathBuf]) -> Result<Self, DatasetError> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                complete(path)?;
            }
            files.extend(recording::files(path)?);
        }
        let mut first: Option<(PathBuf, FileHeader)> = None;
        let mut policies = BTreeSet::new();
        let mut rows = 0;
        for path in &files {
            let (header, _) = recording::read(path)?;
            rows += count(path)?;
            policies.insert(header.policy.clone());
            match &first {
                None => first = Some((path.clone(), header)),
                Some((first, expected)) => {
                    let differences = differences(&expected.environment, &header.environment);
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
            environment: header.environment,
            policies: policies.into_iter().collect(),
            rows,
        })
    }

    /// What observations, actions and rewards are made with.
    pub fn environment(&self) -> &Interface {
        &self.environment
    }

    /// The files, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The policies that were recorded.
    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    /// Rows in all files.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// What is wrong with recordings, or with what is made of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// Of a recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// Recordings of several environments.
    #[error(
        "{}: recorded with other settings than {} ({}); they cannot be learnt from together: name the files of one of them",
        path.display(),
        first.display(),
        differences.join("; ")
    )]
    Mixed {
        /// The file.
        path: PathBuf,
        /// What it is compared with.
        first: PathBuf,
        /// What differs: `setting: this, not that`.
        differences: Vec<String>,
    },
    /// No path was given.
    #[error("no recording was named")]
    Nothing,
    /// A flow without a decision that names an action, in any file.
    #[error(
        "{rows} rows, but not one decision: nothing can be learnt from them; a policy that sets windows (fixed:N) chooses no \
         actions"
    )]
    NoDecisions {
        /// Rows read.
        rows: u64,
    },
    /// Decisions, but none whose observation is known.
    #[error(
        "{decisions} decisions, but rows are missing before each of them, so that nobody knows what the policy saw: record \
         flows from their beginning, and name all files of a recording"
    )]
    NoneKnown {
        /// Decisions read.
        decisions: u64,
    },
    /// A row that is there twice.
    #[error(
        "row {sequence} of flow {flow:#018x} is there twice, in {} and in {}: name a recording once, and no copy of it",
        first.display(),
        second.display()
    )]
    Twice {
        /// The flow.
        flow: u64,
        /// The row's number in it.
        sequence: u32,
        /// A recording that has it.
        first: PathBuf,
        /// Another one, or the same again.
        second: PathBuf,
    },
    /// There is something already where output should go.
    #[error(
        "{} is there already; a timeline has a directory of its own, and nothing is overwritten: choose another with --out",
        path.display()
    )]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A Parquet file cannot be written.
    #[error("writing {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl DatasetError {
    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::System { what, path, source }
    }
}

/// Completes what a killed agent left open in a directory. Where only others may write, what is open is left to them.
fn complete(directory: &Path) -> Result<(), DatasetError> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match recording::recover(directory) {
        Err(RecordingError::Io { source, .. })
            if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        outcome => outcome.map(drop).map_err(DatasetError::from),
    }
}

/// Where two environments differ: `setting: this, not that`, from the second's point of view.
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
    let json = |environment| serde_json::to_value(environment).unwrap_or_default();
    let mut all = Vec::new();
    compare("", &json(expected), &json(found), &mut all);
    all
}

/// Rows of a Parquet file, by its footer.
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
