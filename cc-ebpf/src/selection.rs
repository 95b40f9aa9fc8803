//! The choice of the flows of other congestion controls that are observed.

use bytemuck::{Pod, Zeroable};

use crate::Identity;

/// A network: the addresses that agree with `address` in the bits of `mask`.
///
/// Words are in network byte order, and IPv4 is mapped into IPv6 ([`Identity::addresses6`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Prefix {
    /// Address of the network; bits outside the mask are 0.
    pub address: [u32; 4],
    /// The bits that are compared.
    pub mask: [u32; 4],
}

impl Prefix {
    /// Whether an address belongs to the network.
    #[inline(always)]
    pub fn contains(&self, address: &[u32; 4]) -> bool {
        let mut word = 0;
        let mut same = true;
        while word < 4 {
            same &= address[word] & self.mask[word] == self.address[word];
            word += 1;
        }
        same
    }
}

/// Number of entries that each list has room for.
const MOST: usize = 8;

/// The conditions that a flow must meet to be observed: one entry of each list that is not empty
/// must match.
///
/// Each list is an array of [`Selection::MOST`] entries and a length.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Selection {
    /// Number of entries in `congestion_controls`.
    pub congestion_controls_len: u32,
    /// Number of entries in `ports`.
    pub ports_len: u32,
    /// Number of entries in `local`.
    pub local_len: u32,
    /// Number of entries in `remote`.
    pub remote_len: u32,
    /// Number of entries in `cgroups`.
    pub cgroups_len: u32,
    #[doc(hidden)]
    pub reserved: u32,
    /// Names of congestion controls, NUL-padded, as in [`Identity::congestion_control`].
    pub congestion_controls: [[u32; 4]; MOST],
    /// Networks to which the local address may belong.
    pub local: [Prefix; MOST],
    /// Networks to which the remote address may belong.
    pub remote: [Prefix; MOST],
    /// Ids of cgroups; the flow's own cgroup may be a descendant of one of them.
    pub cgroups: [u64; MOST],
    /// Ports in host byte order, either local or remote.
    pub ports: [u16; MOST],
}

impl Selection {
    /// The most entries that a list can hold.
    pub const MOST: usize = MOST;

    /// Whether the flow matches every list except that of cgroups, for which the kernel's cgroup
    /// tree is needed.
    #[inline(always)]
    pub fn takes(&self, identity: &Identity) -> bool {
        let (local, remote) = identity.addresses6();
        any(
            self.congestion_controls_len,
            &self.congestion_controls,
            |name| {
                let ours = &identity.congestion_control;
                name[0] == ours[0] && name[1] == ours[1] && name[2] == ours[2] && name[3] == ours[3]
            },
        ) && any(self.ports_len, &self.ports, |&port| {
            port == identity.local_port || port == identity.remote_port
        }) && any(self.local_len, &self.local, |network| {
            network.contains(&local)
        }) && any(self.remote_len, &self.remote, |network| {
            network.contains(&remote)
        })
    }

    /// Whether a cgroup is among the conditions.
    #[inline(always)]
    pub fn asks_cgroup(&self) -> bool {
        self.cgroups_len > 0
    }

    /// Whether the list of cgroups contains this id, or is empty.
    #[inline(always)]
    pub fn takes_cgroup(&self, id: u64) -> bool {
        any(self.cgroups_len, &self.cgroups, |&cgroup| cgroup == id)
    }
}

/// Whether one of the first `length` entries matches, or there are none.
#[inline(always)]
fn any<T>(length: u32, entries: &[T; MOST], fits: impl Fn(&T) -> bool) -> bool {
    if length == 0 {
        return true;
    }
    for (index, entry) in entries.iter().enumerate() {
        if index < length as usize && fits(entry) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const INET: u16 = 2;
    const INET6: u16 = 10;

    fn flow() -> Identity {
        Identity {
            family: INET,
            local_port: 40_000,
            remote_port: 443,
            local_addr: [u32::from_ne_bytes([10, 1, 2, 3]), 0, 0, 0],
            remote_addr: [u32::from_ne_bytes([192, 0, 2, 7]), 0, 0, 0],
            congestion_control: name(b"cubic"),
            ..Identity::default()
        }
    }

    fn name(text: &[u8]) -> [u32; 4] {
        let mut bytes = [0; 16];
        bytes[..text.len()].copy_from_slice(text);
        bytemuck::cast(bytes)
    }

    /// An IPv4 network by its prefix length.
    fn network(address: [u8; 4], length: u32) -> Prefix {
        let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0).to_be();
        Prefix {
            address: [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes(address) & mask],
            mask: [u32::MAX, u32::MAX, u32::MAX, mask],
        }
    }

    #[test]
    fn nothing_asked_takes_everything() {
        let all = Selection::zeroed();
        assert!(all.takes(&flow()) && all.takes(&Identity::default()));
        assert!(!all.asks_cgroup() && all.takes_cgroup(7));
    }

    #[test]
    fn one_entry_of_each_list_must_fit() {
        let mut selection = Selection::zeroed();
        selection.congestion_controls_len = 2;
        selection.congestion_controls[0] = name(b"bbr");
        selection.congestion_controls[1] = name(b"cubic");
        assert!(selection.takes(&flow()));
        let mut other = flow();
        other.congestion_control = name(b"cubi");
        assert!(!selection.takes(&other), "the whole name counts");

        selection.ports_len = 1;
        selection.ports[0] = 80;
        assert!(!selection.takes(&flow()));
        selection.ports[0] = 443;
        assert!(selection.takes(&flow()), "the remote port");
        selection.ports[0] = 40_000;
        assert!(selection.takes(&flow()), "the local port");
        selection.ports[1] = 0;
        other = flow();
        other.local_port = 0;
        assert!(
            !selection.takes(&other),
            "entries beyond the length say nothing"
        );
    }

    #[test]
    fn networks_of_both_families() {
        let mut selection = Selection::zeroed();
        selection.remote_len = 1;
        selection.remote[0] = network([192, 0, 2, 0], 24);
        assert!(selection.takes(&flow()));
        selection.remote[0] = network([192, 0, 3, 0], 24);
        assert!(!selection.takes(&flow()));
        selection.remote[0] = network([0, 0, 0, 0], 0);
        assert!(selection.takes(&flow()), "all of IPv4");

        let mut six = flow();
        six.family = INET6;
        six.remote_addr = [
            u32::from_ne_bytes([0x20, 0x01, 0x0d, 0xb8]),
            0,
            0,
            1u32.to_be(),
        ];
        assert!(
            !selection.takes(&six),
            "an IPv6 address is not in IPv4's network"
        );
        // A socket of both families has an IPv4 peer as a mapped address.
        six.remote_addr = [0, 0, 0xffff_u32.to_be(), flow().remote_addr[0]];
        assert!(selection.takes(&six));
        selection.remote[0] = Prefix::default();
        assert!(selection.takes(&six), "all of IPv6");

        selection.local_len = 1;
        selection.local[0] = network([10, 1, 0, 0], 16);
        assert!(selection.takes(&flow()));
        selection.local[0] = network([10, 2, 0, 0], 16);
        assert!(!selection.takes(&flow()));
    }

    #[test]
    fn cgroups_by_their_id() {
        let mut selection = Selection::zeroed();
        selection.cgroups_len = 1;
        selection.cgroups[0] = 99;
        assert!(selection.asks_cgroup());
        assert!(selection.takes_cgroup(99) && !selection.takes_cgroup(0));
    }
}
