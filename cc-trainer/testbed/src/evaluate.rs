//! Evaluation: congestion controls over emulated links under the running kernel, or in the simulator, measured.
//!
//! [`Scheme`]s run on scenarios in the order of a [`Schedule`]; each [`run()`] has a path of its own; agents serve the
//! schemes that are policies. A run that the host disturbed is repeated, and what stays disturbed is marked. A
//! [`Store`] keeps everything as soon as it is measured.

mod agent;
mod bystanders;
mod plan;
mod run;
mod schedule;
mod scheme;
mod store;
mod traffic;
mod work;

#[cfg(test)]
mod tests;

pub use agent::{Agent, AgentError, Agents, Delays};
pub use run::{FlowSetup, Live, RunError, Setup, run};
pub use schedule::{Job, Jobs, Schedule, cost, interleaved};
pub use scheme::{Control, Controls, Scheme, SchemeError, parse as parse_schemes};
pub use store::{Store, StoreError, digest, key};
pub use traffic::TrafficError;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use cc_core::policy::{ActionSelection, PolicySpec};

use crate::{
    report,
    summary::{self, Host, Platform, Run, RunFile, Summary},
};
use cc_sim::scenario::Scenario;
use plan::Plan;
use work::{Progress, work};

/// What to evaluate, and how.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Where the schemes run.
    pub on: Platform,
    /// The schemes under test.
    pub schemes: Vec<Scheme>,
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
    /// What `rlcc` stands for where a scenario's flow has it.
    pub policy: PolicySpec,
    /// How policies of files draw actions, if not as the files ask.
    pub serving: Option<ActionSelection>,
    /// Length of a run.
    pub seconds: Duration,
    /// Runs of each scheme on each scenario.
    pub runs: u32,
    /// Fixes loss and jitter: the same in each scheme's `n`th run on a scenario.
    pub seed: u64,
    /// How many runs go at the same time.
    pub jobs: Jobs,
    /// Where the results go.
    pub dir: PathBuf,
    /// Remove the runs that `dir` holds, instead of keeping them.
    pub fresh: bool,
    /// The agent's program, for the kernel; none is the one beside this program.
    pub agent: Option<PathBuf>,
    /// Where each agent records, in a directory of its scheme's name; on the kernel.
    pub record: Option<PathBuf>,
    /// The command line, for the record.
    pub command: String,
}

/// What happens during an evaluation.
#[derive(Debug)]
pub enum Event<'a> {
    /// All is ready; this many runs are left to do.
    Begun {
        /// Without those kept from before.
        left: usize,
        /// Kept from before.
        kept: usize,
    },
    /// A run tells how it is going, about every second.
    Live {
        /// Which run: its scenario, scheme and number.
        run: &'a Run,
        /// How it is going.
        live: Live,
    },
    /// A run has ended.
    Ended {
        /// What was measured.
        run: &'a Run,
        /// Whether it goes again, as it is not valid.
        again: bool,
    },
    /// Time has passed: about 20 a second.
    Worked {
        /// Time of runs done, of those that are running as well.
        done: Duration,
        /// Time of all runs.
        all: Duration,
    },
}

/// What came of an evaluation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The measurements.
    pub summary: Summary,
    /// Where `summary.json` is.
    pub summary_path: PathBuf,
    /// Where `report.html` is.
    pub report_path: PathBuf,
    /// Whether it was ended early.
    pub cancelled: bool,
}

/// Why there is no evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// Two scenarios would have the same files.
    #[error(
        "two different scenarios are called `{name}`; evaluate them one after the other, into directories of their own"
    )]
    Homonyms {
        /// Their name.
        name: String,
    },
    /// A flow that would never run.
    #[error(
        "scenario `{scenario}`: flow {flow} starts at {} s, but runs end after {} s; make them longer with --seconds",
        start.as_secs_f64(), seconds.as_secs_f64()
    )]
    TooShort {
        /// The scenario.
        scenario: String,
        /// The flow's number, from 0.
        flow: usize,
        /// When it starts.
        start: Duration,
        /// A run's length.
        seconds: Duration,
    },
    /// A flow's scheme is none.
    #[error("scenario `{scenario}`, flow {flow}: {source}")]
    Flow {
        /// The scenario.
        scenario: String,
        /// The flow's number, from 0.
        flow: usize,
        /// What is wrong.
        source: Box<SchemeError>,
    },
    /// No agent, or it ended.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A run could not be done.
    #[error("{scheme} on {scenario}: {source}")]
    Run {
        /// The scenario.
        scenario: String,
        /// The scheme.
        scheme: String,
        /// Why.
        source: Box<RunError>,
    },
    /// The report could not be written.
    #[error(transparent)]
    Report(#[from] report::ReportError),
}

impl Outcome {
    /// Scenarios and schemes without a single valid run.
    pub fn without_valid_run(&self) -> Vec<(&str, &str)> {
        summary::aggregate::groups(&self.summary)
            .iter()
            .filter(|group| group.valid().next().is_none())
            .map(|group| (group.scenario, group.scheme))
            .collect()
    }
}

/// Evaluates. Runs that the directory holds already are kept, so that an evaluation that was ended goes on. When `cancel`
/// becomes true, the runs that are going on are given up.
///
/// Agents end with the calling thread, so that should be one that lives as long as the process.
///
/// # Errors
/// When something asked for does not exist or cannot be made. What was measured before is on disk.
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
    // Before there are agents: their congestion controls are not the host's.
    let host = Host::probe();
    let agents = match left.is_empty() {
        true => Agents::default(),
        false => start_agents(&plan, &store)?,
    };
    on_event(Event::Begun {
        left: left.len(),
        kept: results.len(),
    });
    let summary = |results: &BTreeMap<Job, RunFile>| Summary {
        runs: in_order(results),
        host: host.clone(),
        settings: plan.settings().clone(),
    };
    work(&plan, &agents, left, evaluation.jobs, cancel, |progress| {
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
        Ok(())
    })?;
    drop(agents);
    let summary = summary(&results);
    store.keep_summary(&summary)?;
    store.keep_table(&summary)?;
    let files: Vec<RunFile> = results.into_values().collect();
    report::write(&evaluation.dir, &summary, &files)?;
    Ok(Outcome {
        summary,
        summary_path: store.summary(),
        report_path: evaluation.dir.join("report.html"),
        cancelled: cancel.load(Ordering::Relaxed),
    })
}

fn start_agents(plan: &Plan<'_>, store: &Store) -> Result<Agents, EvaluateError> {
    let mut served = plan.served().peekable();
    if plan.on() == Platform::Sim || served.peek().is_none() {
        return Ok(Agents::default());
    }
    let program = agent::find(plan.agent())?;
    Ok(Agents::start(
        &program,
        served,
        &store.logs(),
        plan.record(),
    )?)
}

/// By scenario, scheme and number.
fn in_order(results: &BTreeMap<Job, RunFile>) -> Vec<Run> {
    let mut jobs: Vec<_> = results.iter().collect();
    jobs.sort_by_key(|(job, _)| (job.scenario, job.scheme, job.run));
    jobs.into_iter().map(|(_, file)| file.run.clone()).collect()
}
