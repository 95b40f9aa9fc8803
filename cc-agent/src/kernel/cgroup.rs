//! Cgroups and their directories under `/sys/fs/cgroup`.

mod added;
mod paths;

use std::{
    fs,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::Error;

pub(super) use added::AddedCgroups;
pub use paths::CgroupPaths;

/// `CGROUP2_SUPER_MAGIC` (include/uapi/linux/magic.h).
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;

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
    let system = rustix::fs::statfs(directory).map_err(|error| wrong()(error.into()))?;
    if system.f_type != CGROUP2 || !metadata.is_dir() {
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
        opened.push((directory.clone(), open(directory)?));
    }
    Ok(opened)
}

fn open(directory: &Path) -> Result<File, Error> {
    let what = format!("opening the cgroup {}", directory.display());
    File::open(directory).map_err(Error::system(what))
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
