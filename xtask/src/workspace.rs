//! Where things are in the workspace, and the cargo that builds it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The workspace's root directory.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// The directory of all build output: `CARGO_TARGET_DIR` if set, otherwise `target`.
pub(crate) fn target_dir() -> PathBuf {
    // A relative CARGO_TARGET_DIR means: relative to where the caller stands.
    env::var_os("CARGO_TARGET_DIR")
        .and_then(|dir| std::path::absolute(dir).ok())
        .unwrap_or_else(|| root().join("target"))
}

/// Where tools that set-up builds are installed, apart from the user's own.
pub(crate) fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// The cargo that runs this program.
pub(crate) fn cargo_path() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// A call of that cargo in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(cargo_path());
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir());
    command
}
