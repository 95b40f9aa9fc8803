//! A cgroup.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{belongs_to_the_dead, unique_place};

/// A cgroup v2 directory that goes when this does.
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// The directory of this process's cgroup, or `None` where no cgroup v2 is mounted.
    pub fn own() -> Option<PathBuf> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        Some(mount()?.join(path))
    }

    /// A new one, or why there is none.
    pub fn new() -> Result<Self, String> {
        let mount = mount().ok_or("no cgroup v2 is mounted")?;
        let directory = mount.join(unique_place("g"));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory })
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Does `work` while this process is in it.
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

/// Moves this process back when dropped, in a panic too.
struct Return(PathBuf);

impl Drop for Return {
    fn drop(&mut self) {
        enter(&self.0);
    }
}

/// Moves this process.
fn enter(directory: &Path) {
    let members = directory.join("cgroup.procs");
    fs::write(&members, std::process::id().to_string())
        .unwrap_or_else(|error| panic!("{}: {error}", members.display()));
}

/// Where cgroup v2 is mounted.
fn mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let directory = words.next()?;
        (words.next()? == "cgroup2").then(|| directory.into())
    })
}

/// Removes the cgroups of programs that are no more.
pub(super) fn sweep() {
    let Some(entries) = mount().and_then(|mount| fs::read_dir(mount).ok()) else {
        return;
    };
    for entry in entries.flatten() {
        if belongs_to_the_dead(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
