//! The results of a sweep: its trials by their scores, and the best one's configuration.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use cc_core::durable::replace_durably;
use cc_testbed::summary::{Host, table::figure, utc_now};
use serde::Serialize;

use super::{Sweep, SweepError, Trial, Validation};

/// The results of a sweep, as `sweep.json` has them.
#[derive(Clone, Debug, Serialize)]
pub struct SweepResults {
    /// Version of cc-trainer that made them.
    pub version: String,
    /// When they were made: UTC, as in RFC 3339.
    pub date: String,
    /// The command line of the sweep.
    pub command: String,
    /// The host that the sweep ran on.
    pub host: Host,
    /// Title of the sweep ([`Sweep::title`]).
    pub title: String,
    /// Environment steps of the rungs; empty if all trials ran for the configuration's.
    pub rungs: Vec<u64>,
    /// Seeds that each trial was trained with.
    pub seeds: Vec<u64>,
    /// What trials in simulated networks were scored on.
    pub validation: Validation,
    /// The trials, the best first: those that got further before the others, then by their score.
    pub trials: Vec<TrialResults>,
}

/// The results of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialResults {
    /// Number of the trial, from 0.
    pub number: usize,
    /// What was drawn for it.
    pub settings: BTreeMap<String, toml::Value>,
    /// Score after each rung that it reached, the larger the better; `None` where it diverged.
    pub scores: Vec<Option<f64>>,
}

impl SweepResults {
    /// Collects the results of a sweep from its trials.
    pub fn new(sweep: &Sweep, trials: &[Trial], command: &str) -> Self {
        let of = |trial: &Trial| TrialResults {
            number: trial.number,
            settings: sweep.settings(trial.number).into_iter().collect(),
            scores: trial.scores.clone(),
        };
        let mut trials: Vec<_> = trials.iter().map(of).collect();
        trials.sort_by(|a, b| {
            let rank = |own: &TrialResults| own.scores.iter().flatten().count();
            let last = |own: &TrialResults| own.scores.iter().flatten().last().copied();
            let score = |own| last(own).unwrap_or(f64::NEG_INFINITY);
            (rank(b).cmp(&rank(a)))
                .then(score(b).total_cmp(&score(a)))
                .then(a.number.cmp(&b.number))
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: utc_now(),
            command: command.to_owned(),
            host: Host::probe(),
            title: sweep.title.clone(),
            rungs: sweep.rungs.clone(),
            seeds: sweep.seeds.clone(),
            validation: sweep.validation.clone(),
            trials,
        }
    }

    /// The best trial; `None` while none has a score.
    pub fn best(&self) -> Option<&TrialResults> {
        let best = self.trials.first()?;
        best.scores.iter().any(Option::is_some).then_some(best)
    }

    /// Writes `sweep.json`, and `best.toml` with the best trial's configuration if there is one, to
    /// the directory `dir`, and returns their paths.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be written.
    pub fn write(&self, sweep: &Sweep, dir: &Path) -> Result<Vec<PathBuf>, SweepError> {
        let json = serde_json::to_vec_pretty(self)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        let mut paths = vec![dir.join("sweep.json")];
        replace_durably(&paths[0], &json)?;
        if let Some(best) = self.best() {
            let mut table = sweep.table(best.number);
            if let Some(&steps) = sweep.rungs.last() {
                table.insert("steps".to_owned(), (steps as i64).into());
            }
            let text = format!(
                "# The best of {} trials of `{}`: trial {}, with a score of {}.\n{table}",
                self.trials.len(),
                self.title,
                best.number,
                best.scores
                    .iter()
                    .flatten()
                    .last()
                    .copied()
                    .map_or(String::new(), figure),
            );
            paths.push(dir.join("best.toml"));
            replace_durably(&paths[1], text.as_bytes())?;
        }
        Ok(paths)
    }

    /// A table in Markdown with one row per trial, the best first.
    pub fn table(&self) -> String {
        let keys: Vec<&String> =
            (self.trials.first()).map_or_else(Vec::new, |first| first.settings.keys().collect());
        let rungs = self.rungs.len().max(1);
        let mut table = String::from("| trial |");
        let mut line = String::from("\n|---|");
        let steps = |rung: usize| match self.rungs.get(rung) {
            Some(steps) => format!(" score after {steps} |"),
            None => " score |".to_owned(),
        };
        let heads = keys.iter().map(|key| format!(" {key} |"));
        for head in heads.chain((0..rungs).map(steps)) {
            table.push_str(&head);
            line.push_str("---|");
        }
        table += &line;
        table.push('\n');
        for trial in &self.trials {
            let _ = write!(table, "| {} |", trial.number);
            for value in trial.settings.values() {
                let _ = match value {
                    toml::Value::Float(number) => write!(table, " {number:.3e} |"),
                    other => write!(table, " {other} |"),
                };
            }
            for rung in 0..rungs {
                let score = match trial.scores.get(rung) {
                    None => "–".to_owned(),
                    Some(None) => "diverged".to_owned(),
                    Some(Some(score)) => figure(*score),
                };
                let _ = write!(table, " {score} |");
            }
            table.push('\n');
        }
        table
    }
}
