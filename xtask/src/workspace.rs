//! The workspace's directories and packages, and the cargo that builds it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The arguments of cargo that select what is built for use.
///
/// The features of a dependency are those that any *selected* package asks for. Every build of a
/// program or a benchmark therefore selects the same packages and features, and chooses what to
/// build by its target (`--bin`, `--bench`): no dependency is ever built twice, and nothing is
/// built that the target does not need. The trainer always has CUDA in it, as one program serves
/// hosts with a GPU and without: CUDA's libraries are looked for only when it is to learn on one.
pub(crate) const SELECTION: [&str; 6] = [
    "--package",
    "cc-agent",
    "--package",
    "cc-trainer",
    "--features",
    "cc-trainer/cuda",
];

/// The workspace's root directory, in which its Cargo.toml lies.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// The directory of all build output: `CARGO_TARGET_DIR` if set, otherwise `target`.
pub(crate) fn target_dir() -> PathBuf {
    // A relative CARGO_TARGET_DIR is relative to the caller's working directory.
    env::var_os("CARGO_TARGET_DIR")
        .and_then(|dir| std::path::absolute(dir).ok())
        .unwrap_or_else(|| root().join("target"))
}

/// The directory into which set-up installs the tools that it builds, apart from the user's own.
pub(crate) fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// The cargo that runs this program.
pub(crate) fn cargo_path() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// Creates a call of that cargo in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(cargo_path());
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir());
    command
}
