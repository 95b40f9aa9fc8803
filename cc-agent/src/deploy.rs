//! Loading the policies that an agent serves, and the settings that policies served by one datapath
//! must share.

use crate::recording_setup::RecordingSession;
use cc_core::{
    ServedPolicy,
    canary::GuardRails,
    interface::Interface,
    policy::{ActionSelection, Policy, PolicyError, PolicySpec, Summary},
};

/// A policy, ready to decide.
pub struct LoadedPolicy {
    /// The policy, ready to decide for batches of flows.
    pub policy: Box<dyn Policy>,
    /// The name that it was loaded by, by which it can be loaded again.
    pub spec: PolicySpec,
    /// One-line description for logs and `status`.
    pub text: String,
    /// Identifier written to recordings: SHA-256 of the file in hexadecimal digits, or the spec for
    /// a policy that has no file.
    pub name: String,
}

/// A candidate to start with, from `--candidate` and `--canary`.
pub struct CanarySettings {
    /// The candidate policy, ready to decide.
    pub candidate: LoadedPolicy,
    /// Its share of the new flows, percent.
    pub percent: f64,
    /// The guard rails whose breach withdraws it.
    pub rails: GuardRails,
}

/// Loads policies, all with the same options.
#[derive(Clone, Debug)]
pub struct PolicyLoader {
    /// The interface of policies that have no file; a file brings its own.
    pub interface: Interface,
    /// How a file's actions are selected; `None` leaves it to the file.
    pub serving: Option<ActionSelection>,
    /// Seed of the random numbers by which actions are sampled.
    pub seed: u64,
}

/// Why a policy is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// The policy cannot be used by any agent.
    #[error("policy {policy}: {source}")]
    Policy {
        /// The policy that was to be loaded.
        policy: PolicySpec,
        /// What is wrong with it.
        source: PolicyError,
    },
    /// The policy was made for other datapath settings than those that are in use.
    #[error(
        "policy {policy} was made for {field} {found}, but the running agent has {running}, which \
         holds for all flows at once: start an agent with that policy instead"
    )]
    Misfit {
        /// The policy that was to be loaded.
        policy: PolicySpec,
        /// Name of the setting in the policy's interface.
        field: &'static str,
        /// Value that the policy was made for.
        found: String,
        /// Value in the running agent.
        running: String,
    },
}

impl PolicyLoader {
    /// Loads the policy that a specification names.
    ///
    /// # Errors
    ///
    /// Returns [`DeployError::Policy`] when the file cannot be read or is refused, or when the
    /// interface does not fit the policy.
    pub fn load(&self, spec: &PolicySpec) -> Result<LoadedPolicy, DeployError> {
        let policy = spec
            .load(&self.interface, self.serving, self.seed)
            .map_err(|source| DeployError::Policy {
                policy: spec.clone(),
                source,
            })?;
        Ok(LoadedPolicy {
            spec: spec.clone(),
            text: describe(spec, policy.file()),
            name: policy
                .file()
                .map_or_else(|| spec.to_string(), |file| file.sha256.clone()),
            policy,
        })
    }

    /// Loads a policy for flows of a datapath that is already registered with the settings of
    /// `running`.
    ///
    /// # Errors
    ///
    /// Returns an error when the policy cannot be loaded, and [`DeployError::Misfit`] when its
    /// window length, minimum-RTT filter or pacing differs from that of `running`.
    pub fn load_beside(
        &self,
        spec: &PolicySpec,
        running: &Interface,
    ) -> Result<LoadedPolicy, DeployError> {
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

impl LoadedPolicy {
    /// The policy as the agent's core refers to it. The header for its rows is made where the agent
    /// records, which `session` says.
    pub fn served(&self, session: Option<&RecordingSession>) -> ServedPolicy {
        let interface = self.policy.interface().clone();
        let metadata = self.policy.file().map(|file| file.meta.clone());
        let header = session.map(|session| {
            session
                .header(interface.clone(), &self.name, metadata)
                .into()
        });
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

    /// Loads a policy whose interface is the running one with this change.
    fn load_changed(change: Change) -> Result<(), String> {
        let running = Interface::default();
        let mut interface = running.clone();
        change(&mut interface);
        let loader = PolicyLoader {
            interface,
            serving: None,
            seed: 0,
        };
        let loaded = loader.load_beside(&PolicySpec::Random, &running);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn datapath_settings_must_be_the_running_ones() {
        assert_eq!(load_changed(|e| e.history = 3), Ok(()));
        let changes: [(&str, Change); 3] = [
            ("window_ms 50, but the running agent has 100", |e| {
                e.window_ms = 50;
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
