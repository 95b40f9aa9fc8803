//! The closed loop: a policy serves and is recorded, a candidate is trained from the recordings,
//! estimated off-policy, tried on live flows, and put in force or refused, turn after turn.
//!
//! ```text
//!            ┌───────────────────────── refused ─────────────────────────┐
//!            │                                                           ▼
//!   collect ─► train ─► estimate ─► canary ─► promoted or withdrawn ─► measure ─► next turn
//! ```
//!
//! [`Loop`] is the sequence: it decides by the rules of [`gate`], and writes its state
//! durably after every stage, so that a loop that is killed continues with the stage that it was
//! in. What a stage does is [`Work`]'s; [`field`] does it on emulated links under the kernel, or in
//! the simulator.

pub mod config;
mod entropy;
pub mod field;
pub mod figures;
pub mod gate;
mod report;
mod simulated;
pub mod state;
#[cfg(test)]
mod tests;
mod trying;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

use cc_core::{
    durable::replace_durably,
    policy::{DEFAULT_POLICY, FileError, PolicyFile, PolicySpec},
};
use cc_sim::{scenario::Scenario, seed};

use self::{
    config::{LoopConfig, LoopConfigError, Trial, shaping},
    figures::{Collected, Estimated, Measured, Trained, Tried, TurnReport},
    state::{InForce, LoopState, Open, Stage, Step, write_json},
};
use crate::{
    ope::estimate::EstimateError,
    train::{TrainError, config::differences_of},
};

/// File of the policy that the loop begins with.
const FIRST_POLICY: &str = "first.onnx";
/// File of a step's candidate.
const CANDIDATE: &str = "candidate.onnx";

/// A loop to begin or to continue.
#[derive(Clone, Debug)]
pub struct LoopRun {
    /// The configuration of a new loop. For one that is continued, `None` takes the state's, and
    /// one that is given must agree with it but for the number of turns, trials and jobs.
    pub config: Option<LoopConfig>,
    /// The loop's directory; created if it does not exist.
    pub dir: PathBuf,
    /// The command line, for the state.
    pub command: String,
}

/// What a stage needs beside the configuration.
#[derive(Clone, Debug)]
pub struct Task<'a> {
    /// Directory of the stage, which holds nothing but, for training, an interrupted run.
    pub dir: &'a Path,
    /// Identifies the loop's seed, the step and the stage: what is drawn with it is new.
    pub seed: u64,
}

/// What the stages do, for [`Loop`] to call in its order. Each ends with
/// [`LoopError::Interrupted`] when it was told to stop.
pub trait Work {
    /// Records `policy` on all links: the held-out part, and the part to learn from if `learn`.
    ///
    /// # Errors
    ///
    /// Returns an error when flows cannot be run or recorded.
    fn collect(
        &mut self,
        task: &Task<'_>,
        policy: &Path,
        learn: bool,
    ) -> Result<Collected, LoopError>;

    /// Trains from recordings, beginning with the network of `init`, and returns the policy's file.
    ///
    /// # Errors
    ///
    /// Returns an error when training fails.
    fn train(
        &mut self,
        task: &Task<'_>,
        init: &Path,
        from: &[PathBuf],
    ) -> Result<(Trained, PathBuf), LoopError>;

    /// Estimates `candidate` on held-out recordings. `first_entropy` is that of the first policy.
    ///
    /// # Errors
    ///
    /// Returns an error when nothing can be estimated.
    fn estimate(
        &mut self,
        task: &Task<'_>,
        held_out: &Path,
        candidate: &Path,
        first_entropy: f64,
    ) -> Result<Estimated, LoopError>;

    /// Tries `candidate` on live flows beside `policy`, and promotes it if it passes.
    ///
    /// # Errors
    ///
    /// Returns an error when flows cannot be run, or when the agent fails.
    fn canary(
        &mut self,
        task: &Task<'_>,
        policy: &Path,
        candidate: &Path,
    ) -> Result<Tried, LoopError>;

    /// Measures `policy` on fresh runs. Equal seeds of tasks give equal links.
    ///
    /// # Errors
    ///
    /// Returns an error when flows cannot be run, or none of the runs is valid.
    fn measure(&mut self, task: &Task<'_>, policy: &Path) -> Result<Measured, LoopError>;
}

/// Something that a caller of [`Loop::run`] may want to show.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LoopEvent<'a> {
    /// A stage of a step begins.
    Stage {
        /// Name of the step, such as `turn-3`.
        step: &'a str,
        /// The stage of that step.
        stage: Stage,
        /// Whether it was begun before, and interrupted.
        again: bool,
    },
    /// A step has ended, and its report is written.
    Ended {
        /// The report of the step that ended.
        report: &'a TurnReport,
        /// The report in a line.
        line: &'a str,
    },
}

/// Why a loop did not begin, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] LoopConfigError),
    /// There is neither a configuration nor a loop to continue.
    #[error("{} has no loop to continue: begin one with --config FILE.toml", .0.display())]
    Nothing(PathBuf),
    /// The state cannot be read.
    #[error(
        "{}: not the state of a loop of this version: {reason}; choose another directory with \
         --out",
        path.display()
    )]
    State {
        /// Path of the state's file, `loop.json`.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory holds a loop with other settings.
    #[error(
        "{} holds a loop with other settings ({}): continue it with its own configuration, or \
         choose another directory with --out; only turns, trial and jobs may change",
        dir.display(),
        differences.join("; ")
    )]
    Settings {
        /// The directory of the loop.
        dir: PathBuf,
        /// The settings that differ, each as `setting: this, not that`.
        differences: Vec<String>,
    },
    /// A policy's file is refused.
    #[error("the policy {policy}: {source}")]
    Policy {
        /// The policy as it was named.
        policy: String,
        /// What is wrong with its file.
        source: FileError,
    },
    /// The loop was told to stop. Its state is on disk.
    #[error("ended early; the same command continues from here")]
    Interrupted,
    /// Flows could not be run.
    #[error(transparent)]
    Evaluate(#[from] cc_testbed::evaluate::EvaluateError),
    /// A simulated or measured run is impossible.
    #[error("{0}")]
    Run(String),
    /// A candidate could not be trained.
    #[error("training: {0}")]
    Train(#[from] TrainError),
    /// A candidate could not be estimated.
    #[error("estimating: {0}")]
    Estimate(#[from] EstimateError),
    /// Recordings could not be written or read.
    #[error(transparent)]
    Recording(#[from] cc_recording::RecordingError),
    /// The agent of a canary could not be started, or has ended.
    #[error(transparent)]
    Agent(#[from] cc_testbed::evaluate::AgentError),
    /// The agent of a canary did not do what it was told.
    #[error("the canary's agent: {0}")]
    Command(String),
    /// A file or directory cannot be read or written.
    #[error("{what} {}: {source}", path.display())]
    System {
        /// The operation, such as `reading`.
        what: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl LoopError {
    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::System { what, path, source }
    }
}

/// A loop in its directory.
#[derive(Debug)]
pub struct Loop {
    dir: PathBuf,
    state: LoopState,
    links: Vec<Scenario>,
}

impl Loop {
    /// Opens the loop in a directory, or begins one there.
    ///
    /// # Errors
    ///
    /// Returns an error when the configuration cannot be used, when it differs from that of the
    /// loop in the directory, or when a policy's file is refused.
    pub fn open(run: &LoopRun) -> Result<Self, LoopError> {
        let state = match (LoopState::read(&run.dir)?, &run.config) {
            (None, None) => return Err(LoopError::Nothing(run.dir.clone())),
            (None, Some(config)) => {
                let links = config.links()?;
                fs::create_dir_all(&run.dir)
                    .map_err(LoopError::system("making the directory", &run.dir))?;
                let file = PathBuf::from(FIRST_POLICY);
                let sha256 = copy_policy(&config.policy, &run.dir.join(&file))?;
                let in_force = InForce { file, sha256 };
                let shaping = shaping(config, &links);
                let state = LoopState::new(config.clone(), shaping, in_force, run.command.clone());
                state.write(&run.dir)?;
                state
            }
            (Some(state), config) => LoopState {
                config: config.clone().unwrap_or(state.config),
                ..state
            },
        };
        let links = state.config.links()?;
        let differences = differences_of(&shaping(&state.config, &links), &state.shaping);
        if !differences.is_empty() {
            return Err(LoopError::Settings {
                dir: run.dir.clone(),
                differences,
            });
        }
        // Known now, and not after hours of turns.
        for Trial { policy, .. } in &state.config.trials {
            policy_bytes(policy)?;
        }
        Ok(Self {
            dir: run.dir.clone(),
            state,
            links,
        })
    }

    /// The configuration of the loop.
    pub fn config(&self) -> &LoopConfig {
        &self.state.config
    }

    /// The links that its flows cross.
    pub fn links(&self) -> &[Scenario] {
        &self.links
    }

    /// The state of the loop.
    pub fn state(&self) -> &LoopState {
        &self.state
    }

    /// Path of the table with a row for each step.
    pub fn table(&self) -> PathBuf {
        self.dir.join("loop.md")
    }

    /// Does what is left of the loop.
    ///
    /// # Errors
    ///
    /// Returns the error of the stage that failed, or [`LoopError::Interrupted`]. The state says
    /// what was done before, and the loop can be continued.
    pub fn run(
        &mut self,
        work: &mut dyn Work,
        watch: &mut dyn FnMut(LoopEvent<'_>),
    ) -> Result<(), LoopError> {
        // A loop that was killed may have its last report in the state only.
        self.write_reports()?;
        while let Some(mut open) = self.state.open.take().or_else(|| self.begin()) {
            let name = open.step.name();
            let place = self.dir.join(&name);
            fs::create_dir_all(&place)
                .map_err(LoopError::system("making the directory", &place))?;
            let mut stage = Some(open.stage);
            while let Some(now) = stage {
                let dir = place.join(now.name());
                watch(LoopEvent::Stage {
                    step: &name,
                    stage: now,
                    again: dir.exists(),
                });
                let since = Instant::now();
                self.prepare(now, &dir)?;
                self.carry_out(work, &mut open, now, &dir)?;
                let took = since.elapsed().as_secs_f64();
                open.report.seconds.insert(now.name().to_owned(), took);
                stage = now.after(&open.step, &open.report);
                if let Some(next) = stage {
                    open.stage = next;
                    self.state.open = Some(open.clone());
                    self.state.write(&self.dir)?;
                }
            }
            open.report.in_force.clone_from(&self.state.in_force.sha256);
            self.state.open = None;
            self.state.done.push(open.report);
            self.state.write(&self.dir)?;
            self.write_reports()?;
            if let Some(report) = self.state.done.last() {
                let line = report::line(report);
                watch(LoopEvent::Ended {
                    report,
                    line: &line,
                });
            }
        }
        Ok(())
    }

    /// The next step, at its first stage; `None` when all are done.
    fn begin(&self) -> Option<Open> {
        let step = self.state.next()?;
        Some(Open {
            stage: Stage::first(&step),
            report: TurnReport {
                name: step.name(),
                ..TurnReport::default()
            },
            step,
        })
    }

    /// Makes the stage's directory an empty one. Training continues from its last checkpoint; of
    /// all other stages nothing is kept when they were interrupted, as a part of their flows would
    /// be no sample of all.
    fn prepare(&self, stage: Stage, dir: &Path) -> Result<(), LoopError> {
        if stage != Stage::Train {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(LoopError::system("removing", dir)(error));
                }
                _ => {}
            }
        }
        fs::create_dir_all(dir).map_err(LoopError::system("making the directory", dir))
    }

    fn carry_out(
        &mut self,
        work: &mut dyn Work,
        open: &mut Open,
        stage: Stage,
        dir: &Path,
    ) -> Result<(), LoopError> {
        let (step, report) = (&open.step, &mut open.report);
        let place = self.dir.join(step.name());
        let policy = self.dir.join(&self.state.in_force.file);
        let candidate = place.join(CANDIDATE);
        let task = Task {
            dir,
            seed: self.seed(step, stage),
        };
        match stage {
            Stage::Collect => {
                if let Some(trial) = self.trial(step) {
                    let sha256 = copy_policy(&trial.policy, &candidate)?;
                    report.candidate = Some(sha256);
                }
                let learn = matches!(step, Step::Turn(_));
                let collected = work.collect(&task, &policy, learn)?;
                self.state.first_entropy.get_or_insert(collected.entropy);
                report.collected = Some(collected);
            }
            Stage::Train => {
                let turn = match step {
                    Step::Turn(number) => *number,
                    Step::First | Step::Trial(_) => 0,
                };
                let steps = LoopState::recorded(turn, self.state.config.collect.last);
                let from: Vec<_> = steps
                    .iter()
                    .map(|step| learned_from(&self.collected(step)))
                    .collect();
                let (trained, file) = work.train(&task, &policy, &from)?;
                let bytes = fs::read(&file).map_err(LoopError::system("reading", &file))?;
                report.candidate = Some(keep_policy(&file, &bytes, &candidate)?);
                report.trained = Some(trained);
            }
            Stage::Estimate => {
                let first = self.state.first_entropy.unwrap_or_default();
                let recordings = held_out(&self.collected(step));
                let estimated = work.estimate(&task, &recordings, &candidate, first)?;
                report.decision = gate::after_estimate(
                    &estimated.verdict,
                    estimated.entropies,
                    &self.state.config.estimate,
                );
                report.estimated = Some(estimated);
            }
            Stage::Canary => {
                let tried = work.canary(&task, &policy, &candidate)?;
                let estimated = report.estimated.as_ref();
                let conclusion = estimated.map(|estimated| estimated.verdict.conclusion);
                let conclusion = conclusion.unwrap_or(crate::ope::verdict::Conclusion::None);
                let decision = gate::after_canary(&tried.end, conclusion);
                if decision.is_promotion()
                    && let Some(sha256) = report.candidate.clone()
                {
                    let file = Path::new(&step.name()).join(CANDIDATE);
                    self.state.in_force = InForce { file, sha256 };
                }
                report.decision = Some(decision);
                report.tried = Some(tried);
            }
            Stage::Measure => {
                let measured = work.measure(&task, &policy)?;
                let before = self.state.done.iter();
                let before: Vec<_> = before.filter_map(|done| done.measured.as_ref()).collect();
                let against = |other: Option<&&Measured>| measured.against(other?);
                report.against_first = against(before.first());
                report.against_former = against(before.last());
                report.measured = Some(measured);
            }
        }
        Ok(())
    }

    fn trial(&self, step: &Step) -> Option<&Trial> {
        let Step::Trial(name) = step else { return None };
        self.state
            .config
            .trials
            .iter()
            .find(|trial| trial.name == *name)
    }

    /// The directory of what a step has recorded.
    fn collected(&self, step: &Step) -> PathBuf {
        self.dir.join(step.name()).join(Stage::Collect.name())
    }

    /// The seed of a stage. Measurements have the same one in every step, so that they can be
    /// compared.
    fn seed(&self, step: &Step, stage: Stage) -> u64 {
        let name = match stage {
            Stage::Measure => stage.name().to_owned(),
            _ => format!("{}/{}", step.name(), stage.name()),
        };
        // A JSON number keeps 53 bits.
        name.bytes().fold(self.state.config.seed, |hash, byte| {
            seed::fold(hash, byte.into())
        }) >> 11
    }

    /// Writes the report of the last step that is done, and the table of all.
    fn write_reports(&self) -> Result<(), LoopError> {
        let Some(last) = self.state.done.last() else {
            return Ok(());
        };
        write_json(&self.dir.join(&last.name).join("report.json"), last)?;
        let table = self.table();
        replace_durably(&table, report::markdown(&self.state).as_bytes())
            .map_err(|error| LoopError::system(error.step, &error.path)(error.source))
    }
}

/// The recordings to learn from, in the directory of a collection.
fn learned_from(collected: &Path) -> PathBuf {
    collected.join("learn").join("recorded")
}

/// The recordings that are held out, in the directory of a collection.
fn held_out(collected: &Path) -> PathBuf {
    collected.join("held-out").join("recorded")
}

/// Copies the file of a policy, and returns its SHA-256.
fn copy_policy(policy: &str, to: &Path) -> Result<String, LoopError> {
    keep_policy(Path::new(policy), &policy_bytes(policy)?, to)
}

/// Writes the bytes of the policy `from`, and returns their SHA-256.
fn keep_policy(from: &Path, bytes: &[u8], to: &Path) -> Result<String, LoopError> {
    let file = PolicyFile::parse(bytes).map_err(|source| LoopError::Policy {
        policy: from.display().to_string(),
        source,
    })?;
    replace_durably(to, bytes)
        .map_err(|error| LoopError::system(error.step, &error.path)(error.source))?;
    Ok(file.summary().sha256.clone())
}

/// The bytes of a policy's file.
fn policy_bytes(policy: &str) -> Result<Vec<u8>, LoopError> {
    let refused = |source| LoopError::Policy {
        policy: policy.to_owned(),
        source,
    };
    let spec: PolicySpec = policy
        .parse()
        .map_err(|error: cc_core::policy::SpecError| LoopError::Run(error.to_string()))?;
    let bytes = match &spec {
        PolicySpec::Default => DEFAULT_POLICY.to_vec(),
        spec => spec.read().map_err(refused)?,
    };
    PolicyFile::parse(&bytes).map_err(refused)?;
    Ok(bytes)
}
