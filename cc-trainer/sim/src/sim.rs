//! Discrete-event simulation of a scenario in virtual time, packet by packet, hundreds to thousands
//! of times faster than real time.
//!
//! The path is [`crate::path`], the code of the emulated link. The two ends of a connection behave
//! as Linux 6.18's do: [`sender`] on ACKs, losses and timers, [`receiver`] on data. Hosts take some
//! time for their work ([`HOST_TIME`]). The scenario, the controls and the seed determine a run.

pub mod agent;
mod application;
pub mod control;
mod delivery;
pub mod observer;
mod pacing;
mod rack;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;
mod timer;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use cc_ebpf::CaState;

use crate::app::Session;
use crate::path::{
    Content, DirectionObservation, Ecn, Event, Nanos, Observation, OneWayPath, Packet, Volume,
    nanos,
};
use crate::scenario::{self, Scenario};
use crate::seed;

use application::Application;
pub use application::application_seed;
pub use control::Control;
use control::Observed;
use control::learned::Learned;
use receiver::Receiver;
use sender::Sender;
use timer::Ticks;
use wire::{ToReceiver, ToSender};

/// A time that is never reached.
const NEVER: Nanos = Nanos::MAX;
/// Longest time, ns, that a host takes from an event to the packets that it sends for it; the time
/// is uniformly distributed. With [`EARLY`] it makes round trips some 100 µs longer than the path,
/// as they are over the emulated link. Without it, sender and links with commensurate times would
/// fall into step, which real hosts do not.
const HOST_TIME: u64 = 120_000;
/// Pause of a receiving application between two reads: the receivers of `cc-trainer evaluate` sleep
/// for a millisecond, and waking them takes some time too.
pub const RECEIVER_REST: Duration = Duration::from_micros(1_100);
/// Time between two packets that a host sends for the same event, ns.
const PACKET_TIME: usize = 5_000;
/// Pause of the receiving application of a flow that is not a bulk flow, between two reads: the
/// time that waking it takes.
const APPLICATION_REST: Duration = Duration::from_micros(100);
/// Most connections that may be open at a time. One more waits for another's end.
const MOST_CONNECTIONS: usize = 4_096;
/// The path delivers packets this much before their time, as the emulated link does at times: its
/// threads are woken ahead of time, so that they are not late.
const EARLY: Duration = Duration::from_nanos(10_000);

/// A scenario and its flows in virtual time. The same scenario, controls and seed give the same
/// run.
///
/// ```
/// use std::path::Path;
/// use cc_sim::{scenario, sim::{Control, Simulation}};
///
/// let text = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1 }";
/// let scenario = scenario::parse(text, Path::new("."))?.remove(0);
/// let reno = Control::named("reno", 1).expect("a known control");
/// let mut simulation = Simulation::new(&scenario, vec![reno], 1);
/// simulation.run(1_000_000_000);
/// assert!(simulation.flow(0).established);
/// # Ok::<(), cc_sim::scenario::ScenarioError>(())
/// ```
#[derive(Debug)]
pub struct Simulation {
    /// The queue of the sending host, if it has one; what leaves it goes forward.
    host_queue: Option<Box<OneWayPath<Addressed<ToReceiver>>>>,
    forward: OneWayPath<Addressed<ToReceiver>>,
    reverse: OneWayPath<Addressed<ToSender>>,
    /// The connections. The first ones are those of the flows, in the scenario's order; others
    /// follow while a flow has several at a time. The place of one that has ended is used again.
    connections: Vec<Endpoints>,
    /// What the applications of the flows do, in the scenario's order.
    applications: Vec<Application>,
    now: Nanos,
    /// The earliest timer of any flow, or a time before it.
    next_timer: Nanos,
    ticks: Ticks,
    /// Whether connections negotiate ECN.
    ecn: bool,
    host: Noise,
    /// Whether a learned control has put out a record while applications were at work.
    recorded: bool,
    observation: Option<Box<Observation>>,
}

/// A packet of one connection among several.
#[derive(Clone, Copy, Debug)]
struct Addressed<T> {
    /// Place of the connection, and its number among those that had the place.
    place: u16,
    serial: u16,
    packet: T,
}

impl<T> Addressed<T> {
    fn number(&self) -> u32 {
        u32::from(self.place) << 16 | u32::from(self.serial)
    }
}

impl Content for Addressed<ToReceiver> {
    fn ecn(&self) -> Ecn {
        match self.packet {
            ToReceiver::Data { ect: true, .. } => Ecn::Ect0,
            _ => Ecn::NotEct,
        }
    }

    fn connection(&self) -> u32 {
        self.number()
    }
}

impl Content for Addressed<ToSender> {
    fn connection(&self) -> u32 {
        self.number()
    }
}

/// The two ends of a connection.
#[derive(Debug)]
struct Endpoints {
    sender: Sender,
    receiver: Receiver,
    /// Index of the scenario's flow that the connection belongs to.
    flow: u16,
    /// Number of the connection among those that had this place.
    serial: u16,
    /// When a bulk flow starts; [`NEVER`] once it has started.
    start: Nanos,
    /// When the flow stops; [`NEVER`] once it has stopped, or when it does not stop.
    stop: Nanos,
    /// Segments that the receiver has in order and that are counted in the bytes beside, for a flow
    /// with an application.
    counted: (u32, u64),
    /// The time until which the sender is blocked, and the packets that arrive for it until then.
    blocked_until: Nanos,
    backlog: VecDeque<ToSender>,
    /// When the connection has to be called without a packet: a timer, its start or its stop.
    wake: Nanos,
    /// Number of data packets that arrived, and the sum of their one-way delays in ns.
    delays: u64,
    delay_sum_ns: u64,
    busy: Busy,
}

/// How long a connection has been busy (`tcp_chrono_start` with `TCP_CHRONO_BUSY`).
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    /// Since when it is; `None` while it is not.
    since: Option<Nanos>,
    /// The time that it was busy before, ns.
    before: Nanos,
}

impl Busy {
    #[inline]
    fn note(&mut self, now: Nanos, is_busy: bool) {
        match (self.since, is_busy) {
            (None, true) => self.since = Some(now),
            (Some(since), false) => {
                self.before += now - since;
                self.since = None;
            }
            _ => {}
        }
    }

    fn until(self, now: Nanos) -> Nanos {
        self.before + self.since.map_or(0, |since| now - since)
    }
}

/// The totals of a flow over all of its connections, and the present state of the latest. Bytes are
/// payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTotals {
    /// Whether the handshake is complete and the flow has not stopped.
    pub established: bool,
    /// Bytes sent in data segments, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes that were acknowledged cumulatively (`bytes_acked`).
    pub bytes_acked: u64,
    /// Bytes that were sent more than once (`bytes_retrans`).
    pub bytes_retransmitted: u64,
    /// Number of segments retransmitted (`total_retrans`).
    pub retransmissions: u64,
    /// Segments that loss detection marked lost, retransmissions included.
    pub lost: u64,
    /// Number of retransmission timeouts (`total_rto`).
    pub timeouts: u32,
    /// Number of tail loss probes sent.
    pub probes: u32,
    /// Number of ACKs that the sender received.
    pub acks: u64,
    /// Congestion window in segments (`snd_cwnd`).
    pub cwnd: u32,
    /// Slow-start threshold in segments; 0x7fff_ffff or more before the first loss.
    pub ssthresh: u32,
    /// Rate at which the congestion control paces, bytes/s; `None` when it does not pace.
    pub pacing_rate: Option<u64>,
    /// Segments in flight by the sender's knowledge.
    pub in_flight: u32,
    /// Congestion-avoidance state of the sender.
    pub state: CaState,
    /// Smoothed RTT in µs; 0 before the first sample (`tcpi_rtt`).
    pub srtt_us: u32,
    /// Mean deviation of the RTT in µs (`tcpi_rttvar`).
    pub rttvar_us: u32,
    /// Smallest RTT of the last 300 s in µs; 0 before the first sample.
    pub min_rtt_us: u32,
    /// Bytes that the receiver got, in order and counted once.
    pub payload_delivered: u64,
    /// Segments acknowledged or SACKed, the SYN included.
    pub delivered: u64,
    /// Those of them whose ACK echoed a congestion-experienced mark (`delivered_ce`).
    pub delivered_ce: u64,
    /// Number of data packets that came through the path.
    pub delays: u64,
    /// Sum of the one-way delays of these packets, ns.
    pub delay_sum_ns: u64,
    /// Time with data that the application has written and that are not acknowledged, ns
    /// (`tcpi_busy_time`): of a bulk flow, since it is established.
    pub busy_ns: u64,
}

impl Simulation {
    /// Creates the simulation at time 0. `controls` has the congestion control of each flow, in the
    /// scenario's order. Equal seeds give equal losses and jitter to equal packets, also on the
    /// emulated link, and equal behaviour of applications.
    ///
    /// # Panics
    ///
    /// Panics when the numbers of controls and flows differ, and when the control of a flow that
    /// opens several connections is a [`Control::Custom`] that cannot serve another one
    /// ([`control::CongestionControl::another`]).
    pub fn new(scenario: &Scenario, controls: Vec<Control>, seed: u64) -> Self {
        assert_eq!(controls.len(), scenario.flows.len(), "one control per flow");
        let extra_delay: Vec<Duration> = (scenario.flows.iter())
            .map(|flow| flow.extra_delay)
            .collect();
        let ticks = Ticks::new(seed::output(seed, 1));
        let ecn = scenario.marks();
        let mut connections = Vec::with_capacity(controls.len());
        let mut applications = Vec::with_capacity(controls.len());
        let flows = scenario.flows.iter().zip(scenario.hosts()).zip(controls);
        for (number, ((flow, host), mut control)) in flows.enumerate() {
            control.set_host(host);
            let application = Application::new(flow, number, &control, seed);
            let mut connection = Endpoints::new(number as u16, control, ticks, ecn);
            match application.is_bulk() {
                true => connection.start = nanos(flow.start),
                false => connection = connection.of_application(),
            }
            if scenario.sender.is_some() {
                connection = connection.behind_queue();
            }
            connection.stop = flow.stop.map_or(NEVER, nanos);
            connection.wake = connection.next();
            connections.push(connection);
            applications.push(application);
        }
        let host_queue =
            (scenario.sender).map(|queue| Box::new(OneWayPath::new(&queue.direction(), &[], seed)));
        Self {
            host_queue,
            forward: OneWayPath::new(&early(&scenario.forward), &extra_delay, seed),
            reverse: OneWayPath::new(&early(&scenario.reverse), &extra_delay, !seed),
            connections,
            applications,
            now: 0,
            next_timer: 0,
            ticks,
            ecn,
            host: Noise(seed::output(!seed, 1) | 1),
            recorded: false,
            observation: None,
        }
    }

    /// Sets the pause of the bulk flows' receiving applications between two reads; it is
    /// [`RECEIVER_REST`] otherwise. On a fast link it decides how many segments an ACK
    /// acknowledges.
    #[must_use]
    pub fn with_receiver_rest(mut self, rest: Duration) -> Self {
        for connection in &mut self.connections {
            connection.receiver.rest = nanos(rest);
        }
        self
    }

    /// Creates a simulation that also observes the path as the emulated link does.
    ///
    /// # Panics
    ///
    /// Panics when the numbers of controls and flows differ.
    pub fn observed(scenario: &Scenario, controls: Vec<Control>, seed: u64) -> Self {
        let direction = || DirectionObservation::new(scenario.flows.len() + 1);
        let observation = Observation {
            forward: direction(),
            reverse: direction(),
        };
        Self {
            observation: Some(Box::new(observation)),
            ..Self::new(scenario, controls, seed)
        }
    }

    /// Runs up to and including the time `until`. Returns true, and stops before, as soon as a
    /// learned control has put out a record; other events of the same time then follow in the next
    /// call.
    pub fn run(&mut self, until: Nanos) -> bool {
        loop {
            let forward = self.forward.next().unwrap_or(NEVER);
            let reverse = self.reverse.next().unwrap_or(NEVER);
            let leaves = (self.host_queue.as_ref())
                .and_then(|queue| queue.next())
                .unwrap_or(NEVER);
            let next = forward.min(reverse).min(self.next_timer).min(leaves);
            if next > until {
                self.now = self.now.max(until);
                return false;
            }
            self.now = self.now.max(next);
            if leaves <= self.now {
                self.on_departure();
                continue;
            }
            if forward <= self.now
                && let Some(event) = self.forward.poll(self.now)
            {
                self.on_forward(event);
            }
            if reverse <= self.now
                && let Some(event) = self.reverse.poll(self.now)
                && self.on_reverse(event)
            {
                return true;
            }
            if self.next_timer <= self.now && self.on_timers() {
                return true;
            }
            if std::mem::take(&mut self.recorded) {
                return true;
            }
        }
    }

    /// The present time: all events up to it have been processed.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Number of flows of the scenario, whether or not they have started.
    pub fn flows(&self) -> usize {
        self.applications.len()
    }

    /// Number of places of connections. The first [`flows`](Self::flows) are those of the flows'
    /// first connections; there are more when a flow had several at a time.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Largest number of places that there will ever be.
    pub fn most_connections(&self) -> usize {
        let several = self.applications.iter().any(Application::has_several);
        match several {
            true => self.flows() + MOST_CONNECTIONS,
            false => self.flows(),
        }
    }

    /// Returns the flow of the connection in a place.
    ///
    /// # Panics
    ///
    /// Panics when there is no such place.
    pub fn flow_of(&self, connection: usize) -> usize {
        self.connections[connection].flow.into()
    }

    /// The application of a flow; `None` for a bulk flow.
    ///
    /// # Panics
    ///
    /// Panics when there is no such flow.
    pub fn session(&self, flow: usize) -> Option<&Session> {
        self.applications[flow].session()
    }

    /// Returns a copy of a flow's application, in which the retransmissions of its open connections
    /// are counted up to now; `None` for a bulk flow.
    ///
    /// # Panics
    ///
    /// Panics when there is no such flow.
    pub fn finished_session(&self, flow: usize) -> Option<Session> {
        let application = &self.applications[flow];
        let mut session = application.session()?.clone();
        for &(connection, place) in application.open() {
            let total = self.connections[place].sender.retransmissions();
            session.retransmitted(connection, total.into());
        }
        Some(session)
    }

    /// Returns the control of the connection in a place if it is a learned one, to take its records
    /// and to publish decisions.
    ///
    /// # Panics
    ///
    /// Panics when there is no such place.
    pub fn learned(&mut self, connection: usize) -> Option<&mut Learned> {
        match &mut self.connections[connection].sender.control {
            Control::Learned(learned) => Some(learned),
            _ => None,
        }
    }

    /// Returns the control of the connection in a place if it is one that is observed, to take its
    /// records.
    ///
    /// # Panics
    ///
    /// Panics when there is no such place.
    pub fn watched(&mut self, connection: usize) -> Option<&mut Observed> {
        match &mut self.connections[connection].sender.control {
            Control::Observed(observed) => Some(observed),
            _ => None,
        }
    }

    /// Blocks the sender of the connection in a place, which waits for its policy: until the time
    /// given it neither processes ACKs nor sends.
    ///
    /// # Panics
    ///
    /// Panics when there is no such place.
    pub fn block(&mut self, connection: usize, until: Nanos) {
        self.connections[connection].blocked_until = until;
        self.settle(connection);
    }

    /// Returns the totals and the present state of a flow.
    ///
    /// # Panics
    ///
    /// Panics when there is no such flow.
    pub fn flow(&self, flow: usize) -> FlowTotals {
        let application = &self.applications[flow];
        let mut totals =
            self.connections[application.latest()].totals(self.now, application.is_bulk());
        if let Some(ended) = application.ended() {
            totals.add(ended);
        }
        if application.has_several() {
            for (place, other) in self.connections.iter().enumerate() {
                if usize::from(other.flow) == flow && place != application.latest() {
                    totals.add(&other.totals(self.now, false));
                }
            }
        }
        totals
    }

    /// Packets and bytes of IP in the queue of the forward direction.
    pub fn backlog(&self) -> (u32, u64) {
        self.forward.backlog()
    }

    /// Memory that a flow takes at present in bytes, without its packets on the path.
    ///
    /// # Panics
    ///
    /// Panics when there is no such flow.
    pub fn memory(&self, flow: usize) -> usize {
        let connections = self.connections.iter();
        let own = connections.filter(|connection| usize::from(connection.flow) == flow);
        own.map(Endpoints::memory).sum()
    }

    /// Returns what was observed of the path; `None` unless the simulation was created by
    /// [`observed`](Self::observed).
    pub fn observation(&self) -> Option<Observation> {
        let mut observation = Observation::clone(self.observation.as_deref()?);
        let backlogs = [self.forward.backlog(), self.reverse.backlog()];
        let directions = [&mut observation.forward, &mut observation.reverse];
        for (direction, (packets, bytes)) in directions.into_iter().zip(backlogs) {
            direction.close(self.now);
            direction.elapsed = Duration::from_nanos(self.now);
            direction.backlog = Volume {
                packets: packets.into(),
                bytes,
            };
        }
        Some(observation)
    }

    #[inline]
    fn on_forward(&mut self, event: Event<Addressed<ToReceiver>>) {
        if let Some(observation) = &mut self.observation {
            let payload = |body: &Addressed<ToReceiver>| body.packet.payload();
            observe(&mut observation.forward, &event, payload);
        }
        let Event::Delivered {
            at,
            arrived,
            marked,
            packet: Packet { body, .. },
            ..
        } = event
        else {
            return;
        };
        let place = usize::from(body.place);
        let connection = &mut self.connections[place];
        if connection.serial != body.serial {
            return;
        }
        if body.packet.payload() > 0 {
            connection.delays += 1;
            connection.delay_sum_ns += at + EARLY.as_nanos() as Nanos - arrived;
        }
        (connection.receiver).on_packet(self.now, body.packet, marked, self.ticks);
        self.settle(place);
        self.hand_over(place);
    }

    /// Lets a packet leave the sending host, which may make room for others.
    #[cold]
    fn on_departure(&mut self) {
        let queue = self.host_queue.as_mut();
        let Some(event) = queue.and_then(|queue| queue.poll(self.now)) else {
            return;
        };
        let (dropped, packet) = match event {
            Event::Delivered { packet, .. } => (false, packet),
            Event::Dropped { packet, .. } => (true, packet),
        };
        let Addressed {
            place,
            serial,
            packet: content,
        } = packet.body;
        if !dropped {
            offer(
                &mut self.forward,
                self.observation.as_mut().map(|both| &mut both.forward),
                self.now,
                packet,
                content.payload(),
            );
        }
        let place = usize::from(place);
        let connection = &mut self.connections[place];
        if connection.serial == serial && content.payload() > 0 {
            let may_send = connection.blocked_until <= self.now;
            (connection.sender).on_departure(self.now, dropped, may_send);
            self.settle(place);
        }
    }

    /// Delivers a packet to a sender. Returns whether a record was put out.
    #[inline]
    fn on_reverse(&mut self, event: Event<Addressed<ToSender>>) -> bool {
        if let Some(observation) = &mut self.observation {
            let payload = |body: &Addressed<ToSender>| body.packet.payload();
            observe(&mut observation.reverse, &event, payload);
        }
        let Event::Delivered {
            packet: Packet { body, .. },
            ..
        } = event
        else {
            return false;
        };
        let place = usize::from(body.place);
        let connection = &mut self.connections[place];
        if connection.serial != body.serial {
            return false;
        }
        if connection.blocked_until > self.now || !connection.backlog.is_empty() {
            connection.backlog.push_back(body.packet);
            return false;
        }
        connection.sender.on_packet(self.now, body.packet);
        let recorded = connection.sender.control.has_record();
        self.settle(place);
        self.hand_over(place);
        recorded
    }

    /// Handles what is due without a packet. Returns whether a record was put out.
    fn on_timers(&mut self) -> bool {
        for place in 0..self.connections.len() {
            if self.connections[place].wake > self.now {
                continue;
            }
            self.connections[place].on_timer(self.now, self.ticks);
            let recorded = self.connections[place].sender.control.has_record();
            self.settle(place);
            self.hand_over(place);
            if recorded {
                return true;
            }
        }
        let mut next = NEVER;
        for flow in 0..self.applications.len() {
            if self.applications[flow].due() <= self.now {
                self.work(flow);
            }
            next = next.min(self.applications[flow].due());
        }
        let wakes = self.connections.iter().map(|connection| connection.wake);
        self.next_timer = wakes.min().unwrap_or(NEVER).min(next);
        false
    }

    /// Offers the packets that a connection's ends want to send to the path, and notes when the
    /// connection's next timer is.
    #[inline]
    fn settle(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        let is_busy = connection.sender.is_busy();
        connection.busy.note(self.now, is_busy);
        connection.wake = connection.next();
        self.next_timer = self.next_timer.min(connection.wake);
        if connection.sender.outbox.is_empty() && connection.receiver.outbox.is_empty() {
            return;
        }
        let start = self.now + self.host.draw(HOST_TIME);
        let times = (start..).step_by(PACKET_TIME);
        let (flow, serial) = (connection.flow, connection.serial);
        let place = place as u16;
        for (at, packet) in times.zip(connection.sender.outbox.drain(..)) {
            let payload = packet.payload();
            let packet = Packet {
                bytes: packet.bytes(),
                flow,
                body: Addressed {
                    place,
                    serial,
                    packet,
                },
            };
            if let Some(queue) = &mut self.host_queue {
                queue.offer(at, packet);
                continue;
            }
            offer(
                &mut self.forward,
                self.observation.as_mut().map(|both| &mut both.forward),
                at,
                packet,
                payload,
            );
        }
        for packet in connection.receiver.outbox.drain(..) {
            let payload = packet.payload();
            let packet = Packet {
                bytes: packet.bytes(),
                flow,
                body: Addressed {
                    place,
                    serial,
                    packet,
                },
            };
            offer(
                &mut self.reverse,
                self.observation.as_mut().map(|both| &mut both.reverse),
                start,
                packet,
                payload,
            );
        }
    }
}

impl Endpoints {
    /// Creates the ends of a connection of the flow, in a place that no other had before.
    fn new(flow: u16, control: Control, ticks: Ticks, ecn: bool) -> Self {
        let sender = Sender::new(control, ticks);
        Self {
            sender: match ecn {
                true => sender.with_ecn(),
                false => sender,
            },
            receiver: Receiver::new(nanos(RECEIVER_REST)),
            flow,
            serial: 0,
            start: NEVER,
            stop: NEVER,
            counted: (0, 0),
            blocked_until: 0,
            backlog: VecDeque::new(),
            wake: NEVER,
            delays: 0,
            delay_sum_ns: 0,
            busy: Busy::default(),
        }
    }

    /// Makes the connection one of an application, which writes and reads.
    fn of_application(self) -> Self {
        Self {
            sender: self.sender.of_application(),
            receiver: Receiver::new(nanos(APPLICATION_REST)),
            ..self
        }
    }

    /// Makes the connection one whose sending host has a queue.
    fn behind_queue(self) -> Self {
        Self {
            sender: self.sender.behind_queue(),
            ..self
        }
    }

    /// The next time at which the connection has to be called without a packet.
    #[inline]
    fn next(&self) -> Nanos {
        let sender = match self.backlog.is_empty() {
            true => self.sender.wake().max(self.blocked_until),
            false => self.blocked_until,
        };
        let ends = sender.min(self.receiver.wake());
        ends.min(self.start).min(self.stop)
    }

    fn on_timer(&mut self, now: Nanos, ticks: Ticks) {
        if self.start <= now {
            self.start = NEVER;
            self.sender.open(now);
        }
        if self.stop <= now {
            self.stop = NEVER;
            self.close(now);
        }
        if self.receiver.wake() <= now {
            self.receiver.on_timer(now, ticks);
        }
        if self.blocked_until > now {
            return;
        }
        // Putting out a record may block the sender again.
        while !self.sender.control.has_record()
            && let Some(packet) = self.backlog.pop_front()
        {
            self.sender.on_packet(now, packet);
        }
        if self.backlog.is_empty() && self.sender.wake() <= now {
            self.sender.on_timer(now);
        }
    }

    /// Ends the connection at once.
    fn close(&mut self, now: Nanos) {
        self.sender.control.release(now);
        self.sender.close();
        self.busy.note(now, false);
        self.backlog.clear();
    }

    /// Takes note of the segments that the receiver has in order, and returns the bytes of payload
    /// that it has.
    #[inline]
    fn count_delivered(&mut self) -> u64 {
        let (mut segment, mut bytes) = self.counted;
        // What is not acknowledged cumulatively is on the sender's scoreboard.
        while segment < self.receiver.in_order() {
            bytes += self.sender.payload(segment);
            segment += 1;
        }
        self.counted = (segment, bytes);
        bytes
    }

    fn totals(&self, now: Nanos, is_bulk: bool) -> FlowTotals {
        let delivered = match is_bulk {
            true => u64::from(self.receiver.in_order()) * u64::from(wire::MSS),
            false => self.counted.1,
        };
        FlowTotals {
            delays: self.delays,
            delay_sum_ns: self.delay_sum_ns,
            busy_ns: self.busy.until(now),
            ..self.sender.totals(delivered)
        }
    }

    fn memory(&self) -> usize {
        size_of::<Self>()
            + self.sender.memory()
            + self.receiver.memory()
            + self.backlog.capacity() * size_of::<ToSender>()
    }
}

impl FlowTotals {
    /// Adds the totals of another connection. The state remains.
    fn add(&mut self, other: &Self) {
        self.bytes_sent += other.bytes_sent;
        self.bytes_acked += other.bytes_acked;
        self.bytes_retransmitted += other.bytes_retransmitted;
        self.retransmissions += other.retransmissions;
        self.lost += other.lost;
        self.timeouts += other.timeouts;
        self.probes += other.probes;
        self.acks += other.acks;
        self.payload_delivered += other.payload_delivered;
        self.delivered += other.delivered;
        self.delivered_ce += other.delivered_ce;
        self.delays += other.delays;
        self.delay_sum_ns += other.delay_sum_ns;
        self.busy_ns += other.busy_ns;
    }
}

/// Offers a packet to a direction of the path, and records that for the observation.
#[inline]
fn offer<B: Content>(
    path: &mut OneWayPath<B>,
    observation: Option<&mut DirectionObservation>,
    now: Nanos,
    packet: Packet<B>,
    payload: u32,
) {
    let Some(observation) = observation else {
        return path.offer(now, packet);
    };
    observation.arrived(packet.flow.into(), packet.bytes, payload);
    path.offer(now, packet);
    observation.queued(now, path.backlog().1);
}

/// Records for the observation that a packet was delivered or dropped.
fn observe<B>(
    observation: &mut DirectionObservation,
    event: &Event<B>,
    payload: impl Fn(&B) -> u32,
) {
    match event {
        Event::Delivered {
            at,
            arrived,
            packet,
            ..
        } => {
            let at = at + EARLY.as_nanos() as Nanos;
            observation.delivered(
                at,
                packet.flow.into(),
                packet.bytes,
                payload(&packet.body),
                at - arrived,
            );
        }
        Event::Dropped { at, cause, packet } => observation.dropped(
            *at,
            packet.flow.into(),
            packet.bytes,
            payload(&packet.body),
            *cause,
        ),
    }
}

/// Returns the direction with delays that are shorter by [`EARLY`].
fn early(direction: &scenario::Direction) -> scenario::Direction {
    let mut direction = direction.clone();
    let delay = &mut direction.delay;
    let later = delay.changes.iter_mut().map(|change| &mut change.delay);
    for delay in later.chain([&mut delay.base]) {
        *delay = delay.saturating_sub(EARLY);
    }
    direction
}

/// Random numbers that are cheap rather than good: xorshift64 (Marsaglia 2003).
#[derive(Clone, Debug)]
struct Noise(u64);

impl Noise {
    /// Draws a number below `bound`, which must be below 2³².
    #[inline]
    fn draw(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) * bound) >> 32
    }
}
