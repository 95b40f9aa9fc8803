//! Names of recordings: `NAME.parquet` is complete, `NAME.parquet.open` is being written, and
//! `NAME.parquet.open.footer` holds the footer that would complete it.

use std::{
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

/// The name that an agent gives a recording: `START-RUN-NUMBER`. Names are ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OwnName {
    /// Seconds since 1970 at the start of the agent, or one more than any before in the directory
    /// when the clock says less: the order of names outlives a clock that was wrong.
    pub(crate) start: u64,
    /// The process id of the agent.
    pub(crate) run: u32,
    /// The number of the file in its run.
    pub(crate) number: u64,
}

impl OwnName {
    /// The largest start that is accepted, in the year 33658.
    pub(crate) const LATEST: u64 = 999_999_999_999;

    /// The name of the complete file.
    pub(crate) fn complete(self) -> String {
        let Self { start, run, number } = self;
        format!("{start:010}-{run:08x}-{number:06}.{COMPLETE}")
    }

    /// The name in a file's name, and the rest of that: `parquet`, or `parquet` and further
    /// extensions. `None` for a file that no agent has made.
    pub(crate) fn parse(file: &str) -> Option<(Self, &str)> {
        let (stem, suffix) = file.split_once('.')?;
        let rest = suffix.strip_prefix(COMPLETE)?;
        if !(rest.is_empty() || rest.starts_with('.')) {
            return None;
        }
        let mut parts = stem.split('-');
        let (start, run, number) = (parts.next()?, parts.next()?, parts.next()?);
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let fits = (10..=12).contains(&start.len())
            && digits(start)
            && run.len() == 8
            && run.bytes().all(|b| b.is_ascii_hexdigit())
            && (6..=18).contains(&number.len())
            && digits(number)
            && parts.next().is_none();
        if !fits {
            return None;
        }
        let name = Self {
            start: start.parse().ok()?,
            run: u32::from_str_radix(run, 16).ok()?,
            number: number.parse().ok()?,
        };
        Some((name, suffix))
    }
}

/// Returns the complete files of a directory, sorted by age as their names state it, without those
/// of its subdirectories. Files that no agent has named come first, sorted by name. For a file,
/// returns its own path.
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
    files.sort_by_cached_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let own = OwnName::parse(&name).map(|(own, _)| own);
        (own, path.clone())
    });
    Ok(files)
}

/// Appends a dot and `suffix` to a name.
pub(crate) fn with_suffix(name: &str, suffix: &str) -> String {
    format!("{name}.{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn own_files_are_recognised_by_their_names() {
        for name in [
            "1795000000-0000abcd-000001.parquet",
            "1795000000-0000abcd-000001.parquet.open",
            "1795000000-0000abcd-000001.parquet.open.footer",
            "1795000000-0000abcd-1000000.parquet",
        ] {
            assert!(OwnName::parse(name).is_some(), "{name}");
        }
        for name in [
            "a.parquet",
            "1795000000-0000abcd-1.parquet",
            "1795000000-0000abcd-000001.csv",
            "1795000000-0000abcd-000001.parquets",
            "1795000000-0000abcd-000001-1.parquet",
            "1795000000-0000abcg-000001.parquet",
            "+795000000-0000abcd-000001.parquet",
        ] {
            assert_eq!(OwnName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written_and_sort_by_age() {
        let name = |start, number| OwnName {
            start,
            run: 0xabcd,
            number,
        };
        let directory = TempDir::new().expect("a scratch directory");
        let ages = [
            name(0, 7),
            name(1_795_000_000, 999_999),
            name(1_795_000_000, 1_000_000),
            name(9_999_999_999, 0),
            name(10_000_000_000, 0),
            name(OwnName::LATEST, 0),
        ];
        for age in ages.iter().rev() {
            let file = age.complete();
            assert_eq!(OwnName::parse(&file), Some((*age, COMPLETE)));
            fs::write(directory.path().join(file), "").expect("there is space");
        }
        fs::write(directory.path().join("b.parquet"), "").expect("there is space");
        let mut expected = vec![directory.path().join("b.parquet")];
        expected.extend(ages.map(|age| directory.path().join(age.complete())));
        assert_eq!(files(directory.path()).expect("seven files"), expected);
    }
}
