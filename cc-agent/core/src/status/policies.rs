//! The policies that an agent has served, as `cc-agent policies` lists them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A policy that an agent serves or has served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPolicy {
    /// The name that it was loaded by, such as the path of its file.
    pub policy: String,
    /// SHA-256 of its file in hexadecimal digits; `None` for a policy without a file.
    pub sha256: Option<String>,
    /// When it was last put into service, in UTC, as lines of the log have it.
    pub at: String,
    /// What put it into service: a command and who sent it, or the agent's start.
    pub by: String,
    /// What has become of it.
    pub standing: Standing,
}

/// What has become of a policy that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is the incumbent, which decides.
    InService,
    /// Another one was put into service after it.
    Former,
    /// Somebody has rolled back from it: it does not come back by itself.
    RolledBack,
}

impl KnownPolicy {
    /// What tells it from others: the hash of its file, or its name where it has none.
    pub fn id(&self) -> &str {
        self.sha256.as_deref().unwrap_or(&self.policy)
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InService => "in service",
            Self::Former => "former",
            Self::RolledBack => "rolled back",
        })
    }
}

/// A line with as much of the hash as `rollback --to` usually needs.
impl fmt::Display for KnownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sha256 = self.sha256.as_deref().unwrap_or("-");
        let short = sha256.get(..12).unwrap_or(sha256);
        write!(
            f,
            "{:11}  {short:12}  {}  {}; {}",
            self.standing, self.policy, self.at, self.by
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_rollback_needs() {
        let mut known = KnownPolicy {
            policy: "/p/a.onnx".into(),
            sha256: Some("0123456789abcdef".into()),
            at: "2026-11-25T10:00:00Z".into(),
            by: "the agent's start".into(),
            standing: Standing::Former,
        };
        assert_eq!(
            known.to_string(),
            "former       0123456789ab  /p/a.onnx  2026-11-25T10:00:00Z; the agent's start"
        );
        assert_eq!(known.id(), "0123456789abcdef");
        (known.policy, known.sha256) = ("fixed:20".into(), None);
        assert_eq!(known.id(), "fixed:20");
        assert!(
            known
                .to_string()
                .starts_with("former       -             fixed:20")
        );
    }
}
