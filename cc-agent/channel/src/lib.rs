//! Distributes policies to agents through a directory or an object store that need not be trusted.
//!
//! A *channel* is a place, named by a path or URL, with these objects:
//!
//! | object | content |
//! |---|---|
//! | `channel` | the latest [`Announcement`], signed |
//! | `announcements/NUMBER` | every announcement so far, signed |
//! | `policies/SHA256.onnx` | the policy files |
//!
//! Publishing creates the next number, so that two publishers cannot both have it. The publisher
//! signs with a [`SigningKey`] (Ed25519, RFC 8032). An agent's host knows the
//! [`PublicKey`] alone. It checks the signature before it reads anything of an announcement, and
//! the announced length and SHA-256 before anything of a policy file: whoever can write to the
//! channel can withhold policies, but not bring others into service.
//!
//! A [`Follower`] decides what to ask of the running agent, which the caller does. It remembers the
//! highest sequence number, so that a host that has seen an announcement never goes back to one
//! before it.

mod announcement;
mod error;
mod follower;
mod key;
mod publish;
mod store;

pub use announcement::{Announcement, CanaryTerms, Signed};
pub use error::ChannelError;
pub use follower::{Agent, Canary, Follower, Request, Stage, Turn};
pub use key::{PublicKey, SigningKey};
pub use publish::{latest, policy, publish};
pub use store::{Store, Upload};
