//! Runs a policy in a child process that can do nothing but answer.
//!
//! A policy file is data from elsewhere, and the engine that runs it is large. So the agent neither
//! decodes nor runs policies itself: it starts its own executable once more, as a [`Cage`], and
//! hands it the file. The child gives up its privileges ([`confinement`]) before it looks at the
//! file, loads it, tries it out ([`Times`]), and then answers batches of queries until the agent
//! ends it or is gone. What a policy does wrong, be it memory without end, an endless loop or a
//! crash, it does to its own process.
//!
//! ```text
//!            agent                                              child
//!   Cage::start ── Job and file, in shared memory ──────────►  confine, load, try out
//!               ◄────────────────────────── loaded ──────────  (or: refused, and why)
//!   Cage::ask   ── queries in shared memory; "ask" ─────────►  decide
//!   Cage::poll_answer ◄── answers in shared memory; "answered"
//! ```
//!
//! Messages go over a socket pair, whose end also tells either side that the other one is gone. The
//! agent does not trust the child: it copies each value out of the shared memory once, and checks
//! the copy.
//!
//! [`Job::load`] loads and tries out the same policy without a child, for the simulator, for
//! measurements and for debugging. Its decisions are the same to the bit.

mod cage;
mod child;
pub mod confinement;
mod connection;
#[doc(hidden)]
pub mod hostile;
mod job;
mod layout;
mod load_error;
mod message;
#[cfg(test)]
mod models;
mod region;
mod rehearsal;

pub use cage::{Cage, CageError, Limits, Program};
#[doc(hidden)]
pub use child::run_with;
pub use child::{SUBCOMMAND, run};
pub use connection::Fault;
pub use job::{Job, Loaded};
pub use load_error::LoadError;
pub use rehearsal::Times;
