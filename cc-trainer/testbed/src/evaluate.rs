//! Evaluation of congestion controls, over emulated links under the running kernel or in the
//! simulator.
//!
//! Every [`Scheme`] runs on every scenario, in the order of a [`Schedule`]. Each [`run()`] has a
//! path of its own, and agents serve the schemes that are policies. A run that other load on the
//! host disturbed is repeated, and marked invalid when it stays disturbed. A [`Store`] writes every
//! run to disk as soon as it ends.

mod agent;
mod application;
mod plan;
mod processor_time;
mod run;
mod sample;
mod schedule;
mod scheme;
mod splits;
mod store;
mod traffic;
mod work;

#[cfg(test)]
pub(crate) mod tests;

pub use agent::{Agent, AgentError, Agents, Delays, find as find_agent};
pub use run::{FlowSetup, Live, Measured, RunError, Setup, run};
pub use schedule::{Job, Jobs, Schedule, cost, interleaved};
pub use scheme::{Control, Controls, Scheme, SchemeError, ServedPolicy, parse as parse_schemes};
pub use store::{Store, StoreError, digest, key};
pub use traffic::{TrafficError, listener};

pub(crate) use plan::Plan;
pub use plan::fastest_mbps;
pub(crate) use work::{ATTEMPTS, Progress};

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cc_core::policy::{ActionSelection, PolicySpec};

use crate::link::Link;
use crate::summary::{self, Host, Platform, Run, RunFile, Summary};
use cc_sim::scenario::Scenario;
use work::work;

/// The schemes and scenarios to evaluate, and the settings of their runs.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Platform that the schemes run on.
    pub on: Platform,
    /// Schemes under test, each evaluated on every scenario.
    pub schemes: Vec<Scheme>,
    /// Scenarios to run on; their names must differ.
    pub scenarios: Vec<Scenario>,
    /// Policy of the scheme `rlcc` where a scenario's flow names that scheme.
    pub policy: PolicySpec,
    /// How policies from files select actions; `None` follows each policy file.
    pub serving: Option<ActionSelection>,
    /// Length of each run in scenario time; `None` is each scenario's own
    /// ([`Scenario::length`]).
    pub seconds: Option<Duration>,
    /// Number of runs of each scheme on each scenario.
    pub runs: u32,
    /// Seed of random loss and jitter, which are the same in the `n`th run of every scheme on a
    /// scenario.
    pub seed: u64,
    /// Number of runs at the same time.
    pub jobs: Jobs,
    /// Directory that receives the results.
    pub dir: PathBuf,
    /// Whether to remove the runs that `dir` holds instead of keeping them.
    pub fresh: bool,
    /// Path of the `cc-agent` program, which is used on the kernel alone; `None` is the one beside
    /// this program.
    pub agent: Option<PathBuf>,
    /// Directory in which each agent records, in a subdirectory named after its scheme; on the
    /// kernel alone.
    pub record: Option<PathBuf>,
    /// Command line of this evaluation, which the summary states.
    pub command: String,
}

/// Progress of an evaluation, passed to the callback of [`evaluate()`].
#[derive(Debug)]
pub enum Event<'a> {
    /// The runs begin, after the agents have been started if there are any.
    Begun {
        /// Number of runs to do, without those kept.
        left: usize,
        /// Number of valid runs found in the directory, which are not repeated.
        kept: usize,
    },
    /// A run in progress reports its latest second, about once per second.
    Live {
        /// Identity of the run: its scenario, scheme and number. Nothing is measured yet.
        run: &'a Run,
        /// Measurements of the latest second.
        live: Live,
    },
    /// A run has ended, valid or not.
    Ended {
        /// Measurements of the whole run.
        run: &'a Run,
        /// Whether the run is repeated because it is not valid.
        again: bool,
    },
    /// Overall progress, reported about 20 times per second.
    Worked {
        /// Scenario time of the completed runs, plus the part of the running ones that has passed.
        done: Duration,
        /// Scenario time of all runs, repetitions included.
        all: Duration,
    },
}

/// Results of an evaluation, complete or cancelled.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Measurements of all completed runs, as `summary.json` holds them.
    pub summary: Summary,
    /// Path of the written `summary.json`.
    pub summary_path: PathBuf,
    /// All completed runs with their time series, in the order in which they were scheduled;
    /// [`report::write`](crate::report::write) draws them.
    pub runs: Vec<RunFile>,
    /// Whether the evaluation was cancelled before all runs had ended.
    pub cancelled: bool,
}

/// Errors that end an evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// Two scenarios have the same name, and so the same files.
    #[error(
        "two different scenarios are called `{name}`; evaluate them one after the other, into \
         directories of their own"
    )]
    Homonyms {
        /// Name that both scenarios have.
        name: String,
    },
    /// A flow starts only after the end of the run.
    #[error(
        "scenario `{scenario}`: flow {flow} starts at {} s, but runs end after {} s; make them \
         longer with --seconds",
        start.as_secs_f64(), seconds.as_secs_f64()
    )]
    TooShort {
        /// Name of the flow's scenario.
        scenario: String,
        /// Number of the flow, from 0.
        flow: usize,
        /// Scenario time at which the flow starts.
        start: Duration,
        /// Length of a run in scenario time.
        seconds: Duration,
    },
    /// A link is faster than the emulator can be.
    #[error(
        "scenario `{scenario}`: its link has up to {mbps} Mbit/s, and the emulator carries at most \
         {} Mbit/s; use --on sim, or rate_mbps = inf to see what this host carries",
        Link::MAX_MBPS
    )]
    TooFast {
        /// Name of the scenario with that link.
        scenario: String,
        /// Largest rate of its link, Mbit/s.
        mbps: f64,
    },
    /// The scheme of a scenario's flow does not exist.
    #[error("scenario `{scenario}`, flow {flow}: {source}")]
    Flow {
        /// Name of the flow's scenario.
        scenario: String,
        /// Number of the flow, from 0.
        flow: usize,
        /// Reason why the scheme cannot be used.
        source: Box<SchemeError>,
    },
    /// An agent could not be started, or ended early.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The directory of the results cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A run could not be carried out.
    #[error("{scheme} on {scenario}: {source}")]
    Run {
        /// Name of the run's scenario.
        scenario: String,
        /// Name of the run's scheme.
        scheme: String,
        /// Reason why the run failed.
        source: Box<RunError>,
    },
}

impl Outcome {
    /// Pairs of scenario and scheme that have no valid run at all.
    pub fn without_valid_run(&self) -> Vec<(&str, &str)> {
        summary::aggregate::groups(&self.summary)
            .iter()
            .filter(|group| group.valid().next().is_none())
            .map(|group| (group.scenario, group.scheme))
            .collect()
    }
}

/// Runs the evaluation and writes its runs, summary and table.
///
/// Valid runs that the directory already holds under the same settings are kept, so an interrupted
/// evaluation continues where it ended. When `cancel` becomes true, the runs in progress are
/// abandoned. The report is left to the caller: see [`report::write`](crate::report::write).
///
/// The agents end with the calling thread, which should therefore live as long as the process.
///
/// # Errors
///
/// Returns an error when a scenario or scheme cannot be used, when a run or an agent fails, or when
/// a file cannot be written. All runs that ended before are on disk by then.
pub fn evaluate(
    evaluation: &Evaluation,
    cancel: &AtomicBool,
    mut on_event: impl FnMut(Event<'_>),
) -> Result<Outcome, EvaluateError> {
    let plan = Plan::new(evaluation)?;
    let store = Store::open(&evaluation.dir)?;
    if evaluation.fresh {
        store.clear()?;
    }
    let mut results = BTreeMap::new();
    let mut left = Vec::new();
    for job in plan.jobs() {
        match store.find(&plan.blank(job), &plan.key(job))? {
            Some(file) => drop(results.insert(job, file)),
            None => left.push(job),
        }
    }
    // Probed before agents register further congestion controls, which are not the host's.
    let host = Host::probe();
    on_event(Event::Begun {
        left: left.len(),
        kept: results.len(),
    });
    let summary = |results: &BTreeMap<Job, RunFile>| Summary {
        runs: in_order(results),
        applications: summary::apps::pool(results.values()),
        host: host.clone(),
        settings: plan.settings().clone(),
    };
    let logs = store.logs_dir();
    carry_out(&plan, left, &logs, ATTEMPTS, cancel, |progress| {
        match progress {
            Progress::Live(job, live) => {
                on_event(Event::Live {
                    run: &plan.blank(job),
                    live,
                });
            }
            Progress::Ended { job, file, again } => {
                store.keep(&file)?;
                on_event(Event::Ended {
                    run: &file.run,
                    again,
                });
                results.insert(job, *file);
                store.keep_summary(&summary(&results))?;
            }
            Progress::Worked { done, all } => on_event(Event::Worked { done, all }),
        }
        Ok::<_, EvaluateError>(())
    })?;
    let summary = summary(&results);
    store.keep_summary(&summary)?;
    store.keep_table(&summary)?;
    Ok(Outcome {
        summary,
        summary_path: store.summary_path(),
        runs: results.into_values().collect(),
        cancelled: cancel.load(Ordering::Relaxed),
    })
}

/// Carries out runs of a plan, each disturbed one up to `attempts` times, with the agents that they
/// need, which log to files in `logs`. Ends early when `cancel` becomes true.
///
/// # Errors
///
/// Returns the first error of an agent, a run or the callback.
pub(crate) fn carry_out<E: From<EvaluateError>>(
    plan: &Plan<'_>,
    left: Vec<Job>,
    logs: &Path,
    attempts: u32,
    cancel: &AtomicBool,
    on_progress: impl FnMut(Progress) -> Result<(), E>,
) -> Result<(), E> {
    let agents = match left.is_empty() {
        true => Agents::default(),
        false => start_agents(plan, logs).map_err(EvaluateError::from)?,
    };
    work(plan, &agents, left, attempts, cancel, on_progress)
}

fn start_agents(plan: &Plan<'_>, logs: &Path) -> Result<Agents, AgentError> {
    let mut policies = plan.policies().peekable();
    if plan.on() == Platform::Sim || policies.peek().is_none() {
        return Ok(Agents::default());
    }
    let program = agent::find(plan.agent())?;
    Agents::start(&program, policies, logs, plan.record())
}

/// The runs in the order of scenario, scheme and number, which is that of the summary.
fn in_order(results: &BTreeMap<Job, RunFile>) -> Vec<Run> {
    let mut jobs: Vec<_> = results.iter().collect();
    jobs.sort_by_key(|(job, _)| (job.scenario, job.scheme, job.run));
    jobs.into_iter().map(|(_, file)| file.run.clone()).collect()
}
