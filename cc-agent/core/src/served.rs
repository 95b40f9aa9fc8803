//! A policy as the agent's core knows it: without the network that decides.

use std::sync::Arc;

use crate::{interface::Interface, rows::FileHeader};

/// A policy that decides for flows, by the parts of it that the agent's core works with. The policy
/// itself answers the queries of [`crate::agent::Batch`] elsewhere.
#[derive(Clone, Debug)]
pub struct ServedPolicy {
    /// Defines the policy's observations, actions and rewards.
    pub interface: Interface,
    /// The header of the files that the rows of its flows go to; `None` when nothing is recorded.
    pub header: Option<Arc<FileHeader>>,
}
