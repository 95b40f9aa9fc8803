//! One direction of a connection, with the counts of what passes.

use std::rc::Rc;

use cc_sim::{
    path::Nanos,
    shim::{Channel, Fate, Way},
};

use super::Relay;

/// Bytes in flight in one direction of a connection from which on no more are accepted.
const ROOM: usize = 16 << 20;

/// One direction of a connection.
pub(super) struct Lane {
    way: Way,
    channel: Channel<Vec<u8>>,
    /// Number of bytes in flight.
    bytes: usize,
    relay: Rc<Relay>,
}

impl Lane {
    pub(super) fn new(way: Way, channel: Channel<Vec<u8>>, relay: Rc<Relay>) -> Self {
        Self {
            way,
            channel,
            bytes: 0,
            relay,
        }
    }

    /// Whether another message can be in flight.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < ROOM
    }

    /// Sends a message that arrived at `now`, and returns whether it gets through.
    pub(super) fn offer(&mut self, now: Nanos, message: &[u8]) -> bool {
        let fate = self.channel.offer(now, message.to_vec());
        self.relay.tally.borrow_mut().offered(self.way, now, fate);
        let arrives = fate != Fate::Lost;
        self.bytes += if arrives { message.len() } else { 0 };
        arrives
    }

    /// Sends the end of a stream, which is no message, as an empty one. Returns whether it gets
    /// through.
    pub(super) fn end(&mut self) -> bool {
        self.channel.offer(self.relay.now(), Vec::new()) != Fate::Lost
    }

    /// Counts a message for which there was no room.
    pub(super) fn refuse(&self) {
        self.relay.tally.borrow_mut().no_room(self.way);
    }

    /// Time of the next arrival.
    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.channel.next_at()
    }

    /// Takes a message that has arrived.
    pub(super) fn take(&mut self) -> Option<(Nanos, Vec<u8>)> {
        let (at, message) = self.channel.take(self.relay.now())?;
        self.bytes -= message.len();
        Some((at, message))
    }

    /// Counts a message that has been passed on, which was to arrive at `at`.
    pub(super) fn forwarded(&self, at: Nanos, bytes: usize) {
        let late = self.relay.now().saturating_sub(at);
        let mut tally = self.relay.tally.borrow_mut();
        tally.forwarded(self.way, bytes, late);
    }

    /// Time since the relay began, ns.
    pub(super) fn now(&self) -> Nanos {
        self.relay.now()
    }
}
