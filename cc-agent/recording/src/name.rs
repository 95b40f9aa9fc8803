//! The names of recordings.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use crate::RecordingError;

/// What the name of a complete file ends in.
pub(crate) const COMPLETE: &str = "parquet";
/// What follows it while the file is being written.
pub(crate) const OPEN: &str = "open";
/// What follows that in the name of the footer that completes it.
pub(crate) const FOOTER: &str = "footer";

/// The complete files of a directory, oldest first; of a file, itself.
///
/// # Errors
///
/// There is nothing to read, or none in the directory.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, RecordingError> {
    let io = |source| RecordingError::io(path, source);
    let is = |path: &Path, kind: &str| path.extension().is_some_and(|e| e == kind);
    if !fs::metadata(path).map_err(io)?.is_dir() {
        return match is(path, OPEN) {
            true => Err(RecordingError::Open { path: path.into() }),
            false => Ok(vec![path.into()]),
        };
    }
    let mut files = Vec::new();
    let mut open = None;
    for entry in fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?.path();
        if is(&entry, COMPLETE) {
            files.push(entry);
        } else if is(&entry, OPEN) {
            open = Some(entry);
        }
    }
    if files.is_empty() {
        return Err(match open {
            Some(path) => RecordingError::Open { path },
            None => RecordingError::Empty { path: path.into() },
        });
    }
    files.sort();
    Ok(files)
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(suffix);
    name.into()
}
