//! Training on many machines: one learner, and workers that come and go, over gRPC.
//!
//! A worker opens one bidirectional stream to the learner ([`Worker`]), makes the environments that
//! the learner's plan names, and acts in them. The learner ([`LearnerServer`]) puts its rollouts
//! into the same queue as those of its own actors. A worker keeps nothing that anybody would miss.
//!
//! ```text
//!   worker                                         learner
//!     │ Hello: version, token, run, configuration ─► │  refuses what is of another run
//!     │ ◄─ Plan: run, configuration, network, seeds  │
//!     │ Ready: the network that this makes ────────► │  refuses another one
//!     │ ◄─ Policy: version, parameters               │
//!     │ Batch: rollouts, episodes (one credit) ────► │ ─┐ the queue, when it has room
//!     │ ◄─ Policy, if there is a newer one; Credit   │ ◄┘
//!     │ ◄─ Finished                                  │
//! ```
//!
//! Only rollouts wait for anything: for a credit, on the worker. The learner never waits for a
//! worker, and no worker for an update.
//!
//! A *replica* opens the same stream, but learns: it sends gradients of its own rollouts, and the
//! learner takes the steps. Learner and replicas wait for each other.
//!
//! ```text
//!   replica                                        learner
//!     │ Hello, Plan, Ready, Policy: as above         │
//!     │ Begin: it has rollouts ────────────────────► │  waits for all that took part before
//!     │ ◄─ Start: parameters, state, schedules       │
//!     │ Sums over its part of the batch ───────────► │  if rewards are normalised or limits set
//!     │ ◄─ Totals over the whole batch               │
//!     │ Gradient of its part ──────────────────────► │  mean of all gradients, and the step
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`wire`] | the messages, their limits, and what is refused |
//! | [`server`] | the learner's side of the streams |
//! | [`worker`] | a worker's side of its stream |
//! | [`link`] | a worker's exchange with the learner, as its actors see it |
//! | [`realtime`] | a worker's flows under the real kernel, and the rollouts of their recording |
//! | [`refusal`] | why streams are refused |
//! | [`group`] | the learner and its replicas, as the learner sees them |
//! | [`replica`] | a replica of the learner: gradients instead of rollouts |
//! | [`figures`] | what an operator wants to know of a learner with workers |

pub mod figures;
pub mod group;
pub mod link;
pub mod realtime;
pub mod refusal;
pub mod replica;
pub mod server;
pub mod wire;
mod work;
pub mod worker;

pub use figures::{ExchangePoint, Figures};
pub use group::{Group, Leader};
pub use realtime::{RealTime, RealTimeError, ServedFlows, StreamPoint};
pub use refusal::Refusal;
pub use replica::Follower;
pub use server::{LearnerServer, Listening, Offer, ServeError};
pub use worker::{Learning, WorkError, WorkEvent, Worker};

#[cfg(test)]
mod tests;
