//! Where and when a flow was recorded: by what flows may have shared a link.

use std::net::{IpAddr, SocketAddr};

/// Length of an hour, ns.
const HOUR_NS: i64 = 3_600_000_000_000;

/// Where and when a flow was recorded. All parts of a flow have the same origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowOrigin {
    /// Identifier of the path ([`path`]); `None` where the recording has no remote address.
    pub path: Option<u64>,
    /// Number of the recording's directory. An agent records into a directory of its own, so that a
    /// directory stands for a host.
    pub directory: u32,
    /// Hours from 1970 UTC to the end of the flow's first recorded window.
    pub hour: i64,
}

impl FlowOrigin {
    /// Creates the origin of a flow whose first recorded window ended at `time_ns`, counted from
    /// 1970 UTC.
    pub(super) fn new(path: Option<u64>, directory: u32, time_ns: i64) -> Self {
        Self {
            path,
            directory,
            hour: time_ns.div_euclid(HOUR_NS),
        }
    }
}

/// Returns the identifier of the path to a remote address in the form of a recording: that of the
/// network's prefix of a plain address (24 bits of IPv4, 48 of IPv6), or that of the whole hashed
/// address. It is never 0; `None` for anything else.
pub(crate) fn path(remote: &str) -> Option<u64> {
    let version = |number: u64| number << 56;
    match remote.parse::<SocketAddr>() {
        Ok(address) => Some(match address.ip().to_canonical() {
            IpAddr::V4(ip) => version(4) | u64::from(ip.to_bits() >> 8),
            IpAddr::V6(ip) => version(6) | (ip.to_bits() >> 80) as u64,
        }),
        Err(_) => {
            let digits = remote.get(..16)?;
            u64::from_str_radix(digits, 16).ok().map(|hash| hash.max(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_prefix_or_a_whole_hash() {
        let same = |a, b| path(a).expect("an address") == path(b).expect("an address");
        assert!(same("192.0.2.1:80", "192.0.2.254:443"));
        assert!(!same("192.0.2.1:80", "192.0.3.1:80"));
        assert!(same("[2001:db8:7:1::1]:443", "[2001:db8:7:2::9]:80"));
        assert!(!same("[2001:db8:7::1]:443", "[2001:db8:8::1]:443"));
        assert!(
            same("[::ffff:192.0.2.1]:80", "192.0.2.9:80"),
            "an IPv4 address in a socket of IPv6"
        );
        let hash = "00112233445566778899aabbccddeeff";
        assert!(same(hash, hash));
        assert!(!same(hash, "01112233445566778899aabbccddeeff"));
        assert_eq!(path("0000000000000000ffffffffffffffff"), Some(1));
        assert_eq!(path("somewhere else"), None);
        assert_eq!(path(""), None);
    }

    #[test]
    fn hours_are_whole_and_negative_before_1970() {
        let hour = |time_ns| FlowOrigin::new(None, 0, time_ns).hour;
        assert_eq!([hour(0), hour(HOUR_NS - 1), hour(HOUR_NS)], [0, 0, 1]);
        assert_eq!(hour(-1), -1);
    }
}
