//! The model of one direction of a path, as pure code that emulated links and the simulator share.
//!
//! A packet passes, in this order: the policer, the queue, the link that serves the queue, random
//! loss, aggregation, and propagation. The model runs on a virtual clock: when the link starts to
//! send a packet follows from when it finished the previous one and never from the time of a call,
//! so that a late caller changes no times.

mod aqm;
mod bucket;
mod loss;
mod observation;
mod packet;
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
pub use packet::{Content, Ecn, Packet};

pub(crate) use loss::Losses;

use crate::scenario;
use aqm::{ManagedQueue, Taken};
use bucket::TokenBucket;
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

/// Part of the path that dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The policer had too few tokens.
    Policer,
    /// The queue had no room, or its active queue management dropped the packet.
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
        /// Whether the queue marks it, because it waited longer than the threshold or by active
        /// queue management: it has a congestion-experienced mark if it is ECN-capable.
        marked: bool,
        /// The packet that was offered.
        packet: Packet<B>,
    },
    /// The packet was dropped on the path.
    Dropped {
        /// Time of the drop: at an arrival (policer, queue), when the link would have started to
        /// send it (active queue management), or when it left the link (random loss).
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
    queue: Queue<B>,
    line: Line<B>,
    /// Time at which the link starts to send the next packet of the queue; [`NEVER`] without one.
    starts: Nanos,
    /// The latest time that a caller has passed.
    now: Nanos,
}

/// The packets that wait for the link.
#[derive(Debug)]
enum Queue<B> {
    /// A queue that acts only when it is full.
    Plain(PacketQueue<B>),
    /// A queue with active queue management.
    Managed(Box<ManagedQueue<B>>),
}

/// What packets that have left the queue pass, and the events of all packets.
#[derive(Debug)]
struct Line<B> {
    /// Longest time in the queue without a mark, ns; `None` is no threshold.
    ce_threshold: Option<Nanos>,
    server: Server,
    losses: Losses,
    propagation: Propagation,
    timeline: Timeline<Event<B>>,
    /// Number of flows. Events of flow `i` use lane `i` of the timeline, and those of all other
    /// packets use lane `flows`.
    flows: usize,
}

impl<B: Content> OneWayPath<B> {
    /// Creates a direction without packets. `extra_delay[flow]` is added to that flow's propagation
    /// delay. `seed` determines random loss, jitter, and what is random in active queue management,
    /// which are independent of each other.
    pub fn new(model: &scenario::Direction, extra_delay: &[Duration], seed: u64) -> Self {
        let mut seeds = StdRng::seed_from_u64(seed);
        let flows = extra_delay.len();
        let line = Line {
            ce_threshold: model.queue.ce_threshold.map(nanos),
            server: Server::new(&model.service),
            losses: Losses::new(model.loss, StdRng::from_rng(&mut seeds)),
            propagation: Propagation::new(model, extra_delay, StdRng::from_rng(&mut seeds)),
            timeline: Timeline::new(flows + 3),
            flows,
        };
        let queue = match &model.queue.aqm {
            None => Queue::Plain(PacketQueue::new(&model.queue)),
            Some(aqm) => {
                let random = StdRng::from_rng(&mut seeds);
                Queue::Managed(Box::new(ManagedQueue::new(&model.queue, aqm, random)))
            }
        };
        Self {
            policer: (model.policer)
                .map(|policer| TokenBucket::new(policer.bits_per_second, policer.burst)),
            queue,
            line,
            starts: NEVER,
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
            return self.line.discard(now, Cause::Policer, packet);
        }
        let waiting = Waiting {
            arrived: now,
            packet,
        };
        let Queue::Plain(queue) = &mut self.queue else {
            return self.offer_managed(waiting);
        };
        if !queue.is_empty() {
            // Whichever packet is the head, the link starts to send it when it becomes free.
            return self.line.enqueue(queue, waiting);
        }
        let starts = self.line.server.start(now);
        if starts <= now {
            self.line.serve(starts, waiting, false);
        } else {
            self.line.enqueue(queue, waiting);
            self.starts = if queue.is_empty() { NEVER } else { starts };
        }
    }

    /// Returns the next event that is due at or before `now`, in order of time.
    // Always: copying events out of functions costs several percent of the simulator's speed.
    #[inline(always)]
    pub fn poll(&mut self, now: Nanos) -> Option<Event<B>> {
        let now = self.advance(now);
        self.line.timeline.pop(now)
    }

    /// Returns when to poll next; `None` when nothing will happen any more.
    ///
    /// The time is never later than the next delivery, and exact when that packet's departure from
    /// the link is determined. The loss of a packet that still waits may be reported later than it
    /// happens.
    pub fn next(&self) -> Option<Nanos> {
        let undetermined = match self.starts {
            NEVER => NEVER,
            starts => self.line.propagation.earliest(starts),
        };
        Some(self.line.timeline.first().min(undetermined)).filter(|&at| at != NEVER)
    }

    /// Packets and bytes of IP that waited for the link at the latest time passed to
    /// [`offer`](Self::offer) or [`poll`](Self::poll), without the packet that the link is sending.
    pub fn backlog(&self) -> (u32, u64) {
        match &self.queue {
            Queue::Plain(queue) => (queue.packets(), queue.bytes()),
            Queue::Managed(queue) => (queue.packets(), queue.bytes()),
        }
    }

    /// Lets the link start to send all packets that are due up to `now`, and returns the current
    /// time.
    #[inline(always)]
    fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = now.clamp(self.now, NEVER - 1);
        while self.starts <= self.now {
            let Queue::Plain(queue) = &mut self.queue else {
                self.advance_managed();
                break;
            };
            let Some(waiting) = queue.pop() else { break };
            self.line.serve(self.starts, waiting, false);
            self.starts = match queue.head_arrived() {
                Some(arrived) => self.line.server.start(arrived),
                None => NEVER,
            };
        }
        self.now
    }

    /// Takes an arriving packet into a managed queue.
    #[cold]
    fn offer_managed(&mut self, waiting: Waiting<B>) {
        let Queue::Managed(queue) = &mut self.queue else {
            return;
        };
        let now = waiting.arrived;
        let mut dropped = Vec::new();
        queue.enqueue(waiting, &mut dropped);
        self.line.discard_all(now, dropped);
        if self.starts == NEVER && queue.packets() > 0 {
            self.starts = self.line.server.start(now);
            self.advance_managed();
        }
    }

    /// Lets the link start to send all packets of a managed queue that are due.
    #[cold]
    fn advance_managed(&mut self) {
        let Queue::Managed(queue) = &mut self.queue else {
            return;
        };
        while self.starts <= self.now {
            let start = self.starts;
            let mut dropped = Vec::new();
            let taken = queue.dequeue(start, &mut dropped);
            self.line.discard_all(start, dropped);
            if let Some(Taken { waiting, marked }) = taken {
                self.line.serve(start, waiting, marked);
            }
            self.starts = match queue.packets() {
                0 => NEVER,
                // The others have waited since before `start`.
                _ => self.line.server.start(start.saturating_sub(1)).max(start),
            };
        }
    }
}

impl<B: Content> Line<B> {
    /// Appends a packet to the queue, or drops what has no room.
    fn enqueue(&mut self, queue: &mut PacketQueue<B>, waiting: Waiting<B>) {
        let now = waiting.arrived;
        while let Some(dropped) = queue.shed(waiting.packet.bytes) {
            self.discard(now, Cause::Queue, dropped);
        }
        if let Err(dropped) = queue.push(waiting) {
            self.discard(now, Cause::Queue, dropped);
        }
    }

    /// Sends a packet whose transmission starts at `start`, which determines its outcome. It is
    /// marked if its queue has `marked` it or it has waited too long.
    #[inline(always)]
    fn serve(&mut self, start: Nanos, Waiting { arrived, packet }: Waiting<B>, marked: bool) {
        let departed = self.server.serve(start, packet.bytes);
        if self.losses.takes() {
            return self.lose(departed, packet);
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
                marked: marked || self.ce_threshold.is_some_and(|most| queued > most),
                packet,
            },
        );
    }

    /// Drops a packet that has left the link at `at`.
    #[cold]
    fn lose(&mut self, at: Nanos, packet: Packet<B>) {
        let cause = Cause::Loss;
        self.timeline
            .push(self.flows + 2, at, Event::Dropped { at, cause, packet });
    }

    /// Drops a packet at `at`, ahead of the link.
    #[cold]
    fn discard(&mut self, at: Nanos, cause: Cause, packet: Packet<B>) {
        self.timeline
            .push(self.flows + 1, at, Event::Dropped { at, cause, packet });
    }

    fn discard_all(&mut self, at: Nanos, packets: Vec<Packet<B>>) {
        for packet in packets {
            self.discard(at, Cause::Queue, packet);
        }
    }
}
