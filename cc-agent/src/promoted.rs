//! What an agent remembers of the policy that a command put into service, so that a restart with
//! another one does not go unnoticed.
//!
//! The configuration is what an agent serves when it starts. A `reload` or `promote` changes the
//! policy until the next start only, but leaves a note: `NAME.policy` in the directory that systemd
//! names in `STATE_DIRECTORY`, or beside the socket.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use cc_core::status::clock;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::state_file;

/// A policy that a command put into service.
#[derive(Debug, Serialize, Deserialize)]
struct Promoted {
    /// The name that it was loaded by, such as the path of its file.
    policy: String,
    /// SHA-256 of its file in hexadecimal digits.
    sha256: String,
    /// When, in s since 1970.
    at_s: u64,
    /// The command, and who sent it.
    by: String,
}

/// The file that the last [`Promoted`] is in.
#[derive(Debug)]
pub(crate) struct Memory(PathBuf);

impl Memory {
    /// The memory of the agent that serves `name`.
    pub(crate) fn of(name: &str, socket: &Path) -> Self {
        let directory = state_file::directory()
            .unwrap_or_else(|| socket.parent().unwrap_or(Path::new("")).to_owned());
        Self(directory.join(name).with_added_extension("policy"))
    }

    /// Notes that `policy`, whose file has this SHA-256, is in service from now on, by a command of
    /// somebody. The agent goes on when that cannot be written.
    pub(crate) fn remember(&self, policy: &str, sha256: &str, by: &str) {
        let promoted = Promoted {
            policy: policy.into(),
            sha256: sha256.into(),
            at_s: now_s(),
            by: by.into(),
        };
        if let Err(error) = state_file::write(&self.0, &promoted) {
            warn!(
                "the next start will not know of this: writing {}: {error}",
                self.0.display()
            );
        }
    }

    /// How a policy with this SHA-256 differs from the one remembered; `None` when it does not, or
    /// nothing is remembered.
    pub(crate) fn differs(&self, sha256: &str) -> Option<String> {
        match state_file::read::<Promoted>(&self.0) {
            Ok(None) => None,
            Ok(Some(promoted)) => (promoted.sha256 != sha256).then(|| {
                let age_s = now_s().saturating_sub(promoted.at_s);
                format!(
                    "the policy last put into service was {} (SHA-256 {}; {}, {} h ago): change \
                     the configuration to serve it from the start, or reload it",
                    promoted.policy,
                    promoted.sha256,
                    promoted.by,
                    clock(age_s as f64)
                )
            }),
            Err(error) => {
                warn!("{} is not used: {error}", self.0.display());
                None
            }
        }
    }
}

/// The time in s since 1970.
fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn another_policy_than_the_one_remembered_is_told() {
        let directory = TempDir::new().expect("a directory for the test");
        let memory = Memory(directory.path().join("rlcc.policy"));
        assert_eq!(memory.differs("aa"), None, "nothing is remembered");
        memory.remember("/p/new.onnx", "bb", "reload by uid 7");
        assert_eq!(memory.differs("bb"), None);
        let text = memory.differs("aa").expect("another one");
        for part in ["/p/new.onnx", "SHA-256 bb", "reload by uid 7, 0:0"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
