//! What packets travel through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Namespace;

/// A rate limit and the queue in front of it: a token bucket that drops what exceeds the queue.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Rate in Mbit/s, headers of the link included.
    pub rate_mbit: u32,
    /// Length of the queue in bytes.
    pub queue_bytes: u32,
}

/// Whether segments may travel in large bundles (TSO, GSO, GRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloads {
    Off,
    On,
}

/// A path from a sender to a receiver. IPv4 and IPv6, MTU 1500.
pub struct Path {
    pub sender: Namespace,
    pub receiver: Namespace,
    router: Option<Namespace>,
}

const RECEIVER4: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
const RECEIVER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 2);

impl Path {
    /// Sender, router and receiver; the bottleneck is the router's device towards the receiver, out
    /// of the sender's sight (what a sender's own device drops, TCP does not take for a loss).
    pub fn through(bottleneck: Bottleneck) -> Self {
        let path = Self {
            sender: Namespace::new("s"),
            receiver: Namespace::new("c"),
            router: Some(Namespace::new("r")),
        };
        let (sender, receiver, router) = (&path.sender, &path.receiver, path.router());
        join((sender, "s0"), (router, "r0"), 1);
        join((receiver, "c0"), (router, "r1"), 2);
        router.set_sysctl("net/ipv4/ip_forward", "1");
        router.set_sysctl("net/ipv6/conf/all/forwarding", "1");
        for (namespace, network) in [(sender, 1), (receiver, 2)] {
            namespace.ip(&format!("route add default via 10.77.{network}.1"));
            namespace.ip(&format!("route add default via fd77:{network}::1"));
        }
        for (namespace, device) in [
            (sender, "s0"),
            (router, "r0"),
            (router, "r1"),
            (receiver, "c0"),
        ] {
            namespace.set_offloads(device, false);
        }
        path.reshape(bottleneck);
        path
    }

    /// Sender and receiver on one cable without a limit.
    pub fn direct(offloads: Offloads) -> Self {
        let path = Self {
            sender: Namespace::new("s"),
            receiver: Namespace::new("c"),
            router: None,
        };
        // The receiver has the address that it has behind a router, the sender a router's.
        join((&path.receiver, "c0"), (&path.sender, "s0"), 2);
        let on = offloads == Offloads::On;
        path.sender.set_offloads("s0", on);
        path.receiver.set_offloads("c0", on);
        path
    }

    /// Where the receiver is, IPv4.
    pub fn receiver4(&self) -> IpAddr {
        RECEIVER4.into()
    }

    /// Where the receiver is, IPv6.
    pub fn receiver6(&self) -> IpAddr {
        RECEIVER6.into()
    }

    /// Changes the bottleneck.
    pub fn reshape(&self, bottleneck: Bottleneck) {
        let Bottleneck {
            rate_mbit,
            queue_bytes,
        } = bottleneck;
        // Enough for the timer, and too little to be felt: 2 ms, at least three packets.
        let burst = (rate_mbit * 250).max(5_000);
        self.router().tc(&format!(
            "qdisc replace dev r1 root tbf rate {rate_mbit}mbit burst {burst} limit {queue_bytes}"
        ));
    }

    /// From now on the router silently drops everything for the receiver.
    pub fn cut(&self) {
        self.router()
            .ip(&format!("route add blackhole {RECEIVER4}/32"));
    }

    /// Undoes [`Self::cut`].
    pub fn mend(&self) {
        self.router()
            .ip(&format!("route del blackhole {RECEIVER4}/32"));
    }

    fn router(&self) -> &Namespace {
        let router = self.router.as_ref();
        router.expect("a direct path has no bottleneck and nothing to cut")
    }
}

/// A cable between a host (its address ends with 2) and a router (1) in the network of that number.
fn join(
    (host, host_device): (&Namespace, &str),
    (router, router_device): (&Namespace, &str),
    network: u8,
) {
    host.ip(&format!(
        "link add {host_device} type veth peer name {router_device} netns {}",
        router.name()
    ));
    for (namespace, device, last) in [(host, host_device, 2), (router, router_device, 1)] {
        namespace.ip(&format!(
            "address add 10.77.{network}.{last}/24 dev {device}"
        ));
        namespace.ip(&format!(
            "address add fd77:{network}::{last}/64 dev {device} nodad"
        ));
        namespace.ip(&format!("link set {device} up"));
    }
}
