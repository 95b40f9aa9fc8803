//! The packets that travel between the two ends. Sequence numbers count segments from 0. Those of a
//! bulk flow are full-sized; the last segment of what another application writes may be smaller.

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
    /// SYN-ACK, which accepts a connection of the far end.
    SynAck {
        /// TSval: the time at which it is sent, ms.
        timestamp: u32,
    },
    /// ACK without payload, which completes the handshake.
    Bare,
    /// ACK of the far end's messages.
    Messages {
        /// Number of messages that have arrived.
        arrived: u32,
    },
    /// A segment of data, at most full-sized.
    Data {
        /// Number of the segment, from 0.
        segment: u32,
        /// Payload in bytes, at most [`MSS`].
        payload: u16,
        /// TSval: the time at which it is sent, ms.
        timestamp: u32,
        /// TSecr: the TSval that it answers, ms.
        echo: u32,
        /// PSH flag, set on the last segment of a burst.
        push: bool,
        /// Whether the packet is ECN-capable (ECT(0), RFC 3168).
        ect: bool,
        /// CWR flag: the sender has answered the receiver's ECN echo.
        cwr: bool,
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
    /// SYN, which opens a connection of the far end.
    Syn,
    /// ACK without payload, which completes the handshake of such a connection.
    Bare {
        /// TSecr: the TSval that it answers, ms.
        echo: u32,
    },
    /// A message of the far end's application in one segment, with an ACK.
    Message {
        /// Number of the message, from 0.
        number: u32,
        /// Payload in bytes, at most [`MSS`].
        payload: u16,
        /// The ACK that it carries.
        ack: Ack,
    },
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
    /// ECE flag: a mark has arrived that the sender has not answered (RFC 3168).
    pub(super) ece: bool,
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
            Self::Syn { .. } | Self::SynAck { .. } => SYN,
            Self::Bare | Self::Messages { .. } => BARE,
            Self::Data { payload, .. } => BARE + u32::from(*payload),
        }
    }

    /// Payload in bytes; 0 without data.
    pub(super) fn payload(&self) -> u32 {
        match self {
            Self::Data { payload, .. } => (*payload).into(),
            _ => 0,
        }
    }
}

impl ToSender {
    /// Length of the packet in bytes of IP.
    pub(super) fn bytes(&self) -> u32 {
        match self {
            Self::SynAck { .. } | Self::Syn => SYN,
            Self::Bare { .. } => BARE,
            Self::Ack(ack) => ack.bytes(),
            Self::Message { payload, ack, .. } => ack.bytes() + u32::from(*payload),
        }
    }

    /// Payload in bytes; 0 without data.
    pub(super) fn payload(&self) -> u32 {
        match self {
            Self::Message { payload, .. } => (*payload).into(),
            _ => 0,
        }
    }
}

impl Ack {
    /// Length of an ACK without payload, bytes of IP.
    fn bytes(&self) -> u32 {
        match self.count {
            0 => BARE,
            count => BARE + 4 + 8 * u32::from(count),
        }
    }

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
