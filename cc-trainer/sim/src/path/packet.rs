//! The packets on a path, and what their headers tell it.

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

/// What the headers of a packet tell a queue with active queue management.
pub trait Content {
    /// The codepoint of explicit congestion notification.
    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    /// A number that the packets of a connection share, and few other connections have.
    fn connection(&self) -> u32 {
        0
    }
}

/// Packets without headers: of one connection, and not ECN-capable.
impl Content for () {}

/// A codepoint of explicit congestion notification (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The packet is not ECN-capable.
    #[default]
    NotEct,
    /// It is ECN-capable, as Linux's classic congestion controls send it.
    Ect0,
    /// It is ECN-capable and belongs to an L4S congestion control (RFC 9331).
    Ect1,
    /// It has a congestion-experienced mark.
    Ce,
}

impl Ecn {
    /// Whether a queue may mark the packet.
    pub fn is_capable(self) -> bool {
        self != Self::NotEct
    }
}
