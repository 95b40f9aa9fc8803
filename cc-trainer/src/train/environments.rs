//! The kinds of environment that a configuration can name.

use std::{collections::BTreeMap, sync::Arc};

use cc_core::interface::Interface;
use cc_core::policy::Serving;
use serde::{Deserialize, Serialize};

use super::TrainError;

use crate::{
    environment::{
        Environment, Spec,
        cartpole::{self, CartPole},
        gridworld::{self, GridWorld},
        network::{self, Network, World},
        recorded::{self, Store},
    },
    export::{self, ExportError},
    model::Shape,
    normalise::{Fit, Normalised, Normalizer},
};

/// Name of trained policies.
const POLICY: &str = "impala";
/// What their files say to people.
const DESCRIPTION: &str = "Congestion-control policy, learnt by cc-trainer in simulated networks";
/// The same of what was learnt from recordings.
const RECORDED: &str = "Congestion-control policy, learnt by cc-trainer from recorded flows";

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
    /// Recorded flows.
    Recorded(recorded::Config),
}

impl Environments {
    /// Checks the settings and reads what they name.
    ///
    /// # Errors
    ///
    /// Says what does not fit, and where.
    pub(super) fn open(&self) -> Result<Source, TrainError> {
        Ok(match self {
            Self::CartPole(config) => Source::CartPole(config.clone()),
            Self::GridWorld(config) => Source::GridWorld(config.clone()),
            Self::Network(config) => Source::Network(Arc::new(World::new((**config).clone())?)),
            Self::Recorded(config) => Source::Recorded(Arc::new(Store::open(config)?)),
        })
    }
}

/// Where environments of a kind come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    CartPole(cartpole::Config),
    GridWorld(gridworld::Config),
    Network(Arc<World>),
    Recorded(Arc<Store>),
}

impl Source {
    /// An environment, number `number` of an actor's; the seed fixes what is random in it. With a normaliser, seen through it.
    pub(super) fn environment(
        &self,
        number: usize,
        seed: u64,
        normalizer: Option<&Arc<Normalizer>>,
    ) -> Box<dyn Environment> {
        let environment: Box<dyn Environment> = match self {
            Self::CartPole(config) => Box::new(CartPole::new(config, seed)),
            Self::GridWorld(config) => Box::new(GridWorld::new(config, seed)),
            Self::Network(world) => Box::new(Network::new(world.clone(), seed)),
            Self::Recorded(store) => recorded::environment(store, number, seed),
        };
        match normalizer {
            None => environment,
            Some(normalizer) => Box::new(Normalised::new(environment, normalizer.clone())),
        }
    }

    pub(super) fn spec(&self) -> Spec {
        match self {
            Self::Network(world) => world.spec(),
            Self::Recorded(store) => store.spec(),
            _ => self.environment(0, 0, None).spec(),
        }
    }

    /// Names of the tasks.
    pub(super) fn tasks(&self) -> Vec<String> {
        match self {
            Self::CartPole(_) => vec!["cartpole".to_owned()],
            Self::GridWorld(_) => vec!["gridworld".to_owned()],
            Self::Network(world) => world.tasks().to_vec(),
            Self::Recorded(store) => store.tasks(),
        }
    }

    /// A normaliser that has seen nothing, for environments whose observations need one.
    pub(super) fn fit(&self) -> Option<Fit> {
        match self {
            Self::CartPole(_) | Self::GridWorld(_) => None,
            Self::Network(world) => Some(Fit::new(network::inputs(&world.config().policy))),
            Self::Recorded(store) => Some(Fit::new(network::inputs(store.interface()))),
        }
    }

    /// The normaliser that the settings name.
    pub(super) fn normalizer(&self) -> Option<&Normalizer> {
        match self {
            Self::Recorded(store) => store.normalizer(),
            _ => None,
        }
    }

    /// What policies are served with, for environments whose policies cc-agent serves.
    pub(super) fn interface(&self) -> Option<&Interface> {
        match self {
            Self::CartPole(_) | Self::GridWorld(_) => None,
            Self::Network(world) => Some(&world.config().policy),
            Self::Recorded(store) => Some(store.interface()),
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
        mut provenance: BTreeMap<String, String>,
    ) -> Option<Result<Vec<u8>, ExportError>> {
        let (interface, normalizer) = (self.interface()?, normalizer?);
        let description = match self {
            Self::Recorded(store) => {
                let policies = store.policies().join(", ");
                provenance.insert("recorded".to_owned(), policies);
                RECORDED
            }
            _ => DESCRIPTION,
        };
        let meta = export::meta(POLICY, shape, interface, serving, provenance);
        Some(export::policy_file(
            shape,
            parameters,
            normalizer,
            &meta,
            description,
        ))
    }
}
