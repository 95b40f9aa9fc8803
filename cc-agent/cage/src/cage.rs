//! The agent's side of a child: starting it, loading its policy, and ending it.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::FileExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use cc_core::policy::{Choice, DEFAULT_POLICY, PolicySpec, Query};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
};
use sha2::{Digest, Sha256};

use crate::{
    child::{LONGEST_TEXT, SUBCOMMAND, layout},
    connection::{Connection, Fault, Received, Wire, receive},
    job::{Job, JobHeader, Loaded, Report},
    message::Message,
    region::{Region, sealed_file},
};

/// The shared memory for batches, bytes. Pages that no batch reaches take no memory.
const BATCHES: u64 = 32 << 20;

/// The memory for what the child writes to standard error, bytes.
const LOG: u64 = 4_096;

/// Time within which a process is gone once its socket has closed.
const ENDING: Duration = Duration::from_millis(50);

/// The executable that becomes a child.
#[derive(Clone, Debug)]
pub struct Program {
    /// The path of the executable file.
    pub path: PathBuf,
    /// Its first arguments; those of [`crate::run`] follow.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// The executable of this process, which must call [`crate::run`] when its first argument is
    /// [`SUBCOMMAND`]. An executable that was replaced on the disk meanwhile is still the same.
    pub fn this() -> Self {
        Self {
            path: "/proc/self/exe".into(),
            arguments: vec![SUBCOMMAND.into()],
        }
    }
}

/// The limits of a child.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory that it may take, bytes.
    pub memory: u64,
    /// Time within which it must have loaded the policy and tried it out.
    pub load: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            load: Duration::from_secs(30),
        }
    }
}

/// Why there is no child with the policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CageError {
    /// The process cannot be started.
    #[error(
        "no process can be started for the policy: {0}; it needs /proc and room for a process, or \
         run without this protection with --no-cage"
    )]
    Start(#[from] io::Error),
    /// The policy is refused; says why.
    #[error("{0}")]
    Refused(String),
    /// Loading the policy takes longer than this.
    #[error(
        "loading it took longer than {} s, and was ended; use a smaller policy",
        .0.as_secs_f64()
    )]
    Late(Duration),
    /// The process ended or misbehaved while it loaded the policy.
    #[error(
        "loading it failed, {fault}; a policy may take {} MB of memory",
        memory / 1_000_000
    )]
    Fault {
        /// What happened to the process.
        fault: Fault,
        /// Memory that it may take, bytes.
        memory: u64,
    },
}

/// A policy in a child. Dropping it ends the child.
pub struct Cage {
    process: Process,
    connection: Connection,
    loaded: Loaded,
}

impl Cage {
    /// Starts a child of `program`, and waits until it has loaded the policy and tried it out.
    ///
    /// The child is killed when the calling thread ends, so this thread must outlive it.
    ///
    /// # Errors
    ///
    /// Returns an error when the process cannot be started, when it refuses the policy, and when it
    /// ends, misbehaves or takes too long.
    pub fn start(program: &Program, job: &Job, limits: &Limits) -> Result<Self, CageError> {
        let deadline = Instant::now() + limits.load;
        let memory = job_file(job)?;
        let region = Region::map(&memory)?;
        let (socket, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(io::Error::from)?;
        let mut process = Process::start(program, limits, theirs, memory)?;
        let fault = |fault| CageError::Fault {
            fault,
            memory: limits.memory,
        };
        let message = loop {
            match receive(&socket).map_err(fault)? {
                Received::Nothing => {}
                Received::End => return Err(fault(process.ended())),
                Received::Message(message) => break message,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CageError::Late(limits.load));
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            // What interrupts the wait is found by the next look.
            let _ = poll(
                &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)],
                timeout,
            );
        };
        let text = |length: u32| {
            region
                .read_text(length as usize, LONGEST_TEXT)
                .ok_or_else(|| fault(Fault::Protocol(format!("a text of {length} bytes"))))
        };
        let loaded = match message {
            Message::Refused { length } => {
                return Err(CageError::Refused(printable(&text(length)?)));
            }
            Message::Loaded { length } => {
                let report: Result<Report, _> = serde_json::from_slice(&text(length)?);
                report
                    .map_err(|error| error.to_string())
                    .and_then(|report| check(report, job))
                    .map_err(|error| fault(Fault::Protocol(printable(error.as_bytes()))))?
            }
            other => return Err(fault(Fault::Protocol(format!("it sent {other:?}")))),
        };
        let layout = layout(&loaded.interface, loaded.file.as_ref(), &region).ok_or_else(|| {
            CageError::Refused("its queries are too large; use a smaller state or history".into())
        })?;
        Ok(Self {
            process,
            connection: Connection::new(Wire { socket, region }, layout),
            loaded,
        })
    }

    /// The policy as it was loaded.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Process id of the child.
    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// The largest number of queries that one batch may have.
    pub fn rows(&self) -> usize {
        self.connection.layout.rows()
    }

    /// Sends a batch of at most [`Self::rows`] queries to the child, whose former batch must have
    /// been answered.
    ///
    /// # Errors
    ///
    /// Returns an error when the child is gone; [`Self::poll_answer`] then says how it ended.
    pub fn ask(&mut self, queries: &[Query]) -> io::Result<()> {
        self.connection.ask(queries)
    }

    /// Takes the choices for the batch of these queries and moves the queries on, as
    /// [`cc_core::policy::Policy::decide`] does; `None` when the child has not answered yet. The
    /// descriptor of this cage becomes readable when there is more to learn.
    ///
    /// # Errors
    ///
    /// Returns an error when the child has ended or broken the protocol: this cage is of no use
    /// any more.
    pub fn poll_answer(&mut self, queries: &mut [Query]) -> Result<Option<Vec<Choice>>, Fault> {
        self.connection
            .poll_answer(queries)
            .map_err(|fault| fault.unwrap_or_else(|| self.process.ended()))
    }

    /// Gives the child the niceness of the calling thread.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error; lowering the niceness needs CAP_SYS_NICE.
    pub fn take_niceness(&self) -> io::Result<()> {
        // SAFETY: neither call has pointers.
        let set = unsafe {
            let own = libc::getpriority(libc::PRIO_PROCESS, 0);
            libc::setpriority(libc::PRIO_PROCESS, self.pid(), own)
        };
        match set {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Cage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.link.socket.as_fd()
    }
}

/// The shared memory, with the job in it.
fn job_file(job: &Job) -> io::Result<File> {
    let header = serde_json::to_vec(&JobHeader::of(job))?;
    let lengths = [header.len() as u64, job.file.len() as u64];
    let file = sealed_file(c"cc-policy", BATCHES.max(16 + lengths[0] + lengths[1]))?;
    file.write_all_at(&lengths.map(u64::to_ne_bytes).concat(), 0)?;
    file.write_all_at(&header, 16)?;
    file.write_all_at(&job.file, 16 + lengths[0])?;
    Ok(file)
}

/// What the child reports of its policy, if it can be true.
fn check(report: Report, job: &Job) -> Result<Loaded, String> {
    let file = match job.policy {
        PolicySpec::Default => DEFAULT_POLICY,
        _ => &job.file,
    };
    report.check(job, file.len(), || format!("{:x}", Sha256::digest(file)))
}

/// A text of the child for people: one line of at most 1000 characters, without control characters.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ").chars().take(1_000).collect()
}

/// The child's process, killed when it is dropped.
struct Process {
    child: Child,
    log: File,
}

impl Process {
    fn start(
        program: &Program,
        limits: &Limits,
        socket: OwnedFd,
        memory: File,
    ) -> io::Result<Self> {
        let log = sealed_file(c"cc-policy-log", LOG)?;
        let child = Command::new(&program.path)
            .arg0("cc-agent")
            .args(&program.arguments)
            .arg(std::process::id().to_string())
            .arg(limits.memory.to_string())
            .env_clear()
            .stdin(socket)
            .stdout(Stdio::from(memory))
            .stderr(Stdio::from(log.try_clone()?))
            // Out of reach of a terminal's Ctrl-C. A session of its own would be a scheduling group
            // of its own, in which the agent's niceness counts for nothing.
            .process_group(0)
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Says how the process ended, which it does or has done.
    fn ended(&mut self) -> Fault {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if start.elapsed() < ENDING => thread::sleep(ENDING / 50),
                _ => break None,
            }
        };
        let Some(status) = status else {
            return Fault::Protocol("it closed its socket".into());
        };
        let mut log = vec![0; LOG as usize];
        let read = self.log.read_at(&mut log, 0).unwrap_or(0);
        let log = log[..read].split(|byte| *byte == 0).next();
        let words = printable(log.unwrap_or_default());
        let how = how(status);
        Fault::Ended(match words.is_empty() {
            true => how,
            false => format!("{how}: {words}"),
        })
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(libc::SIGKILL), _) => "was killed, perhaps for its use of memory".into(),
        (Some(libc::SIGABRT), _) => "aborted".into(),
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (_, Some(code)) => format!("ended with status {code}"),
        _ => "ended".into(),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // Freeing much memory takes a while, for which nobody shall wait.
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        let wait = move || {
            // The outcome is of no interest: it was killed.
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None);
        };
        let _ = thread::Builder::new().name("reaper".into()).spawn(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_writes_is_one_line() {
        let text = printable(b"memory\x1b[31m of\n\n 5 \xff bytes\r");
        assert_eq!(text, "memory [31m of 5 \u{fffd} bytes");
        assert_eq!(printable(&[b'x'; 5_000]).len(), 1_000);
    }
}
