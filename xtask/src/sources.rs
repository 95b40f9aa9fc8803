//! What the BPF object is made of, and its hash.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::workspace;

/// The package that the object is built from.
const PACKAGE: &str = "cc-ebpf";
/// The profiles that the object is built by.
const PROFILES: [&str; 2] = ["[profile.release]", "[profile.bpf]"];

/// SHA-256 over what the BPF object is made of, with names and lengths: the sources of `cc-ebpf`,
/// the flags that it is built with (`object.rs`), its profiles, and the versions of its
/// dependencies, those of its tests included.
///
/// # Errors
///
/// Returns an error when one of them cannot be read.
pub(crate) fn hash() -> Result<String> {
    let root = workspace::root();
    let read = |file: &Path| {
        fs::read_to_string(root.join(file))
            .with_context(|| format!("cannot read {}", file.display()))
    };
    let mut files = vec!["cc-ebpf/Cargo.toml".into(), "xtask/src/object.rs".into()];
    collect(Path::new("cc-ebpf/src"), &mut files)?;
    files.sort();
    let mut parts = Vec::new();
    for file in files {
        parts.push((file.to_string_lossy().into_owned(), read(&file)?));
    }
    let manifest = read("Cargo.toml".as_ref())?;
    parts.extend(PROFILES.map(|header| (header.to_owned(), section(&manifest, header))));
    let lock = read("Cargo.lock".as_ref())?;
    parts.push(("Cargo.lock".to_owned(), dependencies(&lock, PACKAGE)));
    let mut hash = Sha256::new();
    for (name, text) in parts {
        for part in [name, text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Ok(hex(hash.finalize()))
}

/// Adds the files below a directory of the workspace.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(workspace::root().join(directory))? {
        let entry = entry?;
        let path = directory.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// The lines of a table in a manifest, without empty ones and comments.
fn section(manifest: &str, header: &str) -> String {
    let lines = manifest.lines().skip_while(|line| line.trim() != header);
    let lines = lines.skip(1).take_while(|line| !line.starts_with('['));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

/// What Cargo.lock says of the packages that `package` depends on, directly or not, in its order.
fn dependencies(lock: &str, package: &str) -> String {
    let blocks: Vec<&str> = lock.split("\n[[package]]\n").skip(1).collect();
    let name = |block: &str| quoted(block.lines().next().unwrap_or_default());
    let mut wanted = BTreeSet::new();
    let mut left = vec![package.to_owned()];
    while let Some(next) = left.pop() {
        if !wanted.insert(next.clone()) {
            continue;
        }
        for block in blocks.iter().filter(|block| name(block) == next) {
            let listed = block.split_once("dependencies = [\n");
            let listed = listed.map_or("", |(_, listed)| listed);
            let listed = listed.lines().take_while(|line| *line != "]");
            // A dependency is its name, with its version where there are several.
            let names = listed.map(|line| quoted(line.split(' ').nth(1).unwrap_or_default()));
            left.extend(names);
        }
    }
    let used = blocks
        .into_iter()
        .filter(|block| wanted.contains(&name(block)));
    used.map(|block| format!("{}\n", block.trim_end()))
        .collect()
}

/// What is between the quotation marks of a line.
fn quoted(line: &str) -> String {
    line.split('"').nth(1).unwrap_or_default().to_owned()
}

/// Bytes as hexadecimal digits, two for each.
pub(crate) fn hex(hash: impl AsRef<[u8]>) -> String {
    let digits = hash.as_ref().iter();
    digits.map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_one_of_contents() {
        let found = hash().expect("the sources are there");
        assert_eq!(found.len(), 64);
        assert_eq!(hash().expect("they still are"), found);
        assert_eq!(hex([0x0f, 0xa0]), "0fa0");
    }

    #[test]
    fn a_profile_is_its_settings() {
        let manifest = "[profile.a]\nlto = true\n\n# The next one.\n[profile.b]\nlto = false\n";
        assert_eq!(section(manifest, "[profile.a]"), "lto = true\n");
        assert_eq!(section(manifest, "[profile.b]"), "lto = false\n");
        assert_eq!(section(manifest, "[profile.c]"), "");
    }

    #[test]
    fn only_the_packages_that_are_used_count() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1\"\ndependencies = [\n \
                    \"b\",\n \"c 2.0\",\n]\n\n[[package]]\nname = \"b\"\nversion = \"1\"\n\n\
                    [[package]]\nname = \"c\"\nversion = \"2.0\"\ndependencies = [\n \"a\",\n]\n\n\
                    [[package]]\nname = \"d\"\nversion = \"1\"\n";
        let names = |of: &str| -> Vec<String> {
            let text = dependencies(lock, of);
            let lines = text.lines().filter(|line| line.starts_with("name"));
            lines.map(quoted).collect()
        };
        assert_eq!(names("a"), ["a", "b", "c"], "a circle ends");
        assert_eq!(names("b"), ["b"]);
        // The real file has the libraries that the object is made of.
        let lock = fs::read_to_string(workspace::root().join("Cargo.lock")).expect("it is there");
        let real = dependencies(&lock, PACKAGE);
        assert!(real.contains("name = \"aya-ebpf\"\n") && !real.contains("tract"));
    }
}
