//! Communication-aware learning: what policies lose when a network comes between them and what
//! they control, by how they were trained.
//!
//! This is the evaluation of CALF: a [study](crate::study)'s variants are regimes (trained without
//! a network, with delay alone, with delay, jitter and loss, with networks drawn per episode), and
//! its [matrix](crate::study::Matrix) has the conditions that they are used under. All of that is
//! in virtual time; [`live`] runs the trained policies in real time.

pub mod live;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use cc_testbed::{
    league::Estimate,
    report::bars::{BarPanel, Bars},
    summary::{Host, table::figure, utc_now},
};
use serde::Serialize;

use crate::{
    ope::student_quantile,
    study::{Condition, Matrix, Study, StudyError, StudyRun},
};

/// Width of a panel of the picture, pixels.
const PANEL: f64 = 200.0;

/// The scores of regimes under conditions, as `calf.json` has them.
#[derive(Clone, Debug, Serialize)]
pub struct CalfResults {
    /// Version of cc-trainer that made them.
    pub version: String,
    /// When they were made: UTC, as in RFC 3339.
    pub date: String,
    /// The command line that made them.
    pub command: String,
    /// The host that they were made on.
    pub host: Host,
    /// Title of the study ([`Study::title`]).
    pub title: String,
    /// What a score is ([`Study::reward`]).
    pub reward: String,
    /// The conditions, and those that are compared.
    pub matrix: Matrix,
    /// The configuration that all regimes have in common.
    pub base: toml::Table,
    /// The regimes in the study's order; those without a judged run are left out.
    pub regimes: Vec<Regime>,
}

/// A regime's scores, with a cell for each condition.
#[derive(Clone, Debug, Serialize)]
pub struct Regime {
    /// Name of the regime: of the study's variant.
    pub name: String,
    /// The settings in which the regime differs from the study's base.
    pub set: toml::Table,
    /// Seeds of the runs that were judged.
    pub seeds: Vec<u64>,
    /// A cell for each condition, in the matrix's order.
    pub cells: Vec<Cell>,
}

/// The scores of a regime under one condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Score of each run, in the order of their seeds.
    pub scores: Vec<f64>,
    /// Mean score over the runs.
    pub mean: f64,
    /// Standard deviation of the scores; `None` for one run.
    pub deviation: Option<f64>,
    /// What is lost relative to the clean condition, from the means: 0.15 for 15 %.
    pub gap: f64,
}

impl Cell {
    /// The cell of these scores, where those of the clean condition have the mean `clean`.
    fn new(scores: Vec<f64>, clean: f64, logarithmic: bool) -> Self {
        let count = scores.len() as f64;
        let mean = mean(&scores);
        let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
        Self {
            mean,
            deviation: (scores.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            gap: match logarithmic {
                true => 1.0 - (mean - clean).exp(),
                false => 1.0 - mean / clean,
            },
            scores,
        }
    }

    /// The mean with Student's 95 % interval over the seeds.
    fn estimate(&self) -> Estimate {
        let count = self.scores.len() as f64;
        let margin = self
            .deviation
            .map(|deviation| student_quantile(0.975, count - 1.0) * deviation / count.sqrt());
        Estimate {
            mean: self.mean,
            low: margin.map(|margin| self.mean - margin),
            high: margin.map(|margin| self.mean + margin),
        }
    }
}

fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}

impl CalfResults {
    /// Collects the scores of a study's runs; `None` for a study without a matrix.
    pub fn new(study: &Study, runs: &[StudyRun], command: &str) -> Option<Self> {
        let matrix = study.matrix.as_ref()?;
        let clean = matrix
            .conditions
            .iter()
            .position(|one| one.name == matrix.clean)?;
        let regime = |(place, variant): (usize, &crate::study::Variant)| {
            let judged = |run: &&StudyRun| {
                run.variant == place && run.links.len() == matrix.conditions.len()
            };
            let runs: Vec<&StudyRun> = runs.iter().filter(judged).collect();
            let scores = |condition: usize| -> Vec<f64> {
                let of = |run: &&StudyRun| run.links[condition].score / study.reward_unit;
                runs.iter().map(of).collect()
            };
            let best = mean(&scores(clean));
            let cells = (0..matrix.conditions.len())
                .map(|condition| Cell::new(scores(condition), best, matrix.logarithmic));
            (!runs.is_empty()).then(|| Regime {
                name: variant.name.clone(),
                set: variant.set.clone(),
                seeds: runs.iter().map(|run| run.seed).collect(),
                cells: cells.collect(),
            })
        };
        Some(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: utc_now(),
            command: command.to_owned(),
            host: Host::probe(),
            title: study.title.clone(),
            reward: study.reward.clone(),
            matrix: matrix.clone(),
            base: study.base.clone(),
            regimes: study
                .variants
                .iter()
                .enumerate()
                .filter_map(regime)
                .collect(),
        })
    }

    /// Writes `calf.json`, `calf.md` and `calf.svg` to a directory, and returns their paths.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 3], StudyError> {
        let json = serde_json::to_string_pretty(self)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        let files = [
            ("calf.json", json + "\n"),
            ("calf.md", self.table()),
            ("calf.svg", self.bars().svg(&self.title)),
        ];
        let paths = files.map(|(name, text)| {
            let path = dir.join(name);
            let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text));
            match written {
                Ok(()) => Ok(path),
                Err(source) => Err(StudyError::Write { path, source }),
            }
        });
        let [json, table, picture] = paths;
        Ok([json?, table?, picture?])
    }

    /// Two tables in Markdown with a row per condition and a column per regime: mean and standard
    /// deviation of the scores over the seeds, and what is lost relative to the clean condition.
    pub fn table(&self) -> String {
        let of = |heading: &str, show: &dyn Fn(&Cell) -> String| {
            let names: String = (self.regimes.iter())
                .map(|regime| format!(" {} |", regime.name))
                .collect();
            let rule = "---|".repeat(self.regimes.len());
            let mut table = format!("| {heading} |{names}\n|---|{rule}\n");
            for (place, Condition { name, .. }) in self.matrix.conditions.iter().enumerate() {
                let cells: String = (self.regimes.iter())
                    .map(|regime| format!(" {} |", show(&regime.cells[place])))
                    .collect();
                // Writing to a string does not fail.
                let _ = writeln!(table, "| {name} |{cells}");
            }
            table
        };
        let score = |cell: &Cell| match cell.deviation {
            Some(deviation) => format!("{} ± {}", figure(cell.mean), figure(deviation)),
            None => figure(cell.mean),
        };
        let lost = |cell: &Cell| format!("{:.0} %", 100.0 * cell.gap);
        format!("{}\n{}", of(&self.reward, &score), of("lost", &lost))
    }

    /// The headline of each regime: what it loses from the clean to the degraded condition, as a
    /// share of the score.
    pub fn gaps(&self) -> Vec<(&str, f64)> {
        let degraded = |one: &Condition| one.name == self.matrix.degraded;
        let place = self.matrix.conditions.iter().position(degraded);
        let gap = |regime: &Regime| {
            regime
                .cells
                .get(place.unwrap_or(usize::MAX))
                .map(|cell| cell.gap)
        };
        (self.regimes.iter())
            .filter_map(|regime| Some((regime.name.as_str(), gap(regime)?)))
            .collect()
    }

    /// The picture: a panel per regime with a bar per condition, and Student's 95 % intervals.
    /// Logarithms are drawn as what they are the logarithms of.
    pub fn bars(&self) -> Bars {
        let shown = |estimate: Estimate| match self.matrix.logarithmic {
            true => estimate.map(f64::exp),
            false => estimate,
        };
        let panel = |regime: &Regime| BarPanel {
            title: regime.name.clone(),
            bars: (regime.cells.iter())
                .map(|cell| Some(shown(cell.estimate())))
                .collect(),
        };
        Bars {
            names: (self.matrix.conditions.iter())
                .map(|condition| condition.name.clone())
                .collect(),
            panels: self.regimes.iter().map(panel).collect(),
            width: PANEL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_share_of_the_clean_score_or_follows_from_a_logarithm() {
        let cell = Cell::new(vec![100.0, 140.0], 500.0, false);
        assert_eq!((cell.mean, cell.gap), (120.0, 0.76));
        assert!((cell.deviation.expect("two") - 28.284).abs() < 1e-3);
        let estimate = cell.estimate();
        // 12.706 is the quantile of one degree of freedom.
        assert!((estimate.high.expect("two") - (120.0 + 12.706 * 20.0)).abs() < 0.1);
        // Half the power is ln 2 less.
        let cell = Cell::new(vec![-1.0 - 2.0_f64.ln()], -1.0, true);
        assert!((cell.gap - 0.5).abs() < 1e-12 && cell.deviation.is_none());
    }
}
