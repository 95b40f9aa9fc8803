//! The final policy of a run, as a checkpoint has it.

use std::{path::Path, sync::Arc};

use super::{
    checkpoint::{Checkpoint, CheckpointError},
    environments::Environments,
};
use crate::{
    actor::{Actor, Snapshot, StepOutput},
    environment::{Environment, network::FastPolicy},
    model::Weights,
    normalise::Normalizer,
    rollout::Episode,
};

/// The final policy of a run, which takes its most likely actions.
#[derive(Clone, Debug)]
pub struct FinalPolicy {
    /// The environment that it was trained in.
    pub environment: Environments,
    /// Environment steps that it has learnt from.
    pub steps: u64,
    snapshot: Arc<Snapshot>,
    normalizer: Option<Arc<Normalizer>>,
}

impl FinalPolicy {
    /// Reads the policy from the checkpoint in a run's directory; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Returns an error when the checkpoint cannot be read.
    pub fn load(dir: &Path) -> Result<Option<Self>, CheckpointError> {
        let checkpoint = Checkpoint::load(&dir.join("checkpoint.bin"))?;
        Ok(checkpoint.as_ref().map(Self::of))
    }

    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let record = &checkpoint.header.record;
        Self {
            environment: record.config.environment.clone(),
            steps: record.last.steps,
            snapshot: Arc::new(Snapshot {
                version: 0,
                weights: Weights::new(&record.shape, checkpoint.served_parameters()),
            }),
            normalizer: checkpoint.header.normalizer.clone().map(Arc::new),
        }
    }

    /// What its observations are normalised by; `None` where nothing is.
    pub(super) fn normalizer(&self) -> Option<&Arc<Normalizer>> {
        self.normalizer.as_ref()
    }

    /// The policy as the fast one of a graph; `None` where its inputs are not normalised.
    pub(super) fn as_fast(&self) -> Option<FastPolicy> {
        Some(FastPolicy {
            snapshot: self.snapshot.clone(),
            normalizer: self.normalizer.clone()?,
        })
    }

    /// Acts in an environment until at least this many episodes have ended, and returns them all.
    ///
    /// # Panics
    ///
    /// Panics if the environment does not fit the policy's network.
    pub fn play(&self, environment: Box<dyn Environment>, episodes: u64) -> Vec<Episode> {
        let mut actor = Actor::new(vec![environment], self.snapshot.clone(), UNROLL, 0).greedy();
        let (mut output, mut played) = (StepOutput::default(), Vec::new());
        while (played.len() as u64) < episodes {
            actor.step(&mut output);
            output.rollouts.clear();
            played.append(&mut output.episodes);
        }
        played
    }
}

/// Length of the rollouts, which are thrown away.
const UNROLL: usize = 100;
