//! The limits of all checks, in one place.

/// The longest line of code, comment or prose, in characters.
pub(crate) const COLUMNS: usize = 100;

/// Rust lines that may be longer than [`COLUMNS`].
pub(crate) const LONG_RUST_LINES: usize = 0;

/// Markdown lines that may be longer than [`COLUMNS`]; tables, code blocks and lines with a URL are
/// not counted.
pub(crate) const LONG_MARKDOWN_LINES: usize = 0;

/// The directory of the files that commands of the project wrote, which are not checked.
pub(crate) const GENERATED: &str = "docs/results";

/// A paragraph of documentation is short when it has at most this many words.
pub(crate) const SHORT_DOC_WORDS: usize = 4;

/// Short paragraphs of documentation in the whole workspace.
pub(crate) const SHORT_DOCS: usize = 99;

/// The crates that compute and do nothing else: no sockets, no threads of an async runtime, no
/// system calls.
pub(crate) const PURE: [&str; 4] = ["cc-abr", "cc-ebpf", "cc-core", "cc-sim"];

/// The packages that no crate of [`PURE`] depends on directly.
pub(crate) const IMPURE: [&str; 5] = ["aya", "libc", "nix", "socket2", "tokio"];
