//! The configuration of a training run: a file in TOML, and the command line's overrides.

use std::{
    fmt,
    num::NonZero,
    path::{Path, PathBuf},
    thread,
};

use cc_core::{
    interface::{Interface, RewardKind},
    policy::ActionSelection,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::environments::Environments;
use crate::{
    environment::{Series, Spec, recorded},
    learner::{LearnerSettings, Normalisation, SchedulePosition, values::ValueScaling},
    model::{Activation, Branch, DeviceKind, Shape},
    toml_file::{self, TomlFileError},
};

/// The configuration of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Total number of environment steps (actions) to learn from.
    #[serde(default = "default_steps")]
    pub steps: u64,
    /// Seed of initial parameters, environments and sampled actions. Without
    /// [`actors`](Self::actors) and with the same number of [`threads`](Self::threads) it
    /// determines the run bit for bit.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The device that the learner computes on; actors always use the CPU.
    #[serde(default)]
    pub device: DeviceKind,
    /// Number of actor threads beside the learner's. With 0, one thread acts and learns in turns.
    /// `None` stands for one less than the CPUs of the host, and at least one.
    #[serde(default)]
    pub actors: Option<usize>,
    /// Number of the learner's threads on the CPU. `None` stands for the CPUs that the actors
    /// leave, and at least one.
    #[serde(default)]
    pub threads: Option<usize>,
    /// Ends the run early once the mean return of the last 100 episodes reaches this value.
    #[serde(default)]
    pub until_return: Option<f64>,
    /// Time between two checkpoints, s.
    #[serde(default = "default_checkpoint_seconds")]
    pub checkpoint_seconds: f64,
    /// How cc-agent selects actions when it serves the policy file, unless its options say
    /// otherwise; part of the file.
    #[serde(default)]
    pub serving: ActionSelection,
    /// Whether links of test and validation sets may be trained on, for the reproduction of figures
    /// that were measured on the links that they were trained on. The policy's file says so, and so
    /// does every evaluation; such a policy cannot become the embedded one.
    #[serde(default)]
    pub allow_test_sets: bool,
    /// The environment to learn in.
    pub environment: Environments,
    /// A policy file with the network to begin with. [`model`](Self::model) must have its sizes.
    #[serde(default)]
    pub init: Option<PathBuf>,
    /// The network's sizes, as far as the environment leaves them open.
    #[serde(default)]
    pub model: Model,
    /// Settings of the learner and its optimiser.
    #[serde(default)]
    pub learner: LearnerSettings,
    /// Settings of the actors and their queue.
    #[serde(default)]
    pub actor: ActorSettings,
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

/// The sizes of the network that do not follow from the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Width of each fully connected layer of the trunk.
    pub hidden: Vec<usize>,
    /// Activation function of the trunk's layers.
    pub activation: Activation,
    /// Width of the LSTM; 0 for a network without one.
    pub lstm: usize,
    /// The layers before the trunk, one for each time series of the observation; `None` for a trunk
    /// that takes the observation itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convolution: Option<Convolution>,
}

/// A layer for each time series of an observation: a convolution, or for a context and a series
/// that is shorter than a filter a fully connected layer with as many outputs as there are filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Convolution {
    /// Number of filters over each series; at least 1.
    pub filters: usize,
    /// Width of a filter: the number of adjacent values that it takes.
    pub width: usize,
}

impl Default for Convolution {
    /// As in Pensieve (Mao et al., SIGCOMM 2017, section 5.1).
    fn default() -> Self {
        Self {
            filters: 128,
            width: 4,
        }
    }
}

impl Convolution {
    /// The layer for a series.
    fn branch(&self, series: &Series) -> Branch {
        Branch {
            from: series.from,
            length: series.length,
            width: match series.is_context {
                true => series.length,
                false => self.width.min(series.length),
            },
            filters: self.filters,
        }
    }

    /// The setting that makes these branches of their series; `None` without any. Where all are
    /// fully connected, the filters are as wide as the longest series.
    fn of(branches: &[Branch]) -> Option<Self> {
        let first = branches.first()?;
        let convolution = branches.iter().find(|branch| !branch.is_dense());
        let widths = branches.iter().map(|branch| branch.width);
        Some(Self {
            filters: first.filters,
            width: convolution.map_or(widths.max()?, |branch| branch.width),
        })
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            hidden: vec![64, 64],
            activation: Activation::Relu,
            lstm: 64,
            convolution: None,
        }
    }
}

impl Model {
    /// Extracts the sizes from a network's shape.
    pub fn of(shape: &Shape) -> Self {
        Self {
            hidden: shape.hidden.clone(),
            activation: shape.activation,
            lstm: shape.state(),
            convolution: Convolution::of(&shape.branches),
        }
    }
}

/// Settings of the actors and of the queue to the learner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActorSettings {
    /// Number of environments that an actor steps together.
    pub environments: usize,
    /// Number of rollouts that may wait for the learner. `None` stands for a batch plus
    /// one rollout of each environment.
    pub queue: Option<usize>,
    /// What an actor does with a rollout when the queue is full.
    pub when_full: WhenFull,
    /// Largest number of updates between the policy that begins a rollout and the one that learns
    /// from it; older rollouts are dropped, and counted. `None` for no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lag: Option<u64>,
    /// Number of steps before learning begins that the normaliser of observations is fitted to.
    pub fit_steps: u64,
    /// What acts in these steps.
    pub fit_by: FitBy,
}

impl Default for ActorSettings {
    fn default() -> Self {
        Self {
            environments: 32,
            queue: None,
            when_full: WhenFull::DropOldest,
            max_lag: None,
            fit_steps: 20_000,
            fit_by: FitBy::default(),
        }
    }
}

/// What acts while the normaliser is fitted, in simulated networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FitBy {
    /// Several behaviours, on all links alike.
    #[default]
    Mixture,
    /// Uniformly random actions, on links as often as they are trained on.
    Random,
}

/// What an actor does with a rollout when the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// Drop the oldest rollout in the queue, and count it: actors never wait, and the
    /// learner gets the newest data.
    #[default]
    DropOldest,
    /// Wait for room: no step is wasted, which pays if steps are expensive or if the learner makes
    /// better use of the CPU.
    Wait,
}

/// Settings of the command line; each `None` keeps the configuration's value.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Replaces [`Config::steps`], the steps of the run.
    pub steps: Option<u64>,
    /// Replaces [`Config::seed`], the seed of the run.
    pub seed: Option<u64>,
    /// Replaces [`Config::device`], which the learner computes on.
    pub device: Option<DeviceKind>,
    /// Replaces [`Config::actors`], the number of threads.
    pub actors: Option<usize>,
    /// Replaces [`ActorSettings::max_lag`], the bound on the age of rollouts.
    pub max_lag: Option<u64>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read, or is no configuration in TOML.
    #[error(transparent)]
    File(#[from] TomlFileError),
    /// A setting is out of its range.
    #[error("{field} is {found}, and has to be {expected}")]
    Range {
        /// The setting's key, such as `learner.discount`.
        field: &'static str,
        /// The value that it has.
        found: String,
        /// The values that are allowed, such as `from 0 to 1`.
        expected: &'static str,
    },
    /// Constraints are about quantities that the environment does not measure.
    #[error(
        "learner.constraints limits what only simulated networks measure (environment.kind = \
         \"network\", without a guide.fast); leave it out here, and give the objective's weights \
         instead"
    )]
    Unmeasured,
    /// Convolutions are over time series, of which the observation has none.
    #[error(
        "model.convolution is for observations with time series, and this environment's have \
         none; leave it out, or give the policies series: environment.policy.series for simulated \
         networks, recordings of a policy that has them for recorded flows"
    )]
    NoSeries,
    /// Two settings are in their ranges, but not together.
    #[error(
        "{} = {} and {} = {} contradict each other: {reason}",
        fields[0],
        found[0],
        fields[1],
        found[1]
    )]
    Conflict {
        /// The keys of the two settings.
        fields: [&'static str; 2],
        /// The values that they have, as in the file.
        found: [String; 2],
        /// Why they do not fit, and what does.
        reason: &'static str,
    },
}

impl Config {
    /// Reads a configuration from a file in TOML. Values are checked by [`resolve`](Self::resolve).
    ///
    /// # Errors
    ///
    /// Returns an error with the file's name when it cannot be read, is no TOML, or has an unknown
    /// key or a value of the wrong type.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Ok(toml_file::read(path)?)
    }

    /// The default configuration for learning from the recordings `from`: a low learning rate, a
    /// policy held near the recorded one, and cloning alone in the first tenth of the run.
    pub fn recorded(from: Vec<PathBuf>) -> Self {
        Self {
            steps: default_steps(),
            seed: default_seed(),
            device: DeviceKind::default(),
            actors: None,
            threads: None,
            until_return: None,
            checkpoint_seconds: default_checkpoint_seconds(),
            allow_test_sets: false,
            // Near the recorded policy, so that its recordings can evaluate the new one (`ope`).
            serving: ActionSelection::Softmax { temperature: 1.0 },
            environment: Environments::Recorded(recorded::RecordedConfig {
                from,
                ..recorded::RecordedConfig::default()
            }),
            init: None,
            model: Model::default(),
            learner: LearnerSettings {
                learning_rate: 5e-4,
                entropy_cost: 0.003,
                reward_normalisation: Normalisation::Global,
                cloning: 0.1,
                anchor: 0.05,
                pessimism: 0.01,
                ..LearnerSettings::default()
            },
            // Replaying is faster than learning, and a dropped rollout was read in vain.
            actor: ActorSettings {
                when_full: WhenFull::Wait,
                ..ActorSettings::default()
            },
        }
    }

    /// Applies the command line's overrides, fills in the defaults that depend on the
    /// host, and checks every value.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::Range`] for the first value that is out of its range.
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
        acting.max_lag = overrides.max_lag.or(acting.max_lag);
        acting.queue = Some(
            acting
                .queue
                .unwrap_or(self.learner.batch + actors.max(1) * acting.environments),
        );
        let learner = &mut self.learner;
        let settled = match (&self.environment, self.serving) {
            (Environments::Recorded(_), ActionSelection::Softmax { temperature }) => temperature,
            _ => 1.0,
        };
        learner.policy_temperature = Some(learner.policy_temperature.unwrap_or(settled));
        self.validate()?;
        Ok(self)
    }

    /// What may not be meant so, in words, with the remedy. `interface` is that of the policies
    /// that are learned, `None` where cc-agent does not serve them.
    pub fn warnings(&self, interface: Option<&Interface>) -> Vec<String> {
        let mut warnings = Vec::new();
        if let ActionSelection::Softmax { temperature } = self.serving
            && interface.is_some()
            && temperature != self.learner.policy_temperature()
        {
            warnings.push(format!(
                "the policy learns at temperature {} and will be served at {temperature}: as it is \
                 served it acts otherwise than it was trained to, and leads to other states; set \
                 learner.policy_temperature to the temperature of `serving`",
                self.learner.policy_temperature(),
            ));
        }
        let Some(interface) = interface else {
            return warnings;
        };
        if let Environments::Network(network) = &self.environment {
            let terms = network.objective.divergence(interface);
            if !terms.is_empty() {
                warnings.push(format!(
                    "environment.policy.objective, by which recordings, estimates and canaries \
                     will judge the policy, is not what it is trained for: {}; leave it out to \
                     have it follow environment.objective",
                    terms.join("; ")
                ));
            }
        }
        if interface.objective.is_none() {
            warnings.push(format!(
                "the policy states no objective, so that one is derived from its reward: {}; set \
                 environment.{} to choose another one",
                interface.objective(),
                match self.environment {
                    Environments::Recorded(_) => "objective",
                    _ => "policy.objective",
                }
            ));
        }
        if let Some(difference) = divergence(interface) {
            warnings.push(format!(
                "the reward that the policy observes differs from the objective that it is judged \
                 by: {difference}; it learns the objective, and the reward is an input of its \
                 network only"
            ));
        }
        warnings
    }

    /// The settings that shape the result and differ from `other`'s, as `setting: this, not that`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        compare("", &self.shaping(), &other.shaping(), &mut differences);
        differences
    }

    /// SHA-256 digest of all settings, in hexadecimal: equal for runs with equal settings.
    pub fn sha256(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        format!("{:x}", Sha256::digest(text))
    }

    /// The network's shape for an environment whose observations divide into these series.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigError::NoSeries`] when the network is to have convolutions and there are no
    /// series.
    pub fn shape(&self, spec: &Spec, series: &[Series]) -> Result<Shape, ConfigError> {
        let branches = match &self.model.convolution {
            None => Vec::new(),
            Some(_) if series.is_empty() => return Err(ConfigError::NoSeries),
            Some(convolution) => series.iter().map(|each| convolution.branch(each)).collect(),
        };
        Ok(Shape {
            observation: spec.observation,
            hidden: self.model.hidden.clone(),
            activation: self.model.activation,
            lstm: (self.model.lstm > 0).then_some(self.model.lstm),
            actions: spec.actions,
            privileged: match self.learner.privileged {
                true => spec.privileged,
                false => 0,
            },
            predictions: match self.learner.prediction_cost > 0.0 {
                true => spec.privileged,
                false => 0,
            },
            values: match self.learner.value_scaling {
                ValueScaling::None => 1,
                ValueScaling::PerTask => spec.tasks,
            },
            branches,
        })
    }

    /// Number of actor threads, as [`resolve`](Self::resolve) settled it.
    pub(super) fn actors(&self) -> usize {
        self.actors.unwrap_or(0)
    }

    /// Capacity of the queue, as [`resolve`](Self::resolve) settled it.
    pub(super) fn queue(&self) -> usize {
        self.actor.queue.unwrap_or(self.learner.batch)
    }

    /// Number of steps after which the learning rate's schedule ends.
    pub(super) fn decay_steps(&self) -> u64 {
        self.learner.decay_steps.unwrap_or(self.steps)
    }

    /// Where the update after this many steps is on the schedules.
    pub(super) fn position(&self, steps: u64) -> SchedulePosition {
        let decay_steps = self.decay_steps();
        let entropy_steps = self.learner.entropy_steps.unwrap_or(decay_steps);
        let of = |length: u64| steps as f64 / length as f64;
        SchedulePosition {
            learning_rate: of(decay_steps),
            entropy: of(entropy_steps),
        }
    }

    /// The settings that shape the result: all but those that a run may change when it is continued
    /// (duration, speed, device, how its policy is served, and what it may be trained on: which
    /// links it is trained on shapes the result by itself).
    fn shaping(&self) -> Value {
        // By way of text, in which an f32 of 0.99 is 0.99 and not 0.9900000095.
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
                "allow_test_sets",
                "actor",
            ] {
                settings.remove(free);
            }
            if let Some(Value::Object(environment)) = settings.get_mut("environment") {
                environment.remove("patience");
                // Where the fast policy of a graph is, but not that there is one.
                if let Some(fast) = environment
                    .get_mut("guide")
                    .and_then(|guide| guide.get_mut("fast"))
                {
                    *fast = Value::Bool(true);
                }
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
        if let Some(Convolution { filters, width }) = self.model.convolution {
            at_least_1("model.convolution.filters", filters)?;
            at_least_1("model.convolution.width", width)?;
        }
        for (field, steps) in [
            ("learner.decay_steps", learner.decay_steps),
            ("learner.entropy_steps", learner.entropy_steps),
        ] {
            let steps = steps.unwrap_or(1);
            check(field, steps, steps >= 1, "at least 1")?;
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
                "learner.pessimism",
                learner.pessimism,
                &not_negative,
                NOT_NEGATIVE,
            ),
            (
                "learner.policy_temperature",
                learner.policy_temperature(),
                &positive,
                POSITIVE,
            ),
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
            (
                "learner.learning_rate_end",
                learner.learning_rate_end.unwrap_or(0.0),
                &not_negative,
                NOT_NEGATIVE,
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
                "learner.prediction_cost",
                learner.prediction_cost,
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
        within(
            "learner.value_memory",
            learner.value_memory,
            unit.clone(),
            UNIT,
        )?;
        within("learner.reward_memory", learner.reward_memory, unit, UNIT)?;
        within(
            "checkpoint_seconds",
            self.checkpoint_seconds,
            positive,
            POSITIVE,
        )?;
        self.validate_constraints()?;
        self.validate_replay()?;
        self.validate_pairs()
    }

    /// Checks that each batch has a new rollout, and that there is room for those of a batch.
    fn validate_replay(&self) -> Result<(), ConfigError> {
        let Some(replay) = &self.learner.replay else {
            return Ok(());
        };
        let ratio = replay.ratio;
        check(
            "learner.replay.ratio",
            ratio,
            ratio >= 0.0 && ratio <= self.learner.batch as f64 - 1.0,
            "0 or more, and below learner.batch, so that each batch has a new rollout",
        )?;
        check(
            "learner.replay.capacity",
            replay.capacity,
            replay.capacity >= self.learner.batch,
            "at least learner.batch",
        )
    }

    /// Checks the limits, their control, and that the environment measures what is limited.
    fn validate_constraints(&self) -> Result<(), ConfigError> {
        let constraints = &self.learner.constraints;
        let unit = |value: f64| (0.0..=1.0).contains(&value);
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let loss = constraints.loss_at_most.unwrap_or(0.0);
        let share = constraints.share_at_least.unwrap_or(1.0);
        check(
            "learner.constraints.loss_at_most",
            loss,
            unit(loss),
            "from 0 to 1",
        )?;
        check(
            "learner.constraints.share_at_least",
            share,
            positive(share),
            "above 0",
        )?;
        let smoothing = constraints.smoothing;
        check(
            "learner.constraints.smoothing",
            smoothing,
            unit(smoothing) && smoothing > 0.0,
            "above 0, up to 1",
        )?;
        for (field, gain) in [
            ("learner.constraints.integral", constraints.integral),
            ("learner.constraints.proportional", constraints.proportional),
            ("learner.constraints.derivative", constraints.derivative),
            ("learner.constraints.most", constraints.most),
        ] {
            check(field, gain, not_negative(gain), "0 or more")?;
        }
        match &self.environment {
            Environments::Network(network) if !network.has_fast_policy() => Ok(()),
            _ if constraints.is_empty() => Ok(()),
            _ => Err(ConfigError::Unmeasured),
        }
    }

    /// Checks the settings that limit each other.
    fn validate_pairs(&self) -> Result<(), ConfigError> {
        let LearnerSettings {
            discount,
            reward_normalisation,
            clips,
            ..
        } = &self.learner;
        if *discount >= 1.0 && *reward_normalisation != Normalisation::None {
            return Err(ConfigError::Conflict {
                fields: ["learner.discount", "learner.reward_normalisation"],
                found: [discount.to_string(), quoted(reward_normalisation)],
                reason: "normalised rewards are multiplied by 1 − γ or √(1 − γ²), which would make \
                         all of them 0; choose a discount below 1, or no normalisation (\"none\")",
            });
        }
        if self.learner.burn_in > 0 && self.model.lstm == 0 {
            return Err(ConfigError::Conflict {
                fields: ["learner.burn_in", "model.lstm"],
                found: [self.learner.burn_in.to_string(), "0".to_owned()],
                reason: "a burn-in refreshes the state of an LSTM, and there is none",
            });
        }
        if self.learner.prediction_cost > 0.0 && !self.learner.privileged {
            return Err(ConfigError::Conflict {
                fields: ["learner.prediction_cost", "learner.privileged"],
                found: [self.learner.prediction_cost.to_string(), "false".to_owned()],
                reason: "what is predicted is the privileged observation, which is not observed",
            });
        }
        if clips.c > clips.rho {
            return Err(ConfigError::Conflict {
                fields: ["learner.clips.c", "learner.clips.rho"],
                found: [clips.c.to_string(), clips.rho.to_string()],
                reason: "V-trace needs a c that is at most rho (arXiv 1802.01561, section 4.1)",
            });
        }
        Ok(())
    }
}

/// In what the reward that a policy observes differs from its objective; `None` where both weigh
/// alike.
fn divergence(interface: &Interface) -> Option<String> {
    let (reward, objective) = (&interface.reward, interface.objective());
    if reward.kind == RewardKind::Linear {
        return Some("it is linear, and the objective logarithmic".to_owned());
    }
    if reward.loss_factor == 0.0 && objective.loss > 0.0 {
        return Some(format!(
            "in it loss costs nothing, in the objective a lost share of 1 % costs {}",
            objective.loss / 100.0
        ));
    }
    let of_reward = f64::from(reward.delay_factor) / f64::from(reward.throughput_factor);
    let of_objective = objective.delay / objective.throughput;
    ((of_reward - of_objective).abs() > 1e-3 * of_objective.abs().max(of_reward.abs())).then(|| {
        format!(
            "in it a logarithm of delay weighs {of_reward:.3} of one of throughput, in the \
             objective {of_objective:.3}"
        )
    })
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

/// A setting's value as a configuration in TOML has it.
fn quoted(setting: &impl Serialize) -> String {
    serde_json::to_string(setting).unwrap_or_default()
}

/// The fields that differ between two structures, as `field: this, not that`.
pub(crate) fn differences_of(this: &impl Serialize, that: &impl Serialize) -> Vec<String> {
    let [this, that] = [serde_json::to_value(this), serde_json::to_value(that)];
    let mut differences = Vec::new();
    compare(
        "",
        &this.unwrap_or_default(),
        &that.unwrap_or_default(),
        &mut differences,
    );
    differences
}

/// Appends the keys, below `path`, whose values differ.
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
    fn settings_that_are_left_out_have_defaults() {
        let config = parse(CARTPOLE).expect("only the environment is required");
        assert_eq!(config.learner, LearnerSettings::default());
        let config = config
            .resolve(&Overrides {
                actors: Some(3),
                steps: Some(5),
                ..Overrides::default()
            })
            .expect("defaults are valid");
        assert_eq!((config.actors(), config.steps, config.seed), (3, 5, 1));
        assert_eq!(config.queue(), 32 + 3 * 32);
        // A resolved configuration can be read again, as train.json has it.
        let json = serde_json::to_string(&config).expect("plain data");
        assert_eq!(
            serde_json::from_str::<Config>(&json).expect("its own format"),
            config
        );
    }

    #[test]
    fn an_unknown_setting_is_named_in_the_error() {
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
    fn a_setting_out_of_its_range_is_named_in_the_error() {
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
            (
                "[learner]\nentropy_steps = 0",
                "learner.entropy_steps is 0, and has to be at least 1",
            ),
            (
                "[learner]\ndecay_steps = 0",
                "learner.decay_steps is 0, and has to be at least 1",
            ),
            (
                "[learner.replay]\nratio = 31.5",
                "learner.replay.ratio is 31.5, and has to be 0 or more, and below learner.batch, \
                 so that each batch has a new rollout",
            ),
            (
                "[learner.replay]\ncapacity = 31",
                "learner.replay.capacity is 31, and has to be at least learner.batch",
            ),
            (
                "[learner]\nlearning_rate_end = -0.5",
                "learner.learning_rate_end is -0.5, and has to be 0 or more",
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
    fn the_entropy_has_a_schedule_of_its_own_if_it_is_given_one() {
        let position = |text: &str| {
            let config = parse(&format!("steps = 1000\n{CARTPOLE}[learner]\n{text}"));
            let config = config.expect("well-formed").resolve(&Overrides::default());
            let position = config.expect("valid").position(100);
            (position.learning_rate, position.entropy)
        };
        assert_eq!(position(""), (0.1, 0.1));
        assert_eq!(position("decay_steps = 200"), (0.5, 0.5));
        assert_eq!(position("entropy_steps = 400"), (0.1, 0.25));
        assert_eq!(
            position("decay_steps = 200\nentropy_steps = 50"),
            (0.5, 2.0)
        );
    }

    #[test]
    fn settings_that_contradict_each_other_are_named_in_the_error() {
        for (text, beginning) in [
            (
                "discount = 1\nreward_normalisation = \"horizon\"",
                "learner.discount = 1 and learner.reward_normalisation = \"horizon\" contradict",
            ),
            (
                // In f32 it is 1.
                "discount = 0.999999999\nreward_normalisation = \"per_task\"",
                "learner.discount = 1 and learner.reward_normalisation = \"per_task\" contradict",
            ),
            (
                "discount = 1\nreward_normalisation = \"global\"",
                "learner.discount = 1 and learner.reward_normalisation = \"global\" contradict",
            ),
            (
                "burn_in = 5\n[model]\nlstm = 0",
                "learner.burn_in = 5 and model.lstm = 0 contradict",
            ),
            (
                "clips = { c = 1.5, rho = 1.25 }",
                "learner.clips.c = 1.5 and learner.clips.rho = 1.25 contradict",
            ),
        ] {
            let error = parse(&format!("{CARTPOLE}[learner]\n{text}"))
                .expect("well-formed")
                .resolve(&Overrides::default())
                .expect_err("a contradiction")
                .to_string();
            assert!(error.starts_with(beginning), "{error}");
        }
        for text in ["discount = 1", "clips = { c = 1.5, rho = 1.5 }"] {
            parse(&format!("{CARTPOLE}[learner]\n{text}"))
                .expect("well-formed")
                .resolve(&Overrides::default())
                .expect("no contradiction");
        }
    }

    #[test]
    fn limits_are_checked_and_need_an_environment_that_measures() {
        let resolved = |environment: &str, text: &str| {
            let text = format!("[environment]\nkind = \"{environment}\"\n{text}");
            parse(&text)
                .expect("well-formed")
                .resolve(&Overrides::default())
        };
        let limits = "[learner.constraints]\nloss_at_most = 0.01\nshare_at_least = 0.8";
        resolved("network", limits).expect("valid");
        let error = resolved("cartpole", limits).expect_err("has no loss");
        assert!(matches!(error, ConfigError::Unmeasured), "{error}");
        for (text, expected) in [
            (
                "loss_at_most = 1.5",
                "loss_at_most is 1.5, and has to be from 0 to 1",
            ),
            (
                "share_at_least = 0",
                "share_at_least is 0, and has to be above 0",
            ),
            (
                "smoothing = 0",
                "smoothing is 0, and has to be above 0, up to 1",
            ),
            ("integral = -1", "integral is -1, and has to be 0 or more"),
        ] {
            let error = resolved("network", &format!("[learner.constraints]\n{text}"))
                .expect_err("out of range")
                .to_string();
            assert_eq!(error, format!("learner.constraints.{expected}"));
        }
    }

    #[test]
    fn recordings_are_learned_from_at_the_temperature_of_serving() {
        let temperature = |config: Config| {
            let resolved = config.resolve(&Overrides::default())?;
            Ok::<_, ConfigError>(resolved.learner.policy_temperature())
        };
        let served = |serving: &str, mut config: Config| {
            config.serving = serving.parse().expect("a selection");
            config
        };
        let recorded = || Config::recorded(vec!["day1".into()]);
        let simulated = || parse("[environment]\nkind = \"network\"").expect("valid");
        for (config, expected) in [
            (served("softmax:0.5", recorded()), 0.5),
            (served("softmax", recorded()), 1.0),
            // The most likely action has no distribution to learn.
            (served("greedy", recorded()), 1.0),
            (served("softmax:0.5", simulated()), 1.0),
        ] {
            assert_eq!(temperature(config).expect("valid"), expected);
        }
        let mut given = served("softmax:0.5", simulated());
        given.learner.policy_temperature = Some(0.5);
        assert_eq!(temperature(given.clone()).expect("valid"), 0.5);
        given.learner.policy_temperature = Some(0.0);
        let error = temperature(given).expect_err("no temperature").to_string();
        assert!(error.contains("learner.policy_temperature is 0, and has to be above 0"));
    }

    #[test]
    fn what_may_not_be_meant_so_is_said() {
        let warnings = |text: &str, serving: &str, objective: &str| {
            let text = format!(
                "serving = \"{serving}\"\n[environment]\nkind = \"network\"\n{text}\n\
                 [environment.objective]\nkind = \"power\"\n{objective}"
            );
            let config = parse(&text).expect("valid");
            let config = config.resolve(&Overrides::default()).expect("valid");
            let Environments::Network(network) = &config.environment else {
                panic!("a network")
            };
            let world = crate::environment::network::World::new((**network).clone());
            let world = world.expect("valid");
            config.warnings(Some(&world.config().policy))
        };
        // Reward and objective weigh delay and loss alike.
        let alike = "[environment.policy.reward]\nloss_factor = 0.1\n";
        let objective = "throughput = 5\nloss = 20";
        assert_eq!(warnings(alike, "greedy", objective), [""; 0]);
        for (text, serving, objective, expected) in [
            (alike, "softmax:0.5", objective, "will be served at 0.5"),
            ("", "greedy", objective, "a lost share of 1 % costs 0.2"),
            (
                alike,
                "greedy",
                "loss = 4",
                "delay weighs 0.200 of one of throughput",
            ),
            (
                "[environment.policy.reward]\nkind = \"linear\"\n",
                "greedy",
                objective,
                "it is linear",
            ),
            (
                "[environment.policy.reward]\nloss_factor = 0.1\n\
                 [environment.policy.objective]\nloss = 9\n",
                "greedy",
                objective,
                "is not what it is trained for",
            ),
        ] {
            let found = warnings(text, serving, objective);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{expected}: {found:?}"
            );
        }
        let recorded = Config::recorded(Vec::new());
        let found = recorded.warnings(Some(&Interface::default()));
        assert!(found[0].contains("set environment.objective"), "{found:?}");
        assert_eq!(recorded.warnings(None), [""; 0]);
    }

    #[test]
    fn a_convolution_makes_a_layer_for_each_series() {
        let spec = Spec {
            seats: 1,
            observation: 30,
            privileged: 0,
            actions: 3,
            tasks: 1,
        };
        let part = |from, length, is_context| Series {
            from,
            length,
            is_context,
        };
        let series = [part(0, 20, true), part(20, 8, false), part(28, 1, false)];
        let mut config = parse(CARTPOLE).expect("valid");
        let text = toml::to_string(&config).expect("plain data");
        assert!(!text.contains("convolution"), "{text}");
        let plain = config.shape(&spec, &series).expect("no series are needed");
        assert_eq!((plain.branches.len(), plain.trunk_input()), (0, 30));

        config.model = toml::from_str("convolution = {}").expect("the defaults");
        let shape = config.shape(&spec, &series).expect("there are series");
        let branch = |from, length, width| Branch {
            from,
            length,
            width,
            filters: 128,
        };
        let expected = [branch(0, 20, 20), branch(20, 8, 4), branch(28, 1, 1)];
        assert_eq!(shape.branches, expected);
        assert_eq!(Model::of(&shape), config.model);
        // Without one that is long enough, the setting is another one that makes the same layers.
        config.model = toml::from_str("convolution = { width = 9 }").expect("settings");
        let shape = config.shape(&spec, &series).expect("there are series");
        config.model = Model::of(&shape);
        assert_eq!(config.shape(&spec, &series).expect("the same"), shape);

        let error = config.shape(&spec, &[]).expect_err("no series").to_string();
        assert!(error.starts_with("model.convolution is for"), "{error}");
        for (text, expected) in [
            (
                "convolution = { filters = 0 }",
                "model.convolution.filters is 0",
            ),
            (
                "convolution = { width = 0 }",
                "model.convolution.width is 0",
            ),
        ] {
            let mut config = config.clone();
            config.model = toml::from_str(text).expect("well-formed");
            let error = config.resolve(&Overrides::default()).expect_err(text);
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }

    /// Or a comparison of the two would be about something else than the encoder.
    #[test]
    fn the_configuration_with_convolutions_differs_from_families_by_the_encoder_alone() {
        let load = |name: &str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("training");
            Config::load(&folder.join(name)).expect(name)
        };
        let differences = differences_of(&load("convolution.toml"), &load("families.toml"));
        let settings: Vec<_> = differences
            .iter()
            .filter_map(|difference| Some(difference.split_once(": ")?.0))
            .collect();
        assert_eq!(
            settings,
            ["environment.policy.series", "model.convolution"],
            "{differences:?}"
        );
    }

    #[test]
    fn only_settings_that_shape_the_result_count_as_differences() {
        let config = parse(CARTPOLE).expect("valid");
        let mut other = config.clone();
        other.steps = 7;
        other.actors = Some(9);
        assert_eq!(config.differences(&other), [""; 0]);
        let mut recorded = Config::recorded(Vec::new());
        if let Environments::Recorded(settings) = &mut recorded.environment {
            settings.patience += 1;
        }
        assert_eq!(recorded.differences(&Config::recorded(Vec::new())), [""; 0]);
        other.learner.discount = 0.5;
        other.model.lstm = 3;
        assert_eq!(
            other.differences(&config).join("; "),
            "learner.discount: 0.5, not 0.99; model.lstm: 3, not 64"
        );
    }
}
