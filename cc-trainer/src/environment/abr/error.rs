//! Why the configuration of the environment cannot be used.

use cc_abr::{ladder::LadderError, qoe::QoeError, state::COLUMNS};

use crate::abr::{files::FileError, video::ChoiceError};

/// Why an [`AbrConfig`](super::AbrConfig) cannot be used. The message names the setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AbrConfigError {
    /// The bitrates of the actions are not usable, or a video has one that is none of them.
    #[error("{place}: {source}")]
    Ladder {
        /// Path of the setting, such as `actions`.
        place: String,
        /// What is wrong with the bitrates.
        source: LadderError,
    },
    /// The observation has no room for the sizes of so many actions.
    #[error("actions has {0} bitrates, and an observation has room for {COLUMNS}: leave some out")]
    Actions(usize),
    /// The settings have no source of traces.
    #[error(
        "sources is empty; add an entry such as {{ traces = \"DIR\" }} or {{ family = \"cellular\" \
         }}"
    )]
    NoSources,
    /// A source has neither or both of `traces` and `family`.
    #[error("{place}: give either `traces` (a directory or file) or `family`")]
    Source {
        /// Path of the entry, such as `sources[0]`.
        place: String,
    },
    /// Traces cannot be read; the error has file and line.
    #[error("{place}: {source}")]
    Traces {
        /// Path of the entry, such as `sources[0]`.
        place: String,
        /// What could not be read.
        source: FileError,
    },
    /// All traces of a source are held out.
    #[error(
        "hold_out is {hold_out}, which leaves none of the {traces} traces of {place} to train on: \
         raise it, or set 0"
    )]
    AllHeldOut {
        /// The setting.
        hold_out: usize,
        /// Number of traces of the source.
        traces: usize,
        /// Path of the entry, such as `sources[0]`.
        place: String,
    },
    /// The settings have no video.
    #[error("videos is empty; leave it out for Pensieve's video, or add an entry")]
    NoVideos,
    /// A video cannot be read or made.
    #[error("{place}: {source}")]
    Video {
        /// Path of the entry, such as `videos[0]`.
        place: String,
        /// What is wrong with the video.
        source: ChoiceError,
    },
    /// The measure cannot score a video.
    #[error("{place}: {source}")]
    Qoe {
        /// Path of the entry, such as `videos[0]`.
        place: String,
        /// What the measure does not know.
        source: QoeError,
    },
    /// A number is out of its range.
    #[error("{place} is {found}, and has to be {expected}")]
    Range {
        /// Path of the setting, such as `past_chunks`.
        place: String,
        /// The value that was found.
        found: String,
        /// The values that are allowed.
        expected: String,
    },
    /// The judgements have no factor of the throughputs.
    #[error("validation.scales is empty; leave it out, or give a factor such as 1")]
    NoScales,
    /// There is nothing to judge policies on.
    #[error(
        "validation has no traces: set hold_out, or add validation.sources, such as {{ traces = \
         \"DIR\" }} or {{ family = \"cellular\", seed = 2, count = 100 }}"
    )]
    NothingHeldOut,
}
