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
//! | [`server`] | the policy server |
//! | [`client`] | the agent's side of the stream |
//! | [`rpc`] | a method of two streams, whatever its messages |
//! | [`tls`] | certificates and keys from PEM files |
//! | [`transport`] | what a server listens with, and how a client connects |
//! | [`http`] | connections of servers of plain HTTP, such as pages of metrics |
//! | [`https`] | a client of other projects' servers of HTTP, over TLS |
//!
//! The last five are for every service of the project: the trainer uses them as well.

pub mod client;
pub mod http;
pub mod https;
pub mod rpc;
pub mod server;
pub mod tls;
pub mod transport;
pub mod wire;

pub use client::{Client, ClientError, Event, RemotePolicy};
pub use server::{Server, ServerCounts, ServerError};
pub use tls::{TlsError, TlsFiles};
pub use transport::{ConnectError, ListenError, Listener};

#[cfg(test)]
mod tests;
