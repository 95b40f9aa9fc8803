//! What travels between the two ends. Sequence numbers count full segments, from 0: a bulk flow sends no other.

use crate::path::Nanos;

/// Payload of a segment, bytes: what 1500 bytes of IP leave beside the headers and the timestamp option.
pub(super) const MSS: u32 = 1448;
/// Length of a TCP header with timestamps, bytes (`tcp_sock.tcp_header_len`).
pub(super) const TCP_HEADER: u32 = 32;
/// Length of a segment without payload, bytes of IP.
pub(super) const BARE: u32 = 20 + TCP_HEADER;
/// Length of a SYN with Linux's options, bytes of IP.
pub(super) const SYN: u32 = 60;
/// Most SACK blocks that fit beside the timestamps.
pub(super) const MAX_BLOCKS: usize = 3;

/// A time as timestamps (RFC 7323) have it.
#[inline]
pub(super) fn milliseconds(time: Nanos) -> u32 {
    (time / 1_000_000) as u32
}

/// From the sender to the receiver. Timestamps are in ms, as Linux sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToReceiver {
    /// Opens the connection.
    Syn {
        /// TSval.
        timestamp: u32,
    },
    /// Completes the handshake.
    Bare,
    /// A full segment.
    Data {
        /// Its number.
        segment: u32,
        /// TSval.
        timestamp: u32,
        /// TSecr.
        echo: u32,
        /// PSH: the last of several that were sent together.
        push: bool,
    },
}

/// From the receiver to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToSender {
    /// Accepts the connection.
    SynAck {
        /// TSecr.
        echo: u32,
    },
    /// Acknowledges.
    Ack(Ack),
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ack {
    /// The first segment that is missing.
    pub(super) ack: u32,
    /// TSval.
    pub(super) timestamp: u32,
    /// TSecr.
    pub(super) echo: u32,
    /// Segments from `ack` on that the receiver has room for.
    pub(super) rwnd: u32,
    /// How many SACK blocks follow.
    pub(super) count: u8,
    /// The first block tells of a segment that came again (D-SACK, RFC 2883).
    pub(super) dsack: bool,
    /// The blocks, with room for more.
    pub(super) blocks: [SackBlock; MAX_BLOCKS],
}

/// Segments `from..to`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SackBlock {
    /// The first.
    pub(super) from: u32,
    /// The one after the last.
    pub(super) to: u32,
}

impl ToReceiver {
    /// Bytes of IP.
    pub(super) fn bytes(&self) -> u32 {
        match self {
            Self::Syn { .. } => SYN,
            Self::Bare => BARE,
            Self::Data { .. } => BARE + MSS,
        }
    }

    /// Bytes of payload.
    pub(super) fn payload(&self) -> u32 {
        match self {
            Self::Data { .. } => MSS,
            _ => 0,
        }
    }
}

impl ToSender {
    /// Bytes of IP.
    pub(super) fn bytes(&self) -> u32 {
        match self {
            Self::SynAck { .. } => SYN,
            Self::Ack(ack) if ack.count == 0 => BARE,
            Self::Ack(ack) => BARE + 4 + 8 * u32::from(ack.count),
        }
    }
}

impl Ack {
    /// Adds a block, if there is room for one more.
    pub(super) fn add(&mut self, block: SackBlock) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = block;
            self.count += 1;
        }
    }

    /// The blocks, a D-SACK's included.
    pub(super) fn blocks(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }
}
