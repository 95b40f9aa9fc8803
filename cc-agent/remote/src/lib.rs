//! A policy that decides on another host: one server for many agents, over gRPC.
//!
//! An agent opens one bidirectional stream to the server ([`Client`]), which gathers the questions
//! of all agents into batches for its policy ([`Server`]). The server keeps nothing of a flow. What
//! is asked and who decides instead of a late server is not decided here but in
//! [`cc_core::remote`].
//!
//! ```text
//!   agent                                          server
//!     │ Hello: protocol version, agent, interface ─► │  refuses another version or interface
//!     │ ◄─ Welcome: version, policy, its metadata    │
//!     │ Questions: N observations, h, c ───────────► │ ─┐ batch of all agents
//!     │ ◄─ Answers: N choices, h, c                  │ ◄┘
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`wire`] | the messages, their limits, and what is refused |
//! | [`tls`] | certificates and keys from PEM files |
//! | [`server`] | the policy server |
//! | [`client`] | the agent's side of the stream |

pub mod client;
mod rpc;
pub mod server;
pub mod tls;
pub mod wire;

pub use client::{Client, ClientError, Event, RemotePolicy};
pub use server::{Server, ServerCounts, ServerError};
pub use tls::{TlsError, TlsFiles};

#[cfg(test)]
mod tests;
