//! What an operator wants to know of a learner with workers: throughput, handling time, bytes and
//! lag.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use crate::rollout::Rollout;

/// The figures of a learner with workers since it was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExchangePoint {
    /// Workers that are connected at the moment.
    pub workers: u64,
    /// Actor threads that the connected workers have, all together.
    pub actors: u64,
    /// Learners that learn together at the moment, this one included.
    #[serde(default)]
    pub learners: u64,
    /// Workers that were given a plan, each time that they connected.
    pub welcomed: u64,
    /// Streams that were refused, at their first message or at a later one.
    pub refused: u64,
    /// Environment steps learnt from per hour, those of the learner's own actors included.
    pub steps_per_hour: f64,
    /// Mean time from the arrival of a message with rollouts until they were in the queue and the
    /// worker had leave to send another, ms; 0 before the first.
    pub handling_ms: f64,
    /// Bytes of rollouts received per second, as messages before encryption.
    pub received_bytes_per_s: f64,
    /// Bytes of policies sent per second, likewise.
    pub sent_bytes_per_s: f64,
    /// Rollouts that were dropped because their policies were too old.
    pub stale: u64,
    /// Median age of the rollouts learnt from: updates since the policy of their first action.
    pub lag_p50: u64,
    /// 90th percentile of that age.
    pub lag_p90: u64,
    /// 99th percentile of that age.
    pub lag_p99: u64,
    /// The largest age of a rollout that was learnt from, updates.
    pub lag_max: u64,
}

/// Counts that all streams of a server share.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) workers: AtomicU64,
    pub(crate) actors: AtomicU64,
    /// Replicas of the learner that are connected.
    pub(crate) replicas: AtomicU64,
    pub(crate) welcomed: AtomicU64,
    /// Streams that were refused, by [`Refusal`].
    refused: [AtomicU64; Refusal::ALL.len()],
    /// Rollouts in messages that were refused.
    pub(crate) malformed: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) handling_us: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.refused[refusal as usize].fetch_add(1, Relaxed);
    }

    /// Streams that were refused for this.
    pub(crate) fn refused_for(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].load(Relaxed)
    }

    /// Messages, the time of handling them, and the bytes received and sent.
    fn totals(&self) -> [u64; 4] {
        [
            &self.messages,
            &self.handling_us,
            &self.received_bytes,
            &self.sent_bytes,
        ]
        .map(|count| count.load(Relaxed))
    }
}

/// Counts what a learner with workers does, from its start on.
#[derive(Debug)]
pub struct Figures {
    /// What the server counts, and what it had counted before.
    streams: Arc<Counts>,
    before: [u64; 4],
    begun: Instant,
    /// Ages of the rollouts learnt from, updates.
    lags: Histogram<u64>,
    /// Environment steps learnt from since the learner was started.
    steps: u64,
    /// Rollouts that were dropped because their policies were too old.
    stale: u64,
}

impl Figures {
    pub(crate) fn new(streams: Arc<Counts>) -> Self {
        // Three digits; it grows with the largest age.
        let lags = Histogram::new(3).unwrap_or_else(|e| unreachable!("three digits: {e}"));
        Self {
            before: streams.totals(),
            streams,
            begun: Instant::now(),
            lags,
            steps: 0,
            stale: 0,
        }
    }

    /// Counts the rollouts of the update that makes version `updates` + 1, of `steps` environment
    /// steps in all, and the `stale` ones that were dropped since the update before.
    pub fn count(&mut self, rollouts: &[Rollout], updates: u64, steps: u64, stale: u64) {
        for rollout in rollouts {
            let lag = updates.saturating_sub(rollout.version);
            self.lags.saturating_record(lag);
        }
        self.steps += steps;
        self.stale += stale;
    }

    /// Returns the number of actors of workers that are connected at the moment.
    pub fn actors(&self) -> u64 {
        self.streams.actors.load(Relaxed)
    }

    /// Returns the figures at this moment.
    pub fn point(&self) -> ExchangePoint {
        let seconds = self.begun.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        let streams = &*self.streams;
        let totals = streams.totals();
        let [messages, handling_us, received, sent] =
            [0, 1, 2, 3].map(|at| (totals[at] - self.before[at]) as f64);
        let lag = |quantile| self.lags.value_at_quantile(quantile);
        ExchangePoint {
            workers: streams.workers.load(Relaxed),
            actors: self.actors(),
            learners: 1 + streams.replicas.load(Relaxed),
            welcomed: streams.welcomed.load(Relaxed),
            refused: (Refusal::ALL.iter())
                .map(|refusal| streams.refused_for(*refusal))
                .sum(),
            steps_per_hour: 3600.0 * self.steps as f64 / seconds,
            handling_ms: handling_us / messages.max(1.0) / 1e3,
            received_bytes_per_s: received / seconds,
            sent_bytes_per_s: sent / seconds,
            stale: self.stale,
            lag_p50: lag(0.5),
            lag_p90: lag(0.9),
            lag_p99: lag(0.99),
            lag_max: self.lags.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lags_are_counted_in_updates() {
        let of = |version| Rollout {
            version,
            ..Rollout::default()
        };
        let streams = Arc::new(Counts::default());
        streams.messages.store(4, Relaxed);
        streams.handling_us.store(10_000, Relaxed);
        let mut figures = Figures::new(streams.clone());
        streams.messages.store(8, Relaxed);
        streams.handling_us.store(20_000, Relaxed);
        for version in 0..100 {
            figures.count(&[of(version)], 100, 10, 1);
        }
        let point = figures.point();
        assert_eq!((point.lag_p50, point.lag_p90, point.lag_max), (50, 90, 100));
        assert_eq!((point.stale, point.handling_ms), (100, 2.5));
        assert!(point.steps_per_hour > 0.0);
    }
}
