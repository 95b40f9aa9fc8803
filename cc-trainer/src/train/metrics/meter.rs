//! What a run counts, and the figures of a moment.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::{
    rollout::Rollout,
    train::distributed::{figures::Counts, refusal::Refusal},
};

/// Number of rollouts whose ages percentiles are of: the last ones that were learnt from.
const LAGS: usize = 4096;
/// Number of samples that rates refer to: those of a minute.
const SAMPLES: usize = 60;

/// Counts what a run does in this process, for whoever asks.
#[derive(Debug)]
pub(in crate::train) struct Meter {
    learnt: Mutex<Learnt>,
    /// Set when the learner begins to listen for workers.
    workers: OnceLock<(String, Arc<Counts>)>,
    /// The totals of the last minute, oldest first.
    samples: Mutex<VecDeque<(Instant, Totals)>>,
}

/// What the learner has done since its start.
#[derive(Clone, Debug, Default)]
pub(in crate::train) struct Learnt {
    /// Environment steps learnt from.
    pub(in crate::train) steps: u64,
    /// The same since the beginning of the run, in former parts as well.
    pub(in crate::train) run_steps: u64,
    /// Version of the newest policy: updates since the beginning of the run.
    pub(in crate::train) version: u64,
    /// Rollouts that updates have learnt from.
    pub(super) rollouts: u64,
    /// Time that the learner has spent in updates.
    pub(in crate::train) busy: Duration,
    /// Rollouts that were dropped because their policies were too old.
    pub(in crate::train) stale: u64,
    /// Rollouts that were dropped because the queue was full.
    pub(in crate::train) dropped: u64,
    /// Mean return of the last episodes; `None` before the first has ended.
    pub(in crate::train) episode_return: Option<f64>,
    /// Ages of the last rollouts learnt from, updates.
    lags: VecDeque<u64>,
}

impl Learnt {
    /// Counts the rollouts of an update of version `version`, before it makes the next one.
    pub(in crate::train) fn take(&mut self, rollouts: &[Rollout], version: u64) {
        self.rollouts += rollouts.len() as u64;
        let lags = rollouts
            .iter()
            .map(|rollout| version.saturating_sub(rollout.version));
        self.lags.extend(lags);
        let superfluous = self.lags.len().saturating_sub(LAGS);
        self.lags.drain(..superfluous);
    }
}

/// Totals that rates are computed from.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    steps: u64,
    busy: Duration,
    messages: u64,
    handling: Duration,
}

/// What a page is made of: the counts and rates of one moment.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) learnt: Learnt,
    /// Environment steps learnt from per second of the last minute.
    pub(super) steps_per_second: f64,
    /// Share of the last minute that the learner spent in updates.
    pub(super) utilization: f64,
    /// Ages of rollouts by quantile, updates; empty before the first update.
    pub(super) lags: Vec<(&'static str, u64)>,
    /// `None` for a run that does not listen for workers.
    pub(super) workers: Option<WorkersMoment>,
}

/// What workers on other machines do.
#[derive(Clone, Debug)]
pub(super) struct WorkersMoment {
    pub(super) run: String,
    pub(super) connected: u64,
    /// Learners that learn together, this one included.
    pub(super) learners: u64,
    pub(super) actors: u64,
    pub(super) welcomed: u64,
    pub(super) refused: Vec<(&'static str, u64)>,
    /// Rollouts in messages that were refused.
    pub(super) malformed: u64,
    pub(super) messages: u64,
    /// Time of handling all messages.
    pub(super) handling: Duration,
    /// Mean time of handling a message of the last minute; `None` if there was none.
    pub(super) mean_handling: Option<Duration>,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
}

impl Meter {
    /// A meter of a run that has made so many steps and updates before.
    pub(in crate::train) fn new(run_steps: u64, version: u64) -> Self {
        let meter = Self {
            learnt: Mutex::new(Learnt {
                run_steps,
                version,
                ..Learnt::default()
            }),
            workers: OnceLock::new(),
            samples: Mutex::default(),
        };
        meter.sample();
        meter
    }

    /// Says that the learner of this run listens for workers, whose streams count there.
    pub(in crate::train) fn listen(&self, run: &str, counts: Arc<Counts>) {
        self.workers.get_or_init(|| (run.to_owned(), counts));
    }

    /// What the learner has done, to be counted on.
    pub(in crate::train) fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of the totals at this moment, once a second.
    pub(super) fn sample(&self) {
        let sample = (Instant::now(), self.totals());
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back(sample);
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
    }

    fn totals(&self) -> Totals {
        let (steps, busy) = {
            let learnt = self.learnt();
            (learnt.steps, learnt.busy)
        };
        let counts = self.workers.get().map(|(_, counts)| counts);
        Totals {
            steps,
            busy,
            messages: counts.map_or(0, |counts| counts.messages.load(Relaxed)),
            handling: counts.map_or(Duration::ZERO, |counts| {
                Duration::from_micros(counts.handling_us.load(Relaxed))
            }),
        }
    }

    /// The figures of this moment.
    pub(super) fn now(&self) -> Moment {
        let totals = self.totals();
        let oldest = {
            let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.front().copied()
        };
        let (since, before) = oldest.unwrap_or_else(|| (Instant::now(), totals));
        let seconds = since.elapsed().as_secs_f64().max(1e-9);
        let learnt = self.learnt().clone();
        let busy = totals.busy.saturating_sub(before.busy).as_secs_f64();
        Moment {
            steps_per_second: (totals.steps - before.steps) as f64 / seconds,
            // The last update began before the minute, or is counted when it ends.
            utilization: (busy / seconds).min(1.0),
            lags: percentiles(&learnt.lags),
            workers: self.workers.get().map(|(run, counts)| {
                let messages = totals.messages.saturating_sub(before.messages);
                let handling = totals.handling.saturating_sub(before.handling);
                WorkersMoment {
                    run: run.clone(),
                    connected: counts.workers.load(Relaxed),
                    learners: 1 + counts.replicas.load(Relaxed),
                    actors: counts.actors.load(Relaxed),
                    welcomed: counts.welcomed.load(Relaxed),
                    refused: (Refusal::ALL.into_iter())
                        .map(|refusal| (refusal.name(), counts.refused_for(refusal)))
                        .collect(),
                    malformed: counts.malformed.load(Relaxed),
                    messages: totals.messages,
                    handling: totals.handling,
                    mean_handling: (messages > 0).then(|| handling.div_f64(messages as f64)),
                    received_bytes: counts.received_bytes.load(Relaxed),
                    sent_bytes: counts.sent_bytes.load(Relaxed),
                }
            }),
            learnt,
        }
    }
}

/// Percentiles by nearest rank, and the largest; empty for no values.
fn percentiles(values: &VecDeque<u64>) -> Vec<(&'static str, u64)> {
    let mut sorted: Vec<u64> = values.iter().copied().collect();
    sorted.sort_unstable();
    let rank = |share: f64| (share * sorted.len() as f64).ceil() as usize;
    [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("1", 1.0)]
        .into_iter()
        .filter_map(|(name, share)| Some((name, *sorted.get(rank(share).checked_sub(1)?)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_rollouts() {
        assert!(percentiles(&VecDeque::new()).is_empty());
        let mut learnt = Learnt::default();
        let of = |version| Rollout {
            version,
            ..Rollout::default()
        };
        learnt.take(&vec![of(0); LAGS], 1_000_000);
        learnt.take(&vec![of(200); LAGS - 100], 200);
        // A hundred of the first ones are left.
        let named = |lags: &VecDeque<u64>| percentiles(lags).into_iter().map(|(_, lag)| lag);
        assert!(named(&learnt.lags).eq([0, 0, 1_000_000, 1_000_000]));
        learnt.take(&(0..100).map(of).collect::<Vec<_>>(), 100);
        assert!(named(&learnt.lags).eq([0, 0, 60, 100]));
        assert_eq!(learnt.rollouts, 2 * LAGS as u64);
    }

    #[test]
    fn rates_are_those_since_the_oldest_sample() {
        let meter = Meter::new(1_000, 10);
        {
            let mut learnt = meter.learnt();
            learnt.steps += 500;
            learnt.run_steps += 500;
            // More than there was time for, as an update that began before the minute.
            learnt.busy += Duration::from_secs(3600);
        }
        let now = meter.now();
        assert!(now.steps_per_second > 0.0 && now.utilization == 1.0);
        for _ in 0..SAMPLES {
            meter.sample();
        }
        let now = meter.now();
        assert_eq!((now.steps_per_second, now.utilization), (0.0, 0.0));
        assert_eq!((now.learnt.run_steps, now.learnt.version), (1_500, 10));
    }
}
