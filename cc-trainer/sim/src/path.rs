//! The model of one direction of a path, as pure code that emulated links and the simulator share.
//!
//! A packet passes, in this order: the policer, the queue, the link that serves the queue, random
//! loss, aggregation, and propagation. The model runs on a virtual clock: when the link starts to
//! send a packet follows from when it finished the previous one and never from the time of a call,
//! so that a late caller changes no times.

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

/// Time in nanoseconds since the scenario's start.
pub type Nanos = u64;

/// Converts a duration to nanoseconds. A duration that does not fit becomes the largest time, which
/// is never reached.
pub fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// Time of an event that never happens, such as the end of a packet's transmission in an endless
/// outage.
const NEVER: Nanos = Nanos::MAX;

/// A packet on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<B> {
    /// Length of the packet, bytes of IP.
    pub bytes: u32,
    /// Index of the scenario's flow that the packet belongs to. Packets with larger indices share
    /// one more flow without extra delay.
    pub flow: u16,
    /// Content that is returned to the caller with the packet.
    pub body: B,
}

/// Part of the path that dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The policer had too few tokens.
    Policer,
    /// The queue had no room.
    Queue,
    /// The packet was lost at random.
    Loss,
}

/// The outcome of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<B> {
    /// The packet was delivered to the far end.
    Delivered {
        /// Time at which it is due at the far end.
        at: Nanos,
        /// Time at which it was offered.
        arrived: Nanos,
        /// Time that it waited until the link started to send it, ns.
        queued: Nanos,
        /// Whether it waited longer than the queue's threshold: it has a congestion-experienced
        /// mark if it is ECN-capable.
        marked: bool,
        /// The packet that was offered.
        packet: Packet<B>,
    },
    /// The packet was dropped on the path.
    Dropped {
        /// Time of the drop: at an arrival (policer, queue), or when the packet left the link
        /// (random loss).
        at: Nanos,
        /// Part of the path that dropped it.
        cause: Cause,
        /// The packet that was offered.
        packet: Packet<B>,
    },
}

impl<B> Event<B> {
    /// Time of the event in ns.
    pub fn at(&self) -> Nanos {
        match self {
            Self::Delivered { at, .. } | Self::Dropped { at, .. } => *at,
        }
    }
}

/// State of one direction of a path, with all packets on it.
#[derive(Debug)]
pub struct OneWayPath<B> {
    policer: Option<TokenBucket>,
    queue: PacketQueue<B>,
    /// Longest time in the queue without a mark, ns; `None` for a queue that never marks.
    ce_threshold: Option<Nanos>,
    server: Server,
    /// Time at which the link starts to send the head of the queue.
    starts: Nanos,
    losses: Losses,
    propagation: Propagation,
    timeline: Timeline<Event<B>>,
    /// Number of flows. Events of flow `i` use lane `i` of the timeline, and those of all other
    /// packets use lane `flows`.
    flows: usize,
    /// The latest time that a caller has passed.
    now: Nanos,
}

impl<B> OneWayPath<B> {
    /// Creates a direction without packets. `extra_delay[flow]` is added to that flow's propagation
    /// delay. `seed` determines random loss and jitter, which are independent of each other.
    pub fn new(model: &scenario::Direction, extra_delay: &[Duration], seed: u64) -> Self {
        let mut seeds = StdRng::seed_from_u64(seed);
        let flows = extra_delay.len();
        Self {
            policer: model.policer.as_ref().map(TokenBucket::new),
            queue: PacketQueue::new(&model.queue),
            ce_threshold: model.queue.ce_threshold.map(nanos),
            server: Server::new(&model.service),
            starts: NEVER,
            losses: Losses::new(model.loss, StdRng::from_rng(&mut seeds)),
            propagation: Propagation::new(model, extra_delay, StdRng::from_rng(&mut seeds)),
            timeline: Timeline::new(flows + 3),
            flows,
            now: 0,
        }
    }

    /// Offers a packet to the path at `now`. Times must not decrease over the calls of
    /// [`offer`](Self::offer) and [`poll`](Self::poll); an earlier time counts as the latest one.
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
            // Whichever packet is the head, the link starts to send it when it becomes free.
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

    /// Returns the next event that is due at or before `now`, in order of time.
    pub fn poll(&mut self, now: Nanos) -> Option<Event<B>> {
        let now = self.advance(now);
        self.timeline.pop(now)
    }

    /// Returns when to poll next; `None` when nothing will happen any more.
    ///
    /// The time is never later than the next delivery, and exact when that packet's departure from
    /// the link is determined. The loss of a packet that still waits may be reported later than it
    /// happens.
    pub fn next(&self) -> Option<Nanos> {
        let undetermined = match self.starts {
            NEVER => NEVER,
            starts => self.propagation.earliest(starts),
        };
        Some(self.timeline.first().min(undetermined)).filter(|&at| at != NEVER)
    }

    /// Packets and bytes of IP that waited for the link at the latest time passed to
    /// [`offer`](Self::offer) or [`poll`](Self::poll), without the packet that the link is sending.
    pub fn backlog(&self) -> (u32, u64) {
        (self.queue.packets(), self.queue.bytes())
    }

    /// Lets the link start to send all packets that are due up to `now`, and returns the current
    /// time.
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

    /// Sends a packet whose transmission starts at `start`, which determines its outcome.
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
                marked: self.ce_threshold.is_some_and(|most| queued > most),
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
