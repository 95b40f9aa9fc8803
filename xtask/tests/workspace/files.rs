//! The files that the checks read.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The workspace's root directory, in which its Cargo.toml lies.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package lies in the workspace's root")
}

/// The text of one file, and its path relative to the workspace's root.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Every file below `dir` with the extension `extension`, sorted by path.
///
/// Hidden directories and `target` are left out. The directory is walked rather than asked of git,
/// as a copy of the sources need not be a repository.
///
/// # Panics
///
/// Panics when a directory or file cannot be read, or when a file is not UTF-8.
pub(crate) fn with_extension(dir: &Path, extension: &str) -> Vec<File> {
    let mut paths = Vec::new();
    collect(dir, extension, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            let path = path.strip_prefix(root()).unwrap_or(&path).to_owned();
            File { path, text }
        })
        .collect()
}

fn collect(dir: &Path, extension: &str, paths: &mut Vec<PathBuf>) {
    let entries =
        fs::read_dir(dir).unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display()));
    for entry in entries {
        let entry = entry.expect("an entry of a directory that was opened");
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        let kind = entry.file_type().expect("the type of a listed entry");
        let path = entry.path();
        if kind.is_dir() && !hidden && name != "target" {
            collect(&path, extension, paths);
        } else if kind.is_file() && path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
}
