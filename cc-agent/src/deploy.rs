//! Which policies an agent serves: how they are loaded, and what one must share with those that run.

use crate::record::Run;
use cc_core::{
    ServedPolicy,
    canary::GuardRails,
    interface::Interface,
    policy::{ActionSelection, Policy, PolicyError, PolicySpec, Summary},
};

/// A policy, ready to decide.
pub struct Loaded {
    /// It.
    pub policy: Box<dyn Policy>,
    /// Where it came from.
    pub spec: PolicySpec,
    /// It in a line.
    pub text: String,
    /// It in recordings: SHA-256 of its file, or its name.
    pub name: String,
}

/// A candidate, and how it is tried.
pub struct Canary {
    /// The candidate.
    pub candidate: Loaded,
    /// Its share of the new flows, percent.
    pub percent: f64,
    /// What it must not breach.
    pub rails: GuardRails,
}

/// Loads policies, all in the same way.
#[derive(Clone, Debug)]
pub struct Loader {
    /// What policies without a file work in.
    pub interface: Interface,
    /// How files are served, if not as they ask for themselves.
    pub serving: Option<ActionSelection>,
    /// Of every random choice.
    pub seed: u64,
}

/// Why a policy is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// It cannot be used at all.
    #[error("policy {policy}: {source}")]
    Policy {
        /// The policy.
        policy: PolicySpec,
        /// Why.
        source: PolicyError,
    },
    /// It was made for another datapath than the one that runs.
    #[error(
        "policy {policy} was made for {field} {found}, but the running agent has {running}, which holds for all \
         flows at once: start an agent with that policy instead"
    )]
    Misfit {
        /// The policy.
        policy: PolicySpec,
        /// The setting of its environment.
        field: &'static str,
        /// Its value there.
        found: String,
        /// Its value in the running agent.
        running: String,
    },
}

impl Loader {
    /// Loads a policy.
    ///
    /// # Errors
    ///
    /// [`DeployError::Policy`].
    pub fn load(&self, spec: &PolicySpec) -> Result<Loaded, DeployError> {
        let policy = spec
            .load(&self.interface, self.serving, self.seed)
            .map_err(|source| DeployError::Policy {
                policy: spec.clone(),
                source,
            })?;
        Ok(Loaded {
            spec: spec.clone(),
            text: describe(spec, policy.file()),
            name: policy
                .file()
                .map_or_else(|| spec.to_string(), |file| file.sha256.clone()),
            policy,
        })
    }

    /// Loads a policy that is to decide for flows of a datapath that runs already.
    ///
    /// # Errors
    ///
    /// Also when it was made for other windows, another minimum-RTT filter or another pacing than `running`.
    pub fn load_beside(
        &self,
        spec: &PolicySpec,
        running: &Interface,
    ) -> Result<Loaded, DeployError> {
        let loaded = self.load(spec)?;
        let found = loaded.policy.interface();
        let pacing = |interface: &Interface| {
            let gain = interface.pacing_gain;
            gain.map_or_else(|| "none".into(), |gain| gain.to_string())
        };
        for (field, found, running) in [
            (
                "window_ms",
                found.window_ms.to_string(),
                running.window_ms.to_string(),
            ),
            (
                "min_rtt_window_s",
                found.min_rtt_window_s.to_string(),
                running.min_rtt_window_s.to_string(),
            ),
            ("pacing_gain", pacing(found), pacing(running)),
        ] {
            if found != running {
                return Err(DeployError::Misfit {
                    policy: spec.clone(),
                    field,
                    found,
                    running,
                });
            }
        }
        Ok(loaded)
    }
}

impl Loaded {
    /// It, as the agent's core knows it; with the header of its rows where `run` is recorded.
    pub fn served(&self, run: Option<&Run>) -> ServedPolicy {
        let interface = self.policy.interface().clone();
        let metadata = self.policy.file().map(|file| file.meta.clone());
        let header = run.map(|run| run.header(interface.clone(), &self.name, metadata).into());
        ServedPolicy { interface, header }
    }
}

fn describe(spec: &PolicySpec, file: Option<&Summary>) -> String {
    match file {
        Some(summary) => format!("{spec}: {}, {}", summary.meta.name, summary.meta.kind),
        None => spec.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Interface);

    /// Loads a policy that works in another environment than the one that runs.
    fn load_changed(change: Change) -> Result<(), String> {
        let running = Interface::default();
        let mut interface = running.clone();
        change(&mut interface);
        let loader = Loader {
            interface,
            serving: None,
            seed: 0,
        };
        let loaded = loader.load_beside(&PolicySpec::Random, &running);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_holds_for_all_flows_must_be_the_same() {
        assert_eq!(load_changed(|e| e.history = 3), Ok(()));
        let changes: [(&str, Change); 3] = [
            ("window_ms 50, but the running agent has 100", |e| {
                e.window_ms = 50
            }),
            ("pacing_gain 1.5, but the running agent has none", |e| {
                e.pacing_gain = Some(1.5);
            }),
            ("min_rtt_window_s 7, but the running agent has 10", |e| {
                e.min_rtt_window_s = 7;
            }),
        ];
        for (expected, change) in changes {
            let error = load_changed(change).expect_err(expected);
            assert!(error.starts_with("policy random was made for "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
