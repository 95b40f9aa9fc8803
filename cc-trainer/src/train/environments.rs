//! The kinds of environment that a configuration can name.

use std::{collections::BTreeMap, sync::Arc};

use cc_agent::environment::Environment as Interface;
use cc_agent::policy::Serving;
use serde::{Deserialize, Serialize};

use super::TrainError;

use crate::{
    environment::{
        Environment, Normalised, Spec,
        cartpole::{CartPole, CartPoleConfig},
        gridworld::{GridWorld, GridWorldConfig},
        network::{NetworkConfig, NetworkEnvironment, World},
        recorded::{self, RecordedConfig, RecordedWorld},
    },
    export::{self, ExportError},
    model::Shape,
    normalise::{Fit, Normalizer, input_shapes},
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
    CartPole(CartPoleConfig),
    /// The corridor with a junction.
    GridWorld(GridWorldConfig),
    /// Flows on simulated links.
    Network(Box<NetworkConfig>),
    /// Recorded flows.
    Recorded(RecordedConfig),
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
            Self::Recorded(config) => Source::Recorded(Arc::new(RecordedWorld::open(config)?)),
        })
    }
}

/// Where environments of a kind come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    CartPole(CartPoleConfig),
    GridWorld(GridWorldConfig),
    Network(Arc<World>),
    Recorded(Arc<RecordedWorld>),
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
            Self::Network(world) => Box::new(NetworkEnvironment::new(world.clone(), seed)),
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
            Self::Network(world) => Some(Fit::new(input_shapes(&world.config().policy))),
            Self::Recorded(store) => Some(Fit::new(input_shapes(store.interface()))),
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
