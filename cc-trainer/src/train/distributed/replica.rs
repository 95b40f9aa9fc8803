//! A replica of the learner: learns from rollouts of its own actors, and sends the gradients to the
//! learner, which takes the steps.

use std::{
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{self as threads, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use cc_sim::seed;
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};
use tonic::Streaming;

use super::{
    wire::{
        Batch, Begin, EPISODES, FromLearner, FromWorker, Gradient, Start, Sums, from_learner,
        from_worker, to_bytes, to_floats,
    },
    work::Work,
    worker::{Down, Learning, PROGRESS_PERIOD, Session, WorkError, WorkEvent, Worker},
};
use crate::{
    learner::{
        Learner, LearnerState, Reduction, SchedulePosition, UpdateError,
        partners::{Beginning, Partners, PartnersError},
    },
    listening,
    model::{self, Device, RmsProp},
    train::{
        acting::actor,
        exchange::{self, EndOfActing, Exchange, LocalExchange, Published, QueueReport},
        replay::{Mixture, Replay},
    },
};

impl Worker {
    /// Learns until the connection ends.
    pub(super) fn learn(
        &self,
        learning: Learning,
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
        let device = match model::device(learning.device, &work.shape, learning.threads) {
            Ok(device) => device,
            Err(error) => return Down::Failed(WorkError::Device(error)),
        };
        let config = &work.config;
        let settings = config.learner.clone();
        let state = LearnerState::new(work.source.spec().tasks, &settings);
        let mut learner = Learner::new(device, settings, state, policy.version);
        let (hear, heard) = threads::channel();
        learner.learn_with(Box::new(Follower::new(to_learner.clone(), heard)));

        // Of another seed than the learner's own, by the index of the replica's first actor.
        let seed = seed::fold(config.seed, work.plan.first_actor);
        let replay = (config.learner.replay.as_ref())
            .map(|replay| Replay::start(config.learner.batch, replay, seed))
            .transpose();
        let replay = match replay {
            Ok(replay) => replay,
            Err(error) => return Down::Failed(WorkError::Runtime(error)),
        };

        let parameters = policy.weights.parameters().to_vec();
        let published = Published::new(policy.version, Arc::new(work.shape.clone()), parameters);
        let exchange = &LocalExchange::new(
            config.learner.batch + self.actors * config.actor.environments,
            config.actor.when_full,
            config.actor.max_lag,
            published,
        );
        thread::scope(|scope| {
            // The scope waits for the threads, also when this closure panics.
            let end = EndOfActing(exchange);
            let actors: Vec<_> = (0..self.actors as u64)
                .map(|number| {
                    let actor = actor(
                        config,
                        &work.source,
                        work.normalizer.as_ref(),
                        [work.plan.steps, work.plan.first_actor + number],
                        policy.clone(),
                    );
                    scope.spawn(move || exchange::act(exchange, actor))
                })
                .collect();
            let work = &work;
            let learning =
                scope.spawn(move || learn_from(exchange, &mut learner, replay, &to_learner, work));
            let down = runtime.block_on(async {
                tokio::select! {
                    () = listening::stopped(stop) => Down::Stopped,
                    down = self.hear(&mut from_learner, exchange, &hear, watch) => down,
                }
            });
            // Whoever waits for the learner's next message waits no more.
            drop(hear);
            drop(end);
            // A panic has printed its message; the scope must not panic in turn.
            let learnt = learning.join();
            let acted_well = (actors.into_iter())
                .map(thread::ScopedJoinHandle::join)
                .all(|end| end.is_ok());
            match (learnt, acted_well) {
                (Ok(Ok(())), true) => down,
                (Ok(Err(error)), _) => Down::Failed(WorkError::Update(error)),
                _ => Down::Failed(WorkError::Actor),
            }
        })
    }

    /// Hands on what the learner says until the connection ends, or learning does.
    async fn hear(
        &self,
        from_learner: &mut Streaming<FromLearner>,
        exchange: &LocalExchange,
        hear: &Sender<from_learner::Content>,
        watch: &mut dyn FnMut(WorkEvent),
    ) -> Down {
        let mut shown = Instant::now();
        let mut updates = 0;
        while !exchange.is_over() {
            if shown.elapsed() >= PROGRESS_PERIOD {
                shown = Instant::now();
                watch(WorkEvent::Learning {
                    updates,
                    version: exchange.newest().version,
                });
            }
            // Learning may end in between.
            let Ok(received) = timeout(Duration::from_millis(250), from_learner.message()).await
            else {
                continue;
            };
            let content = received.map_err(|status| self.of_status(&status));
            match content.and_then(|message| self.content(message)) {
                Ok(from_learner::Content::Finished(_)) => return Down::Finished,
                Ok(content) => {
                    updates += u64::from(matches!(content, from_learner::Content::Start(_)));
                    // The learning thread may have ended, as the loop's condition will tell.
                    let _ = hear.send(content);
                }
                Err(down) => return down,
            }
        }
        // An actor or the learning thread has ended, and says why.
        self.lost("learning has ended")
    }
}

/// Learns from what is acted until acting is over or the learner is gone.
fn learn_from(
    exchange: &LocalExchange,
    learner: &mut Learner,
    mut replay: Option<Replay>,
    to_learner: &mpsc::Sender<FromWorker>,
    work: &Work,
) -> Result<(), UpdateError> {
    let _end = EndOfActing(exchange);
    let shape = Arc::new(work.shape.clone());
    let settings = &work.config.learner;
    let mixture = Mixture::new(settings.batch, settings.replay.as_ref());
    while !exchange.is_over() {
        let fresh = mixture.fresh(learner.updates());
        let Some((mut rollouts, report)) = exchange.take(fresh) else {
            continue;
        };
        let begin = Begin {
            fresh: fresh as u32,
            oldest: rollouts.iter().map(|own| own.version).min().unwrap_or(0),
        };
        if let Some(replay) = &mut replay {
            replay.complete(&mut rollouts, learner.updates());
        }
        tell_episodes(to_learner, &report);
        say(to_learner, from_worker::Content::Begin(begin));
        // The learner's parameters have come with the update, and are still these.
        let version = match learner.update(&rollouts, SchedulePosition::default()) {
            Ok(_) => learner.updates() - 1,
            Err(UpdateError::Partners(PartnersError::Stale)) => learner.updates(),
            // Whoever hears the learner knows why.
            Err(UpdateError::Partners(PartnersError::Gone(_))) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(replay) = &mut replay {
            replay.keep(rollouts, fresh, learner.updates());
        }
        let mut parameters = Vec::new();
        learner.device().parameters(&mut parameters)?;
        exchange.publish(Published::new(version, shape.clone(), parameters));
    }
    Ok(())
}

/// Tells the learner of the episodes that have ended.
fn tell_episodes(to_learner: &mpsc::Sender<FromWorker>, report: &QueueReport) {
    if let Some(episodes) = report.episodes.chunks(EPISODES).next() {
        let batch = Batch::of(&[], episodes, report.waited);
        say(to_learner, from_worker::Content::Batch(batch));
    }
}

/// Sends a message. There is room for all messages of an update; a stream that has ended says so
/// itself.
fn say(to_learner: &mpsc::Sender<FromWorker>, content: from_worker::Content) {
    let content = Some(content);
    let _ = to_learner.try_send(FromWorker { content });
}

/// The learner, and by it all others, as a replica's [`Partners`].
#[derive(Debug)]
pub struct Follower {
    to_learner: mpsc::Sender<FromWorker>,
    /// What the learner says. It ends with the connection.
    heard: Receiver<from_learner::Content>,
    /// Number of updates before the present one.
    updates: u64,
}

impl Follower {
    /// The learner at the other end of a stream. `heard` has what it says after the handshake.
    pub fn new(
        to_learner: mpsc::Sender<FromWorker>,
        heard: Receiver<from_learner::Content>,
    ) -> Self {
        Self {
            to_learner,
            heard,
            updates: 0,
        }
    }

    fn next(&self) -> Result<from_learner::Content, PartnersError> {
        let gone = |_| PartnersError::Gone("the connection has ended".to_owned());
        self.heard.recv().map_err(gone)
    }
}

/// What a learner of another release may say.
fn unexpected(what: &str) -> PartnersError {
    PartnersError::Gone(format!("{what}: use the same release on both"))
}

impl Partners for Follower {
    /// Takes over what the learner begins the update with, or its parameters alone where it goes on
    /// without this replica.
    fn begin(&mut self, beginning: Beginning<'_>) -> Result<(), PartnersError> {
        let own = &mut Vec::new();
        beginning.device.parameters(own)?;
        let usable = |bytes: &[u8]| {
            let parameters = to_floats(bytes);
            let is_usable = bytes.len() == 4 * own.len()
                && parameters.iter().all(|parameter| parameter.is_finite());
            match is_usable {
                true => Ok(parameters),
                false => Err(unexpected("the learner's parameters cannot be used")),
            }
        };
        match self.next()? {
            from_learner::Content::Start(start) => {
                let Start {
                    updates,
                    learning_rate,
                    entropy,
                    parameters,
                    state,
                } = start;
                let state: LearnerState = serde_json::from_str(&state)
                    .map_err(|error| unexpected(&format!("the learner's state: {error}")))?;
                if !state.has_tasks_of(beginning.state) {
                    return Err(unexpected("the learner has another number of tasks"));
                }
                beginning.device.set_parameters(&usable(&parameters)?)?;
                *beginning.state = state;
                *beginning.updates = updates;
                *beginning.position = SchedulePosition {
                    learning_rate,
                    entropy,
                };
                self.updates = updates;
                Ok(())
            }
            from_learner::Content::Policy(policy) => {
                let parameters = usable(&policy.parameters)?;
                beginning.device.set_parameters(&parameters)?;
                *beginning.updates = policy.version;
                Err(PartnersError::Stale)
            }
            _ => Err(unexpected("expected the beginning of an update")),
        }
    }

    fn sum(&mut self, sums: &mut [f64]) -> Result<(), PartnersError> {
        let own = Sums {
            updates: self.updates,
            values: sums.to_vec(),
        };
        say(&self.to_learner, from_worker::Content::Sums(own));
        match self.next()? {
            from_learner::Content::Totals(all)
                if all.values.len() == sums.len() && all.check().is_ok() =>
            {
                sums.copy_from_slice(&all.values);
                Ok(())
            }
            _ => Err(unexpected("expected the sums of an update")),
        }
    }

    /// Sends the gradient. The step is the learner's, and its parameters come with the next update:
    /// the norm that is returned is 0.
    fn step(
        &mut self,
        device: &mut dyn Device,
        rollouts: usize,
        _: Reduction,
        _: &RmsProp,
    ) -> Result<f32, PartnersError> {
        let mut gradient = Vec::new();
        device.gradient(&mut gradient)?;
        let part = Gradient {
            updates: self.updates,
            rollouts: rollouts as u32,
            values: to_bytes(gradient),
        };
        say(&self.to_learner, from_worker::Content::Gradient(part));
        Ok(0.0)
    }
}
