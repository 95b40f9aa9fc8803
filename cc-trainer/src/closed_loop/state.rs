//! The state of a loop on disk, from which it is continued.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cc_core::durable::replace_durably;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{LoopError, config::LoopConfig, figures::TurnReport};

/// Version of the format of the state.
const FORMAT: u32 = 1;
/// Name of the state's file in the directory of a loop.
const FILE: &str = "loop.json";

/// A step of a loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Turn 0: the first policy is measured.
    First,
    /// A turn with a candidate that is trained, by its number from 1.
    Turn(u32),
    /// A trial of a policy of other origin, by its name.
    Trial(String),
}

impl Step {
    /// Name of the step and of its directory.
    pub fn name(&self) -> String {
        match self {
            Self::First => "turn-0".to_owned(),
            Self::Turn(number) => format!("turn-{number}"),
            Self::Trial(name) => format!("trial-{name}"),
        }
    }
}

/// A stage of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Record the policy in force.
    Collect,
    /// Train a candidate from the recordings.
    Train,
    /// Estimate the candidate on the held-out recordings.
    Estimate,
    /// Try it on live flows, and promote it if it passes.
    Canary,
    /// Measure the policy in force on fresh runs.
    Measure,
}

impl Stage {
    /// Name in reports and directories.
    pub fn name(self) -> &'static str {
        match self {
            Self::Collect => "collect",
            Self::Train => "train",
            Self::Estimate => "estimate",
            Self::Canary => "canary",
            Self::Measure => "measure",
        }
    }

    /// The stage of a step that comes after `self`, by what its report says so far; `None` at the
    /// step's end.
    pub(super) fn after(self, step: &Step, report: &TurnReport) -> Option<Self> {
        let is_trial = matches!(step, Step::Trial(_));
        let decided = report.decision.as_ref();
        match self {
            Self::Collect if is_trial => Some(Self::Estimate),
            Self::Collect => Some(Self::Train),
            Self::Train => Some(Self::Estimate),
            Self::Estimate if decided.is_none() => Some(Self::Canary),
            // A trial that was not put in force has changed nothing.
            Self::Estimate | Self::Canary
                if is_trial && !decided.is_some_and(super::gate::Decision::is_promotion) =>
            {
                None
            }
            Self::Estimate | Self::Canary => Some(Self::Measure),
            Self::Measure => None,
        }
    }

    /// The first stage of a step.
    pub(super) fn first(step: &Step) -> Self {
        match step {
            Step::First => Self::Measure,
            Step::Turn(_) | Step::Trial(_) => Self::Collect,
        }
    }
}

/// The policy that serves, and that the next turn records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Its file, relative to the loop's directory.
    pub file: PathBuf,
    /// SHA-256 of the policy's file.
    pub sha256: String,
}

/// The step in progress, and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// The step that is in progress.
    pub step: Step,
    /// The stage that is to be done next.
    pub stage: Stage,
    /// The report with what the stages found so far.
    pub report: TurnReport,
}

/// The state of a loop: `loop.json` in its directory, replaced durably after every stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopState {
    /// Version of the format of `loop.json`.
    pub format: u32,
    /// Version of cc-trainer that began the loop.
    pub version: String,
    /// The command line that began the loop.
    pub command: String,
    /// The configuration that the loop runs with.
    pub config: LoopConfig,
    /// The settings that a continuation must share, and the digests of the links.
    pub shaping: Value,
    /// The policy that serves now.
    pub in_force: InForce,
    /// Mean entropy of the first policy's actions when it was first recorded, nats.
    pub first_entropy: Option<f64>,
    /// The step in progress; `None` between two steps.
    pub open: Option<Open>,
    /// The reports of the steps that are done.
    pub done: Vec<TurnReport>,
}

impl LoopState {
    /// The state of a loop that begins.
    pub(super) fn new(
        config: LoopConfig,
        shaping: Value,
        in_force: InForce,
        command: String,
    ) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            config,
            shaping,
            in_force,
            first_entropy: None,
            open: None,
            done: Vec::new(),
        }
    }

    /// Path of the state in the directory of a loop.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Reads the state of the loop in a directory; `None` when there is none.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, or is no state of this version.
    pub fn read(dir: &Path) -> Result<Option<Self>, LoopError> {
        let path = Self::path(dir);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LoopError::system("reading", &path)(error)),
        };
        let unreadable = |reason: String| LoopError::State {
            path: path.clone(),
            reason,
        };
        let state: Self =
            serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
        match state.format {
            FORMAT => Ok(Some(state)),
            other => Err(unreadable(format!("format {other}, and this is {FORMAT}"))),
        }
    }

    /// Replaces the state in the directory of the loop.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be written; the former state is then whole.
    pub fn write(&self, dir: &Path) -> Result<(), LoopError> {
        write_json(&Self::path(dir), self)
    }

    /// The step to do next; `None` when all are done.
    pub(super) fn next(&self) -> Option<Step> {
        let turns = (1..=self.config.turns).map(Step::Turn);
        let trials = self.config.trials.iter();
        let trials = trials.map(|trial| Step::Trial(trial.name.clone()));
        let mut steps = std::iter::once(Step::First).chain(turns).chain(trials);
        steps.find(|step| {
            let name = step.name();
            self.done.iter().all(|report| report.name != name)
        })
    }

    /// The turns whose recordings a turn learns from: its own and some before it, `last` in all, or
    /// every one with 0.
    pub(super) fn recorded(turn: u32, last: usize) -> Vec<Step> {
        let first = match last {
            0 => 1,
            last => turn.saturating_sub(last as u32 - 1).max(1),
        };
        (first..=turn).map(Step::Turn).collect()
    }
}

/// Replaces a file with a value in JSON.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LoopError> {
    let failed = |error: serde_json::Error| LoopError::system("writing", path)(error.into());
    let mut text = serde_json::to_vec_pretty(value).map_err(failed)?;
    text.push(b'\n');
    replace_durably(path, &text)
        .map_err(|error| LoopError::system(error.step, &error.path)(error.source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closed_loop::gate::Decision;

    /// The stages of a step whose candidate is refused by the estimate, or decided by the canary.
    fn stages(step: &Step, by_estimate: bool, promoted: bool) -> Vec<&'static str> {
        let reason = String::new();
        let decision = match promoted {
            true => Decision::Promoted { reason },
            false => Decision::Refused { reason },
        };
        let mut report = TurnReport::default();
        let (mut stage, mut all) = (Some(Stage::first(step)), Vec::new());
        while let Some(now) = stage {
            all.push(now.name());
            let decides = match now {
                Stage::Estimate => by_estimate,
                Stage::Canary => true,
                _ => false,
            };
            if decides {
                report.decision = Some(decision.clone());
            }
            stage = now.after(step, &report);
        }
        all
    }

    #[test]
    fn steps_have_their_stages() {
        let (turn, trial) = (Step::Turn(1), Step::Trial("a".to_owned()));
        assert_eq!(stages(&Step::First, false, false), ["measure"]);
        let whole = ["collect", "train", "estimate", "canary", "measure"];
        assert_eq!(stages(&turn, false, true), whole);
        assert_eq!(stages(&turn, false, false), whole);
        let refused = ["collect", "train", "estimate", "measure"];
        assert_eq!(stages(&turn, true, false), refused);
        assert_eq!(stages(&trial, true, false), ["collect", "estimate"]);
        assert_eq!(
            stages(&trial, false, false),
            ["collect", "estimate", "canary"]
        );
        let promoted = ["collect", "estimate", "canary", "measure"];
        assert_eq!(stages(&trial, false, true), promoted);
    }

    #[test]
    fn a_turn_learns_from_the_last_recordings() {
        let names = |turn, last| -> Vec<_> {
            let steps = LoopState::recorded(turn, last);
            steps.iter().map(Step::name).collect()
        };
        assert_eq!(names(1, 3), ["turn-1"]);
        assert_eq!(names(4, 3), ["turn-2", "turn-3", "turn-4"]);
        assert_eq!(names(4, 1), ["turn-4"]);
        assert_eq!(names(3, 0), ["turn-1", "turn-2", "turn-3"]);
    }
}
