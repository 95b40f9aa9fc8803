//! TCP segments in IPv4 and IPv6 packets, as values.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpEcn, IpNumber, IpSlice, Ipv4Header, Ipv6Header, TcpHeader, TcpSlice};

/// A TCP segment with the addresses and the congestion mark of its packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address and port of the sender.
    pub from: SocketAddr,
    /// Address and port of the receiver.
    pub to: SocketAddr,
    /// The codepoint of Explicit Congestion Notification in the IP header.
    pub ecn: IpEcn,
    /// Ports, sequence numbers, flags and window. Checksum, data offset and options are not used:
    /// they follow from the other fields.
    pub header: TcpHeader,
    /// The options of the TCP header that are understood here.
    pub options: TcpOptions,
    /// The payload, which may be empty.
    pub payload: Vec<u8>,
}

/// The TCP options of a segment that the scripted peer uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size in bytes (RFC 9293).
    pub mss: Option<u16>,
    /// Shift of the advertised windows that follow (RFC 7323).
    pub window_scale: Option<u8>,
    /// Whether selective acknowledgements may be sent (RFC 2018).
    pub sack_permitted: bool,
    /// Selectively acknowledged sequence numbers, each as the first one and the one after the last;
    /// at most four, or three beside timestamps.
    pub sack: Vec<(u32, u32)>,
    /// Timestamp and echoed timestamp (RFC 7323).
    pub timestamps: Option<(u32, u32)>,
    /// Cookie of TCP Fast Open (RFC 7413); an empty one asks for a cookie.
    pub cookie: Option<Vec<u8>>,
    /// Whether there is an option of Multipath TCP (RFC 8684). It is recognised, never written.
    pub multipath: bool,
}

/// Kinds of TCP options (IANA's registry of TCP parameters).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const MULTIPATH: u8 = 30;
    pub(super) const FAST_OPEN: u8 = 34;
}

impl TcpOptions {
    /// Returns the options' bytes, padded to a multiple of four.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut option = |kind: u8, value: &[u8]| {
            bytes.extend([kind, value.len() as u8 + 2]);
            bytes.extend(value);
        };
        if let Some(mss) = self.mss {
            option(kind::MSS, &mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            option(kind::WINDOW_SCALE, &[shift]);
        }
        if self.sack_permitted {
            option(kind::SACK_PERMITTED, &[]);
        }
        if let Some((value, echo)) = self.timestamps {
            option(kind::TIMESTAMPS, &pair(value, echo));
        }
        if !self.sack.is_empty() {
            let edges = self.sack.iter().map(|&(left, right)| pair(left, right));
            option(kind::SACK, &edges.collect::<Vec<_>>().concat());
        }
        if let Some(cookie) = &self.cookie {
            option(kind::FAST_OPEN, cookie);
        }
        bytes.resize(bytes.len().next_multiple_of(4), kind::NOP);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut options = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == kind::END {
                break;
            }
            if kind == kind::NOP {
                bytes = rest;
                continue;
            }
            let length = usize::from(*rest.first()?);
            let value = bytes.get(2..length)?;
            bytes = &bytes[length..];
            match kind {
                kind::MSS => options.mss = Some(u16::from_be_bytes(value.try_into().ok()?)),
                kind::WINDOW_SCALE => options.window_scale = Some(*value.first()?),
                kind::SACK_PERMITTED => options.sack_permitted = true,
                kind::SACK => options.sack = value.chunks(8).map(unpair).collect::<Option<_>>()?,
                kind::TIMESTAMPS => options.timestamps = Some(unpair(value)?),
                kind::FAST_OPEN => options.cookie = Some(value.to_owned()),
                kind::MULTIPATH => options.multipath = true,
                _ => {}
            }
        }
        Some(options)
    }
}

fn pair(first: u32, second: u32) -> [u8; 8] {
    (u64::from(first) << 32 | u64::from(second)).to_be_bytes()
}

fn unpair(bytes: &[u8]) -> Option<(u32, u32)> {
    let both = u64::from_be_bytes(bytes.try_into().ok()?);
    Some(((both >> 32) as u32, both as u32))
}

impl Segment {
    /// Returns the segment as an IP packet with valid checksums.
    ///
    /// # Panics
    ///
    /// Panics if the addresses are of two families, or the segment exceeds what the headers can
    /// express.
    pub fn encode(&self) -> Vec<u8> {
        const HOPS: u8 = 64;
        let mut header = self.header.clone();
        header.source_port = self.from.port();
        header.destination_port = self.to.port();
        let options = self.options.encode();
        header.set_options_raw(&options).expect("at most 40 bytes");
        let length = header.header_len() + self.payload.len();
        let length = u16::try_from(length).expect("at most 64 KiB");
        let mut packet = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let (from, to) = (from.octets(), to.octets());
                let mut ip =
                    Ipv4Header::new(length, HOPS, IpNumber::TCP, from, to).expect("a short packet");
                ip.ecn = self.ecn;
                ip.header_checksum = ip.calc_header_checksum();
                header.checksum = header
                    .calc_checksum_ipv4(&ip, &self.payload)
                    .expect("a short packet");
                ip.to_bytes().to_vec()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut ip = Ipv6Header {
                    payload_length: length,
                    next_header: IpNumber::TCP,
                    hop_limit: HOPS,
                    source: from.octets(),
                    destination: to.octets(),
                    ..Ipv6Header::default()
                };
                ip.set_ecn(self.ecn);
                header.checksum = header
                    .calc_checksum_ipv6(&ip, &self.payload)
                    .expect("a short packet");
                ip.to_bytes().to_vec()
            }
            (from, to) => panic!("no packet goes from {from} to {to}"),
        };
        packet.extend(header.to_bytes());
        packet.extend(&self.payload);
        packet
    }

    /// Reads an IP packet. Returns `None` for packets that are not TCP, such as those of IPv6
    /// neighbour discovery.
    ///
    /// # Panics
    ///
    /// Panics if a TCP packet is malformed or its checksum is wrong.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let ip = IpSlice::from_slice(packet).ok()?;
        if ip.payload_ip_number() != IpNumber::TCP {
            return None;
        }
        let tcp = TcpSlice::from_slice(ip.payload().payload).expect("a whole TCP header");
        let (ecn, checksum) = match &ip {
            IpSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                (
                    header.ecn,
                    tcp.calc_checksum_ipv4(header.source, header.destination),
                )
            }
            IpSlice::Ipv6(ip) => {
                let header = ip.header().to_header();
                (
                    header.ecn(),
                    tcp.calc_checksum_ipv6(header.source, header.destination),
                )
            }
        };
        // In ones' complement all ones are another zero, and the kernel writes either.
        let checksum = checksum.expect("a short packet");
        assert_eq!(
            tcp.checksum() % u16::MAX,
            checksum % u16::MAX,
            "the checksum of {tcp:?}"
        );
        Some(Self {
            from: SocketAddr::new(ip.source_addr(), tcp.source_port()),
            to: SocketAddr::new(ip.destination_addr(), tcp.destination_port()),
            ecn,
            header: tcp.to_header(),
            options: TcpOptions::decode(tcp.options()).expect("whole TCP options"),
            payload: tcp.payload().to_owned(),
        })
    }

    /// Returns the sequence number of the first byte of data.
    pub fn start(&self) -> u32 {
        let after_syn = u32::from(self.header.syn);
        self.header.sequence_number.wrapping_add(after_syn)
    }

    /// Returns the sequence number after the last byte of data.
    pub fn end(&self) -> u32 {
        self.start().wrapping_add(self.payload.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(from: &str, to: &str) -> Segment {
        let mut header = TcpHeader::new(8080, 40_000, 7, 1_000);
        header.ack = true;
        header.acknowledgment_number = 99;
        header.ece = true;
        Segment {
            from: from.parse().expect("an address"),
            to: to.parse().expect("an address"),
            ecn: IpEcn::Ect0,
            header,
            options: TcpOptions {
                mss: Some(1_000),
                window_scale: Some(7),
                sack_permitted: true,
                sack: vec![(1, 2), (3, u32::MAX)],
                timestamps: None,
                cookie: Some(vec![1, 2, 3, 4, 5, 6, 7, 8]),
                multipath: false,
            },
            payload: vec![1, 2, 3],
        }
    }

    #[test]
    fn segments_survive_encoding() {
        for (from, to) in [
            ("10.99.0.2:8080", "10.99.0.1:40000"),
            ("[fd99::2]:8080", "[fd99::1]:40000"),
        ] {
            let segment = segment(from, to);
            let packet = segment.encode();
            let mut read = Segment::decode(&packet).expect("it is TCP");
            assert_eq!((read.start(), read.end()), (7, 10));
            // These follow from the rest.
            read.header.checksum = 0;
            read.header.options = Default::default();
            assert_eq!(read, segment);
        }
    }

    #[test]
    fn timestamps_leave_room_for_three_blocks() {
        let options = TcpOptions {
            sack: vec![(1, 2), (3, 4), (5, 6)],
            timestamps: Some((10, 20)),
            ..TcpOptions::default()
        };
        let bytes = options.encode();
        assert!(bytes.len() <= 40 && bytes.len().is_multiple_of(4));
        assert_eq!(TcpOptions::decode(&bytes), Some(options));
    }

    #[test]
    fn options_that_are_cut_off_are_refused() {
        assert_eq!(TcpOptions::decode(&[kind::MSS, 4, 1]), None);
        assert_eq!(TcpOptions::decode(&[kind::MSS]), None);
        assert_eq!(TcpOptions::decode(&[kind::MSS, 0]), None);
    }

    #[test]
    fn other_packets_are_passed_over() {
        assert_eq!(Segment::decode(&[]), None);
        let mut packet = segment("10.99.0.2:8080", "10.99.0.1:40000").encode();
        const PROTOCOL: usize = 9;
        packet[PROTOCOL] = 17;
        assert_eq!(Segment::decode(&packet), None);
    }

    #[test]
    fn both_zeros_are_checksums() {
        /// Where a TCP header without IP options has its checksum.
        const CHECKSUM: usize = 20 + 16;
        let mut segment = segment("10.99.0.2:8080", "10.99.0.1:40000");
        segment.payload = vec![0; 2];
        let packet = segment.encode();
        // As much payload as the checksum lacks makes it zero.
        segment.payload = packet[CHECKSUM..CHECKSUM + 2].to_owned();
        for zero in [[0, 0], [0xff, 0xff]] {
            let mut packet = segment.encode();
            assert!(matches!(
                packet[CHECKSUM..CHECKSUM + 2],
                [0, 0] | [0xff, 0xff]
            ));
            packet[CHECKSUM..CHECKSUM + 2].copy_from_slice(&zero);
            assert!(Segment::decode(&packet).is_some());
        }
    }

    #[test]
    #[should_panic(expected = "checksum")]
    fn damaged_segments_are_noticed() {
        let mut packet = segment("10.99.0.2:8080", "10.99.0.1:40000").encode();
        *packet.last_mut().expect("it has data") ^= 1;
        Segment::decode(&packet);
    }
}
