//! Tabular Q-learning over a coarse state, the learner that Pensieve's section 5.4 compares with.
//!
//! The state is the throughput of the last chunk, the buffer and the last bitrate, each in a few
//! classes: what a table can hold, and much less than what a network reads.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cc_abr::{
    Chooser, View,
    ladder::{Actions, LadderError},
};
use cc_core::regular_file;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use crate::environment::{
    Environment, Turn,
    abr::{AbrEnvironment, AbrWorld},
};

/// Largest file of a table, bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Upper ends of the classes of throughput, Mbit/s; there is one more above the last.
const MBPS: [f64; 11] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.4, 1.9, 2.5, 3.2, 4.3, 6.0];
/// Upper ends of the classes of the buffer, s; there is one more above the last.
const BUFFER_S: [f64; 9] = [4.0, 6.0, 8.0, 11.0, 14.0, 18.0, 24.0, 32.0, 45.0];

/// Settings of the learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TabularSettings {
    /// Number of decisions to learn from.
    pub steps: u64,
    /// Discount per chunk, γ.
    pub discount: f64,
    /// Step size at a cell's first visit; it falls as visits^-0.6, which converges.
    pub learning_rate: f64,
    /// Probability of a random action at the end; it falls linearly from 1 to this until half of
    /// the steps.
    pub exploration: f64,
    /// Determines everything random.
    pub seed: u64,
}

impl Default for TabularSettings {
    fn default() -> Self {
        Self {
            steps: 2_000_000,
            discount: 0.99,
            learning_rate: 0.5,
            exploration: 0.05,
            seed: 1,
        }
    }
}

/// The value of each action in each class of states, as a file of JSON has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QTable {
    /// Bitrates of the actions, kbit/s, ascending.
    pub kbps: Vec<f64>,
    /// Upper ends of the classes of the last chunk's throughput, Mbit/s, ascending.
    pub mbps: Vec<f64>,
    /// Upper ends of the classes of the buffer, s, ascending.
    pub buffer_s: Vec<f64>,
    /// `[throughput, buffer, last action, action]`: discounted rewards that are expected.
    pub values: Vec<f64>,
    /// What it was learnt from, in words.
    pub provenance: String,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The operating system could not read the file.
    #[error("{0}")]
    Read(#[from] std::io::Error),
    /// The file is no JSON of a table.
    #[error("{0}; write one with `cc-trainer abr tabular`")]
    Json(#[from] serde_json::Error),
    /// The bitrates of the actions cannot be used.
    #[error("kbps: {0}")]
    Ladder(#[from] LadderError),
    /// The table has not as many values as its classes and actions ask for.
    #[error("{found} values, and its classes and actions ask for {expected}; it is damaged")]
    Size {
        /// Number of values in the file.
        found: usize,
        /// Number of values that there should be.
        expected: usize,
    },
    /// A value is not a finite number, or the ends of classes do not rise.
    #[error("{0}; it is damaged, learn it again")]
    Values(&'static str),
}

impl QTable {
    fn zero(kbps: Vec<f64>) -> Self {
        let mut table = Self {
            kbps,
            mbps: MBPS.to_vec(),
            buffer_s: BUFFER_S.to_vec(),
            values: Vec::new(),
            provenance: String::new(),
        };
        table.values = vec![0.0; table.cells() * table.kbps.len()];
        table
    }

    /// Learns a table in the sessions of a world, until `stop` is true or all steps are done.
    /// `watch` is called now and then with the number of steps done.
    pub fn learn(
        world: Arc<AbrWorld>,
        settings: &TabularSettings,
        stop: &AtomicBool,
        watch: &dyn Fn(u64),
    ) -> Self {
        let mut table = Self::zero(world.config().actions.clone());
        let actions = table.kbps.len();
        table.provenance = format!(
            "{} steps of tabular Q-learning on {}, seed {}",
            settings.steps,
            world.summary(),
            settings.seed
        );
        let mut visits = vec![0_u32; table.values.len()];
        let mut random = StdRng::seed_from_u64(settings.seed);
        let mut environment = AbrEnvironment::new(Arc::clone(&world), settings.seed);
        let mut turn = Turn::default();
        let mut before: Option<usize> = None;
        for step in 0..settings.steps {
            if step % 4096 == 0 {
                watch(step);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            environment.next(&mut turn);
            let Some(view) = environment.view() else {
                unreachable!("the turn has begun a session");
            };
            let row = table.cell(&view, world.actions()) * actions;
            let may = |action: &usize| turn.allowed.is_empty() || turn.allowed[*action];
            let allowed: Vec<usize> = (0..actions).filter(may).collect();
            let best = table.best(row, &allowed);
            if let Some(place) = before {
                let next = match turn.first {
                    Some(_) => 0.0,
                    None => settings.discount * table.values[row + best],
                };
                visits[place] += 1;
                let rate = settings.learning_rate * f64::from(visits[place]).powf(-0.6);
                let target = f64::from(turn.reward) + next;
                table.values[place] += rate * (target - table.values[place]);
            }
            let done = 2.0 * step as f64 / settings.steps as f64;
            let explore = (1.0 - done).max(settings.exploration);
            let action = match random.random_range(0.0..1.0) < explore {
                true => allowed[random.random_range(0..allowed.len())],
                false => best,
            };
            before = Some(row + action);
            environment.act(action);
        }
        watch(settings.steps);
        table
    }

    /// Reads a table from its file.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the file.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let text = regular_file::read_to_string(path, MAX_BYTES)?;
        let table: Self = serde_json::from_str(&text)?;
        table.check()?;
        Ok(table)
    }

    fn check(&self) -> Result<(), TableError> {
        Actions::new(self.kbps.clone())?;
        for ends in [&self.mbps, &self.buffer_s] {
            if !ends.is_sorted_by(|one, next| one < next) {
                return Err(TableError::Values("the ends of classes do not rise"));
            }
        }
        let (found, expected) = (self.values.len(), self.cells() * self.kbps.len());
        if found != expected {
            return Err(TableError::Size { found, expected });
        }
        match self.values.iter().all(|value| value.is_finite()) {
            true => Ok(()),
            false => Err(TableError::Values("a value is not finite")),
        }
    }

    /// Makes a chooser for a video with these bitrates, kbit/s, ascending.
    ///
    /// # Errors
    ///
    /// Returns an error when the video has a bitrate that is none of the table's actions.
    pub fn chooser(self: &Arc<Self>, kbps: &[f64]) -> Result<Box<dyn Chooser>, LadderError> {
        let actions = Actions::new(self.kbps.clone())?;
        let qualities = actions.qualities(kbps)?;
        let allowed = (0..qualities.len()).filter(|&action| qualities[action].is_some());
        Ok(Box::new(TableChooser {
            table: Arc::clone(self),
            allowed: allowed.collect(),
            qualities,
            actions,
        }))
    }

    /// Number of classes of states.
    fn cells(&self) -> usize {
        (self.mbps.len() + 1) * (self.buffer_s.len() + 1) * self.kbps.len()
    }

    /// The class of the state before a decision.
    fn cell(&self, view: &View<'_>, actions: &Actions) -> usize {
        let class = |ends: &[f64], value: f64| ends.partition_point(|end| *end < value);
        let last = view.history.last().copied().unwrap_or_default();
        let mbps = class(&self.mbps, last.mbps());
        let buffer = class(&self.buffer_s, view.buffer_s);
        // Every bitrate of the video is one of the actions.
        let of_last = |kbps: &f64| *kbps == view.kbps[last.quality];
        let action = actions.kbps().iter().position(of_last).unwrap_or(0);
        (mbps * (self.buffer_s.len() + 1) + buffer) * self.kbps.len() + action
    }

    /// The best of some actions, the first of equal ones, in the row that begins at `row`.
    fn best(&self, row: usize, allowed: &[usize]) -> usize {
        let value = |action: usize| self.values[row + action];
        let better = |best: usize, action: usize| match value(action) > value(best) {
            true => action,
            false => best,
        };
        allowed.iter().copied().reduce(better).unwrap_or(0)
    }
}

/// A table for the bitrates of one video.
#[derive(Debug)]
struct TableChooser {
    table: Arc<QTable>,
    actions: Actions,
    /// `[A]`: quality of each action; `None` for those that the video lacks.
    qualities: Vec<Option<usize>>,
    /// The actions that the video has.
    allowed: Vec<usize>,
}

impl Chooser for TableChooser {
    fn choose(&self, view: &View<'_>) -> usize {
        let row = self.table.cell(view, &self.actions) * self.table.kbps.len();
        let action = self.table.best(row, &self.allowed);
        // Only actions that the video has are allowed.
        self.qualities[action].unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use cc_abr::{
        baseline::Fixed,
        generate::Family,
        play::{Score, play},
        qoe::{Metric, Qoe},
        session::{Rules, Session},
        trace::Trace,
        video::{ENVIVIO_KBPS, Video},
    };

    use super::*;
    use crate::environment::abr::{AbrConfig, TraceSource};

    #[test]
    fn a_steady_link_is_learnt() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("steady");
        std::fs::write(&path, "0 1.5\n100 1.5\n").expect("a scratch file");
        let config = AbrConfig {
            sources: vec![TraceSource {
                traces: Some(path),
                ..TraceSource::default()
            }],
            noise: false,
            ..AbrConfig::default()
        };
        let world = Arc::new(AbrWorld::open(config).expect("valid settings"));
        let settings = TabularSettings {
            steps: 300_000,
            ..TabularSettings::default()
        };
        let learn = || QTable::learn(world.clone(), &settings, &AtomicBool::new(false), &|_| ());
        let table = Arc::new(learn());
        assert_eq!(*table, learn());
        let video = Arc::new(Video::envivio());
        let trace = Trace::new("steady", vec![0.0, 100.0], vec![1.5; 2]).expect("valid");
        let trace = Arc::new(trace);
        let metric = Metric::new(Qoe::Linear, &ENVIVIO_KBPS).expect("its own bitrates");
        let score = |chooser: &dyn Chooser| {
            let session = Session::new(video.clone(), trace.clone(), Rules::PENSIEVE);
            let downloads = play(session, chooser).expect("qualities of the video");
            Score::of(&downloads, &metric, &ENVIVIO_KBPS).qoe
        };
        let learnt = score(&*table.chooser(&ENVIVIO_KBPS).expect("its own bitrates"));
        let fixed = (0..6).map(|quality| score(&Fixed(quality)));
        let best = fixed.fold(f64::NEG_INFINITY, f64::max);
        // What a table of coarse classes reaches: more than the second-best bitrate, 0.75.
        assert!(learnt > best - 0.25, "{learnt} against {best}");
    }

    #[test]
    fn a_table_is_written_and_read_back_and_damage_is_told() {
        let config = AbrConfig {
            sources: vec![TraceSource {
                family: Some(Family::Markov),
                ..TraceSource::default()
            }],
            ..AbrConfig::default()
        };
        let world = Arc::new(AbrWorld::open(config).expect("valid settings"));
        let settings = TabularSettings {
            steps: 3_000,
            ..TabularSettings::default()
        };
        let table = QTable::learn(world, &settings, &AtomicBool::new(false), &|_| ());
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("table.json");
        let write = |table: &QTable| {
            let json = serde_json::to_vec(table).expect("plain data");
            std::fs::write(&path, json).expect("a scratch file");
        };
        write(&table);
        let read = QTable::read(&path).expect("just written");
        // JSON is read to within the last digit of a number.
        let is_near = |(one, other): (&f64, &f64)| (one - other).abs() <= 1e-12 * one.abs();
        assert!(table.values.iter().zip(&read.values).all(is_near));
        let values = table.values.clone();
        assert!(QTable { values, ..read } == table);
        let mut short = table.clone();
        short.values.pop();
        write(&short);
        let error = QTable::read(&path).expect_err("a value is lacking");
        assert!(matches!(error, TableError::Size { .. }), "{error}");
        let mut unsorted = table.clone();
        unsorted.mbps.swap(0, 1);
        write(&unsorted);
        let error = QTable::read(&path).expect_err("classes that fall");
        assert!(error.to_string().contains("do not rise"), "{error}");
        std::fs::write(&path, "{}").expect("a scratch file");
        let error = QTable::read(&path).expect_err("no table").to_string();
        assert!(error.contains("cc-trainer abr tabular"), "{error}");
    }

    #[test]
    fn a_chooser_takes_no_bitrate_that_the_video_lacks() {
        let mut table = QTable::zero(ENVIVIO_KBPS.to_vec());
        // The highest one would always be best.
        table
            .values
            .iter_mut()
            .skip(5)
            .step_by(6)
            .for_each(|value| *value = 1.0);
        let chooser = |kbps: &[f64]| Arc::new(table.clone()).chooser(kbps);
        let history = [cc_abr::session::Download {
            bytes: 1_000,
            delay_ms: 100.0,
            ..Default::default()
        }];
        for (kbps, expected) in [(&ENVIVIO_KBPS[..], 5), (&ENVIVIO_KBPS[1..4], 0)] {
            let chosen = chooser(kbps).expect("known bitrates").choose(&View {
                kbps,
                chunk_s: 4.0,
                upcoming: &[],
                left: 3,
                chunks: 4,
                buffer_s: 4.0,
                history: &history,
                past: &[],
            });
            assert_eq!(chosen, expected);
        }
        assert!(chooser(&[500.0]).is_err());
    }
}
