//! Runs a program in a process namespace of its own. When the program ends, or this process does,
//! the kernel kills everything in the namespace.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{self, Child, Command, ExitCode, ExitStatus},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use anyhow::Context;
use cc_testbed::link::{LinkError, Namespace};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Exit status when the namespace of COMMAND could not be created.
const NO_SURROUNDINGS: u8 = 125;
/// Exit status when COMMAND could not be executed, as in POSIX shells.
const NOT_EXECUTABLE: u8 = 126;
/// Exit status when COMMAND was not found, as in POSIX shells.
const NOT_FOUND: u8 = 127;

/// Signals that are forwarded to the program.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// The signals of this process: those to be forwarded, and SIGCHLD.
pub(super) struct Signals {
    source: SignalFd,
}

impl Signals {
    /// Blocks the signals, so that they do not end this process. Call
    /// this before any thread starts.
    pub(super) fn take() -> io::Result<Self> {
        let mut set = SigSet::from_iter(FORWARDED);
        set.add(Signal::SIGCHLD);
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self {
            source: SignalFd::with_flags(&set, flags)?,
        })
    }

    /// Returns the next pending signal. Signals from a terminal's keys are left out, because the
    /// terminal sends them to the program too, which is in the same process group.
    pub(super) fn next(&self) -> io::Result<Option<Signal>> {
        while let Some(info) = self.source.read_signal()? {
            let signal = Signal::try_from(info.ssi_signo as i32)?;
            if signal == Signal::SIGCHLD || info.ssi_code <= 0 {
                return Ok(Some(signal));
            }
        }
        Ok(None)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// A running program with a process namespace of its own.
pub(in crate::cli) struct Contained {
    init: Child,
    /// The thread that started the program and must outlive it, and the channel
    /// that keeps the thread alive.
    home: Option<(JoinHandle<()>, mpsc::Sender<()>)>,
}

impl Contained {
    /// Starts `program`, which must call [`run`], in a network namespace. It is
    /// killed when this process ends.
    pub(in crate::cli) fn spawn(program: Command, network: &Namespace) -> anyhow::Result<Self> {
        let network = network.try_clone()?;
        let (report, started) = mpsc::channel();
        let (keep, kept) = mpsc::channel();
        // The kernel ties the child's life to the thread that forked it, and a thread whose
        // children have a new process namespace cannot start threads. Hence a thread for this
        // purpose alone.
        let thread = thread::Builder::new()
            .name("home of init".into())
            .spawn(move || {
                if report.send(spawn_here(program, &network)).is_ok() {
                    // Returns when the other side of the channel is dropped.
                    let _: Result<(), _> = kept.recv();
                }
            })
            .context("cannot start a thread")?;
        let init = started
            .recv()
            .context("the thread answers before it ends")??;
        Ok(Self {
            init,
            home: Some((thread, keep)),
        })
    }

    /// Returns the program's exit status, or `None` while it is running.
    pub(in crate::cli) fn try_wait(&mut self) -> anyhow::Result<Option<ExitCode>> {
        let status = self.init.try_wait().context("cannot wait for COMMAND")?;
        Ok(status.map(|status| ExitCode::from(exit_status(status))))
    }

    /// Forwards a signal to the program.
    pub(super) fn forward(&self, signal: Signal) {
        // The program may have ended already.
        let _ = kill(Pid::from_raw(self.init.id() as i32), signal);
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        // Without effect if the program has ended already.
        let _ = self.init.kill();
        let _ = self.init.wait();
        if let Some((thread, keep)) = self.home.take() {
            drop(keep);
            let _ = thread.join();
        }
    }
}

/// Body of the namespace's first process: runs the program, forwards signals to it, reaps orphaned
/// processes, and ends with the program, which ends the namespace.
pub(super) fn run(command: &[OsString]) -> anyhow::Result<ExitCode> {
    if process::id() != 1 {
        anyhow::bail!("--as-init is for this program's own use");
    }
    let signals = SigSet::from_iter(FORWARDED.into_iter().chain([Signal::SIGCHLD]));
    signals.thread_block()?;
    let source = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    if let Err(error) = show_own_processes() {
        eprintln!("error: cannot mount /proc for COMMAND: {error} (needs CAP_SYS_ADMIN)");
        return Ok(ExitCode::from(NO_SURROUNDINGS));
    }
    let (name, arguments) = command.split_first().context("no COMMAND")?;
    let mut program = Command::new(name);
    program.args(arguments);
    // SAFETY: between fork and exec only the system call sigprocmask is made.
    unsafe { program.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) };
    let program = match program.spawn() {
        Ok(program) => Pid::from_raw(program.id() as i32),
        Err(error) => return Ok(explain(Path::new(name), &error)),
    };
    loop {
        if let Some(status) = reap(program)? {
            return Ok(ExitCode::from(status));
        }
        let info = match source.read_signal() {
            Ok(Some(info)) => info,
            Ok(None) | Err(Errno::EINTR) => continue,
            Err(error) => return Err(error).context("cannot read signals"),
        };
        // As in `Signals::next`.
        if info.ssi_code <= 0 && info.ssi_signo as i32 != Signal::SIGCHLD as i32 {
            let _ = kill(program, Signal::try_from(info.ssi_signo as i32)?);
        }
    }
}

fn spawn_here(mut program: Command, network: &Namespace) -> anyhow::Result<Child> {
    network.enter()?;
    unshare(CloneFlags::CLONE_NEWPID).map_err(|error| LinkError::Namespace {
        action: "make a process namespace beside",
        error: error.into(),
    })?;
    let us = watch_this_process().context("cannot watch our own process (Linux 5.3 or newer)")?;
    // SAFETY: between fork and exec only the system calls prctl and poll are made.
    unsafe {
        program.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut ended = libc::pollfd {
                fd: us.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // A parent that ended before the call above will not send the signal.
            match libc::poll(&mut ended, 1, 0) {
                0 => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
    program
        .spawn()
        .context("cannot start our own program again (/proc/self/exe)")
}

/// Returns a descriptor that becomes readable when this process has ended (pidfd_open(2)).
fn watch_this_process() -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } {
        // SAFETY: the kernel has just created this descriptor for us.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mounts a /proc that shows the processes of this namespace, visible to this
/// process and its descendants only.
fn show_own_processes() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none)
}

/// Reaps the ended children; returns the program's status if it is among them.
fn reap(program: Pid) -> nix::Result<Option<u8>> {
    loop {
        let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, status)) => (pid, status as u8),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as u8),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(error) => return Err(error),
        };
        if pid == program {
            return Ok(Some(status));
        }
    }
}

fn explain(name: &Path, error: &io::Error) -> ExitCode {
    let name = name.display();
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!("error: COMMAND not found: {name} (is it installed and in PATH?)");
        return ExitCode::from(NOT_FOUND);
    }
    eprintln!("error: cannot run {name}: {error}");
    ExitCode::from(NOT_EXECUTABLE)
}

fn exit_status(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => NO_SURROUNDINGS,
    }
}
