//! Replacing a whole file so that neither a crash nor a power failure leaves a torn one.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::regular_file;

/// Extension added to the name of the draft that is written next to the file it will replace.
const DRAFT: &str = "new";

/// A step of [`replace_durably`] or [`flush_directory_of`] that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} {}: {source}", path.display())]
pub struct ReplaceError {
    /// The step: `writing` (the draft), `replacing` (the file) or `flushing` (its directory).
    pub step: &'static str,
    /// The file or directory that the step worked on.
    pub path: PathBuf,
    /// The error that the operating system returned.
    pub source: io::Error,
}

/// Replaces the file at `path`, or creates it, with `bytes` as its whole content.
///
/// The bytes go to a draft next to the file (`path` with `.new` appended), which is flushed to
/// the disk and then renamed over the file; the directory is flushed last. A reader therefore
/// sees either the former content or the new one, never a mixture. The same holds after power
/// loss at any moment, on every file system that honours `fsync`: before the rename reaches the
/// disk the file has its former content, afterwards the new one. Once this function has returned
/// `Ok`, the new content survives.
///
/// A draft that a crash left behind is removed by the next call. Calls for the same path must not
/// overlap, since they would share the draft. A symbolic link at `path`, or in the draft's place,
/// is itself replaced, not the file it points to.
///
/// # Errors
///
/// Returns the first step that failed. When writing or replacing failed, the file at `path` has its
/// former content and the draft is removed. When flushing the directory failed, the file has its
/// new content, but a power failure may bring the former one back.
pub fn replace_durably(path: &Path, bytes: &[u8]) -> Result<(), ReplaceError> {
    let draft = path.with_added_extension(DRAFT);
    let failed = |step, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError { step, path, source }
    };
    write_and_flush(&draft, bytes)
        .map_err(failed("writing", &draft))
        .and_then(|()| fs::rename(&draft, path).map_err(failed("replacing", path)))
        .inspect_err(|_| {
            // The error that is returned says why; a draft that stays is removed next time.
            let _ = fs::remove_file(&draft);
        })?;
    flush_directory_of(path)
}

/// Flushes the directory that holds `path`, so that files created, renamed or removed in it stay so
/// after power loss.
///
/// # Errors
///
/// Returns an error when the directory cannot be opened or flushed.
pub fn flush_directory_of(path: &Path) -> Result<(), ReplaceError> {
    let directory = directory_of(path);
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| ReplaceError {
            step: "flushing",
            path: directory.to_owned(),
            source,
        })
}

fn write_and_flush(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = regular_file::create_anew(path, 0o666)?;
    file.write_all(bytes)?;
    // The length is part of what has to survive, the time stamps are not.
    file.sync_data()
}

/// The directory that holds `path`; the current one for a bare file name.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str() != OsStr::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_created_and_then_replaced_without_leaving_a_draft() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("a.bin");
        for content in [&b"first, and longer"[..], b"second", b""] {
            replace_durably(&path, content).expect("a directory that can be written to");
            assert_eq!(fs::read(&path).expect("the file"), content);
            assert_eq!(names(dir.path()), ["a.bin"]);
        }
    }

    #[test]
    fn a_link_in_the_drafts_place_costs_its_target_nothing() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("a.bin");
        let (link, victim) = (dir.path().join("a.bin.new"), dir.path().join("victim"));
        fs::write(&victim, "precious").expect("a file");
        for hard in [false, true] {
            if hard {
                fs::hard_link(&victim, &link).expect("the same file system");
            } else {
                std::os::unix::fs::symlink(&victim, &link).expect("a link");
            }
            replace_durably(&path, b"whole").expect("a directory that can be written to");
            assert_eq!(fs::read(&path).expect("the file"), b"whole");
            assert_eq!(fs::read(&victim).expect("untouched"), b"precious");
            assert_eq!(names(dir.path()), ["a.bin", "victim"]);
        }
    }

    #[test]
    fn a_draft_left_by_a_crash_is_removed() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("a.bin");
        fs::write(dir.path().join("a.bin.new"), "half of something long").expect("a file");
        replace_durably(&path, b"whole").expect("a directory that can be written to");
        assert_eq!(fs::read(&path).expect("the file"), b"whole");
        assert_eq!(names(dir.path()), ["a.bin"]);
    }

    #[test]
    fn a_failed_write_keeps_the_former_content() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("a.bin");
        replace_durably(&path, b"former").expect("a directory that can be written to");
        // A directory in the draft's place cannot be written to.
        fs::create_dir(dir.path().join("a.bin.new")).expect("a directory");
        let error = replace_durably(&path, b"new").expect_err("no draft can be written");
        assert_eq!(error.step, "writing");
        assert!(error.to_string().contains("a.bin.new"), "{error}");
        assert_eq!(fs::read(&path).expect("the file"), b"former");
    }

    #[test]
    fn a_failed_rename_removes_the_draft() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("a.bin");
        fs::create_dir(&path).expect("a directory");
        let error = replace_durably(&path, b"new").expect_err("a directory is in the way");
        assert_eq!(error.step, "replacing");
        assert_eq!(names(dir.path()), ["a.bin"]);
    }

    #[test]
    fn a_bare_file_name_is_in_the_current_directory() {
        assert_eq!(directory_of(Path::new("a.bin")), Path::new("."));
        assert_eq!(directory_of(Path::new("b/a.bin")), Path::new("b"));
        assert_eq!(directory_of(Path::new("/a.bin")), Path::new("/"));
    }
}
