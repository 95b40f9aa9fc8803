//! Networks as users write them.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use cc_ebpf::Prefix;

/// Bits of an IPv6 address, and of the part of it that stands before a mapped IPv4 address.
const WHOLE: u32 = 128;
const MAPPED: u32 = 96;

/// A network: an address and a length (`10.0.0.0/8`, `2001:db8::/32`), or an address alone. IPv4
/// is mapped into IPv6, so that one network has the addresses of sockets of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address, in host byte order; bits beyond the length are 0.
    bits: u128,
    /// Bits that are compared, of 128.
    length: u32,
}

impl Network {
    /// All addresses of IPv6; those of IPv4 are among them, where nothing longer is compared.
    pub(crate) const IPV6: Self = Self { bits: 0, length: 0 };
    /// All addresses of IPv4, as they are mapped into IPv6.
    pub(crate) const IPV4: Self = Self {
        bits: 0xffff_0000_0000,
        length: MAPPED,
    };

    /// Bits that are compared, of the 128 of an address in IPv6.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// The address in network byte order, as the datapath compares it.
    pub(crate) fn words(&self) -> [u32; 4] {
        words(self.bits)
    }

    /// As the list of an observer has it.
    pub(crate) fn prefix(&self) -> Prefix {
        Prefix {
            address: words(self.bits),
            mask: words(self.mask()),
        }
    }

    /// Whether an address belongs to it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        mapped(address) & self.mask() == self.bits
    }

    /// Whether all addresses of the other network belong to it.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        self.length <= other.length && other.bits & self.mask() == self.bits
    }

    fn mask(&self) -> u128 {
        u128::MAX.checked_shl(WHOLE - self.length).unwrap_or(0)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.bits);
        match address.to_ipv4_mapped() {
            Some(address) if self.length >= MAPPED => {
                write!(f, "{address}/{}", self.length - MAPPED)
            }
            _ => write!(f, "{address}/{}", self.length),
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}`: expected an address or a network, as in `10.0.0.0/8` or `2001:db8::/32`"
            )
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| expected())?;
        let longest = if address.is_ipv4() { 32 } else { WHOLE };
        let length = match length {
            Some(length) => length.parse::<u32>().map_err(|_| expected())?,
            None => longest,
        };
        if length > longest {
            return Err(format!("`{text}`: the length is at most {longest}"));
        }
        if let Some(inner) = mapped_ipv4(address)
            && length < MAPPED
        {
            let network = match length {
                0..=32 => format!(", as in `{}/{length}`", cleared(inner, length)),
                _ => String::new(),
            };
            return Err(format!(
                "`{text}`: of the {WHOLE} bits of an IPv4 address within IPv6 the length has to \
                 cover {MAPPED} at least; write the network as IPv4{network}, which has the \
                 sockets of both families"
            ));
        }
        let network = Self {
            bits: mapped(address),
            length: length + WHOLE - longest,
        };
        if network.bits & !network.mask() != 0 {
            return Err(format!(
                "`{text}`: the address has bits beyond the length of {length}; leave the length \
                 out, or clear them"
            ));
        }
        Ok(network)
    }
}

/// The address in host byte order; IPv4 is mapped into IPv6.
fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
    .to_bits()
}

/// The IPv4 address within an IPv6 address.
fn mapped_ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    }
}

/// The address without the bits beyond a length of at most 32.
fn cleared(address: Ipv4Addr, length: u32) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

/// The address in network byte order, as the datapath compares it.
fn words(bits: u128) -> [u32; 4] {
    bytemuck::cast(Ipv6Addr::from_bits(bits).octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn a_network_is_written_as_it_was_read() {
        for (text, written) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            // As `ss` shows the peers of sockets of both families.
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            assert_eq!(network(text).to_string(), written);
        }
        assert_eq!(network("::/0"), Network::IPV6);
        assert_eq!(network("0.0.0.0/0"), Network::IPV4);
    }

    #[test]
    fn networks_include_others_and_addresses() {
        let ten = network("10.0.0.0/8");
        assert!(ten.includes(&network("10.9.0.0/16")) && ten.includes(&ten));
        assert!(!ten.includes(&network("0.0.0.0/0")) && !ten.includes(&network("11.0.0.0/16")));
        assert!(Network::IPV6.includes(&ten), "IPv4 is mapped into it");
        assert!(!Network::IPV4.includes(&network("fd00::/8")));
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(ten.contains(address("10.1.2.3")) && ten.contains(address("::ffff:10.1.2.3")));
        assert!(!ten.contains(address("11.1.2.3")) && !ten.contains(address("::10.1.2.3")));
    }

    #[test]
    fn what_is_wrong_is_named_with_a_remedy() {
        for (text, expected) in [
            ("10.0.0.1/8", "bits beyond the length of 8"),
            ("10.0.0.0/33", "at most 32"),
            ("::/129", "at most 128"),
            (
                "10.0.0.0/x",
                "`10.0.0.0/x`: expected an address or a network",
            ),
            (
                "example.org",
                "`example.org`: expected an address or a network",
            ),
            ("", "expected an address or a network"),
            (
                "::ffff:10.1.0.0/8",
                "write the network as IPv4, as in `10.0.0.0/8`",
            ),
            ("::ffff:10.1.0.0/90", "write the network as IPv4, which"),
            ("::ffff:10.1.0.1/112", "bits beyond the length of 112"),
        ] {
            let error = text.parse::<Network>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
