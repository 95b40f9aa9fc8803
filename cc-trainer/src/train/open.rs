//! Opens the environments that a configuration chooses: checks the settings, and reads the files
//! and the policy that they name.

use std::{path::Path, sync::Arc};

use super::{
    environments::{Environments, OpenError},
    final_policy::FinalPolicy,
    source::Source,
};
use crate::{
    dataset,
    environment::{
        abr::AbrWorld,
        network::{FastPolicy, NetworkConfig, SlowWorld, World},
        recorded::RecordedWorld,
    },
};

impl Environments {
    /// Checks the settings and reads the files that they name.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting or the file that cannot be used.
    pub(crate) fn open(&self) -> Result<Source, OpenError> {
        Ok(match self {
            Self::Abr(config) => Source::Abr(Arc::new(AbrWorld::open((**config).clone())?)),
            Self::CartPole(config) => Source::CartPole(config.clone()),
            Self::GridWorld(config) => Source::GridWorld(config.clone()),
            Self::Network(config) => {
                let world = Arc::new(World::new((**config).clone())?);
                match config.guide.as_ref().and_then(|guide| guide.fast.as_ref()) {
                    None => Source::Network(world),
                    Some(dir) => {
                        let fast = fast_policy(dir, config).map_err(|reason| OpenError::Fast {
                            path: dir.clone(),
                            reason,
                        })?;
                        Source::Slow(Arc::new(SlowWorld::new(world, fast)))
                    }
                }
            }
            Self::Networked(config) => {
                config.validate().map_err(OpenError::Networked)?;
                Source::Networked(config.clone())
            }
            Self::Recorded(config) => Source::Recorded(Arc::new(RecordedWorld::open(config)?)),
        })
    }
}

/// Reads the fast policy that the run in a directory has trained, for the slow one of an
/// environment.
fn fast_policy(dir: &Path, config: &NetworkConfig) -> Result<FastPolicy, String> {
    let policy = FinalPolicy::load(dir).map_err(|error| error.to_string())?;
    let policy = policy.ok_or(
        "it holds no trained policy (checkpoint.bin); train one there, with environment.guide \
         without `fast`",
    )?;
    let guides = match &policy.environment {
        Environments::Network(own) => own.guide.as_ref().filter(|guide| guide.fast.is_none()),
        _ => None,
    };
    let (Environments::Network(own), Some(guides)) = (&policy.environment, guides) else {
        return Err(
            "its policy is not the fast one of a graph; give the directory of a run whose \
             environment.guide has no `fast`"
                .to_owned(),
        );
    };
    let differences = dataset::network_differences(&config.policy, &own.policy);
    if !differences.is_empty() {
        return Err(format!(
            "its policy has another interface ({}); give both the same environment.policy",
            differences.join("; ")
        ));
    }
    let values = config.guide.iter().flat_map(|guide| &guide.values);
    if let Some(strange) = values.into_iter().find(|one| !guides.values.contains(one)) {
        return Err(format!(
            "its policy was not trained with the guide {strange}; choose environment.guide.values \
             among {:?}",
            guides.values
        ));
    }
    policy
        .as_fast()
        .ok_or_else(|| "its checkpoint has no normaliser; train it anew".to_owned())
}
