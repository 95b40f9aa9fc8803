//! The stages on emulated links under the kernel, or in the simulator.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use cc_core::{
    canary::Finding,
    objective::Objective,
    policy::{PolicyFile, PolicySpec},
    status::CanaryStatus,
    tolerance::Tolerances,
};
use cc_sim::{scenario::Scenario, seed};
use cc_testbed::{
    evaluate::{Control, Evaluation, Event, Outcome, Scheme, ServedPolicy, evaluate},
    summary::Platform,
};

use super::{
    LoopError, Task, Work,
    config::{LoopConfig, beside_cubic, duration, shared},
    entropy,
    figures::{Collected, Estimated, Measured, PhaseReport, Trained, Tried},
    gate::{CanaryEnd, Entropies},
    held_out, learned_from,
    simulated::{self, Served},
    trying::Trying,
};
use crate::{
    environment::recorded::RecordedConfig,
    ope::{
        OpeSettings, Per,
        estimate::{Request, estimate},
        verdict::Verdict,
    },
    policy_file,
    train::{
        self, TrainEvent, Training,
        config::{Config, Model, Overrides},
        environments::Environments,
        record::Finish,
    },
};

/// Name of the scheme, and so of the directory of its recordings.
const SCHEME: &str = "recorded";
/// Decisions that are read for an estimate, approximately.
const DECISIONS: usize = 200_000;

/// Something that a stage's work may want to show.
#[derive(Debug)]
#[non_exhaustive]
pub enum FieldEvent<'a> {
    /// Progress of the runs of a stage.
    Runs(&'a Event<'a>),
    /// The runs of a stage have ended.
    Ran,
    /// Progress of training a candidate.
    Training(TrainEvent<'a>),
    /// Training of a candidate has ended.
    Trained,
    /// The agent's status of the canary under way.
    Canary(&'a CanaryStatus),
}

/// The stages, as the configuration has them.
pub struct Field<'a> {
    /// The configuration of the loop.
    pub config: LoopConfig,
    /// Its links, each with one flow.
    pub links: Vec<Scenario>,
    /// Path of the agent's program, `None` for the one beside this program.
    pub agent: Option<PathBuf>,
    /// The command line, which results state.
    pub command: String,
    /// Ends a stage early when it becomes true.
    pub cancel: &'a AtomicBool,
    /// Is called with what the stages may want to show.
    pub watch: &'a mut dyn FnMut(FieldEvent<'_>),
}

impl Work for Field<'_> {
    fn collect(
        &mut self,
        task: &Task<'_>,
        policy: &Path,
        learn: bool,
    ) -> Result<Collected, LoopError> {
        let runs = self.config.collect.runs;
        let held_out_runs = self.config.collect.held_out;
        let length = self.config.collect.seconds;
        let links = self.links.clone();
        let mut collected = Collected::default();
        if learn {
            let dir = task.dir.join("learn");
            self.record(policy, &links, runs, length, task.seed, &dir)?;
            collected.rows = entropy::recorded(&learned_from(task.dir))?.rows;
        }
        let dir = task.dir.join("held-out");
        let seed = seed::fold(task.seed, 1) >> 11;
        self.record(policy, &links, held_out_runs, length, seed, &dir)?;
        let recorded = entropy::recorded(&held_out(task.dir))?;
        collected.held_out = recorded.rows;
        collected.entropy = recorded.entropy;
        Ok(collected)
    }

    fn train(
        &mut self,
        task: &Task<'_>,
        init: &Path,
        from: &[PathBuf],
    ) -> Result<(Trained, PathBuf), LoopError> {
        let training = Training {
            config: Some(self.training(task, init, from)?),
            overrides: Overrides::default(),
            dir: task.dir.to_owned(),
            command: self.command.clone(),
            listening: None,
            metrics: None,
            store: None,
        };
        let watch = &mut *self.watch;
        let record = train::train(&training, self.cancel, &mut |event| {
            watch(FieldEvent::Training(event));
        });
        watch(FieldEvent::Trained);
        let record = record?;
        if record.finish == Finish::Open {
            return Err(LoopError::Interrupted);
        }
        let scored = record.held_out.iter().filter(|point| point.score.is_some());
        let best = scored.max_by(|one, other| {
            let score = |score: Option<f64>| score.unwrap_or(f64::NEG_INFINITY);
            score(one.score).total_cmp(&score(other.score))
        });
        let trained = Trained {
            steps: record.last.steps,
            epoch: best.map_or(0, |point| point.epoch),
        };
        Ok((trained, task.dir.join("policy.onnx")))
    }

    fn estimate(
        &mut self,
        task: &Task<'_>,
        held_out: &Path,
        candidate: &Path,
        first_entropy: f64,
    ) -> Result<Estimated, LoopError> {
        let settings = &self.config.estimate;
        let request = Request {
            from: vec![held_out.to_owned()],
            policy: pinned(candidate)?,
            serving: Some(self.config.serving),
            of: None,
            cluster: None,
            settings: OpeSettings {
                horizon: settings.horizon,
                per: Per::Second,
                least_effective: settings.least_effective,
                confidence: settings.confidence,
                seed: task.seed,
                ..OpeSettings::default()
            },
            decisions: DECISIONS,
            joined: None,
            scratch: task.dir.to_owned(),
        };
        let estimated = estimate(&request, &|_, _| {})?;
        if self.cancel.load(Ordering::Relaxed) {
            return Err(LoopError::Interrupted);
        }
        let verdict = Verdict::new(
            &estimated.evaluation,
            &estimated.taken.terms,
            &Tolerances::default(),
        );
        let (mut sum, mut decisions) = (0.0, 0_u64);
        for step in estimated.taken.flows.iter().flat_map(|flow| &flow.steps) {
            sum += entropy::of(step.candidate.iter().copied());
            decisions += 1;
        }
        Ok(Estimated {
            effective: verdict.reward().map_or(0.0, |reward| reward.effective),
            verdict,
            clusters: estimated.evaluation.clusters,
            cluster: estimated.by.to_string(),
            entropies: Entropies {
                candidate: sum / decisions.max(1) as f64,
                first: first_entropy,
            },
        })
    }

    fn canary(
        &mut self,
        task: &Task<'_>,
        policy: &Path,
        candidate: &Path,
    ) -> Result<Tried, LoopError> {
        if self.config.on == Platform::Sim {
            return self.simulated_canary(task, policy, candidate);
        }
        let served = self.served(policy)?;
        let candidate = pinned(candidate)?;
        let watch = &mut *self.watch;
        Trying {
            config: &self.config,
            links: &self.links,
            program: self.agent.as_deref(),
            command: &self.command,
            dir: task.dir,
            seed: task.seed,
            cancel: self.cancel,
        }
        .carry_out(&served, &candidate, &mut |status| {
            watch(FieldEvent::Canary(status));
        })
    }

    fn measure(&mut self, task: &Task<'_>, policy: &Path) -> Result<Measured, LoopError> {
        let settings = self.config.measure.clone();
        let mut links = self.links.clone();
        let alone = links.len();
        if settings.beside_cubic {
            links.extend(beside_cubic(&self.links));
        }
        let (runs, length) = (settings.runs, settings.seconds);
        let outcome = self.runs(policy, links, runs, length, task.seed, task.dir)?;
        if self.config.on == Platform::Sim {
            // Simulated runs are not recorded.
            let links = self.links.clone();
            self.record(policy, &links, 1, length, task.seed, task.dir)?;
        }
        let entropy = entropy::recorded(&task.dir.join(SCHEME))?.entropy;
        let names: Vec<_> = self.links.iter().map(|link| link.name.as_str()).collect();
        let all = outcome.summary.runs.into_iter();
        let (own, beside): (Vec<_>, Vec<_>) =
            all.partition(|run| names.contains(&run.scenario.as_str()));
        Measured::new(alone, &own, &beside, entropy).ok_or_else(|| {
            LoopError::Run(format!(
                "no round of runs is valid on all links: the host was too busy ({} has the reason \
                 for each); stop other load on it, or use fewer jobs",
                outcome.summary_path.display()
            ))
        })
    }
}

impl Field<'_> {
    /// The configuration of a turn's training.
    fn training(
        &self,
        task: &Task<'_>,
        init: &Path,
        from: &[PathBuf],
    ) -> Result<Config, LoopError> {
        let unusable = |error: String| LoopError::Run(format!("{}: {error}", init.display()));
        let file = PolicyFile::read(init).map_err(|error| unusable(error.to_string()))?;
        let network = policy_file::decode(&file, 0, task.seed);
        let network = network.map_err(|error| unusable(error.to_string()))?;
        let mut config = self.config.training()?;
        let stated: Option<Objective> = file.meta().interface.objective;
        if let Environments::Recorded(recorded) = config.environment {
            config.environment = Environments::Recorded(RecordedConfig {
                from: from.to_vec(),
                // The policy goes on with what it was trained for.
                objective: recorded.objective.or(stated),
                scratch: Some(task.dir.to_owned()),
                ..recorded
            });
        }
        Ok(Config {
            steps: self.config.train.steps,
            seed: task.seed,
            serving: self.config.serving,
            model: Model::of(&network.shape),
            init: Some(init.to_owned()),
            ..config
        })
    }

    fn served(&self, policy: &Path) -> Result<ServedPolicy, LoopError> {
        let spec = pinned(policy)?;
        let sha256 = match &spec {
            PolicySpec::Pinned { sha256, .. } => Some(sha256.clone()),
            _ => None,
        };
        Ok(ServedPolicy {
            spec,
            serving: Some(self.config.serving),
            sha256,
            pacing_gain: None,
        })
    }

    /// Records a policy to the directory [`SCHEME`] in `dir`.
    fn record(
        &mut self,
        policy: &Path,
        links: &[Scenario],
        runs: u32,
        length: f64,
        seed: u64,
        dir: &Path,
    ) -> Result<(), LoopError> {
        if self.config.on == Platform::Kernel {
            self.runs(policy, links.to_vec(), runs, length, seed, dir)?;
            return Ok(());
        }
        let mut served = Served::load(policy, self.config.serving, seed)?;
        let into = dir.join(SCHEME);
        let length = duration(length);
        simulated::record(&mut served, links, runs, length, seed, &into, self.cancel)
    }

    /// Runs a policy on links, and records it under the kernel.
    fn runs(
        &mut self,
        policy: &Path,
        links: Vec<Scenario>,
        runs: u32,
        length: f64,
        seed: u64,
        dir: &Path,
    ) -> Result<Outcome, LoopError> {
        let evaluation = Evaluation {
            on: self.config.on,
            schemes: vec![Scheme {
                name: SCHEME.to_owned(),
                control: Control::Policy(self.served(policy)?),
            }],
            scenarios: links,
            policy: PolicySpec::Default,
            serving: Some(self.config.serving),
            seconds: Some(duration(length)),
            runs,
            seed,
            jobs: self.config.jobs(),
            dir: dir.join("evaluation"),
            fresh: false,
            agent: self.agent.clone(),
            record: (self.config.on == Platform::Kernel).then(|| dir.to_owned()),
            command: self.command.clone(),
        };
        let watch = &mut *self.watch;
        let outcome = evaluate(&evaluation, self.cancel, |event| {
            watch(FieldEvent::Runs(&event));
        });
        watch(FieldEvent::Ran);
        match outcome? {
            outcome if outcome.cancelled => Err(LoopError::Interrupted),
            outcome => Ok(outcome),
        }
    }

    /// Tries a candidate in the simulator: a canary of its own on each link, of which all have to
    /// pass.
    fn simulated_canary(
        &mut self,
        task: &Task<'_>,
        policy: &Path,
        candidate: &Path,
    ) -> Result<Tried, LoopError> {
        let canary = self.config.canary.clone();
        let mut phases = Vec::new();
        for (number, phase) in canary.phases.iter().enumerate() {
            for (place, link) in shared(&self.links, phase.flows).iter().enumerate() {
                let parts = [number as u64, place as u64];
                let seed = parts.into_iter().fold(task.seed, seed::fold);
                let load = |file| Served::load(file, self.config.serving, seed);
                let (mut policy, mut candidate) = (load(policy)?, load(candidate)?);
                // As many flows times seconds as a canary of all links together has.
                let length = duration(phase.seconds) * self.links.len() as u32;
                let ended = simulated::canary(
                    [&mut policy, &mut candidate],
                    link,
                    &canary,
                    phase.percent,
                    length,
                    seed,
                    self.cancel,
                )?;
                if let Some(status) = &ended.status {
                    (self.watch)(FieldEvent::Canary(status));
                }
                phases.push(PhaseReport {
                    percent: phase.percent,
                    flows: phase.flows,
                    seconds: ended.seconds,
                    status: ended.status,
                });
                let end = match (ended.breach, ended.finding) {
                    (Some(reason), _) => CanaryEnd::Withdrawn { reason },
                    (None, Finding::NotWorse) => continue,
                    (None, Finding::Open | Finding::Worse) => CanaryEnd::Open { phase: number },
                };
                return Ok(Tried { end, phases });
            }
        }
        Ok(Tried {
            end: CanaryEnd::Passed,
            phases,
        })
    }
}

/// A policy's file with the hash that it has now.
fn pinned(file: &Path) -> Result<PolicySpec, LoopError> {
    let unusable = |error: String| LoopError::Run(format!("{}: {error}", file.display()));
    let read = PolicyFile::read(file).map_err(|error| unusable(error.to_string()))?;
    let path = file
        .canonicalize()
        .map_err(LoopError::system("finding", file))?;
    let spec = PolicySpec::Onnx(path).pinned(&read.summary().sha256);
    spec.map_err(|error| unusable(error.to_string()))
}
