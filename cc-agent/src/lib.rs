//! The agent: loads the BPF datapath, runs a policy on each flow's windows, and publishes the cwnds
//! that it decides.
//!
//! What it decides, and on what, is [`cc_core`]'s. This crate is the edge that does the I/O: the
//! [`kernel`]'s interface, the event loop ([`serve`]), the status socket ([`status`]), the live [`view`] and the
//! command line ([`cli`]).

pub mod acks;
pub mod cli;
pub mod config;
pub mod deploy;
pub mod kernel;
pub mod logging;
pub mod observe;
pub mod record;
pub mod serve;
pub mod status;
pub mod view;
