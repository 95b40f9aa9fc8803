//! Linux's TCP in virtual time.
//!
//! A [`scenario`] describes a path and the flows on it. [`path`] is what such a path does to packets,
//! as pure code; emulated links run the same code. [`sim`] puts simulated senders and receivers, with
//! their congestion controls, on it.

pub mod path;
pub mod scenario;
pub mod seed;
pub mod sim;
