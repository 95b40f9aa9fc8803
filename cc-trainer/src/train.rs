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

mod checkpoint;
pub mod config;
mod curve;
pub mod environments;
mod epoch;
mod error;
mod fit;
pub mod greedy;
pub mod held_out;
mod parallel;
pub mod progress;
mod queue;
pub mod record;
mod resume;
mod save;
mod splits;
mod statistics;
pub mod tensorboard;
pub mod validation;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use self::{
    checkpoint::CheckpointError,
    error::{LastCheckpoint, TrainError},
    splits::TestSetError,
    statistics::{CurvePoint, TaskPoint},
};
use self::{
    config::{Config, Overrides},
    environments::Source,
    held_out::HeldOut,
    parallel::Acting,
    queue::QueueReport,
    record::{Finish, Record},
    statistics::{Statistics, Timing},
    tensorboard::EventWriter,
    validation::Validation,
};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    environment::recorded::RecordedWorld,
    learner::{Learner, UpdateError},
    model::Weights,
    normalise::Normalizer,
    rollout::Rollout,
};
use cc_sim::seed;

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
        if !self.is_done() {
            match self.record.config.actors() {
                0 => self.act_and_learn_in_turns(stop, watch)?,
                _ => self.act_and_learn_in_parallel(stop, watch)?,
            }
        }
        self.complete_curve()?;
        self.complete_validation()?;
        self.save()?;
        Ok(self.record)
    }

    /// Acts and learns in turns on one thread, which makes the run a function of its seed.
    fn act_and_learn_in_turns(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let mut actor = self.actor(0, self.snapshot()?);
        let mut output = StepOutput::default();
        let batch_size = self.record.config.learner.batch;
        while !self.is_done() && !stop.load(Ordering::Relaxed) {
            actor.adopt(self.snapshot()?);
            let since = Instant::now();
            while output.rollouts.len() < batch_size {
                actor.step(&mut output);
            }
            let rollouts: Vec<_> = output.rollouts.drain(..batch_size).collect();
            let report = QueueReport {
                episodes: std::mem::take(&mut output.episodes),
                ..QueueReport::default()
            };
            let acted = since.elapsed();
            self.learn(&rollouts, report, Some(acted), watch)?;
        }
        Ok(())
    }

    /// Runs actors on threads of their own beside the learner on this one. Actors wait for the
    /// learner only if the queue is configured so.
    fn act_and_learn_in_parallel(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let config = &self.record.config;
        let (actors, capacity) = (config.actors(), config.queue());
        let acting = &Acting::new(capacity, config.actor.when_full, self.snapshot()?);
        thread::scope(|scope| {
            // The scope waits for the actors, also when this closure panics.
            let end = acting.end_later();
            let threads: Vec<_> = (0..actors)
                .map(|index| {
                    let actor = self.actor(index, acting.newest());
                    scope.spawn(move || acting.act(actor))
                })
                .collect();
            let result = self.learn_while(acting, stop, watch);
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
        })
    }

    /// Learns from what is acted until the run is done.
    fn learn_while(
        &mut self,
        acting: &Acting,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let batch_size = self.record.config.learner.batch;
        while !self.is_done() && !stop.load(Ordering::Relaxed) {
            if acting.is_over() {
                return Err(self.actor_panicked());
            }
            if let Some((rollouts, report)) = acting.take(batch_size) {
                self.learn(&rollouts, report, None, watch)?;
                acting.publish(self.snapshot()?);
            }
        }
        Ok(())
    }

    /// Makes one update from a batch of rollouts, counts it, and writes what is due. `acted` is the
    /// time that this thread spent acting for the batch; `None` if actors have their own threads.
    fn learn(
        &mut self,
        rollouts: &[Rollout],
        report: QueueReport,
        acted: Option<Duration>,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<(), TrainError> {
        let config = &self.record.config;
        let steps = (rollouts.len() * config.learner.unroll) as u64;
        let position = config.position(self.statistics.steps);
        let since = Instant::now();
        let updated = self.learner.update(rollouts, position);
        let metrics = updated.map_err(|error| match error {
            UpdateError::Diverged(cause) => self.diverged(cause),
            UpdateError::Device(cause) => self.device_failed(cause),
        })?;
        let learner = since.elapsed().as_secs_f64();

        for episode in &report.episodes {
            self.statistics.episode(episode);
        }
        self.statistics.dropped += report.dropped;
        let waited = match acted {
            Some(_) => learner,
            None => report.waited.as_secs_f64() / config.actors() as f64,
        };
        let timing = Timing {
            at: self.seconds(),
            learner,
            waited,
        };
        self.statistics.update(metrics, steps, timing);

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

    /// A copy of the current policy for actors.
    fn snapshot(&self) -> Result<Arc<Snapshot>, TrainError> {
        let mut parameters = Vec::new();
        let copied = self.learner.device().parameters(&mut parameters);
        copied.map_err(|cause| self.device_failed(cause))?;
        Ok(Arc::new(Snapshot {
            version: self.learner.updates(),
            weights: Weights::new(&self.record.shape, &parameters),
        }))
    }

    /// An actor with new environments. Their seeds depend on the steps done before, so that a run
    /// that is continued does not repeat its first episodes.
    fn actor(&self, index: usize, policy: Arc<Snapshot>) -> Actor {
        let config = &self.record.config;
        let seed = |number: usize| {
            [self.statistics.steps, index as u64, number as u64]
                .into_iter()
                .fold(config.seed, seed::fold)
        };
        let environments = (0..config.actor.environments)
            .map(|number| {
                self.source
                    .environment(number, seed(number + 1), self.normalizer.as_ref())
            })
            .collect();
        Actor::new(environments, policy, config.learner.unroll, seed(0))
            .at_temperature(config.learner.policy_temperature())
            .with_burn_in(config.learner.burn_in)
    }
}

#[cfg(test)]
mod tests;
