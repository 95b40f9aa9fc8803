//! The environments that a configuration can choose from.

use std::path::PathBuf;

use cc_sim::{shim::ConditionsRange, sim::agent::AgentDelay};
use serde::{Deserialize, Serialize};

use crate::environment::{
    abr::{AbrConfig, AbrConfigError},
    cartpole::CartPoleConfig,
    gridworld::GridWorldConfig,
    network::{NetworkConfig, NetworkConfigError},
    networked::NetworkedConfig,
    recorded::{RecordedConfig, RecordedConfigError},
};

/// The kind of environment to learn in, with its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Environments {
    /// Bitrates of videos over traces.
    Abr(Box<AbrConfig>),
    /// CartPole: balancing a pole on a cart.
    CartPole(CartPoleConfig),
    /// A corridor with a junction, which takes memory to solve.
    GridWorld(GridWorldConfig),
    /// Flows on links that are simulated.
    Network(Box<NetworkConfig>),
    /// An environment of equal steps at the other end of a network.
    Networked(NetworkedConfig),
    /// Flows replayed from recordings of cc-agent.
    Recorded(RecordedConfig),
}

/// Why environments cannot be made as they are configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The settings of the environment of bitrates cannot be used, or a file that they name.
    #[error("environment.{0}")]
    Abr(#[from] AbrConfigError),
    /// The fast policy of a graph cannot be used.
    #[error("environment.guide.fast, {}: {reason}", path.display())]
    Fast {
        /// Directory of the run that has trained it.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// The settings of the network environment contradict each other or name what does not exist.
    #[error("environment.{0}")]
    Network(#[from] NetworkConfigError),
    /// A setting of an environment behind a network is out of range.
    #[error("environment: {0}")]
    Networked(String),
    /// The recordings to learn from cannot be used.
    #[error(transparent)]
    Recorded(#[from] RecordedConfigError),
}

impl Environments {
    /// The same environment with its policy behind another network; `None` for environments that
    /// have no network between them and the policy. In a graph it is between the slow policy and
    /// the fast one.
    pub fn behind(&self, network: ConditionsRange) -> Option<Self> {
        let mut behind = self.clone();
        match &mut behind {
            Self::Networked(config) => config.network = network,
            Self::Network(config) => match (&mut config.guide, &mut config.delay) {
                (Some(guide), _) => guide.network = network,
                (None, AgentDelay::Network { network: own, .. }) => *own = network,
                _ => return None,
            },
            _ => return None,
        }
        Some(behind)
    }

    /// The same environment for the slow policy of a graph, above the fast one that the run in a
    /// directory has trained; `None` for environments without a guide.
    pub(crate) fn above(&self, fast: PathBuf) -> Option<Self> {
        let mut above = self.clone();
        let Self::Network(config) = &mut above else {
            return None;
        };
        config.guide.as_mut()?.fast = Some(fast);
        Some(above)
    }

    /// Whether a policy of a graph is learned, the fast or the slow one.
    pub(crate) fn is_of_graph(&self) -> bool {
        matches!(self, Self::Network(config) if config.guide.is_some())
    }

    /// The settings of learning from recordings; `None` for other environments.
    pub(super) fn recorded(&self) -> Option<&RecordedConfig> {
        match self {
            Self::Recorded(config) => Some(config),
            _ => None,
        }
    }
}
