//! Training: actors collect rollouts, a learner updates the network, and
//! a directory holds the results.
//!
//! The directory gets `checkpoint.bin`, from which the run continues; `train.json` with the
//! settings and the learning curve; event files for TensorBoard; and, if the environment's policies
//! have files, `policy.onnx`.
//!
//! # Example
//!
//! CartPole: learn to balance a pole on a cart, from 40,000 steps with one thread that acts and
//! learns in turns, so that the seed determines the result. Random actions reach returns of about
//! 20; `cc-trainer/training/cartpole.toml` solves the task, with returns above 475.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//!
//! use cc_trainer::train::{self, Training, config::Overrides};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scratch = tempfile::tempdir()?;
//! let training = Training {
//!     config: Some(toml::from_str(
//!         r#"
//!         steps = 40_000
//!         actors = 0
//!         threads = 1
//!
//!         [environment]
//!         kind = "cartpole"
//!
//!         [model]
//!         hidden = [32]
//!         activation = "tanh"
//!         lstm = 0
//!
//!         [learner]
//!         batch = 8
//!         unroll = 20
//!         learning_rate = 1e-2
//!         gradient_clip = 10
//!
//!         [actor]
//!         environments = 16
//!         "#,
//!     )?),
//!     overrides: Overrides::default(),
//!     dir: scratch.path().to_owned(),
//!     command: String::new(),
//!     listening: None,
//!     metrics: None,
//!     store: None,
//! };
//!
//! let record = train::train(&training, &AtomicBool::new(false), &mut |_event| {})?;
//!
//! let mean_return = record.last.episode_return.expect("episodes have ended");
//! println!("mean return of the last 100 episodes: {mean_return:.1}");
//! assert!(mean_return > 60.0, "the pole is balanced for longer than by random actions");
//! assert!(record.curve.len() > 100);
//! assert!(scratch.path().join("checkpoint.bin").exists());
//! # Ok(())
//! # }
//! ```

mod acting;
mod checkpoint;
pub mod config;
mod curve;
pub mod distributed;
pub mod environments;
mod epoch;
mod error;
pub mod exchange;
pub mod final_policy;
mod fit;
pub mod greedy;
pub mod held_out;
pub mod metrics;
mod open;
pub mod progress;
pub mod record;
mod replay;
mod resume;
mod save;
mod source;
mod splits;
mod statistics;
mod store;
pub mod tensorboard;
mod validation;
mod workers;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) use self::splits::{of_policy as test_sets_seen, stated as stated_test_sets};
use self::{
    acting::actor,
    config::{ActorSettings, Config, Overrides},
    distributed::{Figures, Group, Listening},
    exchange::{EndOfActing, Exchange, LocalExchange, Published, QueueReport},
    held_out::HeldOut,
    metrics::{Exporter, Meter, MetricsAddress},
    record::{Finish, Record},
    replay::{Mixture, Replay},
    source::Source,
    statistics::{Statistics, Timing},
    store::Copier,
    tensorboard::EventWriter,
    validation::Validation,
};
pub use self::{
    checkpoint::CheckpointError,
    error::{LastCheckpoint, TrainError},
    replay::ReplayPoint,
    splits::TestSetError,
    statistics::{CurvePoint, TaskPoint},
    store::{DirectoryError, StoreError},
};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    environment::recorded::RecordedWorld,
    learner::{Learner, UpdateError},
    normalise::Normalizer,
    rollout::Rollout,
};

/// Time between two [`TrainEvent::Progress`] events.
const PROGRESS_PERIOD: Duration = Duration::from_millis(250);

/// A training run to begin or to continue.
#[derive(Clone, Debug)]
pub struct Training {
    /// The configuration of a new run. For a run that is continued, `None` takes the checkpoint's,
    /// and a configuration that is given must agree with it.
    pub config: Option<Config>,
    /// Settings of the command line, which replace the configuration's.
    pub overrides: Overrides,
    /// The run's directory; created if it does not exist.
    pub dir: PathBuf,
    /// The command line, for `train.json`; may be empty.
    pub command: String,
    /// Where the learner listens for workers on other machines; `None` for a run of this process
    /// alone.
    pub listening: Option<Listening>,
    /// Where the run's metrics are served; `None` for nowhere.
    pub metrics: Option<MetricsAddress>,
    /// The directory or object store, by path or URL, that checkpoints are copied to, and that the
    /// run is continued from if it is further there; `None` for none.
    pub store: Option<String>,
}

/// Something that a caller of [`train`] may want to show.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TrainEvent<'a> {
    /// The run begins, or is continued.
    Begun {
        /// Settings, network and former parts of the run.
        record: &'a Record,
        /// Environment steps learnt from before; 0 for a new run.
        steps: u64,
    },
    /// Workers on other machines can connect from now on.
    Listening {
        /// The address that is listened on, with its port.
        address: SocketAddr,
        /// The run's name, by which workers know it again.
        run: &'a str,
    },
    /// Metrics are served from now on.
    Metrics {
        /// The address that is listened on, with its port.
        address: SocketAddr,
    },
    /// The current figures, about four times per second.
    Progress(&'a CurvePoint),
    /// Something about the run that may not be meant so.
    Warning(&'a str),
}

/// Trains until the configured steps are done, the configured return is reached, or `stop` is true.
/// Calls `watch` with the progress.
///
/// # Errors
///
/// Returns an error when the run cannot begin, its files cannot be written, its device fails, or
/// training diverges (see [`TrainError`]). What was learnt until the last checkpoint is kept.
pub fn train(
    training: &Training,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(TrainEvent<'_>),
) -> Result<Record, TrainError> {
    Run::open(training)?.complete(stop, watch)
}

/// The state of a run in progress.
struct Run {
    dir: PathBuf,
    record: Record,
    statistics: Statistics,
    learner: Learner,
    events: EventWriter,
    source: Source,
    /// The transform of observations; `None` for environments that need none.
    normalizer: Option<Arc<Normalizer>>,
    /// Name of each task, by its index.
    tasks: Vec<String>,
    /// Recorded flows that nothing is learned from, if there are any.
    held_out: Option<HeldOut>,
    /// How policies that select bitrates are judged, if they are.
    validation: Option<Validation>,
    /// When this part of the run began.
    begun: Instant,
    /// Time spent in earlier parts of the run, s.
    seconds_before: f64,
    /// When the last checkpoint was written.
    saved: Instant,
    /// The last checkpoint, which the run can be continued from.
    kept: LastCheckpoint,
    /// When progress was last shown.
    shown: Instant,
    /// Where workers can connect, if they can.
    listening: Option<Listening>,
    /// The workers of this part of the run, while it listens.
    workers: Option<Figures>,
    /// The replicas that the learner learns with, while it listens for some.
    group: Option<Arc<Group>>,
    /// The rollouts that are learnt from again; `None` without replay.
    replay: Option<Replay>,
    /// Where its metrics are to be served, if they are.
    metrics: Option<MetricsAddress>,
    /// What serves them while the run is in progress.
    exporter: Option<Exporter>,
    /// What copies the run's files to its store, if it has one.
    copier: Option<Copier>,
}

impl Run {
    /// Trains to the end, as [`train`].
    fn complete(
        mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<Record, TrainError> {
        watch(TrainEvent::Begun {
            record: &self.record,
            steps: self.statistics.steps,
        });
        for warning in self.record.config.warnings(self.source.interface()) {
            watch(TrainEvent::Warning(&warning));
        }
        if let Some(counts) = self.source.recorded().and_then(RecordedWorld::joined)
            && counts.flows_without_row > 0
        {
            watch(TrainEvent::Warning(&format!(
                "{} of {} recorded flows are left out, of which what was joined has no row",
                counts.flows_without_row,
                counts.flows + counts.flows_without_row,
            )));
        }
        if self.copier.is_some() {
            self.save()?;
        }
        if let Some(copier) = &self.copier {
            // A store that cannot be written to is better known now than after the first hour.
            copier.copy_now()?;
        }
        if !self.is_done() {
            self.export(watch)?;
            match (self.record.config.actors(), &self.listening) {
                (0, None) => self.act_and_learn_in_turns(stop, watch)?,
                _ => self.act_and_learn_in_parallel(stop, watch)?,
            }
        }
        self.complete_curve()?;
        self.complete_validation()?;
        self.save()?;
        if let Some(copier) = self.copier.take() {
            copier.finish()?;
        }
        Ok(self.record)
    }

    /// Begins to serve metrics, if the run is to.
    fn export(&mut self, watch: &mut dyn FnMut(TrainEvent<'_>)) -> Result<(), TrainError> {
        let Some(at) = self.metrics else {
            return Ok(());
        };
        let meter = Meter::new(self.statistics.steps, self.learner.updates());
        let exporter = Exporter::start(at, meter)?;
        watch(TrainEvent::Metrics {
            address: exporter.address(),
        });
        self.exporter = Some(exporter);
        Ok(())
    }

    /// Acts and learns in turns on one thread, which makes the run a function of its seed.
    fn act_and_learn_in_turns(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let mut actor = self.actor(0, self.policy()?.snapshot());
        let mut output = StepOutput::default();
        while !self.is_done() && !stop.load(Ordering::Relaxed) {
            let fresh = self.fresh();
            actor.adopt(self.policy()?.snapshot());
            let since = Instant::now();
            while output.rollouts.len() < fresh {
                actor.step(&mut output);
            }
            let rollouts: Vec<_> = output.rollouts.drain(..fresh).collect();
            let report = QueueReport {
                episodes: std::mem::take(&mut output.episodes),
                ..QueueReport::default()
            };
            let acted = since.elapsed();
            self.learn(rollouts, report, Some(acted), watch)?;
        }
        Ok(())
    }

    /// Runs actors on threads of their own beside the learner on this one, and serves workers if
    /// the run listens for them. Actors wait for the learner only if the queue is configured so.
    fn act_and_learn_in_parallel(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let config = &self.record.config;
        let (actors, capacity) = (config.actors(), config.queue());
        let ActorSettings {
            when_full, max_lag, ..
        } = config.actor;
        let exchange = LocalExchange::new(capacity, when_full, max_lag, self.policy()?);
        let exchange = &Arc::new(exchange);
        let server = self.listen(exchange, watch)?;
        let outcome = thread::scope(|scope| {
            // The scope waits for the actors, also when this closure panics.
            let end = EndOfActing(&**exchange);
            let threads: Vec<_> = (0..actors)
                .map(|index| {
                    let actor = self.actor(index, exchange.newest().snapshot());
                    scope.spawn(move || exchange::act(&**exchange, actor))
                })
                .collect();
            let result = self.learn_while(exchange, stop, watch);
            drop(end);
            // A panic has printed its message; the scope must not panic in turn.
            let ended_well = threads
                .into_iter()
                .map(std::thread::ScopedJoinHandle::join)
                .all(|end| end.is_ok());
            result.and(match ended_well {
                true => Ok(()),
                false => Err(self.actor_panicked()),
            })
        });
        match server {
            // If it is what failed, its reason is the one to know.
            Some(server) => server.stop(self.is_done()).map_err(Into::into).and(outcome),
            None => outcome,
        }
    }

    /// Learns from what is acted until the run is done.
    fn learn_while(
        &mut self,
        exchange: &LocalExchange,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        while !self.is_done() && !stop.load(Ordering::Relaxed) {
            if exchange.is_over() {
                return Err(self.actor_panicked());
            }
            if let Some((rollouts, report)) = exchange.take(self.fresh())
                && self.wait_for_replicas(exchange, stop, watch)
            {
                self.learn(rollouts, report, None, watch)?;
                exchange.publish(self.policy()?);
            }
        }
        Ok(())
    }

    /// Number of new rollouts in the next update.
    fn fresh(&self) -> usize {
        let learner = &self.record.config.learner;
        Mixture::new(learner.batch, learner.replay.as_ref()).fresh(self.learner.updates())
    }

    /// Makes one update from new rollouts and replayed ones, counts it, and writes what is due.
    /// `acted` is the time that this thread spent acting for the batch; `None` if actors have their
    /// own threads.
    fn learn(
        &mut self,
        mut rollouts: Vec<Rollout>,
        report: QueueReport,
        acted: Option<Duration>,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let config = &self.record.config;
        let unroll = config.learner.unroll as u64;
        let position = config.position(self.statistics.steps);
        let updates = self.learner.updates();
        let fresh = rollouts.len();
        if let Some(replay) = &mut self.replay {
            replay.complete(&mut rollouts, updates);
        }
        let since = Instant::now();
        let updated = self.learner.update(&rollouts, position);
        let metrics = updated.map_err(|error| match error {
            UpdateError::Diverged(cause) => self.diverged(cause),
            UpdateError::Device(cause) => self.device_failed(cause),
            UpdateError::Partners(cause) => TrainError::Partners(cause),
        })?;
        let busy = since.elapsed();
        let elsewhere = self.group.as_ref().map_or(0, |group| group.take_fresh());
        let steps = (fresh as u64 + elsewhere) * unroll;
        if let Some(workers) = &mut self.workers {
            workers.count(&rollouts[..fresh], updates, steps, report.stale);
        }
        let learner = busy.as_secs_f64();

        for episode in &report.episodes {
            self.statistics.episode(episode);
        }
        self.statistics.dropped += report.dropped;
        let waited = match acted {
            Some(_) => learner,
            None => report.waited.as_secs_f64() / self.acting() as f64,
        };
        let timing = Timing {
            at: self.seconds(),
            learner,
            waited,
        };
        self.statistics.update(metrics, steps, timing);
        if let Some(exporter) = &self.exporter {
            let mut learnt = exporter.meter().learnt();
            learnt.take(&rollouts[..fresh], updates);
            learnt.steps += steps;
            learnt.run_steps = self.statistics.steps;
            learnt.version = self.learner.updates();
            learnt.busy += busy;
            learnt.stale += report.stale;
            learnt.dropped += report.dropped;
            learnt.episode_return = self.statistics.recent_return();
        }
        if let Some(replay) = &mut self.replay {
            replay.keep(rollouts, fresh, self.learner.updates());
        }

        self.extend_curve_after(steps)?;
        self.try_held_out_after(steps)?;
        self.validate_after(steps)?;
        if self.shown.elapsed() >= PROGRESS_PERIOD {
            self.shown = Instant::now();
            watch(TrainEvent::Progress(&self.point()));
        }
        if self.saved.elapsed().as_secs_f64() >= self.record.config.checkpoint_seconds {
            self.save()?;
        }
        if let Some(news) = self.copier.as_ref().and_then(Copier::news) {
            watch(TrainEvent::Warning(&news));
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.finish() != Finish::Open
    }

    /// Why the run is finished, or [`Finish::Open`] while it is not.
    fn finish(&self) -> Finish {
        let config = &self.record.config;
        let reached = |goal| {
            self.statistics
                .settled_return()
                .is_some_and(|mean| mean >= goal)
        };
        if config.until_return.is_some_and(reached) {
            Finish::Return
        } else if self.statistics.steps >= config.steps {
            Finish::Steps
        } else if self.is_past_its_best() {
            Finish::Patience
        } else {
            Finish::Open
        }
    }

    /// Time spent training in all parts of the run, s.
    fn seconds(&self) -> f64 {
        self.seconds_before + self.begun.elapsed().as_secs_f64()
    }

    /// A copy of the current policy, to be made ready by whoever acts.
    fn policy(&self) -> Result<Published, TrainError> {
        let mut parameters = Vec::new();
        let copied = self.learner.device().parameters(&mut parameters);
        copied.map_err(|cause| self.device_failed(cause))?;
        let shape = Arc::new(self.record.shape.clone());
        Ok(Published::new(self.learner.updates(), shape, parameters))
    }

    /// An actor with new environments.
    fn actor(&self, index: usize, policy: Arc<Snapshot>) -> Actor {
        let place = [self.statistics.steps, index as u64];
        let normalizer = self.normalizer.as_ref();
        actor(&self.record.config, &self.source, normalizer, place, policy)
    }
}

#[cfg(test)]
mod tests;
