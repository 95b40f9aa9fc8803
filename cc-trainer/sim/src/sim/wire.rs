//! The packets that travel between the two ends. Sequence numbers count full-sized segments from 0,
//! as a bulk flow sends no others.

use crate::path::Nanos;

/// Payload of a segment in bytes: 1500 bytes of IP without headers and the timestamp option.
pub(super) const MSS: u32 = 1448;
/// Length of a TCP header with timestamps in bytes (`tcp_sock.tcp_header_len`).
pub(super) const TCP_HEADER: u32 = 32;
/// Length of a segment without payload, bytes of IP.
pub(super) const BARE: u32 = 20 + TCP_HEADER;
/// Length of a SYN with Linux's options, bytes of IP.
pub(super) const SYN: u32 = 60;
/// Number of SACK blocks that fit beside the timestamps.
pub(super) const MAX_BLOCKS: usize = 3;

/// Converts a time to the ms of the timestamp option (RFC 7323).
#[inline]
pub(super) fn milliseconds(time: Nanos) -> u32 {
    (time / 1_000_000) as u32
}

/// A packet from the sender to the receiver. Timestamps are in ms, as Linux sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToReceiver {
    /// SYN, which opens the connection.
    Syn {
        /// TSval: the time at which it is sent, ms.
        timestamp: u32,
    },
    /// ACK without payload, which completes the handshake.
    Bare,
    /// A full-sized segment of data.
    Data {
        /// Number of the segment, from 0.
        segment: u32,
        /// TSval: the time at which it is sent, ms.
        timestamp: u32,
        /// TSecr: the TSval that it answers, ms.
        echo: u32,
        /// PSH flag, set on the last segment of a burst.
        push: bool,
    },
}

/// A packet from the receiver to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToSender {
    /// SYN-ACK, which accepts the connection.
    SynAck {
        /// TSecr: the TSval that it answers, ms.
        echo: u32,
    },
    /// ACK of data, with SACK blocks.
    Ack(Ack),
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ack {
    /// The first segment that is missing (`ack_seq`).
    pub(super) ack: u32,
    /// TSval: the time at which it is sent, ms.
    pub(super) timestamp: u32,
    /// TSecr: the TSval that it answers, ms.
    pub(super) echo: u32,
    /// Receive window in segments, counted from `ack`.
    pub(super) rwnd: u32,
    /// Number of valid SACK blocks, including that of a D-SACK.
    pub(super) count: u8,
    /// Whether the first block is a D-SACK, of a segment that arrived twice (RFC 2883).
    pub(super) dsack: bool,
    /// The SACK blocks, of which the first `count` are valid.
    pub(super) blocks: [SackBlock; MAX_BLOCKS],
}

/// A SACK block: the segments `from..to` (RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SackBlock {
    /// First segment of the block.
    pub(super) from: u32,
    /// The segment after the last one.
    pub(super) to: u32,
}

impl ToReceiver {
    /// Length of the packet in bytes of IP.
    pub(super) fn bytes(&self) -> u32 {
        match self {
            Self::Syn { .. } => SYN,
            Self::Bare => BARE,
            Self::Data { .. } => BARE + MSS,
        }
    }

    /// Payload in bytes: an MSS for data, else 0.
    pub(super) fn payload(&self) -> u32 {
        match self {
            Self::Data { .. } => MSS,
            _ => 0,
        }
    }
}

impl ToSender {
    /// Length of the packet in bytes of IP.
    pub(super) fn bytes(&self) -> u32 {
        match self {
            Self::SynAck { .. } => SYN,
            Self::Ack(ack) if ack.count == 0 => BARE,
            Self::Ack(ack) => BARE + 4 + 8 * u32::from(ack.count),
        }
    }
}

impl Ack {
    /// Adds a block, unless all are in use.
    pub(super) fn add(&mut self, block: SackBlock) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = block;
            self.count += 1;
        }
    }

    /// The valid blocks, including that of a D-SACK.
    pub(super) fn blocks(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }
}
