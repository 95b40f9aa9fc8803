//! Why a training run did not begin, or ended early.

use std::{
    io,
    path::{Path, PathBuf},
};

use cc_core::durable::ReplaceError;

use super::{
    checkpoint::CheckpointError, config::ConfigError, environments::OpenError, splits::TestSetError,
};
use crate::{learner::Diverged, model::DeviceError, policy_file::ExportError};

/// Why a training run did not begin, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The configuration cannot be read, or has a value out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The environments to learn in cannot be made as they are configured.
    #[error(transparent)]
    Environment(#[from] OpenError),
    /// The configuration names links of test or validation sets.
    #[error("environment.{0}")]
    TestSet(#[from] TestSetError),
    /// The policy file of [`Config::init`](super::config::Config::init) cannot be read or used.
    #[error("the policy to begin with, {}: {reason}", path.display())]
    Init {
        /// The policy file that cannot be used.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// There is neither a configuration nor a run to continue.
    #[error(
        "{} holds no run to continue, and there is no --config; give one (cc-trainer/training has \
         some)",
        dir.display()
    )]
    Nothing {
        /// The directory that was given.
        dir: PathBuf,
    },
    /// The directory holds files that a run would overwrite, but no checkpoint to continue from.
    #[error(
        "{} is there already, without a run that could be continued (checkpoint.bin), and nothing \
         is overwritten: choose another directory with --out",
        path.display()
    )]
    Exists {
        /// The first of those files.
        path: PathBuf,
    },
    /// The directory holds a run with other settings.
    #[error(
        "{} holds a run with other settings ({}); choose another directory with --out, or leave \
         --config away to continue that run",
        dir.display(),
        differences.join("; ")
    )]
    Another {
        /// The directory that was given.
        dir: PathBuf,
        /// The settings that differ, as `setting: this, not that`.
        differences: Vec<String>,
    },
    /// The device that the configuration names cannot be used on this host.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The checkpoint to continue from cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint, `train.json` or `policy.onnx` could not be replaced.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The directory could not be created, or an event file could not be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// The run's directory, or a file in it.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// The network cannot be written as a policy file.
    #[error("policy.onnx: {0}")]
    Export(#[from] ExportError),
    /// The loss was not finite. The last checkpoint is from an earlier update.
    #[error(transparent)]
    Diverged(#[from] Diverged),
    /// An actor thread panicked, and has printed its message.
    #[error("an actor ended early, as its message above says")]
    Actor,
}

impl TrainError {
    /// Wraps an error of writing to `path`.
    pub(super) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }
}
