//! The learner's side: a thread that serves the streams of all workers.
//!
//! Each stream is a task. A worker's message waits in its task until the queue has room, and only
//! then gives the worker leave to send another: a queue that is full holds workers back, and no
//! more than [`CREDITS`] messages of each are in memory.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_remote::{
    TlsFiles,
    rpc::{Outgoing, Serve},
    transport::{HANDSHAKE, ListenError, Listener, Plaintext},
    wire::WireError,
};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::{
    figures::{Counts, Figures},
    group::{Group, Membership},
    refusal::{Refusal, StreamEnd},
    wire::{
        Batch, Credit, Finished, FromLearner, FromWorker, Hello, PATH, PROTOCOL, Plan, Policy,
        Widths, from_learner, from_worker, to_json,
    },
};
use crate::{
    actor::StepOutput,
    listening,
    model::{ParameterLayout, Shape},
    normalise::Normalizer,
    train::{
        config::Config,
        exchange::{EndOfActing, LocalExchange},
    },
};

/// Messages with rollouts that a worker may have on their way at once.
pub const CREDITS: u32 = 4;
/// Time that a worker has to make its environments, whose files it may have to read.
const PREPARATION: Duration = Duration::from_secs(300);
/// How often a worker that sends nothing gets the newest policy.
const POLICY_PERIOD: Duration = Duration::from_secs(1);
/// Time that streams have to end when the learner stops.
const ENDING: Duration = Duration::from_secs(2);
/// Messages that may wait to be sent to a worker.
const UNSENT: usize = 8;
/// Bytes of a message with a gradient beside its values, at most.
const FRAME: usize = 1 << 10;
/// Actors of one worker, at most.
const MOST_ACTORS: u32 = 4096;

/// How a learner listens for workers.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The address to listen on; port 0 takes any that is free.
    pub address: SocketAddr,
    /// The certificates and the key; `None` for connections without TLS.
    pub tls: Option<TlsFiles>,
    /// Where connections without TLS may come from.
    pub plaintext: Plaintext,
    /// The secret that workers must have; `None` for none.
    pub token: Option<String>,
    /// Number of learners that learn together, this one included, at least 1. The others are
    /// replicas, which the first update waits for.
    pub learners: usize,
}

/// What a learner has workers do, and by which their messages are checked.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The run's name, which stays when the learner is started again.
    pub run: String,
    /// The run's configuration, with every default written out.
    pub config: Config,
    /// The sizes of the network.
    pub shape: Shape,
    /// Number of tasks of the environments.
    pub tasks: usize,
    /// The transform of observations; `None` for environments that need none.
    pub normalizer: Option<Normalizer>,
    /// Environment steps learnt from before.
    pub steps: u64,
}

/// Why workers cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listening for workers: {0}")]
    Listen(#[from] ListenError),
    /// The thread that serves workers cannot be started.
    #[error("starting the thread that serves workers: {0}")]
    Thread(#[from] io::Error),
    /// Replicas do not have the recordings that the learner learns from.
    #[error(
        "what is learnt from recordings is learnt by one learner: leave --learners out, or learn \
         in simulated environments"
    )]
    Recordings,
    /// The thread has ended while the run went on.
    #[error("serving workers: {0}")]
    Serve(String),
}

/// A thread that serves workers until it is stopped.
#[derive(Debug)]
pub struct LearnerServer {
    address: SocketAddr,
    end: watch::Sender<Option<End>>,
    thread: JoinHandle<Result<(), String>>,
    counts: Arc<Counts>,
    group: Option<Arc<Group>>,
}

/// How a learner ends its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The run is done, and no learner will take its place.
    Finished,
    /// The learner is interrupted, and may be started again.
    Interrupted,
}

impl LearnerServer {
    /// Listens for workers, whose rollouts go into `exchange`. Acting is over for all when the
    /// thread ends.
    ///
    /// # Errors
    ///
    /// Returns an error when the address or the certificates cannot be used, or the thread cannot
    /// be started.
    pub fn start(
        listening: &Listening,
        offer: &Offer,
        exchange: Arc<LocalExchange>,
    ) -> Result<Self, ServeError> {
        let runtime = listening::runtime()?;
        let listener = {
            let _within = runtime.enter();
            Listener::bind(
                listening.address,
                listening.tls.as_ref(),
                listening.plaintext,
            )?
        };
        let address = listener.address();
        let end = watch::Sender::new(None);
        let counts = Arc::new(Counts::default());
        let max_lag = offer.config.actor.max_lag;
        let group =
            (listening.learners > 1).then(|| Arc::new(Group::new(listening.learners, max_lag)));
        let learner = &offer.config.learner;
        let local_actors = offer.config.actors.unwrap_or(0);
        let shared = Arc::new(Shared {
            widths: Widths::of(
                &offer.shape,
                learner.burn_in + learner.unroll + 1,
                offer.tasks,
            ),
            plan: Plan {
                protocol: PROTOCOL,
                run: offer.run.clone(),
                config: to_json(&offer.config),
                shape: to_json(&offer.shape),
                normalizer: offer.normalizer.as_ref().map_or_else(String::new, to_json),
                steps: offer.steps,
                first_actor: 0,
                credits: CREDITS,
            },
            config: offer.config.clone(),
            token: listening.token.as_deref().map(digest),
            next_actor: AtomicU64::new(local_actors as u64),
            exchange,
            counts: counts.clone(),
            group: group.clone(),
            parameters: ParameterLayout::of(&offer.shape).len(),
            end: end.clone(),
        });
        let work = move || {
            let _end = EndOfActing(&*shared.exchange);
            runtime.block_on(serve(listener, &shared))
        };
        let thread = thread::Builder::new().name("workers".into()).spawn(work)?;
        Ok(Self {
            address,
            end,
            thread,
            counts,
            group,
        })
    }

    /// The address that is listened on, with its port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The replicas of the learner; `None` for one that learns alone.
    pub fn group(&self) -> Option<Arc<Group>> {
        self.group.clone()
    }

    /// Begins to count what the learner does.
    pub fn figures(&self) -> Figures {
        Figures::new(self.counts.clone())
    }

    /// What the streams of all workers count.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Ends all streams. Workers are told whether the run is done, and connect again otherwise.
    ///
    /// # Errors
    ///
    /// Returns an error when the thread had failed before.
    pub fn stop(self, is_finished: bool) -> Result<(), ServeError> {
        self.end.send_replace(Some(match is_finished {
            true => End::Finished,
            false => End::Interrupted,
        }));
        let ended = self.thread.join();
        let panicked = |_| Err("the thread has panicked, as its message above says".to_owned());
        ended.unwrap_or_else(panicked).map_err(ServeError::Serve)
    }
}

/// Serves workers until the end is sent.
async fn serve(listener: Listener, shared: &Arc<Shared>) -> Result<(), String> {
    let mut end = shared.end.subscribe();
    let stopped = {
        let mut end = end.clone();
        async move {
            ended(&mut end).await;
        }
    };
    let serving = listener.serve(Streams(shared.clone()), stopped);
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served,
        _ = ended(&mut end) => {}
    }
    // Streams that do not end in time are cut.
    timeout(ENDING, serving).await.unwrap_or(Ok(()))
}

/// Waits until the learner ends its streams; `None` when there is no learner any more.
async fn ended(end: &mut watch::Receiver<Option<End>>) -> Option<End> {
    end.wait_for(Option::is_some).await.map_or(None, |end| *end)
}

/// What all streams have in common.
struct Shared {
    plan: Plan,
    config: Config,
    widths: Widths,
    /// SHA-256 of the secret that workers must know; `None` asks for none.
    token: Option<[u8; 32]>,
    /// Index of the next worker's first actor.
    next_actor: AtomicU64,
    exchange: Arc<LocalExchange>,
    counts: Arc<Counts>,
    /// The replicas; `None` where the learner learns alone.
    group: Option<Arc<Group>>,
    /// Number of the network's parameters.
    parameters: usize,
    end: watch::Sender<Option<End>>,
}

/// The streams of a learner's workers.
#[derive(Clone)]
struct Streams(Arc<Shared>);

/// The way to a worker.
type ToWorker = mpsc::Sender<Result<FromLearner, Status>>;

impl Serve for Streams {
    const PATH: &'static str = PATH;
    type Up = FromWorker;
    type Down = FromLearner;

    fn message_bytes(&self) -> usize {
        let gradient = match &self.0.group {
            Some(_) => 4 * self.0.parameters + FRAME,
            None => 0,
        };
        self.0.widths.message_bytes().max(gradient)
    }

    fn serve(
        &self,
        worker: Request<Streaming<FromWorker>>,
    ) -> Result<Outgoing<FromLearner>, Status> {
        let (out, outgoing) = mpsc::channel(UNSENT);
        let shared = self.0.clone();
        let mut worker = worker.into_inner();
        tokio::spawn(async move {
            let mut end = shared.end.subscribe();
            let outcome = tokio::select! {
                outcome = shared.follow(&mut worker, &out) => outcome,
                ended = ended(&mut end) => match ended {
                    Some(End::Finished) => {
                        let finished = from_learner::Content::Finished(Finished {});
                        // The worker may be gone, or not read.
                        let _ = timeout(ENDING, send(&out, finished)).await;
                        Ok(())
                    }
                    _ => Err(Status::unavailable("the learner stops").into()),
                },
            };
            if let Err(StreamEnd { refusal, status }) = outcome {
                if let Some(refusal) = refusal {
                    shared.counts.refuse(refusal);
                }
                // The worker may be gone, or not read.
                let _ = out.try_send(Err(status));
            }
        });
        Ok(ReceiverStream::new(outgoing))
    }
}

/// The worker has gone, which is nobody's fault.
struct Gone;

impl From<Gone> for StreamEnd {
    fn from(_: Gone) -> Self {
        Status::cancelled("the worker has gone").into()
    }
}

async fn send(out: &ToWorker, content: from_learner::Content) -> Result<(), Gone> {
    let message = FromLearner {
        content: Some(content),
    };
    out.send(Ok(message)).await.map_err(|_| Gone)
}

impl Shared {
    /// Serves a worker's stream to its end.
    async fn follow(
        &self,
        worker: &mut Streaming<FromWorker>,
        out: &ToWorker,
    ) -> Result<(), StreamEnd> {
        let first = timeout(HANDSHAKE, worker.message())
            .await
            .map_err(|_| Refusal::Silence.because("the worker has sent nothing"))??;
        let Some(from_worker::Content::Hello(hello)) = first.and_then(|first| first.content) else {
            return Err(Refusal::Message.because("expected the worker's hello"));
        };
        self.check(&hello)?;
        let plan = Plan {
            first_actor: (self.next_actor).fetch_add(u64::from(hello.actors), Relaxed),
            ..self.plan.clone()
        };
        send(out, from_learner::Content::Plan(plan)).await?;
        let second = timeout(PREPARATION, worker.message())
            .await
            .map_err(|_| Refusal::Silence.because("the worker's environments are not ready"))??;
        let Some(from_worker::Content::Ready(ready)) = second.and_then(|second| second.content)
        else {
            return Err(Refusal::Message.because("expected that the worker is ready"));
        };
        if ready.shape != self.plan.shape {
            return Err(Refusal::Network.because(format!(
                "the worker's environments make another network, {}, than the learner's, {}: use \
                 the same release and the same files on both",
                ready.shape, self.plan.shape
            )));
        }
        let replica = match (hello.learns, &self.group) {
            (false, _) => None,
            (true, Some(group)) => Some(group.join(out.clone()).ok_or_else(|| {
                Status::unavailable("the learner has all of its --learners, and waits for no other")
            })?),
            (true, None) => {
                return Err(Refusal::Run.because(
                    "the learner learns alone: start it with --learners N for N - 1 replicas",
                ));
            }
        };
        let _connected = match replica {
            Some(_) => Connected::count_replica(&self.counts),
            None => Connected::count(&self.counts, u64::from(hello.actors)),
        };
        let mut sent = self.send_policy(out).await?;
        let mut tick = interval(POLICY_PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = worker.message() => {
                    let Some(message) = message? else { return Ok(()) };
                    let since = Instant::now();
                    let bytes = message.encoded_len() as u64;
                    let counts = &self.counts;
                    counts.received_bytes.fetch_add(bytes, Relaxed);
                    let batch = match (message.content, &replica) {
                        (Some(from_worker::Content::Batch(batch)), _) => batch,
                        (Some(content), Some(replica)) => {
                            self.take_part(content, replica)?;
                            continue;
                        }
                        _ => return Err(Refusal::Message.because("expected rollouts")),
                    };
                    self.take(&batch).await?;
                    if replica.is_some() {
                        // Its batches tell of episodes, and it sends one for each update.
                        continue;
                    }
                    sent = self.send_newer_policy(out, sent).await?;
                    send(out, from_learner::Content::Credit(Credit { messages: 1 })).await?;
                    counts.messages.fetch_add(1, Relaxed);
                    let took = since.elapsed().as_micros() as u64;
                    counts.handling_us.fetch_add(took, Relaxed);
                }
                _ = tick.tick(), if replica.is_none() => {
                    sent = self.send_newer_policy(out, sent).await?;
                }
            }
        }
    }

    /// Refuses workers of another release, run or configuration, and those without the secret.
    fn check(&self, hello: &Hello) -> Result<(), StreamEnd> {
        // The secret comes first: nobody else is to learn what else is wrong.
        let given = digest(&hello.token);
        if self.token.is_some_and(|token| !is_equal(&token, &given)) {
            return Err(Refusal::Token.because(match hello.token.as_str() {
                "" => "the learner asks for a token: give --token-file",
                _ => "wrong token: give the --token-file of the learner",
            }));
        }
        if hello.protocol != PROTOCOL {
            return Err(Refusal::Protocol.because(format!(
                "the worker has version {} of the protocol, the learner {PROTOCOL}: use the same \
                 release on both",
                hello.protocol
            )));
        }
        if !(1..=MOST_ACTORS).contains(&hello.actors) {
            return Err(Refusal::Message.because(format!(
                "the worker has {} actors; expected 1 to {MOST_ACTORS}",
                hello.actors
            )));
        }
        if !hello.run.is_empty() && hello.run != self.plan.run {
            let run: String = hello.run.chars().take(64).collect();
            return Err(Refusal::Run.because(format!(
                "the worker acts for run {run:?}, and the learner trains run {}: start the worker \
                 again",
                self.plan.run
            )));
        }
        if hello.config.is_empty() {
            return Ok(());
        }
        let own: Config = match serde_json::from_str(&hello.config) {
            Ok(own) => own,
            Err(error) => {
                let reason = format!("the worker's configuration: {error}");
                return Err(Refusal::Settings.because(reason));
            }
        };
        match own.differences(&self.config).as_slice() {
            [] => Ok(()),
            differences => Err(Refusal::Settings.because(format!(
                "the worker's configuration is another one than the learner's ({})",
                differences.join("; ")
            ))),
        }
    }

    /// Puts a message's rollouts into the queue, when there is room.
    async fn take(&self, batch: &Batch) -> Result<(), StreamEnd> {
        let newest = self.exchange.newest().version;
        let received = batch.check(&self.widths, newest).map_err(|error| {
            let rollouts = batch.versions.len() as u64;
            self.counts.malformed.fetch_add(rollouts, Relaxed);
            Refusal::Message.because(error.to_string())
        })?;
        let mut output = StepOutput {
            rollouts: received.rollouts,
            episodes: received.episodes,
        };
        (self.exchange)
            .put_when_room(&mut output, received.waited)
            .await;
        Ok(())
    }

    /// Takes a replica's word for its part of an update.
    fn take_part(
        &self,
        content: from_worker::Content,
        replica: &Membership,
    ) -> Result<(), StreamEnd> {
        let wrong = |error: WireError| Refusal::Message.because(error.to_string());
        let taken = match content {
            from_worker::Content::Begin(begin) => replica.begin(begin),
            from_worker::Content::Sums(sums) => {
                sums.check().map_err(wrong)?;
                replica.sums(sums)
            }
            from_worker::Content::Gradient(gradient) => {
                let part = gradient.check(self.parameters).map_err(wrong)?;
                replica.part(gradient.updates, part)
            }
            _ => return Err(Refusal::Message.because("expected a part of an update")),
        };
        // It was cut off, and may come again.
        taken.map_err(|reason| Status::unavailable(reason).into())
    }

    /// Sends the newest policy, and returns its version.
    async fn send_policy(&self, out: &ToWorker) -> Result<u64, Gone> {
        let newest = self.exchange.newest();
        let parameters = newest.message();
        let bytes = parameters.len() as u64;
        let version = newest.version;
        let policy = Policy {
            version,
            parameters,
        };
        send(out, from_learner::Content::Policy(policy)).await?;
        self.counts.sent_bytes.fetch_add(bytes, Relaxed);
        Ok(version)
    }

    /// The same if it is newer than version `sent`, which is returned otherwise.
    async fn send_newer_policy(&self, out: &ToWorker, sent: u64) -> Result<u64, Gone> {
        match self.exchange.newest().version > sent {
            true => self.send_policy(out).await,
            false => Ok(sent),
        }
    }
}

/// Counts a worker as connected until it is dropped.
struct Connected<'a> {
    counts: &'a Counts,
    /// Its actors; `None` for a replica.
    actors: Option<u64>,
}

impl<'a> Connected<'a> {
    fn count(counts: &'a Counts, actors: u64) -> Self {
        counts.welcomed.fetch_add(1, Relaxed);
        counts.workers.fetch_add(1, Relaxed);
        counts.actors.fetch_add(actors, Relaxed);
        Self {
            counts,
            actors: Some(actors),
        }
    }

    fn count_replica(counts: &'a Counts) -> Self {
        counts.replicas.fetch_add(1, Relaxed);
        Self {
            counts,
            actors: None,
        }
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        match self.actors {
            Some(actors) => {
                self.counts.workers.fetch_sub(1, Relaxed);
                self.counts.actors.fetch_sub(actors, Relaxed);
            }
            None => {
                self.counts.replicas.fetch_sub(1, Relaxed);
            }
        }
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Whether two digests are equal, in a time that does not depend on where they differ.
fn is_equal(left: &[u8; 32], right: &[u8; 32]) -> bool {
    left.iter().zip(right).fold(0, |or, (l, r)| or | (l ^ r)) == 0
}
