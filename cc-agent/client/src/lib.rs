//! Asks a running agent over its Unix socket: for its [`Snapshot`], or to do something.
//!
//! Everything here blocks, for a few seconds at most, and says what is wrong and what helps when there is no answer.

use std::{
    fs, io,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::FileTypeExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cc_core::status::{Command, Reply, Request, Snapshot, default_socket};
use socket2::{Domain, SockAddr, Socket, Type};

/// How long a client waits for its answer: longer than those before it can hold the server up.
const CLIENT_PATIENCE: Duration = Duration::from_secs(3);
/// How long a command may take: a large policy is read and tried out first.
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer that a client takes, bytes.
pub const LONGEST_ANSWER: usize = 16 << 20;

/// Why there is no answer from an agent, or no socket for one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// No socket is there.
    #[error("{} no socket at {}; start the agent with `cc-agent run`, or name another one with --name or --socket", nobody(.0), .0.display())]
    NotRunning(PathBuf),
    /// A socket is there, but nobody listens.
    #[error("{} the socket {} is left from one that ended without removing it; start the agent with `cc-agent run`", nobody(.0), .0.display())]
    Dead(PathBuf),
    /// Somebody listens, but does not answer.
    #[error("the agent at {} did not answer in time; it may be stopped or overloaded", .0.display())]
    Silent(PathBuf),
    /// What came is no snapshot.
    #[error("what answers at {} sent no status of a cc-agent of this version: {reason}", path.display())]
    NotAStatus {
        /// The socket.
        path: PathBuf,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The agent did not do what it was told.
    #[error("{0}")]
    Refused(String),
    /// The socket's place is taken by something else.
    #[error("{} is no socket; choose another place with --socket", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{what} {}: {source}{}", path.display(), hint(.source))]
    System {
        /// What was tried.
        what: &'static str,
        /// The socket or its directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl StatusError {
    /// Makes errors of system calls that failed, from what was tried and where.
    pub fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System {
            what,
            path: path.to_owned(),
            source,
        }
    }
}

/// Gets a snapshot from the agent that listens at `path`. Blocks for a few seconds at most.
///
/// # Errors
/// When nobody listens there, or does not answer with a snapshot in time.
pub fn fetch(path: &Path) -> Result<Snapshot, StatusError> {
    fetch_within(path, CLIENT_PATIENCE)
}

/// Tells the agent that listens at `path` to do something, and waits until it is done. Returns its words.
///
/// # Errors
/// When nobody listens there, does not answer in time, or refuses: then the agent goes on as before.
pub fn command(path: &Path, command: Command) -> Result<String, StatusError> {
    let answer = ask(path, &Request::Command(command), COMMAND_PATIENCE)?;
    match serde_json::from_slice(&answer) {
        Ok(Reply::Done(text)) => Ok(text),
        Ok(Reply::Refused(reason)) => Err(StatusError::Refused(reason)),
        Err(error) => Err(StatusError::NotAStatus {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// Gets a snapshot as [`fetch`] does, and waits no longer than `patience`.
///
/// # Errors
///
/// As [`fetch`].
pub fn fetch_within(path: &Path, patience: Duration) -> Result<Snapshot, StatusError> {
    let answer = ask(path, &Request::Status, patience)?;
    serde_json::from_slice(&answer).map_err(|error| StatusError::NotAStatus {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Asks the agent at `path`, and returns its line.
fn ask(path: &Path, request: &Request, patience: Duration) -> Result<Vec<u8>, StatusError> {
    let deadline = Instant::now() + patience;
    let mut stream = connect(path, patience)?;
    let mut line = serde_json::to_vec(request)
        .map_err(|error| StatusError::failed("asking the agent at", path)(error.into()))?;
    line.push(b'\n');
    // One that does not listen may answer all the same.
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

fn connect(path: &Path, patience: Duration) -> Result<UnixStream, StatusError> {
    let connected = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Also limits connecting, which waits while the backlog is full (unix(7)).
        socket.set_write_timeout(Some(patience))?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    };
    connected().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => StatusError::NotRunning(path.to_owned()),
        // The kernel refuses so for any file that nobody listens on.
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

/// The beginning of what is said where nobody listens.
fn nobody(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if path == default_socket(&name) {
        format!("no agent is running as {name}:")
    } else {
        "no agent is running there:".into()
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
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
