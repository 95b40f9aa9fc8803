//! Paths of cgroups by their ids.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use super::mount;

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
    use crate::kernel::cgroup::cgroup_id;

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
}
