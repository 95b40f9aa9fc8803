//! The final policy of a run on fixed episodes of every link, with its most likely actions.
//!
//! Returns in training are those of sampled actions on links that are drawn anew, so that two runs
//! differ by more than their policies. Here every policy has the same episodes, and every link
//! counts alike.

use std::{fs, path::Path};

use cc_core::durable::replace_durably;
use cc_sim::seed;
use serde::{Deserialize, Serialize};

use super::{
    TrainError, checkpoint::Checkpoint, environments::Environments, final_policy::FinalPolicy,
};
use crate::rollout::Episode;

/// Name of the file in a run's directory that keeps the scores in the environment of training.
const FILE: &str = "greedy.json";
/// Keeps the seeds of these episodes apart from those of training.
const FIXED: u64 = 0x6669_7865_6420_6570;

/// The episodes that policies are judged on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedEpisodes {
    /// Number of episodes on each link, at least 1.
    pub episodes: u64,
    /// Determines the links that are drawn from families, and everything random on all of them.
    #[serde(default)]
    pub seed: u64,
    /// What the score of an episode is.
    #[serde(default)]
    pub measure: Measure,
}

/// What the score of a policy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// The reward per interval between two decisions (a window), over all episodes: a sum over a
    /// sum, so that silence counts with its length.
    #[default]
    Interval,
    /// The mean return of an episode, for tasks whose episodes end when the policy fails.
    Episode,
}

/// How a policy did on one link, or on the links of one family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkScore {
    /// Name of the link's task, such as a scenario's.
    pub name: String,
    /// The mean of what [`FixedEpisodes::measure`] says of each episode.
    pub score: f64,
}

/// The scores as the run's directory keeps them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scores {
    /// Environment steps that the policy had learnt from.
    steps: u64,
    of: FixedEpisodes,
    /// The environment; `None` for the one of training.
    #[serde(default)]
    environment: Option<Environments>,
    links: Vec<LinkScore>,
}

/// Judges the policy in the checkpoint of a run's directory on the links that it was trained on.
/// The scores are kept in the directory, and used again while the policy and the episodes are the
/// same. Empty where there is no checkpoint, and for recordings, which act by themselves.
///
/// # Errors
///
/// Returns an error when the checkpoint or the links cannot be read, or the scores not be written.
pub fn evaluate(dir: &Path, episodes: &FixedEpisodes) -> Result<Vec<LinkScore>, TrainError> {
    judge(dir, FILE, None, episodes)
}

/// Judges the policy as [`evaluate`] does, in another environment, whose observations and actions
/// must be those that it was trained with. The scores are kept under the environment's name.
///
/// # Errors
///
/// Returns an error when the checkpoint or the links cannot be read, or the scores not be written.
pub fn evaluate_on(
    dir: &Path,
    name: &str,
    environment: &Environments,
    episodes: &FixedEpisodes,
) -> Result<Vec<LinkScore>, TrainError> {
    let file = format!("greedy-{name}.json");
    judge(dir, &file, Some(environment), episodes)
}

fn judge(
    dir: &Path,
    file: &str,
    environment: Option<&Environments>,
    episodes: &FixedEpisodes,
) -> Result<Vec<LinkScore>, TrainError> {
    let Some(checkpoint) = Checkpoint::load(&dir.join("checkpoint.bin"))? else {
        return Ok(Vec::new());
    };
    let steps = checkpoint.header.record.last.steps;
    let path = dir.join(file);
    let kept = fs::read(&path).ok();
    let kept = kept.and_then(|json| serde_json::from_slice::<Scores>(&json).ok());
    if let Some(kept) = kept
        && (kept.steps, &kept.of, kept.environment.as_ref()) == (steps, episodes, environment)
    {
        return Ok(kept.links);
    }
    let scores = Scores {
        steps,
        of: *episodes,
        links: links(&checkpoint, environment, episodes)?,
        environment: environment.cloned(),
    };
    let json = serde_json::to_vec_pretty(&scores)
        .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
    replace_durably(&path, &json)?;
    Ok(scores.links)
}

fn links(
    checkpoint: &Checkpoint,
    environment: Option<&Environments>,
    episodes: &FixedEpisodes,
) -> Result<Vec<LinkScore>, TrainError> {
    let policy = FinalPolicy::of(checkpoint);
    let source = environment.unwrap_or(&policy.environment).open()?;
    let score = |(task, name): (usize, String)| {
        let seed = [episodes.seed, task as u64]
            .into_iter()
            .fold(FIXED, seed::fold);
        let environment = source.environment_of_task(task, seed, policy.normalizer())?;
        let played = policy.play(environment, episodes.episodes);
        let sum = |of: fn(&Episode) -> f64| played.iter().map(of).sum::<f64>();
        let over = match episodes.measure {
            Measure::Interval => f64::max(sum(|one| one.intervals), f64::MIN_POSITIVE),
            Measure::Episode => played.len() as f64,
        };
        Some(LinkScore {
            name,
            score: sum(|one| one.total) / over,
        })
    };
    let tasks = source.tasks().into_iter().enumerate();
    Ok(tasks.filter_map(score).collect())
}
