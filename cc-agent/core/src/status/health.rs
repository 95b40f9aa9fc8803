//! Whether an agent serves as it should.

use std::fmt;

use serde::Serialize;

use super::Snapshot;

/// A heartbeat that is older than this is one of an agent that does not serve, ms.
const OLD_HEARTBEAT_MS: f64 = 2_000.0;
/// The share of the live flows on the fallback from which on something is wrong.
const FALLBACK_SHARE: f64 = 0.5;

/// What is wrong with a running agent, from two snapshots of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// What keeps flows from being decided about; empty when nothing does.
    pub failures: Vec<String>,
    /// What should be looked at although flows are decided about.
    pub warnings: Vec<String>,
}

impl Health {
    /// Judges an agent by its present state and an earlier one. Without an earlier one counters are
    /// those since the agent's start.
    pub fn of(now: &Snapshot, before: Option<&Snapshot>) -> Self {
        let before = before.filter(|before| now.continues(before));
        let mut health = Self::default();
        let mut fail = |text: String| health.failures.push(text);
        if let Some(age) = now.heartbeat_age_ms.filter(|&age| age > OLD_HEARTBEAT_MS) {
            fail(format!(
                "the last heartbeat is {age:.0} ms old: no policy decides, and flows fall back; \
                 see the policy in `cc-agent status`"
            ));
        }
        let fallback = now.modes.get("fallback").copied().unwrap_or(0);
        let share = fallback as f64 / now.live_flows.max(1) as f64;
        if fallback > 0 && share >= FALLBACK_SHARE {
            fail(format!(
                "{fallback} of {} flows are on the fallback: their windows go unanswered",
                now.live_flows
            ));
        }
        let mut warn = |text: String| health.warnings.push(text);
        let earlier = before.map(Snapshot::counters).unwrap_or_default();
        for count in now.troubles() {
            let was = earlier.iter().find(|other| other.name == count.name);
            let more = count.value.saturating_sub(was.map_or(0, |was| was.value));
            if more > 0 {
                let entry = count.entry.unwrap_or_default();
                warn(format!(
                    "{} rose by {more}: {} See {entry} in docs/runbook.md.",
                    count.name, count.meaning
                ));
            }
        }
        if let Some(trouble) = now
            .recording
            .as_ref()
            .and_then(|recording| recording.trouble.as_ref())
        {
            warn(format!("the recording cannot be written: {trouble}"));
        }
        if let Some(remote) = now.remote.as_ref().filter(|remote| !remote.connected) {
            let reason = remote.trouble.as_deref().unwrap_or("not yet");
            warn(format!(
                "no connection to {}, so that the local policy decides: {reason}",
                remote.server
            ));
        }
        if let Some(found) = now.default_taken_by() {
            warn(format!(
                "the host's default congestion control is {found}, and no longer {}: somebody has \
                 changed it, and new flows do not use this agent",
                now.name
            ));
        }
        if let Some(differs) = &now.differs {
            warn(differs.clone());
        }
        health
    }

    /// Whether nothing keeps flows from being decided about.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_good() {
            true => f.write_str("healthy")?,
            false => f.write_str("not healthy")?,
        }
        for failure in &self.failures {
            write!(f, "\n  failure: {failure}")?;
        }
        for warning in &self.warnings {
            write!(f, "\n  warning: {warning}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RemoteStatus, samples::busy};
    use super::*;

    #[test]
    fn an_agent_that_decides_is_healthy() {
        let health = Health::of(&busy(3), None);
        assert_eq!(health, Health::default());
        assert_eq!(health.to_string(), "healthy");
    }

    #[test]
    fn a_policy_that_does_not_decide_is_a_failure() {
        let mut snapshot = busy(4);
        snapshot.heartbeat_age_ms = Some(2_500.0);
        snapshot.modes = [("decided".to_owned(), 2), ("fallback".to_owned(), 2)].into();
        let health = Health::of(&snapshot, None);
        assert_eq!(health.failures.len(), 2);
        assert!(!health.is_good() && health.to_string().contains("2500 ms"));
        snapshot.heartbeat_age_ms = Some(100.0);
        snapshot.modes = [("decided".to_owned(), 3), ("fallback".to_owned(), 1)].into();
        assert!(Health::of(&snapshot, None).is_good(), "one of four flows");
    }

    #[test]
    fn only_what_rose_since_is_a_warning() {
        let mut before = busy(1);
        before.agent.windows_skipped = 5;
        let mut now = before.clone();
        now.uptime_s += 1.0;
        assert_eq!(Health::of(&now, Some(&before)), Health::default());
        assert_eq!(Health::of(&now, None).warnings.len(), 1, "since the start");
        now.agent.windows_skipped = 7;
        let warnings = Health::of(&now, Some(&before)).warnings;
        assert!(
            warnings[0].starts_with("windows_skipped rose by 2: ")
                && warnings[0].ends_with(" See RlccDecisionsLate in docs/runbook.md."),
            "{warnings:?}"
        );
        now.pid += 1;
        let warnings = Health::of(&now, Some(&before)).warnings;
        assert!(
            warnings[0].contains("rose by 7"),
            "another agent is no past"
        );
    }

    #[test]
    fn what_an_operator_should_see_is_a_warning() {
        let mut snapshot = busy(1);
        snapshot.remote = Some(RemoteStatus {
            server: "grpcs://policy.example:7443".into(),
            trouble: Some("connection refused".into()),
            ..RemoteStatus::default()
        });
        snapshot.differs = Some("the policy differs".into());
        snapshot.default = Some("rlcc".into());
        let health = Health::of(&snapshot, None);
        assert!(health.is_good());
        assert_eq!(health.warnings.len(), 2);
        snapshot.default = Some("cubic".into());
        let health = Health::of(&snapshot, None);
        assert_eq!(health.warnings.len(), 3);
        assert!(health.warnings[1].contains("is cubic"), "{health}");
        assert!(health.warnings[0].contains("connection refused"));
    }
}
