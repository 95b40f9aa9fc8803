//! The agent of `rlcc`: loads the BPF datapath, runs a policy on each flow's observation windows,
//! and publishes the cwnds that it decides.
//!
//! What is decided, and from what, is computed in [`cc_core`], which does no I/O. This crate is the
//! I/O around it, and the `cc-agent` binary.
//!
//! # Modules
//!
//! - [`cli`] is the command line. [`options`] holds the options of `run` and `observe`, [`scope`]
//!   those that say which sockets are served, and [`settings`] checks them. [`network`] and
//!   [`device`] are parts of them as users write them.
//! - [`serve`] is the event loop of `run`, with [`acks`] for single ACKs and [`deploy`] for loading
//!   policies. [`observe`] is the event loop of `observe`, which only watches the flows of other
//!   congestion controls.
//! - [`kernel`] is everything that talks to the kernel: BTF, BPF programs and maps, sysctls.
//! - [`status`] serves the Unix socket of `status`, `top` and commands; its client is
//!   [`cc_client`].
//!   [`view`] is the live view, and [`bundle`] the report of a bug.
//! - [`publish`] and [`follow`] are the two ends of a channel of policies ([`cc_channel`]), and
//!   [`ship`] uploads recordings. [`pods`] selects pods of Kubernetes. What these find again and
//!   again `said` says once.
//! - `shutdown` ends the process when it is asked to, and [`logging`] writes its log, each on a
//!   thread of its own. `takeover` is how one agent succeeds another. `notify` tells the service
//!   manager how the agent is. `promoted`, `history` and `state_file` are what an agent remembers
//!   beyond its end.
//!
//! # Threads and processes of `run`
//!
//! ```text
//!   incumbent's process <── batches ──┐                       rows
//!   candidate's process ─── answers ──┴─── event loop ─────────────────> recorder
//!                                         (I/O thread)  ACKs
//!  policy loader, repair ────────────────────> ↑ │ ↑  └────────────────> ACK writer
//!    loaded policies                           │ │ │
//!                                              │ │ └── records, out of BPF ring buffers
//!                                              │ ├──> decisions, heartbeat: mapped BPF arrays
//!                        commands ─────────────┘ └──> snapshots: status socket, live view thread
//! ```
//!
//! The event loop owns the datapath and all flows and never waits for another thread or process. A
//! slow policy delays only its own decisions, and a slow disk loses rows, which are counted.

pub mod acks;
pub mod bundle;
pub mod cli;
pub mod deploy;
pub mod device;
pub mod follow;
mod history;
mod inference;
pub mod kernel;
mod ledger;
pub mod logging;
pub mod metrics;
pub mod network;
mod notify;
pub mod observe;
#[cfg(test)]
mod operations;
pub mod options;
mod period;
pub mod pods;
pub mod policy_server;
mod promoted;
pub mod publish;
pub mod recording_setup;
pub mod remote;
pub mod remote_error;
mod said;
pub mod scope;
pub mod serve;
pub mod settings;
pub mod settings_error;
pub mod ship;
mod shutdown;
mod state_file;
pub mod status;
mod takeover;
mod trace;
pub mod view;
