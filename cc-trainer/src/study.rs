//! Studies: comparing variants of a training configuration over several seeds, with their
//! learning curves in one chart, and their final policies on fixed episodes of every link.
//!
//! Variants are listed one by one, or are all combinations of the options of some axes.
//!
//! Each run is an ordinary training run in a directory of its own. It runs on one thread, so that
//! its seed determines it, and as many runs as there are CPUs can proceed in parallel.

mod axes;
mod matrix;
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

pub use axes::{Axis, AxisOption};
pub use matrix::{Condition, Matrix};

use crate::{
    toml_file::{self, TomlFileError},
    train::{
        self, TrainError, Training,
        config::{Config, ConfigError, Overrides},
        greedy::{FixedEpisodes, LinkScore},
        record::{Finish, Record},
    },
};

/// A study, as its file in TOML describes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Title of the study and of its chart.
    pub title: String,
    /// Seeds; every variant is trained with each of them.
    pub seeds: Vec<u64>,
    /// Label of the chart's vertical axis, on which the mean reward per decision is drawn.
    #[serde(default = "reward")]
    pub reward: String,
    /// The reward that is drawn as 1.
    #[serde(default = "one")]
    pub reward_unit: f64,
    /// Lowest value on the vertical axis, in units of `reward_unit`: the parts of curves below it
    /// are not drawn. `None` shows all of the curves.
    #[serde(default)]
    pub floor: Option<f64>,
    /// The episodes on which final policies are judged, with their most likely actions; `None`
    /// judges runs by the rewards of training alone.
    #[serde(default)]
    pub evaluation: Option<FixedEpisodes>,
    /// Networks that final policies are judged behind, which needs `evaluation`; `None` judges
    /// them in the environment that they were trained in.
    #[serde(default)]
    pub matrix: Option<Matrix>,
    /// Final score, in units of `reward_unit`, below which a run counts as collapsed. A mean over
    /// runs that learnt and runs that did not says little about either.
    #[serde(default)]
    pub collapsed_below: Option<f64>,
    /// The training configuration that the variants have in common.
    pub base: toml::Table,
    /// The variants, each with its own settings. Those of the axes come after the ones in the file.
    #[serde(rename = "variant", default)]
    pub variants: Vec<Variant>,
    /// Axes, all combinations of whose options are variants.
    #[serde(rename = "axis", default)]
    pub axes: Vec<Axis>,
}

fn reward() -> String {
    "mean reward of a decision".to_owned()
}

fn one() -> f64 {
    1.0
}

/// A variant of the study's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name of the variant; its runs' directories are called `name-seed`.
    pub name: String,
    /// Title of the chart's panel that shows the variant.
    #[serde(default)]
    pub panel: String,
    /// Label of the variant's curve; `None` stands for its name.
    #[serde(default)]
    pub curve: Option<String>,
    /// The variant's settings: tables are merged with those of the base, other values replace them.
    #[serde(default)]
    pub set: toml::Table,
    /// Name of the variant whose policy is the fast one of a graph: this variant's is the slow one
    /// above it. The other one is trained before, with the same seed, and not judged by itself.
    /// `None` for a policy without another one below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
}

/// Where a study is written, how many of its runs go on at once, and for how long they train.
#[derive(Clone, Debug)]
pub struct Options {
    /// The study's directory, which holds those of its runs.
    pub dir: PathBuf,
    /// Number of runs at the same time.
    pub jobs: usize,
    /// Environment steps of each run; `None` keeps the configuration's.
    pub steps: Option<u64>,
    /// The command line, for the runs' records.
    pub command: String,
}

/// One training run of a study: a variant of the configuration, trained with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyRun {
    /// Index of the run's variant.
    pub variant: usize,
    /// Seed that the run was trained with.
    pub seed: u64,
    /// Settings and learning curve of the run.
    pub record: Record,
    /// The final policy on each link, or under each condition of the matrix; empty without
    /// [`Study::evaluation`], for runs that were stopped, and for fast policies of graphs.
    pub links: Vec<LinkScore>,
}

/// Something that a caller of [`run`] may want to show.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum StudyEvent<'a> {
    /// A run begins, or is continued.
    Begun {
        /// Name of the run, `variant-seed`.
        name: &'a str,
    },
    /// A run has ended, or had ended before.
    Ended {
        /// Name of the run, `variant-seed`.
        name: &'a str,
        /// Settings and learning curve of the run.
        record: &'a Record,
        /// Number of runs that have ended.
        done: usize,
        /// Number of runs in the study.
        all: usize,
    },
}

/// Why a study did not begin, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// The study's file cannot be read, or is no study in TOML.
    #[error(transparent)]
    File(#[from] TomlFileError),
    /// A list is empty or has an entry twice.
    #[error("{what} {wrong}; give at least one, and none of them twice")]
    List {
        /// Name of the list: `variant` or `seeds`.
        what: &'static str,
        /// What is wrong with it.
        wrong: String,
    },
    /// A name cannot be part of a path.
    #[error(
        "`{name}` cannot be the name of {what}: it becomes a file's or a directory's, of letters, \
         digits, `.`, `_` and `-`"
    )]
    Name {
        /// What has the name: a variant or a condition.
        what: &'static str,
        /// The name that the study's file has.
        name: String,
    },
    /// The unit of rewards is not a positive number.
    #[error("reward_unit is {found}, and has to be above 0")]
    Unit {
        /// The value of `reward_unit` in the file.
        found: f64,
    },
    /// The matrix of conditions is of no use.
    #[error("matrix: {what}")]
    Matrix {
        /// The setting, and what it has to be.
        what: String,
    },
    /// Policies are to be judged on no episode.
    #[error("evaluation.episodes is 0; give at least 1, or leave `evaluation` out")]
    NoEpisodes,
    /// A variant cannot be above another.
    #[error("variant `{variant}`: above is `{above}`, and {expected}")]
    Above {
        /// Name of the variant with the fault.
        variant: String,
        /// The name that it gives.
        above: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// A variant does not parse as a configuration.
    #[error("variant `{variant}`: {source}")]
    Variant {
        /// Name of the variant with the fault.
        variant: String,
        /// What is wrong, with the setting's key.
        source: Box<toml::de::Error>,
    },
    /// A variant has a setting out of its range.
    #[error("variant `{variant}`: {source}")]
    Setting {
        /// Name of the variant with the fault.
        variant: String,
        /// The setting and the values it may have.
        source: ConfigError,
    },
    /// A run ended with an error.
    #[error("{run}: {source}")]
    Run {
        /// Name of the run, `variant-seed`.
        run: String,
        /// Why the run did not begin, or ended early.
        source: Box<TrainError>,
    },
    /// A result could not be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// The file that could not be written.
        path: PathBuf,
        /// The error that the operating system returned.
        source: io::Error,
    },
}

impl Study {
    /// Reads a study from a file in TOML, and checks it.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, or with the variant or setting that is wrong.
    pub fn load(path: &Path) -> Result<Self, StudyError> {
        let mut study: Self = toml_file::read(path)?;
        study.variants.extend(axes::combinations(&study.axes));
        study.axes.clear();
        study.validate()?;
        Ok(study)
    }

    /// The configuration of a variant, for a run on one thread.
    pub(crate) fn config(&self, variant: &Variant) -> Result<Config, StudyError> {
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
        if self.evaluation.is_some_and(|own| own.episodes == 0) {
            return Err(StudyError::NoEpisodes);
        }
        if !(self.reward_unit.is_finite() && self.reward_unit > 0.0) {
            return Err(StudyError::Unit {
                found: self.reward_unit,
            });
        }
        if self.matrix.is_some() && self.evaluation.is_none() {
            return Err(StudyError::Matrix {
                what: "`evaluation` has to say on how many episodes policies are judged".to_owned(),
            });
        }
        for variant in &self.variants {
            check_name("a variant", &variant.name)?;
            let config = self.config(variant)?;
            if let Some(matrix) = &self.matrix {
                matrix.validate(&config, variant)?;
            }
            self.validate_above(variant, &config)?;
            let resolved = config.resolve(&Overrides::default());
            resolved.map_err(|source| StudyError::Setting {
                variant: variant.name.clone(),
                source,
            })?;
        }
        Ok(())
    }

    /// Checks that a variant that is above another can be the slow part of a graph.
    fn validate_above(&self, variant: &Variant, config: &Config) -> Result<(), StudyError> {
        let Some(above) = &variant.above else {
            return Ok(());
        };
        let wrong = |expected| StudyError::Above {
            variant: variant.name.clone(),
            above: above.clone(),
            expected,
        };
        let fast = self.variants.iter().find(|one| one.name == *above);
        let fast = fast.ok_or_else(|| wrong("has to name another variant"))?;
        if fast.above.is_some() {
            return Err(wrong(
                "that one is above another itself; a graph has two policies",
            ));
        }
        let is_of_graph = |config: &Config| config.environment.is_of_graph();
        match is_of_graph(config) && is_of_graph(&self.config(fast)?) {
            true => Ok(()),
            false => Err(wrong("both have to set `environment.guide`")),
        }
    }

    /// The variants in the order in which their runs of a seed have to be done: each with those
    /// above it.
    fn graphs(&self) -> Vec<Vec<usize>> {
        let below = self.variants.iter().enumerate();
        let below = below.filter(|(_, variant)| variant.above.is_none());
        below
            .map(|(place, fast)| {
                let above = self.variants.iter().enumerate();
                let above = above.filter(|(_, one)| one.above.as_ref() == Some(&fast.name));
                let above = above.map(|(place, _)| place);
                [place].into_iter().chain(above).collect()
            })
            .collect()
    }

    /// Whether another variant is above this one, so that it is judged as part of the graph.
    fn is_below(&self, variant: &Variant) -> bool {
        let mut others = self.variants.iter();
        others.any(|one| one.above.as_ref() == Some(&variant.name))
    }
}

/// Name of the run of a variant with a seed, and of its directory in that of the study.
fn run_name(variant: &Variant, seed: u64) -> String {
    format!("{}-{seed}", variant.name)
}

/// Checks that a list is not empty and has no entry twice.
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

/// Checks that a name can be part of a path.
fn check_name(what: &'static str, name: &str) -> Result<(), StudyError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
        let name = name.to_owned();
        return Err(StudyError::Name { what, name });
    }
    Ok(())
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

/// Trains every variant with every seed, and calls `watch` with the progress.
///
/// Finished runs in the study's directory are kept, interrupted ones are continued. Once `stop` is
/// true, runs end early; those that had not begun are not among the results.
///
/// # Errors
///
/// Returns the error of the first run that failed; no other run begins after it.
pub fn run(
    study: &Study,
    options: &Options,
    stop: &AtomicBool,
    watch: &(dyn Fn(StudyEvent<'_>) + Sync),
) -> Result<Vec<StudyRun>, StudyError> {
    study.validate()?;
    // All variants with the first seed, then all with the next: a study that is ended early has
    // runs of every variant.
    // What is above another follows it on the same thread.
    let graphs = study.graphs();
    let all: Vec<(&[usize], u64)> = study
        .seeds
        .iter()
        .flat_map(|&seed| graphs.iter().map(move |graph| (&**graph, seed)))
        .collect();
    let count = study.variants.len() * study.seeds.len();
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new((Vec::new(), None));
    let failed = AtomicBool::new(false);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
            let Some(&(graph, seed)) = all.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            for &variant in graph {
                if stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed) {
                    return;
                }
                let name = run_name(&study.variants[variant], seed);
                watch(StudyEvent::Begun { name: &name });
                let result = one_run(study, options, &study.variants[variant], seed, stop);
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                match result {
                    Ok((record, links)) => {
                        watch(StudyEvent::Ended {
                            name: &name,
                            record: &record,
                            done: ended.fetch_add(1, Ordering::Relaxed) + 1,
                            all: count,
                        });
                        results.0.push(StudyRun {
                            variant,
                            seed,
                            record,
                            links,
                        });
                    }
                    Err(error) => {
                        failed.store(true, Ordering::Relaxed);
                        results.1.get_or_insert(error);
                    }
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
) -> Result<(Record, Vec<LinkScore>), StudyError> {
    let name = run_name(variant, seed);
    let failed = |source| StudyError::Run {
        run: name.clone(),
        source: Box::new(source),
    };
    let mut config = study.config(variant)?;
    let fast = study
        .variants
        .iter()
        .find(|one| variant.above.as_ref() == Some(&one.name));
    if let Some(fast) = fast.map(|fast| options.dir.join(run_name(fast, seed)))
        && let Some(environment) = config.environment.above(fast)
    {
        config.environment = environment;
    }
    let training = Training {
        config: Some(config.clone()),
        overrides: Overrides {
            steps: options.steps,
            seed: Some(seed),
            ..Overrides::default()
        },
        dir: options.dir.join(&name),
        command: options.command.clone(),
        listening: None,
        metrics: None,
        store: None,
    };
    let record = match done(&training) {
        Some(record) => record,
        None => train::train(&training, stop, &mut |_| {}).map_err(failed)?,
    };
    let links = match &study.evaluation {
        Some(episodes) if record.finish != Finish::Open && !study.is_below(variant) => {
            match &study.matrix {
                Some(matrix) => matrix.judge(&training.dir, &config, episodes),
                None => train::greedy::evaluate(&training.dir, episodes),
            }
            .map_err(failed)?
        }
        _ => Vec::new(),
    };
    Ok((record, links))
}

/// The record of a finished run; `None` if there is none, or if training has to report
/// what is wrong with it.
fn done(training: &Training) -> Option<Record> {
    let text = fs::read_to_string(training.dir.join("train.json")).ok()?;
    let record: Record = serde_json::from_str(&text).ok()?;
    let config = training.config.clone()?.resolve(&training.overrides).ok()?;
    let is_done = record.finish == Finish::Steps && record.config.steps == config.steps;
    (is_done && config.differences(&record.config).is_empty()).then_some(record)
}

#[cfg(test)]
mod tests;
