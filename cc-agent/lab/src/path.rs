//! Paths: namespaces joined by veth pairs, with a rate limit between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Namespace;

/// A rate limit and the drop-tail queue in front of it: the token bucket filter of tc-tbf(8).
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Rate in Mbit/s, including the headers of IP and Ethernet.
    pub rate_mbit: u32,
    /// Length of the queue in bytes; packets that exceed it are dropped.
    pub queue_bytes: u32,
}

/// Whether devices may bundle segments (TSO, GSO, GRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloads {
    /// Every segment is a packet of its own.
    Off,
    /// Segments may travel in packets of up to 64 KiB.
    On,
}

/// A path from a sender to a receiver, each in a namespace of its own, over IPv4 and IPv6 with an
/// MTU of 1500 bytes.
///
/// # Panics
///
/// All functions panic if the system refuses what they do, as those of [`Namespace`] do.
pub struct Path {
    /// The sender's namespace; its device is `s0`.
    pub sender: Namespace,
    /// The receiver's namespace; its device is `c0`.
    pub receiver: Namespace,
    /// The router's namespace, with devices `r0` and `r1`; `None` on a direct path.
    router: Option<Namespace>,
}

const RECEIVER4: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
const RECEIVER6: Ipv6Addr = Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 2);

impl Path {
    /// Joins sender and receiver through a router, with the bottleneck on the router's device
    /// towards the receiver and all offloads off.
    ///
    /// The bottleneck is not on the sender's own device, whose drops TCP notices at once and does
    /// not take for losses.
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
            for router in routers(network) {
                namespace.ip(&format!("route add default via {router}"));
            }
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

    /// Joins sender and receiver by one veth pair without a rate limit.
    pub fn direct(offloads: Offloads) -> Self {
        let path = Self {
            sender: Namespace::new("s"),
            receiver: Namespace::new("c"),
            router: None,
        };
        // The receiver has the same address as behind a router; the sender has the router's.
        join((&path.receiver, "c0"), (&path.sender, "s0"), 2);
        let on = offloads == Offloads::On;
        path.sender.set_offloads("s0", on);
        path.receiver.set_offloads("c0", on);
        path
    }

    /// Returns the receiver's IPv4 address.
    pub fn receiver4(&self) -> IpAddr {
        RECEIVER4.into()
    }

    /// Returns the receiver's IPv6 address.
    pub fn receiver6(&self) -> IpAddr {
        RECEIVER6.into()
    }

    /// Replaces the bottleneck, while flows go on. Also panics on a direct path.
    pub fn reshape(&self, bottleneck: Bottleneck) {
        let Bottleneck {
            rate_mbit,
            queue_bytes,
        } = bottleneck;
        // The bucket holds 2 ms of data, and at least three packets: enough for the timer, too
        // little to matter.
        let burst = (rate_mbit * 250).max(5_000);
        self.router().tc(&format!(
            "qdisc replace dev r1 root tbf rate {rate_mbit}mbit burst {burst} limit {queue_bytes}"
        ));
    }

    /// Makes the router drop everything for the receiver silently. Also panics on a direct path.
    pub fn cut(&self) {
        self.router()
            .ip(&format!("route add blackhole {RECEIVER4}/32"));
    }

    /// Undoes [`Self::cut`]. Also panics if the path is not cut.
    pub fn mend(&self) {
        self.router()
            .ip(&format!("route del blackhole {RECEIVER4}/32"));
    }

    /// Keeps the sender's timers from retransmitting within 10 s, for flows whose test is that
    /// nothing is lost. Otherwise a machine that stalls for 50 ms brings a tail loss probe, and one
    /// that stalls for a quarter of a second a timeout (`tcp_schedule_loss_probe` and
    /// `tcp_rto_min`, Linux 6.18). Call it before the flows connect. Also panics on a direct path.
    pub fn without_timeouts(&self) {
        self.router();
        self.sender.set_sysctl("net/ipv4/tcp_early_retrans", "0");
        for router in routers(1) {
            self.sender
                .ip(&format!("route change default via {router} rto_min 10s"));
        }
    }

    /// Returns the router's namespace, to change the queues of its devices: `r0` towards the sender
    /// and `r1` towards the receiver. Panics on a direct path.
    pub fn router(&self) -> &Namespace {
        let router = self.router.as_ref();
        router.expect("a direct path has no bottleneck and nothing to cut")
    }
}

/// The router's addresses in a host's network, see [`join`].
fn routers(network: u8) -> [String; 2] {
    [format!("10.77.{network}.1"), format!("fd77:{network}::1")]
}

/// Joins a host (its address ends in 2) and a router (1) by a veth pair, with addresses in
/// 10.77.`network`.0/24 and fd77:`network`::/64.
fn join(
    (host, host_device): (&Namespace, &str),
    (router, router_device): (&Namespace, &str),
    network: u8,
) {
    for namespace in [host, router] {
        // Otherwise link-local addresses are tentative for a second or two, in which neighbours may
        // not find each other.
        namespace.set_sysctl("net/ipv6/conf/default/accept_dad", "0");
    }
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
