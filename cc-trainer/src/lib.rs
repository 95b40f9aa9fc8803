//! Learns the policies that cc-agent serves.
//!
//! Policies learn in an [`environment`]: an [`actor`] lets the [`model`] act in many of them and gathers [`rollout`]s, a
//! [`learner`] improves it by [`vtrace`], [`train`] runs them all, and [`policy_file`] writes what cc-agent serves.
//! A [`study`] compares ways to learn. Recordings of live flows become a [`dataset`] to learn from; [`ope`] estimates from them what
//! another policy would be worth.

pub mod actor;
pub mod dataset;
pub mod durable;
pub mod environment;
pub mod learner;
pub mod model;
pub mod normalise;
pub mod ope;
pub mod policy_file;
pub mod rollout;
mod softmax;
pub mod study;
pub mod toml_file;
pub mod train;
pub mod vtrace;
