//! The service: a world in real time for whoever asks for one.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cc_sim::path::nanos;
use hdrhistogram::Histogram;
use prost::Message;
use serde::Serialize;

use super::{
    PROTOCOL, SILENCE, SLICE,
    link::{self, Arrived, Outlet, Peer},
    wire::{
        Decided, FromPolicy, FromWorld, Hello, Nothing, Observation, Refusal, decode, from_policy,
        from_world,
    },
};
use crate::{
    environment::{
        Environment,
        networked::{Decision, Moment, NetworkedConfig, SteppedWorld, WorldEnd},
    },
    shim::Socket,
};

/// Shortest interval that a service steps a world in, ms: below it the host's own delays count.
const LEAST_INTERVAL_MS: f64 = 1.0;

/// What a service did until it ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServiceSummary {
    /// Sessions that were opened by greetings.
    pub sessions: u64,
    /// Greetings that were refused, because of what they asked for or because another session was
    /// open.
    pub refused: u64,
    /// Steps that all worlds took together.
    pub steps: u64,
    /// Observations that were sent to policies.
    pub observations: u64,
    /// Decisions that arrived and could be taken.
    pub decisions: u64,
    /// Messages that were none, or about no session.
    pub faults: u64,
    /// By how much observations were sent later than their intervals began; `None` without any.
    pub lateness: Option<Lateness>,
}

/// A distribution of times by which something was late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lateness {
    /// Median of all times, ms.
    pub p50_ms: f64,
    /// 99th percentile of the times, ms.
    pub p99_ms: f64,
    /// Longest of all times, ms.
    pub max_ms: f64,
}

/// Serves worlds, one at a time, until `stop` is true. What does not make sense is counted, and
/// changes nothing.
///
/// # Errors
///
/// Returns an error when the socket cannot be used, not when a session fails.
pub fn serve(socket: Socket, stop: &AtomicBool) -> io::Result<ServiceSummary> {
    thread::scope(|scope| {
        let (received, outlet) = link::receive(socket, scope, stop)?;
        let mut service = Service {
            outlet,
            session: None,
            summary: ServiceSummary::default(),
            late: histogram(),
        };
        service.run(&received, stop);
        Ok(service.summary())
    })
}

/// Times in µs, an hour at most.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3)
        .unwrap_or_else(|error| unreachable!("the bounds are in order: {error}"))
}

struct Service {
    outlet: Outlet,
    session: Option<Session>,
    summary: ServiceSummary,
    late: Histogram<u64>,
}

/// What one peer has asked for.
struct Session {
    number: u64,
    peer: Peer,
    hello: Hello,
    /// When the peer was heard last.
    heard: Instant,
    actions: usize,
    world: WorldEnd<Box<dyn Environment>>,
    config: NetworkedConfig,
    /// The clock of the present episode; `None` until the peer is ready.
    clock: Option<EpisodeClock>,
}

/// When the intervals of an episode begin.
#[derive(Clone, Copy)]
struct EpisodeClock {
    /// The beginning of the episode's first interval.
    begun: Instant,
    /// The same, ns since 1970.
    begun_ns: u64,
    /// Whether the present interval's observation has been sent.
    is_sent: bool,
}

impl Service {
    fn run(&mut self, received: &Receiver<Arrived>, stop: &AtomicBool) {
        // A message that came after what is due next.
        let mut later: Option<Arrived> = None;
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if let Some(session) = &self.session
                && now.duration_since(session.heard) > SILENCE
            {
                self.session = None;
            }
            let due = self.session.as_ref().and_then(Session::due);
            let wait = due.map_or(SLICE, |due| due.saturating_duration_since(now).min(SLICE));
            let arrived = match later.take() {
                Some(arrived) => Ok(arrived),
                None => received.recv_timeout(wait),
            };
            match arrived {
                Ok(arrived) if due.is_none_or(|due| arrived.at <= due) => self.take(arrived),
                Ok(arrived) => {
                    later = Some(arrived);
                    self.act();
                }
                Err(RecvTimeoutError::Timeout) => {
                    if due.is_some_and(|due| due <= Instant::now()) {
                        self.act();
                    }
                }
                // The receiving threads end with `stop`.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(SLICE),
            }
        }
    }

    /// Does what is due: sends an observation, or takes a step.
    fn act(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        let Some(due) = session.due() else {
            return;
        };
        let is_held = session.world.is_held();
        let Some(observation) = session.advance() else {
            self.summary.steps += u64::from(is_held);
            return;
        };
        let late = Instant::now().saturating_duration_since(due);
        // An hour is the longest that is told apart.
        self.late.saturating_record(late.as_micros() as u64);
        self.summary.observations += 1;
        let (peer, number) = (session.peer, session.number);
        self.send(peer, number, from_world::Content::Observation(observation));
    }

    fn take(&mut self, arrived: Arrived) {
        let Arrived { at, from, bytes } = arrived;
        let Ok(FromPolicy {
            session: number,
            content: Some(content),
        }) = decode(&bytes)
        else {
            self.summary.faults += 1;
            return;
        };
        if let from_policy::Content::Hello(hello) = content {
            self.greet(at, from, hello);
            return;
        }
        let session = self.session.as_mut();
        let Some(session) = session.filter(|own| (own.number, own.peer) == (number, from)) else {
            // Goodbyes are said more than once.
            self.summary.faults += u64::from(!matches!(content, from_policy::Content::Bye(_)));
            return;
        };
        session.heard = at;
        match content {
            from_policy::Content::Ready(_) => {
                session.clock.get_or_insert_with(EpisodeClock::start);
            }
            from_policy::Content::Decision(decision) => match session.decide(decision) {
                true => self.summary.decisions += 1,
                false => self.summary.faults += 1,
            },
            from_policy::Content::Bye(_) => self.session = None,
            from_policy::Content::Hello(_) => {}
        }
    }

    /// Opens a session, or says why not.
    fn greet(&mut self, at: Instant, from: Peer, hello: Hello) {
        let known = self.session.as_ref();
        let outcome = match known {
            // The answer was lost.
            Some(session) if session.peer == from && session.hello == hello => Ok(session.number),
            Some(session) if session.peer != from => {
                Err("another policy has the world; try again when it has ended".to_owned())
            }
            _ => Session::open(at, from, hello).map(|session| {
                self.summary.sessions += 1;
                let number = session.number;
                self.session = Some(session);
                number
            }),
        };
        match outcome {
            Ok(number) => self.send(from, number, from_world::Content::Welcome(Nothing {})),
            Err(reason) => {
                self.summary.refused += 1;
                self.send(from, 0, from_world::Content::Refusal(Refusal { reason }));
            }
        }
    }

    fn send(&self, to: Peer, session: u64, content: from_world::Content) {
        let content = Some(content);
        let message = FromWorld { session, content }.encode_to_vec();
        self.outlet.send(to, &message);
    }

    fn summary(&self) -> ServiceSummary {
        let ms = |us: u64| us as f64 / 1e3;
        ServiceSummary {
            lateness: (!self.late.is_empty()).then(|| Lateness {
                p50_ms: ms(self.late.value_at_quantile(0.5)),
                p99_ms: ms(self.late.value_at_quantile(0.99)),
                max_ms: ms(self.late.max()),
            }),
            ..self.summary.clone()
        }
    }
}

impl Session {
    /// The session that a greeting asks for, or what is wrong with it.
    fn open(at: Instant, peer: Peer, hello: Hello) -> Result<Self, String> {
        if hello.protocol != PROTOCOL {
            return Err(format!(
                "protocol {} is asked for, and this service speaks {PROTOCOL}: use the same \
                 release on both hosts",
                hello.protocol
            ));
        }
        let world: SteppedWorld = serde_json::from_str(&hello.world)
            .map_err(|error| format!("a world that this service does not know: {error}"))?;
        let config = NetworkedConfig {
            interval_ms: hello.interval_ms,
            grace_ms: hello.grace_ms,
            ..NetworkedConfig::plain(world)
        };
        config.validate()?;
        if config.interval_ms < LEAST_INTERVAL_MS {
            return Err(format!(
                "interval_ms is {}, and in real time has to be at least {LEAST_INTERVAL_MS}",
                config.interval_ms
            ));
        }
        let world = config.world.environment(hello.seed);
        Ok(Self {
            // A peer that cannot read the answer, such as one with a forged address, does not know
            // it, and gets no observations.
            number: RandomState::new().hash_one(hello.seed),
            peer,
            hello,
            heard: at,
            actions: world.spec().actions,
            world: WorldEnd::new(world),
            config,
            clock: None,
        })
    }

    /// When there is something to do: an observation to send, or a step to take.
    fn due(&self) -> Option<Instant> {
        let clock = self.clock.as_ref()?;
        let grace = match clock.is_sent {
            true => self.config.grace(),
            false => 0,
        };
        let since = self.config.time(self.world.moment().interval) + grace;
        Some(clock.begun + Duration::from_nanos(since))
    }

    /// Does what is due. Returns the observation to be sent, if it is that.
    fn advance(&mut self) -> Option<Observation> {
        let clock = self.clock.as_mut()?;
        let interval = self.world.moment().interval;
        if !clock.is_sent {
            clock.is_sent = true;
            let sent_ns = clock.begun_ns.saturating_add(self.config.time(interval));
            let (observed, progress) = (self.world.observed(), self.world.progress());
            return Some(Observation::new(observed, progress, sent_ns));
        }
        clock.is_sent = false;
        if self.world.step() {
            let next = self.config.time(interval + 1);
            clock.begun += Duration::from_nanos(next);
            clock.begun_ns = clock.begun_ns.saturating_add(next);
        }
        None
    }

    /// Takes a decision; returns whether it is one.
    fn decide(&mut self, decided: Decided) -> bool {
        let Decided {
            episode,
            interval,
            action,
        } = decided;
        let (of, action) = (Moment { episode, interval }, action as usize);
        // Nobody can have seen what has not been sent.
        let is_one = action < self.actions && of <= self.world.moment() && self.clock.is_some();
        if is_one {
            self.world.decide(Decision { of, action });
        }
        is_one
    }
}

impl EpisodeClock {
    fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            begun: Instant::now(),
            begun_ns: nanos(unix.unwrap_or_default()),
            is_sent: false,
        }
    }
}
