//! Recorded flows as an environment: an episode is a trajectory of one flow, and every turn has
//! already been answered.
//!
//! [`Turn::taken`] holds the recorded action. The actor still runs the learning policy on every
//! turn, so that its recurrent state is that of the learning policy, but stores the recorded
//! action.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use cc_core::{interface::Interface, objective::Objective, regular_file};
use cc_sim::seed;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

use super::{
    End, Environment, RecordedAction, Series, Spec, Turn,
    network::{self, NetworkEnvironment, World},
};
use crate::{
    dataset::{
        DatasetError, JoinCounts, Joined, Partitions, Recordings, StepOutcome, Trajectory,
        TrajectoryStep,
        features::{self, Analysis},
    },
    normalise::Normalizer,
};

/// Size of a partition of the recordings, bytes. Each environment holds one partition in memory.
const PARTITION: u64 = 4 << 20;

/// Configuration of learning from recordings, `[environment]` of kind `recorded`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedConfig {
    /// Paths of recordings: files, or directories of them.
    pub from: Vec<PathBuf>,
    /// What is maximised. `None` is the objective of the recorded policies.
    #[serde(default)]
    pub objective: Option<Objective>,
    /// What applications measured of the flows: a Parquet file whose terms `weigh` gives weights
    /// ([`Joined`]). Flows without a row are left out.
    #[serde(default)]
    pub join: Option<PathBuf>,
    /// Weights of these terms in the reward, which they are added to.
    #[serde(default)]
    pub weigh: BTreeMap<String, f64>,
    /// Fraction of the flows that nothing is learned from, at least 0 and below 1: the policy is
    /// estimated on them after each pass over the others. The same flows are held out in every run,
    /// and together with a flow all others on its path, where remote addresses were recorded.
    #[serde(default = "default_held_out")]
    pub held_out: f64,
    /// Passes over the recordings without a better estimate after which training ends, with the
    /// policy of the best one; 0 for never.
    #[serde(default = "default_patience")]
    pub patience: u64,
    /// Fraction of the environments that are simulated, at least 0 and below
    /// 1. The others replay recordings.
    #[serde(default)]
    pub simulated: f64,
    /// Configuration of the simulated environments. Its `policy` is ignored: observation and
    /// actions are those of the recordings.
    #[serde(default)]
    pub network: Option<Box<network::NetworkConfig>>,
    /// Version of the features that the new policy observes. `None` is the one that the recorded
    /// policies observed.
    #[serde(default)]
    pub features_version: Option<u32>,
    /// The `features.json` that `cc-trainer dataset` wrote, with the transforms of the inputs.
    #[serde(default)]
    pub normalisation: Option<PathBuf>,
    /// Directory for the sorted recordings, which are removed at the end. `None` is the
    /// system's directory for temporary files.
    #[serde(default)]
    pub scratch: Option<PathBuf>,
}

fn default_held_out() -> f64 {
    0.1
}

fn default_patience() -> u64 {
    10
}

impl Default for RecordedConfig {
    fn default() -> Self {
        Self {
            from: Vec::new(),
            objective: None,
            join: None,
            weigh: BTreeMap::new(),
            held_out: default_held_out(),
            patience: default_patience(),
            simulated: 0.0,
            network: None,
            features_version: None,
            normalisation: None,
            scratch: None,
        }
    }
}

/// Why a [`RecordedConfig`] cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedConfigError {
    /// The recordings cannot be read, or do not go together.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The configuration of the simulated environments is not valid.
    #[error("environment.network.{0}")]
    Network(#[from] network::NetworkConfigError),
    /// A fraction of simulated environments is set, but no configuration of them.
    #[error(
        "environment.simulated is {share}, but there is no environment.network \
         with the links to simulate"
    )]
    NoNetwork {
        /// The fraction in the configuration.
        share: f64,
    },
    /// The file with the transforms cannot be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the configured `features.json`.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The transforms belong to other inputs than those of the recordings.
    #[error("{}: {reason}; make it from these recordings with cc-trainer dataset", path.display())]
    Normalisation {
        /// Path of the configured `features.json`.
        path: PathBuf,
        /// How its inputs differ from those of the recordings.
        reason: String,
    },
    /// A fraction is out of range.
    #[error("environment.{setting} is {share}; expected 0 or more, and below 1")]
    Share {
        /// The name of the setting.
        setting: &'static str,
        /// The fraction in the configuration.
        share: f64,
    },
    /// Something is joined, but nothing of it is learned.
    #[error(
        "environment.join (--join) is {}, but no term of it has a weight: name one with \
         environment.weigh (--weigh TERM=WEIGHT), or leave the file out",
        path.display()
    )]
    Unweighed {
        /// Path of the file that is joined.
        path: PathBuf,
    },
    /// Terms have weights, but nothing is joined.
    #[error("environment.weigh has weights, but there is no environment.join with the terms")]
    NothingJoined,
    /// Every flow is held out.
    #[error(
        "environment.held_out is {share}, which leaves none of the recorded flows to learn from: \
         record more flows, or set it to 0"
    )]
    NothingLeft {
        /// The fraction in the configuration.
        share: f64,
    },
}

/// Sorted recordings, with simulated links beside them if configured, shared
/// by any number of environments.
#[derive(Debug)]
pub struct RecordedWorld {
    partitions: Partitions,
    held_out: f64,
    /// Number of decisions that are learned from.
    decisions: u64,
    policies: Vec<String>,
    simulated: Option<(f64, Arc<World>)>,
    normalizer: Option<Normalizer>,
}

impl RecordedWorld {
    /// Reads the recordings once and sorts them by flow into partitions in the scratch directory.
    ///
    /// # Errors
    ///
    /// Returns an error when a setting is out of range, a recording cannot be read, the recordings
    /// do not go together, or no decision has a known observation.
    pub fn open(config: &RecordedConfig) -> Result<Self, RecordedConfigError> {
        let share = config.simulated;
        for (setting, share) in [("simulated", share), ("held_out", config.held_out)] {
            if !(0.0..1.0).contains(&share) {
                return Err(RecordedConfigError::Share { setting, share });
            }
        }
        let mut recordings = match config.features_version {
            None => Recordings::open(&config.from)?,
            Some(version) => Recordings::open_as(&config.from, version)?,
        };
        if let Some(objective) = config.objective {
            recordings = recordings.with_objective(objective);
            recordings
                .interface()
                .validate()
                .map_err(DatasetError::from)?;
        }
        match &config.join {
            None if config.weigh.is_empty() => {}
            None => return Err(RecordedConfigError::NothingJoined),
            Some(path) => {
                let joined = Joined::read(path).and_then(|own| own.weighed(&config.weigh));
                let joined = joined.map_err(DatasetError::from)?;
                if !joined.is_complete() {
                    return Err(RecordedConfigError::Unweighed { path: path.clone() });
                }
                recordings = recordings.with_joined(joined)?;
            }
        }
        let interface = recordings.interface();
        let simulated = match (&config.network, share > 0.0) {
            (_, false) => None,
            (None, true) => return Err(RecordedConfigError::NoNetwork { share }),
            (Some(network), true) => {
                let network = network::NetworkConfig {
                    policy: interface.clone(),
                    ..(**network).clone()
                };
                Some((share, Arc::new(World::new(network)?)))
            }
        };
        let normalizer = normalizer(config, interface)?;
        let scratch = config.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let partitions = recordings.partition(&scratch, PARTITION, &|_| {})?;
        // Visits every partition once, so that errors show now and not in the middle of training.
        let (mut known, mut decisions) = (false, 0);
        for index in 0..partitions.len() {
            partitions.visit(index, |trajectory| {
                known = true;
                if !is_held_out(&trajectory, config.held_out) {
                    decisions += trajectory.steps.len() as u64;
                }
                Ok(())
            })?;
        }
        if !known {
            let decisions = partitions.gathered().decisions;
            return Err(DatasetError::NoneKnown { decisions }.into());
        }
        if decisions == 0 {
            let share = config.held_out;
            return Err(RecordedConfigError::NothingLeft { share });
        }
        Ok(Self {
            partitions,
            held_out: config.held_out,
            decisions,
            policies: recordings.policies().to_vec(),
            simulated,
            normalizer,
        })
    }

    /// Returns the interface of the recordings, by which observations,
    /// actions and rewards are made.
    pub fn interface(&self) -> &Interface {
        self.partitions.interface()
    }

    /// Returns counts of what was joined with the recordings; `None` where nothing was.
    pub fn joined(&self) -> Option<JoinCounts> {
        self.partitions.joined().map(|(_, counts)| counts)
    }

    /// Returns the identifiers of the policies that were recorded.
    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    /// Returns the transforms of the inputs, if the configuration names a `features.json`.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.normalizer.as_ref()
    }

    /// Returns the number of environment steps that make one pass over the flows that are learned
    /// from, simulated ones between them included.
    pub fn steps_per_epoch(&self) -> u64 {
        let recorded = 1.0 - self.simulated.as_ref().map_or(0.0, |(share, _)| *share);
        (self.decisions as f64 / recorded).ceil() as u64
    }

    /// Returns the trajectories that are held out, up to about `most` decisions, with inputs as
    /// `normalizer` transforms them.
    ///
    /// # Errors
    ///
    /// Returns an error when the sorted recordings cannot be read.
    pub fn held_out(
        &self,
        most: usize,
        normalizer: &Normalizer,
    ) -> Result<Vec<Trajectory>, DatasetError> {
        let (mut all, mut decisions) = (Vec::new(), 0);
        for index in 0..self.partitions.len() {
            self.partitions.visit(index, |mut trajectory| {
                if decisions >= most || !is_held_out(&trajectory, self.held_out) {
                    return Ok(());
                }
                decisions += trajectory.steps.len();
                for step in &mut trajectory.steps {
                    normalizer.apply(&mut step.observation);
                    step.observed_reward = normalizer.reward.apply(step.observed_reward);
                }
                all.push(trajectory);
                Ok(())
            })?;
        }
        Ok(all)
    }

    /// Returns the sizes of the environments.
    pub fn spec(&self) -> Spec {
        let interface = self.interface();
        Spec {
            seats: 1,
            observation: interface.observation_len(),
            privileged: 0,
            actions: interface.actions.len(),
            tasks: self.tasks().len(),
        }
    }

    /// Returns the names of the tasks: `recorded`, then those of the simulated links.
    pub fn tasks(&self) -> Vec<String> {
        let simulated = self.simulated.iter().flat_map(|(_, world)| world.tasks());
        std::iter::once("recorded".to_owned())
            .chain(simulated.cloned())
            .collect()
    }
}

/// What trajectories may depend on each other by: the path that their flows took, or else the flow.
pub(crate) fn cluster(trajectory: &Trajectory) -> u64 {
    trajectory.origin.path.unwrap_or(trajectory.flow)
}

/// Whether a trajectory belongs to the `share` of the clusters that are held out. Every run and
/// every recording of the same path, or flow, agrees on it.
pub(crate) fn is_held_out(trajectory: &Trajectory, share: f64) -> bool {
    /// Keeps the hash apart from others of the same identifier.
    const HELD_OUT: u64 = 0x6865_6c64_2d6f_7574;
    let hash = seed::fold(seed::fold(0, HELD_OUT), cluster(trajectory));
    (hash as f64) < share * 2.0_f64.powi(64)
}

/// Size limit of the analysis that holds the normalisation, bytes.
const MAX_ANALYSIS: u64 = 64 << 20;

fn normalizer(
    config: &RecordedConfig,
    interface: &Interface,
) -> Result<Option<Normalizer>, RecordedConfigError> {
    let Some(path) = &config.normalisation else {
        return Ok(None);
    };
    let text = regular_file::read_to_string(path, MAX_ANALYSIS);
    let text = text.map_err(|source| RecordedConfigError::Read {
        path: path.clone(),
        source,
    })?;
    let wrong = |reason: String| RecordedConfigError::Normalisation {
        path: path.clone(),
        reason,
    };
    let analysis: Analysis =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let names = features::names(interface);
    let (found, expected) = (analysis.features.len(), names.len());
    if found != expected {
        return Err(wrong(format!(
            "it has {found} inputs, but these recordings have {expected}"
        )));
    }
    let mut pairs = analysis.features.iter().zip(&names);
    match pairs.find(|(found, expected)| found.name != **expected) {
        None => Ok(analysis.normalizer()),
        Some((found, expected)) => Err(wrong(format!(
            "it has the input `{}` where these recordings have `{expected}`",
            found.name
        ))),
    }
}

/// Creates environment `number` of an actor.
///
/// The number decides whether it replays recordings or simulates links. The seed fixes the order of
/// the recorded flows, and the simulation.
pub fn environment(store: &Arc<RecordedWorld>, number: usize, seed: u64) -> Box<dyn Environment> {
    if let Some((share, world)) = &store.simulated {
        // Spreads the simulated environments evenly over the numbers; number 0 is recorded.
        let before = |number: usize| (number as f64 * share).floor();
        if before(number + 1) > before(number) {
            return Box::new(BesideRecorded {
                network: NetworkEnvironment::new(world.clone(), seed),
            });
        }
    }
    Box::new(RecordedEnvironment {
        store: store.clone(),
        random: StdRng::seed_from_u64(seed),
        partitions: Vec::new(),
        waiting: Vec::new(),
        current: None,
        last: StepOutcome::default(),
    })
}

/// An environment that replays the flows of a [`RecordedWorld`] that are learned from in random
/// order, again and again.
struct RecordedEnvironment {
    store: Arc<RecordedWorld>,
    random: StdRng,
    /// Partitions still to be visited in this pass over the data.
    partitions: Vec<usize>,
    /// Trajectories of the newest partition that are still to be replayed.
    waiting: Vec<Trajectory>,
    /// The current trajectory and the index of its next step.
    current: Option<(Trajectory, usize)>,
    /// Outcome of the previous step.
    last: StepOutcome,
}

impl RecordedEnvironment {
    fn load(&mut self) -> Trajectory {
        loop {
            if let Some(trajectory) = self.waiting.pop() {
                return trajectory;
            }
            if self.partitions.is_empty() {
                self.partitions.extend(0..self.store.partitions.len());
                self.partitions.shuffle(&mut self.random);
            }
            let Some(index) = self.partitions.pop() else {
                continue;
            };
            let waiting = &mut self.waiting;
            let held_out = self.store.held_out;
            let visited = self.store.partitions.visit(index, |trajectory| {
                if !is_held_out(&trajectory, held_out) {
                    waiting.push(trajectory);
                }
                Ok(())
            });
            // It was readable when the world was opened.
            visited.unwrap_or_else(|error| {
                panic!("the sorted recordings cannot be read any more: {error}")
            });
            self.waiting.shuffle(&mut self.random);
        }
    }
}

impl Environment for RecordedEnvironment {
    fn spec(&self) -> Spec {
        self.store.spec()
    }

    fn series(&self) -> Vec<Series> {
        Series::of(self.store.interface())
    }

    fn next(&mut self, turn: &mut Turn) {
        let ahead = self.current.take();
        let ahead = ahead.filter(|(trajectory, at)| *at < trajectory.steps.len());
        let (trajectory, at) = ahead.unwrap_or_else(|| (self.load(), 0));
        let step = &trajectory.steps[at];
        turn.seat = 0;
        turn.first = (at == 0).then_some(End::Truncated);
        turn.task = 0;
        answered(step, &self.last, self.store.interface(), turn);
        self.last = step.outcome.unwrap_or_default();
        self.current = Some((trajectory, at + 1));
    }

    fn act(&mut self, _: usize) {}
}

/// Fills in a turn that was answered by a recorded decision; `last` is the outcome of the seat's
/// decision before. Seat, episode and task are left as they are.
pub(super) fn answered(
    step: &TrajectoryStep,
    last: &StepOutcome,
    interface: &Interface,
    turn: &mut Turn,
) {
    turn.intervals = last.intervals(interface) as f32;
    turn.reward = last.reward * turn.intervals;
    turn.observation.clone_from(&step.observation);
    turn.observed_reward = step.observed_reward;
    let effects = &mut turn.effects;
    interface
        .actions
        .effects(step.base_cwnd, interface.cwnd, effects);
    interface.allowed(step.base_cwnd, &mut turn.allowed);
    turn.taken = Some(taken(step, turn, interface));
}

/// The recorded action of a step whose turn has its effects and its mask.
///
/// With masks an action stands for all that lead to the same cwnd, of which an agent chooses the
/// first. Where a row has another one, as one of another origin may, the first is taken in its
/// place, with the sum of the probabilities.
fn taken(step: &TrajectoryStep, turn: &Turn, interface: &Interface) -> RecordedAction {
    let first = |action: usize| match interface.mask_actions {
        true => usize::from(turn.effects[action]),
        false => action,
    };
    let action = first(usize::from(step.action));
    let probabilities = match (&step.probabilities, step.probability) {
        (Some(all), _) if interface.mask_actions => {
            let mut merged = vec![0.0; all.len()];
            for (action, probability) in all.iter().enumerate() {
                merged[first(action)] += probability;
            }
            Some(merged)
        }
        (Some(all), _) => Some(all.clone()),
        (None, Some(probability)) => {
            let actions = interface.actions.len();
            Some(spread(action, probability, actions, &turn.allowed))
        }
        (None, None) => None,
    };
    RecordedAction {
        action,
        probabilities,
        own: false,
    }
}

/// Completes a distribution of which one probability is known: the rest is spread
/// evenly over the other allowed actions.
fn spread(action: usize, probability: f32, actions: usize, allowed: &[bool]) -> Vec<f32> {
    let is_allowed = |other: usize| allowed.get(other).is_none_or(|allowed| *allowed);
    let others = (0..actions).filter(|&other| other != action && is_allowed(other));
    let rest = (1.0 - probability) / others.clone().count().max(1) as f32;
    let mut all = vec![0.0; actions];
    others.for_each(|other| all[other] = rest);
    all[action] = probability;
    all
}

/// A simulated network whose tasks come after the task `recorded`.
struct BesideRecorded {
    network: NetworkEnvironment,
}

impl Environment for BesideRecorded {
    fn spec(&self) -> Spec {
        let spec = self.network.spec();
        Spec {
            tasks: spec.tasks + 1,
            ..spec
        }
    }

    fn series(&self) -> Vec<Series> {
        self.network.series()
    }

    fn next(&mut self, turn: &mut Turn) {
        self.network.next(turn);
        turn.task += 1;
    }

    fn act(&mut self, action: usize) {
        self.network.act(action);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tempfile::TempDir;

    use std::fs;

    use super::*;
    use crate::dataset::tests::{interface, record};

    fn config(directory: &TempDir, known: bool) -> RecordedConfig {
        let path = directory.path().join("a.parquet");
        if !path.exists() {
            record(&path, &interface(), 0, 6, 3, known, &|_| {
                vec![0.1, 0.2, 0.3, 0.3, 0.1]
            });
        }
        RecordedConfig {
            from: vec![path],
            held_out: 0.0,
            ..RecordedConfig::default()
        }
    }

    #[test]
    fn every_flow_is_replayed_as_recorded_and_then_all_again() {
        let directory = TempDir::new().expect("a scratch directory");
        let store = Arc::new(RecordedWorld::open(&config(&directory, true)).expect("a recording"));
        let mut all = Vec::new();
        for index in 0..store.partitions.len() {
            let visited = store.partitions.visit(index, |trajectory| {
                all.push(trajectory);
                Ok(())
            });
            visited.expect("sound");
        }
        let decisions: usize = all.iter().map(|trajectory| trajectory.steps.len()).sum();
        let mut environment = environment(&store, 0, 7);
        let mut turn = Turn::default();
        for _ in 0..2 {
            let mut seen = BTreeSet::new();
            let (mut seen_steps, mut last) = (0, StepOutcome::default());
            while seen_steps < decisions {
                environment.next(&mut turn);
                assert!(turn.first.is_some(), "a flow begins");
                let of =
                    |trajectory: &&Trajectory| trajectory.steps[0].observation == turn.observation;
                // Flows on the same kind of link may start with the same observation.
                let next = all
                    .iter()
                    .filter(of)
                    .find(|trajectory| !seen.contains(&trajectory.flow));
                let Some(trajectory) = next else {
                    panic!("an unknown flow")
                };
                seen.insert(trajectory.flow);
                for (at, step) in trajectory.steps.iter().enumerate() {
                    if at > 0 {
                        environment.next(&mut turn);
                        assert_eq!(turn.intervals, (last.seconds * 10.0) as f32);
                        assert_eq!(turn.reward, last.reward * turn.intervals);
                        assert_eq!(turn.first, None);
                    }
                    let taken = turn.taken.as_ref().expect("recorded");
                    assert_eq!(taken.probabilities, step.probabilities);
                    last = step.outcome.unwrap_or_default();
                    seen_steps += 1;
                }
            }
            assert_eq!((seen_steps, seen.len()), (decisions, 6));
        }
    }

    #[test]
    fn nothing_is_learned_from_the_flows_that_are_held_out() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut config = config(&directory, true);
        let all = RecordedWorld::open(&config).expect("a recording");
        config.held_out = 0.5;
        let store = Arc::new(RecordedWorld::open(&config).expect("a recording"));
        let normalizer = Normalizer::identity(interface().observation_len());
        let held_out = store.held_out(usize::MAX, &normalizer).expect("readable");
        let decisions: usize = held_out.iter().map(|own| own.steps.len()).sum();
        assert!(decisions > 0, "a share of the six flows");
        assert_eq!(store.decisions + decisions as u64, all.decisions);
        assert_eq!(store.steps_per_epoch(), store.decisions);
        // The transform that is used here clips, but tells observations apart.
        let key = |observation: &[f32]| {
            let mut observation = observation.to_vec();
            normalizer.apply(&mut observation);
            let bits = observation.iter().map(|value| value.to_bits());
            bits.collect::<Vec<_>>()
        };
        let mut replayed = BTreeSet::new();
        let mut environment = environment(&store, 0, 7);
        let mut turn = Turn::default();
        for _ in 0..2 * store.decisions {
            environment.next(&mut turn);
            replayed.insert(key(&turn.observation));
        }
        // The first observations of flows on the same link may be alike.
        for step in held_out.iter().flat_map(|own| own.steps.iter().skip(10)) {
            assert!(!replayed.contains(&key(&step.observation)));
        }
        // The same flows for every run, whatever else is recorded.
        let again = RecordedWorld::open(&config).expect("a recording");
        let again = again.held_out(usize::MAX, &normalizer).expect("readable");
        assert!(again == held_out);
        config.held_out = 1.0;
        let error = RecordedWorld::open(&config).expect_err("nothing left");
        assert!(error.to_string().contains("held_out is 1;"), "{error}");
        config.held_out = 0.999_999_999;
        let error = RecordedWorld::open(&config).expect_err("nothing left");
        assert!(error.to_string().contains("leaves none"), "{error}");
    }

    #[test]
    fn the_configured_fraction_of_environments_is_simulated() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut config = config(&directory, false);
        config.simulated = 0.25;
        let error = RecordedWorld::open(&config)
            .expect_err("which ones?")
            .to_string();
        assert!(error.contains("no environment.network"), "{error}");
        config.network = Some(Box::default());
        let store = Arc::new(RecordedWorld::open(&config).expect("both"));
        assert_eq!(store.spec().tasks, store.tasks().len());
        assert!(store.tasks().len() > 1);
        let recorded: Vec<bool> = (0..8)
            .map(|number| {
                let mut environment = environment(&store, number, 1);
                let mut turn = Turn::default();
                environment.next(&mut turn);
                assert_eq!(turn.observation.len(), interface().observation_len());
                assert_eq!(turn.taken.is_some(), turn.task == 0);
                turn.taken
                    .is_some_and(|taken| taken.probabilities.is_none())
            })
            .collect();
        assert_eq!(recorded, [true, true, true, false, true, true, true, false]);
        config.simulated = 1.0;
        assert!(matches!(
            RecordedWorld::open(&config),
            Err(RecordedConfigError::Share { .. })
        ));
    }

    #[test]
    fn transforms_of_other_recordings_are_refused() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut config = config(&directory, true);
        let path = directory.path().join("features.json");
        config.normalisation = Some(path.clone());
        for (text, expected) in [
            ("{", "features.json: EOF"),
            (
                "{\"decisions\": 3, \"features\": []}",
                "it has 0 inputs, but these recordings have 113;",
            ),
        ] {
            fs::write(&path, text).expect("there is space");
            let error = RecordedWorld::open(&config)
                .expect_err("refused")
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_rest_of_a_probability_is_spread_over_the_other_actions() {
        assert_eq!(spread(1, 0.5, 3, &[]), [0.25, 0.5, 0.25]);
        assert_eq!(spread(0, 1.0, 1, &[]), [1.0]);
        assert_eq!(spread(1, 0.5, 3, &[true, true, false]), [0.5, 0.5, 0.0]);
        assert_eq!(spread(1, 1.0, 2, &[false, true]), [0.0, 1.0]);
    }

    #[test]
    fn masked_actions_of_a_recording_are_those_that_they_equal() {
        let masked = Interface {
            mask_actions: true,
            ..interface()
        };
        let mut step = TrajectoryStep {
            base_cwnd: masked.cwnd.min,
            action: 2,
            probability: Some(0.25),
            probabilities: Some(vec![0.25, 0.125, 0.25, 0.25, 0.125]),
            ..TrajectoryStep::default()
        };
        let found = |step: &TrajectoryStep, interface: &Interface| {
            let mut turn = Turn::default();
            let effects = &mut turn.effects;
            interface
                .actions
                .effects(step.base_cwnd, interface.cwnd, effects);
            interface.allowed(step.base_cwnd, &mut turn.allowed);
            let taken = taken(step, &turn, interface);
            assert!(turn.allows(taken.action));
            (taken.action, taken.probabilities)
        };
        // `0`, `/2` and `-10` all leave the smallest cwnd where it is.
        let merged = vec![0.625, 0.0, 0.0, 0.25, 0.125];
        assert_eq!(found(&step, &masked), (0, Some(merged.clone())));
        assert_eq!(found(&step, &interface()), (2, step.probabilities.clone()));
        // What an agent with masks has recorded is as it was.
        step.action = 3;
        step.probabilities = Some(merged.clone());
        assert_eq!(found(&step, &masked), (3, Some(merged)));
        // Without the others' probabilities, masked ones get no share of the rest.
        step.probabilities = None;
        let rest = vec![0.375, 0.0, 0.0, 0.25, 0.375];
        assert_eq!(found(&step, &masked), (3, Some(rest)));
        step.probability = None;
        assert_eq!(found(&step, &masked), (3, None));
    }
}
