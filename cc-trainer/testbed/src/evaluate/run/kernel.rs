//! Runs over an emulated link, under the running kernel's TCP and in real time.

use std::{
    net::SocketAddrV4,
    num::NonZero,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    LIVE_PERIOD, Live, RunError, Setup,
    measure::{self, FlowEnd, between},
};
use crate::{
    evaluate::{
        agent::{Agents, Delays},
        processor_time::ProcessorTime,
        traffic::{self, Received, Sent, Span, TrafficError},
    },
    link::{Addresses, Classifier, Lateness, Limits, Link, LinkObservation, Namespace},
    summary::{DecisionDelay, Run, Series, Validity},
};

/// Port of the first flow at the far end.
const FIRST_PORT: u16 = 5001;
/// Limit of the time that senders and receivers wait for a processor, as a fraction of a flow's
/// duration. It is less strict than the limit of the link's own threads, because what senders and
/// receivers do is not timed and buffers bridge their pauses. On an idle host they wait for up to 4
/// % of the time, as the link's threads take precedence.
const END_WAITING: f64 = 0.15;
/// Limit of the processor time that other programs use, as a fraction of the host's processors. The
/// link's threads take precedence and may stay punctual beside other programs, but senders and
/// receivers do not.
const OTHERS: f64 = 0.25;
/// Interval between two checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Carries out [`super::run`] over an emulated link, with policies served by agents.
pub(super) fn run(
    setup: &Setup<'_>,
    agents: &Agents,
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
    // A socket belongs to the namespace of the thread that creates it, whichever thread uses it.
    let make_listeners = || ends.iter().map(|&end| traffic::listener(end)).collect();
    let listeners: Result<Vec<_>, _> = far.within(make_listeners)?;
    let make_senders = || {
        setup
            .flows
            .iter()
            .map(|flow| {
                let agent = agents.get(&flow.scheme.name);
                traffic::sender(agent.map_or(&flow.scheme.name, |agent| agent.control()))
            })
            .collect()
    };
    let senders: Result<Vec<_>, _> = near.within(make_senders)?;
    let (listeners, senders) = (listeners?, senders?);

    let zero = link.start();
    // Where the kernel does not report processor times, the other checks must do.
    let others_before = ProcessorTime::now().ok();
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
                let agent = agents.get(&flow.scheme.name);
                let sender = scope.spawn(move || {
                    let mut delays = None;
                    let look = |local, remote| {
                        delays = agent.and_then(|agent| agent.delays(local, remote));
                    };
                    let sent = traffic::send(sender, end, span, cancel, look)?;
                    Ok::<_, TrafficError>((sent, delays))
                });
                (sender, receiver)
            })
            .collect();
        watch(&link, zero, setup.seconds, cancel, &mut live);
        // Joins both threads of every flow before anything is dropped: the receiver keeps its end
        // of the connection open.
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
    let others = others_before.zip(ProcessorTime::now().ok());
    let others = others.map(|(before, after)| after.others_since(before, zero.elapsed()));
    let observation = link.finish()?;
    if cancel.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut validity = validity(setup, &observation, &flows);
    validity.reasons.extend(others.and_then(too_busy));
    let ends: Vec<_> = flows.into_iter().map(FlowEnd::from).collect();
    let (run, series) = measure::measure(setup, &observation.path, &ends);
    Ok(Some((Run { validity, ..run }, series)))
}

/// The reason for invalidity when other programs use this many processors; `None` within the limit.
fn too_busy(others: f64) -> Option<String> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as f64;
    let limit = OTHERS * processors;
    (others > limit).then(|| {
        format!("other programs used {others:.1} of {processors} processors (limit {limit:.1})")
    })
}

/// Both ends of a flow after its stop.
struct Ended {
    sent: Sent,
    received: Received,
    delays: Option<Delays>,
}

impl From<Ended> for FlowEnd {
    fn from(ended: Ended) -> Self {
        Self {
            payload: ended.received.payload,
            samples: ended.sent.samples,
            retransmissions: ended.sent.retransmissions,
            decision_delay: ended.delays.map(|delays| DecisionDelay {
                decisions: delays.decisions,
                p50_us: delays.p50_ms * 1e3,
                p99_us: delays.p99_ms * 1e3,
                max_us: delays.max_ms * 1e3,
            }),
        }
    }
}

/// Waits for the end of the run and reports its progress.
fn watch(
    link: &Link,
    zero: Instant,
    seconds: Duration,
    cancel: &AtomicBool,
    live: &mut impl FnMut(Live),
) {
    let mut next = LIVE_PERIOD;
    let mut before = (Duration::ZERO, link.snapshot().path.forward);
    loop {
        let now = zero.elapsed();
        if now >= seconds || cancel.load(Ordering::Relaxed) {
            return;
        }
        if now >= next {
            let after = (now, link.snapshot().path.forward);
            live(between(&before, &after));
            before = after;
            next += LIVE_PERIOD;
        }
        thread::sleep(POLL_INTERVAL.min(seconds - now));
    }
}

fn validity(setup: &Setup<'_>, observation: &LinkObservation, ended: &[Ended]) -> Validity {
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
        measure::ms(of_ways.into_iter().max().unwrap_or_default())
    };
    Validity {
        reasons: disturbances.iter().map(ToString::to_string).collect(),
        attempts: 1,
        lateness_p999_ms: latest(|lateness| lateness.quantile(0.999)),
        lateness_max_ms: latest(Lateness::max),
        ring_drops: ways.iter().map(|way| way.ring_drops).sum(),
        refused: ways.iter().map(|way| way.refused).sum(),
        run_delay_ms: waits.into_iter().max().map(measure::ms),
    }
}
