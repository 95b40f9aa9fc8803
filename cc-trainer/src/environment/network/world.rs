//! The configuration of the environment, and its checked form that environments share.

use cc_core::interface::Interface;
use cc_ebpf::{Settings, Startup};
use serde::{Deserialize, Serialize};

use super::links::{Entry, Links};
use super::range::{Range, ordered};
use super::truth::PRIVILEGED;
use super::{Guide, NetworkConfigError, Objective, Spec};
use crate::normalise::{Input, Normalizer, input_shapes};
use cc_sim::scenario::families::Family;
use cc_sim::sim::RECEIVER_REST;
use cc_sim::sim::agent::{AgentDelay, SenderMode};
use cc_sim::sim::control::learned::Learned;

/// Configuration of the simulated links and of the reward, `[environment]` of kind `network`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Observation, actions and window length of the policy; written to its policy file. An
    /// objective that is not stated here is made of [`Self::objective`].
    pub policy: Interface,
    /// The links to draw from, each entry with a weight.
    pub links: Vec<Entry>,
    /// The reward that is maximised.
    pub objective: Objective,
    /// Length of an episode, s.
    pub episode_s: f64,
    /// Pause of the receiving applications between two reads, ms. Each episode draws it from this
    /// range, uniformly in its logarithm.
    pub receiver_rest_ms: Range,
    /// Time from the arrival of a window at the agent until its decision is published.
    pub delay: AgentDelay,
    /// Whether senders wait for their decisions or go on meanwhile.
    pub mode: SenderMode,
    /// Whether flows keep their initial cwnd until the first decision, as in the mvfst-rl paper,
    /// instead of starting in slow start.
    pub constant_start: bool,
    /// What the network gets of an observation.
    pub inputs: Inputs,
    /// What a slow remote policy tells the policy of each flow; `None` for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guide: Option<Guide>,
}

/// What a network gets of an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inputs {
    /// Logarithms of mean 0 and deviation 1, fitted before training begins.
    #[default]
    Standardised,
    /// The observation as it is, in units of 100 ms and of kB, and the reward clipped to ±1, as in
    /// the mvfst-rl paper.
    Raw,
}

impl Default for NetworkConfig {
    /// Links of the family `broad`, 30 s each.
    fn default() -> Self {
        Self {
            policy: Interface::default(),
            links: vec![Entry {
                weight: 1.0,
                scenarios: None,
                random: None,
                family: Some(Family::Broad),
                flows: None,
                shift_s: 0.0,
            }],
            objective: Objective::default(),
            episode_s: 30.0,
            receiver_rest_ms: [1e3 * RECEIVER_REST.as_secs_f64(); 2],
            delay: AgentDelay::default(),
            mode: SenderMode::default(),
            constant_start: false,
            inputs: Inputs::default(),
            guide: None,
        }
    }
}

impl NetworkConfig {
    /// Replaces the links by scenarios, as `--scenarios` names them, each as it is.
    pub fn on_scenarios(&mut self, scenarios: &str) {
        self.links = vec![Entry {
            weight: 1.0,
            scenarios: Some(scenarios.to_owned()),
            random: None,
            family: None,
            flows: None,
            shift_s: 0.0,
        }];
    }
}

/// A checked configuration with its scenarios, shared by any number of environments.
#[derive(Clone, Debug)]
pub struct World {
    pub(super) config: NetworkConfig,
    pub(super) links: Links,
    /// Settings of the simulated datapath, derived from the policy's interface.
    pub(super) settings: Settings,
    pub(super) spec: Spec,
    /// The transform of the inputs that needs no fit; `None` where they are standardised.
    normalizer: Option<Normalizer>,
}

impl World {
    /// Checks the configuration and reads its scenarios.
    ///
    /// # Errors
    ///
    /// Returns an error when a setting is out of range, a scenario cannot be read, or a link has no
    /// rate. The message names the setting.
    pub fn new(mut config: NetworkConfig) -> Result<Self, NetworkConfigError> {
        config.policy.validate()?;
        let policy = Interface {
            objective: Some(config.objective.observable(&config.policy)),
            ..config.policy.clone()
        };
        // Some rewards, such as one without a weight of throughput, are no objective for a host.
        if config.policy.objective.is_none() && policy.validate().is_ok() {
            config.policy = policy;
        }
        config.objective.check()?;
        config.delay.validate().map_err(NetworkConfigError::Delay)?;
        if !(0.1..=86_400.0).contains(&config.episode_s) {
            return Err(NetworkConfigError::Range {
                place: "episode_s".to_owned(),
                found: config.episode_s,
                least: 0.1,
                most: 86_400.0,
            });
        }
        ordered(config.receiver_rest_ms, 1e-3, 100.0, || {
            "receiver_rest_ms".to_owned()
        })?;
        if let Some(guide) = &config.guide {
            guide.check(&config.objective)?;
        }
        let links = Links::new(&config.links)?;
        let observation = config.policy.observation_len() + usize::from(config.guide.is_some());
        let startup = match config.constant_start {
            true => Startup::Constant,
            false => Startup::SlowStart,
        };
        Ok(Self {
            settings: Learned::settings(&config.policy, startup),
            spec: Spec {
                seats: links.most_learned(),
                observation,
                privileged: PRIVILEGED,
                actions: config.policy.actions.len(),
                tasks: links.tasks().len(),
            },
            normalizer: match config.inputs {
                Inputs::Standardised => None,
                Inputs::Raw => Some(Normalizer::raw(observation)),
            },
            links,
            config,
        })
    }

    /// Returns the transform of the inputs that the configuration names; `None` where one has to be
    /// fitted.
    pub fn normalizer(&self) -> Option<&Normalizer> {
        self.normalizer.as_ref()
    }

    /// Returns the shape of each input of an observation, in order.
    pub fn input_shapes(&self) -> Vec<Input> {
        let mut inputs = input_shapes(&self.config.policy);
        inputs.extend(self.config.guide.is_some().then(Guide::input));
        inputs
    }

    /// Returns the sizes of this world's environments.
    pub fn spec(&self) -> Spec {
        self.spec
    }

    /// Returns the names of the tasks in order: the scenarios' names, and `random-N` for links
    /// entry N when it is a random family.
    pub fn tasks(&self) -> &[String] {
        self.links.tasks()
    }

    /// Returns the configuration of this world, in which the policy has an objective.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }
}
