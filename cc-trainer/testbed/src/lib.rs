//! Measures congestion controls: over emulated links under the real kernel, or in the simulator.
//!
//! [`link`] puts a scenario's path under the kernel's own TCP. [`evaluate`] runs congestion controls
//! over it, or in virtual time, and measures them; [`summary`] holds the measurements and [`report`]
//! shows them. [`blocking`] measures what it costs to wait for decisions.

pub mod blocking;
pub mod evaluate;
pub mod link;
pub mod report;
pub mod summary;
