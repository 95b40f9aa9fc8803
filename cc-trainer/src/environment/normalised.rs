//! A wrapper that normalises what the policy sees of any environment.

use std::sync::Arc;

use super::{Environment, Series, Spec, Turn};
use crate::normalise::Normalizer;

/// An environment whose observations and observed rewards pass through a [`Normalizer`].
///
/// The rewards that are learned from and the critic's privileged inputs stay as they are.
pub struct Normalised {
    environment: Box<dyn Environment>,
    normalizer: Arc<Normalizer>,
}

impl Normalised {
    /// Wraps an environment. The normaliser must have as many inputs as
    /// the environment's observation has values.
    pub fn new(environment: Box<dyn Environment>, normalizer: Arc<Normalizer>) -> Self {
        Self {
            environment,
            normalizer,
        }
    }
}

impl Environment for Normalised {
    fn spec(&self) -> Spec {
        self.environment.spec()
    }

    fn series(&self) -> Vec<Series> {
        self.environment.series()
    }

    fn next(&mut self, turn: &mut Turn) {
        self.environment.next(turn);
        self.normalizer.apply(&mut turn.observation);
        turn.observed_reward = self.normalizer.reward.apply(turn.observed_reward);
    }

    fn act(&mut self, action: usize) {
        self.environment.act(action);
    }
}
