//! Matrices: the final policies of a study under networks that they were not all trained behind.

use std::path::Path;

use cc_sim::shim::ConditionsRange;
use serde::{Deserialize, Serialize};

use super::{StudyError, Variant, check, check_name};
use crate::train::{
    TrainError,
    config::Config,
    greedy::{self, FixedEpisodes, LinkScore},
};

/// The conditions that the final policy of every run is judged under, with its most likely actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Name of the condition that all others are compared with.
    pub clean: String,
    /// Name of the condition whose gap to the clean one counts.
    pub degraded: String,
    /// Whether scores are logarithms, so that what is lost under a condition follows from a
    /// difference instead of a ratio.
    #[serde(default)]
    pub logarithmic: bool,
    /// The conditions, in the order of the table's columns.
    #[serde(rename = "condition")]
    pub conditions: Vec<Condition>,
}

/// A network that policies are judged behind, with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Name of the condition: letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// The network; without any key, messages arrive at once.
    #[serde(default)]
    pub network: ConditionsRange,
}

impl Matrix {
    /// Checks the conditions, and that a variant's environment can be put behind them.
    pub(super) fn validate(&self, config: &Config, variant: &Variant) -> Result<(), StudyError> {
        let names: Vec<&str> = self
            .conditions
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        check("matrix.condition", &names)?;
        for condition in &self.conditions {
            check_name("a condition", &condition.name)?;
            let checked = condition.network.validate();
            checked.map_err(|wrong| StudyError::Matrix {
                what: format!("condition `{}`: {wrong}", condition.name),
            })?;
        }
        for (key, name) in [("clean", &self.clean), ("degraded", &self.degraded)] {
            if !names.contains(&name.as_str()) {
                return Err(StudyError::Matrix {
                    what: format!("{key} is `{name}`, and has to name one of the conditions"),
                });
            }
        }
        match config.environment.behind(ConditionsRange::default()) {
            Some(_) => Ok(()),
            None => Err(StudyError::Matrix {
                what: format!(
                    "variant `{}` has no network between environment and policy: set \
                     `environment.kind` to \"networked\" or `environment.delay.kind` to \
                     \"network\"",
                    variant.name
                ),
            }),
        }
    }

    /// Judges the policy in a run's directory under every condition: the mean over its tasks.
    pub(super) fn judge(
        &self,
        dir: &Path,
        config: &Config,
        episodes: &FixedEpisodes,
    ) -> Result<Vec<LinkScore>, TrainError> {
        let mut scores = Vec::new();
        for Condition { name, network } in &self.conditions {
            let Some(environment) = config.environment.behind(*network) else {
                continue;
            };
            let tasks = greedy::evaluate_on(dir, name, &environment, episodes)?;
            let sum: f64 = tasks.iter().map(|task| task.score).sum();
            scores.push(LinkScore {
                name: name.clone(),
                score: sum / tasks.len().max(1) as f64,
            });
        }
        Ok(scores)
    }
}
