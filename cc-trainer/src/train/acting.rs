//! Actors of a run, wherever they act.

use std::sync::Arc;

use cc_sim::seed;

use super::{config::Config, source::Source};
use crate::{
    actor::{Actor, Snapshot},
    normalise::Normalizer,
};

/// Makes an actor with new environments. `place` are the environment steps learnt from before, and
/// the actor's index among all actors of the run: the seeds depend on both, so that neither another
/// actor nor a run that is continued repeats its episodes.
pub(crate) fn actor(
    config: &Config,
    source: &Source,
    normalizer: Option<&Arc<Normalizer>>,
    place: [u64; 2],
    policy: Arc<Snapshot>,
) -> Actor {
    let [steps, index] = place;
    let seed = |number: usize| {
        [steps, index, number as u64]
            .into_iter()
            .fold(config.seed, seed::fold)
    };
    let environments = (0..config.actor.environments)
        .map(|number| source.environment(number, seed(number + 1), normalizer))
        .collect();
    Actor::new(environments, policy, config.learner.unroll, seed(0))
        .at_temperature(config.learner.policy_temperature())
        .with_burn_in(config.learner.burn_in)
}
