//! A scenario in virtual time: discrete events, packet by packet, hundreds to thousands of times faster than the real thing.
//!
//! The path is [`crate::path`], the very code of the emulated link. Senders and receivers behave as Linux's do:
//! [`sender`] on ACKs, losses and timers, [`receiver`] on data. Hosts take some time for their work
//! ([`HOST_TIME`]). Everything follows from the scenario, the controls and the seed.

pub mod agent;
pub mod control;
mod delivery;
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

use crate::path::{
    DirectionObservation, Event, Nanos, Observation, OneWayPath, Packet, Volume, nanos,
};
use crate::scenario::{self, Scenario};
use crate::seed;

pub use control::Control;
use control::learned::Learned;
use receiver::Receiver;
use sender::Sender;
use timer::Ticks;
use wire::{ToReceiver, ToSender};

/// The time of what does not happen.
const NEVER: Nanos = Nanos::MAX;
/// A host takes up to this long, ns, from an event to the packets that it sends for it; evenly distributed. With
/// [`EARLY`] it makes round trips some 100 µs longer than the path, as they are over the emulated link. Without it,
/// sender and links of one grid of times fall into a step that nothing real keeps.
const HOST_TIME: u64 = 120_000;
/// How long receiving applications rest after a read: those of `cc-trainer evaluate` for a millisecond, and what waking
/// them takes.
pub const RECEIVER_REST: Duration = Duration::from_micros(1_100);
/// From one packet to the next that a host sends for one event, ns.
const PACKET_TIME: usize = 5_000;
/// The path delivers a packet this much before its time, ns, as the emulated link does at times: its threads
/// are woken ahead, lest they come late.
const EARLY: Duration = Duration::from_nanos(10_000);

/// A scenario with its flows, in virtual time. The same scenario, controls and seed give the same run.
#[derive(Debug)]
pub struct Simulation {
    forward: OneWayPath<ToReceiver>,
    reverse: OneWayPath<ToSender>,
    flows: Vec<Endpoints>,
    now: Nanos,
    /// No flow has a timer before this.
    next_timer: Nanos,
    ticks: Ticks,
    host: Noise,
    observation: Option<Box<Observation>>,
}

/// A flow's two ends.
#[derive(Debug)]
struct Endpoints {
    sender: Sender,
    receiver: Receiver,
    /// When it starts; [`NEVER`] when it has.
    start: Nanos,
    /// When it stops; [`NEVER`] when it has, or does not.
    stop: Nanos,
    /// Until when the sender does nothing, and what came for it meanwhile.
    blocked_until: Nanos,
    backlog: VecDeque<ToSender>,
    /// When something is to be done without a packet.
    wake: Nanos,
    /// Data packets that arrived, and their one-way delays, ns.
    delays: u64,
    delay_sum_ns: u64,
}

/// A flow's figures so far. Bytes are payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTotals {
    /// The handshake is through, and the flow has not stopped.
    pub established: bool,
    /// Sent, retransmissions included.
    pub bytes_sent: u64,
    /// Acknowledged cumulatively.
    pub bytes_acked: u64,
    /// Sent again.
    pub bytes_retransmitted: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Segments that the sender took for lost, retransmissions included.
    pub lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Tail loss probes.
    pub probes: u32,
    /// ACKs received.
    pub acks: u64,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments.
    pub ssthresh: u32,
    /// Rate at which the congestion control paces, bytes/s; `None` when it does not pace.
    pub pacing_rate: Option<u64>,
    /// In flight, segments.
    pub in_flight: u32,
    /// Congestion-avoidance state.
    pub state: CaState,
    /// Smoothed RTT, µs; 0 before the first sample.
    pub srtt_us: u32,
    /// Its mean deviation, µs.
    pub rttvar_us: u32,
    /// Smallest RTT, µs; 0 before the first sample.
    pub min_rtt_us: u32,
    /// What the receiver got, in order and once each.
    pub payload_delivered: u64,
    /// Segments acknowledged or SACKed.
    pub delivered: u64,
    /// Data packets that came through the path.
    pub delays: u64,
    /// Sum of their one-way delays, ns.
    pub delay_sum_ns: u64,
}

impl Simulation {
    /// The scenario at time 0. `controls` has one for each flow, in the scenario's order. Equal seeds give equal losses
    /// and jitter to equal packets, those of the emulated link included.
    ///
    /// # Panics
    /// When there are fewer or more controls than flows.
    pub fn new(scenario: &Scenario, controls: Vec<Control>, seed: u64) -> Self {
        assert_eq!(
            controls.len(),
            scenario.flows.len(),
            "a control for each flow"
        );
        let extra_delay: Vec<Duration> = (scenario.flows.iter())
            .map(|flow| flow.extra_delay)
            .collect();
        let ticks = Ticks::new(seed::output(seed, 1));
        let flow = |(flow, control): (&scenario::Flow, Control)| Endpoints {
            sender: Sender::new(control, ticks),
            receiver: Receiver::new(nanos(RECEIVER_REST)),
            start: nanos(flow.start),
            stop: flow.stop.map_or(NEVER, nanos),
            blocked_until: 0,
            backlog: VecDeque::new(),
            wake: nanos(flow.start),
            delays: 0,
            delay_sum_ns: 0,
        };
        Self {
            forward: OneWayPath::new(&early(&scenario.forward), &extra_delay, seed),
            reverse: OneWayPath::new(&early(&scenario.reverse), &extra_delay, !seed),
            flows: scenario.flows.iter().zip(controls).map(flow).collect(),
            now: 0,
            next_timer: 0,
            ticks,
            host: Noise(seed::output(!seed, 1) | 1),
            observation: None,
        }
    }

    /// The same with receiving applications that rest for another time than [`RECEIVER_REST`] after a read. On a fast link
    /// that decides how much an ACK is for.
    #[must_use]
    pub fn with_receiver_rest(mut self, rest: Duration) -> Self {
        for flow in &mut self.flows {
            flow.receiver.rest = nanos(rest);
        }
        self
    }

    /// The same, which also observes the path as the emulated link does.
    ///
    /// # Panics
    /// As [`new`](Self::new) does.
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

    /// Lets happen what happens up to and including `until`. Stops before, with true, as soon as a learned control has put
    /// out a record; what else happens at the same time then happens on the next call.
    pub fn run(&mut self, until: Nanos) -> bool {
        loop {
            let forward = self.forward.next().unwrap_or(NEVER);
            let reverse = self.reverse.next().unwrap_or(NEVER);
            let next = forward.min(reverse).min(self.next_timer);
            if next > until {
                self.now = self.now.max(until);
                return false;
            }
            self.now = self.now.max(next);
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
        }
    }

    /// The time up to which everything has happened.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Number of flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// A flow's control, if it is a learned one: to take its records and publish decisions.
    pub fn learned(&mut self, flow: usize) -> Option<&mut Learned> {
        match &mut self.flows[flow].sender.control {
            Control::Learned(learned) => Some(learned),
            _ => None,
        }
    }

    /// The flow's sender neither processes ACKs nor sends until then: one that waits for its policy.
    pub fn block(&mut self, flow: usize, until: Nanos) {
        self.flows[flow].blocked_until = until;
        self.settle(flow);
    }

    /// A flow's figures.
    pub fn flow(&self, flow: usize) -> FlowTotals {
        let flow = &self.flows[flow];
        let delivered = u64::from(flow.receiver.in_order()) * u64::from(wire::MSS);
        FlowTotals {
            delays: flow.delays,
            delay_sum_ns: flow.delay_sum_ns,
            ..flow.sender.totals(delivered)
        }
    }

    /// Packets and bytes of IP that wait for the link on the way of the data.
    pub fn backlog(&self) -> (u32, u64) {
        self.forward.backlog()
    }

    /// Bytes of memory that a flow holds now, without those of its packets on the path.
    pub fn memory(&self, flow: usize) -> usize {
        let flow = &self.flows[flow];
        size_of::<Endpoints>()
            + flow.sender.memory()
            + flow.receiver.memory()
            + flow.backlog.capacity() * size_of::<ToSender>()
    }

    /// What was observed of the path so far; none unless it was [asked for](Self::observed).
    pub fn observation(&self) -> Option<Observation> {
        let mut observation = Observation::clone(self.observation.as_deref()?);
        let backlogs = [self.forward.backlog(), self.reverse.backlog()];
        let ways = [&mut observation.forward, &mut observation.reverse];
        for (way, (packets, bytes)) in ways.into_iter().zip(backlogs) {
            way.close(self.now);
            way.elapsed = Duration::from_nanos(self.now);
            way.backlog = Volume {
                packets: packets.into(),
                bytes,
            };
        }
        Some(observation)
    }

    #[inline]
    fn on_forward(&mut self, event: Event<ToReceiver>) {
        if let Some(observation) = &mut self.observation {
            observe(&mut observation.forward, &event, ToReceiver::payload);
        }
        let Event::Delivered {
            at,
            arrived,
            packet,
            ..
        } = event
        else {
            return;
        };
        let index = usize::from(packet.flow);
        let flow = &mut self.flows[index];
        if packet.body.payload() > 0 {
            flow.delays += 1;
            flow.delay_sum_ns += at + EARLY.as_nanos() as Nanos - arrived;
        }
        flow.receiver.on_packet(self.now, packet.body, self.ticks);
        self.settle(index);
    }

    /// Whether a record was put out.
    #[inline]
    fn on_reverse(&mut self, event: Event<ToSender>) -> bool {
        if let Some(observation) = &mut self.observation {
            observe(&mut observation.reverse, &event, |_| 0);
        }
        let Event::Delivered { packet, .. } = event else {
            return false;
        };
        let index = usize::from(packet.flow);
        let flow = &mut self.flows[index];
        if flow.blocked_until > self.now || !flow.backlog.is_empty() {
            flow.backlog.push_back(packet.body);
            return false;
        }
        flow.sender.on_packet(self.now, packet.body);
        let recorded = flow.sender.control.has_record();
        self.settle(index);
        recorded
    }

    /// Does what is to be done now without a packet; whether a record was put out.
    fn on_timers(&mut self) -> bool {
        for index in 0..self.flows.len() {
            if self.flows[index].wake > self.now {
                continue;
            }
            self.flows[index].on_time(self.now);
            let recorded = self.flows[index].sender.control.has_record();
            self.settle(index);
            if recorded {
                return true;
            }
        }
        self.next_timer = (self.flows.iter())
            .map(|flow| flow.wake)
            .min()
            .unwrap_or(NEVER);
        false
    }

    /// Takes what a flow's ends want to send to the path, and notes when the flow wants to be called.
    #[inline]
    fn settle(&mut self, index: usize) {
        let flow = &mut self.flows[index];
        flow.wake = flow.next();
        self.next_timer = self.next_timer.min(flow.wake);
        if flow.sender.outbox.is_empty() && flow.receiver.outbox.is_empty() {
            return;
        }
        let start = self.now + self.host.draw(HOST_TIME);
        let times = (start..).step_by(PACKET_TIME);
        for (at, body) in times.zip(flow.sender.outbox.drain(..)) {
            let packet = Packet {
                bytes: body.bytes(),
                flow: index as u16,
                body,
            };
            offer(
                &mut self.forward,
                self.observation.as_mut().map(|both| &mut both.forward),
                at,
                packet,
                body.payload(),
            );
        }
        for body in flow.receiver.outbox.drain(..) {
            let packet = Packet {
                bytes: body.bytes(),
                flow: index as u16,
                body,
            };
            offer(
                &mut self.reverse,
                self.observation.as_mut().map(|both| &mut both.reverse),
                start,
                packet,
                0,
            );
        }
    }
}

impl Endpoints {
    /// When something is to be done without a packet.
    #[inline]
    fn next(&self) -> Nanos {
        let sender = match self.backlog.is_empty() {
            true => self.sender.wake().max(self.blocked_until),
            false => self.blocked_until,
        };
        let ends = sender.min(self.receiver.wake());
        ends.min(self.start).min(self.stop)
    }

    fn on_time(&mut self, now: Nanos) {
        if self.start <= now {
            self.start = NEVER;
            self.sender.open(now);
        }
        if self.stop <= now {
            self.stop = NEVER;
            self.sender.control.release(now);
            self.sender.close();
            self.backlog.clear();
        }
        if self.receiver.wake() <= now {
            self.receiver.on_timer(now);
        }
        if self.blocked_until > now {
            return;
        }
        // One that puts out a record may block the sender again.
        while !self.sender.control.has_record()
            && let Some(packet) = self.backlog.pop_front()
        {
            self.sender.on_packet(now, packet);
        }
        if self.backlog.is_empty() && self.sender.wake() <= now {
            self.sender.on_timer(now);
        }
    }
}

/// Offers a packet to a direction and notes it.
#[inline]
fn offer<B>(
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

/// Notes a packet's end.
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

/// The direction with a delay that is shorter by [`EARLY`].
fn early(direction: &scenario::Direction) -> scenario::Direction {
    let mut direction = direction.clone();
    let delay = &mut direction.delay;
    let later = delay.changes.iter_mut().map(|change| &mut change.delay);
    for delay in later.chain([&mut delay.base]) {
        *delay = delay.saturating_sub(EARLY);
    }
    direction
}

/// Random numbers for what need not be good ones, but cheap (xorshift64, Marsaglia 2003).
#[derive(Clone, Debug)]
struct Noise(u64);

impl Noise {
    /// A number below `bound`, which is below 2^32.
    #[inline]
    fn draw(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) * bound) >> 32
    }
}
