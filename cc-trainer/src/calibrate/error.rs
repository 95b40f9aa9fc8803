//! Why recordings cannot be calibrated to.

use std::path::PathBuf;

use cc_core::policy::PolicyError;
use cc_recording::RecordingError;
use cc_sim::scenario::ScenarioError;

use crate::simulated_recording::{RecordPolicyError, UnknownControl};

/// Why no twin can be made of recordings, or a result cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// No recording was named, or none has a row.
    #[error("there is no row in what was named: name recordings, or directories of them")]
    Nothing,
    /// Recordings were made with windows of other lengths.
    #[error(
        "{}: recorded in windows of {found_ms} ms, but {} in windows of {expected_ms} ms, or with \
         another minimum-RTT filter; figures of such windows do not compare: calibrate to one of \
         them at a time",
        file.display(),
        first.display()
    )]
    Mixed {
        /// A file of the recording whose windows differ.
        file: PathBuf,
        /// Length of its windows, ms.
        found_ms: u32,
        /// The file that was read first, with which all others have to agree.
        first: PathBuf,
        /// Length of its windows, ms.
        expected_ms: u32,
    },
    /// Flows are to be sorted by remote address, and rows have none.
    #[error(
        "{}: rows without remote addresses cannot be sorted by them: record with \
         --record-addresses hashed:KEYFILE or plain, or sort by --path-by directory",
        directory.display()
    )]
    NoAddresses {
        /// Directory of the recording whose rows lack addresses.
        directory: PathBuf,
    },
    /// No control has enough on any path.
    #[error("no control was recorded long enough on any path:\n  {}", reasons.join("\n  "))]
    Unusable {
        /// What each control of each path lacks.
        reasons: Vec<String>,
    },
    /// None of a path's controls can be simulated.
    #[error(
        "path {path}: none of its controls can be simulated ({}); the simulator has {}, and \
         policies whose file --policy names",
        found.join(", "),
        cc_sim::sim::Control::NAMES.join(", ")
    )]
    NotSimulated {
        /// Name of the path, as the flows were sorted.
        path: String,
        /// The controls that were recorded on the path.
        found: Vec<String>,
    },
    /// All of a path's controls are held out.
    #[error(
        "path {path}: all of its controls are held out ({}), so nothing is left to fit to: hold \
         out fewer, or record another control on the path",
        found.join(", ")
    )]
    AllHeldOut {
        /// Name of the path, as the flows were sorted.
        path: String,
        /// The controls that were recorded on the path.
        found: Vec<String>,
    },
    /// No path can be calibrated to.
    #[error("no path can be calibrated to:\n  {}", reasons.join("\n  "))]
    NoPath {
        /// What each path lacks, after its name.
        reasons: Vec<String>,
    },
    /// A policy cannot be loaded.
    #[error("policy {policy}: {source}")]
    Policy {
        /// The policy as it was named.
        policy: String,
        /// Reason why it cannot be loaded.
        source: PolicyError,
    },
    /// A flow of a policy cannot be simulated.
    #[error(transparent)]
    Record(#[from] RecordPolicyError),
    /// The simulator lacks a control.
    #[error(transparent)]
    Control(#[from] UnknownControl),
    /// A twin is out of the range of scenario files.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A flow on a twin delivered nothing at all.
    #[error("a simulated flow of {subject} delivered nothing within {seconds:.0} s")]
    Silent {
        /// The control or policy of the flow, by its short name.
        subject: String,
        /// Length of the run, s.
        seconds: f64,
    },
    /// A result cannot be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// Path of the file or directory to be written.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}
