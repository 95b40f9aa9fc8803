//! Names of episodes, by which recordings identify flows.

use sha2::{Digest, Sha256};

/// Generates the names of the episodes of one agent's run: 64-bit numbers that differ between runs
/// and hosts, except with negligible probability.
#[derive(Clone, Debug)]
pub struct Episodes {
    run: Sha256,
    next: u64,
}

impl Episodes {
    /// Creates the names for the run that started at `started_ns` (UTC) on the boot `boot_id` of
    /// the host (`/proc/sys/kernel/random/boot_id`).
    pub fn new(boot_id: &str, started_ns: i64) -> Self {
        let run = Sha256::new()
            .chain_update(boot_id)
            .chain_update(started_ns.to_le_bytes())
            .chain_update(std::process::id().to_le_bytes());
        Self { run, next: 0 }
    }

    /// Creates the names for a simulated run, which its name determines: a run that is repeated has
    /// the same rows.
    pub fn named(run: &str) -> Self {
        Self {
            run: Sha256::new().chain_update(run),
            next: 0,
        }
    }

    /// The name of the next episode.
    pub fn next_name(&mut self) -> u64 {
        let digest = self
            .run
            .clone()
            .chain_update(self.next.to_le_bytes())
            .finalize();
        self.next += 1;
        let mut name = [0; 8];
        name.copy_from_slice(&digest[..8]);
        u64::from_le_bytes(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_run_has_the_same_names_again() {
        let names = |run| {
            let mut episodes = Episodes::named(run);
            [episodes.next_name(), episodes.next_name()]
        };
        assert_eq!(names("a"), names("a"));
        assert_ne!(names("a"), names("b"));
    }

    #[test]
    fn names_differ_within_a_run_and_between_runs() {
        let mut names = std::collections::BTreeSet::new();
        for (boot_id, started_ns) in [("a", 1), ("a", 2), ("b", 1)] {
            let mut episodes = Episodes::new(boot_id, started_ns);
            names.extend((0..1_000).map(|_| episodes.next_name()));
        }
        assert_eq!(names.len(), 3_000);
    }
}
