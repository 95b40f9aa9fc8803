//! Sweeps: a training configuration whose settings are drawn from ranges, scored by what no run
//! was trained on.
//!
//! Settings are drawn at random, which finds good ones sooner than a grid where few of them matter
//! (J. Bergstra and Y. Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012).
//! With several rungs only the best share of the trials goes on to the next one: successive halving
//! (K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
//! Optimization", AISTATS 2016). A trial that diverges is the worst one, and no error.
//!
//! The score of a trial is its mean over the seeds: in simulated networks, the reward per window of
//! the most likely actions on fixed episodes of the validation set, by the objective of the base
//! configuration, whatever the trial's own is; with recordings, the lower end of the estimate on
//! the flows that are held out. What a sweep has chosen is to be judged on other links, once.

mod draw;
mod results;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use draw::{Parameter, ParameterError};
pub use results::{SweepResults, TrialResults};

use crate::{
    toml_file::{self, TomlFileError},
    train::{
        self, TrainError, Training,
        config::{Config, ConfigError, Overrides},
        environments::Environments,
        greedy::{self, FixedEpisodes, Measure},
        record::Finish,
    },
};

/// A sweep, as its file in TOML describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Title of the sweep and of its results.
    pub title: String,
    /// Number of configurations that are drawn. More can be added later: those before stay the
    /// same.
    pub trials: usize,
    /// Determines the settings that are drawn.
    #[serde(default)]
    pub seed: u64,
    /// Seeds that each configuration is trained with.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// Environment steps after which trials are compared, rising; the last is the length of a
    /// whole run. Without any, all trials run for the configuration's `steps`.
    #[serde(default)]
    pub rungs: Vec<u64>,
    /// Share of the trials of a rung that go on to the next one, above 0, up to 1.
    #[serde(default = "third")]
    pub keep: f64,
    /// What trials in simulated networks are scored on.
    #[serde(default)]
    pub validation: Validation,
    /// The training configuration, without the settings that are drawn.
    pub base: toml::Table,
    /// The settings that are drawn.
    #[serde(rename = "parameter")]
    pub parameters: Vec<Parameter>,
}

fn one_seed() -> Vec<u64> {
    vec![1]
}

fn third() -> f64 {
    1.0 / 3.0
}

/// The links and episodes that trials are scored on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Validation {
    /// Links, as `--scenarios` of `cc-trainer evaluate` names them.
    pub scenarios: String,
    /// Number of episodes on each link.
    pub episodes: u64,
    /// Determines everything random on the links.
    pub seed: u64,
}

impl Default for Validation {
    fn default() -> Self {
        Self {
            scenarios: "validation".to_owned(),
            episodes: 1,
            seed: 1,
        }
    }
}

/// Where a sweep is written, and how many of its runs go on at once.
#[derive(Clone, Debug)]
pub struct Options {
    /// The sweep's directory, which holds those of its runs.
    pub dir: PathBuf,
    /// Number of runs at the same time.
    pub jobs: usize,
    /// The command line, for the runs' records.
    pub command: String,
}

/// Why a sweep did not begin, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The sweep's file cannot be read, or is no sweep in TOML.
    #[error(transparent)]
    File(#[from] TomlFileError),
    /// A setting of the sweep itself is out of its range.
    #[error("{field} is {found}, and has to be {expected}")]
    Range {
        /// Key of the setting that is wrong.
        field: &'static str,
        /// The value that it has.
        found: String,
        /// The values that it may have.
        expected: &'static str,
    },
    /// A parameter cannot be drawn.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A trial's settings do not parse as a configuration.
    #[error("trial {trial}: {source}")]
    Trial {
        /// Number of the trial with the fault.
        trial: usize,
        /// What is wrong, with the setting's key.
        source: Box<toml::de::Error>,
    },
    /// A trial has a setting out of its range.
    #[error("trial {trial}: {source}; narrow the range of the parameter")]
    Setting {
        /// Number of the trial with the fault.
        trial: usize,
        /// The setting and the values it may have.
        source: ConfigError,
    },
    /// Nothing says how good a policy is in this environment.
    #[error(
        "trials are scored on links or on recorded flows that are held out, and \
         base.environment.kind is neither `network` nor `recorded`"
    )]
    NoScore,
    /// A run ended with an error.
    #[error("{run}: {source}")]
    Run {
        /// Directory of the run below the sweep's.
        run: String,
        /// Why the run did not begin, or ended early.
        source: Box<TrainError>,
    },
    /// Threads could not be started.
    #[error("starting threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// A result could not be written.
    #[error(transparent)]
    Write(#[from] cc_core::durable::ReplaceError),
}

/// A trial that has run to a rung.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Number of the trial, from 0.
    pub number: usize,
    /// Score after each rung that it reached; `None` where it diverged or nothing was known.
    pub scores: Vec<Option<f64>>,
}

impl Sweep {
    /// Reads a sweep from a file in TOML, and checks it.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, or that names the setting that is wrong.
    pub fn load(path: &Path) -> Result<Self, SweepError> {
        let sweep: Self = toml_file::read(path)?;
        sweep.validate()?;
        Ok(sweep)
    }

    fn validate(&self) -> Result<(), SweepError> {
        let check = |field, found: String, fits, expected| match fits {
            true => Ok(()),
            false => Err(SweepError::Range {
                field,
                found,
                expected,
            }),
        };
        check(
            "trials",
            self.trials.to_string(),
            self.trials > 0,
            "at least 1",
        )?;
        let seeds = self.seeds.len();
        check(
            "seeds",
            format!("{:?}", self.seeds),
            seeds > 0,
            "at least one",
        )?;
        let keep = self.keep;
        check(
            "keep",
            keep.to_string(),
            keep > 0.0 && keep <= 1.0,
            "above 0, up to 1",
        )?;
        let rising = self.rungs.is_sorted_by(|a, b| a < b) && !self.rungs.contains(&0);
        check(
            "rungs",
            format!("{:?}", self.rungs),
            rising,
            "rising, and above 0",
        )?;
        let episodes = self.validation.episodes;
        check(
            "validation.episodes",
            episodes.to_string(),
            episodes > 0,
            "at least 1",
        )?;
        draw::check(&self.parameters)?;
        for trial in 0..self.trials {
            let config = self.config(trial)?;
            match config.environment {
                Environments::Network(_) | Environments::Recorded(_) => {}
                Environments::Abr(ref abr) if abr.validation.is_some() => {}
                _ => return Err(SweepError::NoScore),
            }
            let resolved = config.resolve(&Overrides::default());
            resolved.map_err(|source| SweepError::Setting { trial, source })?;
        }
        Ok(())
    }

    /// What was drawn for a trial: keys and values.
    pub fn settings(&self, trial: usize) -> Vec<(String, toml::Value)> {
        draw::draw(&self.parameters, self.seed, trial)
    }

    /// The base configuration with the settings of a trial, as a table.
    pub fn table(&self, trial: usize) -> toml::Table {
        let mut table = self.base.clone();
        for (key, value) in self.settings(trial) {
            draw::set(&mut table, &key, value);
        }
        table
    }

    /// The configuration of a trial, for a run on one thread. Its schedules are those of the last
    /// rung from the start.
    fn config(&self, trial: usize) -> Result<Config, SweepError> {
        let parsed: Result<Config, _> = self.table(trial).try_into();
        let mut config = parsed.map_err(|source| SweepError::Trial {
            trial,
            source: Box::new(source),
        })?;
        config.actors = Some(0);
        config.threads = Some(1);
        if let Some(&last) = self.rungs.last() {
            config.steps = last;
            config.learner.decay_steps.get_or_insert(last);
        }
        Ok(config)
    }

    /// Number of rungs; at least 1.
    fn rungs(&self) -> usize {
        self.rungs.len().max(1)
    }
}

/// Runs the trials of a sweep, rung by rung, and calls `watch` with each trial that has reached
/// one, and the rung. What the directory holds is kept and continued. Once `stop` is true, it
/// returns with the trials as far as they got.
///
/// # Errors
///
/// Returns the error of the first run that failed otherwise than by diverging.
pub fn run(
    sweep: &Sweep,
    options: &Options,
    stop: &AtomicBool,
    watch: &(dyn Fn(&Trial, usize) + Sync),
) -> Result<Vec<Trial>, SweepError> {
    sweep.validate()?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.jobs.max(1))
        .build()?;
    let trial = |number| Trial {
        number,
        scores: Vec::new(),
    };
    let mut trials: Vec<Trial> = (0..sweep.trials).map(trial).collect();
    for rung in 0..sweep.rungs() {
        let going = survivors(&trials, rung, sweep.keep);
        let reach = |trial: &mut Trial| -> Result<(), SweepError> {
            if stop.load(Ordering::Relaxed) || !going.contains(&trial.number) {
                return Ok(());
            }
            if let Some(score) = reached(sweep, options, trial.number, rung, stop)? {
                trial.scores.push(score);
                watch(trial, rung);
            }
            Ok(())
        };
        // One at a time to each thread, in order.
        pool.install(|| trials.par_iter_mut().with_max_len(1).try_for_each(reach))?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(trials)
}

/// The numbers of the trials that go on to a rung: all to the first, and to each later one the best
/// share of those that reached the one before, at least one of them.
fn survivors(trials: &[Trial], rung: usize, keep: f64) -> Vec<usize> {
    let Some(before) = rung.checked_sub(1) else {
        return trials.iter().map(|trial| trial.number).collect();
    };
    let scored = |trial: &Trial| Some((trial.scores.get(before).copied()??, trial.number));
    let mut scored: Vec<_> = trials.iter().filter_map(scored).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let count = trials
        .iter()
        .filter(|trial| trial.scores.len() > before)
        .count();
    let most = ((count as f64 * keep).ceil() as usize).max(1);
    scored.truncate(most);
    scored.into_iter().map(|(_, number)| number).collect()
}

/// Runs a trial to a rung with each seed, and returns its score there: `None` inside if it
/// diverged, outside if it was stopped before.
fn reached(
    sweep: &Sweep,
    options: &Options,
    trial: usize,
    rung: usize,
    stop: &AtomicBool,
) -> Result<Option<Option<f64>>, SweepError> {
    let mut sum = 0.0;
    for &seed in &sweep.seeds {
        let name = format!("trial-{trial:03}/seed-{seed}");
        let training = Training {
            config: Some(sweep.config(trial)?),
            overrides: Overrides {
                steps: sweep.rungs.get(rung).copied(),
                seed: Some(seed),
                ..Overrides::default()
            },
            dir: options.dir.join(&name),
            command: options.command.clone(),
            listening: None,
            metrics: None,
            store: None,
        };
        let failed = |source| SweepError::Run {
            run: name.clone(),
            source: Box::new(source),
        };
        let record = match train::train(&training, stop, &mut |_| {}) {
            Err(TrainError::Diverged { .. }) => return Ok(Some(None)),
            other => other.map_err(failed)?,
        };
        if record.finish == Finish::Open {
            return Ok(None);
        }
        let score = match &record.config.environment {
            Environments::Network(_) => {
                let on = validation(sweep, trial)?;
                let episodes = FixedEpisodes {
                    episodes: sweep.validation.episodes,
                    seed: sweep.validation.seed,
                    measure: Measure::Interval,
                };
                let links = greedy::evaluate_on(&training.dir, "validation", &on, &episodes)
                    .map_err(failed)?;
                let count = links.len().max(1) as f64;
                Some(links.iter().map(|link| link.score).sum::<f64>() / count)
            }
            Environments::Abr(_) => {
                let scores = record.validation.iter().map(|point| point.score);
                scores.reduce(f64::max)
            }
            _ => record
                .held_out
                .iter()
                .filter_map(|point| point.score)
                .reduce(f64::max),
        };
        let Some(score) = score else {
            return Ok(Some(None));
        };
        sum += score;
    }
    Ok(Some(Some(sum / sweep.seeds.len() as f64)))
}

/// The environment that a trial is scored in: the base's on the validation links, observed and
/// acted in as the trial's policy does.
fn validation(sweep: &Sweep, trial: usize) -> Result<Environments, SweepError> {
    let config = sweep.config(trial)?;
    let base: Result<Config, _> = sweep.base.clone().try_into();
    // Settings that the base lacks are the trial's.
    let base = base.unwrap_or_else(|_| config.clone());
    Ok(match (base.environment, config.environment) {
        (Environments::Network(mut base), Environments::Network(own)) => {
            base.policy = own.policy;
            base.constant_start = own.constant_start;
            base.inputs = own.inputs;
            base.on_scenarios(&sweep.validation.scenarios);
            Environments::Network(base)
        }
        (_, own) => own,
    })
}

#[cfg(test)]
mod tests;
