//! The queue of packets that wait for the link.

use std::collections::VecDeque;

use crate::scenario::{self, Discipline};

use super::{Nanos, Packet};

/// A packet in the queue.
#[derive(Debug)]
pub(super) struct Waiting<B> {
    /// Time at which it was offered.
    pub(super) arrived: Nanos,
    /// The packet that was offered.
    pub(super) packet: Packet<B>,
}

/// A queue of packets in order of arrival, within its limits.
#[derive(Debug)]
pub(super) struct PacketQueue<B> {
    waiting: VecDeque<Waiting<B>>,
    bytes: u64,
    max_packets: usize,
    max_bytes: u64,
    discipline: Discipline,
}

impl<B> PacketQueue<B> {
    /// Creates an empty queue with the limits of `model`.
    pub(super) fn new(model: &scenario::Queue) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            max_packets: model.packets.map_or(usize::MAX, |packets| packets as usize),
            max_bytes: model.bytes.unwrap_or(u64::MAX),
            discipline: model.discipline,
        }
    }

    /// Removes a packet to make room for one of `bytes`, if the discipline says so; `None` when no
    /// packet has to leave. No packet leaves for one that would not fit into the empty queue.
    pub(super) fn shed(&mut self, bytes: u32) -> Option<Packet<B>> {
        let may_shed = self.discipline == Discipline::DropHead && self.fits(0, 0, bytes);
        if !may_shed || self.fits(self.waiting.len(), self.bytes, bytes) {
            return None;
        }
        self.pop().map(|waiting| waiting.packet)
    }

    /// Whether a packet of `bytes` fits.
    pub(super) fn has_room(&self, bytes: u32) -> bool {
        self.fits(self.waiting.len(), self.bytes, bytes)
    }

    /// Appends a packet, or returns it as the error when there is no room.
    pub(super) fn push(&mut self, waiting: Waiting<B>) -> Result<(), Packet<B>> {
        if !self.fits(self.waiting.len(), self.bytes, waiting.packet.bytes) {
            return Err(waiting.packet);
        }
        self.bytes += u64::from(waiting.packet.bytes);
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Removes the packet at the head.
    pub(super) fn pop(&mut self) -> Option<Waiting<B>> {
        let head = self.waiting.pop_front()?;
        self.bytes -= u64::from(head.packet.bytes);
        Some(head)
    }

    /// Time at which the packet at the head was offered.
    pub(super) fn head_arrived(&self) -> Option<Nanos> {
        self.waiting.front().map(|head| head.arrived)
    }

    /// Whether the queue has no packet.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of packets in the queue.
    pub(super) fn packets(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// Bytes of IP in the queue.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether both limits hold when a packet of `more` bytes joins `packets` packets of `bytes` in
    /// total.
    fn fits(&self, packets: usize, bytes: u64, more: u32) -> bool {
        packets < self.max_packets && bytes + u64::from(more) <= self.max_bytes
    }
}
