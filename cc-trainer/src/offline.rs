//! Learning a policy from what others did: flows of other congestion controls that were observed,
//! and nothing else.
//!
//! [`gather`] reads recordings into [`Transitions`], one of five methods learns from them
//! ([`learn`]), and [`Material::policy_file`] writes what was learned as a policy file like any
//! other. docs/offline.md has a page on the methods and what they achieve.
//!
//! # Example
//!
//! ```
//! use cc_trainer::offline::{self, OfflineConfig, Outcome, Taken, Transitions};
//!
//! // One state and two actions. The second one pays, and was taken in one case of five.
//! let mut data = Transitions::new(1, 2);
//! for number in 0..500 {
//!     let action = usize::from(number % 5 == 0);
//!     let outcome = Outcome { reward: action as f32, discount: 0.0, ahead: 0 };
//!     let taken = Taken { action, change: action as f32 };
//!     data.push(&[1.0], taken, &[0.0, 1.0], Some(outcome));
//! }
//! let config: OfflineConfig = toml::from_str(
//!     "updates = 500\nbatch = 32\nhidden = [8]\nmethod = { kind = \"dqn\", pessimism = 0 }",
//! )?;
//! let learned = offline::learn(&config, &data, &mut |_| true)?;
//! let logits = learned.network.logits(&[1.0]);
//! assert!(logits[1] > logits[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bc;
pub mod config;
mod crr;
mod dqn;
mod losses;
mod material;
mod network;
mod parametric;
#[cfg(test)]
mod tests;
mod transitions;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Serialize;

use cc_sim::seed;

pub use config::{Method, OfflineConfig, SettingError};
pub use material::{GatherError, Material, gather};
pub use transitions::{Batch, Outcome, Taken, Transitions};

use self::{
    bc::BehaviourCloning, config::Dqn, crr::CriticRegularised, dqn::QLearning, network::Network,
    parametric::ParametricQ,
};
use crate::model::{Cpu, Outputs, Sequences, Shape};

/// Keeps the seeds of runs apart from others that are made of the same number.
const OFFLINE: u64 = 0x6f66_666c;

/// Number of points of a run's curve, at most.
const POINTS: u64 = 50;

/// A method under way: its networks, and how they learn.
trait OfflineMethod {
    /// Learns from a batch. `left` is what is left of the learning rate, 1 to 0.
    fn update(&mut self, batch: &Batch, left: f32) -> Result<Loss, Diverged>;

    /// The policy that was learned so far.
    fn policy(&self) -> LearnedNetwork;
}

/// The losses of an update; 0 for a part that the method does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Loss {
    /// Loss of the policy: −ln π of what it learns from.
    pub policy: f64,
    /// Loss of the values: their error, by the method's measure.
    pub value: f64,
}

/// A point of a run's curve: means over the updates since the point before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Number of updates so far.
    pub updates: u64,
    /// Mean losses of these updates, whose fields are the point's own in JSON.
    #[serde(flatten)]
    pub loss: Loss,
}

/// A network whose logits are a policy's.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedNetwork {
    /// The sizes of its layers.
    pub shape: Shape,
    /// Its parameters, in the order of [`crate::model::ParameterLayout`].
    pub parameters: Vec<f32>,
}

/// What a run has learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// The network of the policy that was learned.
    pub network: LearnedNetwork,
    /// How the losses went, from the first update to the last.
    pub curve: Vec<Point>,
}

/// A number that the networks depend on was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "learning diverged after {updates} updates: the gradient is not a finite number; lower \
     optimiser.learning_rate or optimiser.gradient_clip"
)]
pub struct Diverged {
    /// Number of updates before the one that failed.
    pub updates: u64,
}

/// Why nothing was learned from the transitions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnError {
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No outcome of any decision is known.
    #[error(
        "no outcome of any decision is known, so nothing can be learned: record flows from their \
         beginning, and for longer than a few windows"
    )]
    Nothing,
    /// The networks are of no use any more.
    #[error(transparent)]
    Diverged(#[from] Diverged),
    /// The caller asked to stop.
    #[error("ended early; nothing was written")]
    Cancelled,
}

impl LearnedNetwork {
    fn of(network: &Network) -> Self {
        Self {
            shape: network.shape().clone(),
            parameters: network.parameters(),
        }
    }

    /// The logits in states `[B, D]`: `[B, A]`.
    ///
    /// # Panics
    ///
    /// Panics when the states have another length than the network's.
    pub fn logits(&self, states: &[f32]) -> Vec<f32> {
        let mut cpu = Cpu::new(&self.shape, 1)
            .unwrap_or_else(|error| unreachable!("one thread, the caller's: {error}"));
        cpu.set_parameters(&self.parameters);
        let zeros = vec![0.0; states.len() / self.shape.observation];
        let input = Sequences {
            steps: 1,
            batch_size: zeros.len(),
            observation: states,
            reward: &zeros,
            not_done: &zeros,
            privileged: &[],
            h: &[],
            c: &[],
        };
        let mut outputs = Outputs::default();
        cpu.forward(&input, &mut outputs);
        outputs.logits
    }
}

/// Learns from transitions by the method of the settings. `watch` is called with the number of
/// updates now and then, and returns whether to go on. The same settings and transitions give the
/// same policy.
///
/// # Errors
///
/// Returns an error when a setting is out of its range, when no outcome is known, when the networks
/// diverge, or when `watch` says so.
pub fn learn(
    config: &OfflineConfig,
    data: &Transitions,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<Learned, LearnError> {
    config.validate()?;
    let known = data.known();
    if known.is_empty() {
        return Err(LearnError::Nothing);
    }
    let mut method = method(config, data);
    let mut random = StdRng::seed_from_u64(seed_of(config, 0));
    let period = config.updates.div_ceil(POINTS);
    let mut curve = Vec::new();
    let mut sum = Loss::default();
    let mut indices = vec![0; config.batch];
    for update in 0..config.updates {
        indices.fill_with(|| known[random.random_range(0..known.len())]);
        let left = 1.0 - update as f32 / config.updates as f32;
        let loss = method.update(&data.batch(&indices), left)?;
        sum.policy += loss.policy;
        sum.value += loss.value;
        let done = update + 1;
        if done % period == 0 || done == config.updates {
            let count = (done - curve.last().map_or(0, |point: &Point| point.updates)) as f64;
            let loss = Loss {
                policy: sum.policy / count,
                value: sum.value / count,
            };
            if !(loss.policy.is_finite() && loss.value.is_finite()) {
                return Err(Diverged { updates: done }.into());
            }
            curve.push(Point {
                updates: done,
                loss,
            });
            sum = Loss::default();
        }
        if done % 100 == 0 && !watch(done) {
            return Err(LearnError::Cancelled);
        }
    }
    Ok(Learned {
        network: method.policy(),
        curve,
    })
}

/// The seed of one of several random things in a run.
fn seed_of(config: &OfflineConfig, number: u64) -> u64 {
    seed::fold(seed::fold(OFFLINE, config.seed), number)
}

/// The method of the settings, with new networks.
fn method(config: &OfflineConfig, data: &Transitions) -> Box<dyn OfflineMethod> {
    let (width, actions) = (data.width(), data.actions());
    let network = |inputs: usize, outputs: usize, number: u64| {
        let layers = (&config.hidden[..], config.activation);
        let seed = seed_of(config, number);
        Network::new(inputs, outputs, layers, &config.optimiser, seed)
    };
    // A network and its copy.
    let pair = |inputs, outputs, number| [0, 1].map(|_| network(inputs, outputs, number));
    match &config.method {
        Method::Bc => Box::new(BehaviourCloning::new(network(width, actions, 1))),
        Method::Crr(settings) => Box::new(CriticRegularised::new(
            settings.clone(),
            pair(width, actions, 1),
            pair(width, actions * settings.quantiles, 2),
            seed_of(config, 3),
        )),
        Method::Dqn(settings) => {
            Box::new(QLearning::new(settings.clone(), pair(width, actions, 1)))
        }
        Method::Myopic(settings) => {
            let settings = Dqn {
                pessimism: settings.pessimism,
                temperature: settings.temperature,
                ..Dqn::default()
            };
            Box::new(QLearning::new(settings, pair(width, actions, 1)))
        }
        Method::Parametric(settings) => {
            let values = (2..).take(settings.ensemble);
            Box::new(ParametricQ::new(
                settings.clone(),
                values.map(|number| pair(width + 1, 1, number)).collect(),
                network(width, actions, 1),
            ))
        }
    }
}
