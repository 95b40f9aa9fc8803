//! Compares ways to learn: every variant of a training configuration, with several seeds, and their curves in one picture.
//!
//! Each run is an ordinary training run in a directory of its own, on one thread, so that its seed fixes it and as many as
//! there are cores can go on side by side.

pub mod results;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use serde::{Deserialize, Serialize};

use crate::train::{
    self, TrainError, Training,
    config::{Config, ConfigError, Overrides},
    record::{Finish, Record},
};

/// What is compared.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// What the picture is called.
    pub title: String,
    /// Of each variant, a run with each.
    pub seeds: Vec<u64>,
    /// What a decision earns, in the picture's words.
    #[serde(default = "reward")]
    pub reward: String,
    /// A reward of this much is 1 in the picture.
    #[serde(default = "one")]
    pub reward_unit: f64,
    /// Less than this is below the picture.
    #[serde(default)]
    pub floor: Option<f64>,
    /// A configuration, as `train` takes it.
    pub base: toml::Table,
    /// What differs from it.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
}

fn reward() -> String {
    "mean reward of a decision".to_owned()
}

fn one() -> f64 {
    1.0
}

/// A way to learn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its runs' directories are called so, with the seed behind.
    pub name: String,
    /// The panel of the picture that it is in.
    #[serde(default)]
    pub panel: String,
    /// What its curve is called; by default as itself.
    #[serde(default)]
    pub curve: Option<String>,
    /// Settings of its own: tables are merged with the base's, everything else takes its place.
    #[serde(default)]
    pub set: toml::Table,
}

/// How a study is carried out.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its directory.
    pub dir: PathBuf,
    /// Runs at the same time.
    pub jobs: usize,
    /// Steps of each run, instead of the configuration's.
    pub steps: Option<u64>,
    /// The command line, for the record.
    pub command: String,
}

/// A run of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Place of its variant.
    pub variant: usize,
    /// Its seed.
    pub seed: u64,
    /// How it went.
    pub record: Record,
}

/// What a study tells while it goes on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A run begins, or goes on.
    Begun {
        /// Its name.
        name: &'a str,
    },
    /// A run is over.
    Ended {
        /// Its name.
        name: &'a str,
        /// How it went.
        record: &'a Record,
        /// Runs that are over.
        done: usize,
        /// Of so many.
        all: usize,
    },
}

/// Why a study did not begin, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// Its file cannot be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Its file is no study.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: Box<toml::de::Error>,
    },
    /// A list that has to have something in it, and has not, or has something twice.
    #[error("{what} {wrong}; give at least one, and none of them twice")]
    List {
        /// The list.
        what: &'static str,
        /// What it is.
        wrong: String,
    },
    /// A variant's name cannot be a directory's.
    #[error(
        "`{name}` cannot be the name of a variant: it becomes a directory's, of letters, digits, `.`, `_` and `-`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// What rewards are divided by.
    #[error("reward_unit is {found}, and has to be above 0")]
    Unit {
        /// Its value.
        found: f64,
    },
    /// A variant is no configuration.
    #[error("variant `{variant}`: {source}")]
    Variant {
        /// Its name.
        variant: String,
        /// What is wrong.
        source: Box<toml::de::Error>,
    },
    /// A variant has a setting out of its range.
    #[error("variant `{variant}`: {source}")]
    Setting {
        /// Its name.
        variant: String,
        /// What is wrong.
        source: ConfigError,
    },
    /// A run failed.
    #[error("{run}: {source}")]
    Run {
        /// Its name.
        run: String,
        /// Why.
        source: Box<TrainError>,
    },
    /// A result could not be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Study {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read or is no study; says where and which variant.
    pub fn load(path: &Path) -> Result<Self, StudyError> {
        let text = fs::read_to_string(path).map_err(|source| StudyError::Read {
            path: path.to_owned(),
            source,
        })?;
        let study: Self = toml::from_str(&text).map_err(|source| StudyError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        study.validate()?;
        Ok(study)
    }

    /// The configuration of a variant, for one thread.
    ///
    /// # Errors
    ///
    /// Says what does not fit.
    fn config(&self, variant: &Variant) -> Result<Config, StudyError> {
        let mut table = self.base.clone();
        merge(&mut table, &variant.set);
        let mut config: Config = table.try_into().map_err(|source| StudyError::Variant {
            variant: variant.name.clone(),
            source: Box::new(source),
        })?;
        config.actors = Some(0);
        config.threads = Some(1);
        Ok(config)
    }

    fn validate(&self) -> Result<(), StudyError> {
        let names: Vec<&str> = self.variants.iter().map(|one| one.name.as_str()).collect();
        check("variant", &names)?;
        check("seeds", &self.seeds)?;
        if !(self.reward_unit.is_finite() && self.reward_unit > 0.0) {
            return Err(StudyError::Unit {
                found: self.reward_unit,
            });
        }
        for variant in &self.variants {
            let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let name = &variant.name;
            if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
                return Err(StudyError::Name { name: name.clone() });
            }
            let resolved = self.config(variant)?.resolve(&Overrides::default());
            resolved.map_err(|source| StudyError::Setting {
                variant: name.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// Something, and nothing twice.
fn check<T: Ord + std::fmt::Debug>(what: &'static str, list: &[T]) -> Result<(), StudyError> {
    let mut seen = BTreeSet::new();
    let twice = list.iter().find(|&one| !seen.insert(one));
    let wrong = match twice {
        Some(twice) => format!("has {twice:?} twice"),
        None if list.is_empty() => "is empty".to_owned(),
        None => return Ok(()),
    };
    Err(StudyError::List { what, wrong })
}

fn merge(into: &mut toml::Table, from: &toml::Table) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            _ => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Trains every variant with every seed, and tells `told` how it goes. Runs that the directory holds are kept; those that
/// were ended early go on. Once `stop` is true, runs end early; those that had not begun are not among the results.
///
/// # Errors
///
/// The first run that failed; no other begins after it.
pub fn run(
    study: &Study,
    options: &Options,
    stop: &AtomicBool,
    told: &(dyn Fn(Event<'_>) + Sync),
) -> Result<Vec<Run>, StudyError> {
    study.validate()?;
    // Every variant with the first seed, then every one with the next: a study that is ended early has something of each.
    let all: Vec<(usize, u64)> = study
        .seeds
        .iter()
        .flat_map(|&seed| (0..study.variants.len()).map(move |variant| (variant, seed)))
        .collect();
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new((Vec::new(), None));
    let failed = AtomicBool::new(false);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
            let Some(&(variant, seed)) = all.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let name = format!("{}-{seed}", study.variants[variant].name);
            told(Event::Begun { name: &name });
            let result = one_run(study, options, &study.variants[variant], seed, stop);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(record) => {
                    told(Event::Ended {
                        name: &name,
                        record: &record,
                        done: ended.fetch_add(1, Ordering::Relaxed) + 1,
                        all: all.len(),
                    });
                    results.0.push(Run {
                        variant,
                        seed,
                        record,
                    });
                }
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    results.1.get_or_insert(error);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs.clamp(1, all.len()) {
            scope.spawn(work);
        }
    });
    let (mut runs, error) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    runs.sort_by_key(|run| (run.variant, run.seed));
    error.map_or(Ok(runs), Err)
}

fn one_run(
    study: &Study,
    options: &Options,
    variant: &Variant,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Record, StudyError> {
    let name = format!("{}-{seed}", variant.name);
    let training = Training {
        config: Some(study.config(variant)?),
        overrides: Overrides {
            steps: options.steps,
            seed: Some(seed),
            ..Overrides::default()
        },
        dir: options.dir.join(&name),
        command: options.command.clone(),
    };
    if let Some(record) = done(&training) {
        return Ok(record);
    }
    train::train(&training, stop, &mut |_| {}).map_err(|source| StudyError::Run {
        run: name,
        source: Box::new(source),
    })
}

/// The record of a run that has nothing left to do. Whatever is wrong with it, training says.
fn done(training: &Training) -> Option<Record> {
    let text = fs::read_to_string(training.dir.join("train.json")).ok()?;
    let record: Record = serde_json::from_str(&text).ok()?;
    let config = training.config.clone()?.resolve(&training.overrides).ok()?;
    let is_done = record.finish == Finish::Steps && record.config.steps == config.steps;
    (is_done && config.differences(&record.config).is_empty()).then_some(record)
}

#[cfg(test)]
mod tests;
