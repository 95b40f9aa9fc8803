//! Computes the figures of a run from the observation of its path and from its flows' ends.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use cc_sim::{
    app::{Message, Playback, Session},
    path::{BIN, DirectionObservation, FlowObservation, Nanos, Observation, nanos},
};

use super::{super::sample::Sample, FlowSetup, Live, Setup};
use crate::summary::{
    DecisionDelay, FlowRun, FlowSeries, MessageRecord, Run, SegmentRun, Series, apps,
    statistics::{self, Share},
};

/// Both ends of a flow after its stop.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowEnd {
    /// Bytes that the receiver got in order and once each, until the flow's stop.
    pub(super) payload: u64,
    /// Samples of the sender's connection, in order of time.
    pub(super) samples: Vec<Sample>,
    /// Number of segments that the sender retransmitted.
    pub(super) retransmissions: u64,
    /// Decision delays, if an agent served the flow.
    pub(super) decision_delay: Option<DecisionDelay>,
    /// The flow's application, if it is not a bulk flow.
    pub(super) session: Option<Session>,
}

/// Progress between two snapshots of the forward direction, each with its scenario time.
pub(super) fn between(
    (from, before): &(Duration, DirectionObservation),
    (to, after): &(Duration, DirectionObservation),
) -> Live {
    // The last entry counts the packets that belong to no flow.
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

/// Computes the figures and the time series of a run, and lists the messages of its applications.
/// The caller fills in the validity.
pub(super) fn measure(
    setup: &Setup<'_>,
    observation: &Observation,
    ends: &[FlowEnd],
) -> (Run, Series, Vec<MessageRecord>) {
    let flows: Vec<FlowRun> = setup
        .flows
        .iter()
        .zip(&observation.forward.flows)
        .zip(ends)
        .map(|((flow, link), end)| measure_flow(flow, link, end))
        .collect();
    let series = time_series(setup, observation, ends);
    let total = observation.forward.total();
    let active = active(&setup.flows);
    let seconds: Duration = active.iter().map(|(from, to)| *to - *from).sum();
    let offered: Option<f64> = active
        .iter()
        .map(|&(from, to)| setup.scenario.capacity_bits(from, to))
        .sum();
    let payload = ends.iter().map(|end| end.payload).sum();
    let samples = ends.iter().flat_map(|end| &end.samples);
    // What each flow has of the time in which all run.
    let shares: Option<Vec<f64>> = common(&setup.flows).map(|(from, to)| {
        let bins = bin_of(from)..bin_of(to);
        let share = |flow: &FlowSeries| {
            let throughput = flow.throughput_mbps.get(bins.clone()).unwrap_or_default();
            throughput.iter().sum()
        };
        series.flows.iter().map(share).collect()
    });
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
        jain: shares.as_deref().and_then(statistics::jain),
        least_over_greatest: shares.as_deref().and_then(statistics::least_over_greatest),
        convergence_s: convergence(&flows, &series),
        segments: segments(setup, observation),
        flows,
        ..Run::default()
    };
    let (messages, playbacks) = applications(setup, ends);
    let run = Run {
        apps: apps::measure(&messages, &playbacks, &series),
        ..run
    };
    (run, series, messages)
}

/// What the applications of the flows recorded.
fn applications(
    setup: &Setup<'_>,
    ends: &[FlowEnd],
) -> (Vec<MessageRecord>, BTreeMap<String, Vec<Playback>>) {
    let mut messages = Vec::new();
    let mut playbacks: BTreeMap<String, Vec<Playback>> = BTreeMap::new();
    for (flow, end) in ends.iter().enumerate() {
        let Some(session) = &end.session else {
            continue;
        };
        let names = session.names();
        let since = |message: &Message, at: Option<Nanos>| {
            at.map(|at| ms(Duration::from_nanos(at.saturating_sub(message.start))))
        };
        messages.extend(session.messages().iter().map(|message| MessageRecord {
            name: names[message.name].clone(),
            flow: flow as u32,
            start_s: Duration::from_nanos(message.start).as_secs_f64(),
            bytes: message.bytes,
            first_byte_ms: since(message, message.first_byte),
            completion_ms: since(message, message.completed),
            echo_ms: since(message, message.echoed),
            retransmissions: message.retransmissions,
        }));
        let stop = nanos(setup.flows[flow].stop);
        if let (Some(playback), Some(name)) = (session.playback(stop), names.first()) {
            playbacks.entry(name.clone()).or_default().push(playback);
        }
    }
    (messages, playbacks)
}

fn measure_flow(flow: &FlowSetup<'_>, link: &FlowObservation, end: &FlowEnd) -> FlowRun {
    FlowRun {
        scheme: flow.scheme.name.clone(),
        start_s: flow.start.as_secs_f64(),
        stop_s: flow.stop.as_secs_f64(),
        throughput_mbps: mbps(end.payload, flow.stop - flow.start),
        p95_owd_ms: p95_owd_ms(link),
        mean_owd_ms: mean_owd_ms(link),
        mean_rtt_ms: mean_rtt_ms(&end.samples),
        loss_rate: ratio(link.data_dropped.packets, link.data_arrived.packets),
        retransmissions: end.retransmissions,
        decision_delay: end.decision_delay,
    }
}

fn time_series(setup: &Setup<'_>, observation: &Observation, ends: &[FlowEnd]) -> Series {
    let forward = &observation.forward;
    let bins = setup.seconds.as_nanos().div_ceil(BIN.as_nanos()) as usize;
    let bins = bins.min(forward.bins.len());
    let bin_s = BIN.as_secs_f64();
    let recorded = &forward.bins[..bins];
    let capacity = |bin: usize| {
        let from = BIN * bin as u32;
        let bits = setup.scenario.capacity_bits(from, from + BIN);
        bits.map(|bits| bits / bin_s / 1e6)
    };
    let flows = ends.iter().enumerate().map(|(index, end)| {
        let mean = |value: fn(&Sample) -> f64| binned(&end.samples, bins, value);
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

/// Measures the scored segments of a run, to the precision of a [`BIN`].
fn segments(setup: &Setup<'_>, observation: &Observation) -> Vec<SegmentRun> {
    let forward = &observation.forward;
    let measure = |segment: Range<Duration>| {
        let (first, end) = (bin_of(segment.start), bin_of(segment.end));
        let end = end.min(forward.bins.len());
        let bins = &forward.bins[first.min(end)..end];
        let length = segment.end - segment.start;
        let delays: u64 = bins.iter().map(|bin| bin.delays).sum();
        let sum_ns: u128 = bins.iter().map(|bin| u128::from(bin.delay_sum_ns)).sum();
        let capacity = setup.scenario.capacity_bits(segment.start, segment.end);
        let rate = |flow: usize| {
            let bytes = bins.iter().map(|bin| bin.delivered_bytes[flow]).sum();
            mbps(bytes, length)
        };
        SegmentRun {
            from_s: segment.start.as_secs_f64(),
            to_s: segment.end.as_secs_f64(),
            capacity_mbps: capacity.map(|bits| bits / length.as_secs_f64() / 1e6),
            throughput_mbps: (0..setup.flows.len()).map(rate).collect(),
            mean_owd_ms: (delays > 0).then(|| sum_ns as f64 / delays as f64 / 1e6),
        }
    };
    let segments = setup.scenario.segments(setup.seconds);
    segments.into_iter().map(measure).collect()
}

fn convergence(flows: &[FlowRun], series: &Series) -> Option<f64> {
    let shares = flows.iter().zip(&series.flows).map(|(flow, series)| Share {
        start_s: flow.start_s,
        stop_s: flow.stop_s,
        throughput: &series.throughput_mbps,
    });
    statistics::convergence(&shares.collect::<Vec<_>>(), series.bin_s)
}

/// Periods in which at least one flow runs, disjoint and in order of time.
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

/// The period in which all flows run; `None` with a single flow or without such a period.
fn common(flows: &[FlowSetup<'_>]) -> Option<(Duration, Duration)> {
    let from = flows.iter().map(|flow| flow.start).max()?;
    let to = flows.iter().map(|flow| flow.stop).min()?;
    (flows.len() > 1 && from < to).then_some((from, to))
}

/// Mean value of the samples in each bin.
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

/// The delays with the longer maximum. They stand for the whole run, because percentiles of several
/// flows cannot be combined.
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

/// Converts a duration to milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::evaluate::scheme::{Control, Scheme};

    fn flow(start: u64, stop: u64) -> FlowSetup<'static> {
        static CUBIC: LazyLock<Scheme> = LazyLock::new(|| Scheme {
            name: "cubic".into(),
            control: Control::Named,
        });
        FlowSetup {
            scheme: &CUBIC,
            start: Duration::from_secs(start),
            stop: Duration::from_secs(stop),
        }
    }

    fn seconds(periods: &[(Duration, Duration)]) -> Vec<(u64, u64)> {
        let seconds = |&(from, to): &(Duration, Duration)| (from.as_secs(), to.as_secs());
        periods.iter().map(seconds).collect()
    }

    #[test]
    fn time_without_flows_is_not_measured() {
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
