//! The cgroups that are added and removed while the datapath runs.

use std::{
    fs,
    fs::File,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use aya::programs::sock_ops::SockOpsLink;

use super::{cgroup_id, open};
use crate::kernel::Error;

/// Cgroups that may be added, at most. A node of Kubernetes has some hundred pods.
const MOST: usize = 4_096;

/// The cgroups that were added while the datapath runs. A program is attached to each for as long
/// as it is here.
#[derive(Default)]
pub(in crate::kernel) struct AddedCgroups(Vec<AddedCgroup>);

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
    pub(in crate::kernel) fn directories(&self) -> Vec<PathBuf> {
        (self.0.iter().map(|added| added.directory.clone())).collect()
    }

    /// Has `attach` attach the program to a cgroup that is opened for it, unless that is among
    /// `anyway`. Returns false when the cgroup was added before.
    ///
    /// # Errors
    ///
    /// Returns the error of [`cgroup_id`], that of `attach`, and an error when there are too many.
    pub(in crate::kernel) fn add(
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
    pub(in crate::kernel) fn remove(&mut self, directory: &Path) -> bool {
        let id = cgroup_id(directory).ok();
        let before = self.0.len();
        self.0
            .retain(|added| added.directory != directory && Some(added.id) != id);
        self.0.len() < before
    }

    /// Forgets the cgroups whose directories were removed, and returns these.
    pub(in crate::kernel) fn forget_removed(&mut self) -> Vec<PathBuf> {
        let removed = self.0.extract_if(.., |added| !added.is_there());
        removed.map(|added| added.directory).collect()
    }
}
