//! What goes over the agent's Unix socket: a line of JSON either way.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where sockets are, unless told otherwise.
const DIRECTORY: &str = "/run/cc-agent";

/// Where the agent that serves the congestion control `name` has its socket.
pub fn default_socket(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name).with_added_extension("sock")
}

/// What a running agent is told to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Serve this policy file instead of the current policy.
    Reload {
        /// The file, as the agent finds it.
        file: PathBuf,
    },
    /// Give a share of the new flows to this policy file.
    Try {
        /// The file, as the agent finds it.
        file: PathBuf,
        /// Percent of the new flows.
        percent: f64,
    },
    /// Make the candidate the current policy.
    Promote,
    /// Take the candidate's flows back.
    Withdraw,
}

/// What became of a command: what was done, or why it was not.
pub type Outcome = Result<String, String>;

/// The line of JSON that a client sends; one that sends none wants the status.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// A snapshot is wanted.
    Status,
    /// Something is to be done.
    Command(Command),
}

/// The line of JSON that answers a [`Command`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It was done, and what was done.
    Done(String),
    /// It was not done, and why.
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_after_the_congestion_control() {
        assert_eq!(default_socket("rlcc"), Path::new("/run/cc-agent/rlcc.sock"));
    }
}
