//! Makes environments of one kind, and says what they are.

use std::{collections::BTreeMap, sync::Arc};

use cc_core::{interface::Interface, policy::ActionSelection};

use crate::{
    abr::policy::{self as bitrate_policy, BitrateMeta},
    environment::{
        Environment, Normalised, Series, Spec,
        abr::{AbrConfig, AbrEnvironment, AbrWorld},
        cartpole::{CartPole, CartPoleConfig},
        gridworld::{GridWorld, GridWorldConfig},
        network::{NetworkEnvironment, SlowEnvironment, SlowWorld, World},
        networked::{Networked, NetworkedConfig},
        recorded::{self, RecordedWorld},
    },
    model::Shape,
    normalise::{Fit, Normalizer, input_shapes},
    policy_file::{self, ExportError},
};

/// Name of trained policies in their files.
const POLICY: &str = "impala";
/// Description in the files of policies trained in simulated networks.
const DESCRIPTION: &str = "Congestion-control policy, learnt by cc-trainer in simulated networks";
/// Description in the files of policies trained from recordings.
const RECORDED: &str = "Congestion-control policy, learnt by cc-trainer from recorded flows";

/// Makes environments of one kind, from settings that were checked and files that were read.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Abr(Arc<AbrWorld>),
    CartPole(CartPoleConfig),
    GridWorld(GridWorldConfig),
    Network(Arc<World>),
    Networked(NetworkedConfig),
    Recorded(Arc<RecordedWorld>),
    Slow(Arc<SlowWorld>),
}

impl Source {
    /// Makes environment number `number` of an actor. The seed determines everything random in it.
    /// The normaliser, if there is one, is applied to its observations.
    pub(crate) fn environment(
        &self,
        number: usize,
        seed: u64,
        normalizer: Option<&Arc<Normalizer>>,
    ) -> Box<dyn Environment> {
        let environment: Box<dyn Environment> = match self {
            Self::Abr(world) => Box::new(AbrEnvironment::new(world.clone(), seed)),
            Self::CartPole(config) => Box::new(CartPole::new(config, seed)),
            Self::GridWorld(config) => Box::new(GridWorld::new(config, seed)),
            Self::Network(world) => Box::new(NetworkEnvironment::new(world.clone(), seed)),
            Self::Networked(config) => {
                let world = config.world.environment(seed);
                Box::new(Networked::new(world, config.clone(), seed))
            }
            Self::Recorded(store) => recorded::environment(store, number, seed),
            Self::Slow(world) => Box::new(SlowEnvironment::new(world.clone(), seed)),
        };
        match normalizer {
            None => environment,
            Some(normalizer) => Box::new(Normalised::new(environment, normalizer.clone())),
        }
    }

    /// Makes an environment with the links of one task alone; `None` for recordings.
    pub(super) fn environment_of_task(
        &self,
        task: usize,
        seed: u64,
        normalizer: Option<&Arc<Normalizer>>,
    ) -> Option<Box<dyn Environment>> {
        let environment: Box<dyn Environment> = match self {
            Self::Abr(world) => Box::new(AbrEnvironment::new(world.clone(), seed).of_source(task)),
            // They have one task.
            Self::CartPole(_) | Self::GridWorld(_) | Self::Networked(_) => {
                self.environment(0, seed, None)
            }
            Self::Network(world) => {
                Box::new(NetworkEnvironment::new(world.clone(), seed).of_task(task))
            }
            Self::Recorded(_) => return None,
            Self::Slow(world) => Box::new(SlowEnvironment::new(world.clone(), seed).of_task(task)),
        };
        Some(match normalizer {
            None => environment,
            Some(normalizer) => Box::new(Normalised::new(environment, normalizer.clone())),
        })
    }

    /// The sizes of the environments.
    pub(crate) fn spec(&self) -> Spec {
        match self {
            Self::Abr(world) => world.spec(),
            Self::Network(world) => world.spec(),
            Self::Recorded(store) => store.spec(),
            Self::Slow(world) => world.spec(),
            _ => self.environment(0, 0, None).spec(),
        }
    }

    /// How an observation of the environments divides into time series; empty where it does not.
    pub(crate) fn series(&self) -> Vec<Series> {
        match self.interface() {
            Some(interface) => Series::of(interface),
            None => self.environment(0, 0, None).series(),
        }
    }

    /// Name of each task, by its index.
    pub(super) fn tasks(&self) -> Vec<String> {
        match self {
            Self::Abr(world) => world.sources(),
            Self::CartPole(_) => vec!["cartpole".to_owned()],
            Self::GridWorld(_) => vec!["gridworld".to_owned()],
            Self::Network(world) => world.tasks().to_vec(),
            Self::Networked(config) => vec![config.world.name().to_owned()],
            Self::Recorded(store) => store.tasks(),
            Self::Slow(world) => world.world().tasks().to_vec(),
        }
    }

    /// An empty fit of the observations' normaliser; `None` for environments that need none.
    pub(super) fn fit(&self) -> Option<Fit> {
        match self {
            Self::Abr(_) | Self::CartPole(_) | Self::GridWorld(_) | Self::Networked(_) => None,
            Self::Network(world) => Some(Fit::new(world.input_shapes())),
            Self::Recorded(store) => Some(Fit::new(input_shapes(store.interface()))),
            Self::Slow(world) => Some(Fit::new(world.world().input_shapes())),
        }
    }

    /// The normaliser that the settings name; `None` if one has to be fitted or none is needed.
    pub(super) fn normalizer(&self) -> Option<&Normalizer> {
        match self {
            Self::Network(world) => world.normalizer(),
            Self::Recorded(store) => store.normalizer(),
            Self::Slow(world) => Some(world.normalizer()),
            _ => None,
        }
    }

    /// The recordings that are learned from; `None` for other environments.
    pub(super) fn recorded(&self) -> Option<&RecordedWorld> {
        match self {
            Self::Recorded(store) => Some(store),
            _ => None,
        }
    }

    /// The traces and videos of the environment of bitrates; `None` for other environments.
    pub(super) fn abr(&self) -> Option<&Arc<AbrWorld>> {
        match self {
            Self::Abr(world) => Some(world),
            _ => None,
        }
    }

    /// The interface of the policies; `None` for environments whose policies
    /// are not served by cc-agent, those of a graph among them.
    pub(super) fn interface(&self) -> Option<&Interface> {
        match self {
            Self::Network(world) if world.config().guide.is_none() => Some(&world.config().policy),
            Self::Recorded(store) => Some(store.interface()),
            _ => None,
        }
    }

    /// The bytes of a trained policy's file; `None` for environments whose policies are not served
    /// by any program. `provenance` describes the run.
    pub(super) fn policy(
        &self,
        shape: &Shape,
        parameters: &[f32],
        normalizer: Option<&Normalizer>,
        serving: ActionSelection,
        mut provenance: BTreeMap<String, String>,
    ) -> Option<Result<Vec<u8>, ExportError>> {
        if let Self::Abr(world) = self {
            provenance.insert("traces".to_owned(), world.summary());
            let meta = bitrate_meta(world.config(), shape, serving, provenance);
            return Some(bitrate_policy::encode(shape, parameters, &meta));
        }
        let (interface, normalizer) = (self.interface()?, normalizer?);
        let description = match self {
            Self::Recorded(store) => {
                let policies = store.policies().join(", ");
                provenance.insert("recorded".to_owned(), policies);
                RECORDED
            }
            _ => DESCRIPTION,
        };
        let meta = policy_file::meta(POLICY, shape, interface, serving, provenance);
        Some(policy_file::encode(
            shape,
            parameters,
            normalizer,
            &meta,
            description,
        ))
    }
}

/// The metadata of a trained policy that selects bitrates.
fn bitrate_meta(
    config: &AbrConfig,
    shape: &Shape,
    serving: ActionSelection,
    provenance: BTreeMap<String, String>,
) -> BitrateMeta {
    BitrateMeta {
        name: POLICY.to_owned(),
        layout: BitrateMeta::LAYOUT.to_owned(),
        kbps: config.actions.clone(),
        past_chunks: config.past_chunks,
        throughput: config.throughput,
        lacking: config.lacking,
        qoe: config.qoe,
        rebuffer_penalty: config.rebuffer_penalty,
        hidden: shape.hidden.clone(),
        has_memory: shape.lstm.is_some(),
        // A policy without an LSTM passes a state of width 1 through.
        state: shape.lstm.unwrap_or(1),
        serving,
        provenance,
    }
}
