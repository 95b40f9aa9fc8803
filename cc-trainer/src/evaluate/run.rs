//! One run: the flows of a scenario over its emulated link, and what was measured.

use std::{
    net::SocketAddrV4,
    num::NonZero,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    agent::{Agent, Delays},
    bystanders::Bystanders,
    traffic::{self, Received, Sample, Sent, Span, TrafficError},
};
use crate::{
    link::{
        Addresses, BIN, Classifier, DirectionObservation, FlowObservation, Lateness, Limits, Link,
        LinkError, Namespace, Observation,
    },
    scenario::Scenario,
    summary::{
        DecisionDelay, FlowRun, FlowSeries, Run, Series, Validity,
        statistics::{self, Share},
    },
};

/// Port of the first flow at the far end.
const FIRST_PORT: u16 = 5001;
/// How long senders and receivers may wait for a processor, as a share of a flow's time. Not as strict as the link's
/// own threads: what they do is not timed, and buffers bridge their pauses. On an idle machine they wait for up to 4 %
/// of the time, as the link comes first.
const END_WAITING: f64 = 0.15;
/// How much of the host other programs may use, as a share of its processors. The link's threads take precedence and
/// may stay punctual beside them, but senders and receivers do not.
const OTHERS: f64 = 0.25;
/// How often a run says how it is going.
const LIVE_PERIOD: Duration = Duration::from_secs(1);
/// How often a run looks whether it is cancelled.
const PATIENCE: Duration = Duration::from_millis(50);

/// What a run needs to be told.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The link.
    pub scenario: &'a Scenario,
    /// The flows, in the scenario's order.
    pub flows: Vec<FlowSetup<'a>>,
    /// Length.
    pub seconds: Duration,
    /// Fixes loss and jitter.
    pub seed: u64,
    /// Which addresses it has; another one in every run that goes at the same time, as agents tell flows apart by
    /// them.
    pub slot: u16,
}

/// A flow of a run.
#[derive(Clone, Copy, Debug)]
pub struct FlowSetup<'a> {
    /// Its scheme's name.
    pub scheme: &'a str,
    /// The kernel's congestion control that it has.
    pub control: &'a str,
    /// The agent that serves it.
    pub agent: Option<&'a Agent>,
    /// When it starts.
    pub start: Duration,
    /// When it stops.
    pub stop: Duration,
}

/// How a run is going: the second before `at`.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Scenario time.
    pub at: Duration,
    /// Payload of each flow through the link, Mbit/s, in the scenario's order.
    pub flows_mbps: Vec<f64>,
    /// Mean one-way delay of data packets, ms; none when there were none.
    pub owd_ms: Option<f64>,
    /// Share of the arriving data packets that the link dropped.
    pub loss_rate: f64,
}

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No flow.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
}

/// Runs the flows and measures; none when cancelled. `live` is called about every second. The run's scenario,
/// scheme and number are for the caller to fill in.
///
/// # Errors
/// When the link or a flow cannot be made, or breaks.
pub fn run(
    setup: &Setup<'_>,
    cancel: &AtomicBool,
    mut live: impl FnMut(Live),
) -> Result<Option<(Run, Series)>, RunError> {
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    let addresses = Addresses::nth(setup.slot);
    let classifier = Classifier {
        first_port: Some(FIRST_PORT),
        flows: setup.flows.len() as u16,
    };
    let link = Link::new(
        setup.scenario,
        &near,
        &far,
        addresses,
        classifier,
        setup.seed,
    )?;
    let ends = (FIRST_PORT..).map(|port| SocketAddrV4::new(addresses.far, port));
    let ends: Vec<_> = ends.take(setup.flows.len()).collect();
    // A socket stays in the namespace of the thread that made it, whoever uses it.
    let make_listeners = || ends.iter().map(|&end| traffic::listener(end)).collect();
    let listeners: Result<Vec<_>, _> = far.within(make_listeners)?;
    let make_senders = || {
        setup
            .flows
            .iter()
            .map(|flow| traffic::sender(flow.control))
            .collect()
    };
    let senders: Result<Vec<_>, _> = near.within(make_senders)?;
    let (listeners, senders) = (listeners?, senders?);

    let zero = link.start();
    // Where the kernel does not tell, other signs have to do.
    let others_before = Bystanders::now().ok();
    let flows = thread::scope(|scope| {
        let threads: Vec<_> = setup
            .flows
            .iter()
            .zip(ends.iter().zip(senders.into_iter().zip(listeners)))
            .map(|(flow, (&end, (sender, listener)))| {
                let span = Span {
                    zero,
                    start: flow.start,
                    stop: flow.stop,
                };
                let receiver = scope.spawn(move || traffic::receive(listener, span, cancel));
                let sender = scope.spawn(move || {
                    let mut delays = None;
                    let look = |local, remote| {
                        delays = flow.agent.and_then(|agent| agent.delays(local, remote));
                    };
                    let sent = traffic::send(sender, end, span, cancel, look)?;
                    Ok::<_, TrafficError>((sent, delays))
                });
                (sender, receiver)
            })
            .collect();
        watch(&link, zero, setup.seconds, cancel, &mut live);
        // Both of a flow before anything is dropped: the receiver holds its end of the connection.
        let ended: Vec<_> = threads
            .into_iter()
            .map(|(sender, receiver)| (sender.join(), receiver.join()))
            .collect();
        ended
            .into_iter()
            .map(|(sender, receiver)| {
                let unpanicked = |panic| std::panic::resume_unwind(panic);
                let (sent, delays) = sender.unwrap_or_else(unpanicked)?;
                let received = receiver.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok(Ended {
                    sent,
                    received,
                    delays,
                })
            })
            .collect::<Result<Vec<_>, TrafficError>>()
    })?;
    let others = others_before.zip(Bystanders::now().ok());
    let others = others.map(|(before, after)| after.since(before, zero.elapsed()));
    let observation = link.finish()?;
    if cancel.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let (mut run, series) = measure(setup, &observation, &flows);
    run.validity.reasons.extend(others.and_then(too_busy));
    Ok(Some((run, series)))
}

/// What is wrong when other programs use this many processors, if anything.
fn too_busy(others: f64) -> Option<String> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as f64;
    let limit = OTHERS * processors;
    (others > limit).then(|| {
        format!("other programs used {others:.1} of {processors} processors (limit {limit:.1})")
    })
}

/// A flow's two ends, after it.
struct Ended {
    sent: Sent,
    received: Received,
    delays: Option<Delays>,
}

/// Waits for the run's end.
fn watch(
    link: &Link,
    zero: Instant,
    seconds: Duration,
    cancel: &AtomicBool,
    live: &mut impl FnMut(Live),
) {
    let mut next = LIVE_PERIOD;
    let mut before = (Duration::ZERO, link.snapshot().forward);
    loop {
        let now = zero.elapsed();
        if now >= seconds || cancel.load(Ordering::Relaxed) {
            return;
        }
        if now >= next {
            let after = (now, link.snapshot().forward);
            live(between(&before, &after));
            before = after;
            next += LIVE_PERIOD;
        }
        thread::sleep(PATIENCE.min(seconds - now));
    }
}

fn between(
    (from, before): &(Duration, DirectionObservation),
    (to, after): &(Duration, DirectionObservation),
) -> Live {
    // The last is what belongs to no flow.
    let flows = before.flows.iter().zip(&after.flows);
    let flows_mbps = flows
        .take(after.flows.len().saturating_sub(1))
        .map(|(before, after)| {
            let payload = after.payload_delivered - before.payload_delivered;
            mbps(payload, *to - *from)
        })
        .collect();
    let (before, after) = (before.total(), after.total());
    let packets = after.data_delivered.packets - before.data_delivered.packets;
    let delay_ns = after.delay_sum_ns - before.delay_sum_ns;
    let arrived = after.data_arrived.packets - before.data_arrived.packets;
    let dropped = after.data_dropped.packets - before.data_dropped.packets;
    Live {
        at: *to,
        flows_mbps,
        owd_ms: (packets > 0).then(|| delay_ns as f64 / packets as f64 / 1e6),
        loss_rate: ratio(dropped, arrived),
    }
}

fn measure(setup: &Setup<'_>, observation: &Observation, ended: &[Ended]) -> (Run, Series) {
    let flows: Vec<FlowRun> = setup
        .flows
        .iter()
        .zip(&observation.forward.flows)
        .zip(ended)
        .map(|((flow, link), ended)| measure_flow(flow, link, ended))
        .collect();
    let series = course(setup, observation, ended);
    let total = observation.forward.total();
    let active = active(&setup.flows);
    let seconds: Duration = active.iter().map(|(from, to)| *to - *from).sum();
    let service = &setup.scenario.forward.service;
    let offered: Option<f64> = active
        .iter()
        .map(|&(from, to)| service.capacity_bits(from, to))
        .sum();
    let payload = ended.iter().map(|flow| flow.received.payload).sum();
    let samples = ended.iter().flat_map(|flow| &flow.sent.samples);
    let run = Run {
        seconds: seconds.as_secs_f64(),
        throughput_mbps: mbps(payload, seconds),
        utilization: offered
            .filter(|&bits| bits > 0.0)
            .map(|bits| total.delivered.bytes as f64 * 8.0 / bits),
        p95_owd_ms: p95_owd_ms(&total),
        mean_owd_ms: mean_owd_ms(&total),
        mean_rtt_ms: mean_rtt_ms(samples),
        loss_rate: ratio(total.data_dropped.packets, total.data_arrived.packets),
        retransmissions: flows.iter().map(|flow| flow.retransmissions).sum(),
        decision_delay: flows
            .iter()
            .filter_map(|flow| flow.decision_delay)
            .reduce(worse),
        jain: common(&setup.flows).and_then(|(from, to)| {
            let bins = bin_of(from)..bin_of(to);
            let shares = series.flows.iter().map(|flow| {
                let throughput = flow.throughput_mbps.get(bins.clone()).unwrap_or_default();
                throughput.iter().sum()
            });
            statistics::jain(&shares.collect::<Vec<f64>>())
        }),
        convergence_s: convergence(&flows, &series),
        validity: validity(setup, observation, ended),
        flows,
        ..Run::default()
    };
    (run, series)
}

fn measure_flow(flow: &FlowSetup<'_>, link: &FlowObservation, ended: &Ended) -> FlowRun {
    FlowRun {
        scheme: flow.scheme.to_owned(),
        start_s: flow.start.as_secs_f64(),
        stop_s: flow.stop.as_secs_f64(),
        throughput_mbps: mbps(ended.received.payload, flow.stop - flow.start),
        p95_owd_ms: p95_owd_ms(link),
        mean_owd_ms: mean_owd_ms(link),
        mean_rtt_ms: mean_rtt_ms(&ended.sent.samples),
        loss_rate: ratio(link.data_dropped.packets, link.data_arrived.packets),
        retransmissions: ended.sent.retransmissions,
        decision_delay: ended.delays.map(|delays| DecisionDelay {
            decisions: delays.decisions,
            p50_us: delays.p50_ms * 1e3,
            p99_us: delays.p99_ms * 1e3,
            max_us: delays.max_ms * 1e3,
        }),
    }
}

fn course(setup: &Setup<'_>, observation: &Observation, ended: &[Ended]) -> Series {
    let forward = &observation.forward;
    let bins = setup.seconds.as_nanos().div_ceil(BIN.as_nanos()) as usize;
    let bins = bins.min(forward.bins.len());
    let bin_s = BIN.as_secs_f64();
    let recorded = &forward.bins[..bins];
    let capacity = |bin: usize| {
        let from = BIN * bin as u32;
        let bits = setup
            .scenario
            .forward
            .service
            .capacity_bits(from, from + BIN);
        bits.map(|bits| bits / bin_s / 1e6)
    };
    let flows = ended.iter().enumerate().map(|(index, flow)| {
        let mean = |value: fn(&Sample) -> f64| binned(&flow.sent.samples, bins, value);
        FlowSeries {
            throughput_mbps: recorded
                .iter()
                .map(|bin| mbps(bin.delivered_bytes[index], BIN))
                .collect(),
            cwnd: mean(|sample| f64::from(sample.cwnd)),
            rtt_ms: mean(|sample| ms(sample.rtt)),
        }
    });
    Series {
        bin_s,
        capacity_mbps: (0..bins).map(capacity).collect(),
        delay_ms: recorded
            .iter()
            .map(|bin| (bin.delays > 0).then(|| bin.delay_sum_ns as f64 / bin.delays as f64 / 1e6))
            .collect(),
        queue_bytes: recorded.iter().map(|bin| bin.max_queue_bytes).collect(),
        dropped: recorded.iter().map(|bin| bin.dropped).collect(),
        flows: flows.collect(),
    }
}

fn convergence(flows: &[FlowRun], series: &Series) -> Option<f64> {
    let shares = flows.iter().zip(&series.flows).map(|(flow, series)| Share {
        start_s: flow.start_s,
        stop_s: flow.stop_s,
        throughput: &series.throughput_mbps,
    });
    statistics::convergence(&shares.collect::<Vec<_>>(), series.bin_s)
}

fn validity(setup: &Setup<'_>, observation: &Observation, ended: &[Ended]) -> Validity {
    let ways = [&observation.forward, &observation.reverse];
    let limits = Limits::of(setup.scenario);
    let ends_limits = Limits {
        waiting: END_WAITING,
        ..limits
    };
    let mut disturbances = limits.disturbances(observation);
    let mut waits: Vec<Duration> = ways.iter().map(|way| way.contention.waited).collect();
    for (number, (flow, ended)) in setup.flows.iter().zip(ended).enumerate() {
        let ends = [
            ("sender", ended.sent.contention),
            ("receiver", ended.received.contention),
        ];
        for (end, contention) in ends {
            let Some(contention) = contention else {
                continue;
            };
            waits.push(contention.waited);
            let thread = format!("the {end} of flow {number}");
            let elapsed = flow.stop - flow.start;
            disturbances.extend(ends_limits.waiting(thread, contention, elapsed));
        }
    }
    let latest = |lateness: fn(&Lateness) -> Duration| {
        let of_ways = ways.map(|way| lateness(&way.lateness));
        ms(of_ways.into_iter().max().unwrap_or_default())
    };
    Validity {
        reasons: disturbances.iter().map(ToString::to_string).collect(),
        attempts: 1,
        lateness_p999_ms: latest(|lateness| lateness.quantile(0.999)),
        lateness_max_ms: latest(Lateness::max),
        ring_drops: ways.iter().map(|way| way.ring_drops).sum(),
        refused: ways.iter().map(|way| way.refused).sum(),
        run_delay_ms: waits.into_iter().max().map(ms),
    }
}

/// When at least one flow runs: periods that do not touch, in order.
fn active(flows: &[FlowSetup<'_>]) -> Vec<(Duration, Duration)> {
    let mut spans: Vec<_> = flows.iter().map(|flow| (flow.start, flow.stop)).collect();
    spans.sort_unstable();
    let mut periods: Vec<(Duration, Duration)> = Vec::new();
    for (start, stop) in spans {
        match periods.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(stop),
            _ => periods.push((start, stop)),
        }
    }
    periods
}

/// When all flows run, if there are several and such a time.
fn common(flows: &[FlowSetup<'_>]) -> Option<(Duration, Duration)> {
    let from = flows.iter().map(|flow| flow.start).max()?;
    let to = flows.iter().map(|flow| flow.stop).min()?;
    (flows.len() > 1 && from < to).then_some((from, to))
}

/// The mean of the samples in each bin.
fn binned(samples: &[Sample], bins: usize, value: fn(&Sample) -> f64) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0_u32); bins];
    for sample in samples {
        if let Some((sum, count)) = sums.get_mut(bin_of(sample.at)) {
            *sum += value(sample);
            *count += 1;
        }
    }
    let mean = |(sum, count)| (count > 0).then(|| sum / f64::from(count));
    sums.into_iter().map(mean).collect()
}

/// Of the whole run the flow with the longest counts, as percentiles of parts do not add up.
fn worse(one: DecisionDelay, other: DecisionDelay) -> DecisionDelay {
    DecisionDelay {
        decisions: one.decisions + other.decisions,
        p50_us: one.p50_us.max(other.p50_us),
        p99_us: one.p99_us.max(other.p99_us),
        max_us: one.max_us.max(other.max_us),
    }
}

fn p95_owd_ms(packets: &FlowObservation) -> Option<f64> {
    packets.delay_quantile(0.95).map(ms)
}

fn mean_owd_ms(packets: &FlowObservation) -> Option<f64> {
    packets.mean_delay().map(ms)
}

fn mean_rtt_ms<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Option<f64> {
    let rtts: Vec<f64> = samples.into_iter().map(|sample| ms(sample.rtt)).collect();
    statistics::mean(&rtts)
}

fn bin_of(at: Duration) -> usize {
    (at.as_nanos() / BIN.as_nanos()) as usize
}

fn mbps(bytes: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => bytes as f64 * 8.0 / time.as_secs_f64() / 1e6,
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(start: u64, stop: u64) -> FlowSetup<'static> {
        FlowSetup {
            scheme: "cubic",
            control: "cubic",
            agent: None,
            start: Duration::from_secs(start),
            stop: Duration::from_secs(stop),
        }
    }

    fn seconds(periods: &[(Duration, Duration)]) -> Vec<(u64, u64)> {
        let seconds = |&(from, to): &(Duration, Duration)| (from.as_secs(), to.as_secs());
        periods.iter().map(seconds).collect()
    }

    #[test]
    fn gaps_between_flows_do_not_count() {
        let flows = [flow(20, 30), flow(0, 5), flow(3, 8), flow(4, 6)];
        assert_eq!(seconds(&active(&flows)), [(0, 8), (20, 30)]);
        assert_eq!(seconds(&active(&[flow(0, 5), flow(5, 9)])), [(0, 9)]);
    }

    #[test]
    fn fairness_is_judged_while_all_flows_run() {
        let of = |flows: &[FlowSetup<'_>]| common(flows).map(|period| seconds(&[period])[0]);
        assert_eq!(of(&[flow(0, 30), flow(5, 30), flow(2, 20)]), Some((5, 20)));
        assert_eq!(of(&[flow(0, 5), flow(5, 9)]), None);
        assert_eq!(of(&[flow(0, 5)]), None, "alone there is nothing to share");
    }

    #[test]
    fn samples_are_averaged_by_bin() {
        let sample = |ms, cwnd| Sample {
            at: Duration::from_millis(ms),
            cwnd,
            rtt: Duration::from_millis(7),
        };
        let samples = [
            sample(0, 10),
            sample(99, 20),
            sample(200, 5),
            sample(900, 1),
        ];
        let means = binned(&samples, 4, |sample| f64::from(sample.cwnd));
        assert_eq!(means, [Some(15.0), None, Some(5.0), None]);
    }
}
