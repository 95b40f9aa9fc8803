//! Network namespaces without names.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use nix::sched::{CloneFlags, setns, unshare};

use super::LinkError;

/// A network namespace that a descriptor keeps: it goes with its last user, also when the process is killed.
#[derive(Debug)]
pub struct Namespace {
    handle: File,
}

/// What every new namespace is set to, below /proc/sys.
const SETTINGS: [(&str, &str); 5] = [
    // Windows for 500 Mbit/s over seconds; the kernel's own limit stops fast long paths at 4 to 6 MiB.
    ("net/ipv4/tcp_rmem", "4096 131072 67108864"),
    ("net/ipv4/tcp_wmem", "4096 16384 67108864"),
    // What one connection learnt must not shape the next.
    ("net/ipv4/tcp_no_metrics_save", "1"),
    // Its neighbour discovery would be noise on the link.
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
];

impl Namespace {
    /// A new one: its loopback is up, TCP may use buffers of 64 MiB and remembers nothing of past connections, and
    /// IPv6 is off. Needs CAP_SYS_ADMIN.
    pub fn new() -> Result<Self, LinkError> {
        in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(failed_to("make"))?;
            for (key, value) in SETTINGS {
                set(key, value)?;
            }
            ip("link set lo up\n")?;
            Self::current()
        })
    }

    /// The calling thread's.
    pub fn current() -> Result<Self, LinkError> {
        let handle = File::open("/proc/thread-self/ns/net").map_err(failed_to("look up"))?;
        Ok(Self { handle })
    }

    /// Another handle of the same namespace.
    pub fn try_clone(&self) -> Result<Self, LinkError> {
        let handle = self.handle.try_clone().map_err(failed_to("hold"))?;
        Ok(Self { handle })
    }

    /// Does `work` in a thread that is in this namespace. Sockets made there stay in it wherever they are used
    /// afterwards, and so do the programs that it starts.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LinkError> {
        in_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// Moves the calling thread, and what it starts from now on, into this namespace.
    pub fn enter(&self) -> Result<(), LinkError> {
        setns(&self.handle, CloneFlags::CLONE_NEWNET).map_err(failed_to("enter"))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Gives commands to iproute2, in the calling thread's namespace.
pub(super) fn ip(commands: &str) -> Result<(), LinkError> {
    let mut program = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(LinkError::Program)?;
    if let Some(mut stdin) = program.stdin.take() {
        // A refusal to read shows in the exit status.
        let _ = stdin.write_all(commands.as_bytes());
    }
    let output = program.wait_with_output().map_err(LinkError::Program)?;
    if output.status.success() {
        return Ok(());
    }
    Err(LinkError::Configuration {
        commands: commands.trim().replace('\n', "; "),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// The thread that changes namespace is a thread of its own, so that no other work finds itself elsewhere.
fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, LinkError> + Send) -> Result<T, LinkError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("namespace".into())
            .spawn_scoped(scope, work)
            .map_err(LinkError::Thread)?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Sets a sysctl of the calling thread's namespace. What the kernel does not have needs no setting.
pub(super) fn set(key: &str, value: &str) -> Result<(), LinkError> {
    let path = Path::new("/proc/sys").join(key);
    match fs::write(&path, value) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(LinkError::Setting { path, error })
        }
        _ => Ok(()),
    }
}

fn failed_to<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> LinkError {
    move |error| LinkError::Namespace {
        action,
        error: error.into(),
    }
}
