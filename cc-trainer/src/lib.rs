//! Makes policies for cc-agent and finds out what they are worth.
//!
//! A [`scenario`] describes a path and the flows on it. [`path`] is what such a path does to packets, as pure
//! code. [`link`] puts it under the real kernel's TCP, [`evaluate`] runs congestion controls over it and
//! measures, [`summary`] holds the measurements and [`report`] shows them.

pub mod evaluate;
pub mod link;
pub mod path;
pub mod report;
pub mod scenario;
pub mod summary;
