//! Which flows the candidate of a canary has, and when.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
    time::Duration,
};

use cc_ebpf::Identity;
use serde::{Deserialize, Serialize};

use super::Arm;

/// Bits of an IPv4 address that make its prefix: as many as routes on the Internet have at most.
const PREFIX_V4: u32 = 24;
/// Bits of an IPv6 address that make its prefix.
const PREFIX_V6: u32 = 48;
/// The part of a block, and its longest, in which queues and flows still show the block before it.
const WASHOUT: (u64, u64) = (5, 2_000_000_000);
/// The least length of block 0, in which flows show what they have without a candidate, ns.
const LEAST_FIRST_NS: u64 = 10_000_000_000;

/// What a canary compares: its statistical units, which do not share a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CanaryBy {
    /// Blocks of time. The candidate decides for its share of the flows in some blocks, the
    /// incumbent for the same flows in the others; all other flows are the incumbent's, and show
    /// what the candidate does to its neighbours.
    #[default]
    Time,
    /// Paths: the candidate has its share of the remote prefixes, /24 of IPv4 and /48 of IPv6.
    Path,
    /// Remote hosts: the candidate has its share of the remote addresses.
    Host,
}

impl CanaryBy {
    /// All ways, in the order of the documentation.
    pub const ALL: [Self; 3] = [Self::Time, Self::Path, Self::Host];

    /// The name in options and in the status: `time`, `path` or `host`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Path => "path",
            Self::Host => "host",
        }
    }

    /// What its units are called, in the plural.
    pub fn units(self) -> &'static str {
        match self {
            Self::Time => "pairs of blocks",
            Self::Path => "paths on each side",
            Self::Host => "hosts on each side",
        }
    }
}

impl fmt::Display for CanaryBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CanaryBy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|by| by.name() == name)
            .ok_or_else(|| format!("`{name}`: expected `time`, `path` or `host`"))
    }
}

/// The candidate's share, and how it is assigned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CanaryPlan {
    /// The share of the flows, paths or hosts in percent, 0 to 100.
    pub percent: f64,
    /// What is compared, and hence assigned to an arm.
    pub by: CanaryBy,
    /// Length of a block of time; at least a second.
    pub block: Duration,
    /// Makes successive canaries choose different flows, paths, hosts and blocks.
    pub salt: u64,
}

/// A path or a remote host, within a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cluster {
    netns: u32,
    remote: IpAddr,
}

impl CanaryPlan {
    /// The path or the remote host of a flow; by time, the host.
    pub(super) fn cluster(&self, identity: &Identity) -> Cluster {
        let (_, remote) = identity.endpoints();
        let address = remote.ip().to_canonical();
        let remote = match (self.by, address) {
            (CanaryBy::Path, IpAddr::V4(address)) => {
                let prefix = address.to_bits() & (u32::MAX << (32 - PREFIX_V4));
                Ipv4Addr::from_bits(prefix).into()
            }
            (CanaryBy::Path, IpAddr::V6(address)) => {
                let prefix = address.to_bits() & (u128::MAX << (128 - PREFIX_V6));
                Ipv6Addr::from_bits(prefix).into()
            }
            (CanaryBy::Time | CanaryBy::Host, address) => address,
        };
        Cluster {
            netns: identity.netns,
            remote,
        }
    }

    /// Whether the candidate is to have a flow: always where paths or hosts are compared, or in the
    /// candidate's blocks. It depends on a hash, not on the order in which flows open.
    pub(super) fn is_treated(&self, identity: &Identity, generation: u32) -> bool {
        let place = match self.by {
            CanaryBy::Time => self.place((identity.endpoints(), generation)),
            CanaryBy::Path | CanaryBy::Host => self.place(self.cluster(identity)),
        };
        place * 100.0 < self.percent
    }

    /// Length of a block, ns.
    pub(super) fn block_ns(&self) -> u64 {
        u64::try_from(self.block.as_nanos()).unwrap_or(u64::MAX)
    }

    /// When a block begins, in ns since the beginning of the canary.
    pub(crate) fn begin_ns(&self, block: u64) -> u64 {
        let Some(after) = block.checked_sub(1) else {
            return 0;
        };
        let first_ns = self.block_ns().max(LEAST_FIRST_NS);
        first_ns.saturating_add(after.saturating_mul(self.block_ns()))
    }

    /// The block of a time in ns since the beginning of the canary.
    pub(super) fn block_at(&self, ns: u64) -> u64 {
        match ns.checked_sub(self.begin_ns(1)) {
            None => 0,
            Some(after_ns) => 1 + after_ns / self.block_ns().max(1),
        }
    }

    /// Time at the beginning of a block that is not counted, ns.
    pub(super) fn washout_ns(&self) -> u64 {
        (self.block_ns() / WASHOUT.0).min(WASHOUT.1)
    }

    /// The arm that has the candidate's share of the flows in a block. Block 0, before which
    /// nothing is known, is the incumbent's. After it, each arm has one block of each pair, in
    /// random order: neither a trend nor a period of the load favours an arm.
    pub(crate) fn arm_of_block(&self, block: u64) -> Arm {
        let Some(after) = block.checked_sub(1) else {
            return Arm::Incumbent;
        };
        let is_second = after % 2 == 1;
        if (self.place(after / 2) < 0.5) == is_second {
            Arm::Incumbent
        } else {
            Arm::Candidate
        }
    }

    /// A number from 0 to 1 that is uniform over what is hashed.
    fn place(&self, what: impl Hash) -> f64 {
        let mut hasher = DefaultHasher::new();
        (self.salt, what).hash(&mut hasher);
        hasher.finish() as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(by: CanaryBy, percent: f64) -> CanaryPlan {
        CanaryPlan {
            percent,
            by,
            block: Duration::from_secs(10),
            salt: 7,
        }
    }

    /// A flow to the address 10.A.B.C from this port.
    fn flow(address: [u8; 3], port: u16) -> Identity {
        let [a, b, c] = address;
        let mut identity = Identity {
            family: 2,
            remote_port: port,
            ..Identity::default()
        };
        identity.remote_addr[0] = u32::from_ne_bytes([10, a, b, c]);
        identity
    }

    #[test]
    fn ways_have_names() {
        for by in CanaryBy::ALL {
            assert_eq!(by.name().parse(), Ok(by));
            let json = serde_json::to_string(&by).expect("serialises");
            assert_eq!(json, format!("\"{by}\""));
        }
        let error = "flow".parse::<CanaryBy>().expect_err("no such way");
        assert_eq!(error, "`flow`: expected `time`, `path` or `host`");
    }

    #[test]
    fn the_share_is_what_was_asked_for() {
        for by in CanaryBy::ALL {
            for (percent, expected) in [(0.0, 0..=0), (10.0, 800..=1_200), (100.0, 10_000..=10_000)]
            {
                let plan = plan(by, percent);
                let of = |i: u16| plan.is_treated(&flow([(i >> 8) as u8, i as u8, 1], i), 1);
                let count = (0..10_000).filter(|&i| of(i)).count();
                assert!(expected.contains(&count), "{by} {percent} %: {count}");
            }
        }
        let of = |salt, port| {
            let plan = CanaryPlan {
                salt,
                ..plan(CanaryBy::Time, 50.0)
            };
            plan.is_treated(&flow([0, 0, 1], port), 1)
        };
        assert!(
            (0..100).any(|port| of(1, port) != of(2, port)),
            "another canary has other flows"
        );
    }

    #[test]
    fn all_flows_of_a_path_or_a_host_have_one_policy() {
        for a in 0..100 {
            let path = plan(CanaryBy::Path, 50.0);
            let host = plan(CanaryBy::Host, 50.0);
            let first = path.is_treated(&flow([a, 2, 3], 80), 1);
            for (c, port, generation) in [(3, 80, 9), (4, 443, 1), (255, 1, 1)] {
                let flow = flow([a, 2, c], port);
                assert_eq!(path.is_treated(&flow, generation), first);
                let of_host = host.is_treated(&flow, generation);
                assert_eq!(host.is_treated(&self::flow([a, 2, c], 7), 3), of_host);
            }
        }
        let path = plan(CanaryBy::Path, 50.0);
        let cluster = |identity| path.cluster(&identity);
        assert_ne!(cluster(flow([1, 2, 3], 1)), cluster(flow([1, 3, 3], 1)));
        let elsewhere = Identity {
            netns: 9,
            ..flow([1, 2, 3], 1)
        };
        assert_ne!(cluster(flow([1, 2, 3], 1)), cluster(elsewhere));
    }

    #[test]
    fn each_pair_of_blocks_has_one_of_the_candidate_in_random_order() {
        let plan = plan(CanaryBy::Time, 50.0);
        assert_eq!(plan.arm_of_block(0), Arm::Incumbent);
        let mut first = 0;
        for pair in 0..1_000 {
            let arms = [1, 2].map(|block| plan.arm_of_block(2 * pair + block));
            assert_ne!(arms[0], arms[1]);
            first += u32::from(arms[0] == Arm::Candidate);
        }
        // Four standard deviations of 1000 tosses are 63.
        assert!((437..=563).contains(&first), "{first}");
        assert_eq!(plan.washout_ns(), 2_000_000_000);
    }
}
