//! The metrics: names, types, units and help texts, in the text format of OpenMetrics 1.0.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::meter::{Moment, WorkersMoment};

/// What all names begin with.
const PREFIX: &str = "cc_trainer";

/// The page for one moment's figures, in OpenMetrics' text format.
pub(super) fn encode(moment: Moment) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Scrape(moment)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Scrape(Moment);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        page.of_learner(&self.0)?;
        match &self.0.workers {
            Some(workers) => page.of_workers(workers),
            None => Ok(()),
        }
    }
}

/// The page under construction, to which families of metrics are added one after the other.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn of_learner(&mut self, moment: &Moment) -> fmt::Result {
        let learnt = &moment.learnt;
        let run = moment.workers.as_ref().map_or("", |workers| &workers.run);
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("run", run)];
        let help = "the trainer, and the name of the run that workers act for";
        self.0
            .encode_descriptor("run", help, None, MetricType::Info)?
            .encode_info(&labels)?;
        self.counter(
            "steps",
            "environment steps learnt from, since the learner's start",
            None,
            learnt.steps as f64,
        )?;
        self.gauge(
            "run_steps",
            "the same since the beginning of the run; less after a learner was killed, which goes \
             on from its checkpoint",
            None,
            learnt.run_steps,
        )?;
        self.gauge(
            "steps_per_second",
            "environment steps learnt from per second, over the last minute",
            None,
            moment.steps_per_second,
        )?;
        self.gauge(
            "policy_version",
            "version of the newest policy: updates since the beginning of the run",
            None,
            learnt.version,
        )?;
        if let Some(mean) = learnt.episode_return {
            let help = "mean return of the last 100 episodes";
            self.gauge("episode_return", help, None, mean)?;
        }
        self.counter(
            "learner_busy",
            "time that the learner has spent in updates",
            Some(&Unit::Seconds),
            learnt.busy.as_secs_f64(),
        )?;
        self.gauge(
            "learner_utilization",
            "share of the last minute that the learner spent in updates; near 1, further workers \
             only wait",
            None,
            moment.utilization,
        )?;
        self.gauge(
            "learner_idle",
            "share of the last minute that the learner waited for rollouts, which further workers \
             make smaller: what an autoscaler of workers goes by",
            None,
            1.0 - moment.utilization,
        )?;
        self.counter(
            "rollouts",
            "rollouts learnt from, since the learner's start",
            None,
            learnt.rollouts as f64,
        )?;
        let malformed = moment
            .workers
            .as_ref()
            .map_or(0, |workers| workers.malformed);
        self.by(
            "rollouts_refused",
            "rollouts that were not learnt from: stale ones were begun by policies older than the \
             bound, others found the queue full, or came in messages that cannot be",
            MetricType::Counter,
            "reason",
            &[
                ("stale", learnt.stale),
                ("queue_full", learnt.dropped),
                ("malformed", malformed),
            ],
        )?;
        self.by(
            "rollout_lag",
            "age of the last 4096 rollouts learnt from, in versions of the policy",
            MetricType::Gauge,
            "quantile",
            &moment.lags,
        )
    }

    fn of_workers(&mut self, workers: &WorkersMoment) -> fmt::Result {
        self.gauge(
            "workers",
            "workers that are connected",
            None,
            workers.connected,
        )?;
        self.gauge(
            "worker_actors",
            "actor threads of the workers that are connected",
            None,
            workers.actors,
        )?;
        self.gauge(
            "learners",
            "learners that learn together: this one, and the replicas that are connected",
            None,
            workers.learners,
        )?;
        self.counter(
            "workers_welcomed",
            "workers that were given work, each time that they connected",
            None,
            workers.welcomed as f64,
        )?;
        self.by(
            "workers_refused",
            "streams of workers that were refused, by what did not fit",
            MetricType::Counter,
            "reason",
            &workers.refused,
        )?;
        self.counter(
            "messages",
            "messages with rollouts that were handled",
            None,
            workers.messages as f64,
        )?;
        self.counter(
            "handling",
            "time from the arrival of messages with rollouts until their workers had leave to send \
             others, summed over messages",
            Some(&Unit::Seconds),
            workers.handling.as_secs_f64(),
        )?;
        if let Some(mean) = workers.mean_handling {
            self.gauge(
                "handling_mean",
                "the same, the mean over the messages of the last minute; it grows when the queue \
                 is full",
                Some(&Unit::Seconds),
                mean.as_secs_f64(),
            )?;
        }
        self.counter(
            "received",
            "messages with rollouts that were received, before encryption",
            Some(&Unit::Bytes),
            workers.received_bytes as f64,
        )?;
        self.counter(
            "sent",
            "policies that were sent to workers, before encryption",
            Some(&Unit::Bytes),
            workers.sent_bytes as f64,
        )
    }

    fn counter(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: f64) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut metric = self.0.encode_descriptor(name, help, unit, kind)?;
        metric.encode_counter::<NoLabelSet, f64, f64>(&value, None)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.0.encode_descriptor(name, help, unit, kind)?;
        metric.encode_gauge(&value)
    }

    /// A family of counters or gauges, with a value for each value of a label.
    fn by(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        label: &str,
        values: &[(&str, u64)],
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (of, value) in values {
            let labels = [(label, *of)];
            let mut family = metric.encode_family(&labels)?;
            match kind {
                MetricType::Counter => {
                    family.encode_counter::<NoLabelSet, u64, f64>(value, None)?;
                }
                _ => family.encode_gauge(value)?,
            }
        }
        Ok(())
    }
}
