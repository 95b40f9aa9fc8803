//! What a program without shared libraries is built with: Rust's standard library for musl, and a
//! C compiler for it.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    apt,
    process::{self, say},
};

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
        add_library(&target)?;
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

fn add_library(target: &str) -> Result<()> {
    // rustup's own retries take much longer on a host without network.
    const LIMIT: Duration = Duration::from_secs(120);
    if process::find_program("rustup").is_none() {
        bail!(
            "the compiler here has no standard library for {target}, and there is no rustup to add \
             one (distributions have it as a package, such as libstd-rust-dev of that target)"
        );
    }
    say(format_args!("adding the standard library for {target}"));
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", target]);
    process::run_within(&mut rustup, LIMIT)
        .with_context(|| format!("cannot add the standard library for {target}"))
}
