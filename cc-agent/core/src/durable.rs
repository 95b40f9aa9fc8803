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
    replace(&FileSystem, path, bytes)
}

/// The steps of replacing a file, each of which can fail, and before each of which the process can
/// be killed or the power be lost.
trait Steps {
    /// A file that is written to.
    type File;

    /// Creates an empty file, in place of one that is there.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Appends all bytes to the file, or an unknown part of them if it fails.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;

    /// Returns once the file's content survives power loss.
    fn flush(&self, file: &Self::File) -> io::Result<()>;

    /// Gives a file another name, in place of the file of that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the file of this name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns once what was created, renamed and removed in the directory stays so after power
    /// loss.
    fn flush_directory(&self, directory: &Path) -> io::Result<()>;
}

/// The files of the operating system.
struct FileSystem;

impl Steps for FileSystem {
    type File = File;

    fn create(&self, path: &Path) -> io::Result<File> {
        regular_file::create_anew(path, 0o666)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn flush(&self, file: &File) -> io::Result<()> {
        // The length is part of what has to survive, the time stamps are not.
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn flush_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

fn replace(steps: &impl Steps, path: &Path, bytes: &[u8]) -> Result<(), ReplaceError> {
    let draft = path.with_added_extension(DRAFT);
    let failed = |step, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError { step, path, source }
    };
    write_and_flush(steps, &draft, bytes)
        .map_err(failed("writing", &draft))
        .and_then(|()| {
            let renamed = steps.rename(&draft, path);
            renamed.map_err(failed("replacing", path))
        })
        .inspect_err(|_| {
            // The error that is returned says why; a draft that stays is removed next time.
            let _ = steps.remove(&draft);
        })?;
    flush_directory(steps, directory_of(path))
}

fn write_and_flush(steps: &impl Steps, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = steps.create(path)?;
    steps.write(&mut file, bytes)?;
    steps.flush(&file)
}

fn flush_directory(steps: &impl Steps, directory: &Path) -> Result<(), ReplaceError> {
    steps
        .flush_directory(directory)
        .map_err(|source| ReplaceError {
            step: "flushing",
            path: directory.to_owned(),
            source,
        })
}

/// Flushes the directory that holds `path`, so that files created, renamed or removed in it stay so
/// after power loss.
///
/// # Errors
///
/// Returns an error when the directory cannot be opened or flushed.
pub fn flush_directory_of(path: &Path) -> Result<(), ReplaceError> {
    flush_directory(&FileSystem, directory_of(path))
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
    use std::{
        cell::{Cell, RefCell},
        collections::BTreeMap,
    };

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

    /// The operating system's files, with a step that fails.
    struct Failing {
        /// Number of steps before the one that fails.
        at: usize,
        /// Whether the process is gone from then on: no later step happens either.
        killed: bool,
        done: Cell<usize>,
    }

    impl Failing {
        /// Counts a step, and returns whether it happens.
        fn step(&self) -> io::Result<()> {
            let number = self.done.replace(self.done.get() + 1);
            match number == self.at || self.killed && number > self.at {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    impl Steps for Failing {
        type File = File;

        fn create(&self, path: &Path) -> io::Result<File> {
            self.step()?;
            FileSystem.create(path)
        }

        /// Writes half of the bytes when it fails.
        fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
            let happens = self.step();
            let part = match happens {
                Ok(()) => bytes,
                Err(_) => &bytes[..bytes.len() / 2],
            };
            FileSystem.write(file, part).and(happens)
        }

        fn flush(&self, file: &File) -> io::Result<()> {
            self.step()?;
            FileSystem.flush(file)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            FileSystem.rename(from, to)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.step()?;
            FileSystem.remove(path)
        }

        fn flush_directory(&self, directory: &Path) -> io::Result<()> {
            self.step()?;
            FileSystem.flush_directory(directory)
        }
    }

    /// Number of steps of a replacement: create, write, flush, rename, flush the directory.
    const STEPS: usize = 5;

    #[test]
    fn whichever_step_fails_or_is_the_last_the_file_is_whole() {
        for killed in [false, true] {
            for at in 0..=STEPS {
                let dir = tempfile::tempdir().expect("a scratch directory");
                let path = dir.path().join("a.bin");
                replace_durably(&path, b"former").expect("a directory that can be written to");
                let steps = Failing {
                    at,
                    killed,
                    done: Cell::new(0),
                };
                let result = replace(&steps, &path, b"new content");
                assert_eq!(result.is_ok(), at == STEPS, "{at}: {result:?}");
                // The rename is the fourth step.
                let expected: &[u8] = match at {
                    0..=3 => b"former",
                    _ => b"new content",
                };
                assert_eq!(fs::read(&path).expect("the file"), expected, "{at}");
                if !killed {
                    assert_eq!(names(dir.path()), ["a.bin"], "{at}");
                }
                // What a killed process left is in nobody's way.
                replace_durably(&path, b"third").expect("a directory that can be written to");
                assert_eq!(fs::read(&path).expect("the file"), b"third", "{at}");
                assert_eq!(names(dir.path()), ["a.bin"], "{at}");
            }
        }
    }

    /// A directory on a disk that loses power after some steps. What was not flushed until then is
    /// lost or kept, in any combination, and of a file any part.
    struct Powered {
        /// Number of steps until the power is lost.
        left: Cell<usize>,
        /// Whether files are flushed: without, the model has to tell.
        flushes: bool,
        /// Each file's content as it was written, and as it was last flushed.
        files: RefCell<Vec<[Vec<u8>; 2]>>,
        /// The directory as it was last flushed.
        directory: RefCell<Names>,
        /// What has happened in it since.
        pending: RefCell<Vec<Change>>,
    }

    /// Names of files, by their place in [`Powered::files`].
    type Names = BTreeMap<PathBuf, usize>;

    #[derive(Clone, Debug)]
    enum Change {
        Create(PathBuf, usize),
        Rename(PathBuf, PathBuf),
        Remove(PathBuf),
    }

    impl Change {
        fn apply(&self, names: &mut Names) {
            match self {
                Self::Create(path, file) => {
                    names.insert(path.clone(), *file);
                }
                Self::Rename(from, to) => {
                    if let Some(file) = names.remove(from) {
                        names.insert(to.clone(), file);
                    }
                }
                Self::Remove(path) => {
                    names.remove(path);
                }
            }
        }
    }

    impl Powered {
        /// A disk with a file that has survived already, or without any.
        fn new(former: Option<(&Path, &[u8])>, left: usize, flushes: bool) -> Self {
            let names = former.map(|(path, _)| (path.to_owned(), 0));
            let content = former.map(|(_, content)| [content.to_vec(), content.to_vec()]);
            Self {
                left: Cell::new(left),
                flushes,
                files: RefCell::new(content.into_iter().collect()),
                directory: RefCell::new(names.into_iter().collect()),
                pending: RefCell::default(),
            }
        }

        fn step(&self) -> io::Result<()> {
            let left = self.left.get().checked_sub(1);
            self.left.set(left.unwrap_or(0));
            left.map(drop).ok_or_else(|| io::Error::other("no power"))
        }

        fn change(&self, change: Change) -> io::Result<()> {
            self.step()?;
            self.pending.borrow_mut().push(change);
            Ok(())
        }

        /// Everything that a file may hold when the power is back; `None` if it is not there.
        fn outcomes(&self, path: &Path) -> Vec<Option<Vec<u8>>> {
            let pending = self.pending.borrow();
            let mut outcomes = Vec::new();
            for kept in 0_u32..1 << pending.len() {
                let mut names = self.directory.borrow().clone();
                for (index, change) in pending.iter().enumerate() {
                    if kept & (1 << index) != 0 {
                        change.apply(&mut names);
                    }
                }
                let Some(&file) = names.get(path) else {
                    outcomes.push(None);
                    continue;
                };
                let [written, flushed] = &self.files.borrow()[file];
                outcomes.push(Some(flushed.clone()));
                if flushed != written {
                    let parts = (0..=written.len()).map(|len| written[..len].to_vec());
                    // The length may survive without the content.
                    let zeros = vec![0; written.len()];
                    outcomes.extend(parts.chain([zeros]).map(Some));
                }
            }
            outcomes
        }
    }

    impl Steps for Powered {
        type File = usize;

        fn create(&self, path: &Path) -> io::Result<usize> {
            let number = self.files.borrow().len();
            self.change(Change::Create(path.to_owned(), number))?;
            self.files.borrow_mut().push(Default::default());
            Ok(number)
        }

        fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
            self.step()?;
            self.files.borrow_mut()[*file][0].extend_from_slice(bytes);
            Ok(())
        }

        fn flush(&self, file: &usize) -> io::Result<()> {
            self.step()?;
            let [written, flushed] = &mut self.files.borrow_mut()[*file];
            if self.flushes {
                flushed.clone_from(written);
            }
            Ok(())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.change(Change::Rename(from.to_owned(), to.to_owned()))
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            self.change(Change::Remove(path.to_owned()))
        }

        fn flush_directory(&self, _: &Path) -> io::Result<()> {
            self.step()?;
            let mut names = self.directory.borrow_mut();
            for change in self.pending.borrow_mut().drain(..) {
                change.apply(&mut names);
            }
            Ok(())
        }
    }

    /// Replaces a file on a disk that loses power after each number of steps. Returns what the file
    /// may hold then that is neither the former content nor the new one, and checks that a
    /// replacement that was confirmed survives.
    fn torn(former: Option<&[u8]>, flushes: bool) -> Vec<Option<Vec<u8>>> {
        let (path, new): (_, &[u8]) = (Path::new("/dir/a.bin"), b"new content");
        let mut torn = Vec::new();
        for left in 0..=STEPS {
            let disk = Powered::new(former.map(|content| (path, content)), left, flushes);
            let confirmed = replace(&disk, path, new).is_ok();
            assert_eq!(confirmed, left == STEPS);
            for outcome in disk.outcomes(path) {
                let whole = outcome.as_deref() == Some(new);
                if !whole && (confirmed || outcome.as_deref() != former) {
                    torn.push(outcome);
                }
            }
        }
        torn
    }

    #[test]
    fn power_loss_after_any_step_leaves_the_former_content_or_the_new_one() {
        for former in [None, Some(&b"former"[..])] {
            let torn_by_loss = torn(former, true);
            assert!(torn_by_loss.is_empty(), "{torn_by_loss:?}");
            // The model does tell: without the flush, the rename may survive without the content.
            assert!(torn(former, false).contains(&Some(b"new con".to_vec())));
        }
    }

    #[test]
    fn a_bare_file_name_is_in_the_current_directory() {
        assert_eq!(directory_of(Path::new("a.bin")), Path::new("."));
        assert_eq!(directory_of(Path::new("b/a.bin")), Path::new("b"));
        assert_eq!(directory_of(Path::new("/a.bin")), Path::new("/"));
    }
}
