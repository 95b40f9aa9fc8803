//! Queues with active queue management.
//!
//! Each is a pure state machine that the path calls at two kinds of times, in their order: a packet
//! arrives, or the link takes one out. Timers are caught up with at these calls, so that nothing
//! depends on when a caller looks.

mod codel;
mod dualpi2;
mod fq_codel;
mod pie;

use rand::rngs::StdRng;

use super::queue::Waiting;
use super::{Content, Nanos, Packet};
use crate::scenario::{self, Aqm, MTU};

use codel::CoDelQueue;
use dualpi2::DualPi2Queue;
use fq_codel::FqCoDelQueue;
use pie::PieQueue;

/// A backlog below this many bytes is too small for the probabilistic kinds to act on (RFC 8033,
/// section 4.1).
const FEW_BYTES: u64 = 2 * MTU as u64;

/// A queue with active queue management.
#[derive(Debug)]
pub(super) enum ManagedQueue<B> {
    CoDel(CoDelQueue<B>),
    FqCoDel(FqCoDelQueue<B>),
    Pie(PieQueue<B>),
    DualPi2(DualPi2Queue<B>),
}

/// A packet that the link takes out of a queue.
#[derive(Debug)]
pub(super) struct Taken<B> {
    pub(super) waiting: Waiting<B>,
    /// Whether the queue has marked it; it is ECN-capable then.
    pub(super) marked: bool,
}

impl<B: Content> ManagedQueue<B> {
    /// Creates an empty queue within the limits of `model`, under `aqm`.
    pub(super) fn new(model: &scenario::Queue, aqm: &Aqm, random: StdRng) -> Self {
        match aqm {
            Aqm::CoDel(codel) => Self::CoDel(CoDelQueue::new(model, codel)),
            Aqm::FqCoDel(fq) => Self::FqCoDel(FqCoDelQueue::new(model, fq, random)),
            Aqm::Pie(pie) => Self::Pie(PieQueue::new(model, pie, random)),
            Aqm::DualPi2(dual) => Self::DualPi2(DualPi2Queue::new(model, dual, random)),
        }
    }

    /// Takes in a packet that has just arrived. Packets that are dropped for it, which may include
    /// itself, are added to `dropped`.
    pub(super) fn enqueue(&mut self, waiting: Waiting<B>, dropped: &mut Vec<Packet<B>>) {
        match self {
            Self::CoDel(queue) => queue.enqueue(waiting, dropped),
            Self::FqCoDel(queue) => queue.enqueue(waiting, dropped),
            Self::Pie(queue) => queue.enqueue(waiting, dropped),
            Self::DualPi2(queue) => queue.enqueue(waiting, dropped),
        }
    }

    /// Takes out the packet that the link sends from `now` on; `None` when none is left. Packets
    /// that are dropped before it are added to `dropped`.
    pub(super) fn dequeue(&mut self, now: Nanos, dropped: &mut Vec<Packet<B>>) -> Option<Taken<B>> {
        match self {
            Self::CoDel(queue) => queue.dequeue(now, dropped),
            Self::FqCoDel(queue) => queue.dequeue(now, dropped),
            Self::Pie(queue) => queue.dequeue(now),
            Self::DualPi2(queue) => queue.dequeue(now, dropped),
        }
    }

    /// Number of packets in the queue.
    pub(super) fn packets(&self) -> u32 {
        match self {
            Self::CoDel(queue) => queue.packets(),
            Self::FqCoDel(queue) => queue.packets(),
            Self::Pie(queue) => queue.packets(),
            Self::DualPi2(queue) => queue.packets(),
        }
    }

    /// Bytes of IP in the queue.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::CoDel(queue) => queue.bytes(),
            Self::FqCoDel(queue) => queue.bytes(),
            Self::Pie(queue) => queue.bytes(),
            Self::DualPi2(queue) => queue.bytes(),
        }
    }
}

/// The limits of a queue that keeps its packets in several lists.
#[derive(Clone, Copy, Debug)]
struct Limits {
    packets: usize,
    bytes: u64,
}

impl Limits {
    fn new(model: &scenario::Queue) -> Self {
        Self {
            packets: model.packets.map_or(usize::MAX, |packets| packets as usize),
            bytes: model.bytes.unwrap_or(u64::MAX),
        }
    }

    /// Whether a queue of this size is within both limits.
    fn hold(&self, packets: usize, bytes: u64) -> bool {
        packets <= self.packets && bytes <= self.bytes
    }
}

#[cfg(test)]
mod tests;
