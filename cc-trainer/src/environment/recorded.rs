//! Recorded flows, for a policy to learn from what others did: an episode is a flow, and every turn has been answered already.
//!
//! What was done is in [`Turn::taken`]. The actor runs the learning policy along, so that its memory of a flow is its own,
//! and hands over what was recorded.

use std::{fs, io, path::PathBuf, sync::Arc};

use cc_core::interface::Interface;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

use super::{
    End, Environment, Spec, Taken, Turn,
    network::{self, Network, World},
};
use crate::{
    dataset::{
        DatasetError, Partitions, Recordings, Trajectory,
        features::{self, Analysis},
    },
    normalise::Normalizer,
};

/// Bytes of a partition of recordings: each environment holds one in memory.
const PARTITION: u64 = 4 << 20;

/// What is learnt from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Recordings: files, or directories of them.
    pub from: Vec<PathBuf>,
    /// Share of environments that are simulated, below 1; the others are recorded.
    #[serde(default)]
    pub simulated: f64,
    /// The simulated ones. Their policy's observation and actions are those of the recordings, whatever it says here.
    #[serde(default)]
    pub network: Option<Box<network::Config>>,
    /// `features.json` of `cc-trainer dataset`, for the transforms of inputs.
    #[serde(default)]
    pub normalisation: Option<PathBuf>,
    /// Where recordings are sorted meanwhile; by default the system's directory for temporary files.
    #[serde(default)]
    pub scratch: Option<PathBuf>,
}

/// Why recordings cannot be learnt from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Of the recordings.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Of the simulated networks.
    #[error("environment.network.{0}")]
    Network(#[from] network::ConfigError),
    /// Simulated networks are asked for, and not said.
    #[error(
        "environment.simulated is {share}, but there is no environment.network that says what to simulate"
    )]
    NoNetwork {
        /// The share.
        share: f64,
    },
    /// The transforms cannot be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The transforms are not for these recordings.
    #[error("{}: {reason}; make it from these recordings with cc-trainer dataset", path.display())]
    Normalisation {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The share is out of its range.
    #[error("environment.simulated is {share}; expected 0 or more, and below 1")]
    Share {
        /// The share.
        share: f64,
    },
}

/// Recordings, and perhaps simulated networks beside them, ready for any number of environments.
#[derive(Debug)]
pub struct Store {
    partitions: Partitions,
    policies: Vec<String>,
    simulated: Option<(f64, Arc<World>)>,
    normalizer: Option<Normalizer>,
}

impl Store {
    /// Reads the recordings, once, and sorts them.
    ///
    /// # Errors
    ///
    /// Says what does not fit, and where.
    pub fn open(config: &Config) -> Result<Self, ConfigError> {
        let share = config.simulated;
        if !(0.0..1.0).contains(&share) {
            return Err(ConfigError::Share { share });
        }
        let recordings = Recordings::open(&config.from)?;
        let interface = recordings.environment();
        let simulated = match (&config.network, share > 0.0) {
            (_, false) => None,
            (None, true) => return Err(ConfigError::NoNetwork { share }),
            (Some(network), true) => {
                let network = network::Config {
                    policy: interface.clone(),
                    ..(**network).clone()
                };
                Some((share, Arc::new(World::new(network)?)))
            }
        };
        let normalizer = normalizer(config, interface)?;
        let scratch = config.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let partitions = recordings.partition(&scratch, PARTITION, &|_| {})?;
        // Whatever is wrong with them shows now.
        let mut known = false;
        for index in 0..partitions.len() {
            partitions.visit(index, |_| {
                known = true;
                Ok(())
            })?;
        }
        if !known {
            let decisions = partitions.gathered().decisions;
            return Err(DatasetError::NoneKnown { decisions }.into());
        }
        Ok(Self {
            partitions,
            policies: recordings.policies().to_vec(),
            simulated,
            normalizer,
        })
    }

    /// What observations, actions and rewards are made with.
    pub fn interface(&self) -> &Interface {
        self.partitions.environment()
    }

    /// Whose decisions they are.
    pub fn policies(&self) -> &[String] {
        &self.policies
    }

    /// The transforms of inputs, where they were given.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.normalizer.as_ref()
    }

    /// The sizes of its environments.
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

    /// Names of the tasks: the recordings, then the simulated ones.
    pub fn tasks(&self) -> Vec<String> {
        let simulated = self.simulated.iter().flat_map(|(_, world)| world.tasks());
        std::iter::once("recorded".to_owned())
            .chain(simulated.cloned())
            .collect()
    }
}

fn normalizer(config: &Config, interface: &Interface) -> Result<Option<Normalizer>, ConfigError> {
    let Some(path) = &config.normalisation else {
        return Ok(None);
    };
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.clone(),
        source,
    })?;
    let wrong = |reason: String| ConfigError::Normalisation {
        path: path.clone(),
        reason,
    };
    let analysis: Analysis =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let names = features::names(interface);
    let (found, expected) = (analysis.features.len(), names.len());
    if found != expected {
        return Err(wrong(format!(
            "it has {found} inputs, and these recordings {expected}"
        )));
    }
    let mut pairs = analysis.features.iter().zip(&names);
    match pairs.find(|(found, expected)| found.name != **expected) {
        None => Ok(analysis.normalizer()),
        Some((found, expected)) => Err(wrong(format!(
            "it has an input `{}` in the place of these recordings' `{expected}`",
            found.name
        ))),
    }
}

/// An environment of a store: number `number` of those of an actor. The seed fixes the order of flows, and the simulation.
pub fn environment(store: &Arc<Store>, number: usize, seed: u64) -> Box<dyn Environment> {
    if let Some((share, world)) = &store.simulated {
        // Evenly among the numbers, the first one recorded.
        let before = |number: usize| (number as f64 * share).floor();
        if before(number + 1) > before(number) {
            return Box::new(Beside {
                network: Network::new(world.clone(), seed),
            });
        }
    }
    Box::new(Recorded {
        store: store.clone(),
        random: StdRng::seed_from_u64(seed),
        partitions: Vec::new(),
        waiting: Vec::new(),
        current: None,
        earned: 0.0,
    })
}

/// Flow after flow of a store, in an order of its own.
struct Recorded {
    store: Arc<Store>,
    random: StdRng,
    /// Those that are still to come before all begin again.
    partitions: Vec<usize>,
    /// Flows of the newest one.
    waiting: Vec<Trajectory>,
    /// The flow, and its next step.
    current: Option<(Trajectory, usize)>,
    /// What the last step earned.
    earned: f32,
}

impl Recorded {
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
            let visited = self.store.partitions.visit(index, |trajectory| {
                waiting.push(trajectory);
                Ok(())
            });
            // It could be read when the store was opened.
            visited.unwrap_or_else(|error| panic!("sorted recordings are gone: {error}"));
            self.waiting.shuffle(&mut self.random);
        }
    }
}

impl Environment for Recorded {
    fn spec(&self) -> Spec {
        self.store.spec()
    }

    fn next(&mut self, turn: &mut Turn) {
        let ahead = self.current.take();
        let ahead = ahead.filter(|(trajectory, at)| *at < trajectory.steps.len());
        let (trajectory, at) = ahead.unwrap_or_else(|| (self.load(), 0));
        let step = &trajectory.steps[at];
        turn.seat = 0;
        turn.first = (at == 0).then_some(End::Truncated);
        turn.reward = self.earned;
        turn.observation.clone_from(&step.observation);
        turn.observed_reward = step.observed_reward;
        turn.task = 0;
        let action = usize::from(step.action);
        turn.taken = Some(Taken {
            action,
            probabilities: step.probabilities.clone().or_else(|| {
                let probability = step.probability?;
                Some(spread(
                    action,
                    probability,
                    self.store.interface().actions.len(),
                ))
            }),
        });
        self.earned = step.outcome.map_or(0.0, |outcome| outcome.reward);
        self.current = Some((trajectory, at + 1));
    }

    fn act(&mut self, _: usize) {}
}

/// Probabilities of which only one is known, the rest spread evenly.
fn spread(action: usize, probability: f32, actions: usize) -> Vec<f32> {
    let rest = (1.0 - probability) / actions.saturating_sub(1).max(1) as f32;
    let mut all = vec![rest; actions];
    all[action] = probability;
    all
}

/// A simulated network beside recordings, whose task is the first.
struct Beside {
    network: Network,
}

impl Environment for Beside {
    fn spec(&self) -> Spec {
        let spec = self.network.spec();
        Spec {
            tasks: spec.tasks + 1,
            ..spec
        }
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

    use super::*;
    use crate::dataset::tests::{environment as interface, record};

    fn config(directory: &TempDir, known: bool) -> Config {
        let path = directory.path().join("a.parquet");
        if !path.exists() {
            record(&path, &interface(), 0, 6, 3, known, &|_| {
                vec![0.1, 0.2, 0.3, 0.3, 0.1]
            });
        }
        Config {
            from: vec![path],
            ..Config::default()
        }
    }

    #[test]
    fn every_flow_is_told_as_it_was_and_then_all_again() {
        let directory = TempDir::new().expect("a scratch directory");
        let store = Arc::new(Store::open(&config(&directory, true)).expect("a recording"));
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
            let (mut told, mut earned) = (0, 0.0);
            while told < decisions {
                environment.next(&mut turn);
                assert!(turn.first.is_some(), "a flow begins");
                let of =
                    |trajectory: &&Trajectory| trajectory.steps[0].observation == turn.observation;
                // Flows on the same kind of link may begin alike.
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
                        assert_eq!(turn.reward, earned);
                        assert_eq!(turn.first, None);
                    }
                    let taken = turn.taken.as_ref().expect("recorded");
                    assert_eq!(taken.probabilities, step.probabilities);
                    earned = step.outcome.map_or(0.0, |outcome| outcome.reward);
                    told += 1;
                }
            }
            assert_eq!((told, seen.len()), (decisions, 6));
        }
    }

    #[test]
    fn simulated_links_stand_beside() {
        let directory = TempDir::new().expect("a scratch directory");
        let mut config = config(&directory, false);
        config.simulated = 0.25;
        let error = Store::open(&config).expect_err("which ones?").to_string();
        assert!(error.contains("no environment.network"), "{error}");
        config.network = Some(Box::default());
        let store = Arc::new(Store::open(&config).expect("both"));
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
            Store::open(&config),
            Err(ConfigError::Share { .. })
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
                "it has 0 inputs, and these recordings 113;",
            ),
        ] {
            fs::write(&path, text).expect("there is space");
            let error = Store::open(&config).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_left_of_a_probability_is_spread() {
        assert_eq!(spread(1, 0.5, 3), [0.25, 0.5, 0.25]);
        assert_eq!(spread(0, 1.0, 1), [1.0]);
    }
}
