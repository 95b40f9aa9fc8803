//! Beginning a run, and continuing one from its checkpoint.

use std::{fs, path::Path, sync::Arc, time::Instant};

use cc_channel::Store;
use cc_core::policy::PolicyFile;

use super::{
    LastCheckpoint, Run, TrainError, Training,
    checkpoint::{Checkpoint, Header},
    config::{self, Config},
    curve::seconds_since_1970,
    fit,
    held_out::HeldOut,
    record::{Finish, Record, RunPart},
    replay::Replay,
    source::Source,
    splits,
    statistics::{CurvePoint, Statistics},
    store::{self, Copier, StoreError},
    tensorboard::EventWriter,
    validation::Validation,
};
use crate::{
    dataset,
    learner::{Learner, LearnerState, average::ParameterAverage, values::ValueStatistics},
    model::{self, Shape},
    policy_file::{self, ImportedNetwork},
};
use cc_sim::seed;
use cc_testbed::summary::{Host, utc_now};

/// What the seed of replayed rollouts is folded with, which is no actor's index.
const REPLAY: u64 = u64::MAX - 1;

impl Run {
    /// Begins a run, or continues the one whose checkpoint is in the directory.
    pub(super) fn open(training: &Training) -> Result<Self, TrainError> {
        let dir = training.dir.clone();
        let store = match &training.store {
            Some(place) => Some(Store::open(place).map_err(StoreError::Store)?),
            None => None,
        };
        if let Some(store) = &store {
            store::fetch(store, &dir)?;
        }
        let checkpoint = Checkpoint::load(&dir.join("checkpoint.bin"))?;
        let config = settle(training, checkpoint.as_ref())?;
        let mut test_sets = splits::check(&config)?;
        let source = config.environment.open()?;
        let shape = config.shape(&source.spec(), &source.series())?;
        let init = match (&config.init, &checkpoint) {
            (Some(path), None) => Some(initial_policy(path, &source, &shape, config.seed)?),
            _ => None,
        };
        if let Some(checkpoint) = &checkpoint {
            check_shape(&dir, &shape, &checkpoint.header.record.shape)?;
        }
        let mut kept = LastCheckpoint {
            dir: dir.clone(),
            steps: None,
        };
        let mut device = model::device(config.device, &shape, config.threads.unwrap_or(1))?;
        let (header, parameters, moments, average) = match checkpoint {
            Some(checkpoint) => {
                kept.steps = Some(checkpoint.header.statistics.steps);
                let Checkpoint {
                    header,
                    parameters,
                    moments,
                    average,
                } = checkpoint;
                (header, parameters, Some(moments), average)
            }
            None => {
                let (header, parameters) = begin(&config, &source, shape, init);
                (header, parameters, None, ParameterAverage::default())
            }
        };
        let moments = moments.map_or(Ok(()), |moments| device.set_moments(&moments));
        moments
            .and_then(|()| device.set_parameters(&parameters))
            .map_err(|cause| TrainError::DeviceFailed {
                steps: header.statistics.steps,
                device: config.device,
                cause,
                kept: kept.clone(),
            })?;
        let state = header.learner(average);
        let Header {
            mut record,
            statistics,
            normalizer,
            ..
        } = header;
        record.version = env!("CARGO_PKG_VERSION").to_owned();
        record.finish = Finish::Open;
        // What a run was begun from stays in it, however it is continued.
        record.test_sets.append(&mut test_sets);
        record.test_sets.sort_unstable();
        record.test_sets.dedup();
        record.config_sha256 = config.sha256();
        record.config = config;
        record.parts.push(RunPart {
            date: utc_now(),
            command: training.command.clone(),
            from_step: statistics.steps,
            seconds: 0.0,
            host: Host::probe(),
        });

        let normalizer = normalizer.map(Arc::new);
        let held_out = HeldOut::of(&source, &record.config, normalizer.as_ref())?;
        fs::create_dir_all(&dir).map_err(TrainError::writing(&dir))?;
        let learner = &record.config.learner;
        let replay = (learner.replay.as_ref())
            .map(|replay| {
                let seed = [statistics.steps, REPLAY]
                    .into_iter()
                    .fold(record.config.seed, seed::fold);
                Replay::start(learner.batch, replay, seed)
            })
            .transpose()
            .map_err(TrainError::Thread)?;
        let now = Instant::now();
        Ok(Self {
            events: EventWriter::create(&dir, seconds_since_1970())
                .map_err(TrainError::writing(&dir))?,
            learner: Learner::new(
                device,
                record.config.learner.clone(),
                state,
                statistics.updates,
            ),
            seconds_before: record.last.seconds,
            begun: now,
            saved: now,
            kept,
            shown: now,
            listening: training.listening.clone(),
            workers: None,
            group: None,
            replay,
            metrics: training.metrics,
            exporter: None,
            copier: store.map(|store| Copier::to(store, &dir)).transpose()?,
            tasks: source.tasks(),
            normalizer,
            held_out,
            validation: source.abr().and_then(Validation::of),
            source,
            dir,
            record,
            statistics,
        })
    }
}

/// The configuration of the run: the one given, or else the checkpoint's, with the command line's
/// overrides. The two must agree on every setting that shapes the result.
fn settle(training: &Training, checkpoint: Option<&Checkpoint>) -> Result<Config, TrainError> {
    let dir = &training.dir;
    let config = match (&training.config, checkpoint) {
        (Some(config), _) => config.clone(),
        (None, Some(checkpoint)) => checkpoint.header.record.config.clone(),
        (None, None) => return Err(TrainError::Nothing { dir: dir.clone() }),
    }
    .resolve(&training.overrides)?;
    match checkpoint {
        Some(checkpoint) => {
            let differences = config.differences(&checkpoint.header.record.config);
            if !differences.is_empty() {
                return Err(TrainError::Another {
                    dir: dir.clone(),
                    differences,
                });
            }
        }
        None => {
            let mut outputs = ["policy.onnx", "train.json"]
                .map(|name| dir.join(name))
                .into_iter();
            if let Some(path) = outputs.find(|path| path.exists()) {
                return Err(TrainError::Exists { path });
            }
        }
    }
    Ok(config)
}

/// Checks that the checkpoint's network is the one that the settings ask for: an environment may
/// have other inputs than the version had that began the run.
fn check_shape(dir: &Path, shape: &Shape, saved: &Shape) -> Result<(), TrainError> {
    let differences = config::differences_of(shape, saved);
    if differences.is_empty() {
        return Ok(());
    }
    Err(TrainError::Shape {
        dir: dir.to_owned(),
        what: differences.join("; "),
    })
}

/// The state of a run before its first update: a checkpoint's header, and the parameters.
fn begin(
    config: &Config,
    source: &Source,
    shape: Shape,
    init: Option<InitialPolicy>,
) -> (Header, Vec<f32>) {
    let (init_sha256, test_sets, normalizer, parameters) = match init {
        Some(init) => (
            Some(init.sha256),
            init.test_sets,
            Some(init.network.normalizer),
            init.network.parameters,
        ),
        None => (
            None,
            Vec::new(),
            fit::normalizer(source, config.seed, &config.actor),
            model::initialise(&shape, config.seed),
        ),
    };
    let record = Record {
        version: String::new(),
        config_sha256: String::new(),
        run: None,
        config: config.clone(),
        test_sets,
        init_sha256,
        parameters: parameters.len() as u64,
        shape,
        parts: Vec::new(),
        finish: Finish::Open,
        last: CurvePoint::default(),
        curve: Vec::new(),
        held_out: Vec::new(),
        validation: Vec::new(),
    };
    let tasks = source.spec().tasks;
    let header = Header::new(
        record,
        Statistics::new(tasks),
        &LearnerState::new(tasks, &config.learner),
        normalizer,
    );
    (header, parameters)
}

/// The policy that a run begins with.
struct InitialPolicy {
    network: ImportedNetwork,
    /// SHA-256 of its file, in hexadecimal.
    sha256: String,
    /// The test sets that it has seen.
    test_sets: Vec<String>,
}

/// Reads the policy file to begin with. Its interface and its network must be those of the run, but
/// its version of the features may be an earlier one, and masks and who has slow start are the
/// run's: the network is the same with and without them.
fn initial_policy(
    path: &Path,
    source: &Source,
    shape: &Shape,
    seed: u64,
) -> Result<InitialPolicy, TrainError> {
    let wrong = |reason: String| TrainError::Init {
        path: path.to_owned(),
        reason,
    };
    let file = PolicyFile::read(path).map_err(|error| wrong(error.to_string()))?;
    let Some(interface) = source.interface() else {
        return Err(wrong(
            "policies of this environment begin with a new network".to_owned(),
        ));
    };
    let own = &file.meta().interface;
    let widened = policy_file::observing_more(own, interface);
    let differences = dataset::network_differences(interface, &widened);
    if !differences.is_empty() {
        return Err(wrong(format!(
            "it was made for other settings than those that are learnt from ({})",
            differences.join("; ")
        )));
    }
    let mut network = policy_file::decode(&file, shape.privileged, seed)
        .map_err(|error| wrong(error.to_string()))?
        .widened(own, &widened)
        .predicting(shape.predictions);
    (network.shape, network.parameters) =
        ValueStatistics::repeated(&network.shape, &network.parameters, shape.values);
    match network.shape == *shape {
        true => Ok(InitialPolicy {
            network,
            sha256: file.summary().sha256.clone(),
            test_sets: splits::of_policy(file.meta()),
        }),
        false => Err(wrong(format!(
            "its network is {:?}, and [model] asks for {shape:?}",
            network.shape
        ))),
    }
}
