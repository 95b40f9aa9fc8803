//! Unnamed network namespaces, held by file descriptors.

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

/// A network namespace held by a file descriptor. It disappears with its last user, also when the
/// process is killed.
#[derive(Debug)]
pub struct Namespace {
    handle: File,
}

/// Sysctls of every new namespace, below /proc/sys.
const SETTINGS: [(&str, &str); 5] = [
    // TCP buffers for 500 Mbit/s over RTTs of seconds; the kernel's defaults limit fast paths with
    // long RTTs to 4 to 6 MiB.
    ("net/ipv4/tcp_rmem", "4096 131072 67108864"),
    ("net/ipv4/tcp_wmem", "4096 16384 67108864"),
    // A connection must not reuse metrics that an earlier one has cached.
    ("net/ipv4/tcp_no_metrics_save", "1"),
    // IPv6 neighbour discovery would be noise on the link.
    ("net/ipv6/conf/all/disable_ipv6", "1"),
    ("net/ipv6/conf/default/disable_ipv6", "1"),
];

impl Namespace {
    /// Creates a network namespace. Its loopback device is up, TCP may use buffers of 64 MiB and
    /// caches no metrics of past connections, and IPv6 is off.
    ///
    /// # Errors
    ///
    /// Returns an error when the namespace cannot be created, which needs CAP_SYS_ADMIN, or when it
    /// cannot be configured.
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

    /// Makes new TCP connections of this namespace request ECN (RFC 3168). Without this they only
    /// accept it.
    ///
    /// # Errors
    ///
    /// Returns an error when the namespace cannot be entered or the kernel refuses the setting.
    pub fn request_ecn(&self) -> Result<(), LinkError> {
        self.within(|| set("net/ipv4/tcp_ecn", "1"))?
    }

    /// Sets whether TCP connections of this namespace begin anew with slow start after a pause
    /// longer than their retransmission timeout (`tcp_slow_start_after_idle`), as they do in a new
    /// namespace. The kernel leaves it to congestion controls that set their rate themselves: bbr
    /// ignores it.
    ///
    /// # Errors
    ///
    /// Returns an error when the namespace cannot be entered or the kernel refuses the setting.
    pub fn slow_start_after_idle(&self, on: bool) -> Result<(), LinkError> {
        let value = if on { "1" } else { "0" };
        self.within(|| set("net/ipv4/tcp_slow_start_after_idle", value))?
    }

    /// The network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// Returns an error when /proc cannot be read.
    pub fn current() -> Result<Self, LinkError> {
        let handle = File::open("/proc/thread-self/ns/net").map_err(failed_to("look up"))?;
        Ok(Self { handle })
    }

    /// Returns another handle of the same namespace.
    ///
    /// # Errors
    ///
    /// Returns an error when the descriptor cannot be duplicated.
    pub fn try_clone(&self) -> Result<Self, LinkError> {
        let handle = self.handle.try_clone().map_err(failed_to("hold"))?;
        Ok(Self { handle })
    }

    /// Runs `work` in a thread inside this namespace and returns its result. Sockets created there
    /// stay in the namespace wherever they are used afterwards, and so do programs started there.
    ///
    /// # Errors
    ///
    /// Returns an error when the thread cannot be created or cannot enter the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LinkError> {
        in_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// Moves the calling thread, and programs that it starts from now on, into this namespace.
    ///
    /// # Errors
    ///
    /// Returns an error when the kernel refuses, which it does without CAP_SYS_ADMIN.
    pub fn enter(&self) -> Result<(), LinkError> {
        setns(&self.handle, CloneFlags::CLONE_NEWNET).map_err(failed_to("enter"))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Runs commands of `ip` in the calling thread's namespace.
///
/// # Errors
///
/// Returns an error when `ip` cannot be started or reports an error.
pub(super) fn ip(commands: &str) -> Result<(), LinkError> {
    batch("ip", commands)
}

/// Runs commands of `tc` in the calling thread's namespace.
///
/// # Errors
///
/// Returns an error when `tc` cannot be started or reports an error.
pub(super) fn tc(commands: &str) -> Result<(), LinkError> {
    batch("tc", commands)
}

/// Runs commands of a program of iproute2.
fn batch(name: &'static str, commands: &str) -> Result<(), LinkError> {
    let failed_to_run = |error| LinkError::Program {
        program: name,
        error,
    };
    let mut program = Command::new(name)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed_to_run)?;
    if let Some(mut stdin) = program.stdin.take() {
        // When the program does not read its input, its exit status shows the failure.
        let _ = stdin.write_all(commands.as_bytes());
    }
    let output = program.wait_with_output().map_err(failed_to_run)?;
    if output.status.success() {
        return Ok(());
    }
    Err(LinkError::Configuration {
        program: name,
        commands: commands.trim().replace('\n', "; "),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Runs `work` in a thread of its own, so that a change of namespace affects no other work.
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

/// Sets a sysctl of the calling thread's namespace. Sysctls that the kernel does not have are
/// skipped.
///
/// # Errors
///
/// Returns an error when the kernel refuses the value.
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
