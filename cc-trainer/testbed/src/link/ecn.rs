//! Congestion-experienced marks in the headers of IP packets (RFC 3168, section 5).

use cc_sim::path::Ecn;

/// The codepoint of a packet that is not ECN-capable, and of one that has a mark.
const NOT_ECT: u8 = 0b00;
const CE: u8 = 0b11;

/// The codepoint of an IP packet. One that is neither IPv4 nor IPv6 is not ECN-capable.
pub(super) fn codepoint(packet: &[u8]) -> Ecn {
    let bits = match packet.first().map(|first| first >> 4) {
        Some(4) if packet.len() >= 20 => packet[1],
        Some(6) if packet.len() >= 40 => packet[1] >> 4,
        _ => NOT_ECT,
    };
    match bits & CE {
        0b01 => Ecn::Ect1,
        0b10 => Ecn::Ect0,
        CE => Ecn::Ce,
        _ => Ecn::NotEct,
    }
}

/// Marks an IP packet if it is ECN-capable, as the kernel's `INET_ECN_set_ce` does. Returns whether
/// it has a mark now.
pub(super) fn mark(packet: &mut [u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        // RFC 791, section 3.1: the lowest bits of the second byte, covered by a checksum.
        Some(4) if packet.len() >= 20 => {
            if packet[1] & CE == NOT_ECT {
                return false;
            }
            let word = |packet: &[u8]| u16::from_be_bytes([packet[0], packet[1]]);
            let former = word(packet);
            packet[1] |= CE;
            let checksum = updated([packet[10], packet[11]], former, word(packet));
            packet[10..12].copy_from_slice(&checksum);
            true
        }
        // RFC 8200, section 3: the traffic class begins in the middle of the first byte.
        Some(6) if packet.len() >= 40 => {
            if (packet[1] >> 4) & CE == NOT_ECT {
                return false;
            }
            packet[1] |= CE << 4;
            true
        }
        _ => false,
    }
}

/// The checksum of a header in which a word has changed (RFC 1624, equation 3).
fn updated(checksum: [u8; 2], former: u16, now: u16) -> [u8; 2] {
    let sum = u32::from(!u16::from_be_bytes(checksum)) + u32::from(!former) + u32::from(now);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (!(folded as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The checksum of an IPv4 header, computed from all of it (RFC 1071).
    fn checksum(header: &[u8]) -> [u8; 2] {
        let words = header.chunks(2).enumerate();
        let mut sum: u32 = words
            .filter(|(place, _)| *place != 5)
            .map(|(_, pair)| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    proptest! {
        #[test]
        fn an_ipv4_header_keeps_a_valid_checksum(
            mut packet in prop::collection::vec(any::<u8>(), 20..60),
        ) {
            packet[0] = 0x45;
            let header = checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&header);
            let former = packet.clone();
            let marked = mark(&mut packet);
            prop_assert_eq!(marked, former[1] & 0b11 != 0);
            prop_assert_eq!(marked, codepoint(&former).is_capable());
            prop_assert_eq!(marked, codepoint(&packet) == Ecn::Ce);
            if marked {
                prop_assert_eq!(packet[1], former[1] | 0b11);
                prop_assert_eq!(&packet[10..12], &checksum(&packet[..20]));
            } else {
                prop_assert_eq!(&packet, &former);
            }
            prop_assert_eq!(&packet[2..10], &former[2..10]);
            prop_assert_eq!(&packet[12..], &former[12..]);
        }

        #[test]
        fn any_bytes_are_taken_without_panicking(
            mut packet in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let length = packet.len();
            codepoint(&packet);
            mark(&mut packet);
            prop_assert_eq!(packet.len(), length);
        }
    }

    #[test]
    fn ipv6_has_the_codepoint_in_the_traffic_class() {
        // Traffic class 0xa6 (DSCP 41, ECT(0)), flow label 0x12345.
        let mut packet = vec![0; 40];
        packet[..4].copy_from_slice(&[0x6a, 0x61, 0x23, 0x45]);
        packet[1] = 0x21;
        assert_eq!(codepoint(&packet), Ecn::Ect0);
        assert!(mark(&mut packet));
        assert_eq!(codepoint(&packet), Ecn::Ce);
        assert_eq!(packet[..4], [0x6a, 0x31, 0x23, 0x45]);
        packet[1] = 0x01;
        assert!(!mark(&mut packet), "not ECN-capable");
        assert_eq!(packet[1], 0x01);
    }
}
