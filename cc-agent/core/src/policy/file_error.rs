//! The reasons why a policy file is refused, and the names and limits that they state.

use std::path::PathBuf;

use super::meta::MetaError;
use crate::ownership::Exposure;

/// The key of the metadata entry that holds the [`PolicyMeta`](super::PolicyMeta) as JSON.
pub const META_KEY: &str = "rlcc";

/// The key of the metadata entry of policies that select the bitrates of videos. The agent does not
/// serve them; it knows the key to say what such a file is.
pub const BITRATE_META_KEY: &str = "rlcc-bitrate";

/// Size limit of policy files: 32 MiB, room for eight million weights.
pub const MAX_BYTES: u64 = 32 << 20;

/// Why a file is not a policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The policy selects the bitrates of videos.
    #[error(
        "it is a policy that selects the bitrates of videos, not a congestion window: serve it \
         with `cc-trainer abr serve --scheme`, and give a congestion-control policy here"
    )]
    Bitrates,
    /// Decoding or running the file would take more memory or time than a policy may.
    #[error("{what} is {found}; a policy may have at most {most}: export a smaller network")]
    Bound {
        /// The part of the file or graph that is too large.
        what: String,
        /// How large it is, if less than 2^64.
        found: u64,
        /// How large it may be.
        most: u64,
    },
    /// Not a protobuf message of the ONNX kind.
    #[error("not an ONNX file, or a truncated one: {0}; fetch or export it again")]
    Decode(#[from] prost::DecodeError),
    /// Root is to serve a file that another user could change.
    #[error(
        "{exposure}, so another user decides what the agent runs as root: put the file where only \
         root can write, or name its content with --policy-sha256 (reload: --sha256)"
    )]
    Exposed {
        /// The file, or a directory or link on the way to it, that another user could change.
        exposure: Exposure,
    },
    /// A tensor's values are in another file.
    #[error("tensor `{tensor}` keeps its values outside the file; export the policy as one file")]
    External {
        /// Name of the tensor in the ONNX graph.
        tensor: String,
    },
    /// The engine cannot run the graph.
    #[error("the engine cannot run it: {reason}; export the policy again")]
    Engine {
        /// The error of the engine.
        reason: String,
    },
    /// The graph's values do not fit together.
    #[error("value `{value}` is {problem}; export the policy again")]
    Graph {
        /// Name of the value in the graph.
        value: String,
        /// What is wrong with it, to complete the message.
        problem: &'static str,
    },
    /// The metadata entry is wrong.
    #[error("metadata entry `{META_KEY}`: {0}")]
    Meta(#[from] MetaError),
    /// There is no metadata entry of this project.
    #[error(
        "the metadata entry `{META_KEY}` is missing, so the file does not say what it was trained \
         for; export it with cc-trainer"
    )]
    NoMeta,
    /// The file has no graph.
    #[error("the file holds no ONNX graph; it is empty or of another kind")]
    NoGraph,
    /// An operator or another means that policies may not use.
    #[error("{what} is not supported in a policy; export it with other operators")]
    Operator {
        /// The operator, and where it is used.
        what: String,
    },
    /// The operators are of a version that the engine does not know.
    #[error("the standard operators are of version {found}; expected 9 to 18 (13 is usual)")]
    Opset {
        /// The version, or what the file has instead of one.
        found: String,
    },
    /// The file's content is not the one that was asked for.
    #[error("its SHA-256 is {found}, but {expected} was asked for: it is another file")]
    Pin {
        /// The hash of the file in hexadecimal.
        found: String,
        /// The hash that was asked for.
        expected: String,
    },
    /// An input or output is not what the metadata ask for.
    #[error("{port} is {found}; its metadata ask for {expected}")]
    Port {
        /// The input or output, by its name.
        port: String,
        /// Its name, type or shape in the graph.
        found: String,
        /// The name, type or shape that the metadata ask for.
        expected: String,
    },
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the policy file, as it was given.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// A node's shapes do not fit each other, or depend on computed values.
    #[error("node {node}: {problem}; export the policy again")]
    Shape {
        /// The node's name and operator.
        node: String,
        /// What is wrong with it, to complete the message.
        problem: String,
    },
    /// A tensor's shape, type and data disagree.
    #[error("tensor `{tensor}` {problem}; the file is damaged, export it again")]
    Tensor {
        /// Name of the tensor in the ONNX graph.
        tensor: String,
        /// What is wrong with it, to complete the message.
        problem: String,
    },
    /// The bytes are more than those of the largest file.
    #[error("the file has {bytes} bytes; expected at most {MAX_BYTES}")]
    TooLarge {
        /// The number of bytes that were found.
        bytes: u64,
    },
}
