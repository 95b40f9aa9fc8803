//! Trains: actors, a queue of rollouts, the learner, and what they leave in a directory.
//!
//! The directory gets `checkpoint.bin`, from which the run continues, `train.json` with the settings and the curve, event
//! files for TensorBoard, and `policy.onnx` where the environment is the network.

mod checkpoint;
pub mod config;
pub mod environments;
pub mod progress;
mod queue;
pub mod record;
mod statistics;
pub mod tensorboard;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cc_agent::policy::PolicyFile;
use rand::{RngExt, SeedableRng, rngs::StdRng};

pub use checkpoint::CheckpointError;
pub use statistics::{Point, TaskPoint};

use crate::{
    actor::{Actor, Harvest, Snapshot},
    dataset,
    environment::{Turn, network, recorded},
    export::{self, ExportError},
    learner::{Diverged, Learner, reward::Rewards},
    model::{self, DeviceError, Shape, Weights},
    normalise::Normalizer,
    rollout::Rollout,
    summary::{Host, utc_now},
};
use checkpoint::{Checkpoint, Header};
use config::{Config, ConfigError, Overrides};
use environments::Source;
use queue::{Board, Queue, Taken};
use record::{Finish, Part, Record};
use statistics::{Statistics, Timing};
use tensorboard::EventWriter;

/// Points of a curve.
const POINTS: u64 = 200;
/// How long the learner waits for rollouts before it looks whether actors are still there.
const PATIENCE: Duration = Duration::from_millis(100);

/// A run.
#[derive(Clone, Debug)]
pub struct Training {
    /// The settings of a new run. One that is continued has its own, and these have to be the same; with none, it just
    /// goes on.
    pub config: Option<Config>,
    /// What the command line changes of them.
    pub overrides: Overrides,
    /// The run's directory.
    pub dir: PathBuf,
    /// The command line, for the record.
    pub command: String,
}

/// What a run tells while it goes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It begins, or goes on after so many steps.
    Begun {
        /// What it is.
        record: &'a Record,
        /// Steps done before.
        steps: u64,
    },
    /// How it stands, some times a second.
    Progress(&'a Point),
}

/// Why a run did not begin, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Of its settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Of the settings of its environment.
    #[error("environment.{0}")]
    Environment(#[from] network::NetworkConfigError),
    /// Of its recordings.
    #[error(transparent)]
    Recorded(#[from] recorded::RecordedConfigError),
    /// The policy to begin with cannot be read or used.
    #[error("the policy to begin with, {}: {reason}", path.display())]
    Init {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Neither settings nor a run to continue.
    #[error(
        "{} holds no run to continue, and there is no --config; give one (cc-trainer/training has some)",
        dir.display()
    )]
    Nothing {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has what a run would write, and no run.
    #[error(
        "{} is there already, without a run that could be continued (checkpoint.bin), and nothing is overwritten: choose \
         another directory with --out",
        path.display()
    )]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// The directory has a run with other settings.
    #[error(
        "{} holds a run with other settings ({}); choose another directory with --out, or leave --config away to \
         continue that run",
        dir.display(),
        differences.join("; ")
    )]
    Another {
        /// The directory.
        dir: PathBuf,
        /// What differs.
        differences: Vec<String>,
    },
    /// It cannot be learnt on the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Of its checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file could not be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What was learnt cannot be a policy file.
    #[error("policy.onnx: {0}")]
    Export(#[from] ExportError),
    /// It learnt nonsense; the last checkpoint is from before.
    #[error(transparent)]
    Diverged(#[from] Diverged),
    /// An actor is gone.
    #[error("an actor ended early, as its message above says")]
    Actor,
}

/// Trains until the steps are done, the return asked for is reached, or `stop` is true. Tells `watch` how it goes.
///
/// # Errors
///
/// See [`TrainError`]. What was learnt until then is in the last checkpoint.
pub fn train(
    training: &Training,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Record, TrainError> {
    let mut run = Run::open(training)?;
    watch(Event::Begun {
        record: &run.record,
        steps: run.statistics.steps,
    });
    if !run.is_done() {
        match run.record.config.actors() {
            0 => run.take_turns(stop, watch)?,
            _ => run.side_by_side(stop, watch)?,
        }
    }
    run.end()?;
    Ok(run.record)
}

/// A run under way.
struct Run {
    dir: PathBuf,
    record: Record,
    statistics: Statistics,
    learner: Learner,
    events: EventWriter,
    source: Source,
    normalizer: Option<Arc<Normalizer>>,
    /// Names of tasks.
    tasks: Vec<String>,
    begun: Instant,
    /// Spent in earlier parts, s.
    spent: f64,
    saved: Instant,
    shown: Instant,
}

impl Run {
    /// Begins a run, or takes one up where it was left.
    fn open(training: &Training) -> Result<Self, TrainError> {
        let dir = training.dir.clone();
        let checkpoint = Checkpoint::load(&dir.join("checkpoint.bin"))?;
        let config = match (&training.config, &checkpoint) {
            (Some(config), _) => config.clone(),
            (None, Some(checkpoint)) => checkpoint.header.record.config.clone(),
            (None, None) => return Err(TrainError::Nothing { dir }),
        }
        .resolve(&training.overrides)?;
        if let Some(checkpoint) = &checkpoint {
            let differences = config.differences(&checkpoint.header.record.config);
            if !differences.is_empty() {
                return Err(TrainError::Another { dir, differences });
            }
        }
        if checkpoint.is_none() {
            let mut others = ["policy.onnx", "train.json"]
                .map(|name| dir.join(name))
                .into_iter();
            if let Some(path) = others.find(|path| path.exists()) {
                return Err(TrainError::Exists { path });
            }
        }
        let source = config.environment.open()?;
        let spec = source.spec();
        let shape = config.shape(&spec);
        let init = match (&config.init, &checkpoint) {
            (Some(path), None) => Some(init(path, &source, &shape, config.seed)?),
            _ => None,
        };
        let mut device = model::device(config.device, &shape, config.threads.unwrap_or(1))?;

        let (header, parameters) = match checkpoint {
            Some(checkpoint) => {
                device.set_moments(&checkpoint.moments);
                (checkpoint.header, checkpoint.parameters)
            }
            None => {
                let normalizer = match &init {
                    Some(init) => Some(init.normalizer.clone()),
                    None => fit(&source, config.seed, config.actor.fit_steps),
                };
                let parameters = match init {
                    Some(init) => init.parameters,
                    None => model::initialise(&shape, config.seed),
                };
                let record = Record {
                    version: String::new(),
                    config_sha256: String::new(),
                    config: config.clone(),
                    parameters: parameters.len() as u64,
                    shape,
                    parts: Vec::new(),
                    finish: Finish::Open,
                    last: Point::default(),
                    curve: Vec::new(),
                };
                let header = Header::new(
                    record,
                    Statistics::new(spec.tasks),
                    Rewards::new(spec.tasks),
                    normalizer,
                );
                (header, parameters)
            }
        };
        device.set_parameters(&parameters);
        let Header {
            mut record,
            statistics,
            rewards,
            normalizer,
            ..
        } = header;
        record.version = env!("CARGO_PKG_VERSION").to_owned();
        record.finish = Finish::Open;
        record.config_sha256 = config.sha256();
        record.config = config;
        record.parts.push(Part {
            date: utc_now(),
            command: training.command.clone(),
            from_step: statistics.steps,
            seconds: 0.0,
            host: Host::probe(),
        });

        fs::create_dir_all(&dir).map_err(failed_to_write(&dir))?;
        let now = Instant::now();
        Ok(Self {
            events: EventWriter::create(&dir, since_1970()).map_err(failed_to_write(&dir))?,
            learner: Learner::new(
                device,
                record.config.learner.clone(),
                rewards,
                statistics.updates,
            ),
            spent: record.last.seconds,
            begun: now,
            saved: now,
            shown: now,
            tasks: source.tasks(),
            normalizer: normalizer.map(Arc::new),
            source,
            dir,
            record,
            statistics,
        })
    }

    /// One thread acts and learns in turns: the seed fixes all that happens.
    fn take_turns(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        let mut actor = self.actor(0, self.snapshot());
        let mut harvest = Harvest::default();
        let size = self.record.config.learner.batch;
        while !self.is_done() && !stop.load(Ordering::Relaxed) {
            actor.adopt(self.snapshot());
            let since = Instant::now();
            while harvest.rollouts.len() < size {
                actor.step(&mut harvest);
            }
            let batch: Vec<_> = harvest.rollouts.drain(..size).collect();
            let taken = Taken {
                episodes: std::mem::take(&mut harvest.episodes),
                ..Taken::default()
            };
            let acted = since.elapsed();
            self.learn(&batch, taken, Some(acted), watch)?;
        }
        Ok(())
    }

    /// Actors act in threads of their own, and never wait for the learner unless they are told to.
    fn side_by_side(
        &mut self,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        let config = &self.record.config;
        let (actors, size) = (config.actors(), config.learner.batch);
        let queue = &Queue::new(config.queue(), config.actor.when_full);
        let board = &Board::new(self.snapshot());
        let over = &AtomicBool::new(false);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..actors)
                .map(|index| {
                    let mut actor = self.actor(index, board.newest());
                    scope.spawn(move || {
                        let mut harvest = Harvest::default();
                        while !over.load(Ordering::Relaxed) {
                            if let Some(newer) = board.newer_than(actor.version()) {
                                actor.adopt(newer);
                            }
                            actor.step(&mut harvest);
                            if !harvest.rollouts.is_empty() {
                                queue.put(&mut harvest);
                            }
                        }
                    })
                })
                .collect();
            // Whatever happens, the actors end: the scope waits for them.
            let result = (|| {
                while !self.is_done() && !stop.load(Ordering::Relaxed) {
                    let Some((batch, taken)) = queue.take(size, PATIENCE) else {
                        if threads.iter().any(|thread| thread.is_finished()) {
                            return Err(TrainError::Actor);
                        }
                        continue;
                    };
                    self.learn(&batch, taken, None, watch)?;
                    board.publish(self.snapshot());
                }
                Ok(())
            })();
            over.store(true, Ordering::Relaxed);
            queue.close();
            // A panic has printed its message; the scope must not panic in turn.
            let ended_well = threads
                .into_iter()
                .map(|thread| thread.join())
                .all(|end| end.is_ok());
            result.and(if ended_well {
                Ok(())
            } else {
                Err(TrainError::Actor)
            })
        })
    }

    /// One update and all that follows it. `acted` is the time that the same thread acted for it.
    fn learn(
        &mut self,
        batch: &[Rollout],
        taken: Taken,
        acted: Option<Duration>,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), TrainError> {
        let config = &self.record.config;
        let steps = (batch.len() * config.learner.unroll) as u64;
        let done = self.statistics.steps as f64 / config.decay_steps() as f64;
        let since = Instant::now();
        let update = self.learner.update(batch, done)?;
        let learner = since.elapsed().as_secs_f64();

        for episode in &taken.episodes {
            self.statistics.episode(episode);
        }
        self.statistics.dropped += taken.dropped;
        let waited = match acted {
            Some(_) => learner,
            None => taken.waited.as_secs_f64() / config.actors() as f64,
        };
        let at = self.seconds();
        self.statistics.update(
            update,
            steps,
            Timing {
                at,
                learner,
                waited,
            },
        );

        let per_point = (config.steps / POINTS).max(1);
        if (self.statistics.steps - steps) / per_point < self.statistics.steps / per_point {
            self.mark()?;
        }
        if self.shown.elapsed() >= Duration::from_millis(250) {
            self.shown = Instant::now();
            watch(Event::Progress(&self.point()));
        }
        if self.saved.elapsed().as_secs_f64() >= self.record.config.checkpoint_seconds {
            self.save()?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.finish() != Finish::Open
    }

    fn finish(&self) -> Finish {
        let config = &self.record.config;
        let reached = |goal| {
            self.statistics
                .full_window()
                .is_some_and(|mean| mean >= goal)
        };
        if config.until_return.is_some_and(reached) {
            Finish::Return
        } else if self.statistics.steps >= config.steps {
            Finish::Steps
        } else {
            Finish::Open
        }
    }

    /// Appends a point to the curve and to the event file.
    fn mark(&mut self) -> Result<(), TrainError> {
        let point = self.point();
        let tasks: Vec<_> = point
            .tasks
            .iter()
            .map(|task| (format!("return/{}", task.name), task.episode_return))
            .collect();
        let actions: Vec<_> = (0..)
            .zip(&point.actions)
            .map(|(action, share): (usize, _)| (format!("actions/{action}"), *share))
            .collect();
        let values = [
            ("episode/return", point.episode_return),
            ("episode/steps", point.episode_steps),
            ("loss/policy", Some(point.policy_loss)),
            ("loss/baseline", Some(point.baseline_loss)),
            ("loss/td", Some(point.td_loss)),
            ("loss/mc", Some(point.mc_loss)),
            ("policy/entropy", Some(point.entropy)),
            ("policy/divergence", Some(point.divergence)),
            ("policy/lag", Some(point.policy_lag)),
            ("learner/gradient_norm", Some(point.gradient_norm)),
            ("learner/learning_rate", Some(point.learning_rate)),
            ("speed/steps_per_second", Some(point.steps_per_second)),
            ("speed/learner_utilization", Some(point.learner_utilization)),
            ("speed/actor_utilization", Some(point.actor_utilization)),
            ("speed/dropped", Some(point.dropped as f64)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .chain(
            tasks
                .iter()
                .chain(&actions)
                .map(|(name, value)| (&**name, *value)),
        );
        self.events
            .scalars(point.steps, since_1970(), values)
            .map_err(failed_to_write(&self.dir))?;
        self.record.curve.push(point);
        Ok(())
    }

    /// Writes the checkpoint and the record.
    fn save(&mut self) -> Result<(), TrainError> {
        // A run that had nothing left to do stands as it stood.
        let last = match self.statistics.has_news() {
            true => self.point(),
            false => self.record.last.clone(),
        };
        if let Some(part) = self.record.parts.last_mut() {
            part.seconds = last.seconds - self.spent;
        }
        self.record.last = last;
        self.record.finish = self.finish();
        let mut checkpoint = Checkpoint {
            header: Header::new(
                self.record.clone(),
                self.statistics.clone(),
                self.learner.rewards().clone(),
                self.normalizer.as_deref().cloned(),
            ),
            parameters: Vec::new(),
            moments: Vec::new(),
        };
        self.learner.device().parameters(&mut checkpoint.parameters);
        self.learner.device().moments(&mut checkpoint.moments);
        checkpoint.save(&self.dir.join("checkpoint.bin"))?;
        let json = serde_json::to_vec_pretty(&self.record)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        checkpoint::replace(&self.dir.join("train.json"), &json)?;
        let policy = self.source.policy(
            &self.record.shape,
            &checkpoint.parameters,
            self.normalizer.as_deref(),
            self.record.config.serving,
            self.provenance(),
        );
        if let Some(policy) = policy {
            checkpoint::replace(&self.dir.join("policy.onnx"), &policy?)?;
        }
        self.saved = Instant::now();
        Ok(())
    }

    /// What the policy's file tells about how it came to be. The record, which has the same digest, tells the rest.
    fn provenance(&self) -> BTreeMap<String, String> {
        let record = &self.record;
        BTreeMap::from(
            [
                ("trainer", format!("cc-trainer {}", record.version)),
                ("algorithm", "IMPALA with V-trace".to_owned()),
                ("config", format!("sha256 {}", record.config_sha256)),
                ("date", utc_now()),
                ("steps", self.statistics.steps.to_string()),
                ("updates", self.statistics.updates.to_string()),
                ("seed", record.config.seed.to_string()),
                ("tasks", self.tasks.join(", ")),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    }

    fn end(&mut self) -> Result<(), TrainError> {
        if self
            .record
            .curve
            .last()
            .is_none_or(|point| point.steps < self.statistics.steps)
        {
            self.mark()?;
        }
        self.save()
    }

    fn point(&self) -> Point {
        self.statistics
            .point(self.seconds(), |task| self.tasks[task].clone())
    }

    /// Time spent training, earlier parts included.
    fn seconds(&self) -> f64 {
        self.spent + self.begun.elapsed().as_secs_f64()
    }

    /// The policy as it is now.
    fn snapshot(&self) -> Arc<Snapshot> {
        let mut parameters = Vec::new();
        self.learner.device().parameters(&mut parameters);
        Arc::new(Snapshot {
            version: self.learner.updates(),
            weights: Weights::new(&self.record.shape, &parameters),
        })
    }

    /// An actor with new environments. Their seeds depend on the steps done before, so that a run that is continued
    /// does not see the same episodes again.
    fn actor(&self, index: usize, policy: Arc<Snapshot>) -> Actor {
        let config = &self.record.config;
        let seed = |number: usize| {
            [self.statistics.steps, index as u64, number as u64]
                .into_iter()
                .fold(config.seed, mix)
        };
        let environments = (0..config.actor.environments)
            .map(|number| {
                self.source
                    .environment(number, seed(number + 1), self.normalizer.as_ref())
            })
            .collect();
        Actor::new(environments, policy, config.learner.unroll, seed(0))
    }
}

/// The network of a policy file, for the environment and of the shape that are asked for.
fn init(
    path: &Path,
    source: &Source,
    shape: &Shape,
    seed: u64,
) -> Result<export::Network, TrainError> {
    let wrong = |reason: String| TrainError::Init {
        path: path.to_owned(),
        reason,
    };
    let file = PolicyFile::read(path).map_err(|error| wrong(error.to_string()))?;
    let Some(interface) = source.interface() else {
        return Err(wrong(
            "this environment's policies have no files".to_owned(),
        ));
    };
    let differences = dataset::differences(interface, &file.meta().environment);
    if !differences.is_empty() {
        return Err(wrong(format!(
            "it was made for other settings than those that are learnt from ({})",
            differences.join("; ")
        )));
    }
    let network =
        export::network(&file, shape.privileged, seed).map_err(|error| wrong(error.to_string()))?;
    match network.shape == *shape {
        true => Ok(network),
        false => Err(wrong(format!(
            "its network is {:?}, and [model] asks for {shape:?}",
            network.shape
        ))),
    }
}

/// The normaliser that is given, or the one for an environment's first steps, under actions at random; none where none is
/// needed.
fn fit(source: &Source, seed: u64, steps: u64) -> Option<Normalizer> {
    if let Some(given) = source.normalizer() {
        return Some(given.clone());
    }
    let mut fit = source.fit()?;
    let seed = mix(seed, u64::MAX);
    let mut environment = source.environment(0, seed, None);
    let mut random = StdRng::seed_from_u64(seed);
    let mut turn = Turn::default();
    let actions = environment.spec().actions;
    while fit.frames() < steps {
        environment.next(&mut turn);
        fit.add(&turn.observation, turn.observed_reward);
        environment.act(random.random_range(0..actions));
    }
    Some(fit.normalizer())
}

/// A seed from a seed and a number (the finaliser of SplitMix64).
fn mix(seed: u64, number: u64) -> u64 {
    let mut mixed = seed
        .wrapping_add(number)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn failed_to_write(path: &Path) -> impl FnOnce(io::Error) -> TrainError {
    let path = path.to_owned();
    move |source| TrainError::Write { path, source }
}

fn since_1970() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests;
