//! Names of recordings: `NAME.parquet` is complete, `NAME.parquet.open` is being written, and
//! `NAME.parquet.open.footer` holds the footer that would complete it.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use crate::RecordingError;

/// The extension of a complete file.
pub(crate) const COMPLETE: &str = "parquet";
/// The extension added to [`COMPLETE`] while the file is being written.
pub(crate) const OPEN: &str = "open";
/// The extension added to [`OPEN`] for the footer that would complete the file.
pub(crate) const FOOTER: &str = "footer";

/// Returns the complete files of a directory, sorted by name and hence by age, without those of
/// its subdirectories. For a file, returns its own path.
///
/// # Errors
///
/// Returns an error when the path cannot be read, names an open file, or is a directory without a
/// complete file.
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

/// Appends a dot and `suffix` to the path's last component.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(suffix);
    name.into()
}
