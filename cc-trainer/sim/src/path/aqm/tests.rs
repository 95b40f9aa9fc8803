//! What the tests of all kinds have in common: packets, and links that a queue serves.

use super::*;
use crate::path::Ecn;

pub(super) const MS: Nanos = 1_000_000;

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) connection: u32,
    pub(super) number: u32,
    pub(super) ecn: Ecn,
}

impl Content for Body {
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn connection(&self) -> u32 {
        self.connection
    }
}

/// A full packet of a connection that arrives at `at`.
pub(super) fn full(at: Nanos, connection: u32, number: u32, ecn: Ecn) -> Waiting<Body> {
    sized(1_500, at, connection, number, ecn)
}

/// A packet of `bytes` of a connection that arrives at `at`.
pub(super) fn sized(
    bytes: u32,
    at: Nanos,
    connection: u32,
    number: u32,
    ecn: Ecn,
) -> Waiting<Body> {
    Waiting {
        arrived: at,
        packet: Packet {
            bytes,
            flow: 0,
            body: Body {
                connection,
                number,
                ecn,
            },
        },
    }
}

/// The numbers that the test gave the packets, in their order.
pub(super) fn numbers(packets: &[Packet<Body>]) -> Vec<u32> {
    packets.iter().map(|packet| packet.body.number).collect()
}
