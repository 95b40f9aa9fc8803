//! The BPF object: given by a packager, committed beside its sources, or built from them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    committed, prebuilt, process,
    setup::{self, Toolchain},
    workspace,
};

const TARGET: &str = "bpfel-unknown-none";

/// Build the BPF object from the present sources, and commit it beside them.
///
/// Writes cc-ebpf/prebuilt: the object, and the hashes of it and of what it was made of. While the
/// sources have that hash, `run`, `demo`, `build` and `package` embed this object, and need no BPF
/// toolchain. `test` builds the object in any case; by the same compiler it must be the same bytes.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Renews the committed object: `cargo xtask prebuilt`.
pub(crate) fn command(_: &Args) -> Result<()> {
    let toolchain = setup::toolchain()?;
    committed::renew(&build(&toolchain)?, &toolchain)
}

/// Returns the path of the object to embed into the agent: the packager's, or the committed one
/// while it is of the present sources, or one that is built after setting up what that needs.
///
/// # Errors
///
/// Returns an error when the packager's or the committed object is not one, when no toolchain for
/// the BPF target can be set up, or when the build fails.
pub(crate) fn provide() -> Result<PathBuf> {
    if let Some(object) = prebuilt::object()? {
        return Ok(object);
    }
    match committed::object()? {
        Some(object) => Ok(object),
        None => build(&setup::toolchain()?),
    }
}

/// Returns the path of the object to test: the packager's, or one that is built, and compared with
/// the committed one.
///
/// # Errors
///
/// Returns an error in the cases of [`provide`], and when the committed object is not of the
/// present sources or not what they make.
pub(crate) fn provide_for_tests() -> Result<PathBuf> {
    if let Some(object) = prebuilt::object()? {
        return Ok(object);
    }
    let toolchain = setup::toolchain()?;
    let built = build(&toolchain)?;
    committed::compare(&built, &toolchain)?;
    Ok(built)
}

fn build(toolchain: &Toolchain) -> Result<PathBuf> {
    // A directory of its own, so that this build does not wait for the locks of the host's builds.
    let target_dir = workspace::target_dir().join("ebpf");
    let linker = toolchain.linker.path.display();
    // The instruction set that every supported kernel has (v3: Linux 5.1), with 32-bit arithmetic.
    let linker = format!("linker={linker}");
    // Zeroing a structure is stores, not a call of memset: the verifier of Linux 6.1 loses track of
    // what matters at such a call, and follows more than twice as many paths.
    let zeroing = "link-arg=--llvm-args=-max-store-memset=16";
    let flags = ["debuginfo=0", "target-cpu=v3", zeroing, &linker];
    let flags = flags.map(|flag| format!("-C{flag}"));
    let flags = flags.join("\x1f");
    let mut cargo = Command::new(toolchain.compiler.cargo());
    cargo
        .current_dir(workspace::root())
        .args(["build", "--package", "cc-ebpf", "--bin", "cc-ebpf"])
        .args(["--features", "bpf", "--profile", "bpf", "--target", TARGET])
        .args(["-Z", "build-std=core", "--target-dir"])
        .arg(&target_dir)
        .env("RUSTC", toolchain.compiler.rustc())
        // build-std is unstable; this lets a stable compiler do it.
        .env("RUSTC_BOOTSTRAP", "1")
        // Takes precedence over every other place that could set flags meant for the host.
        .env("CARGO_ENCODED_RUSTFLAGS", flags);
    process::run(&mut cargo)
        .with_context(|| format!("cannot build the BPF object by {toolchain}"))?;

    let built = target_dir.join(TARGET).join("bpf/cc-ebpf");
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    prebuilt::check_elf(&bytes)
        .with_context(|| format!("{} is not what was meant to be built", built.display()))?;
    let object = target_dir.join("cc-ebpf.o");
    replace_if_changed(&object, &bytes)?;
    Ok(object)
}

/// Writes the object only when it differs: a newer file would make cargo build the agent again.
fn replace_if_changed(object: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    fs::write(object, bytes).with_context(|| format!("cannot write {}", object.display()))
}

#[cfg(test)]
mod tests {
    use std::{env, time::UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_same_bytes_are_not_written_again() {
        let dir = env::temp_dir().join(format!("xtask-object-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("temporary directory");
        let object = dir.join("object.o");
        replace_if_changed(&object, b"one").expect("first write");
        // Any write would replace this time.
        let modified = || fs::metadata(&object).and_then(|meta| meta.modified());
        let file = fs::File::options().write(true).open(&object);
        file.and_then(|file| file.set_modified(UNIX_EPOCH))
            .expect("set the time");
        replace_if_changed(&object, b"one").expect("nothing to write");
        assert_eq!(modified().expect("time"), UNIX_EPOCH);
        replace_if_changed(&object, b"two").expect("second write");
        assert_eq!(fs::read(&object).expect("object"), b"two");
        fs::remove_dir_all(&dir).expect("clean up");
    }
}
