//! Why a training run did not begin, or ended early.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use cc_core::durable::ReplaceError;

use super::{
    Run, checkpoint::CheckpointError, config::ConfigError, environments::OpenError,
    splits::TestSetError, store::StoreError,
};
use crate::{
    learner::{Diverged, partners::PartnersError},
    model::{DeviceError, DeviceFailure, DeviceKind},
    policy_file::ExportError,
    train::{distributed::ServeError, metrics::MetricsError},
};

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
    /// The checkpoint is of a network of other sizes than the same settings make now.
    #[error(
        "{dir} holds a run of another network than this version makes from its settings \
         ({what}): choose another directory with --out; --init {dir}/policy.onnx begins there \
         with its policy",
        dir = dir.display()
    )]
    Shape {
        /// The directory that was given.
        dir: PathBuf,
        /// The sizes that differ, as `size: this, not that`.
        what: String,
    },
    /// The checkpoint, `train.json` or `policy.onnx` could not be replaced. The former file is
    /// whole.
    #[error(
        "{0}; once the directory can be written to again, the same command continues from the last \
         checkpoint in it"
    )]
    Replace(#[from] ReplaceError),
    /// The directory could not be created, or an event file could not be written.
    #[error(
        "writing {}: {source}; once it can be written to, the same command begins the run, or \
         continues from its last checkpoint",
        path.display()
    )]
    Write {
        /// The run's directory, or a file in it.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
    /// The network cannot be written as a policy file.
    #[error("policy.onnx: {0}")]
    Export(#[from] ExportError),
    /// A loss, a gradient or a parameter was not finite. The last checkpoint is from an earlier
    /// update.
    #[error("step {steps}: {cause}; {kept}")]
    Diverged {
        /// Number of environment steps learnt from before.
        steps: u64,
        /// What was not finite, with the settings to change.
        cause: Diverged,
        /// What the run can be continued from.
        kept: LastCheckpoint,
    },
    /// The device failed during the run.
    #[error("step {steps}: the device {device} failed, {cause}; {kept}{}", elsewhere(*device))]
    DeviceFailed {
        /// Number of environment steps learnt from before.
        steps: u64,
        /// The kind of device that failed.
        device: DeviceKind,
        /// The call that failed, with the reason.
        cause: DeviceFailure,
        /// What the run can be continued from.
        kept: LastCheckpoint,
    },
    /// Workers on other machines cannot be served, or not any more.
    #[error(transparent)]
    Workers(#[from] ServeError),
    /// An update cannot be made with the learner's replicas.
    #[error(transparent)]
    Partners(PartnersError),
    /// The thread that keeps rollouts to be replayed cannot be started.
    #[error("starting the thread that keeps rollouts to be replayed: {0}")]
    Thread(io::Error),
    /// The run's store cannot be read, or has no copy of the last checkpoint.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run's metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// An actor thread panicked, and has printed its message.
    #[error("step {steps}: an actor ended early, as its message above says; {kept}")]
    Actor {
        /// Number of environment steps learnt from before.
        steps: u64,
        /// What the run can be continued from.
        kept: LastCheckpoint,
    },
}

/// How to go on without a device that failed.
fn elsewhere(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Cpu => "",
        DeviceKind::Cuda => ", with `--device cpu` also without a GPU",
    }
}

/// The checkpoint that a run can be continued from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastCheckpoint {
    /// The directory that the run writes to.
    pub dir: PathBuf,
    /// Number of environment steps learnt from before the checkpoint; `None` while there is none.
    pub steps: Option<u64>,
}

impl fmt::Display for LastCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = self.dir.display();
        match self.steps {
            Some(steps) => write!(
                f,
                "the last checkpoint in {dir} is whole, from which --out {dir} continues at step \
                 {steps}"
            ),
            None => write!(f, "there is no checkpoint in {dir} yet"),
        }
    }
}

impl Run {
    pub(super) fn diverged(&self, cause: Diverged) -> TrainError {
        TrainError::Diverged {
            steps: self.statistics.steps,
            cause,
            kept: self.kept.clone(),
        }
    }

    pub(super) fn device_failed(&self, cause: DeviceFailure) -> TrainError {
        TrainError::DeviceFailed {
            steps: self.statistics.steps,
            device: self.record.config.device,
            cause,
            kept: self.kept.clone(),
        }
    }

    pub(super) fn actor_panicked(&self) -> TrainError {
        TrainError::Actor {
            steps: self.statistics.steps,
            kept: self.kept.clone(),
        }
    }
}

impl TrainError {
    /// Wraps an error of writing to `path`.
    pub(super) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }
}
