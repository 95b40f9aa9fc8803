//! What a policy is made of, and loading it.

use std::{sync::Arc, time::Duration};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, Policy, PolicyMeta, PolicySpec, Summary},
};
use serde::{Deserialize, Serialize};

use crate::{
    load_error::LoadError,
    rehearsal::{self, Times},
};

/// Everything that determines a policy and its answers.
#[derive(Clone, Debug)]
pub struct Job {
    /// The name of the policy.
    pub policy: PolicySpec,
    /// The bytes of its file; empty for a policy without a file of its own.
    pub file: Arc<Vec<u8>>,
    /// The interface of policies that have no file; a file brings its own.
    pub interface: Interface,
    /// How a file's actions are selected; `None` leaves it to the file.
    pub serving: Option<ActionSelection>,
    /// Seed of the random numbers by which actions are sampled.
    pub seed: u64,
    /// Delay added to every batch, for the study of late decisions.
    pub added_delay: Duration,
    /// The longest time that a batch may take; `None` is a quarter of the policy's window.
    pub batch_budget: Option<Duration>,
}

/// A policy as it was loaded, without what decides.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The interface that the policy was made for.
    pub interface: Interface,
    /// Summary of the policy's file; `None` for a policy without one.
    pub file: Option<Summary>,
    /// The time that batches took in the try-out.
    pub times: Times,
    /// The parts of the confinement that this kernel does not have, or refuses. Empty for a policy
    /// in the agent's own process.
    pub lacking: Vec<String>,
}

impl Job {
    /// Makes the policy in this process and tries it out.
    ///
    /// # Errors
    ///
    /// Returns an error when the policy cannot be made, gives answers that are not finite, or takes
    /// too long for a batch.
    pub fn load(&self) -> Result<(Box<dyn Policy>, Loaded), LoadError> {
        let policy = self
            .policy
            .create(&self.file, &self.interface, self.serving, self.seed)?;
        self.try_out(policy)
    }

    /// Tries out a policy that was made of this job.
    pub(crate) fn try_out(
        &self,
        mut policy: Box<dyn Policy>,
    ) -> Result<(Box<dyn Policy>, Loaded), LoadError> {
        let times = rehearsal::rehearse(&mut *policy, self.batch_budget)?;
        let loaded = Loaded {
            interface: policy.interface().clone(),
            file: policy.file().cloned(),
            times,
            lacking: Vec::new(),
        };
        Ok((policy, loaded))
    }
}

/// A [`Job`] without its file, as the child gets it in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobHeader {
    /// The name of the policy; `.onnx` stands for its file.
    policy: String,
    interface: Interface,
    serving: Option<ActionSelection>,
    seed: u64,
    added_delay: Duration,
    batch_budget: Option<Duration>,
}

impl JobHeader {
    /// The header of a job.
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            policy: match &job.policy {
                PolicySpec::Onnx(_) | PolicySpec::Pinned { .. } => ".onnx".into(),
                spec => spec.to_string(),
            },
            interface: job.interface.clone(),
            serving: job.serving,
            seed: job.seed,
            added_delay: job.added_delay,
            batch_budget: job.batch_budget,
        }
    }

    /// The job of this header and a file; `None` when it names no policy.
    pub(crate) fn with(self, file: Vec<u8>) -> Option<Job> {
        Some(Job {
            policy: self.policy.parse().ok()?,
            file: Arc::new(file),
            interface: self.interface,
            serving: self.serving,
            seed: self.seed,
            added_delay: self.added_delay,
            batch_budget: self.batch_budget,
        })
    }
}

/// [`Loaded`] as the child reports it in JSON. Size and hash of the file are not among it, because
/// the agent knows them better.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    interface: Interface,
    file: Option<FileReport>,
    times: Times,
    lacking: Vec<String>,
}

/// The part of a file's [`Summary`] that only the child knows.
#[derive(Debug, Serialize, Deserialize)]
struct FileReport {
    meta: PolicyMeta,
    parameters: usize,
    producer: String,
    description: String,
}

impl Report {
    /// The report of a policy that was loaded.
    pub(crate) fn of(loaded: &Loaded) -> Self {
        Self {
            interface: loaded.interface.clone(),
            file: loaded.file.as_ref().map(|file| FileReport {
                meta: file.meta.clone(),
                parameters: file.parameters,
                producer: file.producer.clone(),
                description: file.description.clone(),
            }),
            times: loaded.times.clone(),
            lacking: loaded.lacking.clone(),
        }
    }

    /// What the report says about the policy of `job`, whose file has `bytes` bytes and this
    /// SHA-256. `Err` names what cannot be true.
    pub(crate) fn check(
        self,
        job: &Job,
        bytes: usize,
        sha256: impl FnOnce() -> String,
    ) -> Result<Loaded, String> {
        let Self {
            interface,
            file,
            times,
            lacking,
        } = self;
        interface.validate().map_err(|error| error.to_string())?;
        let has_file = matches!(
            job.policy,
            PolicySpec::Onnx(_) | PolicySpec::Pinned { .. } | PolicySpec::Default
        );
        let file = match file {
            Some(file) if has_file => {
                file.meta.validate().map_err(|error| error.to_string())?;
                if file.meta.interface != interface {
                    return Err("it has two interfaces".into());
                }
                Some(Summary {
                    observation: interface.observation_len(),
                    meta: file.meta,
                    parameters: file.parameters,
                    bytes,
                    sha256: sha256(),
                    producer: file.producer,
                    description: file.description,
                })
            }
            None if !has_file && interface == job.interface => None,
            _ => return Err("it is not the policy that was asked for".into()),
        };
        Ok(Loaded {
            interface,
            file,
            times,
            lacking,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(policy: &str) -> Job {
        Job {
            policy: policy.parse().expect("a policy's name"),
            file: Arc::default(),
            interface: Interface::default(),
            serving: None,
            seed: 0,
            added_delay: Duration::ZERO,
            batch_budget: Some(Duration::from_secs(60)),
        }
    }

    fn report(job: &Job) -> Report {
        let (_, loaded) = job.load().expect("it loads");
        let json = serde_json::to_vec(&Report::of(&loaded)).expect("plain data");
        serde_json::from_slice(&json).expect("the same")
    }

    fn refusal(report: Report, job: &Job) -> String {
        let refused = report.check(job, 0, String::new);
        refused.expect_err("it cannot be true")
    }

    #[test]
    fn a_job_reaches_the_child_as_it_is() {
        let mut sent = job("dir/some.onnx");
        sent.seed = u64::MAX;
        sent.serving = Some(ActionSelection::Softmax { temperature: 0.5 });
        let json = serde_json::to_vec(&JobHeader::of(&sent)).expect("plain data");
        let header: JobHeader = serde_json::from_slice(&json).expect("the same");
        let got = header.with(vec![1, 2]).expect("a policy's name");
        assert!(matches!(got.policy, PolicySpec::Onnx(_)));
        assert_eq!((got.seed, got.serving), (sent.seed, sent.serving));
        assert_eq!((&got.interface, &*got.file), (&sent.interface, &vec![1, 2]));
    }

    #[test]
    fn what_a_child_says_of_its_policy_is_checked() {
        let fixed = job("fixed:10");
        let loaded = report(&fixed).check(&fixed, 0, String::new);
        assert_eq!(loaded.expect("true").interface, fixed.interface);

        let mut another = report(&fixed);
        another.interface.history += 1;
        assert!(refusal(another, &fixed).contains("not the policy"));

        let mut broken = report(&fixed);
        broken.interface.window_ms = 0;
        assert!(refusal(broken, &fixed).contains("window_ms is 0"));

        let default = job("default");
        let mut wide = report(&default);
        let file = wide.file.as_mut().expect("it has one");
        file.meta.state = usize::MAX;
        assert!(refusal(wide, &default).contains("state"));
        assert!(refusal(report(&default), &fixed).contains("not the policy"));
        assert!(refusal(report(&fixed), &default).contains("not the policy"));
    }
}
