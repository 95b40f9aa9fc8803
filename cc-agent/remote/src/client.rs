//! The agent's side: a connection that is kept up on a thread of its own.
//!
//! The event loop hands questions over without waiting, and learns of replies, connections and
//! their ends as [`Event`]s. The thread connects again after a pause that grows with each failure
//! in a row.

use std::{fmt, io, thread, time::Duration};

use cc_core::{
    error_chain,
    interface::Interface,
    policy::{PolicyMeta, ServerAddress, Widths},
    remote::{Question, Reply},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tonic::{Status, Streaming, transport::Endpoint};

use crate::{
    rpc,
    tls::TlsFiles,
    transport::{self, Backoff, ConnectError, HANDSHAKE, Plaintext},
    wire::{FromAgent, FromServer, Hello, MOST, PATH, Questions, from_agent, from_server},
};

/// Messages that may wait to be sent; questions that find no room are not asked.
const UNSENT: usize = 8;
/// Events that may wait for the event loop; the connection waits when there are more.
const EVENTS: usize = 256;
/// Size limit of the server's messages, bytes: answers of the largest policy that there may be.
const MESSAGE_BYTES: usize = 8 << 20;

/// What an agent needs to ask a policy server.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The address of the server to connect to.
    pub address: ServerAddress,
    /// The certificates and the key; `None` for a connection without TLS, which only goes to this
    /// host.
    pub tls: Option<TlsFiles>,
    /// Version of the agent, for the server's log.
    pub version: String,
    /// The interface that the agent's flows are served with; `None` takes that of the server's
    /// policy, and keeps to it from the first connection on.
    pub interface: Option<Interface>,
}

/// The policy that a server serves.
#[derive(Clone, Debug, PartialEq)]
pub struct RemotePolicy {
    /// SHA-256 of its file, in hexadecimal digits.
    pub sha256: String,
    /// The metadata of its file.
    pub meta: PolicyMeta,
}

/// What has happened to the connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// There is a connection, to a server with this policy.
    Up(Box<RemotePolicy>),
    /// The connection has ended, or an attempt has failed.
    Down(Down),
    /// Replies have come, in one message of the server.
    Replies(Vec<Reply>),
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// What has happened, and what helps where that is known.
    pub reason: String,
    /// One side has refused the other, which time does not mend: another version, another
    /// interface, or answers that cannot be.
    pub refused: bool,
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Why a client cannot even try to connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address and the files do not make a connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The thread cannot be started.
    #[error("starting the thread of the connection: {0}")]
    Thread(#[from] io::Error),
}

/// The connection to a policy server. Its thread ends when it is dropped.
#[derive(Debug)]
pub struct Client {
    questions: mpsc::Sender<Vec<Question>>,
    events: mpsc::Receiver<Event>,
}

impl Client {
    /// Starts to connect. `prepare` runs first on the connection's thread.
    ///
    /// # Errors
    ///
    /// Returns an error when the certificates cannot be used, when there are none and the server is
    /// another host, and when the thread cannot be started.
    pub fn start(
        options: ClientOptions,
        prepare: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ClientError> {
        let tls = options.tls.as_ref();
        let endpoint = transport::endpoint(&options.address, tls, Plaintext::Loopback)?;
        let (questions, asked) = mpsc::channel(UNSENT);
        let (event, events) = mpsc::channel(EVENTS);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let work = move || {
            prepare();
            let keeper = Keeper {
                endpoint,
                options,
                asked,
                event,
            };
            runtime.block_on(keeper.keep_up());
        };
        thread::Builder::new()
            .name("policy server".into())
            .spawn(work)?;
        Ok(Self { questions, events })
    }

    /// Sends questions without waiting. Returns the numbers of those that there was no room for.
    pub fn ask(&self, questions: Vec<Question>) -> Vec<u64> {
        let mut unsent = Vec::new();
        let mut rest = questions;
        while !rest.is_empty() {
            let next = rest.split_off(rest.len().min(MOST));
            let message = std::mem::replace(&mut rest, next);
            if let Err(refused) = self.questions.try_send(message) {
                let message = refused.into_inner();
                unsent.extend(message.iter().map(|question| question.sequence));
            }
        }
        unsent
    }

    /// Waits for the next event. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Event {
        self.events.recv().await.unwrap_or_else(|| {
            Event::Down(Down {
                reason: "the thread of the connection has ended".into(),
                refused: true,
            })
        })
    }

    /// Waits for the first event for up to `limit`, on a thread without a runtime; `None` when none
    /// has come.
    ///
    /// # Errors
    ///
    /// Returns an error when there is no room for a runtime.
    pub fn wait(&mut self, limit: Duration) -> io::Result<Option<Event>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        Ok(runtime.block_on(async { timeout(limit, self.next()).await.ok() }))
    }
}

/// Keeps the connection up: what runs on the thread of a [`Client`].
struct Keeper {
    endpoint: Endpoint,
    options: ClientOptions,
    asked: mpsc::Receiver<Vec<Question>>,
    event: mpsc::Sender<Event>,
}

/// The stream to a server, after the handshake.
struct Session {
    to_server: mpsc::Sender<FromAgent>,
    from_server: Streaming<FromServer>,
    policy: RemotePolicy,
}

/// The agent has dropped its [`Client`].
struct Dropped;

impl Keeper {
    async fn keep_up(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let mut lived = Duration::ZERO;
            let down = match timeout(HANDSHAKE, self.connect()).await {
                Err(_) => failed(format!(
                    "no connection within {} s: does a policy server listen there?",
                    HANDSHAKE.as_secs()
                )),
                Ok(Err(down)) => down,
                Ok(Ok(session)) => {
                    let since = Instant::now();
                    match self.serve(session).await {
                        Err(Dropped) => return,
                        Ok(down) => {
                            lived = since.elapsed();
                            down
                        }
                    }
                }
            };
            let pause = backoff.pause(lived, down.refused);
            if self.event.send(Event::Down(down)).await.is_err() {
                return;
            }
            if self.pause(pause).await.is_err() {
                return;
            }
        }
    }

    /// Waits, and drops questions that were asked of a connection that has ended.
    async fn pause(&mut self, pause: Duration) -> Result<(), Dropped> {
        let until = sleep(pause);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return Ok(()),
                asked = self.asked.recv() => if asked.is_none() { return Err(Dropped) },
            }
        }
    }

    async fn connect(&mut self) -> Result<Session, Down> {
        let address = &self.options.address;
        let channel = (self.endpoint.connect().await)
            .map_err(|error| failed(format!("{address}: {}", error_chain(&error))))?;
        let (to_server, outgoing) = mpsc::channel(UNSENT);
        let interface = self.options.interface.as_ref();
        let hello = Hello::new(&self.options.version, interface);
        let content = Some(from_agent::Content::Hello(hello));
        // The receiver is still here, and the channel empty.
        let _ = to_server.try_send(FromAgent { content });
        let opened = rpc::open(channel, PATH, outgoing, MESSAGE_BYTES).await;
        let mut from_server = opened.map_err(|status| of_status(address, &status))?;
        let first = from_server.message().await;
        let first = first.map_err(|status| of_status(address, &status))?;
        let Some(FromServer {
            content: Some(from_server::Content::Welcome(welcome)),
        }) = first
        else {
            return Err(refused(format!("{address}: expected the server's welcome")));
        };
        let (sha256, meta) = welcome
            .check(interface)
            .map_err(|error| refused(format!("{address}: {error}")))?;
        Ok(Session {
            to_server,
            from_server,
            policy: RemotePolicy { sha256, meta },
        })
    }

    /// Sends questions and receives answers until the connection ends.
    async fn serve(&mut self, session: Session) -> Result<Down, Dropped> {
        let Session {
            to_server,
            mut from_server,
            policy,
        } = session;
        let widths = policy.meta.widths();
        // What the first server says holds for the others.
        let interface = &mut self.options.interface;
        interface.get_or_insert_with(|| policy.meta.interface.clone());
        // Asked of the connection before.
        while self.asked.try_recv().is_ok() {}
        self.send(Event::Up(Box::new(policy))).await?;
        let address = self.options.address.clone();
        // A message that the stream has not taken yet.
        let mut unsent = None;
        loop {
            tokio::select! {
                questions = self.asked.recv(), if unsent.is_none() => {
                    unsent = Some(message(&questions.ok_or(Dropped)?, &widths));
                }
                room = to_server.reserve(), if unsent.is_some() => {
                    let Ok(room) = room else {
                        return Ok(failed(format!("{address}: the stream has ended")));
                    };
                    if let Some(message) = unsent.take() {
                        room.send(message);
                    }
                }
                received = from_server.message() => {
                    let content = match received {
                        Ok(Some(FromServer { content })) => content,
                        Ok(None) => {
                            let reason = "the server has closed the stream";
                            return Ok(failed(format!("{address}: {reason}")));
                        }
                        Err(status) => return Ok(of_status(&address, &status)),
                    };
                    let Some(from_server::Content::Answers(answers)) = content else {
                        return Ok(refused(format!("{address}: expected answers")));
                    };
                    match answers.check(&widths) {
                        Ok(replies) => self.send(Event::Replies(replies)).await?,
                        Err(error) => {
                            let reason = format!("the server's answer is refused: {error}");
                            return Ok(refused(format!("{address}: {reason}")));
                        }
                    }
                }
            }
        }
    }

    async fn send(&self, event: Event) -> Result<(), Dropped> {
        self.event.send(event).await.map_err(|_| Dropped)
    }
}

fn message(questions: &[Question], widths: &Widths) -> FromAgent {
    let questions = Questions::of(questions, widths);
    FromAgent {
        content: Some(from_agent::Content::Questions(questions)),
    }
}

fn failed(reason: String) -> Down {
    Down {
        reason,
        refused: false,
    }
}

fn refused(reason: String) -> Down {
    Down {
        reason,
        refused: true,
    }
}

/// The end of a stream, as its status says.
fn of_status(address: &ServerAddress, status: &Status) -> Down {
    let reason = format!("{address}: {}", rpc::reason(status));
    match rpc::is_refusal(status.code()) {
        true => refused(reason),
        false => failed(reason),
    }
}
