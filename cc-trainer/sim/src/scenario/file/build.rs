//! Converts the tables of scenario files to scenarios, and checks the conditions between keys.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cc_core::regular_file;
use toml::Spanned;

use super::{
    super::{
        App, Delay, DelayChange, DelayVariation, Direction, Flow, Loss, Policer, Queue, Rate,
        RatePoint, Scenario, SenderQueue, Service, Shaper, Trace, generate,
        trace::MAX_OPPORTUNITIES,
    },
    Fault, MAX_FLOWS,
    list::List,
    queue::make_queue,
    score::scoring,
    shape::*,
    value::*,
};

/// Largest possible size of a valid trace: a time has at most ten digits, and its line ends with at
/// most two characters.
const MAX_TRACE_BYTES: u64 = 12 * MAX_OPPORTUNITIES as u64;

impl ScenarioTable {
    pub(super) fn scenario(mut self, folder: &Path) -> Result<Scenario, Fault> {
        let name = self.name.span();
        let forward = self.take_forward();
        let reverse = self
            .reverse
            .take()
            .map(Spanned::into_inner)
            .unwrap_or_default();

        let Some(service) = forward.service(folder)? else {
            let message = "the scenario has no rate: add rate_mbps (or one of trace, schedule, \
                           shaper, opportunities, poisson, cellular)";
            return Err(Fault {
                span: name,
                message: message.to_owned(),
            });
        };
        let Some(base) = &forward.delay_ms else {
            let message = "the scenario has no delay: add delay_ms, one way, in milliseconds";
            return Err(Fault {
                span: name,
                message: message.to_owned(),
            });
        };
        let delay = Delay {
            base: base.get_ref().duration(),
            changes: forward.changes()?.unwrap_or_default(),
            variation: forward.variation(),
            jitter: forward.jitter(),
        };
        let back = Delay {
            base: reverse
                .delay_ms
                .as_ref()
                .map_or(delay.base, |base| base.get_ref().duration()),
            changes: match (reverse.changes()?, &reverse.delay_ms) {
                (Some(changes), _) => changes,
                (None, Some(_)) => Vec::new(),
                (None, None) => delay.changes.clone(),
            },
            variation: match (reverse.variation(), &reverse.delay_ms) {
                (Some(variation), _) => Some(variation),
                (None, Some(_)) => None,
                (None, None) => delay.variation,
            },
            jitter: reverse.jitter(),
        };
        let base_rtt = delay.base + back.base;
        let rate = service.mean_bits_per_second();
        let back_service = reverse.service(folder)?.unwrap_or_else(|| service.clone());
        let flows = flows(self.flow.0, rate)?;
        Ok(Scenario {
            name: self.name.into_inner().0,
            description: self.description,
            sender: self.sender.map(SenderTable::queue),
            forward: forward.direction(service, delay, base_rtt)?,
            reverse: reverse.direction(back_service, back, base_rtt)?,
            scoring: scoring(self.seconds, self.score, &flows)?,
            flows,
        })
    }
}

impl DirectionTable {
    fn direction(
        self,
        service: Service,
        delay: Delay,
        base_rtt: Duration,
    ) -> Result<Direction, Fault> {
        Ok(Direction {
            policer: self.policer.map(|policer| Policer {
                bits_per_second: policer.get_ref().rate_mbps.0 * 1e6,
                burst: policer.get_ref().burst_bytes.0,
            }),
            queue: match self.queue {
                Some(queue) => make_queue(&queue, &service, base_rtt)?,
                None => Queue::default(),
            },
            service,
            loss: self
                .loss
                .map_or(Loss::None, |loss| loss.into_inner().into()),
            aggregation: self
                .aggregation_ms
                .map(|period| period.get_ref().duration()),
            delay,
        })
    }

    /// The service of the link; `None` when no key gives its rate.
    fn service(&self, folder: &Path) -> Result<Option<Service>, Fault> {
        let given = [
            ("rate_mbps", self.rate_mbps.as_ref().map(Spanned::span)),
            ("trace", self.trace.as_ref().map(Spanned::span)),
            ("schedule", self.schedule.as_ref().map(Spanned::span)),
            ("shaper", self.shaper.as_ref().map(Spanned::span)),
            (
                "opportunities",
                self.opportunities.as_ref().map(Spanned::span),
            ),
            ("poisson", self.poisson.as_ref().map(Spanned::span)),
            ("cellular", self.cellular.as_ref().map(Spanned::span)),
        ];
        let mut given = given
            .into_iter()
            .filter_map(|(key, span)| Some((key, span?)));
        if let (Some((first, _)), Some((second, span))) = (given.next(), given.next()) {
            let message =
                format!("both `{first}` and `{second}` give the link's rate: keep one of them");
            return Err(Fault { span, message });
        }
        if let (Some(repeat), None) = (&self.repeat_s, &self.schedule) {
            return Err(Fault::at(
                repeat,
                "`repeat_s` repeats a `schedule`, which is missing: add it, or remove this key",
            ));
        }

        let opportunities = |trace: Trace| Some(Service::Opportunities(Arc::new(trace)));
        Ok(if let Some(rate) = &self.rate_mbps {
            let LinkMbps(mbps) = *rate.get_ref();
            Some(if mbps.is_infinite() {
                Service::Unlimited
            } else {
                Service::Rate(Rate::constant(mbps * 1e6))
            })
        } else if let Some(path) = &self.trace {
            opportunities(read_trace(path, folder)?)
        } else if let Some(schedule) = &self.schedule {
            Some(Service::Rate(make_rate(schedule, self.repeat_s.as_ref())?))
        } else if let Some(shaper) = &self.shaper {
            Some(Service::Shaper(shaper.get_ref().shaper()?))
        } else if let Some(table) = &self.opportunities {
            opportunities(
                table
                    .get_ref()
                    .trace()
                    .map_err(|message| Fault::at(table, message))?,
            )
        } else if let Some(table) = &self.poisson {
            opportunities(
                table
                    .get_ref()
                    .trace()
                    .map_err(|message| Fault::at(table, message))?,
            )
        } else if let Some(table) = &self.cellular {
            opportunities(
                table
                    .get_ref()
                    .trace()
                    .map_err(|message| Fault::at(table, message))?,
            )
        } else {
            None
        })
    }

    fn changes(&self) -> Result<Option<Vec<DelayChange>>, Fault> {
        let Some(tables) = &self.delay_changes else {
            return Ok(None);
        };
        let mut last = Duration::ZERO;
        let mut changes = Vec::new();
        for table in &tables.get_ref().0 {
            let at = table.get_ref().at_s.duration();
            if at <= last {
                return Err(Fault::at(
                    table,
                    "the times of `delay_changes` must ascend, from after 0: sort them",
                ));
            }
            last = at;
            changes.push(DelayChange {
                at,
                delay: table.get_ref().delay_ms.duration(),
            });
        }
        Ok(Some(changes))
    }

    fn variation(&self) -> Option<DelayVariation> {
        let table = self.delay_variation.as_ref()?.get_ref();
        Some(DelayVariation {
            every: (table.every_s).map_or(Duration::from_secs(15), PositiveSeconds::duration),
            spread: table.spread_ms.duration(),
            drift: table.drift_ms.map_or(Duration::ZERO, Millis::duration),
            seed: table.seed,
        })
    }

    fn jitter(&self) -> Duration {
        self.jitter_ms
            .as_ref()
            .map_or(Duration::ZERO, |jitter| jitter.get_ref().duration())
    }
}

impl ShaperTable {
    fn shaper(&self) -> Result<Shaper, Fault> {
        if let Some(peak) = &self.peak_mbps
            && peak.get_ref().0 <= self.rate_mbps.0
        {
            let message = format!(
                "the peak rate must be above the rate of {} Mbit/s: raise `peak_mbps`, or leave \
                 it out (bursts take no time then)",
                self.rate_mbps.0
            );
            return Err(Fault::at(peak, message));
        }
        Ok(Shaper {
            bits_per_second: self.rate_mbps.0 * 1e6,
            burst: self.burst_bytes.0,
            peak_bits_per_second: (self.peak_mbps.as_ref()).map(|peak| peak.get_ref().0 * 1e6),
        })
    }
}

impl SenderTable {
    fn queue(self) -> SenderQueue {
        let bits_per_second = self.rate_mbps.0 * 1e6;
        SenderQueue {
            bits_per_second,
            burst: (self.burst_bytes).map_or_else(
                || SenderQueue::default_burst(bits_per_second),
                |bytes| bytes.0,
            ),
            packets: (self.packets).map_or(SenderQueue::PACKETS, |packets| packets.0),
        }
    }
}

impl From<LossValue> for Loss {
    fn from(value: LossValue) -> Self {
        match value {
            LossValue::Bernoulli(Probability(0.0)) => Self::None,
            LossValue::Bernoulli(Probability(probability)) => Self::Bernoulli(probability),
            LossValue::GilbertElliott(table) => Self::GilbertElliott {
                to_bad: table.to_bad.0,
                to_good: table.to_good.0,
                good: table.good.map_or(0.0, |loss| loss.0),
                bad: table.bad.map_or(1.0, |loss| loss.0),
            },
        }
    }
}

impl From<Loss> for LossValue {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::None => Self::Bernoulli(Probability(0.0)),
            Loss::Bernoulli(probability) => Self::Bernoulli(Probability(probability)),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                good,
                bad,
            } => Self::GilbertElliott(GilbertElliottTable {
                to_bad: Probability(to_bad),
                to_good: Probability(to_good),
                good: Some(Probability(good)),
                bad: Some(Probability(bad)),
            }),
        }
    }
}

impl OpportunitiesTable {
    fn trace(&self) -> Result<Trace, String> {
        /// Length of the trace, s: that of the recorded traces that it replaces.
        const SECONDS: f64 = 60.0;

        let trace = match (self.every_ms, self.packets, self.mbps) {
            (Some(PeriodMillis(every)), Some(PeriodPackets(packets)), None) => {
                Trace::from_times(vec![every; packets as usize])
            }
            (None, None, Some(TraceMbps(mbps))) => generate::even(mbps, SECONDS),
            _ => {
                return Err(
                    "`opportunities` takes either `every_ms` and `packets`, or `mbps`".to_owned(),
                );
            }
        };
        trace.map_err(|error| error.to_string())
    }
}

impl PoissonTable {
    fn trace(&self) -> Result<Trace, String> {
        let seconds = self.seconds.map_or(60.0, |seconds| seconds.0);
        let ramp_s = self.ramp_s.map_or(0.0, |ramp| ramp.0);
        if ramp_s >= seconds {
            return Err(format!(
                "the ramp of {ramp_s} s fills the trace of {seconds} s: make `ramp_s` shorter"
            ));
        }
        let poisson = generate::Poisson {
            mbps: self.mbps.0,
            seconds,
            ramp_s,
            seed: self.seed,
        };
        poisson.trace().map_err(|error| error.to_string())
    }
}

impl CellularTable {
    fn trace(&self) -> Result<Trace, String> {
        let cellular = generate::Cellular {
            mbps: self.mbps.0,
            variation: self.variation.map_or(0.6, |variation| variation.0),
            correlation_s: self.correlation_s.map_or(4.0, |correlation| correlation.0),
            outage_share: self.outage_share.map_or(0.03, |share| share.0),
            outage_s: self.outage_s.map_or(0.3, |length| length.0),
            batch: self.batch.map_or(2.0, |batch| batch.0),
            seconds: self.seconds.map_or(60.0, |seconds| seconds.0),
            seed: self.seed,
        };
        cellular.trace().map_err(|error| error.to_string())
    }
}

fn read_trace(path: &Spanned<PathBuf>, folder: &Path) -> Result<Trace, Fault> {
    let file = folder.join(path.get_ref());
    let text = regular_file::read_to_string(&file, MAX_TRACE_BYTES).map_err(|error| {
        let file = file.display();
        let message = match error.kind() {
            io::ErrorKind::FileTooLarge => {
                format!("the trace {file}: {error}: shorten the trace (it loops)")
            }
            _ => format!(
                "cannot read the trace {file}: {error}; its path counts from the scenario file's \
                 folder"
            ),
        };
        Fault::at(path, message)
    })?;
    Trace::parse(&text, &file)
        .map_err(|error| Fault::at(path, format!("the trace cannot be used: {error}")))
}

fn make_rate(
    schedule: &Spanned<List<PointTable>>,
    repeat: Option<&Spanned<PositiveSeconds>>,
) -> Result<Rate, Fault> {
    let mut points: Vec<RatePoint> = Vec::new();
    for table in &schedule.get_ref().0 {
        let PointTable {
            at_s,
            rate_mbps,
            ramp,
        } = *table.get_ref();
        let at = at_s.duration();
        match points.last() {
            None if at > Duration::ZERO => {
                return Err(Fault::at(
                    table,
                    "the first point of a `schedule` must be at_s = 0: add one",
                ));
            }
            Some(last) if at <= last.at => {
                return Err(Fault::at(
                    table,
                    "the times of a `schedule` must ascend: sort the points",
                ));
            }
            _ => points.push(RatePoint {
                at,
                bits_per_second: rate_mbps.0 * 1e6,
                ramp,
            }),
        }
    }
    if points.iter().all(|point| point.bits_per_second == 0.0) {
        let message = "the `schedule` never carries anything: add a point with rate_mbps above 0, \
                       such as [{ at_s = 0, rate_mbps = 12 }]";
        return Err(Fault::at(schedule, message));
    }
    match (repeat, points.last(), schedule.get_ref().0.last()) {
        (Some(repeat), Some(last), _) if repeat.get_ref().duration() <= last.at => {
            return Err(Fault::at(
                repeat,
                "`repeat_s` must be later than the last point of the `schedule`",
            ));
        }
        (None, Some(last), Some(table)) if last.ramp => {
            return Err(Fault::at(
                table,
                "the last point has nowhere to ramp to: add a point behind it, or `repeat_s`",
            ));
        }
        _ => {}
    }
    Ok(Rate {
        points,
        repeat: repeat.map(|repeat| repeat.get_ref().duration()),
    })
}

/// The flows of a scenario whose link has this mean rate, bit/s; `None` when it is unlimited.
fn flows(tables: Vec<Spanned<FlowTable>>, rate: Option<f64>) -> Result<Vec<Flow>, Fault> {
    if tables.is_empty() {
        return Ok(vec![Flow::default()]);
    }
    if let Some(table) = tables.get(MAX_FLOWS) {
        return Err(Fault::at(
            table,
            format!("a scenario has at most {MAX_FLOWS} flows: remove the others"),
        ));
    }
    tables
        .into_iter()
        .map(|table| table.into_inner().flow(rate))
        .collect()
}

impl FlowTable {
    fn flow(self, rate: Option<f64>) -> Result<Flow, Fault> {
        let start = self.start_s.map_or(Duration::ZERO, Seconds::duration);
        if let Some(stop) = &self.stop_s
            && stop.get_ref().duration() <= start
        {
            return Err(Fault::at(
                stop,
                "the flow stops before it starts: make `stop_s` greater than `start_s`",
            ));
        }
        Ok(Flow {
            start,
            stop: self.stop_s.map(|stop| stop.get_ref().duration()),
            scheme: self.scheme.map(|scheme| scheme.0),
            extra_delay: self.extra_delay_ms.map_or(Duration::ZERO, Millis::duration),
            app: match self.app {
                Some(app) => {
                    let span = app.span();
                    app.into_inner().app(span, rate)?
                }
                None => App::Bulk,
            },
        })
    }
}
