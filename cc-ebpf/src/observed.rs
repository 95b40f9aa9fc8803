//! What the observer keeps of a socket under another congestion control.

use bytemuck::{Pod, Zeroable};

use crate::{Glimpse, SocketState};

/// An entry of the map of sockets that the observer has met, with the socket's address as its key.
///
/// A socket that the [`Selection`](crate::Selection) does not take stays in the map as well, passed
/// over ([`SocketState::is_passed_over`]), so that it is not examined again on each ACK.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Observed {
    /// The socket's slot and stage.
    pub state: SocketState,
    /// The congestion control that the socket had when it was met: the address of its
    /// `tcp_congestion_ops`.
    pub ops: u64,
    /// 1 when the segment that arrived at the last glimpse was an ACK for the congestion control,
    /// otherwise 0.
    pub pending: u32,
    /// Index in `glimpses` of the last glimpse.
    pub last: u32,
    /// The last two glimpses, in turn. Used only where ACKs are reconstructed from glimpses.
    pub glimpses: [Glimpse; 2],
}
