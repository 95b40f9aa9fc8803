//! The kinds of environment that a configuration can name.

use std::{collections::BTreeMap, sync::Arc};

use cc_agent::policy::Serving;
use serde::{Deserialize, Serialize};

use crate::{
    environment::{
        Environment, Spec,
        cartpole::{self, CartPole},
        gridworld::{self, GridWorld},
        network::{self, Network, World},
    },
    export::{self, ExportError},
    model::Shape,
    normalise::{Fit, Normalised, Normalizer},
};

/// Name of trained policies.
const POLICY: &str = "impala";
/// What their files say to people.
const DESCRIPTION: &str = "Congestion-control policy, learnt by cc-trainer in simulated networks";

/// A kind of environment, and its settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Environments {
    /// The pole on a cart.
    CartPole(cartpole::Config),
    /// The corridor with a junction.
    GridWorld(gridworld::Config),
    /// Flows on simulated links.
    Network(Box<network::Config>),
}

impl Environments {
    /// Checks the settings and reads what they name.
    ///
    /// # Errors
    ///
    /// Says what does not fit, and where.
    pub(super) fn open(&self) -> Result<Source, network::ConfigError> {
        Ok(match self {
            Self::CartPole(config) => Source::CartPole(config.clone()),
            Self::GridWorld(config) => Source::GridWorld(config.clone()),
            Self::Network(config) => Source::Network(Arc::new(World::new((**config).clone())?)),
        })
    }
}

/// Where environments of a kind come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    CartPole(cartpole::Config),
    GridWorld(gridworld::Config),
    Network(Arc<World>),
}

impl Source {
    /// An environment; the seed fixes what is random in it. With a normaliser, seen through it.
    pub(super) fn environment(
        &self,
        seed: u64,
        normalizer: Option<&Arc<Normalizer>>,
    ) -> Box<dyn Environment> {
        match (self, normalizer) {
            (Self::CartPole(config), _) => Box::new(CartPole::new(config, seed)),
            (Self::GridWorld(config), _) => Box::new(GridWorld::new(config, seed)),
            (Self::Network(world), None) => Box::new(Network::new(world.clone(), seed)),
            (Self::Network(world), Some(normalizer)) => Box::new(Normalised::new(
                Network::new(world.clone(), seed),
                normalizer.clone(),
            )),
        }
    }

    pub(super) fn spec(&self) -> Spec {
        match self {
            Self::Network(world) => world.spec(),
            _ => self.environment(0, None).spec(),
        }
    }

    /// Names of the tasks.
    pub(super) fn tasks(&self) -> Vec<String> {
        match self {
            Self::CartPole(_) => vec!["cartpole".to_owned()],
            Self::GridWorld(_) => vec!["gridworld".to_owned()],
            Self::Network(world) => world.tasks().to_vec(),
        }
    }

    /// A normaliser that has seen nothing, for environments whose observations need one.
    pub(super) fn fit(&self) -> Option<Fit> {
        match self {
            Self::CartPole(_) | Self::GridWorld(_) => None,
            Self::Network(world) => Some(Fit::new(network::inputs(&world.config().policy))),
        }
    }

    /// The file of a trained policy, for environments whose policies cc-agent serves; `provenance` tells how it came to
    /// be.
    pub(super) fn policy(
        &self,
        shape: &Shape,
        parameters: &[f32],
        normalizer: Option<&Normalizer>,
        serving: Serving,
        provenance: BTreeMap<String, String>,
    ) -> Option<Result<Vec<u8>, ExportError>> {
        let (Self::Network(world), Some(normalizer)) = (self, normalizer) else {
            return None;
        };
        let meta = export::meta(POLICY, shape, &world.config().policy, serving, provenance);
        Some(export::policy_file(
            shape,
            parameters,
            normalizer,
            &meta,
            DESCRIPTION,
        ))
    }
}
