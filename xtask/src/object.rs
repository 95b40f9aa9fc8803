//! The BPF object: built here, or given by a packager.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    process,
    setup::{self, Toolchain},
    workspace,
};

/// Names the object to embed: for this program that of a packager, for cc-agent's build script either.
pub(crate) const VARIABLE: &str = "CC_EBPF_OBJECT";

const TARGET: &str = "bpfel-unknown-none";

/// The object to embed into the agent: the packager's, or built from this workspace after setting up what that needs.
pub(crate) fn provide() -> Result<PathBuf> {
    match prebuilt()? {
        Some(object) => Ok(object),
        None => build(&setup::toolchain()?),
    }
}

/// The object that `CC_EBPF_OBJECT` names, if it is set.
///
/// # Errors
/// When it cannot be read or is no BPF object.
pub(crate) fn prebuilt() -> Result<Option<PathBuf>> {
    let Some(value) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let object = std::path::absolute(value)?;
    let remedy = || format!("{VARIABLE} must name a BPF object, or be unset so that one is built");
    let bytes = fs::read(&object)
        .with_context(|| format!("cannot read {}", object.display()))
        .with_context(remedy)?;
    check_elf(&bytes)
        .with_context(|| format!("{} will not do", object.display()))
        .with_context(remedy)?;
    Ok(Some(object))
}

fn build(toolchain: &Toolchain) -> Result<PathBuf> {
    // Its own directory: neither its locks nor its fingerprints meet those of the host's builds.
    let target_dir = workspace::target_dir().join("ebpf");
    let linker = toolchain.linker.path.display();
    // The instruction set that every supported kernel has (v3: Linux 5.1), with 32-bit arithmetic.
    let linker = format!("linker={linker}");
    let flags = ["debuginfo=0", "target-cpu=v3", &linker].map(|flag| format!("-C{flag}"));
    let flags = flags.join("\x1f");
    let mut cargo = Command::new(toolchain.compiler.cargo());
    cargo
        .current_dir(workspace::root())
        .args([
            "build",
            "--package",
            "cc-ebpf",
            "--bin",
            "cc-ebpf",
            "--features",
            "bpf",
        ])
        .args([
            "--profile",
            "bpf",
            "--target",
            TARGET,
            "-Z",
            "build-std=core",
            "--target-dir",
        ])
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
    check_elf(&bytes)
        .with_context(|| format!("{} is not what was meant to be built", built.display()))?;
    let object = target_dir.join("cc-ebpf.o");
    replace_if_changed(&object, &bytes)?;
    Ok(object)
}

/// Writes the object only when it differs, so that the agent is not built again for nothing.
fn replace_if_changed(object: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    fs::write(object, bytes).with_context(|| format!("cannot write {}", object.display()))
}

/// Whether this begins as a little-endian 64-bit ELF file for BPF does (`elf.h`: `EM_BPF` is 247).
fn check_elf(bytes: &[u8]) -> Result<()> {
    const EM_BPF: u16 = 247;
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    let Some((header, _)) = bytes.split_first_chunk::<20>() else {
        bail!("{} bytes are too few for an ELF file", bytes.len());
    };
    if !header.starts_with(b"\x7fELF") {
        bail!("not an ELF file");
    }
    if header[4] != CLASS_64 || header[5] != LITTLE_ENDIAN {
        bail!("not a little-endian 64-bit ELF file");
    }
    let machine = u16::from_le_bytes([header[18], header[19]]);
    if machine != EM_BPF {
        bail!("an ELF file for machine {machine}, not for BPF ({EM_BPF})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn header(machine: u16) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend(machine.to_le_bytes());
        bytes
    }

    #[test]
    fn only_a_bpf_object_is_accepted() {
        assert!(check_elf(&header(247)).is_ok());
        let host = check_elf(&header(62)).expect_err("62 is x86-64");
        assert!(host.to_string().contains("62"), "{host}");
        let mut big_endian = header(247);
        big_endian[5] = 2;
        assert!(check_elf(&big_endian).is_err());
        assert!(check_elf(b"\x7fELF").is_err());
        assert!(check_elf(b"#!/bin/sh\necho no ELF file at all\n").is_err());
    }

    #[test]
    fn the_same_bytes_are_not_written_again() {
        let dir = env::temp_dir().join(format!("xtask-object-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("temporary directory");
        let object = dir.join("object.o");
        replace_if_changed(&object, b"one").expect("first write");
        // A time that no write leaves behind.
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
