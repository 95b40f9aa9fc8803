//! The records that the datapath sends to the agent, and their decoder.
//!
//! Fields are in the host's byte order unless their documentation says otherwise.

use core::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};

use crate::{Features, Totals, WindowRecord};

/// Version of the layout of all records; the agent refuses records of other versions.
pub const RECORD_VERSION: u16 = 3;

/// The start of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Header {
    /// [`RECORD_VERSION`] of the datapath.
    pub version: u16,
    /// The type of the record: 1 opened, 2 window, 3 closed, 4 ACK.
    pub kind: u16,
    /// Slot of the flow in the maps.
    pub slot: u32,
    /// Generation of the flow in its slot; slot and generation together identify a flow.
    pub generation: u32,
    #[doc(hidden)]
    pub reserved: u32,
    /// Time of the event, `CLOCK_MONOTONIC` in ns.
    pub time_ns: u64,
}

/// The connection behind a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Identity {
    /// Local address, words in network byte order; an IPv4 address is the first word.
    pub local_addr: [u32; 4],
    /// Remote address, like `local_addr`.
    pub remote_addr: [u32; 4],
    /// Address family, `AF_INET` (2) or `AF_INET6` (10).
    pub family: u16,
    /// Local port in host byte order.
    pub local_port: u16,
    /// Remote port in host byte order.
    pub remote_port: u16,
    #[doc(hidden)]
    pub reserved: u16,
    /// Sender's maximum segment size in bytes.
    pub mss: u32,
    /// Congestion window in segments when the flow was opened.
    pub initial_cwnd: u32,
    /// Id of the cgroup v2 that the socket belongs to: the inode number of its directory. 0 when
    /// it is unknown.
    pub cgroup_id: u64,
    /// Cookie of the socket, as `ss -e` and `SO_COOKIE` show it. 0 when the kernel had not given
    /// the socket one yet, which it does when the cookie is first asked for: an agent does that
    /// where it can trace.
    pub cookie: u64,
    /// Network namespace of the socket: the inode number of `/proc/PID/ns/net`. 0 when it is
    /// unknown.
    pub netns: u32,
    /// Which load of the programs has opened the flow: each has a number of its own. 0 from
    /// programs that have none.
    pub programs: u32,
    /// Name of the congestion control, NUL-padded, as it lies in the kernel.
    pub congestion_control: [u32; 4],
}

impl Identity {
    /// Local and remote socket address.
    pub fn endpoints(&self) -> (SocketAddr, SocketAddr) {
        let address = |words: [u32; 4]| {
            if self.family == AF_INET6 {
                let bytes: [u8; 16] = bytemuck::cast(words);
                IpAddr::from(bytes)
            } else {
                IpAddr::from(words[0].to_ne_bytes())
            }
        };
        (
            SocketAddr::new(address(self.local_addr), self.local_port),
            SocketAddr::new(address(self.remote_addr), self.remote_port),
        )
    }

    /// Name of the congestion control; empty when it is unknown.
    pub fn congestion_control(&self) -> &str {
        let bytes: &[u8; 16] = bytemuck::cast_ref(&self.congestion_control);
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(16);
        core::str::from_utf8(&bytes[..length]).unwrap_or("")
    }

    /// Local and remote address as IPv6 addresses, words in network byte order: an IPv4 address is
    /// mapped (RFC 4291, section 2.5.5.2).
    #[inline(always)]
    pub fn addresses6(&self) -> ([u32; 4], [u32; 4]) {
        if self.family == AF_INET6 {
            (self.local_addr, self.remote_addr)
        } else {
            (mapped(self.local_addr[0]), mapped(self.remote_addr[0]))
        }
    }
}

const AF_INET6: u16 = 10;

#[inline(always)]
fn mapped(address: u32) -> [u32; 4] {
    [0, 0, 0xffff_u32.to_be(), address]
}

/// A flow was given a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct OpenedRecord {
    /// Kind, slot, generation, and the time of the flow's first ACK.
    pub header: Header,
    /// The connection behind the flow.
    pub identity: Identity,
}

/// A flow gave its slot back. All totals are those of the connection since its first byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ClosedRecord {
    /// Kind, slot, generation, and the time when the flow was closed.
    pub header: Header,
    /// The totals from whose differences features are made.
    pub totals: Totals,
    /// Bytes acknowledged (`tcp_sock.bytes_acked`).
    pub bytes_acked: u64,
    /// Segments sent, pure ACKs and retransmissions included (`tcp_sock.segs_out`).
    pub segs_out: u32,
    /// Segments with payload sent, retransmissions included (`tcp_sock.data_segs_out`).
    pub data_segs_out: u32,
    /// Segments delivered (`tcp_sock.delivered`).
    pub delivered: u32,
    /// The kernel's own minimum RTT in µs (`tcp_min_rtt`).
    pub min_rtt_us: u32,
    /// Number of the flow's last observation window ([`WindowRecord::index`]).
    pub windows: u32,
    /// Congestion window in segments when the flow was closed.
    pub cwnd: u32,
}

/// The features of a single ACK.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct AckRecord {
    /// Kind, slot, generation, and the time of the ACK.
    pub header: Header,
    /// Number of the observation window that the ACK was added to ([`WindowRecord::index`]).
    pub window: u32,
    /// Congestion window in segments when the ACK arrived.
    pub cwnd: u32,
    /// The ACK's features, indexed by [`Feature`](crate::Feature).
    pub features: Features,
}

/// A record type, and the number that identifies it on the wire.
pub trait Kind: Pod {
    /// The value of [`Header::kind`] for records of this type.
    const KIND: u16;
}

impl Kind for OpenedRecord {
    const KIND: u16 = 1;
}

impl Kind for WindowRecord {
    const KIND: u16 = 2;
}

impl Kind for ClosedRecord {
    const KIND: u16 = 3;
}

impl Kind for AckRecord {
    const KIND: u16 = 4;
}

impl Header {
    /// The header of a record of type `R`, for an event at `time_ns`.
    #[inline(always)]
    pub fn of<R: Kind>(slot: u32, generation: u32, time_ns: u64) -> Self {
        Self {
            version: RECORD_VERSION,
            kind: R::KIND,
            slot,
            generation,
            reserved: 0,
            time_ns,
        }
    }
}

/// A decoded record of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "windows are the common case and the value is short-lived"
)]
pub enum Record {
    /// A flow was given a slot.
    Opened(OpenedRecord),
    /// An observation window is over.
    Window(WindowRecord),
    /// A flow gave its slot back.
    Closed(ClosedRecord),
    /// An ACK arrived, of a flow whose ACKs are recorded one by one.
    Ack(AckRecord),
}

/// The reason why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes are shorter than the header, or their number is not the size of the kind.
    Size {
        /// Size of a record of the kind, in bytes.
        expected: usize,
        /// Number of bytes that were given to decode.
        found: usize,
    },
    /// The record has this version of the layout instead of [`RECORD_VERSION`].
    Version(u16),
    /// The record has this kind, which does not exist.
    Kind(u16),
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Size { expected, found } => {
                write!(
                    f,
                    "a record of {found} bytes where {expected} were expected"
                )
            }
            Self::Version(version) => write!(
                f,
                "a record of layout version {version}, this agent reads {RECORD_VERSION}"
            ),
            Self::Kind(kind) => write!(f, "a record of unknown kind {kind}"),
        }
    }
}

impl core::error::Error for DecodeError {}

impl Record {
    /// Decodes one record. Ring-buffer entries may be padded, so trailing bytes up to the next
    /// multiple of 8 are allowed.
    ///
    /// # Errors
    ///
    /// Returns an error when the record has another version or an unknown kind, or when the number
    /// of bytes does not fit its kind.
    ///
    /// ```
    /// use bytemuck::{Zeroable, bytes_of};
    /// use cc_ebpf::{DecodeError, Header, Record, WindowRecord};
    ///
    /// let mut window = WindowRecord::zeroed();
    /// window.header = Header::of::<WindowRecord>(3, 9, 77);
    /// let bytes = bytes_of(&window);
    /// assert_eq!(Record::decode(bytes), Ok(Record::Window(window)));
    /// assert!(matches!(Record::decode(&bytes[..100]), Err(DecodeError::Size { .. })));
    /// ```
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header: Header = prefix(bytes)?;
        if header.version != RECORD_VERSION {
            return Err(DecodeError::Version(header.version));
        }
        match header.kind {
            OpenedRecord::KIND => Ok(Self::Opened(exact(bytes)?)),
            WindowRecord::KIND => Ok(Self::Window(exact(bytes)?)),
            ClosedRecord::KIND => Ok(Self::Closed(exact(bytes)?)),
            AckRecord::KIND => Ok(Self::Ack(exact(bytes)?)),
            kind => Err(DecodeError::Kind(kind)),
        }
    }

    /// The header, which every type of record has.
    pub fn header(&self) -> &Header {
        match self {
            Self::Opened(record) => &record.header,
            Self::Window(record) => &record.header,
            Self::Closed(record) => &record.header,
            Self::Ack(record) => &record.header,
        }
    }
}

fn prefix<R: Pod>(bytes: &[u8]) -> Result<R, DecodeError> {
    let expected = size_of::<R>();
    let found = bytes.len();
    let bytes = bytes
        .get(..expected)
        .ok_or(DecodeError::Size { expected, found })?;
    Ok(bytemuck::pod_read_unaligned(bytes))
}

fn exact<R: Pod>(bytes: &[u8]) -> Result<R, DecodeError> {
    let expected = size_of::<R>();
    let found = bytes.len();
    if found > expected.next_multiple_of(8) {
        return Err(DecodeError::Size { expected, found });
    }
    prefix(bytes)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_part_of_the_layout() {
        // Changing one of these means a new RECORD_VERSION.
        assert_eq!(size_of::<Header>(), 24);
        assert_eq!(size_of::<OpenedRecord>(), 112);
        assert_eq!(size_of::<WindowRecord>(), 640);
        assert_eq!(size_of::<ClosedRecord>(), 104);
        assert_eq!(size_of::<AckRecord>(), 112);
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let mut window = WindowRecord::zeroed();
        window.header = Header::of::<WindowRecord>(3, 9, 77);
        window.add(&[5; crate::FEATURES]);
        let bytes = bytemuck::bytes_of(&window);
        assert_eq!(Record::decode(bytes), Ok(Record::Window(window)));
        assert_eq!(
            Record::decode(&bytes[..100]),
            Err(DecodeError::Size {
                expected: 640,
                found: 100
            })
        );
        let mut other = window;
        other.header.version = 9;
        assert_eq!(
            Record::decode(bytemuck::bytes_of(&other)),
            Err(DecodeError::Version(9))
        );
        other = window;
        other.header.kind = 77;
        assert_eq!(
            Record::decode(bytemuck::bytes_of(&other)),
            Err(DecodeError::Kind(77))
        );
    }

    #[test]
    fn endpoints_of_both_families() {
        let mut identity = Identity {
            family: 2,
            local_port: 80,
            remote_port: 5201,
            ..Identity::default()
        };
        identity.local_addr[0] = u32::from_ne_bytes([10, 0, 0, 1]);
        let (local, remote) = identity.endpoints();
        assert_eq!(local, SocketAddr::from(([10, 0, 0, 1], 80)));
        assert_eq!(remote, SocketAddr::from(([0, 0, 0, 0], 5201)));
        identity.family = 10;
        identity.remote_addr[3] = 1u32.to_be();
        let (_, remote) = identity.endpoints();
        assert_eq!(remote, SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 5201)));
    }

    proptest! {
        /// No input panics, and whatever decodes encodes to the same bytes.
        #[test]
        fn any_bytes_decode_or_are_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..700),
            kind in 0u16..6,
            honest: bool,
        ) {
            if honest && bytes.len() >= 4 {
                bytes[..2].copy_from_slice(&RECORD_VERSION.to_le_bytes());
                bytes[2..4].copy_from_slice(&kind.to_le_bytes());
            }
            let encoded = match Record::decode(&bytes) {
                Ok(Record::Opened(record)) => bytemuck::bytes_of(&record).to_vec(),
                Ok(Record::Window(record)) => bytemuck::bytes_of(&record).to_vec(),
                Ok(Record::Closed(record)) => bytemuck::bytes_of(&record).to_vec(),
                Ok(Record::Ack(record)) => bytemuck::bytes_of(&record).to_vec(),
                Err(_) => return Ok(()),
            };
            prop_assert_eq!(&bytes[..encoded.len()], &encoded[..]);
        }
    }
}
