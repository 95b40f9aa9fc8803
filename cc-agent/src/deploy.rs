//! Loading the policies that an agent serves, and the settings that policies served by one datapath
//! must share.

use std::{
    sync::{Arc, Once, mpsc},
    thread,
    time::Duration,
};

use cc_cage::{Cage, CageError, Job, Limits, LoadError, Loaded, Program};
use tracing::{info, warn};

use crate::{inference::ReadyPolicy, recording_setup::RecordingSession};
use cc_core::{
    ServedPolicy,
    canary::{CanaryBy, GuardRails},
    interface::Interface,
    policy::{ActionSelection, FileError, PolicySpec, Summary},
};

/// Time within which a policy's file must have been read.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// A policy, ready to decide.
pub struct LoadedPolicy {
    /// The policy, and where it is to run.
    pub(crate) policy: ReadyPolicy,
    /// What the policy was made of, by which it can be made again.
    pub job: Job,
    /// The policy as it was loaded.
    pub loaded: Loaded,
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
    /// Its share of the flows, paths or hosts, percent.
    pub percent: f64,
    /// What is compared, and hence assigned to an arm.
    pub by: CanaryBy,
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
    /// Delay added to every batch.
    pub added_delay: Duration,
    /// The longest time that a batch may take; `None` is a quarter of the policy's window.
    pub batch_budget: Option<Duration>,
    /// Whether policies run in child processes rather than in this one.
    pub caged: bool,
}

/// Why a policy is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// The policy's file cannot be read.
    #[error("policy {policy}: policy file refused: {source}")]
    Read {
        /// The policy that was to be loaded.
        policy: PolicySpec,
        /// What is wrong with its file.
        source: FileError,
    },
    /// Reading the policy's file takes too long.
    #[error(
        "policy {policy}: its file could not be read within {} s; is it on a file system that \
         hangs, or not a regular file?",
        READ_LIMIT.as_secs()
    )]
    ReadLate {
        /// The policy that was to be loaded.
        policy: PolicySpec,
    },
    /// The policy cannot be used by any agent.
    #[error("policy {policy}: {source}")]
    Load {
        /// The policy that was to be loaded.
        policy: PolicySpec,
        /// What is wrong with it.
        source: LoadError,
    },
    /// The policy has no child process to run in.
    #[error("policy {policy}: {source}")]
    Cage {
        /// The policy that was to be loaded.
        policy: PolicySpec,
        /// Why there is no child process.
        source: CageError,
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
    /// The child process of a policy is killed when the calling thread ends, so this thread must
    /// outlive the policy.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read or is refused, when the interface does not fit
    /// the policy, and when the policy fails its try-out.
    pub fn load(&self, spec: &PolicySpec) -> Result<LoadedPolicy, DeployError> {
        self.load_from(spec, spec)
    }

    /// Loads the policy that `spec` names from the file of `place`.
    fn load_from(
        &self,
        spec: &PolicySpec,
        place: &PolicySpec,
    ) -> Result<LoadedPolicy, DeployError> {
        load_again(
            &Job {
                policy: spec.clone(),
                file: Arc::new(read(place)?),
                interface: self.interface.clone(),
                serving: self.serving,
                seed: self.seed,
                added_delay: self.added_delay,
                batch_budget: self.batch_budget,
            },
            self.caged,
        )
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
        self.load_kept(spec, spec, running)
    }

    /// Loads the policy that `spec` names as [`Self::load_beside`] does, from the file of `place`,
    /// where it was kept.
    ///
    /// # Errors
    ///
    /// Returns an error as [`Self::load_beside`] does.
    pub(crate) fn load_kept(
        &self,
        spec: &PolicySpec,
        place: &PolicySpec,
        running: &Interface,
    ) -> Result<LoadedPolicy, DeployError> {
        let loaded = self.load_from(spec, place)?;
        let found = &loaded.loaded.interface;
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
    /// The interface that the policy was made for.
    pub fn interface(&self) -> &Interface {
        &self.loaded.interface
    }

    /// SHA-256 of the policy's file in hexadecimal digits; `None` for a policy that has none.
    pub(crate) fn sha256(&self) -> Option<String> {
        self.loaded.file.as_ref().map(|file| file.sha256.clone())
    }

    /// The policy as the agent's core refers to it. The header for its rows is made where the agent
    /// records, which `session` says.
    pub fn served(&self, session: Option<&RecordingSession>) -> ServedPolicy {
        let interface = self.interface().clone();
        let metadata = self.loaded.file.as_ref().map(|file| file.meta.clone());
        let header = session.map(|session| {
            session
                .header(interface.clone(), &self.name, metadata)
                .into()
        });
        ServedPolicy { interface, header }
    }

    /// Logs where the policy runs and what its batches took in the try-out, and once what this host
    /// lacks to confine policies.
    pub(crate) fn log(&self) {
        static LACKING: Once = Once::new();
        let times = &self.loaded.times.batches;
        let slowest = times
            .iter()
            .map(|(_, took)| *took)
            .max()
            .unwrap_or_default();
        let most = times
            .iter()
            .map(|(rows, _)| *rows)
            .max()
            .unwrap_or_default();
        let ms = slowest.as_secs_f64() * 1e3;
        match &self.policy {
            ReadyPolicy::Caged(cage) => info!(
                "policy {} runs in process {}; a batch of {most} flows takes {ms:.2} ms",
                self.text,
                cage.pid()
            ),
            ReadyPolicy::Here(..) => warn!(
                "policy {} runs within the agent, without protection (--no-cage); a batch of \
                 {most} flows takes {ms:.2} ms",
                self.text
            ),
        }
        if !self.loaded.lacking.is_empty() {
            LACKING.call_once(|| {
                let lacking = self.loaded.lacking.join(", ");
                warn!("policies are confined without {lacking}; docs/cage.md says what that means");
            });
        }
    }
}

/// Loads a policy once more, from the bytes that it was made of.
///
/// # Errors
///
/// Returns an error as [`PolicyLoader::load`] does.
pub(crate) fn load_again(job: &Job, caged: bool) -> Result<LoadedPolicy, DeployError> {
    let spec = &job.policy;
    let (policy, loaded) = if caged {
        let cage = Cage::start(&Program::this(), job, &Limits::default());
        let cage = cage.map_err(|source| DeployError::Cage {
            policy: spec.clone(),
            source,
        })?;
        let loaded = cage.loaded().clone();
        (ReadyPolicy::Caged(Box::new(cage)), loaded)
    } else {
        let (policy, loaded) = job.load().map_err(|source| DeployError::Load {
            policy: spec.clone(),
            source,
        })?;
        (ReadyPolicy::Here(policy, job.added_delay), loaded)
    };
    Ok(LoadedPolicy {
        policy,
        text: describe(spec, loaded.file.as_ref()),
        name: match &loaded.file {
            Some(file) => file.sha256.clone(),
            None => spec.to_string(),
        },
        job: job.clone(),
        loaded,
    })
}

/// Reads the policy's file on a thread of its own, which is left behind when it takes too long.
fn read(spec: &PolicySpec) -> Result<Vec<u8>, DeployError> {
    let (done, outcome) = mpsc::channel();
    let file = spec.clone();
    thread::Builder::new()
        .name("policy-file".into())
        .spawn(move || done.send(file.read()))
        .map_err(|error| DeployError::Cage {
            policy: spec.clone(),
            source: CageError::Start(error),
        })?;
    outcome
        .recv_timeout(READ_LIMIT)
        .map_err(|_| DeployError::ReadLate {
            policy: spec.clone(),
        })?
        .map_err(|source| DeployError::Read {
            policy: spec.clone(),
            source,
        })
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
            added_delay: Duration::ZERO,
            batch_budget: Some(Duration::from_secs(60)),
            caged: false,
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
