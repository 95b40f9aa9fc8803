//! What a program without shared libraries is built with: Rust's standard library for musl, and a
//! C compiler for it.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use super::compiler::rustup;
use crate::{apt, process};

/// Installs what is missing to build for musl, and returns the name of the target: this host's
/// architecture under Linux.
///
/// # Errors
///
/// Returns an error when this host has no rustup and no such library, or no C compiler for musl and
/// no package of one.
pub(crate) fn target() -> Result<String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if !has_library(&target) {
        let what = format!("adding the standard library for {target}");
        rustup(&["target", "add", &target], &what).with_context(|| {
            format!(
                "the compiler here has no standard library for {target}, and it cannot be added \
                 (distributions have it as a package, such as libstd-rust-dev of that target)"
            )
        })?;
    }
    // ring and zstd have parts in C.
    if process::find_program("musl-gcc").is_none() {
        apt::install(
            &["musl-tools"],
            "a C compiler for programs without libraries",
        )?;
    }
    Ok(target)
}

/// Whether the compiler in use has a standard library for the target.
fn has_library(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    process::capture(&mut rustc).is_some_and(|path| Path::new(path.trim()).is_dir())
}
