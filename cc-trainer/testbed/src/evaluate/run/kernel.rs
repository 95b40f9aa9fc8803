//! Runs over an emulated link, under the running kernel's TCP and in real time.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddrV4},
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    FlowSetup, LIVE_PERIOD, Live, Measured, RunError, Setup,
    measure::{self, FlowEnd, between},
};
use crate::{
    evaluate::{
        agent::{Agents, Delays},
        application::Application,
        processor_time::ProcessorTime,
        traffic::{self, Received, Sent, Span, TrafficError},
    },
    link::{Addresses, Classifier, Lateness, Limits, Link, LinkObservation, Namespace},
    summary::{DecisionDelay, Run, Validity},
};
use cc_sim::{app::Session, path::nanos, scenario::App};
use socket2::Socket;

/// Port of the first flow at the end that is called: the far end, unless that has a client.
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
) -> Result<Option<Measured>, RunError> {
    let (near, far) = (Namespace::new()?, Namespace::new()?);
    if setup.scenario.marks() {
        near.request_ecn()?;
        far.request_ecn()?;
    }
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
    let flows = setup.scenario.flows.iter().zip(setup.scenario.hosts());
    let flows = flows.zip(&setup.flows);
    let ends = flows
        .zip(FIRST_PORT..)
        .map(|(((flow, host), setup), port)| {
            let far = addresses.host(host);
            End {
                app: &flow.app,
                control: control_of(agents, setup),
                far,
                called: match flow.app.has_client() {
                    true => SocketAddrV4::new(addresses.near, port),
                    false => SocketAddrV4::new(far, port),
                },
            }
        });
    let ends: Vec<End<'_>> = ends.collect();
    // A socket belongs to the namespace of the thread that creates it, whichever thread uses it.
    let listen = |client: bool| {
        let called = ends.iter().filter(|end| end.app.has_client() == client);
        called
            .map(|end| {
                let socket = traffic::listener(end.called, client.then_some(end.control))?;
                Ok((end.called.port(), socket))
            })
            .collect::<Result<Vec<_>, TrafficError>>()
    };
    let (at_near, at_far) = (near.within(|| listen(true))?, far.within(|| listen(false))?);
    let mut listeners: HashMap<u16, Socket> = at_near?.into_iter().chain(at_far?).collect();
    let connect = || {
        let bulk = ends.iter().filter(|end| *end.app == App::Bulk);
        bulk.map(|end| Ok((end.called.port(), traffic::sender(end.control)?)))
            .collect::<Result<HashMap<_, _>, TrafficError>>()
    };
    let mut senders = near.within(connect)??;

    let zero = link.start();
    // Where the kernel does not report processor times, the other checks must do.
    let others_before = ProcessorTime::now().ok();
    let flows = thread::scope(|scope| {
        let threads: Vec<_> = setup
            .flows
            .iter()
            .zip(&ends)
            .enumerate()
            .map(|(number, (flow, end))| {
                let span = Span {
                    zero,
                    start: flow.start,
                    stop: flow.stop,
                };
                let port = end.called.port();
                let (sender, listener) = (senders.remove(&port), listeners.remove(&port));
                let session =
                    Session::new(end.app, nanos(flow.start), setup.application_seed(number));
                let application = session.map(|session| Application::new(session, span, cancel));
                let application = application.map(Arc::new);
                let (at_near, at_far) = match end.app.has_client() {
                    true => (listener, None),
                    false => (None, listener),
                };
                let (shared, far) = (application.clone(), &far);
                let receiver = scope.spawn(move || match (shared, at_far) {
                    (Some(application), listener) => {
                        far.enter()?;
                        Ok(application.far(end.far, end.called, listener)?)
                    }
                    (None, Some(listener)) => Ok(traffic::receive(listener, span, cancel)?),
                    (None, None) => Ok::<_, RunError>(Received::default()),
                });
                let agent = agents.get(&flow.scheme.name);
                let (shared, near) = (application.clone(), &near);
                let sender = scope.spawn(move || {
                    let mut delays = None;
                    let look = |local, remote| {
                        delays = agent.and_then(|agent| agent.delays(local, remote));
                    };
                    let sent = match (shared, sender) {
                        (Some(application), _) => {
                            near.enter()?;
                            application.near(end.control, end.called, at_near, look)?
                        }
                        (None, Some(socket)) => {
                            traffic::send(socket, end.called, span, cancel, look)?
                        }
                        (None, None) => Sent::default(),
                    };
                    Ok::<_, RunError>((sent, delays))
                });
                (sender, receiver, application)
            })
            .collect();
        watch(&link, zero, setup.seconds, cancel, &mut live);
        // Joins both threads of every flow before anything is dropped: the receiver keeps its end
        // of the connection open.
        let ended: Vec<_> = threads
            .into_iter()
            .map(|(sender, receiver, application)| (sender.join(), receiver.join(), application))
            .collect();
        ended
            .into_iter()
            .map(|(sender, receiver, application)| {
                let unpanicked = |panic| std::panic::resume_unwind(panic);
                let (sent, delays) = sender.unwrap_or_else(unpanicked)?;
                let received = receiver.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok(Ended {
                    sent,
                    received,
                    delays,
                    session: application
                        .and_then(Arc::into_inner)
                        .map(Application::into_session),
                })
            })
            .collect::<Result<Vec<_>, RunError>>()
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
    let (run, series, messages) = measure::measure(setup, &observation.path, &ends);
    Ok(Some((Run { validity, ..run }, series, messages)))
}

/// The reason for invalidity when other programs use this many processors; `None` within the limit.
fn too_busy(others: f64) -> Option<String> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as f64;
    let limit = OTHERS * processors;
    (others > limit).then(|| {
        format!("other programs used {others:.1} of {processors} processors (limit {limit:.1})")
    })
}

/// The application of a flow, the congestion control of its data, and the address at which its
/// connections are accepted.
struct End<'a> {
    app: &'a App,
    control: &'a str,
    /// Address of its host at the far end.
    far: Ipv4Addr,
    called: SocketAddrV4,
}

/// Name of the congestion control of a flow: the agent's for a policy.
fn control_of<'a>(agents: &'a Agents, flow: &FlowSetup<'a>) -> &'a str {
    let agent = agents.get(&flow.scheme.name);
    agent.map_or(&flow.scheme.name, |agent| agent.control())
}

/// Both ends of a flow after its stop.
struct Ended {
    sent: Sent,
    received: Received,
    delays: Option<Delays>,
    session: Option<Session>,
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
            session: ended.session,
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
