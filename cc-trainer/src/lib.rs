//! Trains the policies that cc-agent serves, and estimates their worth from recordings.
//!
//! A policy learns in an [`environment`]. An [`actor`] runs the [`model`] in many environments at
//! once and collects [`rollout`]s; the [`learner`] improves the parameters from them by IMPALA with
//! [`vtrace`]; [`train`] runs both, and [`policy_file`] writes the ONNX file that cc-agent loads.
//! [Learning CartPole](train#example) is the shortest example.
//!
//! A [`study`] compares variants of a configuration over several seeds. Recordings of live flows
//! become a [`dataset`] to learn from, and [`ope`] estimates from them what another policy would
//! have achieved.
//!
//! [`abr`] evaluates and serves what selects the bitrates of videos ([`cc_abr`]).

pub mod abr;
pub mod actor;
pub mod dataset;
pub mod discount;
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
