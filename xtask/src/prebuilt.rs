//! A BPF object that was built elsewhere, and the check that a file is one.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

/// The environment variable that names the object to embed. A packager sets it for this program;
/// this program sets it for the build script of cc-agent.
pub(crate) const VARIABLE: &str = "CC_EBPF_OBJECT";

/// Returns the path of the object that `CC_EBPF_OBJECT` names; `None` when the variable is not set.
///
/// # Errors
///
/// Returns an error when the file cannot be read or is not a BPF object.
pub(crate) fn object() -> Result<Option<PathBuf>> {
    let Some(value) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let object = std::path::absolute(value)?;
    let remedy = || format!("{VARIABLE} must name a BPF object, or be unset so that one is built");
    let bytes = fs::read(&object)
        .with_context(|| format!("cannot read {}", object.display()))
        .with_context(remedy)?;
    check_elf(&bytes)
        .with_context(|| format!("{} cannot be used", object.display()))
        .with_context(remedy)?;
    Ok(Some(object))
}

/// Checks that `bytes` begin as a little-endian 64-bit ELF file for BPF does (`elf.h`: `EM_BPF` is
/// 247).
///
/// # Errors
///
/// Returns an error that names the first difference.
pub(crate) fn check_elf(bytes: &[u8]) -> Result<()> {
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
}
