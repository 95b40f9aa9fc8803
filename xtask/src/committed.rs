//! The BPF object that is committed beside its sources, so that nobody needs a BPF toolchain to try
//! the agent.
//!
//! It is used while it is of the present sources, and tests build it anew and compare the bytes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    prebuilt,
    process::say,
    setup::Toolchain,
    sources::{self, hex},
    workspace,
};

/// Directory of the object, relative to the workspace's root.
const DIR: &str = "cc-ebpf/prebuilt";

/// What an object is, and what it was made of.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// SHA-256 of the object's bytes, in hexadecimal.
    pub(crate) object_sha256: String,
    /// SHA-256 of its sources ([`sources::hash`]).
    pub(crate) source_sha256: String,
    /// Compiler and linker; empty where they are not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) toolchain: String,
}

impl Origin {
    /// The origin of an object of the present sources.
    ///
    /// # Errors
    ///
    /// Returns an error when a source cannot be read.
    pub(crate) fn of(object: &[u8]) -> Result<Self> {
        Ok(Self {
            object_sha256: hex(Sha256::digest(object)),
            source_sha256: sources::hash()?,
            toolchain: String::new(),
        })
    }

    /// The origin as text of JSON.
    ///
    /// # Errors
    ///
    /// Returns no error: plain data can be written.
    pub(crate) fn json(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }
}

/// Writes an object of the present sources that `toolchain` has built, to be committed with them.
///
/// # Errors
///
/// Returns an error when the object cannot be read, or its copy not be written.
pub(crate) fn renew(built: &Path, toolchain: &Toolchain) -> Result<()> {
    let bytes = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    let origin = Origin {
        toolchain: toolchain.versions(),
        ..Origin::of(&bytes)?
    };
    let dir = workspace::root().join(DIR);
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    write("cc-ebpf.o", &bytes)?;
    write("origin.json", &origin.json()?)?;
    say(format_args!(
        "{DIR}/cc-ebpf.o is of the present sources: {} bytes by {}",
        bytes.len(),
        origin.toolchain
    ));
    Ok(())
}

/// Path of the committed object; `None` where there is none, or where it is of other sources.
///
/// # Errors
///
/// Returns an error when the object is not the one that was committed.
pub(crate) fn object() -> Result<Option<PathBuf>> {
    let Some((origin, path)) = origin()? else {
        return Ok(None);
    };
    if origin.source_sha256 != sources::hash()? {
        say(format_args!(
            "{DIR}/cc-ebpf.o is of other sources than these, so that the BPF object is built"
        ));
        return Ok(None);
    }
    Ok(Some(path))
}

/// Compares an object that was built from the present sources with the committed one.
///
/// # Errors
///
/// Returns an error when the committed object is of other sources, or when the same compiler made
/// other bytes of these.
pub(crate) fn compare(built: &Path, toolchain: &Toolchain) -> Result<()> {
    let Some((committed, _)) = origin()? else {
        bail!("{DIR} is not there: `cargo xtask prebuilt` makes it");
    };
    let bytes = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    let verdict = committed.against(&Origin::of(&bytes)?, &toolchain.versions())?;
    say(verdict);
    Ok(())
}

impl Origin {
    /// Compares a committed object with one that `toolchain` has built. Returns what came of it.
    fn against(&self, built: &Self, toolchain: &str) -> Result<String> {
        if self.source_sha256 != built.source_sha256 {
            bail!(
                "{DIR}/cc-ebpf.o is of other sources than these; `cargo xtask prebuilt` builds it \
                 anew, to be committed with them"
            );
        }
        let same = self.object_sha256 == built.object_sha256;
        match (same, self.toolchain == toolchain) {
            (true, _) => Ok(format!("{DIR}/cc-ebpf.o is what these sources make")),
            (false, false) => Ok(format!(
                "{DIR}/cc-ebpf.o was made by {}, and is not what {toolchain} makes: not compared",
                self.toolchain
            )),
            (false, true) => bail!(
                "{DIR}/cc-ebpf.o is not what these sources make by {toolchain}: find out whose \
                 bytes they are before using them, then `cargo xtask prebuilt` builds it anew"
            ),
        }
    }
}

/// What is committed, and the path of the object; `None` where nothing is.
fn origin() -> Result<Option<(Origin, PathBuf)>> {
    let dir = workspace::root().join(DIR);
    let (path, about) = (dir.join("cc-ebpf.o"), dir.join("origin.json"));
    if !about.exists() {
        return Ok(None);
    }
    let cannot_read = |path: &Path| format!("cannot read {}", path.display());
    let json = fs::read(&about).with_context(|| cannot_read(&about))?;
    let origin: Origin = serde_json::from_slice(&json).with_context(|| cannot_read(&about))?;
    let bytes = fs::read(&path).with_context(|| cannot_read(&path))?;
    prebuilt::check_elf(&bytes).with_context(|| format!("{} is no object", path.display()))?;
    if hex(Sha256::digest(&bytes)) != origin.object_sha256 {
        bail!(
            "{} is not the object that origin.json beside it is about: take both from the \
             repository again, or build them by `cargo xtask prebuilt`",
            path.display()
        );
    }
    Ok(Some((origin, path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_other_sources_or_with_other_bytes_is_found_out() {
        let origin = |object: &str, source: &str, toolchain: &str| Origin {
            object_sha256: object.into(),
            source_sha256: source.into(),
            toolchain: toolchain.into(),
        };
        let committed = origin("a", "s", "rustc 1");
        let against = |built: &Origin, toolchain| committed.against(built, toolchain);
        let same = against(&origin("a", "s", ""), "rustc 2").expect("the same");
        assert!(same.ends_with("is what these sources make"), "{same}");
        let other = against(&origin("b", "s", ""), "rustc 2").expect("cannot be told");
        assert!(other.ends_with("rustc 2 makes: not compared"), "{other}");
        let error = against(&origin("b", "s", ""), "rustc 1").expect_err("tampered with");
        assert!(error.to_string().contains("whose bytes"), "{error}");
        let error = against(&origin("a", "t", ""), "rustc 1").expect_err("stale");
        assert!(
            error.to_string().contains("cargo xtask prebuilt"),
            "{error}"
        );
    }
}
