//! What a training run is told: a file in TOML, and what the command line changes of it.

use std::{
    fmt, fs, io,
    num::NonZero,
    path::{Path, PathBuf},
    thread,
};

use cc_agent::policy::Serving;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::environments::Environments;
use crate::{
    environment::{Spec, recorded},
    learner::{Settings, reward::Normalisation},
    model::{Activation, DeviceKind, Shape},
};

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Environment steps (actions) to learn from, in all.
    #[serde(default = "default_steps")]
    pub steps: u64,
    /// Fixes initial parameters, environments and choices of actions. With [`actors`](Self::actors) 0 it fixes the run.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Where the learner computes.
    #[serde(default)]
    pub device: DeviceKind,
    /// Threads that act beside the learner. With 0, one thread acts and learns in turns. By default as many as there
    /// are processors but one, and at least one.
    #[serde(default)]
    pub actors: Option<usize>,
    /// Threads of the learner on the CPU; by default the processors that actors leave, and at least one.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Ends the run before its steps are done, when the mean return of the last 100 episodes reaches this.
    #[serde(default)]
    pub until_return: Option<f64>,
    /// Seconds between two checkpoints.
    #[serde(default = "default_checkpoint_seconds")]
    pub checkpoint_seconds: f64,
    /// How the policy's file asks to be served.
    #[serde(default)]
    pub serving: Serving,
    /// What to learn.
    pub environment: Environments,
    /// A policy file whose network to begin with; [`model`](Self::model) has to say its sizes.
    #[serde(default)]
    pub init: Option<PathBuf>,
    /// The network.
    #[serde(default)]
    pub model: Model,
    /// How to learn.
    #[serde(default)]
    pub learner: Settings,
    /// How to act.
    #[serde(default)]
    pub actor: Acting,
}

fn default_steps() -> u64 {
    1_000_000
}

fn default_seed() -> u64 {
    1
}

fn default_checkpoint_seconds() -> f64 {
    60.0
}

/// Sizes of the network that the environment leaves open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Widths of the fully connected layers.
    pub hidden: Vec<usize>,
    /// What follows each of them.
    pub activation: Activation,
    /// Width of the LSTM; 0 leaves it out.
    pub lstm: usize,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            hidden: vec![64, 64],
            activation: Activation::Relu,
            lstm: 64,
        }
    }
}

impl Model {
    /// The sizes of a network.
    pub fn of(shape: &Shape) -> Self {
        Self {
            hidden: shape.hidden.clone(),
            activation: shape.activation,
            lstm: shape.state(),
        }
    }
}

/// How to act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Acting {
    /// Environments that an actor steps together.
    pub environments: usize,
    /// Whole rollouts that may wait for the learner; by default a batch and one of each environment.
    pub queue: Option<usize>,
    /// What happens to a rollout when as many wait already.
    pub when_full: WhenFull,
    /// Steps under actions at random, before any learning, that the normaliser of observations is fitted on.
    pub fit_steps: u64,
}

impl Default for Acting {
    fn default() -> Self {
        Self {
            environments: 32,
            queue: None,
            when_full: WhenFull::DropOldest,
            fit_steps: 20_000,
        }
    }
}

/// What happens to a rollout that finds the queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The oldest one goes, and is counted: actors never wait, and the learner gets what is newest.
    #[default]
    DropOldest,
    /// The actor waits: no step is wasted, which pays where steps are dear or the learner needs the processor more.
    Wait,
}

/// What the command line changes.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Of [`Config::steps`].
    pub steps: Option<u64>,
    /// Of [`Config::seed`].
    pub seed: Option<u64>,
    /// Of [`Config::device`].
    pub device: Option<DeviceKind>,
    /// Of [`Config::actors`].
    pub actors: Option<usize>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Its file cannot be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It is not a configuration in TOML.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
    /// A setting is out of its range.
    #[error("{field} is {found}, and has to be {expected}")]
    Range {
        /// Which setting.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no TOML, or has an unknown or unfit setting; says where.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let config: Self = toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        Ok(config)
    }

    /// Settings for learning from recordings: cautious steps, near to what was recorded, at first only clones of it.
    pub fn recorded(from: Vec<PathBuf>) -> Self {
        Self {
            steps: default_steps(),
            seed: default_seed(),
            device: DeviceKind::default(),
            actors: None,
            threads: None,
            until_return: None,
            checkpoint_seconds: default_checkpoint_seconds(),
            // As the recorded policy was served, or nearly: so that it can be judged by recordings of that one.
            serving: Serving::Softmax { temperature: 1.0 },
            environment: Environments::Recorded(recorded::RecordedConfig {
                from,
                ..recorded::RecordedConfig::default()
            }),
            init: None,
            model: Model::default(),
            learner: Settings {
                learning_rate: 5e-4,
                entropy_cost: 0.003,
                reward_normalisation: Normalisation::Global,
                cloning: 0.1,
                anchor: 0.05,
                ..Settings::default()
            },
            // Replaying is faster than learning, and what is dropped was read for nothing.
            actor: Acting {
                when_full: WhenFull::Wait,
                ..Acting::default()
            },
        }
    }

    /// Puts the command line's wishes, and this host's answers where nothing is said, in their places.
    ///
    /// # Errors
    ///
    /// Names the setting that is out of its range.
    pub fn resolve(mut self, overrides: &Overrides) -> Result<Self, ConfigError> {
        self.steps = overrides.steps.unwrap_or(self.steps);
        self.seed = overrides.seed.unwrap_or(self.seed);
        self.device = overrides.device.unwrap_or(self.device);
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let actors = overrides
            .actors
            .or(self.actors)
            .unwrap_or((cores - 1).max(1));
        self.actors = Some(actors);
        self.threads = Some(self.threads.unwrap_or(cores.saturating_sub(actors).max(1)));
        let acting = &mut self.actor;
        acting.queue = Some(
            acting
                .queue
                .unwrap_or(self.learner.batch + actors.max(1) * acting.environments),
        );
        self.validate()?;
        Ok(self)
    }

    /// Which of the settings that shape the result differ from those of another run: `setting: this, not that`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        compare("", &self.shaping(), &other.shaping(), &mut differences);
        differences
    }

    /// SHA-256 of all settings, in hexadecimal: equal where two runs were told the same.
    pub fn sha256(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("{:x}", Sha256::digest(text))
    }

    /// The network for an environment.
    pub fn shape(&self, spec: &Spec) -> Shape {
        Shape {
            observation: spec.observation,
            hidden: self.model.hidden.clone(),
            activation: self.model.activation,
            lstm: (self.model.lstm > 0).then_some(self.model.lstm),
            actions: spec.actions,
            privileged: match self.learner.privileged {
                true => spec.privileged,
                false => 0,
            },
        }
    }

    /// Threads that act beside the learner, as resolved.
    pub(super) fn actors(&self) -> usize {
        self.actors.unwrap_or(0)
    }

    /// Rollouts that may wait, as resolved.
    pub(super) fn queue(&self) -> usize {
        self.actor.queue.unwrap_or(self.learner.batch)
    }

    /// Where the schedules end.
    pub(super) fn decay_steps(&self) -> u64 {
        self.learner.decay_steps.unwrap_or(self.steps)
    }

    /// All but what a run may change when it goes on: how long, how fast, where, and how its policy is served.
    fn shaping(&self) -> Value {
        // Through text, where a single-precision 0.99 is 0.99.
        let text = serde_json::to_string(self).unwrap_or_default();
        let mut value = serde_json::from_str(&text).unwrap_or_default();
        if let Value::Object(settings) = &mut value {
            for free in [
                "steps",
                "device",
                "actors",
                "threads",
                "until_return",
                "checkpoint_seconds",
                "serving",
                "actor",
            ] {
                settings.remove(free);
            }
        }
        value
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let learner = &self.learner;
        let at_least_1 = |field, found: usize| check(field, found, found >= 1, "at least 1");
        at_least_1("learner.batch", learner.batch)?;
        at_least_1("learner.unroll", learner.unroll)?;
        at_least_1("actor.environments", self.actor.environments)?;
        at_least_1("threads", self.threads.unwrap_or(1))?;
        at_least_1("model.hidden", self.model.hidden.len())?;
        for &width in &self.model.hidden {
            at_least_1("model.hidden", width)?;
        }
        check(
            "actor.queue",
            self.queue(),
            self.queue() >= learner.batch,
            "at least learner.batch",
        )?;
        let within = |field, found: f64, range: std::ops::RangeInclusive<f64>, expected| {
            check(field, found, range.contains(&found), expected)
        };
        let unit = 0.0..=1.0;
        let positive = f64::MIN_POSITIVE..=f64::MAX;
        let not_negative = 0.0..=f64::MAX;
        const UNIT: &str = "from 0 to 1";
        const POSITIVE: &str = "above 0";
        const NOT_NEGATIVE: &str = "0 or more";
        for (field, found, range, expected) in [
            ("learner.discount", learner.discount, &unit, UNIT),
            ("learner.decay", learner.decay, &unit, UNIT),
            ("learner.momentum", learner.momentum, &unit, UNIT),
            ("learner.clips.lambda", learner.clips.lambda, &unit, UNIT),
            ("learner.cloning", learner.cloning, &unit, UNIT),
            (
                "learner.anchor",
                learner.anchor,
                &not_negative,
                NOT_NEGATIVE,
            ),
            (
                "learner.temperature",
                learner.temperature,
                &positive,
                POSITIVE,
            ),
            (
                "learner.learning_rate",
                learner.learning_rate,
                &positive,
                POSITIVE,
            ),
            ("learner.epsilon", learner.epsilon, &positive, POSITIVE),
            ("learner.clips.rho", learner.clips.rho, &positive, POSITIVE),
            (
                "learner.clips.policy_rho",
                learner.clips.policy_rho,
                &positive,
                POSITIVE,
            ),
            ("learner.clips.c", learner.clips.c, &positive, POSITIVE),
            (
                "learner.baseline_cost",
                learner.baseline_cost,
                &not_negative,
                NOT_NEGATIVE,
            ),
            (
                "learner.entropy_cost",
                learner.entropy_cost,
                &not_negative,
                NOT_NEGATIVE,
            ),
            (
                "learner.entropy_cost_end",
                learner.entropy_cost_end.unwrap_or(0.0),
                &not_negative,
                NOT_NEGATIVE,
            ),
            (
                "learner.gradient_clip",
                learner.gradient_clip,
                &not_negative,
                NOT_NEGATIVE,
            ),
        ] {
            within(field, f64::from(found), range.clone(), expected)?;
        }
        within("learner.reward_memory", learner.reward_memory, unit, UNIT)?;
        within(
            "checkpoint_seconds",
            self.checkpoint_seconds,
            positive,
            POSITIVE,
        )
    }
}

fn check(
    field: &'static str,
    found: impl fmt::Display,
    fits: bool,
    expected: &'static str,
) -> Result<(), ConfigError> {
    match fits {
        true => Ok(()),
        false => Err(ConfigError::Range {
            field,
            found: found.to_string(),
            expected,
        }),
    }
}

/// Appends where two settings differ.
fn compare(path: &str, this: &Value, that: &Value, differences: &mut Vec<String>) {
    match (this, that) {
        (Value::Object(these), Value::Object(those)) => {
            let mut names: Vec<_> = these.keys().chain(those.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let path = match path {
                    "" => name.clone(),
                    _ => format!("{path}.{name}"),
                };
                let of = |settings: &serde_json::Map<String, Value>| {
                    settings.get(name).cloned().unwrap_or_default()
                };
                compare(&path, &of(these), &of(those), differences);
            }
        }
        _ if this != that => differences.push(format!("{path}: {this}, not {that}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, toml::de::Error> {
        toml::from_str(text)
    }

    const CARTPOLE: &str = "[environment]\nkind = \"cartpole\"\n";

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = parse(CARTPOLE).expect("only the environment has to be said");
        assert_eq!(config.learner, Settings::default());
        let config = config
            .resolve(&Overrides {
                actors: Some(3),
                steps: Some(5),
                ..Overrides::default()
            })
            .expect("defaults are valid");
        assert_eq!((config.actors(), config.steps, config.seed), (3, 5, 1));
        assert_eq!(config.queue(), 32 + 3 * 32);
        // What was resolved can be read again, as train.json has it.
        let json = serde_json::to_string(&config).expect("plain data");
        assert_eq!(
            serde_json::from_str::<Config>(&json).expect("its own words"),
            config
        );
    }

    #[test]
    fn unknown_settings_are_named() {
        for (text, name) in [
            ("stepz = 1\n[environment]\nkind = \"cartpole\"", "stepz"),
            ("[environment]\nkind = \"cartpole\"\nwheels = 3", "wheels"),
            ("[environment]\nkind = \"pole\"", "pole"),
            (
                "[environment]\nkind = \"cartpole\"\n[learner]\nlr = 3",
                "lr",
            ),
            ("steps = 3", "environment"),
        ] {
            let error = parse(text).expect_err("not a setting").to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        for (text, message) in [
            (
                "[learner]\ndiscount = 1.5",
                "learner.discount is 1.5, and has to be from 0 to 1",
            ),
            (
                "[learner]\nbatch = 0",
                "learner.batch is 0, and has to be at least 1",
            ),
            (
                "[learner]\nlearning_rate = nan",
                "learner.learning_rate is NaN, and has to be above 0",
            ),
            (
                "[actor]\nqueue = 3",
                "actor.queue is 3, and has to be at least learner.batch",
            ),
            (
                "[model]\nhidden = []",
                "model.hidden is 0, and has to be at least 1",
            ),
        ] {
            let error = parse(&format!("{CARTPOLE}{text}"))
                .expect("well-formed")
                .resolve(&Overrides::default())
                .expect_err("out of range");
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn differences_are_those_that_shape_the_result() {
        let config = parse(CARTPOLE).expect("valid");
        let mut other = config.clone();
        other.steps = 7;
        other.actors = Some(9);
        assert_eq!(config.differences(&other), [""; 0]);
        other.learner.discount = 0.5;
        other.model.lstm = 3;
        assert_eq!(
            other.differences(&config).join("; "),
            "learner.discount: 0.5, not 0.99; model.lstm: 3, not 64"
        );
    }
}
