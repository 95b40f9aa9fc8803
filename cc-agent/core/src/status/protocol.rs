//! The messages over the agent's Unix socket: one line of JSON in each direction.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::canary::CanaryBy;

/// The default directory of sockets.
const DIRECTORY: &str = "/run/cc-agent";

/// The default socket of the agent that serves the congestion control `name`.
pub fn default_socket(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name).with_added_extension("sock")
}

/// A command to a running agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Serve this policy file instead of the current policy.
    Reload {
        /// Path of the file on the agent's host; with `@sha256:HEX` the file must have that hash.
        file: PathBuf,
    },
    /// Start a canary with this policy file as its candidate.
    #[serde(rename = "try")]
    StartCanary {
        /// Path of the file on the agent's host; with `@sha256:HEX` the file must have that hash.
        file: PathBuf,
        /// The candidate's share of the flows, paths or hosts, percent.
        percent: f64,
        /// What is compared, and hence assigned to an arm.
        #[serde(default)]
        by: CanaryBy,
    },
    /// End the canary, whatever has been found: the candidate becomes the incumbent.
    Promote,
    /// End the canary: the incumbent takes the candidate's flows over.
    Withdraw,
    /// Serve the policy that was put into service before the present one, each time one further
    /// back.
    Rollback,
    /// Serve a policy again that was served before.
    RollbackTo {
        /// The beginning of the SHA-256 of its file in hexadecimal digits, or its name.
        policy: String,
    },
    /// Serve the sockets of this cgroup v2 directory, and of those below it, from now on.
    AddCgroup {
        /// Absolute path of the directory, as the agent sees it.
        directory: PathBuf,
    },
    /// Serve the sockets of a cgroup no longer that [`Self::AddCgroup`] has named.
    RemoveCgroup {
        /// The path that it was named by, or another one of the same directory.
        directory: PathBuf,
    },
}

/// The command as it is written on the command line.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reload { file } => write!(f, "reload {}", file.display()),
            Self::StartCanary { file, percent, by } => {
                let file = file.display();
                write!(f, "reload {file} --canary {percent} --canary-by {by}")
            }
            Self::Promote => f.write_str("promote"),
            Self::Withdraw => f.write_str("withdraw"),
            Self::Rollback => f.write_str("rollback"),
            Self::RollbackTo { policy } => write!(f, "rollback --to {policy}"),
            Self::AddCgroup { directory } => write!(f, "cgroup add {}", directory.display()),
            Self::RemoveCgroup { directory } => {
                write!(f, "cgroup remove {}", directory.display())
            }
        }
    }
}

/// The result of a command: what was done, or why nothing was.
pub type Outcome = Result<String, String>;

/// The line of JSON that a client sends; a client that sends none gets the status.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Asks for a [`Snapshot`](super::Snapshot).
    Status,
    /// Asks for a [`Snapshot`](super::Snapshot) with the flows that come first in an order, of all
    /// that meet a condition.
    Flows {
        /// The name of the order, as `cc-agent top --sort` has it.
        order: String,
        /// The condition, as `cc-agent top --filter` has it; empty for all flows. Cgroups are
        /// named by their ids.
        filter: String,
    },
    /// Asks for a [`TracedWindow`](super::TracedWindow) a line for each window of a flow, until it
    /// closes.
    Trace {
        /// Slot of the flow in the flow map.
        slot: u32,
        /// Counts the flows that have had the slot.
        generation: u32,
    },
    /// Asks the agent to carry out a command.
    Command(Command),
    /// Asks the agent to be succeeded: for the descriptors of its datapath, and then by
    /// [`TakeoverStep`]s for the service. Answered by [`TakeoverReply`]s.
    TakeOver,
}

/// What a successor says to the agent that it takes over from, after [`Request::TakeOver`]: each a
/// line of JSON. When the connection ends before the last one, the agent goes on serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TakeoverStep {
    /// The successor is ready to serve: stop reading records, deciding and beating.
    Release,
    /// The successor serves: end, and leave what it has taken over.
    Confirm {
        /// Whether it holds the host's default congestion control from now on. Otherwise the agent
        /// restores the former one, if it has changed it.
        default: bool,
    },
}

/// What the agent answers to its successor: each a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TakeoverReply {
    /// The names of the descriptors that come with this line (`SCM_RIGHTS`, unix(7)), in their
    /// order: the maps that flows and agent share, and the link that registers the name.
    Descriptors(Vec<String>),
    /// The agent does nothing until the next step, or the end of the connection.
    Released,
    /// The agent ends; its successor serves.
    Done,
    /// The agent goes on serving; says why.
    Refused(String),
}

/// The line of JSON that answers a [`Command`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The command was carried out; says what was done.
    Done(String),
    /// The command was refused; says why.
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_by_time_unless_it_says_otherwise() {
        let json = r#"{"try": {"file": "a.onnx", "percent": 5.0}}"#;
        let command: Command = serde_json::from_str(json).expect("parses");
        let expected = "reload a.onnx --canary 5 --canary-by time";
        assert_eq!(command.to_string(), expected);
        let json = serde_json::to_string(&command).expect("serialises");
        assert_eq!(
            serde_json::from_str::<Command>(&json).expect("parses"),
            command
        );
    }

    #[test]
    fn a_rollback_may_name_a_policy() {
        let parse = |json| serde_json::from_str::<Command>(json).expect("parses");
        assert_eq!(parse(r#""rollback""#).to_string(), "rollback");
        let named = parse(r#"{"rollback-to": {"policy": "0ab"}}"#);
        assert_eq!(named.to_string(), "rollback --to 0ab");
    }

    #[test]
    fn commands_about_cgroups_are_written_as_on_the_command_line() {
        let json = r#"{"add-cgroup": {"directory": "/sys/fs/cgroup/a.slice"}}"#;
        let command: Command = serde_json::from_str(json).expect("parses");
        assert_eq!(command.to_string(), "cgroup add /sys/fs/cgroup/a.slice");
        let json = r#"{"remove-cgroup": {"directory": "/c"}}"#;
        let command: Command = serde_json::from_str(json).expect("parses");
        assert_eq!(command.to_string(), "cgroup remove /c");
    }

    #[test]
    fn sockets_are_named_after_the_congestion_control() {
        assert_eq!(default_socket("rlcc"), Path::new("/run/cc-agent/rlcc.sock"));
    }
}
