//! Metrics of what a process beside the agent does again and again, such as looking at a channel:
//! how often, how often in vain, and whether it fails at present.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::{Registry, Unit},
};

/// What is attempted, as the help texts say it.
pub(crate) struct Task {
    /// What the metrics' names begin with, such as `follow_channel`.
    pub name: &'static str,
    /// The attempts, in the plural, such as "looks at the channel".
    pub attempts: &'static str,
    /// What follows from a failure, as a sentence.
    pub consequence: &'static str,
    /// The heading in docs/runbook.md under which there is what to do.
    pub entry: &'static str,
}

/// How the attempts at a task went so far. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    made: Counter,
    failed: Counter,
    failing: Gauge,
    last_success_s: Gauge,
}

impl Attempts {
    /// Attempts that are on the page of a registry.
    pub(crate) fn of(task: &Task, registry: &mut Registry) -> Self {
        let Task {
            name,
            attempts,
            consequence,
            entry,
        } = task;
        let all = Self::default();
        all.last_success_s.set(now_s());
        registry.register(
            format!("{name}_attempts"),
            attempts.to_string(),
            all.made.clone(),
        );
        registry.register(
            format!("{name}_failures"),
            format!(
                "should not rise: {attempts} that failed. {consequence} {entry} in docs/runbook.md"
            ),
            all.failed.clone(),
        );
        registry.register(
            format!("{name}_failing"),
            format!(
                "1 while the last of {attempts} has failed, otherwise 0. {consequence} {entry} in \
                 docs/runbook.md"
            ),
            all.failing.clone(),
        );
        registry.register_with_unit(
            format!("{name}_last_success_timestamp"),
            format!(
                "when the last of {attempts} succeeded, or the process began, since 1970; the \
                 older, the longer what it is for has not been done"
            ),
            Unit::Seconds,
            all.last_success_s.clone(),
        );
        all
    }

    /// Counts an attempt with this outcome.
    pub(crate) fn count<T, E>(&self, outcome: &Result<T, E>) {
        self.made.inc();
        match outcome {
            Ok(_) => self.goes_well(),
            Err(_) => {
                self.failed.inc();
                self.failing.set(1);
            }
        }
    }

    /// Takes note that an attempt that takes long goes well so far. It is counted when it ends.
    pub(crate) fn goes_well(&self) {
        self.failing.set(0);
        self.last_success_s.set(now_s());
    }
}

/// The time in s since 1970.
fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs() as i64
}

#[cfg(test)]
mod tests {
    use super::{
        super::page::{registry, rendered, value},
        *,
    };

    #[test]
    fn a_success_ends_the_failing_and_the_failures_stay_counted() {
        let mut registry = registry();
        let task = Task {
            name: "follow_channel",
            attempts: "looks at the channel",
            consequence: "Policies do not arrive.",
            entry: "RlccChannelAway",
        };
        let attempts = Attempts::of(&task, &mut registry);
        let page = || rendered(&registry);
        let figure = |name| value(&registry, &format!("follow_channel_{name}"));
        let values = || ["attempts_total", "failures_total", "failing"].map(figure);
        let began = figure("last_success_timestamp_seconds");
        assert!(began > 1.7e9, "{began}");
        assert_eq!(values(), [0.0, 0.0, 0.0]);
        for _ in 0..2 {
            attempts.count(&Err::<(), _>("away"));
        }
        assert_eq!(values(), [2.0, 2.0, 1.0]);
        attempts.count(&Ok::<_, ()>(()));
        assert_eq!(values(), [3.0, 2.0, 0.0]);
        assert!(
            page().contains(
                "# HELP rlcc_follow_channel_failures should not rise: looks at the channel that \
                 failed. Policies do not arrive. RlccChannelAway in docs/runbook.md"
            ),
            "{}",
            page()
        );
    }
}
