//! Cgroups and their directories under `/sys/fs/cgroup`.

use std::{
    collections::HashMap,
    fs,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::Error;

/// The id of the cgroup v2 with this directory, as in [`cc_ebpf::Identity::cgroup_id`]: the inode
/// number of the directory.
///
/// # Errors
///
/// Returns an error when the path cannot be read or is not a directory of cgroup v2.
pub fn cgroup_id(directory: &Path) -> Result<u64, Error> {
    let wrong = || {
        Error::system(format!(
            "looking for a cgroup v2 at {}",
            directory.display()
        ))
    };
    let metadata = fs::metadata(directory).map_err(wrong())?;
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())
        .map_err(|error| wrong()(error.into()))?;
    // SAFETY: all-zero bytes are a valid statfs.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a NUL, and the place for the result is as large as it must be.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut system) } != 0 {
        return Err(wrong()(io::Error::last_os_error()));
    }
    if system.f_type != libc::CGROUP2_SUPER_MAGIC || !metadata.is_dir() {
        return Err(wrong()(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no directory of a cgroup v2 file system; `mount -t cgroup2` shows where one is",
        )));
    }
    Ok(metadata.ino())
}

/// Opens the directories of cgroups, to attach programs to them.
///
/// # Errors
///
/// Returns the error of [`cgroup_id`] for the first that is no cgroup, and an error when two are
/// the same.
pub(super) fn open_all(directories: &[PathBuf]) -> Result<Vec<(PathBuf, File)>, Error> {
    let mut ids = Vec::new();
    let mut opened = Vec::new();
    for directory in directories {
        let id = cgroup_id(directory)?;
        if ids.contains(&id) {
            return Err(Error::CgroupTwice(directory.clone()));
        }
        ids.push(id);
        let what = format!("opening the cgroup {}", directory.display());
        let file = File::open(directory).map_err(Error::system(what))?;
        opened.push((directory.clone(), file));
    }
    Ok(opened)
}

/// Where cgroup v2 is mounted.
pub(super) fn mount() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mount_in(&mounts)
}

/// The first cgroup v2 mount of /proc/PID/mounts.
fn mount_in(mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| place.to_owned())
    })
}

/// Time between two readings of the hierarchy, at least, and in lengths of a reading: on a host
/// with very many cgroups readings take a twentieth of a processor at most.
const READING_PERIOD: (Duration, u32) = (Duration::from_secs(1), 20);

/// The paths of the host's cgroups by their ids, of which no list exists: the hierarchy is read
/// when one is asked for that was not there the last time.
#[derive(Debug, Default)]
pub struct CgroupPaths {
    paths: HashMap<u64, String>,
    /// When the hierarchy may be read again; at once before the first reading.
    next: Option<Instant>,
}

impl CgroupPaths {
    /// Looks for these cgroups. False while it is too early for another reading, and one of them
    /// was not there in the last one; otherwise [`Self::path`] is up to date about them.
    pub fn find(&mut self, mut ids: impl Iterator<Item = u64>) -> bool {
        if ids.all(|id| self.paths.contains_key(&id)) {
            return true;
        }
        let begun = Instant::now();
        if self.next.is_some_and(|next| begun < next) {
            return false;
        }
        self.paths = mount().map_or_else(HashMap::new, |mount| paths_below(Path::new(&mount)));
        let ended = Instant::now();
        let (least, lengths) = READING_PERIOD;
        self.next = Some(ended + least.max((ended - begun) * lengths));
        true
    }

    /// The path of a cgroup from the root of the hierarchy, as far as this process sees it; `None`
    /// when it was not there in the last reading.
    pub fn path(&self, id: u64) -> Option<&str> {
        self.paths.get(&id).map(String::as_str)
    }
}

/// The paths of a directory of cgroup v2 and of all those below it, by their ids. Those that are
/// removed meanwhile may be missing.
fn paths_below(root: &Path) -> HashMap<u64, String> {
    let mut paths = HashMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        let Ok(metadata) = fs::symlink_metadata(&directory) else {
            continue;
        };
        let below = directory.strip_prefix(root).unwrap_or(&directory);
        paths.insert(metadata.ino(), format!("/{}", below.display()));
        // One for its name, one for itself and one for each directory in it
        // (kernfs_refresh_inode, fs/kernfs/inode.c): most have none, and many files.
        if metadata.nlink() <= 2 {
            continue;
        }
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        left.extend(entries.filter(is_directory).map(|entry| entry.path()));
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_v2_is_found_wherever_it_is_mounted() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_in(hybrid).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(mount_in("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\n"), None);
    }

    #[test]
    fn directories_are_found_by_their_numbers() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(root.path().join("a/b c")).expect("it is ours");
        fs::write(root.path().join("a/file"), "").expect("it is ours");
        let id = |path: &str| {
            let metadata = fs::metadata(root.path().join(path)).expect("it is there");
            metadata.ino()
        };
        let expected = [("", "/"), ("a", "/a"), ("a/b c", "/a/b c")];
        let expected = expected.map(|(at, path)| (id(at), path.to_owned()));
        assert_eq!(paths_below(root.path()), HashMap::from(expected));
        assert!(paths_below(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn what_is_not_there_is_looked_for_once_in_a_while() {
        let Some(mount) = mount() else {
            eprintln!("SKIPPED: no cgroup v2 is mounted");
            return;
        };
        let root = cgroup_id(Path::new(&mount)).expect("it is one");
        let mut paths = CgroupPaths::default();
        assert!(paths.find([root].into_iter()), "the first time at once");
        assert_eq!(paths.path(root), Some("/"));
        assert_eq!(paths.path(u64::MAX), None);
        assert!(!paths.find([root, u64::MAX].into_iter()), "too early");
        assert!(paths.find([root].into_iter()), "nothing is to be read");
    }

    #[test]
    fn what_is_no_cgroup_is_refused() {
        let error = cgroup_id(Path::new("/proc")).expect_err("another file system");
        assert!(
            error
                .to_string()
                .contains("/proc: it is no directory of a cgroup"),
            "{error}"
        );
        let error = cgroup_id(Path::new("/nonexistent")).expect_err("nothing");
        assert!(
            error.to_string().contains("/nonexistent: No such file"),
            "{error}"
        );
    }
}
