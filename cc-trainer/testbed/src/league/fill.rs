//! Carries out the runs that a directory does not hold yet.

use std::sync::atomic::AtomicBool;

use super::{Store, StoreError};
use crate::evaluate::{EvaluateError, Event, Job, Plan, Progress, carry_out};

/// Carries out those of `jobs` of which no run that counts is on disk yet, and keeps them there.
/// Ends early when `cancel` becomes true.
///
/// # Errors
///
/// Returns the first error of an agent, a run or the disk. All runs that ended before are on disk
/// by then.
pub(crate) fn fill<E: From<EvaluateError> + From<StoreError>>(
    plan: &Plan<'_>,
    store: &mut Store,
    jobs: &[Job],
    cancel: &AtomicBool,
    mut on_event: impl FnMut(Event<'_>),
) -> Result<(), E> {
    let is_left = |job: &Job| store.find(&plan.key(*job), job.run).is_none();
    let left: Vec<Job> = jobs.iter().copied().filter(is_left).collect();
    on_event(Event::Begun {
        left: left.len(),
        kept: jobs.len() - left.len(),
    });
    let logs = store.logs().to_owned();
    carry_out(plan, left, &logs, store.attempts(), cancel, |progress| {
        match progress {
            Progress::Live(job, live) => on_event(Event::Live {
                run: &plan.blank(job),
                live,
            }),
            Progress::Ended { file, again, .. } => {
                store.keep(&file.key, &file.run)?;
                on_event(Event::Ended {
                    run: &file.run,
                    again,
                });
            }
            Progress::Worked { done, all } => on_event(Event::Worked { done, all }),
        }
        Ok::<_, E>(())
    })
}
