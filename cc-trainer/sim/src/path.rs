//! What one direction of a path does to packets, as pure code: the emulated link and the simulator share it.
//!
//! A packet meets, in this order: the policer, the queue, the link that serves it, random loss, aggregation,
//! and propagation. All of it runs on a virtual clock. The link's next start of service follows from the
//! previous one, never from the moment of a call, so that a caller who comes late changes no time.

mod loss;
mod observation;
mod policer;
mod propagation;
mod queue;
mod server;
mod timeline;

#[cfg(test)]
mod tests;

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

pub use observation::{
    BIN, Bin, DirectionObservation, Drops, FlowObservation, Observation, Volume,
};

use crate::scenario;
use loss::Losses;
use policer::TokenBucket;
use propagation::Propagation;
use queue::{PacketQueue, Waiting};
use server::Server;
use timeline::Timeline;

/// Nanoseconds since the scenario's start.
pub type Nanos = u64;

/// A duration in nanoseconds; one that does not fit becomes the largest time, which nothing reaches.
pub fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// The time of what does not happen any more, as the end of a packet in a lasting outage.
const NEVER: Nanos = Nanos::MAX;

/// A packet on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<B> {
    /// Length, bytes of IP.
    pub bytes: u32,
    /// Which of the scenario's flows it belongs to. Those beyond the scenario's flows are taken as one more flow,
    /// without extra delay.
    pub flow: u16,
    /// What the caller wants back with it.
    pub body: B,
}

/// What dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The policer had too few tokens.
    Policer,
    /// The queue had no room.
    Queue,
    /// Random loss.
    Loss,
}

/// The end of a packet's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<B> {
    /// It came through.
    Delivered {
        /// When it is due at the far end.
        at: Nanos,
        /// When it was offered.
        arrived: Nanos,
        /// How long it waited until the link started on it, ns.
        queued: Nanos,
        /// The packet.
        packet: Packet<B>,
    },
    /// It was dropped.
    Dropped {
        /// When: at an arrival (policer, queue), or on leaving the link (random loss).
        at: Nanos,
        /// By what.
        cause: Cause,
        /// The packet.
        packet: Packet<B>,
    },
}

impl<B> Event<B> {
    /// When it happens.
    pub fn at(&self) -> Nanos {
        match self {
            Self::Delivered { at, .. } | Self::Dropped { at, .. } => *at,
        }
    }
}

/// One direction of a path.
#[derive(Debug)]
pub struct OneWayPath<B> {
    policer: Option<TokenBucket>,
    queue: PacketQueue<B>,
    server: Server,
    /// When the link starts on the head of the queue.
    starts: Nanos,
    losses: Losses,
    propagation: Propagation,
    timeline: Timeline<Event<B>>,
    /// Events of flow `i` go by lane `i`, those of flows beyond the scenario's by lane `flows`.
    flows: usize,
    /// The latest time that a caller named.
    now: Nanos,
}

impl<B> OneWayPath<B> {
    /// A direction without packets. `extra_delay[flow]` is added to that flow's propagation; `seed` fixes random
    /// loss and jitter, independently of each other.
    pub fn new(model: &scenario::Direction, extra_delay: &[Duration], seed: u64) -> Self {
        let mut seeds = StdRng::seed_from_u64(seed);
        let flows = extra_delay.len();
        Self {
            policer: model.policer.as_ref().map(TokenBucket::new),
            queue: PacketQueue::new(&model.queue),
            server: Server::new(&model.service),
            starts: NEVER,
            losses: Losses::new(model.loss, StdRng::from_rng(&mut seeds)),
            propagation: Propagation::new(model, extra_delay, StdRng::from_rng(&mut seeds)),
            timeline: Timeline::new(flows + 3),
            flows,
            now: 0,
        }
    }

    /// A packet comes in. `now` never decreases over the calls of [`offer`](Self::offer) and
    /// [`poll`](Self::poll); an earlier time counts as the latest one.
    pub fn offer(&mut self, now: Nanos, packet: Packet<B>) {
        let now = self.advance(now);
        if let Some(policer) = &mut self.policer
            && !policer.passes(now, packet.bytes)
        {
            return self.drop_on_arrival(Cause::Policer, packet);
        }
        let waiting = Waiting {
            arrived: now,
            packet,
        };
        if !self.queue.is_empty() {
            // Whichever packet is the head, the link starts on it when it is free.
            self.enqueue(waiting);
            return;
        }
        let starts = self.server.start(now);
        if starts <= now {
            self.serve(starts, waiting);
        } else {
            self.enqueue(waiting);
            self.starts = if self.queue.is_empty() { NEVER } else { starts };
        }
    }

    /// The next event that is due at or before `now`, in order of time.
    pub fn poll(&mut self, now: Nanos) -> Option<Event<B>> {
        let now = self.advance(now);
        self.timeline.pop(now)
    }

    /// When to poll next: never later than the next delivery, and exact when that one's departure from the link
    /// is determined. A packet that will be lost while it still waits may be reported later than it is lost. None
    /// when nothing will happen any more.
    pub fn next(&self) -> Option<Nanos> {
        let undetermined = match self.starts {
            NEVER => NEVER,
            starts => self.propagation.earliest(starts),
        };
        Some(self.timeline.first().min(undetermined)).filter(|&at| at != NEVER)
    }

    /// Packets and bytes of IP that waited for the link at the latest time named to [`offer`](Self::offer) or
    /// [`poll`](Self::poll); the packet that the link is sending is not among them.
    pub fn backlog(&self) -> (u32, u64) {
        (self.queue.packets(), self.queue.bytes())
    }

    /// Lets the link start on all packets that it starts on up to `now`; gives the time that it is.
    #[inline]
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = now.clamp(self.now, NEVER - 1);
        while self.starts <= self.now
            && let Some(waiting) = self.queue.pop()
        {
            self.serve(self.starts, waiting);
            self.starts = match self.queue.head_arrived() {
                Some(arrived) => self.server.start(arrived),
                None => NEVER,
            };
        }
        self.now
    }

    /// The link starts on a packet at `start`, which determines the rest of its way.
    #[inline]
    fn serve(&mut self, start: Nanos, Waiting { arrived, packet }: Waiting<B>) {
        let departed = self.server.serve(start, packet.bytes);
        if self.losses.takes() {
            let lost = Event::Dropped {
                at: departed,
                cause: Cause::Loss,
                packet,
            };
            return self.timeline.push(self.flows + 2, departed, lost);
        }
        let flow = self.flows.min(packet.flow.into());
        let at = self.propagation.arrival(departed, flow);
        let queued = start - arrived;
        self.timeline.push(
            flow,
            at,
            Event::Delivered {
                at,
                arrived,
                queued,
                packet,
            },
        );
    }

    fn enqueue(&mut self, waiting: Waiting<B>) {
        while let Some(dropped) = self.queue.shed(waiting.packet.bytes) {
            self.drop_on_arrival(Cause::Queue, dropped);
        }
        if let Err(dropped) = self.queue.push(waiting) {
            self.drop_on_arrival(Cause::Queue, dropped);
        }
    }

    fn drop_on_arrival(&mut self, cause: Cause, packet: Packet<B>) {
        let at = self.now;
        self.timeline
            .push(self.flows + 1, at, Event::Dropped { at, cause, packet });
    }
}
