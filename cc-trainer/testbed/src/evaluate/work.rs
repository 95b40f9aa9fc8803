//! Carries out the runs of a schedule: one thread per run, and repetitions of disturbed runs.

use std::{
    collections::HashMap,
    num::NonZero,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use super::{
    EvaluateError,
    agent::Agents,
    plan::Plan,
    run::{Live, Measured, RunError, run},
    schedule::{Job, Jobs, Schedule, cost},
};
use crate::summary::{Platform, Run, RunFile};

/// Number of times that a disturbed run is tried at most, where only valid runs count.
pub(crate) const ATTEMPTS: u32 = 3;
/// Interval between two checks for runs that have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The same interval in the simulator, whose runs are short.
const SIM_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Progress of the runs, passed to the callback of [`work`].
pub(crate) enum Progress {
    /// A run in progress reports its latest second.
    Live(Job, Live),
    /// A run has ended; it is repeated if it is not valid.
    Ended {
        job: Job,
        file: Box<RunFile>,
        again: bool,
    },
    /// Scenario time of the completed and running parts, and of all runs.
    Worked { done: Duration, all: Duration },
}

/// Carries out the runs `left`, each disturbed one up to `attempts` times. Ends early when `cancel`
/// becomes true.
///
/// # Errors
///
/// Returns the first error of a run, an agent or the callback, after all running threads have
/// ended.
pub(super) fn work<E: From<EvaluateError>>(
    plan: &Plan<'_>,
    agents: &Agents,
    left: Vec<Job>,
    attempts: u32,
    cancel: &AtomicBool,
    mut on_progress: impl FnMut(Progress) -> Result<(), E>,
) -> Result<(), E> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    // Scenario time of all runs, and of those that have ended.
    let mut all: Duration = left.iter().map(|job| plan.length(*job)).sum();
    let mut ended = Duration::ZERO;
    let jobs = left.into_iter().map(|job| (job, cost(plan.scenario(job))));
    let (limit, patience) = match (plan.on(), plan.limit()) {
        // Simulated runs need not be punctual and are short.
        (Platform::Sim, Jobs::Auto) => (Jobs::Count(cores), SIM_POLL_INTERVAL),
        (Platform::Sim, count) => (count, SIM_POLL_INTERVAL),
        (Platform::Kernel, limit) => (limit, POLL_INTERVAL),
    };
    let mut schedule = Schedule::new(jobs, limit, cores);
    let mut tried: HashMap<Job, u32> = HashMap::new();
    // Also set on the first error, so that no further run starts.
    let stop = AtomicBool::new(false);
    let (live_sender, live_receiver) = mpsc::channel();
    thread::scope(|scope| {
        let mut running: Vec<Running<'_>> = Vec::new();
        let mut outcome = Ok(());
        loop {
            if cancel.load(Ordering::Relaxed) || outcome.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            while !stop.load(Ordering::Relaxed)
                && let Some(job) = schedule.start()
            {
                let slot = free_slot(&running);
                let setup = plan.setup(job, slot);
                let (live_sender, stop) = (live_sender.clone(), &stop);
                let work = move || {
                    run(plan.on(), &setup, agents, stop, |live| {
                        // The receiver is gone when the evaluation has failed.
                        let _ = live_sender.send((job, live));
                    })
                };
                running.push(Running {
                    job,
                    slot,
                    begun: Instant::now(),
                    thread: scope.spawn(work),
                });
            }
            if running.is_empty() {
                return outcome;
            }
            thread::sleep(patience);
            let mut step = || {
                for (job, live) in live_receiver.try_iter() {
                    on_progress(Progress::Live(job, live))?;
                }
                for Running { job, thread, .. } in running.extract_if(.., Running::is_over) {
                    let result = thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    let Some(measured) = result.map_err(|source| failed(plan, job, source))? else {
                        continue;
                    };
                    let attempt = tried.entry(job).or_default();
                    *attempt += 1;
                    let file = record(plan, job, measured, *attempt);
                    let again = !file.run.is_valid() && *attempt < attempts;
                    schedule.end(job, again);
                    ended += plan.length(job);
                    if again {
                        all += plan.length(job);
                    }
                    on_progress(Progress::Ended {
                        job,
                        file: Box::new(file),
                        again,
                    })?;
                }
                // The progress of a simulated run is unknown, but the run is short.
                let going = running
                    .iter()
                    .filter(|_| plan.on() == Platform::Kernel)
                    .map(|run| run.begun.elapsed().min(plan.length(run.job)));
                on_progress(Progress::Worked {
                    done: ended + going.sum::<Duration>(),
                    all,
                })
            };
            // Runs that end are collected whatever else has failed.
            let result = step().and_then(|()| Ok(agents.check().map_err(EvaluateError::from)?));
            outcome = outcome.and(result);
        }
    })
}

struct Running<'scope> {
    job: Job,
    slot: u16,
    begun: Instant,
    thread: ScopedJoinHandle<'scope, Result<Option<Measured>, RunError>>,
}

impl Running<'_> {
    fn is_over(&mut self) -> bool {
        self.thread.is_finished()
    }
}

fn free_slot(running: &[Running<'_>]) -> u16 {
    let is_free = |slot: &u16| running.iter().all(|run| run.slot != *slot);
    (0..).find(is_free).unwrap_or(u16::MAX)
}

fn record(plan: &Plan<'_>, job: Job, measured: Measured, attempt: u32) -> RunFile {
    let (run, series, messages) = measured;
    let blank = plan.blank(job);
    let mut run = Run {
        scenario: blank.scenario,
        scheme: blank.scheme,
        run: blank.run,
        ..run
    };
    run.validity.attempts = attempt;
    RunFile {
        key: plan.key(job),
        run,
        series,
        messages,
    }
}

fn failed(plan: &Plan<'_>, job: Job, source: RunError) -> EvaluateError {
    let Run {
        scenario, scheme, ..
    } = plan.blank(job);
    EvaluateError::Run {
        scenario,
        scheme,
        source: source.into(),
    }
}
