//! The server of the agent's Unix socket: a client sends a request as one line of JSON, or nothing,
//! which asks for the status, and gets one line of JSON.
//!
//! Whoever may connect may read the status. Commands are for root and the agent's own user: the
//! kernel tells who has connected (`SO_PEERCRED`, unix(7)).
//!
//! The messages are defined in [`cc_core::status`]; [`cc_client`] is the client.

use std::{
    fmt, fs, io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown},
        net::{SocketAddr, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::view::{Filter, Sort};
use bytes::Bytes;
use cc_client::{StatusError, fetch};
use cc_core::{
    flows::FlowId,
    status::{Command, Outcome, Reply, Request, Snapshot, TracedWindow},
};
use nix::{
    sys::stat::{Mode, umask},
    unistd::geteuid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::unix::UCred,
    sync::{Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

/// A client's command, for the event loop to carry out.
#[derive(Debug)]
pub struct CommandRequest {
    /// What the agent shall do.
    pub command: Command,
    /// The client whose request it is.
    pub peer: Peer,
    /// Takes the outcome, for which the client waits.
    pub reply: oneshot::Sender<Outcome>,
}

/// A client that follows a flow.
#[derive(Debug)]
pub struct TraceRequest {
    /// The flow whose windows the client wants.
    pub flow: FlowId,
    /// Takes the flow's windows; dropped when the flow is not open, or closes.
    pub windows: mpsc::Sender<TracedWindow>,
}

/// A client that asks for the flows that come first in an order.
#[derive(Debug)]
pub struct FlowsRequest {
    /// What the flows are sorted by.
    pub order: Sort,
    /// The flows that are meant.
    pub filter: Filter,
    /// Takes the state of the agent with these flows.
    pub reply: oneshot::Sender<Snapshot>,
}

/// A client that is to succeed the agent.
#[derive(Debug)]
pub struct SuccessorRequest {
    /// The client, which may send commands.
    pub peer: Peer,
    /// The connection to it, on which nothing has been answered yet.
    pub stream: BufReader<tokio::net::UnixStream>,
}

/// The process that has connected to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user id when it connected.
    pub uid: u32,
    /// Its process id; `None` when it is of another PID namespace.
    pub pid: Option<i32>,
}

impl Peer {
    /// Whether it may send commands to an agent that runs as user `own`.
    fn may_command(self, own: u32) -> bool {
        self.uid == 0 || self.uid == own
    }
}

impl From<UCred> for Peer {
    fn from(peer: UCred) -> Self {
        let (uid, pid) = (peer.uid(), peer.pid());
        Self { uid, pid }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) if pid > 0 => write!(f, "uid {}, process {pid}", self.uid),
            _ => write!(f, "uid {}", self.uid),
        }
    }
}

/// Time within which a client must send its request. One that sends none gets the status.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);
/// Length of the longest request, bytes.
const LONGEST_REQUEST: u64 = 1 << 14;
/// Time within which a client must read its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Clients answered at the same time; others wait in the socket's backlog.
const CLIENTS: usize = 32;
/// Clients that wait for the outcome of a command, at most: the others are for the status.
const COMMANDING: usize = 8;
/// Clients that follow a flow, at most: the others are for the status.
const TRACING: usize = 8;
/// Windows that may wait for a client to read them; further ones are lost, and counted.
const TRACED_WINDOWS: usize = 256;
/// Time within which a command must have an outcome.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(55);

/// Why an agent cannot have its status socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process listens on the socket.
    #[error(
        "{} is in use by {owner}; stop it, or choose another socket with --socket",
        path.display()
    )]
    InUse {
        /// Path of the socket that another agent has.
        path: PathBuf,
        /// The process that listens, as far as it answers.
        owner: String,
    },
    /// Somebody else can replace files in the socket's directory.
    #[error(
        "{} is not safe for the socket of an agent that runs as root: its owner is user {owner} \
         and its mode {mode:o}; choose a directory that only root may write to with --socket",
        path.display()
    )]
    Unsafe {
        /// The directory that is not safe.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
        /// Its permission bits, in octal digits.
        mode: u32,
    },
    /// The path is taken by something that is not a socket, or a system call failed.
    #[error(transparent)]
    Place(#[from] StatusError),
}

/// The agent's end of the socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    /// The name that it gets.
    path: PathBuf,
    /// The name that it has.
    file: SocketFile,
    /// Takes the clients that follow a flow; `None` where that is not offered.
    traces: Option<mpsc::Sender<TraceRequest>>,
    /// Takes the clients that ask for flows in an order; `None` where that is not offered.
    flows: Option<mpsc::Sender<FlowsRequest>>,
    /// Takes the client that is to succeed the agent; `None` where that is not offered.
    successors: Option<mpsc::Sender<SuccessorRequest>>,
}

impl Server {
    /// Creates a socket that its owner and a group, the agent's own by default, may connect to, and
    /// the directory for it. It gets its name, and clients, by [`Self::publish`].
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::InUse`] when another process listens there, and another error when
    /// the socket cannot be created.
    pub fn prepare(path: &Path, group: Option<u32>) -> Result<Self, ServerError> {
        make_room(path)?;
        Self::draft(path, group)
    }

    /// Creates a socket as [`Self::prepare`] does, that is to take the name of a running agent's by
    /// [`Self::replace`].
    ///
    /// # Errors
    ///
    /// Returns an error when the socket cannot be created.
    pub fn draft(path: &Path, group: Option<u32>) -> Result<Self, ServerError> {
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        // No client could connect to a path that is too long.
        SocketAddr::from_pathname(path)
            .map_err(StatusError::failed("creating the socket", path))?;
        if let Some(directory) = directory {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(StatusError::failed("creating the directory", directory))?;
        }
        check_directory(directory.unwrap_or(Path::new(".")))?;
        remove_dead_drafts(directory.unwrap_or(Path::new(".")));
        // The name is short, as paths of sockets have at most 107 bytes.
        let draft = path.with_file_name(format!(".{}", std::process::id()));
        let _ = fs::remove_file(&draft);
        // It is its owner's alone until its group and mode are set.
        let others = umask(Mode::from_bits_truncate(0o177));
        let bound = UnixListener::bind(&draft);
        umask(others);
        let failed = |error| {
            let _ = fs::remove_file(&draft);
            StatusError::failed("creating the socket", path)(error)
        };
        let listener = bound.map_err(failed)?;
        let finish = || {
            listener.set_nonblocking(true)?;
            if group.is_some() {
                lchown(&draft, None, group)?;
            }
            fs::set_permissions(&draft, fs::Permissions::from_mode(0o660))?;
            Ok(fs::symlink_metadata(&draft)?.ino())
        };
        let inode = finish().map_err(failed)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            file: SocketFile {
                path: draft,
                inode,
                is_left: Arc::default(),
            },
            traces: None,
            flows: None,
            successors: None,
        })
    }

    /// Offers clients to follow a flow. What they ask for is sent to `traces`.
    pub fn offer_traces(&mut self, traces: mpsc::Sender<TraceRequest>) {
        self.traces = Some(traces);
    }

    /// Offers clients the flows that come first in an order. What they ask for is sent to `flows`.
    pub fn offer_flows(&mut self, flows: mpsc::Sender<FlowsRequest>) {
        self.flows = Some(flows);
    }

    /// Offers clients to succeed the agent. Those who may are sent to `successors`.
    pub fn offer_succession(&mut self, successors: mpsc::Sender<SuccessorRequest>) {
        self.successors = Some(successors);
    }

    /// A switch that leaves the socket's file where it is when this is dropped: it is, or will be,
    /// a successor's.
    pub fn leaver(&self) -> Leaver {
        Leaver(Arc::clone(&self.file.is_left))
    }

    /// Gives the socket its name. A socket that a killed agent has left behind is replaced.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError::InUse`] when another process listens there by now, and another error
    /// when the name is taken or cannot be given.
    pub fn publish(self) -> Result<Self, ServerError> {
        make_room(&self.path)?;
        self.replace()
    }

    /// Gives the socket its name, also when another agent's has it: one that this agent succeeds.
    ///
    /// # Errors
    ///
    /// Returns an error when the name cannot be given.
    pub fn replace(mut self) -> Result<Self, ServerError> {
        fs::rename(&self.file.path, &self.path)
            .map_err(StatusError::failed("creating the socket", &self.path))?;
        self.file.path.clone_from(&self.path);
        Ok(self)
    }

    /// Answers each client until dropped: with the latest snapshot, or with the outcome of its
    /// command, which is sent to `commands`.
    ///
    /// # Errors
    ///
    /// Returns an error when the runtime cannot watch the socket.
    pub async fn serve(
        self,
        latest: watch::Receiver<Arc<Snapshot>>,
        commands: mpsc::Sender<CommandRequest>,
    ) -> io::Result<()> {
        // Removes the socket's file when this future is dropped.
        let Self {
            listener,
            file: _file,
            traces,
            flows,
            successors,
            ..
        } = self;
        let tracing = Arc::new(Semaphore::new(TRACING));
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let commanding = Arc::new(Semaphore::new(COMMANDING));
        let mut clients = JoinSet::new();
        let mut line: Option<(Arc<Snapshot>, Bytes)> = None;
        loop {
            while clients.try_join_next().is_some() {}
            if clients.len() >= CLIENTS {
                clients.join_next().await;
            }
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely the process has no file descriptor left, which may pass.
                    tracing::warn!("the status socket could not take a client: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Serialised once per snapshot, so that many clients do not keep the agent busy.
            let snapshot = Arc::clone(&latest.borrow());
            let answer = match &line {
                Some((written, bytes)) if Arc::ptr_eq(written, &snapshot) => bytes.clone(),
                _ => {
                    let bytes = json_line(&snapshot)?;
                    line = Some((snapshot, bytes.clone()));
                    bytes
                }
            };
            let queue = Commands {
                queue: commands.clone(),
                places: Arc::clone(&commanding),
            };
            let traces = Traces {
                queue: traces.clone(),
                places: Arc::clone(&tracing),
            };
            let successors = successors.clone();
            let flows = flows.clone();
            clients.spawn(async move {
                let peer = stream.peer_cred();
                let mut stream = BufReader::new(stream);
                let answer = match request(&mut stream).await {
                    Ok(Request::Status) => answer,
                    Ok(Request::Flows { order, filter }) => {
                        match flows_of(flows, &order, &filter).await {
                            Ok(answer) => answer,
                            Err(reason) => reply(Err(reason)),
                        }
                    }
                    Ok(Request::Trace { slot, generation }) => {
                        let flow = FlowId { slot, generation };
                        match traces.follow(flow, &mut stream).await {
                            Ok(()) => return,
                            Err(reason) => reply(Err(reason)),
                        }
                    }
                    Ok(Request::Command(command)) => reply(match peer {
                        Ok(peer) => queue.perform(command, peer.into()).await,
                        Err(error) => Err(unknown(&error)),
                    }),
                    Ok(Request::TakeOver) => {
                        let refused = match peer {
                            Ok(peer) => succeed(successors, peer.into(), stream),
                            Err(error) => Err((unknown(&error), stream)),
                        };
                        match refused {
                            Ok(()) => return,
                            Err((reason, back)) => {
                                stream = back;
                                reply(Err(reason))
                            }
                        }
                    }
                    Err(reason) => reply(Err(reason)),
                };
                // A client that is too slow gets a part of its answer.
                let _ = timeout(ANSWER_TIMEOUT, stream.write_all(&answer)).await;
            });
        }
    }
}

/// The status with the flows that come first in an order, of all that a filter shows, as a line.
async fn flows_of(
    flows: Option<mpsc::Sender<FlowsRequest>>,
    order: &str,
    filter: &str,
) -> Result<Bytes, String> {
    let (reply, answer) = oneshot::channel();
    let request = FlowsRequest {
        order: order.parse()?,
        filter: filter.parse()?,
        reply,
    };
    let busy = || "the agent is ending, or does not tell of its flows in an order".to_owned();
    let flows = flows.ok_or_else(busy)?;
    flows.send(request).await.map_err(|_| busy())?;
    let answer = answer.await.map_err(|_| busy())?;
    json_line(&answer).map_err(|error| error.to_string())
}

/// What is said to a client of whom the kernel does not tell who it is.
fn unknown(error: &io::Error) -> String {
    format!("who sent the command is not known: {error}")
}

/// Sends a client that is to succeed the agent to the event loop, with its connection. Returns the
/// connection and the reason when that is refused.
fn succeed(
    successors: Option<mpsc::Sender<SuccessorRequest>>,
    peer: Peer,
    stream: BufReader<tokio::net::UnixStream>,
) -> Result<(), (String, BufReader<tokio::net::UnixStream>)> {
    if !peer.may_command(geteuid().as_raw()) {
        tracing::warn!("{peer} is refused: it asks to take over");
        let reason = format!(
            "user {} may read the status, but taking over is for root and the agent's own user",
            peer.uid
        );
        return Err((reason, stream));
    }
    let busy = || "the agent is ending, or another process is taking over".to_owned();
    let Some(successors) = successors else {
        return Err((busy(), stream));
    };
    let request = SuccessorRequest { peer, stream };
    successors
        .try_send(request)
        .map_err(|error| (busy(), error.into_inner().stream))
}

/// Reads a client's request: one line of JSON, or nothing.
async fn request(stream: &mut BufReader<tokio::net::UnixStream>) -> Result<Request, String> {
    let mut line = Vec::new();
    let mut limited = stream.take(LONGEST_REQUEST);
    let read = limited.read_until(b'\n', &mut line);
    match timeout(REQUEST_TIMEOUT, read).await {
        Ok(Ok(0)) | Err(_) => Ok(Request::Status),
        Ok(Ok(_)) => serde_json::from_slice(&line)
            .map_err(|error| format!("this agent does not understand the request: {error}")),
        Ok(Err(error)) => Err(error.to_string()),
    }
}

/// The way of commands to the event loop.
struct Commands {
    queue: mpsc::Sender<CommandRequest>,
    /// Places for clients that wait for an outcome.
    places: Arc<Semaphore>,
}

impl Commands {
    /// Sends a command to the event loop and waits for its outcome, for a limited time.
    async fn perform(self, command: Command, peer: Peer) -> Outcome {
        if !peer.may_command(geteuid().as_raw()) {
            tracing::warn!("{peer} is refused: {command}");
            return Err(format!(
                "user {} may read the status, but commands are for root and the agent's own user",
                peer.uid
            ));
        }
        let busy = || "the agent is ending, or busy with other commands".to_owned();
        let _place = self.places.try_acquire().map_err(|_| busy())?;
        let (reply, outcome) = oneshot::channel();
        let request = CommandRequest {
            command,
            peer,
            reply,
        };
        self.queue.try_send(request).map_err(|_| busy())?;
        match timeout(OUTCOME_TIMEOUT, outcome).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err(busy())),
            Err(_) => Err(format!(
                "the command had no outcome within {} s, and may have one yet: see `cc-agent \
                 status`",
                OUTCOME_TIMEOUT.as_secs()
            )),
        }
    }
}

/// The way of clients that follow a flow to the event loop.
struct Traces {
    queue: Option<mpsc::Sender<TraceRequest>>,
    /// Places for clients that follow a flow.
    places: Arc<Semaphore>,
}

impl Traces {
    /// Writes the flow's windows to a client until the flow or the client ends, or the client is
    /// too slow even to take a line. Refuses when the flow is not open.
    async fn follow(
        self,
        flow: FlowId,
        stream: &mut BufReader<tokio::net::UnixStream>,
    ) -> Result<(), String> {
        let busy = || "other clients follow flows already, or the agent is ending".to_owned();
        let _place = self.places.try_acquire().map_err(|_| busy())?;
        let (windows, mut received) = mpsc::channel(TRACED_WINDOWS);
        let queue = self.queue.ok_or_else(busy)?;
        queue
            .try_send(TraceRequest { flow, windows })
            .map_err(|_| busy())?;
        let mut has_begun = false;
        loop {
            let window = tokio::select! {
                window = received.recv() => window,
                // The client sends nothing more: it has disconnected.
                _ = stream.read_u8() => return Ok(()),
            };
            let Some(window) = window else {
                return match has_begun {
                    true => Ok(()),
                    false => Err(format!(
                        "flow {}.{} is not open, or closed before a window of it ended",
                        flow.slot, flow.generation
                    )),
                };
            };
            has_begun = true;
            let mut line = serde_json::to_vec(&window).map_err(|error| error.to_string())?;
            line.push(b'\n');
            if !matches!(
                timeout(ANSWER_TIMEOUT, stream.write_all(&line)).await,
                Ok(Ok(()))
            ) {
                return Ok(());
            }
        }
    }
}

fn reply(outcome: Outcome) -> Bytes {
    let reply = match outcome {
        Ok(text) => Reply::Done(text),
        Err(reason) => Reply::Refused(reason),
    };
    let mut line = serde_json::to_vec(&reply).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// The file of a listening socket, removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Whether it is not removed after all.
    is_left: Arc<AtomicBool>,
}

/// Leaves a socket's file where it is when its server is dropped.
#[derive(Debug)]
pub struct Leaver(Arc<AtomicBool>);

impl Leaver {
    /// From now on the file is somebody else's.
    pub fn leave(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_left.load(Ordering::Relaxed) {
            return;
        }
        // Another agent may have put its own socket there since.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks that nobody but root can replace the files of an agent that runs as root. A directory
/// such as /tmp is safe in this respect: everybody may write, but only to files of their own.
fn check_directory(directory: &Path) -> Result<(), ServerError> {
    const STICKY: u32 = 0o1000;
    let found = fs::metadata(directory)
        .map_err(StatusError::failed("looking at the directory", directory))?;
    let mode = found.mode() & 0o7777;
    let is_safe = found.uid() == 0 && (mode & 0o022 == 0 || mode & STICKY != 0);
    if geteuid().is_root() && !is_safe {
        return Err(ServerError::Unsafe {
            path: directory.to_owned(),
            owner: found.uid(),
            mode,
        });
    }
    Ok(())
}

/// Checks that a socket may be created at `path`, or put in the place of a dead one.
fn make_room(path: &Path) -> Result<(), ServerError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StatusError::failed("looking for the socket", path)(error).into()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(StatusError::NotASocket(path.to_owned()).into());
        }
        Ok(_) => {}
    }
    let owner = match fetch(path) {
        Err(StatusError::Dead(_) | StatusError::NotRunning(_)) => return Ok(()),
        Err(error @ StatusError::System { .. }) => return Err(error.into()),
        Err(_) => "a process that does not answer as an agent".into(),
        Ok(agent) => format!(
            "process {}, the agent that serves {}",
            agent.pid, agent.name
        ),
    };
    Err(ServerError::InUse {
        path: path.to_owned(),
        owner,
    })
}

/// Removes the drafts of sockets that agents have left when they were killed at their start.
fn remove_dead_drafts(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix('.'));
        let Some(pid) = pid.filter(|pid| pid.parse::<u32>().is_ok()) else {
            continue;
        };
        // Nobody listens yet while another agent is just creating its own.
        let is_dead = entry.file_type().is_ok_and(|file| file.is_socket())
            && !Path::new("/proc").join(pid).exists()
            && UnixStream::connect(entry.path())
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if is_dead {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn json_line(snapshot: &Snapshot) -> io::Result<Bytes> {
    let mut line = serde_json::to_vec(snapshot)?;
    line.push(b'\n');
    Ok(line.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tempfile::TempDir;

    use cc_client::{command, fetch_flows, fetch_within};
    use cc_core::status::samples::{busy, idle};

    use super::*;

    #[tokio::test]
    async fn a_client_gets_the_latest_snapshot() {
        let place = Place::new();
        let (publish, latest) = watch::channel(Arc::new(idle()));
        let server = tokio::spawn(
            bind(&place.path)
                .expect("binds")
                .serve(latest, no_commands()),
        );
        assert_eq!(place.fetch().await.expect("answers"), idle());
        publish.send_replace(Arc::new(busy(200)));
        assert_eq!(place.fetch().await.expect("answers"), busy(200));
        server.abort();
        assert!(server.await.is_err_and(|end| end.is_cancelled()));
        assert!(!place.path.exists());
        assert!(matches!(
            place.fetch().await,
            Err(StatusError::NotRunning(_))
        ));
    }

    #[tokio::test]
    async fn clients_that_never_read_do_not_delay_others() {
        let place = Place::new();
        let mut large = idle();
        // Beyond what a socket buffers, so that the server has to wait for its clients.
        large.policy = "x".repeat(4 << 20);
        let (_publish, latest) = watch::channel(Arc::new(large));
        let server = tokio::spawn(
            bind(&place.path)
                .expect("binds")
                .serve(latest, no_commands()),
        );
        let silent: Vec<_> = (0..CLIENTS + 8)
            .map(|_| UnixStream::connect(&place.path).expect("connects"))
            .collect();
        let answer = place.fetch().await.expect("answers");
        assert_eq!(answer.policy.len(), 4 << 20);
        drop(silent);
        server.abort();
    }

    #[tokio::test]
    async fn commands_are_done_or_refused() {
        let place = Place::new();
        let (_publish, latest) = watch::channel(Arc::new(idle()));
        let (commands, mut requests) = mpsc::channel(1);
        let server = bind(&place.path).expect("binds").serve(latest, commands);
        let server = tokio::spawn(server);
        let send = |order: Command| {
            let path = place.path.clone();
            tokio::task::spawn_blocking(move || command(&path, order))
        };
        let reload = Command::Reload {
            file: "/a/b.onnx".into(),
        };
        let client = send(reload.clone());
        let request: CommandRequest = requests.recv().await.expect("it arrives");
        assert_eq!(request.command, reload);
        request.reply.send(Ok("done so".into())).expect("it waits");
        assert_eq!(client.await.expect("no panic").expect("done"), "done so");
        let client = send(Command::Promote);
        let request = requests.recv().await.expect("it arrives");
        request
            .reply
            .send(Err("there is no trial".into()))
            .expect("it waits");
        let error = client.await.expect("no panic").expect_err("refused");
        assert_eq!(error.to_string(), "there is no trial");
        server.abort();
    }

    #[tokio::test]
    async fn flows_are_told_in_the_order_that_is_asked_for() {
        let place = Place::new();
        let (_publish, latest) = watch::channel(Arc::new(idle()));
        let (asks, mut asked) = mpsc::channel::<FlowsRequest>(1);
        let mut server = bind(&place.path).expect("binds");
        server.offer_flows(asks);
        let server = tokio::spawn(server.serve(latest, no_commands()));
        let ask = |order: &'static str, filter: &'static str| {
            let path = place.path.clone();
            let within = Duration::from_secs(60);
            tokio::task::spawn_blocking(move || fetch_flows(&path, order, filter, within))
        };
        let client = ask("loss", "fallback cgroup=7");
        let request = asked.recv().await.expect("it arrives");
        assert_eq!(request.order, Sort::Loss);
        assert_eq!(request.filter.to_string(), "fallback cgroup=7");
        let mut found = busy(2);
        found.matching_flows = Some(700);
        request.reply.send(found.clone()).expect("it waits");
        assert_eq!(client.await.expect("no panic").expect("an answer"), found);
        for (order, filter, part) in [
            ("weight", "", "expected one of rate"),
            ("rate", "10.0.0.0/99", "at most 32"),
        ] {
            let refused = ask(order, filter).await.expect("no panic");
            let error = refused.expect_err("it is wrong").to_string();
            assert!(error.contains(part), "{error}");
        }
        server.abort();
    }

    #[tokio::test]
    async fn no_request_asks_for_the_status_and_nonsense_is_refused() {
        let place = Place::new();
        let (_publish, latest) = watch::channel(Arc::new(idle()));
        let server = bind(&place.path).expect("binds");
        let server = tokio::spawn(server.serve(latest, no_commands()));
        let say = |words: &'static str| {
            let path = place.path.clone();
            let client = move || {
                let mut stream = UnixStream::connect(path).expect("connects");
                stream.write_all(words.as_bytes()).expect("writes");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("reads");
                answer
            };
            tokio::task::spawn_blocking(client)
        };
        let silent = say("").await.expect("no panic");
        assert!(silent.contains("\"uptime_s\""), "{silent}");
        let nonsense = say("{\"jump\": 1}\n").await.expect("no panic");
        assert!(
            nonsense.contains("refused") && nonsense.contains("jump"),
            "{nonsense}"
        );
        server.abort();
    }

    #[test]
    fn the_socket_is_for_its_owner_and_group() {
        let place = Place::new();
        let server = bind(&place.path).expect("binds");
        let mode = fs::metadata(&place.path)
            .expect("is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(server);
        assert!(!place.path.exists());
        let left = fs::read_dir(place.path.parent().expect("a directory")).expect("is there");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_to_root() {
        let place = Place::new();
        let directory = place.path.parent().expect("a directory");
        fs::create_dir(directory).expect("creates");
        let mode = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(directory, mode(0o777)).expect("it is ours");
        let bound = bind(&place.path);
        if geteuid().is_root() {
            let error = bound.expect_err("anybody can replace it").to_string();
            assert!(
                error.contains("mode 777") && error.contains("--socket"),
                "{error}"
            );
        }
        fs::set_permissions(directory, mode(0o1777)).expect("it is ours");
        bind(&place.path).expect("as in /tmp");
    }

    #[test]
    fn commands_are_for_root_and_the_user_of_the_agent() {
        let peer = |uid| Peer { uid, pid: Some(12) };
        assert!(peer(0).may_command(998) && peer(998).may_command(998));
        assert!(!peer(1000).may_command(998) && !peer(1000).may_command(0));
        assert_eq!(peer(7).to_string(), "uid 7, process 12");
    }

    #[tokio::test]
    async fn the_status_is_answered_while_commands_hang() {
        let place = Place::new();
        let (_publish, latest) = watch::channel(Arc::new(idle()));
        // Nobody carries them out.
        let (commands, mut hanging) = mpsc::channel(CLIENTS);
        let server = bind(&place.path).expect("binds");
        let server = tokio::spawn(server.serve(latest, commands));
        let mut clients: Vec<_> = (0..2 * CLIENTS)
            .map(|_| {
                let mut stream = UnixStream::connect(&place.path).expect("connects");
                let request = Request::Command(Command::Promote);
                let mut line = serde_json::to_vec(&request).expect("serialises");
                line.push(b'\n');
                stream.write_all(&line).expect("writes");
                stream
            })
            .collect();
        assert_eq!(place.fetch().await.expect("answers"), idle());
        let mut arrived = Vec::new();
        while let Ok(request) = hanging.try_recv() {
            arrived.push(request);
        }
        assert_eq!(arrived.len(), COMMANDING);
        let mut refused = String::new();
        let mut last = clients.pop().expect("there are some");
        let refused = tokio::task::spawn_blocking(move || {
            last.read_to_string(&mut refused).expect("reads");
            refused
        });
        let refused = refused.await.expect("no panic");
        assert!(refused.contains("busy with other commands"), "{refused}");
        server.abort();
    }

    #[test]
    fn the_socket_of_a_killed_agent_is_replaced() {
        let place = Place::new();
        fs::create_dir(place.path.parent().expect("a directory")).expect("creates");
        drop(UnixListener::bind(&place.path).expect("binds"));
        let error = fetch(&place.path).expect_err("no process listens");
        assert!(matches!(error, StatusError::Dead(_)), "{error}");
        bind(&place.path).expect("replaces it");
    }

    #[test]
    fn drafts_of_killed_agents_are_removed() {
        let place = Place::new();
        let directory = place.path.parent().expect("a directory");
        fs::create_dir_all(directory).expect("a scratch directory");
        // No process has such an id (PID_MAX_LIMIT).
        let (dead, listening) = (directory.join(".4194305"), directory.join(".4194306"));
        drop(UnixListener::bind(&dead).expect("binds"));
        let _other = UnixListener::bind(&listening).expect("binds");
        fs::write(directory.join(".4194307"), "no socket").expect("writes");
        drop(Server::prepare(&place.path, None).expect("prepares"));
        assert!(!dead.exists());
        assert!(listening.exists() && directory.join(".4194307").exists());
    }

    #[tokio::test]
    async fn a_running_agent_keeps_its_socket() {
        let place = Place::new();
        let (_publish, latest) = watch::channel(Arc::new(busy(1)));
        let server = tokio::spawn(
            bind(&place.path)
                .expect("binds")
                .serve(latest, no_commands()),
        );
        let path = place.path.clone();
        let second = tokio::task::spawn_blocking(move || bind(&path).map(drop));
        let error = second
            .await
            .expect("does not panic")
            .expect_err("is in use");
        let text = error.to_string();
        assert!(text.contains("4321") && text.contains("rlcc"), "{text}");
        assert!(place.fetch().await.is_ok());
        server.abort();
    }

    #[test]
    fn the_socket_of_a_successor_stays() {
        let place = Place::new();
        let server = bind(&place.path).expect("binds");
        fs::remove_file(&place.path).expect("removes");
        let _successor = UnixListener::bind(&place.path).expect("binds");
        drop(server);
        assert!(place.path.exists());
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_left_alone() {
        let place = Place::new();
        fs::create_dir(place.path.parent().expect("a directory")).expect("creates");
        fs::write(&place.path, "precious").expect("writes");
        let error = bind(&place.path).expect_err("is taken");
        assert!(
            matches!(error, ServerError::Place(StatusError::NotASocket(_))),
            "{error}"
        );
        let error = fetch(&place.path).expect_err("is no socket");
        assert!(matches!(error, StatusError::NotASocket(_)), "{error}");
        assert_eq!(fs::read(&place.path).expect("reads"), b"precious");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let long = PathBuf::from("/tmp").join("x".repeat(200));
        let error = bind(&long).expect_err("too long").to_string();
        assert!(error.contains("107"), "{error}");
    }

    /// The server of a socket at this path.
    fn bind(path: &Path) -> Result<Server, ServerError> {
        Server::prepare(path, None)?.publish()
    }

    /// The channel of a server whose clients send no commands.
    fn no_commands() -> mpsc::Sender<CommandRequest> {
        mpsc::channel(1).0
    }

    /// A place for a socket, in a directory that does not exist yet.
    struct Place {
        path: PathBuf,
        _directory: TempDir,
    }

    impl Place {
        fn new() -> Self {
            let directory = TempDir::new().expect("a directory for the test");
            Self {
                path: directory.path().join("run/rlcc.sock"),
                _directory: directory,
            }
        }

        async fn fetch(&self) -> Result<Snapshot, StatusError> {
            let path = self.path.clone();
            let fetching =
                tokio::task::spawn_blocking(move || fetch_within(&path, Duration::from_secs(60)));
            fetching.await.expect("does not panic")
        }
    }
}
