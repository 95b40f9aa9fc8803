//! A client of a running agent's Unix socket: gets its [`Snapshot`] and sends it commands.
//!
//! All functions block, each for a limited time. When there is no answer the error names the cause
//! and the remedy.
//!
//! ```no_run
//! use cc_client::{command, fetch};
//! use cc_core::status::{Command, default_socket};
//!
//! let socket = default_socket("rlcc");
//! let status = fetch(&socket)?;
//! println!("{} serves {} flows with {}", status.name, status.live_flows, status.policy);
//!
//! let file = "/var/lib/cc-agent/policy.onnx".into();
//! let outcome = command(&socket, Command::Reload { file })?;
//! println!("{outcome}");
//! # Ok::<(), cc_client::StatusError>(())
//! ```

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::FileTypeExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cc_core::status::{Command, Reply, Request, Snapshot, TracedWindow, default_socket};
use socket2::{Domain, SockAddr, Socket, Type};

/// Time within which the status must come: longer than the clients served before can delay it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
/// Time within which a command must be done: a large policy is read and tried out first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Length of the longest answer that a client accepts, bytes.
pub const LONGEST_ANSWER: usize = 16 << 20;

/// Why an agent gave no answer, or why it cannot have its socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// There is no socket at this path.
    #[error(
        "{} no socket at {}; start the agent with `cc-agent run`, or name another one with --name \
         or --socket",
        no_agent(.0),
        .0.display()
    )]
    NotRunning(PathBuf),
    /// There is a socket at this path, but no process listens on it.
    #[error(
        "{} the socket {} is left from one that ended without removing it; start the agent with \
         `cc-agent run`",
        no_agent(.0),
        .0.display()
    )]
    Dead(PathBuf),
    /// A process listens on the socket at this path, but did not answer in time.
    #[error(
        "the agent at {} did not answer in time; it may be stopped or overloaded",
        .0.display()
    )]
    Silent(PathBuf),
    /// The answer is not one of an agent of this version.
    #[error(
        "what answers at {} sent no status of a cc-agent of this version: {reason}",
        path.display()
    )]
    NotAStatus {
        /// Path of the socket that was asked.
        path: PathBuf,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The agent refused the command, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The file at this path is not a socket.
    #[error("{} is not a socket; choose another place with --socket", .0.display())]
    NotASocket(PathBuf),
    /// A system call on the socket or its directory failed.
    #[error("{what} {}: {source}{}", path.display(), hint(what, .source))]
    System {
        /// The attempted operation, to be followed by the path.
        what: &'static str,
        /// Path of the socket or its directory.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
}

impl StatusError {
    /// Returns a function that turns the error of a system call into [`Self::System`]. `what` is
    /// the attempted operation on `path`, as in "creating the socket".
    pub fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System {
            what,
            path: path.to_owned(),
            source,
        }
    }
}

/// Gets a snapshot from the agent that listens at `path`, within three seconds.
///
/// # Errors
///
/// Returns an error when no agent listens there, or when it does not answer with a snapshot in
/// time.
pub fn fetch(path: &Path) -> Result<Snapshot, StatusError> {
    fetch_within(path, STATUS_TIMEOUT)
}

/// Sends a command to the agent that listens at `path`, and waits up to a minute until it is
/// carried out. Returns what was done, in a line.
///
/// # Errors
///
/// Returns an error when no agent listens there, when it does not answer in time, or when it
/// refuses the command, after which it goes on as before.
pub fn command(path: &Path, command: Command) -> Result<String, StatusError> {
    let answer = ask(path, &Request::Command(command), COMMAND_TIMEOUT)?;
    match serde_json::from_slice(&answer) {
        Ok(Reply::Done(text)) => Ok(text),
        Ok(Reply::Refused(reason)) => Err(StatusError::Refused(reason)),
        Err(error) => Err(StatusError::NotAStatus {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// Gets a snapshot as [`fetch`] does, within `timeout`.
///
/// # Errors
///
/// Returns the same errors as [`fetch`].
pub fn fetch_within(path: &Path, timeout: Duration) -> Result<Snapshot, StatusError> {
    let answer = ask(path, &Request::Status, timeout)?;
    serde_json::from_slice(&answer).map_err(|error| StatusError::NotAStatus {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Gets a snapshot as [`fetch_within`] does, with the flows that come first in the order of this
/// name, of all that the filter shows. Both are as `cc-agent top` has them, with cgroups by their
/// ids.
///
/// # Errors
///
/// Returns the same errors as [`fetch`], and [`StatusError::Refused`] when the agent does not know
/// the order or the filter, or is too old to know any.
pub fn fetch_flows(
    path: &Path,
    order: &str,
    filter: &str,
    timeout: Duration,
) -> Result<Snapshot, StatusError> {
    let request = Request::Flows {
        order: order.into(),
        filter: filter.into(),
    };
    let answer = ask(path, &request, timeout)?;
    serde_json::from_slice(&answer).map_err(|error| match serde_json::from_slice(&answer) {
        Ok(Reply::Refused(reason)) => StatusError::Refused(reason),
        _ => StatusError::NotAStatus {
            path: path.to_owned(),
            reason: error.to_string(),
        },
    })
}

/// Follows a flow of the agent that listens at `path`: calls `tell` with each of its windows, until
/// the flow closes, the agent ends, or `tell` returns false. Waits as long as that takes.
///
/// # Errors
///
/// Returns an error when no agent listens there, or when it refuses, for example because the flow
/// is not open.
pub fn trace(
    path: &Path,
    (slot, generation): (u32, u32),
    mut tell: impl FnMut(&TracedWindow) -> bool,
) -> Result<(), StatusError> {
    let failed = |error| StatusError::failed("asking the agent at", path)(error);
    let mut stream = connect(path, STATUS_TIMEOUT)?;
    let request = serde_json::to_vec(&Request::Trace { slot, generation });
    let mut line = request.map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(failed)?;
        match serde_json::from_str(&line) {
            Ok(window) if tell(&window) => {}
            Ok(_) => break,
            Err(error) => {
                return Err(match serde_json::from_str(&line) {
                    Ok(Reply::Refused(reason)) => StatusError::Refused(reason),
                    _ => StatusError::NotAStatus {
                        path: path.to_owned(),
                        reason: error.to_string(),
                    },
                });
            }
        }
    }
    Ok(())
}

/// Sends a request to the agent at `path` and returns the line that it answers.
fn ask(path: &Path, request: &Request, timeout: Duration) -> Result<Vec<u8>, StatusError> {
    let deadline = Instant::now() + timeout;
    let mut stream = connect(path, timeout)?;
    let mut line = serde_json::to_vec(request)
        .map_err(|error| StatusError::failed("asking the agent at", path)(error.into()))?;
    line.push(b'\n');
    // A server that does not read requests may answer all the same.
    let _ = stream.write_all(&line);
    let mut answer = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    while !answer.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        let read = match left {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            _ => stream
                .set_read_timeout(Some(left))
                .and_then(|()| stream.read(&mut chunk)),
        };
        match read {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(no_answer(path, error)),
        }
        if answer.len() > LONGEST_ANSWER {
            return Err(StatusError::NotAStatus {
                path: path.to_owned(),
                reason: format!("it is longer than {LONGEST_ANSWER} bytes"),
            });
        }
    }
    Ok(answer)
}

/// Connects to the agent that listens at `path`, within `timeout`, which holds for each write too.
///
/// # Errors
///
/// Returns an error when no agent listens there, or does not take the connection in time.
pub fn connect(path: &Path, timeout: Duration) -> Result<UnixStream, StatusError> {
    let connected = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The time limit applies to connecting too, which waits while the backlog is full
        // (unix(7)).
        socket.set_write_timeout(Some(timeout))?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    };
    connected().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => StatusError::NotRunning(path.to_owned()),
        // The kernel refuses with this error for every file that is not a listening socket.
        io::ErrorKind::ConnectionRefused if !is_socket(path) => {
            StatusError::NotASocket(path.to_owned())
        }
        io::ErrorKind::ConnectionRefused => StatusError::Dead(path.to_owned()),
        _ => no_answer(path, error),
    })
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn no_answer(path: &Path, error: io::Error) -> StatusError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => StatusError::Silent(path.to_owned()),
        _ => StatusError::failed("asking the agent at", path)(error),
    }
}

/// The beginning of the message of an error for a path where no process listens.
fn no_agent(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if path == default_socket(&name) {
        format!("no agent is running as {name}:")
    } else {
        "no agent is running there:".into()
    }
}

/// The remedy for `source`, the error of the operation `what`.
fn hint(what: &str, source: &io::Error) -> &'static str {
    match source.kind() {
        // By then an agent has no capability left that would pass over the directory's mode.
        io::ErrorKind::PermissionDenied if what.starts_with("creating") => {
            " (the agent's user must be allowed to write to the directory by its mode, which holds \
             for root too; or choose another place with --socket)"
        }
        io::ErrorKind::PermissionDenied => {
            " (run as root or as a member of the group that owns it)"
        }
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::ReadOnlyFilesystem => " (choose another place with --socket)",
        io::ErrorKind::InvalidInput => " (a socket's path has at most 107 bytes)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use tempfile::TempDir;

    use super::*;

    /// Serves one client: sends `answer` whatever it asks, and returns the client's error.
    fn error_for(answer: Vec<u8>) -> StatusError {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("rlcc.sock");
        let listener = UnixListener::bind(&path).expect("binds");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            let mut request = [0; 64];
            let _ = stream.read(&mut request);
            // The client disconnects when an answer is too long.
            let _ = stream.write_all(&answer);
        });
        let error = fetch_within(&path, Duration::from_secs(60)).expect_err("not a status");
        server.join().expect("does not panic");
        error
    }

    #[test]
    fn answers_that_are_not_a_status_are_refused() {
        for (answer, part) in [
            (b"hello\n".to_vec(), "expected value"),
            (b"{}\n".to_vec(), "missing field"),
            (Vec::new(), "EOF"),
            (vec![b' '; LONGEST_ANSWER + 1], "longer than"),
        ] {
            let error = error_for(answer).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_refused_permission_is_explained_for_agent_and_client() {
        let refused = || io::ErrorKind::PermissionDenied.into();
        let path = Path::new("/here/rlcc.sock");
        let agent = StatusError::failed("creating the socket", path)(refused()).to_string();
        assert!(agent.contains("write to the directory"), "{agent}");
        let client = StatusError::failed("asking the agent at", path)(refused()).to_string();
        assert!(client.contains("member of the group"), "{client}");
    }

    #[test]
    fn the_client_gives_up_on_an_agent_that_does_not_answer() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("rlcc.sock");
        let _stopped = UnixListener::bind(&path).expect("binds");
        let error = fetch_within(&path, Duration::from_millis(20)).expect_err("silent");
        assert!(matches!(error, StatusError::Silent(_)), "{error}");
        // Clients that have given up fill the backlog; then even connecting waits.
        let kept: Vec<_> = std::iter::from_fn(|| connect(&path, Duration::from_millis(1)).ok())
            .take(10_000)
            .collect();
        assert!(kept.len() < 10_000);
        let error = fetch_within(&path, Duration::from_millis(20)).expect_err("silent");
        assert!(matches!(error, StatusError::Silent(_)), "{error}");
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = StatusError::NotRunning(default_socket("rlcc")).to_string();
        assert!(
            error.starts_with("no agent is running as rlcc: no socket at /run/cc-agent/rlcc.sock;"),
            "{error}"
        );
        let long = PathBuf::from("/tmp").join("x".repeat(200));
        let error = fetch(&long).expect_err("too long").to_string();
        assert!(error.contains("107"), "{error}");
    }
}
