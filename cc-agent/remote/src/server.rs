//! The policy server: many agents, one policy.
//!
//! One task reads each agent's stream; one thread decides. The thread takes all messages that have
//! come in the meantime as one batch, so batches grow with the load and an idle server answers at
//! once. When the thread is behind, tasks wait to hand their messages over, HTTP/2 stops the agents
//! that send too much, and these decide with their local policies.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use cc_core::{
    flows::FlowId,
    policy::{Choice, Policy, Query, Widths},
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use tracing::{info, warn};

use crate::{
    rpc::{Outgoing, Serve, is_broken_protocol},
    tls::TlsFiles,
    transport::{HANDSHAKE, ListenError, Listener, Plaintext},
    wire::{Answers, FromAgent, FromServer, PATH, Welcome, from_agent, from_server, message_bytes},
};

/// Queries that the policy is asked at once, unless a single message has more.
const BATCH: usize = 256;
/// Messages that may wait for the policy, over all agents.
const WAITING: usize = 64;
/// Answers that may wait to be sent to an agent; further ones are dropped.
const UNSENT: usize = 64;
/// Time that streams have to end when the server stops.
const ENDING: Duration = Duration::from_secs(2);

/// A policy that is ready to be served.
pub struct Server {
    shared: Arc<Shared>,
    to_policy: mpsc::Sender<Asked>,
    /// Closes when the thread that decides has ended.
    deciding: watch::Receiver<()>,
}

/// What all streams have in common.
struct Shared {
    welcome: Welcome,
    interface: cc_core::interface::Interface,
    widths: Widths,
    counters: Counters,
    /// Becomes true when the server stops.
    stopping: watch::Sender<bool>,
}

/// A message of an agent, for the policy.
struct Asked {
    /// Numbers and flows of the questions.
    tickets: Vec<(u64, FlowId)>,
    queries: Vec<Query>,
    /// The agent's stream, which takes the answers.
    reply: mpsc::Sender<Result<FromServer, Status>>,
}

#[derive(Debug, Default)]
struct Counters {
    agents: AtomicU64,
    connected: AtomicU64,
    refused: AtomicU64,
    queries: AtomicU64,
    batches: AtomicU64,
    dropped: AtomicU64,
    busy_us: AtomicU64,
}

/// Counts of a policy server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Agents that were welcomed, each time that they connected.
    pub agents: u64,
    /// Agents that are connected at the moment.
    pub connected: u64,
    /// Streams that were refused, at their first message or at a later one.
    pub refused: u64,
    /// Queries that the policy was asked.
    pub queries: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// Answers that were dropped because their agent did not read them.
    pub dropped: u64,
    /// Time that the policy took for all batches, µs.
    pub busy_us: u64,
}

impl ServerCounts {
    /// The mean number of queries in a batch; 0 before the first.
    pub fn mean_batch(&self) -> f64 {
        self.queries as f64 / self.batches.max(1) as f64
    }
}

/// Why a policy is not served, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The policy is not from a file, so that agents could not tell it from others.
    #[error("the policy has no file: name an .onnx file, which carries its own settings")]
    NoFile,
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The thread that decides cannot be started.
    #[error("starting the policy's thread: {0}")]
    Thread(std::io::Error),
    /// The thread that decides has ended.
    #[error("the policy has failed")]
    Policy,
    /// The connections cannot be served.
    #[error("serving: {0}")]
    Serve(String),
}

impl Server {
    /// Starts the thread that decides.
    ///
    /// # Errors
    ///
    /// Returns an error when the policy is not from a file, or when the thread cannot be started.
    pub fn start(policy: Box<dyn Policy>) -> Result<Self, ServerError> {
        let file = policy.file().ok_or(ServerError::NoFile)?;
        let shared = Arc::new(Shared {
            welcome: Welcome::new(&file.sha256, &file.meta),
            interface: file.meta.interface.clone(),
            widths: file.meta.widths(),
            counters: Counters::default(),
            stopping: watch::Sender::new(false),
        });
        let (to_policy, asked) = mpsc::channel(WAITING);
        let (ended, deciding) = watch::channel(());
        let of_thread = shared.clone();
        let work = move || {
            // Dropped when the thread ends, however it ends.
            let _ended = ended;
            decide(policy, asked, &of_thread);
        };
        thread::Builder::new()
            .name("policy".into())
            .spawn(work)
            .map_err(ServerError::Thread)?;
        Ok(Self {
            shared,
            to_policy,
            deciding,
        })
    }

    /// Starts to listen for agents, with TLS by the certificates and the key of `tls`; without
    /// these, only on a loopback address.
    ///
    /// # Errors
    ///
    /// Returns an error when the address or the files cannot be used.
    pub fn listen(
        &self,
        address: SocketAddr,
        tls: Option<&TlsFiles>,
    ) -> Result<Listener, ServerError> {
        Ok(Listener::bind(address, tls, Plaintext::Loopback)?)
    }

    /// Serves agents until `shutdown` is ready.
    ///
    /// # Errors
    ///
    /// Returns an error when the policy's thread ends.
    pub async fn serve(
        &self,
        listener: Listener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServerError> {
        let streams = Streams {
            shared: self.shared.clone(),
            to_policy: self.to_policy.clone(),
        };
        let mut stopping = self.shared.stopping.subscribe();
        let stopped = async move {
            // An error means that there is nobody left to stop it.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        };
        let serving = listener.serve(streams, stopped);
        tokio::pin!(serving);
        let mut deciding = self.deciding.clone();
        let outcome = tokio::select! {
            served = &mut serving => {
                return served.map_err(ServerError::Serve);
            }
            () = shutdown => Ok(()),
            _ = deciding.changed() => Err(ServerError::Policy),
        };
        self.shared.stopping.send_replace(true);
        if timeout(ENDING, serving).await.is_err() {
            warn!("connections did not end in time and are cut");
        }
        outcome
    }

    /// Counts of agents, queries and batches since the start.
    pub fn counts(&self) -> ServerCounts {
        let Counters {
            agents,
            connected,
            refused,
            queries,
            batches,
            dropped,
            busy_us,
        } = &self.shared.counters;
        ServerCounts {
            agents: agents.load(Relaxed),
            connected: connected.load(Relaxed),
            refused: refused.load(Relaxed),
            queries: queries.load(Relaxed),
            batches: batches.load(Relaxed),
            dropped: dropped.load(Relaxed),
            busy_us: busy_us.load(Relaxed),
        }
    }
}

/// Decides on what comes until all senders are gone.
fn decide(mut policy: Box<dyn Policy>, mut asked: mpsc::Receiver<Asked>, shared: &Shared) {
    while let Some(first) = asked.blocking_recv() {
        let mut gathered = vec![first];
        let mut queries = std::mem::take(&mut gathered[0].queries);
        while queries.len() < BATCH
            && let Ok(mut next) = asked.try_recv()
        {
            queries.append(&mut next.queries);
            gathered.push(next);
        }
        let since = Instant::now();
        let choices = policy.decide(&mut queries);
        let counters = &shared.counters;
        let took = since.elapsed().as_micros() as u64;
        counters.busy_us.fetch_add(took, Relaxed);
        counters.batches.fetch_add(1, Relaxed);
        counters.queries.fetch_add(queries.len() as u64, Relaxed);
        let mut rest = queries.iter().zip(choices);
        for Asked { tickets, reply, .. } in gathered {
            let n = tickets.len();
            let answers = tickets.into_iter().zip(rest.by_ref().take(n));
            let answers = answers.map(|((sequence, flow), (query, choice))| {
                // What is not finite must not reach an agent's memory.
                let is_finite = |values: &Vec<f32>| values.iter().all(|value| value.is_finite());
                let usable = is_finite(&query.state.h) && is_finite(&query.state.c);
                let choice = if usable { choice } else { Choice::Invalid };
                (sequence, flow, query, choice)
            });
            let message = FromServer {
                content: Some(from_server::Content::Answers(Answers::of(
                    answers,
                    &shared.widths,
                ))),
            };
            if reply.try_send(Ok(message)).is_err() {
                counters.dropped.fetch_add(n as u64, Relaxed);
            }
        }
    }
}

/// The streams of a server's agents.
#[derive(Clone)]
struct Streams {
    shared: Arc<Shared>,
    to_policy: mpsc::Sender<Asked>,
}

impl Serve for Streams {
    const PATH: &'static str = PATH;
    type Up = FromAgent;
    type Down = FromServer;

    fn message_bytes(&self) -> usize {
        message_bytes(&self.shared.widths)
    }

    fn serve(&self, agent: Request<Streaming<FromAgent>>) -> Result<Outgoing<FromServer>, Status> {
        let from = agent.remote_addr();
        let name = from.map_or_else(|| "an agent".into(), |from| from.to_string());
        let (out, outgoing) = mpsc::channel(UNSENT);
        let streams = self.clone();
        let mut agent = agent.into_inner();
        tokio::spawn(async move {
            let counters = &streams.shared.counters;
            let mut stopping = streams.shared.stopping.subscribe();
            let outcome = tokio::select! {
                outcome = streams.follow(&name, &mut agent, &out) => outcome,
                _ = stopping.wait_for(|stopping| *stopping) => {
                    Err(Status::unavailable("the policy server stops"))
                }
            };
            match outcome {
                Ok(()) => info!("{name} has left"),
                Err(status) => {
                    if is_broken_protocol(status.code()) {
                        counters.refused.fetch_add(1, Relaxed);
                    }
                    warn!("{name}: {}", status.message());
                    // The agent may be gone.
                    let _ = out.try_send(Err(status));
                }
            }
        });
        Ok(ReceiverStream::new(outgoing))
    }
}

impl Streams {
    /// Serves an agent's stream to its end.
    async fn follow(
        &self,
        name: &str,
        agent: &mut Streaming<FromAgent>,
        out: &mpsc::Sender<Result<FromServer, Status>>,
    ) -> Result<(), Status> {
        let Shared {
            welcome,
            interface,
            widths,
            counters,
            ..
        } = &*self.shared;
        let refused = |reason: String| Status::failed_precondition(reason);
        let first = timeout(HANDSHAKE, agent.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the agent has sent nothing"))??;
        let Some(FromAgent {
            content: Some(from_agent::Content::Hello(hello)),
        }) = first
        else {
            return Err(Status::invalid_argument("expected the agent's hello"));
        };
        let version: String = hello
            .agent
            .chars()
            .filter(|c| !c.is_control())
            .take(32)
            .collect();
        hello
            .check(interface)
            .map_err(|error| refused(error.to_string()))?;
        let message = FromServer {
            content: Some(from_server::Content::Welcome(welcome.clone())),
        };
        if out.send(Ok(message)).await.is_err() {
            return Ok(());
        }
        info!("{name} is served; its version is {version}");
        counters.agents.fetch_add(1, Relaxed);
        counters.connected.fetch_add(1, Relaxed);
        let _connected = Connected(counters);
        while let Some(message) = agent.message().await? {
            let Some(from_agent::Content::Questions(questions)) = message.content else {
                return Err(Status::invalid_argument("expected questions"));
            };
            let questions = questions
                .check(widths)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            let (mut tickets, mut queries) = (Vec::new(), Vec::new());
            for (sequence, flow, query) in questions {
                tickets.push((sequence, flow));
                queries.push(query);
            }
            let asked = Asked {
                tickets,
                queries,
                reply: out.clone(),
            };
            if self.to_policy.send(asked).await.is_err() {
                return Err(Status::unavailable("the policy has failed"));
            }
        }
        Ok(())
    }
}

/// Counts an agent as connected until it is dropped.
struct Connected<'a>(&'a Counters);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Relaxed);
    }
}
