//! Why options, from the command line or a file, do not make the settings of an agent.

use std::path::PathBuf;

use cc_core::{ownership::Exposure, policy::PolicySpec};

use crate::{deploy::DeployError, kernel, remote_error::RemoteError};

/// Why options do not make the settings of an agent.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Root is to take its options from a file that another user could change.
    #[error(
        "{exposure}, so another user decides what the agent does as root: put the configuration \
         where only root can write"
    )]
    Exposed {
        /// The file, or a directory or link on the way to it, that another user could change.
        exposure: Exposure,
    },
    /// The configuration file or the key file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file that could not be read.
        path: PathBuf,
        /// Answer of the system call.
        source: std::io::Error,
    },
    /// The configuration file is not TOML, or has an unknown key or a wrong value.
    #[error("{path}: {source}")]
    Parse {
        /// Path of the configuration file, as it was given.
        path: PathBuf,
        /// The place in the file and what is wrong there.
        source: Box<toml::de::Error>,
    },
    /// A policy cannot be loaded or does not fit.
    #[error(transparent)]
    Policy(Box<DeployError>),
    /// The policy server cannot be asked, or no local policy stands in for it.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// An option contradicts the policy file.
    #[error(
        "{option} {asked} does not fit the policy {policy}, which was made for {has}: leave the \
         option out, or use another policy"
    )]
    Contradiction {
        /// Name of the option, with its dashes.
        option: &'static str,
        /// The value that the option was given.
        asked: String,
        /// The policy that contradicts it.
        policy: PolicySpec,
        /// Value in the policy's file.
        has: String,
    },
    /// An option is out of range.
    #[error("{option} {found}: expected {expected}")]
    Range {
        /// Name of the option, with its dashes.
        option: &'static str,
        /// The value that the option was given.
        found: String,
        /// The values that it takes.
        expected: String,
    },
    /// The name cannot be that of a congestion control.
    #[error(transparent)]
    Name(kernel::Error),
}

/// An option with a value that it does not take.
pub(crate) fn out_of_range(
    option: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
) -> SettingsError {
    SettingsError::Range {
        option,
        found: found.to_string(),
        expected: expected.into(),
    }
}

impl From<DeployError> for SettingsError {
    fn from(error: DeployError) -> Self {
        Self::Policy(Box::new(error))
    }
}
