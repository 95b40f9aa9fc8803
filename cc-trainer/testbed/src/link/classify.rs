//! Classification of packets by flow.

use super::Way;

/// Assigns packets to flows by the port of the end that was called.
///
/// With a first port, flow `i` uses TCP or UDP port `first_port + i` at the far end, or at the near
/// end where the far end opens the connections. All other packets are assigned to the extra flow
/// `flows`. Without a first port, every packet is assigned to flow 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classifier {
    /// Port of flow 0 at the end that was called; `None` assigns all packets to flow 0.
    pub first_port: Option<u16>,
    /// Number of flows, without the extra one.
    pub flows: u16,
}

/// The flow of a packet and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    /// Index of the flow; `flows` for packets of no flow.
    pub(super) flow: u16,
    /// Bytes of TCP or UDP payload.
    pub(super) payload: u32,
    /// A hash of addresses, protocol and ports, equal for all packets of a connection in one
    /// direction; 0 for packets of no connection.
    pub(super) connection: u32,
}

impl Classifier {
    /// The classifier that assigns every packet to flow 0.
    pub const SINGLE: Self = Self {
        first_port: None,
        flows: 0,
    };

    /// Classifies an IP packet that crosses the link in direction `way`.
    pub(super) fn classify(&self, packet: &[u8], way: Way) -> Class {
        let segment = TransportHeader::parse(packet);
        let flow = match (self.first_port, &segment) {
            (None, _) => 0,
            (Some(_), None) => self.flows,
            (Some(first), Some(segment)) => {
                let (near, far) = match way {
                    Way::Forward => (segment.source, segment.destination),
                    Way::Reverse => (segment.destination, segment.source),
                };
                let flow_at = |port: u16| port.checked_sub(first).filter(|flow| *flow < self.flows);
                (flow_at(far).or_else(|| flow_at(near))).unwrap_or(self.flows)
            }
        };
        Class {
            flow,
            payload: segment.as_ref().map_or(0, |segment| segment.payload),
            connection: segment.map_or(0, |segment| segment.connection),
        }
    }
}

/// The fields of a TCP or UDP header that classification uses.
struct TransportHeader {
    source: u16,
    destination: u16,
    payload: u32,
    connection: u32,
}

impl TransportHeader {
    /// Parses an IP packet; `None` when it is neither TCP nor UDP, not a first fragment, or
    /// truncated. IPv6 extension headers are not followed: TCP between two neighbouring hosts has
    /// none.
    fn parse(packet: &[u8]) -> Option<Self> {
        let (protocol, addresses, body) = match packet.first()? >> 4 {
            // RFC 791, section 3.1
            4 => {
                let header = usize::from(packet[0] & 0xf) * 4;
                let total = usize::from(word(packet, 2)?);
                let fragment_offset = word(packet, 6)? & 0x1fff;
                if fragment_offset != 0 || header < 20 {
                    return None;
                }
                (
                    *packet.get(9)?,
                    packet.get(12..20)?,
                    packet.get(header..total)?,
                )
            }
            // RFC 8200, section 3
            6 => {
                let payload = usize::from(word(packet, 4)?);
                (
                    *packet.get(6)?,
                    packet.get(8..40)?,
                    packet.get(40..40 + payload)?,
                )
            }
            _ => return None,
        };
        let header = match u32::from(protocol) {
            // RFC 9293, section 3.1: data offset in words of 32 bits
            TCP => usize::from(body.get(12)? >> 4) * 4,
            // RFC 768
            UDP => 8,
            _ => return None,
        };
        let (source, destination) = (word(body, 0)?, word(body, 2)?);
        Some(Self {
            source,
            destination,
            connection: hash(addresses, protocol, body.get(..4)?),
            payload: u32::try_from(body.len().checked_sub(header)?).ok()?,
        })
    }
}

const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;

/// A hash of what identifies a connection (FNV-1a, 32 bits).
fn hash(addresses: &[u8], protocol: u8, ports: &[u8]) -> u32 {
    let bytes = addresses.iter().chain([&protocol]).chain(ports);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Reads 16 bits in network byte order.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TWO_FLOWS: Classifier = Classifier {
        first_port: Some(5000),
        flows: 2,
    };

    /// An IPv4 packet without options around `body`.
    fn ipv4(protocol: u32, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&u16::try_from(20 + body.len()).expect("short").to_be_bytes());
        packet[9] = protocol as u8;
        packet.extend(body);
        packet
    }

    fn ipv6(protocol: u32, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&u16::try_from(body.len()).expect("short").to_be_bytes());
        packet[6] = protocol as u8;
        packet.extend(body);
        packet
    }

    /// A TCP segment with twelve bytes of options, the size of timestamps.
    fn tcp(source: u16, destination: u16, payload: usize) -> Vec<u8> {
        let mut segment = vec![0; 32 + payload];
        segment[..2].copy_from_slice(&source.to_be_bytes());
        segment[2..4].copy_from_slice(&destination.to_be_bytes());
        segment[12] = 8 << 4;
        segment
    }

    fn udp(source: u16, destination: u16, payload: usize) -> Vec<u8> {
        let mut datagram = vec![0; 8 + payload];
        datagram[..2].copy_from_slice(&source.to_be_bytes());
        datagram[2..4].copy_from_slice(&destination.to_be_bytes());
        datagram
    }

    /// The flow and the payload of a packet.
    fn class(classifier: &Classifier, packet: &[u8], way: Way) -> (u16, u32) {
        let class = classifier.classify(packet, way);
        (class.flow, class.payload)
    }

    #[test]
    fn the_port_that_was_called_names_the_flow() {
        let class = |packet: &[u8], way| class(&TWO_FLOWS, packet, way);
        let data = ipv4(TCP, &tcp(40_000, 5001, 1448));
        assert_eq!(class(&data, Way::Forward), (1, 1448));
        let ack = ipv4(TCP, &tcp(5001, 40_000, 0));
        assert_eq!(class(&ack, Way::Reverse), (1, 0));
        let response = ipv4(TCP, &tcp(5000, 40_000, 10));
        assert_eq!(class(&response, Way::Forward), (0, 10));
        let request = ipv4(TCP, &tcp(40_000, 5001, 20));
        assert_eq!(class(&request, Way::Reverse), (1, 20));
        // The far end's port decides when both are ports of flows.
        let both = ipv4(UDP, &udp(5000, 5001, 10));
        assert_eq!(class(&both, Way::Forward).0, 1);
        let stranger = ipv4(UDP, &udp(40_000, 5002, 10));
        assert_eq!(class(&stranger, Way::Forward).0, 2);
        let low = ipv4(UDP, &udp(1, 4999, 10));
        assert_eq!(class(&low, Way::Forward).0, 2);
        let datagram = ipv6(UDP, &udp(1, 5000, 7));
        assert_eq!(class(&datagram, Way::Forward), (0, 7));
    }

    #[test]
    fn packets_without_ports_belong_to_no_flow() {
        let class = |packet: &[u8]| class(&TWO_FLOWS, packet, Way::Forward);
        assert_eq!(class(&ipv4(libc::IPPROTO_ICMP as u32, &[0; 64])), (2, 0));
        let mut fragment = ipv4(UDP, &udp(1, 5000, 100));
        fragment[7] = 1;
        assert_eq!(class(&fragment), (2, 0));
        assert_eq!(class(&[]), (2, 0));
    }

    #[test]
    fn without_a_first_port_every_packet_belongs_to_flow_0() {
        let packet = ipv4(TCP, &tcp(1, 5001, 5));
        let class = |packet: &[u8], way| class(&Classifier::SINGLE, packet, way);
        assert_eq!(class(&packet, Way::Forward), (0, 5));
        assert_eq!(class(&[1, 2, 3], Way::Reverse).0, 0);
    }

    #[test]
    fn a_connection_is_addresses_protocol_and_ports() {
        let connection = |packet: &[u8]| TWO_FLOWS.classify(packet, Way::Forward).connection;
        let data = ipv4(TCP, &tcp(40_000, 5001, 1448));
        let known = connection(&data);
        let mut later = ipv4(TCP, &tcp(40_000, 5001, 3));
        later[5] = 9;
        assert_eq!(connection(&later), known, "whatever else it holds");
        let mut elsewhere = data.clone();
        elsewhere[19] = 1;
        for other in [
            elsewhere,
            ipv4(TCP, &tcp(40_001, 5001, 1448)),
            ipv4(TCP, &tcp(40_000, 5000, 1448)),
            ipv4(UDP, &udp(40_000, 5001, 1448)),
            ipv6(TCP, &tcp(40_000, 5001, 1448)),
        ] {
            assert_ne!(connection(&other), known);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_classified_without_panicking(
            mut packet in prop::collection::vec(any::<u8>(), 0..120),
            version in prop::sample::select(vec![0x45_u8, 0x4f, 0x60, 0x00]),
            protocol in prop::sample::select(vec![6_u8, 17]),
        ) {
            for (at, value) in [(0, version), (6, protocol), (9, protocol)] {
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value;
                }
            }
            for way in [Way::Forward, Way::Reverse] {
                let class = TWO_FLOWS.classify(&packet, way);
                prop_assert!(class.flow <= 2);
                prop_assert!(class.payload as usize <= packet.len());
            }
        }
    }
}
