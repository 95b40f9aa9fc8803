//! The pure core of the learned congestion control: everything between a datapath's records and the
//! decisions that go back to it.
//!
//! Nothing here opens a socket, reads a clock or touches a BPF map: the time is an argument, records
//! come in, decisions and rows come out. The agent runs it on the live kernel, the simulator in
//! virtual time.

pub mod action;
pub mod agent;
pub mod canary;
pub mod flows;
pub mod foreign;
pub mod interface;
pub mod observation;
pub mod policy;
pub mod reward;
pub mod rows;
mod served;
pub mod status;

pub use served::ServedPolicy;
