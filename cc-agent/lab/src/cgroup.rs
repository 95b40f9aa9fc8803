//! Cgroups: for sockets that the agent may be told to serve, and for processes that shall have
//! little memory.

use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
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

    /// Creates a cgroup below this one, and those in between.
    ///
    /// # Panics
    ///
    /// Panics if a directory cannot be created.
    pub fn below(&self, path: &str) -> Self {
        let directory = self.directory.join(path);
        fs::create_dir_all(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        Self { directory }
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
        remove(&self.directory);
    }
}

/// Removes a cgroup and those below it, where no process is left in them.
fn remove(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
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

/// A new cgroup whose processes have limited memory, removed when it is dropped.
pub struct MemoryCgroup {
    directory: PathBuf,
    /// The files of the memory used and of the limit.
    files: [&'static str; 2],
}

impl MemoryCgroup {
    /// Creates a cgroup directly below the root of the hierarchy that has the memory controller:
    /// of cgroup v2, or of v1 where that has it. It has no limit at first.
    ///
    /// # Errors
    ///
    /// Returns the reason, for people, when there is no such hierarchy or the directory cannot be
    /// created.
    pub fn new() -> Result<Self, String> {
        const V1: [&str; 2] = ["memory.usage_in_bytes", "memory.limit_in_bytes"];
        const V2: [&str; 2] = ["memory.current", "memory.max"];
        let (mount, files) = match memory_v1() {
            Some(mount) => (mount, V1),
            None => {
                let mount = mount().ok_or("no cgroup v2 is mounted")?;
                // It may be so already; if it cannot be, the files are missing below.
                let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
                (mount, V2)
            }
        };
        let directory = mount.join(unique_place("m"));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let cgroup = Self { directory, files };
        match cgroup.directory.join(files[1]).exists() {
            true => Ok(cgroup),
            false => Err("cgroup v2 has no memory controller here".into()),
        }
    }

    /// Makes a command start its program as a member.
    ///
    /// # Panics
    ///
    /// Panics if the cgroup is gone.
    pub fn hold(&self, command: &mut Command) {
        let mut members = fs::OpenOptions::new();
        let members = members
            .write(true)
            .open(self.directory.join("cgroup.procs"));
        let mut members = members.expect("it was just made");
        // SAFETY: between fork and exec only the system call write is made. 0 is the writer.
        unsafe { command.pre_exec(move || members.write_all(b"0")) };
    }

    /// Returns the memory that its processes use, bytes.
    ///
    /// # Panics
    ///
    /// Panics if the cgroup is gone.
    pub fn usage(&self) -> u64 {
        let usage = fs::read_to_string(self.directory.join(self.files[0])).expect("a cgroup");
        usage.trim().parse().expect("a number")
    }

    /// Limits the memory of its processes to this many bytes; `None` lifts the limit.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses the limit, as where more is in use.
    pub fn limit(&self, bytes: Option<u64>) {
        let text = match (bytes, self.files[1]) {
            (Some(bytes), _) => bytes.to_string(),
            (None, "memory.max") => "max".into(),
            (None, _) => "-1".into(),
        };
        fs::write(self.directory.join(self.files[1]), &text)
            .unwrap_or_else(|error| panic!("a limit of {text} bytes: {error}"));
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Returns where cgroup v2 is mounted (proc_pid_mounts(5)).
fn mount() -> Option<PathBuf> {
    mount_where(|kind, _| kind == "cgroup2")
}

/// Returns where the memory controller of cgroup v1 is mounted.
fn memory_v1() -> Option<PathBuf> {
    mount_where(|kind, options| kind == "cgroup" && options.split(',').any(|o| o == "memory"))
}

/// Returns the first mount whose type and options `is_meant` accepts.
fn mount_where(is_meant: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (directory, kind, options) = (words.next()?, words.next()?, words.next()?);
        is_meant(kind, options).then(|| directory.into())
    })
}

/// Removes the cgroups whose names `selected` accepts, where no process is left in them.
pub(super) fn remove_all(selected: impl Fn(&str) -> bool) {
    for mount in [mount(), memory_v1()].into_iter().flatten() {
        for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
            if selected(&entry.file_name().to_string_lossy()) {
                remove(&entry.path());
            }
        }
    }
}
