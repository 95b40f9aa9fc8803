//! Trains the policies that cc-agent serves, and estimates their worth from recordings.
//!
//! A policy learns in an [`environment`]. An [`actor`] runs the [`model`] in many environments at
//! once and collects [`rollout`]s; the [`learner`] improves the parameters from them by IMPALA with
//! [`vtrace`]; [`train`] runs both, and [`policy_file`] writes the ONNX file that cc-agent loads.
//! [Learning CartPole](train#example) is the shortest example.
//! They meet in the [exchange](train::exchange).
//!
//! A [`pool`] holds what classical congestion controls did on simulated links, and [`offline`]
//! learns from it, or from such flows that were observed, without a policy of its own at work.
//!
//! [`train::distributed`] has workers on other machines act for the learner.
//!
//! A [`study`] compares variants of a configuration over several seeds, and a [`sweep`] searches
//! its settings; [`calf`] puts a network between policies and what they control. Recordings of live
//! flows become a [`dataset`] to learn from, and [`ope`] estimates from them what another policy
//! would have achieved. The [`closed_loop`] turns all of this without a person.
//!
//! [`live`] has the same in real time. [`abr`] evaluates and serves what selects the bitrates of
//! videos ([`cc_abr`]). [`shim`] relays connections as a network with delay, jitter and loss would.

pub mod abr;
pub mod actor;
pub mod average;
pub mod calf;
pub mod calibrate;
mod cholesky;
pub mod closed_loop;
pub mod dataset;
pub mod discount;
pub mod environment;
pub mod learner;
mod listening;
pub mod live;
pub mod model;
pub mod normalise;
pub mod offline;
pub mod ope;
pub mod policy_file;
pub mod pool;
pub mod rollout;
pub mod shim;
pub mod simulated_recording;
mod softmax;
pub mod study;
pub mod sweep;
pub mod toml_file;
pub mod train;
pub mod vtrace;
