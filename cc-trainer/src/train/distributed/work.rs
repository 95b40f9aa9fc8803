//! What a worker works at: a learner's plan, and what it takes to act by it.

use std::sync::Arc;

use super::wire::Plan;
use crate::{
    model::Shape,
    normalise::Normalizer,
    train::{config::Config, source::Source},
};

/// What the learner's plan says, with the environments that it names.
pub(super) struct Work {
    pub(super) plan: Plan,
    pub(super) config: Config,
    pub(super) shape: Shape,
    pub(super) normalizer: Option<Arc<Normalizer>>,
    pub(super) source: Source,
}
