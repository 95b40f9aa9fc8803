//! Cgroups for sockets that the agent may be told to serve.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::unique_place;

/// A new directory of the cgroup v2 hierarchy, removed when it is dropped.
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// Returns the directory of this process's cgroup, or `None` where no cgroup v2 is mounted.
    pub fn own() -> Option<PathBuf> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Some(mount()?.join(path))
    }

    /// Creates a cgroup directly below the root of the hierarchy.
    ///
    /// # Errors
    ///
    /// Returns the reason, for people, when no cgroup v2 is mounted or the directory cannot be
    /// created.
    pub fn new() -> Result<Self, String> {
        let mount = mount().ok_or("no cgroup v2 is mounted")?;
        let directory = mount.join(unique_place("g"));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory })
    }

    /// Returns its directory in the mounted hierarchy.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Calls `work` while this whole process is a member of the cgroup. Sockets made meanwhile
    /// belong to the cgroup for good.
    ///
    /// # Panics
    ///
    /// Panics if the process cannot be moved.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _return = Return(Self::own().expect("a cgroup v2 is mounted"));
        enter(&self.directory);
        work()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Moves this process back to a cgroup when dropped, also while a panic unwinds.
struct Return(PathBuf);

impl Drop for Return {
    fn drop(&mut self) {
        enter(&self.0);
    }
}

/// Moves this process to a cgroup.
fn enter(directory: &Path) {
    let members = directory.join("cgroup.procs");
    fs::write(&members, std::process::id().to_string())
        .unwrap_or_else(|error| panic!("{}: {error}", members.display()));
}

/// Returns where cgroup v2 is mounted (proc_pid_mounts(5)).
fn mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let directory = words.next()?;
        (words.next()? == "cgroup2").then(|| directory.into())
    })
}

/// Removes the cgroups whose names `selected` accepts, where no process is left in them.
pub(super) fn remove_all(selected: impl Fn(&str) -> bool) {
    let Some(entries) = mount().and_then(|mount| fs::read_dir(mount).ok()) else {
        return;
    };
    for entry in entries.flatten() {
        if selected(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
