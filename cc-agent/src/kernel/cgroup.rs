//! Opening cgroups by their directories under `/sys/fs/cgroup`, and those that are added while the
//! datapath runs.

use std::{
    fs,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use aya::programs::sock_ops::SockOpsLink;

use super::Error;

/// Cgroups that may be added, at most. A node of Kubernetes has some hundred pods.
const MOST: usize = 4_096;

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
        opened.push((directory.clone(), open(directory)?));
    }
    Ok(opened)
}

fn open(directory: &Path) -> Result<File, Error> {
    let what = format!("opening the cgroup {}", directory.display());
    File::open(directory).map_err(Error::system(what))
}

/// The cgroups that were added while the datapath runs. A program is attached to each for as long
/// as it is here.
#[derive(Default)]
pub(super) struct AddedCgroups(Vec<AddedCgroup>);

struct AddedCgroup {
    directory: PathBuf,
    id: u64,
    /// Dropping it detaches the program; `None` where it is attached anyway.
    _link: Option<SockOpsLink>,
}

impl AddedCgroup {
    fn is_there(&self) -> bool {
        // Ids are not used again.
        fs::metadata(&self.directory).is_ok_and(|found| found.ino() == self.id)
    }
}

impl AddedCgroups {
    /// The directories, in the order in which they were added.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        (self.0.iter().map(|added| added.directory.clone())).collect()
    }

    /// Has `attach` attach the program to a cgroup that is opened for it, unless that is among
    /// `anyway`. Returns false when the cgroup was added before.
    ///
    /// # Errors
    ///
    /// Returns the error of [`cgroup_id`], that of `attach`, and an error when there are too many.
    pub(super) fn add(
        &mut self,
        directory: &Path,
        anyway: &[(PathBuf, File)],
        attach: impl FnOnce(&File) -> Result<SockOpsLink, Error>,
    ) -> Result<bool, Error> {
        let id = cgroup_id(directory)?;
        if self.0.iter().any(|added| added.id == id) {
            return Ok(false);
        }
        if self.0.len() >= MOST {
            return Err(Error::CgroupsFull(MOST));
        }
        let file = open(directory)?;
        let is_it = |file: &File| file.metadata().is_ok_and(|found| found.ino() == id);
        let link = match anyway.iter().any(|(_, file)| is_it(file)) {
            true => None,
            false => Some(attach(&file)?),
        };
        self.0.push(AddedCgroup {
            directory: directory.to_owned(),
            id,
            _link: link,
        });
        Ok(true)
    }

    /// Detaches the program from a cgroup. Returns false when it was not added.
    pub(super) fn remove(&mut self, directory: &Path) -> bool {
        let id = cgroup_id(directory).ok();
        let before = self.0.len();
        self.0
            .retain(|added| added.directory != directory && Some(added.id) != id);
        self.0.len() < before
    }

    /// Forgets the cgroups whose directories were removed, and returns these.
    pub(super) fn forget_removed(&mut self) -> Vec<PathBuf> {
        let removed = self.0.extract_if(.., |added| !added.is_there());
        removed.map(|added| added.directory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
