//! Why a channel is not used.

use std::{io, path::PathBuf, time::Duration};

use cc_core::policy::FileError;

/// Why a channel, or something that it holds, is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The place of a channel is neither a directory nor a URL that this build can open.
    #[error("{place}: {reason}")]
    Place {
        /// The place, as it was given.
        place: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// The object store refused an operation.
    #[error("{what} {object} of {place}: {source}")]
    Store {
        /// The operation: `reading`, `writing` or `listing`.
        what: &'static str,
        /// Name of the object, below the channel's place.
        object: String,
        /// The place of the channel.
        place: String,
        /// The error that the object store returned.
        source: Box<object_store::Error>,
    },
    /// The object store did not answer in time.
    #[error("{what} {object} of {place} took longer than {} s", limit.as_secs())]
    Late {
        /// The operation: `reading`, `writing` or `listing`.
        what: &'static str,
        /// Name of the object, below the channel's place.
        object: String,
        /// The place of the channel.
        place: String,
        /// The time that it may take.
        limit: Duration,
    },
    /// An object is longer than it may be.
    #[error("{object} of {place} has more than {most} bytes, which is the limit")]
    TooLong {
        /// Name of the object, below the channel's place.
        object: String,
        /// The place of the channel.
        place: String,
        /// The longest permissible length, bytes.
        most: u64,
    },
    /// Nothing has been published in the channel yet.
    #[error("{0} holds no announcement: `cc-agent publish` makes one")]
    Empty(String),
    /// An announcement has no signature, or one by another key, or was changed after it was signed.
    #[error(
        "the announcement is not signed by the key {key}: somebody else has written it, or the \
         publisher has another key now"
    )]
    Unsigned {
        /// The public key that was expected.
        key: String,
    },
    /// An announcement that is rightly signed says something that this version does not understand.
    #[error("the announcement is signed, but not one of this version: {0}")]
    Format(String),
    /// A policy file differs from the announced one.
    #[error(
        "the policy file {object} is not the announced one: it has SHA-256 {found} and {bytes} \
         bytes"
    )]
    Policy {
        /// Name of the object, below the channel's place.
        object: String,
        /// SHA-256 of what was found, in hexadecimal digits.
        found: String,
        /// Length of what was found.
        bytes: usize,
    },
    /// The announced policy file is not in the channel.
    #[error("{place} does not hold the announced policy file {object}")]
    Missing {
        /// Name of the object, below the channel's place.
        object: String,
        /// The place of the channel.
        place: String,
    },
    /// The file to be published is not a policy.
    #[error("{}: {source}", path.display())]
    NotAPolicy {
        /// Path of the file that was to be read or written.
        path: PathBuf,
        /// What is wrong with it.
        source: FileError,
    },
    /// Somebody else has published an announcement of this number meanwhile.
    #[error(
        "announcement {0} was published by somebody else meanwhile: look at it, then publish again"
    )]
    Overtaken(u64),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file that was to be read or written.
        path: PathBuf,
        /// What the operating system returned.
        source: io::Error,
    },
    /// A key is not one.
    #[error("{what}: {reason}")]
    Key {
        /// Where the key is from.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl ChannelError {
    /// Whether somebody may be tampering with the channel, rather than it being out of reach.
    pub fn is_suspicious(&self) -> bool {
        matches!(
            self,
            Self::Unsigned { .. } | Self::Policy { .. } | Self::TooLong { .. }
        )
    }
}
