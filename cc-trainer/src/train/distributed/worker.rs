//! A worker: makes the environments that a learner's plan names, acts in them, and connects again
//! when the learner is gone.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use cc_core::{error_chain, policy::ServerAddress};
use cc_remote::{
    ConnectError, TlsFiles, rpc,
    transport::{self, Backoff, HANDSHAKE, Plaintext},
};
use cc_sim::seed;
use tokio::{
    runtime::Runtime,
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::{Status, Streaming, transport::Endpoint};

use super::{
    link::RemoteExchange,
    realtime::{RealTime, RealTimeError, Serving, StreamPoint},
    server::CREDITS,
    wire::{
        FromLearner, FromWorker, Hello, LEARNER_BYTES, PATH, PROTOCOL, Plan, Policy, Ready, Widths,
        from_learner, from_worker, to_floats, to_json,
    },
    work::Work,
};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    learner::UpdateError,
    listening,
    model::{DeviceError, DeviceKind, ParameterLayout, Shape, Weights},
    train::{
        acting::actor,
        config::{Config, ConfigError, Overrides},
        environments::OpenError,
        exchange::{self, EndOfActing, Exchange},
    },
};

/// Time that the learner has for each message of the handshake.
const ANSWER: Duration = Duration::from_secs(60);
/// Time between two probes of the connection, and for the answer to one.
const PROBE: Duration = Duration::from_secs(15);
/// Time between two [`WorkEvent::Progress`] events.
pub(super) const PROGRESS_PERIOD: Duration = Duration::from_secs(10);
/// Rollouts that a worker which replays collects first, for each actor.
const REPLAYED: usize = 32;
/// Messages that may wait to be sent: the handshake's, one for each credit that there can be, and
/// at least the four that a replica has for an update.
const UNSENT: usize = 4 + CREDITS as usize;

/// Acts for a learner on another machine.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The address of the learner to connect to.
    pub learner: ServerAddress,
    /// The certificates and the key; `None` for a connection without TLS.
    pub tls: Option<TlsFiles>,
    /// Where a connection without TLS may go.
    pub plaintext: Plaintext,
    /// The secret that the learner asks for; `None` for none.
    pub token: Option<String>,
    /// Number of threads that act, at least 1.
    pub actors: usize,
    /// A configuration that the learner's must agree with; `None` takes any.
    pub config: Option<Config>,
    /// Whether each actor sends its first rollouts again and again, as those of the newest policy:
    /// for measurements of everything but acting. Nothing good is learnt from them.
    pub replay: bool,
    /// Has the environments run by the clock, under the kernel of this host; `None` for simulated
    /// ones.
    pub real_time: Option<RealTime>,
    /// Has the worker be a replica of the learner, which learns from its actors' rollouts and sends
    /// gradients; `None` for one that sends the rollouts.
    pub learning: Option<Learning>,
}

/// How a worker that is a replica computes gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// The device that it computes them on.
    pub device: DeviceKind,
    /// Number of the learner's threads on the CPU, at least 1.
    pub threads: usize,
}

/// Something that a caller of [`Worker::work`] may want to show.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WorkEvent {
    /// The worker acts for this run.
    Acting {
        /// The run's name, which stays when its learner is started again.
        run: String,
        /// Version of the policy that it begins with.
        version: u64,
    },
    /// What has been sent since the connection, about every ten seconds.
    Progress {
        /// Number of rollouts sent since the connection was made.
        rollouts: u64,
        /// Version of the newest policy.
        version: u64,
    },
    /// What was made of the recording of a real-time worker since the connection, about every ten
    /// seconds.
    Streaming(StreamPoint),
    /// What has been learnt since the connection, by a replica, about every ten seconds.
    Learning {
        /// Number of updates that the replica took part in since the connection was made.
        updates: u64,
        /// Version of the newest policy.
        version: u64,
    },
    /// There is no connection, and the next attempt comes after a pause.
    Waiting {
        /// Why there is no connection.
        reason: String,
        /// Time until the next attempt to connect.
        pause: Duration,
    },
}

/// Why a worker ends before the run does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The connection cannot even be tried.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The own configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The learner refuses the worker, or says what cannot be.
    #[error("{learner}: {reason}")]
    Refused {
        /// The address of the learner.
        learner: ServerAddress,
        /// What does not fit, and the remedy.
        reason: String,
    },
    /// The environments of the learner's configuration cannot be made here.
    #[error("the learner's environments cannot be made on this machine: {0}")]
    Environment(#[from] OpenError),
    /// Flows cannot be served or learnt from in real time.
    #[error(transparent)]
    RealTime(#[from] RealTimeError),
    /// A replica's device cannot be used on this host.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A replica's gradient is not finite, or its device failed.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A thread panicked, and has printed its message.
    #[error("an actor ended early, as its message above says")]
    Actor,
    /// The runtime of the connection cannot be made.
    #[error("starting the connection: {0}")]
    Runtime(#[from] io::Error),
}

/// A thread that acts until acting is over.
type ActingThread<'scope> = ScopedJoinHandle<'scope, Result<(), RealTimeError>>;

/// Why a connection has ended.
pub(super) enum Down {
    /// The learner has said that the run is done.
    Finished,
    /// Somebody has asked the worker to stop.
    Stopped,
    /// The learner cannot be reached, or not any more.
    Lost(String),
    /// Time does not mend it.
    Failed(WorkError),
}

/// A stream to the learner, after the handshake.
pub(super) struct Session {
    pub(super) to_learner: mpsc::Sender<FromWorker>,
    pub(super) from_learner: Streaming<FromLearner>,
    pub(super) work: Work,
    pub(super) policy: Arc<Snapshot>,
}

impl Worker {
    /// Acts until the run is done or `stop` is true. Calls `watch` with what happens.
    ///
    /// # Errors
    ///
    /// Returns an error when the learner refuses the worker, when the environments cannot be made
    /// here, and when an actor panics. A learner that is gone is waited for.
    pub fn work(
        &self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(WorkEvent),
    ) -> Result<(), WorkError> {
        let endpoint = endpoint(&self.learner, self.tls.as_ref(), self.plaintext)?;
        let config = match &self.config {
            Some(config) => Some(config.clone().resolve(&Overrides::default())?),
            None => None,
        };
        let runtime = listening::runtime()?;
        let mut backoff = Backoff::default();
        // The worker keeps to the run of its first connection.
        let mut run = String::new();
        loop {
            let hello = Hello {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").into(),
                token: self.token.clone().unwrap_or_default(),
                run: run.clone(),
                actors: self.actors as u32,
                config: config.as_ref().map_or_else(String::new, to_json),
                learns: self.learning.is_some(),
            };
            let connected = runtime.block_on(async {
                tokio::select! {
                    () = listening::stopped(stop) => Err(Down::Stopped),
                    connected = self.connect(&endpoint, hello) => connected,
                }
            });
            let mut lived = Duration::ZERO;
            let down = match connected {
                Err(down) => down,
                Ok(session) => {
                    let since = Instant::now();
                    run.clone_from(&session.work.plan.run);
                    watch(WorkEvent::Acting {
                        run: run.clone(),
                        version: session.policy.version,
                    });
                    let down = match self.learning {
                        Some(learning) => self.learn(learning, session, &runtime, stop, watch),
                        None => self.act(session, &runtime, stop, watch),
                    };
                    lived = since.elapsed();
                    down
                }
            };
            let reason = match down {
                Down::Finished | Down::Stopped => return Ok(()),
                Down::Failed(error) => return Err(error),
                Down::Lost(reason) => reason,
            };
            let pause = backoff.pause(lived, false);
            watch(WorkEvent::Waiting { reason, pause });
            runtime.block_on(async {
                tokio::select! {
                    () = listening::stopped(stop) => {}
                    () = sleep(pause) => {}
                }
            });
        }
    }

    pub(super) async fn connect(&self, endpoint: &Endpoint, hello: Hello) -> Result<Session, Down> {
        let lost = |reason: String| Down::Lost(format!("{}: {reason}", self.learner));
        let channel = timeout(HANDSHAKE, endpoint.connect())
            .await
            .map_err(|_| lost(format!("no connection within {} s", HANDSHAKE.as_secs())))?
            .map_err(|error| lost(error_chain(&error)))?;
        let (to_learner, outgoing) = mpsc::channel(UNSENT);
        say(&to_learner, from_worker::Content::Hello(hello));
        let opened = timeout(ANSWER, rpc::open(channel, PATH, outgoing, LEARNER_BYTES)).await;
        let mut from_learner = opened
            .map_err(|_| lost("the learner does not answer".into()))?
            .map_err(|status| self.of_status(&status))?;
        let from_learner::Content::Plan(plan) = self.next(&mut from_learner).await? else {
            return Err(self.refused("expected the learner's plan".into()));
        };
        let work = self.prepare(plan)?;
        let shape = work.plan.shape.clone();
        say(&to_learner, from_worker::Content::Ready(Ready { shape }));
        let from_learner::Content::Policy(policy) = self.next(&mut from_learner).await? else {
            return Err(self.refused("expected the learner's policy".into()));
        };
        let policy = self.snapshot(&work.shape, &policy)?;
        Ok(Session {
            to_learner,
            from_learner,
            work,
            policy,
        })
    }

    /// The next message of the handshake.
    async fn next(
        &self,
        from_learner: &mut Streaming<FromLearner>,
    ) -> Result<from_learner::Content, Down> {
        let received = timeout(ANSWER, from_learner.message()).await;
        let silent = |_| Down::Lost(format!("{}: the learner does not answer", self.learner));
        let message = received
            .map_err(silent)?
            .map_err(|status| self.of_status(&status))?;
        self.content(message)
    }

    /// Checks the plan and makes the environments that it names.
    fn prepare(&self, plan: Plan) -> Result<Work, Down> {
        let refused = |what: &str, error: &dyn std::fmt::Display| {
            self.refused(format!(
                "the learner's {what} cannot be read ({error}): use the same release on both"
            ))
        };
        if plan.protocol != PROTOCOL {
            return Err(refused("messages", &format!("protocol {}", plan.protocol)));
        }
        let config: Config =
            serde_json::from_str(&plan.config).map_err(|error| refused("configuration", &error))?;
        let shape: Shape =
            serde_json::from_str(&plan.shape).map_err(|error| refused("network", &error))?;
        let normalizer = match plan.normalizer.as_str() {
            "" => None,
            text => Some(serde_json::from_str(text).map_err(|error| refused("inputs", &error))?),
        };
        let failed = |error: WorkError| Down::Failed(error);
        let source = (config.environment.open()).map_err(|error| failed(error.into()))?;
        let own = config
            .shape(&source.spec(), &source.series())
            .map_err(|error| failed(error.into()))?;
        if own != shape {
            return Err(self.refused(format!(
                "the environments make another network here, {own:?}, than the learner's, \
                 {shape:?}: use the same release and the same files on both"
            )));
        }
        if plan.credits == 0 || plan.credits > CREDITS {
            return Err(refused("messages", &format!("{} credits", plan.credits)));
        }
        Ok(Work {
            plan,
            config,
            shape,
            normalizer: normalizer.map(Arc::new),
            source,
        })
    }

    /// Checks a policy and makes it ready for inference.
    fn snapshot(&self, shape: &Shape, policy: &Policy) -> Result<Arc<Snapshot>, Down> {
        let expected = ParameterLayout::of(shape).len();
        let parameters = to_floats(&policy.parameters);
        if policy.parameters.len() != 4 * expected {
            return Err(self.refused(format!(
                "a policy has {} bytes; expected {expected} parameters of 4 bytes",
                policy.parameters.len()
            )));
        }
        if !parameters.iter().all(|parameter| parameter.is_finite()) {
            return Err(self.refused("a policy has a parameter that is not finite".into()));
        }
        Ok(Arc::new(Snapshot {
            version: policy.version,
            weights: Weights::new(shape, &parameters),
        }))
    }

    /// Acts until the connection ends.
    fn act(
        &self,
        session: Session,
        runtime: &Runtime,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(WorkEvent),
    ) -> Down {
        let Session {
            to_learner,
            mut from_learner,
            work,
            policy,
        } = session;
        let learner = &work.config.learner;
        let steps = learner.burn_in + learner.unroll + 1;
        let widths = Widths::of(&work.shape, steps, work.source.spec().tasks);
        let credits = work.plan.credits;
        let most = widths.rollouts().min(learner.batch.max(1));
        let serving = (self.real_time.as_ref())
            .map(|real_time| Serving::start(real_time, &work, &policy))
            .transpose();
        let serving = match serving {
            Ok(serving) => serving,
            Err(error) => return self.broken(error),
        };
        let serving = serving.as_ref();
        let exchange = &RemoteExchange::new(policy, credits, most, to_learner);
        let shape = &work.shape;
        thread::scope(|scope| {
            // The scope waits for the actors, also when this closure panics.
            let end = EndOfActing(exchange);
            let threads = match serving {
                None => self.simulate(scope, &work, exchange),
                Some(serving) => self.run_by_the_clock(scope, &work, serving, exchange),
            };
            let down = runtime.block_on(async {
                tokio::select! {
                    () = listening::stopped(stop) => Down::Stopped,
                    down = self.follow(&mut from_learner, exchange, shape, serving, watch)
                        => down,
                }
            });
            serving.into_iter().for_each(Serving::end);
            drop(end);
            // A panic has printed its message; the scope must not panic in turn.
            let ends: Vec<_> = (threads.into_iter()).map(ScopedJoinHandle::join).collect();
            ends.into_iter().fold(down, |down, end| match end {
                Ok(Ok(())) => down,
                Ok(Err(error)) => self.broken(error),
                Err(_) => Down::Failed(WorkError::Actor),
            })
        })
    }

    /// Starts threads that act in simulated environments.
    fn simulate<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        work: &Work,
        exchange: &'scope RemoteExchange,
    ) -> Vec<ActingThread<'scope>> {
        let actors = (0..self.actors as u64).map(|number| {
            let index = work.plan.first_actor + number;
            let actor = actor(
                &work.config,
                &work.source,
                work.normalizer.as_ref(),
                [work.plan.steps, index],
                exchange.newest(),
            );
            scope.spawn(move || {
                match self.replay {
                    true => replay(exchange, actor),
                    false => exchange::act(exchange, actor),
                }
                Ok(())
            })
        });
        actors.collect()
    }

    /// Starts threads that serve flows under the kernel and make rollouts of what is recorded.
    fn run_by_the_clock<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        work: &Work,
        serving: &'scope Serving<'_>,
        exchange: &'scope RemoteExchange,
    ) -> Vec<ActingThread<'scope>> {
        let mut threads = vec![
            scope.spawn(move || serving.serve(exchange)),
            scope.spawn(move || serving.stream(exchange)),
        ];
        threads.extend((0..serving.links(self.actors) as u64).map(|number| {
            let place = [work.plan.steps, work.plan.first_actor + number];
            let seed = place.into_iter().fold(work.config.seed, seed::fold);
            scope.spawn(move || serving.emulate(seed, exchange))
        }));
        threads
    }

    /// The end of a connection whose flows cannot be served or learnt from.
    fn broken(&self, error: RealTimeError) -> Down {
        match error.may_pass() {
            true => Down::Lost(error.to_string()),
            false => Down::Failed(WorkError::RealTime(error)),
        }
    }

    /// Takes note of what the learner says until the connection ends, or acting does.
    async fn follow(
        &self,
        from_learner: &mut Streaming<FromLearner>,
        exchange: &RemoteExchange,
        shape: &Shape,
        serving: Option<&Serving<'_>>,
        watch: &mut dyn FnMut(WorkEvent),
    ) -> Down {
        let mut shown = Instant::now();
        while !exchange.is_over() {
            if shown.elapsed() >= PROGRESS_PERIOD {
                shown = Instant::now();
                watch(WorkEvent::Progress {
                    rollouts: exchange.sent(),
                    version: exchange.newest().version,
                });
                if let Some(serving) = serving {
                    watch(WorkEvent::Streaming(serving.point()));
                }
            }
            // Acting may end in between.
            let Ok(received) = timeout(Duration::from_millis(250), from_learner.message()).await
            else {
                continue;
            };
            let content = received.map_err(|status| self.of_status(&status));
            let outcome = match content.and_then(|message| self.content(message)) {
                Ok(from_learner::Content::Policy(policy)) => self
                    .snapshot(shape, &policy)
                    .map(|policy| exchange.publish(policy)),
                Ok(from_learner::Content::Credit(credit)) => {
                    exchange.add_credits(credit.messages);
                    Ok(())
                }
                Ok(from_learner::Content::Finished(_)) => Err(Down::Finished),
                Ok(
                    from_learner::Content::Plan(_)
                    | from_learner::Content::Start(_)
                    | from_learner::Content::Totals(_),
                ) => Err(self.refused("the learner sends what is not due".into())),
                Err(down) => Err(down),
            };
            if let Err(down) = outcome {
                return down;
            }
        }
        // An actor has panicked, or the stream does not take what there are credits for.
        self.lost("the stream is stuck")
    }

    pub(super) fn lost(&self, reason: &str) -> Down {
        Down::Lost(format!("{}: {reason}", self.learner))
    }

    /// What a message of the learner holds; `None` is the end of the stream.
    pub(super) fn content(
        &self,
        message: Option<FromLearner>,
    ) -> Result<from_learner::Content, Down> {
        match message {
            None => Err(Down::Lost(format!(
                "{}: the learner has closed the stream",
                self.learner
            ))),
            Some(FromLearner { content: None }) => {
                Err(self.refused("a message of another release".into()))
            }
            Some(FromLearner {
                content: Some(content),
            }) => Ok(content),
        }
    }

    /// The end of a stream, as its status says.
    pub(super) fn of_status(&self, status: &Status) -> Down {
        match rpc::is_refusal(status.code()) {
            true => self.refused(rpc::reason(status)),
            false => Down::Lost(format!("{}: {}", self.learner, rpc::reason(status))),
        }
    }

    fn refused(&self, reason: String) -> Down {
        Down::Failed(WorkError::Refused {
            learner: self.learner.clone(),
            reason,
        })
    }
}

/// Returns how a worker connects, as [`transport::endpoint`] but with more patience: a learner with
/// hundreds of workers may take seconds to answer a probe.
///
/// # Errors
///
/// Returns an error in the cases of [`transport::endpoint`].
pub fn endpoint(
    learner: &ServerAddress,
    tls: Option<&TlsFiles>,
    plaintext: Plaintext,
) -> Result<Endpoint, ConnectError> {
    let endpoint = transport::endpoint(learner, tls, plaintext)?;
    Ok(endpoint
        .http2_keep_alive_interval(PROBE)
        .keep_alive_timeout(PROBE))
}

/// Sends a message of the handshake.
fn say(to_learner: &mpsc::Sender<FromWorker>, content: from_worker::Content) {
    let content = Some(content);
    // There is room for the handshake's messages, and a stream that has ended says so itself.
    let _ = to_learner.try_send(FromWorker { content });
}

/// Acts for a few rollouts, and sends these again and again until acting is over.
fn replay(exchange: &RemoteExchange, mut actor: Actor) {
    let _end = EndOfActing(exchange);
    let mut collected = StepOutput::default();
    while collected.rollouts.len() < REPLAYED {
        if exchange.is_over() {
            return;
        }
        actor.step(&mut collected);
    }
    while !exchange.is_over() {
        let version = exchange.newest().version;
        let mut output = collected.clone();
        for rollout in &mut output.rollouts {
            rollout.version = version;
        }
        exchange.put(&mut output);
        // An episode ends once.
        collected.episodes.clear();
    }
}
