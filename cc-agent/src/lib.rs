//! The userspace half of a learned congestion control: it turns each flow's windows into
//! observations, runs a policy on them, and publishes the windows that it decides.
//!
//! Without the feature `kernel` (on by default) only the pure part is built, the one that the trainer
//! shares: [`action`], [`agent`], [`environment`], [`observation`], [`policy`], [`recording`],
//! [`reward`] and [`trial`].

#[cfg(feature = "kernel")]
pub mod acks;
pub mod action;
pub mod agent;
#[cfg(feature = "kernel")]
pub mod cli;
#[cfg(feature = "kernel")]
pub mod config;
#[cfg(feature = "kernel")]
pub mod deploy;
pub mod environment;
#[cfg(feature = "kernel")]
pub mod kernel;
#[cfg(feature = "kernel")]
pub mod logging;
pub mod observation;
pub mod policy;
#[cfg(feature = "kernel")]
pub mod record;
pub mod recording;
pub mod reward;
#[cfg(feature = "kernel")]
pub mod serve;
#[cfg(feature = "kernel")]
pub mod status;
pub mod trial;
#[cfg(feature = "kernel")]
pub mod view;
