//! Why a policy server cannot be asked, or no local policy stands in for it.

use cc_core::policy::ServerAddress;
use cc_remote::{ClientError, client::Down};

use crate::deploy::DeployError;

/// Why a policy server cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The local policy cannot be loaded.
    #[error(transparent)]
    Local(Box<DeployError>),
    /// The options of the connection belong to a server, and the policy is none.
    #[error("{option} is for a policy server: give it with --policy grpcs://HOST:PORT")]
    NoServer {
        /// Name of the option, with its dashes.
        option: &'static str,
    },
    /// Only a part of the three files of TLS is given.
    #[error("{missing} is missing: TLS needs --remote-ca, --remote-cert and --remote-key")]
    Files {
        /// Name of an option that is not given.
        missing: &'static str,
    },
    /// The connection cannot be tried.
    #[error("--policy {address}: {source}")]
    Client {
        /// The address that was given as the policy.
        address: ServerAddress,
        /// Why the connection cannot be tried.
        source: Box<ClientError>,
    },
    /// The server has refused this agent, or this agent the server.
    #[error("--policy {down}")]
    Refused {
        /// What was refused, and by whom.
        down: Down,
    },
    /// No local policy works with the interface of the server's.
    #[error(
        "the server's policy needs a local one that can stand in for it, and neither the embedded \
         policy nor the heuristic can: {source}; name one with --local-policy"
    )]
    NoLocalPolicy {
        /// Why the heuristic does not work with the interface.
        source: Box<DeployError>,
    },
}

impl From<DeployError> for RemoteError {
    fn from(error: DeployError) -> Self {
        Self::Local(Box::new(error))
    }
}
