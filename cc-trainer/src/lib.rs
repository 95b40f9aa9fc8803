//! Makes policies for cc-agent and finds out what they are worth.
//!
//! A [`scenario`] describes a path and the flows on it. [`path`] is what such a path does to packets, as pure
//! code. [`link`] puts it under the real kernel's TCP, [`sim`] under a simulated one; [`evaluate`] runs congestion controls
//! over either and measures, [`summary`] holds the measurements and [`report`] shows them.
//!
//! Policies learn in an [`environment`]: an [`actor`] lets the [`model`] act in many of them and gathers [`rollout`]s, a
//! [`learner`] improves it by [`vtrace`], [`train`] runs them all, and [`policy_file`] writes what cc-agent serves.
//! A [`study`] compares ways to learn, [`blocking`] measures what it costs to wait for decisions.

pub mod actor;
pub mod blocking;
pub mod dataset;
pub mod durable;
pub mod environment;
pub mod evaluate;
pub mod learner;
pub mod link;
pub mod model;
pub mod normalise;
pub mod ope;
pub mod path;
pub mod policy_file;
pub mod report;
pub mod rollout;
pub mod scenario;
pub mod seed;
pub mod sim;
mod softmax;
pub mod study;
pub mod summary;
pub mod toml_file;
pub mod train;
pub mod vtrace;
