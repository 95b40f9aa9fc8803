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
mod join;
mod live;
mod origin;
mod partition;
mod reading;
pub mod timeline;
mod trajectory;

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cc_core::{
    interface::{Interface, InterfaceError},
    objective::Objective,
    rows::FileHeader,
};
use cc_recording::{self, RecordingError};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value};

pub use join::{JoinCounts, JoinError, JoinKey, Joined};
pub use live::{LiveFlows, News};
pub use origin::FlowOrigin;
pub(crate) use origin::path as path_of;
pub use partition::{Gathered, Partitions};
pub use reading::Reading;
pub use trajectory::{MOST_WINDOWS, Settled, StepOutcome, TERMS, Trajectory, TrajectoryStep};

/// Recordings that belong together: they share one interface, and come from any number
/// of files, hosts and policies.
#[derive(Clone, Debug)]
pub struct Recordings {
    files: Vec<PathBuf>,
    interface: Interface,
    policies: Vec<String>,
    rows: u64,
    /// How decisions of observed flows are read; `None` as they were recorded.
    reading: Option<Reading>,
    /// The first file without the counters that version 2 of the features needs, if there is one.
    without_fractions: Option<PathBuf>,
    joined: Option<Arc<Joined>>,
}

/// The first schema version of recordings with the counters behind
/// [`Fraction`](cc_ebpf::Fraction)s.
const SCHEMA_WITH_FRACTIONS: u32 = 2;

impl Recordings {
    /// Opens files, and all complete files of directories. Files that a killed agent left
    /// incomplete in a directory are completed first. Observations have the version of the features
    /// that the recorded policies observed.
    ///
    /// # Errors
    ///
    /// Returns an error when nothing is found, a file is not a recording of this version, or a
    /// recording has another interface than the first.
    pub fn open(paths: &[PathBuf]) -> Result<Self, DatasetError> {
        Self::gather(paths, None)
    }

    /// Opens recordings as [`open`](Self::open) does, but for observations with this version of the
    /// features, whatever each of the recorded policies observed: a row holds the window's counters
    /// and not the observation.
    ///
    /// # Errors
    ///
    /// Returns an error as [`open`](Self::open) does, and where
    /// [`with_features_version`](Self::with_features_version) does.
    pub fn open_as(paths: &[PathBuf], features_version: u32) -> Result<Self, DatasetError> {
        Self::gather(paths, Some(features_version))?.with_features_version(features_version)
    }

    /// Makes observations have this version of the features.
    ///
    /// # Errors
    ///
    /// Returns an error when this build does not compute the version, or a recording lacks what it
    /// needs.
    pub fn with_features_version(mut self, features_version: u32) -> Result<Self, DatasetError> {
        self.interface.features_version = features_version;
        self.interface.validate()?;
        match self.without_fractions {
            Some(path) if !self.interface.fractions().is_empty() => {
                Err(DatasetError::NoFractions {
                    path,
                    features_version,
                })
            }
            _ => Ok(self),
        }
    }

    /// Makes outcomes be judged by this objective instead of the first recording's. Rows hold what
    /// was measured, so they can be judged by any.
    pub fn with_objective(mut self, objective: Objective) -> Self {
        self.interface.objective = Some(objective);
        self
    }

    /// Joins what applications measured of the flows.
    ///
    /// # Errors
    ///
    /// Returns an error when a term has the name of a column of the timeline.
    pub fn with_joined(mut self, joined: Joined) -> Result<Self, DatasetError> {
        joined.beside(&timeline::schema(0, &[]))?;
        self.joined = Some(Arc::new(joined));
        Ok(self)
    }

    /// Makes observed flows be read as those of a policy with the interface `like`: its actions,
    /// history, bounds, pacing, reward and objective. The windows stay those of the recordings.
    ///
    /// # Errors
    ///
    /// Returns an error when there is a policy among what was recorded, whose decisions cannot be
    /// read in another way, when a recording lacks what the version of the features needs, or when
    /// a setting is out of its range.
    pub fn read_as(mut self, like: &Interface, reading: Reading) -> Result<Self, DatasetError> {
        let decided = |policy: &&String| !policy.starts_with("observed:");
        if let Some(policy) = self.policies.iter().find(decided) {
            return Err(DatasetError::Decided {
                policy: policy.clone(),
            });
        }
        self.interface = Interface {
            window_ms: self.interface.window_ms,
            min_rtt_window_s: self.interface.min_rtt_window_s,
            objective: like.objective.or(self.interface.objective),
            ..like.clone()
        };
        self.reading = Some(reading);
        self.with_features_version(like.features_version)
    }

    /// Opens recordings whose interfaces are equal, apart from the version of the features when it
    /// will be `features_version` for all of them.
    fn gather(paths: &[PathBuf], features_version: Option<u32>) -> Result<Self, DatasetError> {
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
        let mut without_fractions = None;
        for path in &files {
            let (mut header, reader) = cc_recording::read(path)?;
            if let Some(version) = features_version {
                header.interface.features_version = version;
            }
            if reader.schema_version() < SCHEMA_WITH_FRACTIONS {
                without_fractions.get_or_insert_with(|| path.clone());
            }
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
            reading: None,
            without_fractions,
            joined: None,
        })
    }

    /// Returns the interface by which observations and actions are made and outcomes are judged.
    /// Its objective is that of the first recording, unless another one was
    /// [chosen](Self::with_objective).
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
    /// What applications measured cannot be joined with the recordings.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// This build does not compute the version of the features that was asked for.
    #[error("{0}")]
    Interface(#[from] InterfaceError),
    /// A recording lacks the counters that the version of the features needs.
    #[error(
        "{}: recorded by a release that did not count marked segments and application-limited \
         ACKs yet (schema version 1), which features version {features_version} needs: leave the \
         file out and record again, or use features version 1",
        path.display()
    )]
    NoFractions {
        /// Path of the recording without the counters.
        path: PathBuf,
        /// The version of the features that was asked for.
        features_version: u32,
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
    /// A policy was recorded, whose decisions are what they are.
    #[error(
        "the recordings have decisions of the policy {policy}, and only flows of other congestion \
         controls, as `cc-agent observe` records them, can be read with another list of actions: \
         name the files of these alone"
    )]
    Decided {
        /// Identifier of the policy, as the recording has it.
        policy: String,
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

/// The [`differences`] but for masks and who has slow start: the network is the same with and
/// without them.
pub(crate) fn network_differences(expected: &Interface, found: &Interface) -> Vec<String> {
    let found = Interface {
        mask_actions: expected.mask_actions,
        after_slow_start: expected.after_slow_start,
        ..found.clone()
    };
    differences(expected, &found)
}

/// Returns the settings in which two interfaces differ, each as `setting: found, not expected`. The
/// objectives may differ: they do not affect what policies observe, nor what they do.
pub(crate) fn differences(expected: &Interface, found: &Interface) -> Vec<String> {
    fn compare(path: &str, expected: &Value, found: &Value, into: &mut Vec<String>) {
        match (expected, found) {
            (Value::Object(expected), Value::Object(found)) => {
                // Settings that are left out where they are off have no value then.
                let names: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
                let of = |settings: &Map<String, Value>, name| {
                    settings.get(name).cloned().unwrap_or_default()
                };
                for name in names {
                    let path = match path {
                        "" => name.clone(),
                        _ => format!("{path}.{name}"),
                    };
                    compare(&path, &of(expected, name), &of(found, name), into);
                }
            }
            _ if expected != found => into.push(format!("{path}: {found}, not {expected}")),
            _ => {}
        }
    }
    let json = |interface: &Interface| {
        let plain = Interface {
            objective: None,
            ..interface.clone()
        };
        serde_json::to_value(plain).unwrap_or_default()
    };
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
