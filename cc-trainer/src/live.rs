//! Environments behind a real network, in real time.
//!
//! A [service](serve) steps a world at the pace of its clock, holds the last decision, and sends
//! what is to be observed; a [`RemoteWorld`] is that world as an environment on the policy's host.
//! Both run the two ends of [`crate::environment::networked`], which also run in virtual time, so
//! that a policy and a network mean the same in both. Messages are datagrams of UDP or frames of a
//! TCP connection; `cc-trainer shim` can relay them.
//!
//! Nobody is authenticated: whoever reaches a service can have a world of it, one at a time.

mod client;
mod link;
mod service;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

pub use client::{LiveError, RemoteWorld};
pub use service::{Lateness, ServiceSummary, serve};
pub use wire::PROTOCOL;

/// An end that hears nothing of the other one for as long gives up.
pub const SILENCE: Duration = Duration::from_secs(10);
/// How often what the other end has not answered yet is said again.
const REPEAT: Duration = Duration::from_millis(100);
/// How often a thread that waits looks whether it is to stop.
const SLICE: Duration = Duration::from_millis(50);
