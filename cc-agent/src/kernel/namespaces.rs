//! The other network namespaces of this host, and their default congestion controls.

use std::{
    collections::HashSet,
    fmt, fs,
    fs::File,
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// The sysctl of the default, in the network namespace of the thread that opens it.
pub(super) const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// Where `ip netns` keeps namespaces that need no process.
const NAMED: &str = "/run/netns";

/// The inode number of this thread's network namespace, which identifies it until the next boot.
pub(super) fn own() -> Option<u64> {
    fs::metadata(OWN).ok().map(|found| found.ino())
}

/// What was done about the namespaces whose default was the one searched for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Repaired {
    /// A process or file of each namespace that has another default now, and that default.
    pub(super) changed: Vec<(String, String)>,
    /// A process or file of each namespace that could not be changed, and the reason.
    pub(super) refused: Vec<(String, String)>,
    /// Processes and files whose namespace could not be seen or entered.
    pub(super) hidden: usize,
    /// Whether the time was up before all namespaces had been looked at.
    pub(super) unfinished: bool,
}

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (place, default) in &self.changed {
            parts.push(format!("the default of {place} is {default} again"));
        }
        for (place, reason) in &self.refused {
            parts.push(format!("{place} could not be changed: {reason}"));
        }
        if self.hidden > 0 {
            parts.push(format!(
                "those of {} processes cannot be looked into, which takes CAP_SYS_PTRACE and \
                 CAP_SYS_ADMIN: run `cc-agent restore` as root",
                self.hidden
            ));
        }
        if self.unfinished {
            parts.push("there was no time to look at all: run `cc-agent restore`".into());
        }
        f.write_str(&parts.join("; "))
    }
}

impl Repaired {
    /// Whether every namespace was seen and none is left with the default searched for.
    pub(super) fn is_complete(&self) -> bool {
        self.refused.is_empty() && self.hidden == 0 && !self.unfinished
    }
}

/// Finds the other network namespaces whose default congestion control is `name`, and gives each
/// the first of `candidates` that it takes. Stops looking after `limit`.
///
/// Namespaces are found by their processes and in [`NAMED`]; one that only a descriptor or a socket
/// keeps alive is not found.
pub(super) fn repair(name: &str, candidates: &[String], limit: Duration) -> Repaired {
    let found = Arc::new(Mutex::new(Repaired::default()));
    let progress = Arc::clone(&found);
    let (name, candidates) = (name.to_owned(), candidates.to_vec());
    let (done, finished) = mpsc::channel();
    // A thread of its own, as it ends up in another namespace.
    let spawned = thread::Builder::new()
        .name("namespaces".into())
        .spawn(move || {
            repair_each(&name, &candidates, &progress);
            let _ = done.send(());
        });
    let unfinished = spawned.is_err() || finished.recv_timeout(limit).is_err();
    let found = std::mem::take(&mut *lock(&found));
    Repaired {
        unfinished,
        ..found
    }
}

fn repair_each(name: &str, candidates: &[String], progress: &Mutex<Repaired>) {
    let mut seen: HashSet<u64> = own().into_iter().collect();
    for (place, path) in places() {
        let file = match open(&path) {
            Ok(Some((file, inode))) if seen.insert(inode) => file,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                lock(progress).hidden += 1;
                continue;
            }
            // Seen before, ended meanwhile, or no namespace.
            _ => continue,
        };
        match repair_one(&file, name, candidates) {
            Ok(None) => {}
            Err(Refused::Entering) => lock(progress).hidden += 1,
            Ok(Some(default)) => lock(progress).changed.push((place, default)),
            Err(Refused::Changing(error)) => {
                lock(progress).refused.push((place, error.to_string()));
            }
        }
    }
}

/// A process or file of each namespace, with the path by which it can be opened.
fn places() -> impl Iterator<Item = (String, PathBuf)> {
    let names = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = names("/proc").filter(is_pid).map(|pid| {
        let path = Path::new("/proc").join(&pid).join("ns/net");
        (format!("process {pid}"), path)
    });
    let files = names(NAMED).map(|name| {
        let path = Path::new(NAMED).join(name);
        (path.display().to_string(), path)
    });
    processes.chain(files)
}

/// Opens a namespace; `None` where there is something else.
fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    /// `NSFS_MAGIC` (include/uapi/linux/magic.h).
    const NSFS: rustix::fs::FsWord = 0x6e73_6673;
    let mut options = fs::OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let system = rustix::fs::fstatfs(&file)?;
    let inode = file.metadata()?.ino();
    Ok((system.f_type == NSFS).then_some((file, inode)))
}

/// Why the default of a namespace is what it was.
enum Refused {
    /// This process may not enter it.
    Entering,
    /// Its default could not be read or written.
    Changing(io::Error),
}

/// Enters a namespace and replaces its default where it is `name`. Returns the new one.
fn repair_one(
    namespace: &File,
    name: &str,
    candidates: &[String],
) -> Result<Option<String>, Refused> {
    // SAFETY: has no pointers; only this thread, which does nothing else, changes its namespace.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        return Err(Refused::Entering);
    }
    let present = fs::read_to_string(DEFAULT).map_err(Refused::Changing)?;
    if present.trim() != name {
        return Ok(None);
    }
    let mut refused = io::ErrorKind::NotFound.into();
    for candidate in candidates {
        match fs::write(DEFAULT, candidate) {
            Ok(()) => return Ok(Some(candidate.clone())),
            Err(error) => refused = error,
        }
    }
    Err(Refused::Changing(refused))
}

fn lock(progress: &Mutex<Repaired>) -> std::sync::MutexGuard<'_, Repaired> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_is_found() {
        let own = own().expect("/proc is mounted");
        let path = Path::new("/proc").join(std::process::id().to_string());
        let (_, inode) = open(&path.join("ns/net"))
            .expect("it is ours")
            .expect("a namespace");
        assert_eq!(inode, own);
        assert!(
            open(Path::new("/proc/self/status"))
                .expect("opens")
                .is_none()
        );
    }

    #[test]
    fn a_name_that_nobody_uses_changes_nothing() {
        let found = repair("no_such_name", &[], Duration::from_secs(60));
        assert_eq!(found.changed, []);
        assert!(!found.unfinished);
    }

    #[test]
    fn what_was_left_is_said_with_the_remedy() {
        let found = Repaired {
            changed: vec![("process 7".into(), "bbr".into())],
            refused: vec![("/run/netns/a".into(), "read-only".into())],
            hidden: 3,
            unfinished: true,
        };
        let text = found.to_string();
        for part in [
            "the default of process 7 is bbr again",
            "/run/netns/a could not be changed: read-only",
            "of 3 processes cannot be looked into",
            "`cc-agent restore`",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!found.is_complete() && Repaired::default().is_complete());
    }
}
