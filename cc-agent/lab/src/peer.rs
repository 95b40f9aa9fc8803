//! A TCP peer that follows a script, as packetdrill's does: it speaks to the kernel's TCP over a
//! TUN device, segment by segment, and decides itself what arrived, what was lost and what is
//! acknowledged.
//!
//! A script counts in segments of [`SEGMENT`] bytes, from 1 at [`Peer::mark`]. The kernel answers a
//! segment while it is being written to the device, so every step of a script returns what the host
//! sent at once; [`Peer::wait`] waits for what a timer sends. It needs root, so the example is only
//! compiled:
//!
//! ```no_run
//! use cc_lab::peer::{Ack, Host, Options, Peer};
//! # fn socket_that_connects_to(_: std::net::SocketAddr) {}
//!
//! let host = Host::new();
//! let mut peer = Peer::v4(&host, Options::default());
//! socket_that_connects_to(peer.address());
//! peer.accept();
//! // The application has written three segments; the first one is lost.
//! peer.expect_data(1..=3);
//! let sent = peer.reply(Ack::upto(0).sack(2..=3));
//! assert!(sent.again().is_empty(), "two duplicate ACKs are not enough");
//! ```

mod segment;
mod socket;
mod tun;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use etherparse::{IpEcn, TcpHeader};

pub use segment::{Segment, TcpOptions};
pub use socket::{allow_fast_open, disconnect};
use tun::Tun;

use crate::{Namespace, eventually};

/// Bytes of data in a segment of a script.
pub const SEGMENT: u32 = 1_000;

/// The name of the host's only link, which leads to the peer.
const DEVICE: &str = "peer0";

const HOST4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const PEER4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
const PEER6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);

/// A namespace whose only link is a TUN device with scripted peers at its other end.
///
/// The route to them sets the least retransmission timeout to 5 s, and the tail-loss probe is off,
/// so that no timer interferes with a script on a busy machine. [`Host::with_timeout`] and
/// [`Host::with_tail_loss_probe`] are for scripts about timers.
pub struct Host {
    // Fields are dropped in this order: the device is removed before its namespace.
    tun: Tun,
    /// The namespace in which the sockets under test belong.
    pub namespace: Namespace,
    next_port: Cell<u16>,
    /// Segments that were read while another peer of the host was waiting for its own.
    waiting: RefCell<VecDeque<Segment>>,
}

impl Host {
    /// Creates the namespace and its device.
    ///
    /// # Panics
    ///
    /// Panics if the system refuses, as the functions of [`Namespace`] do.
    pub fn new() -> Self {
        let namespace = Namespace::new("h");
        let tun = Tun::new(&namespace, DEVICE);
        namespace.ip(&format!("address add {HOST4}/32 dev {DEVICE}"));
        namespace.ip(&format!("address add {HOST6}/128 dev {DEVICE} nodad"));
        namespace.ip(&format!("link set {DEVICE} mtu 1500 up"));
        let host = Self {
            tun,
            namespace,
            next_port: Cell::new(8_001),
            waiting: RefCell::default(),
        };
        host.with_timeout(5_000)
            .with_sysctl("net/ipv4/tcp_early_retrans", "0")
    }

    /// Sets the least retransmission timeout, which is 200 ms on an ordinary host.
    pub fn with_timeout(self, milliseconds: u32) -> Self {
        self.route(&format!("rto_min {milliseconds}ms"));
        self
    }

    /// Switches the tail-loss probe on, as it is on an ordinary host.
    pub fn with_tail_loss_probe(self) -> Self {
        self.with_sysctl("net/ipv4/tcp_early_retrans", "3")
    }

    /// Sets a sysctl of the host's namespace, named by its path below /proc/sys.
    pub fn with_sysctl(self, key: &str, value: &str) -> Self {
        self.namespace.set_sysctl(key, value);
        self
    }

    /// Replaces the routes to the peers by ones with these attributes (ip-route(8)).
    pub fn route(&self, attributes: &str) {
        for peer in [format!("{PEER4}/32"), format!("{PEER6}/128")] {
            self.namespace
                .ip(&format!("route replace {peer} dev {DEVICE} {attributes}"));
        }
    }

    /// Returns the address of the host in the family of `peer`.
    pub fn address(&self, peer: IpAddr) -> IpAddr {
        match peer {
            IpAddr::V4(_) => HOST4.into(),
            IpAddr::V6(_) => HOST6.into(),
        }
    }

    /// Takes the next segment for the peer at this address that the host has sent.
    fn read(&self, peer: SocketAddr) -> Option<Segment> {
        let mut waiting = self.waiting.borrow_mut();
        while let Some(packet) = self.tun.read() {
            waiting.extend(Segment::decode(&packet));
        }
        let position = waiting.iter().position(|segment| segment.to == peer)?;
        waiting.remove(position)
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

/// What a peer offers during the handshake, and the window that it advertises.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum segment size in bytes, less the 12 bytes of timestamps where these are offered.
    pub mss: u32,
    /// Whether it sends selective acknowledgements.
    pub sack: bool,
    /// Whether the peer offers TCP timestamps in its SYN.
    pub timestamps: bool,
    /// Whether it asks for Explicit Congestion Notification, or agrees to it.
    pub ecn: bool,
    /// Receive window in bytes, a multiple of 128.
    pub window: u32,
    /// A cookie of TCP Fast Open for the handshake's segment.
    pub cookie: Option<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mss: SEGMENT,
            sack: true,
            timestamps: false,
            ecn: false,
            window: 1 << 20,
            cookie: None,
        }
    }
}

/// The peers' initial sequence number, which is of no consequence.
const INITIAL: u32 = 1_000_000;

/// Shift of the windows that peers advertise.
const WINDOW_SCALE: u8 = 7;

/// The acknowledgement that a step of a script sends. Counts are of the script's segments.
#[derive(Clone, Debug)]
pub struct Ack {
    bytes: u32,
    sack: Vec<(u32, u32)>,
    window: Option<u32>,
    echo: bool,
}

impl Ack {
    /// Acknowledges everything up to and including this segment; 0 acknowledges none.
    pub fn upto(segment: u32) -> Self {
        Self::upto_byte(segment * SEGMENT)
    }

    /// Acknowledges this many bytes from the start of the connection.
    pub fn upto_byte(bytes: u32) -> Self {
        Self {
            bytes,
            sack: Vec::new(),
            window: None,
            echo: false,
        }
    }

    /// Adds a block of selectively acknowledged segments. A block below the acknowledgement reports
    /// a duplicate (RFC 2883).
    pub fn sack(self, segments: RangeInclusive<u32>) -> Self {
        self.sack_bytes((segments.start() - 1) * SEGMENT, segments.end() * SEGMENT)
    }

    /// Adds a block of selectively acknowledged bytes, from the first to the one after the last.
    pub fn sack_bytes(mut self, from: u32, to: u32) -> Self {
        self.sack.push((from, to));
        self
    }

    /// Advertises this window in bytes instead of that of [`Options::window`].
    pub fn window(mut self, bytes: u32) -> Self {
        self.window = Some(bytes);
        self
    }

    /// Reports congestion marks (the flag ECE).
    pub fn echo_mark(mut self) -> Self {
        self.echo = true;
        self
    }
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |bytes: u32| f64::from(bytes) / f64::from(SEGMENT);
        write!(f, "ack {}", number(self.bytes))?;
        for &(from, to) in &self.sack {
            write!(f, " sack {}-{}", number(from) + 1.0, number(to))?;
        }
        if let Some(window) = self.window {
            write!(f, " window {window}")?;
        }
        f.write_str(if self.echo { " ece" } else { "" })
    }
}

/// A segment that a peer received, with its place in the script.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The segment as it came.
    pub segment: Segment,
    /// The bytes of the stream, from the first to the one after the last, counted from the mark.
    pub bytes: (u32, u32),
    /// Whether all of its data had been sent before.
    pub again: bool,
}

impl Arrival {
    /// Returns how many bytes of data the segment has.
    pub fn length(&self) -> u32 {
        self.bytes.1 - self.bytes.0
    }
}

/// What the host sent in one step of a script, in order.
#[derive(Clone, Debug, Default)]
pub struct Sent(pub Vec<Arrival>);

impl Sent {
    /// Returns the numbers of the segments with data that had not been sent before.
    ///
    /// # Panics
    ///
    /// Panics if the data are not in segments of [`SEGMENT`] bytes.
    pub fn fresh(&self) -> Vec<u32> {
        self.numbers(false)
    }

    /// Returns the numbers of the retransmitted segments.
    ///
    /// # Panics
    ///
    /// Panics if the data are not in segments of [`SEGMENT`] bytes.
    pub fn again(&self) -> Vec<u32> {
        self.numbers(true)
    }

    fn numbers(&self, again: bool) -> Vec<u32> {
        let data = self.data().filter(|arrival| arrival.again == again);
        data.map(|arrival| {
            let (from, to) = arrival.bytes;
            assert!(
                to - from == SEGMENT && from.is_multiple_of(SEGMENT),
                "bytes {from} to {to} are not one segment of the script"
            );
            to / SEGMENT
        })
        .collect()
    }

    /// Returns the segments with data.
    pub fn data(&self) -> impl Iterator<Item = &Arrival> {
        self.0.iter().filter(|arrival| arrival.length() > 0)
    }
}

impl fmt::Display for Sent {
    /// Writes the numbers of the script's segments, with `R` behind retransmissions, and other
    /// segments as their first byte and their length: `1-10 1R 10240+1242`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbered = |data: &Arrival| {
            let (from, to) = data.bytes;
            (to - from == SEGMENT && from.is_multiple_of(SEGMENT)).then_some(to / SEGMENT)
        };
        let mut rest = self.data().peekable();
        while let Some(data) = rest.next() {
            let again = if data.again { "R" } else { "" };
            let Some(first) = numbered(data) else {
                write!(f, " {}+{}{again}", data.bytes.0, data.length())?;
                continue;
            };
            let mut last = first;
            while let Some(next) = rest.peek()
                && next.again == data.again
                && numbered(next) == Some(last + 1)
            {
                last += 1;
                rest.next();
            }
            if last > first + 1 {
                write!(f, " {first}-{last}{again}")?;
            } else {
                for number in first..=last {
                    write!(f, " {number}{again}")?;
                }
            }
        }
        Ok(())
    }
}

/// A peer at the other end of a [`Host`]'s device: one connection.
pub struct Peer<'a> {
    host: &'a Host,
    address: SocketAddr,
    options: Options,
    /// The socket at the host, once the peer has heard of it.
    other: Option<SocketAddr>,
    /// The peer's next sequence number.
    next: u32,
    /// Sequence number of the first byte of the script's segment 1.
    base: u32,
    /// The first sequence number that the host has not sent yet.
    high: u32,
    /// The newest timestamp that the host has sent.
    newest_timestamp: u32,
}

impl<'a> Peer<'a> {
    /// Makes a peer with an IPv4 address and a port of its own.
    pub fn v4(host: &'a Host, options: Options) -> Self {
        Self::at(host, PEER4.into(), options)
    }

    /// Makes a peer with an IPv6 address and a port of its own.
    pub fn v6(host: &'a Host, options: Options) -> Self {
        Self::at(host, PEER6.into(), options)
    }

    fn at(host: &'a Host, address: IpAddr, options: Options) -> Self {
        let port = host.next_port.get();
        host.next_port.set(port + 1);
        Self {
            host,
            address: SocketAddr::new(address, port),
            options,
            other: None,
            next: INITIAL,
            base: 0,
            high: 0,
            newest_timestamp: 0,
        }
    }

    /// Returns the address and port to which a socket of the host can connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the host on whose device the peer is.
    pub fn host(&self) -> &'a Host {
        self.host
    }

    /// Changes what the peer offers and advertises from now on.
    pub fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Waits for the host's SYN and returns it.
    ///
    /// # Panics
    ///
    /// Panics if it does not come within 60 s, or something else does.
    pub fn expect_syn(&mut self) -> Segment {
        let syn = eventually("the host sent a SYN", || self.host.read(self.address));
        assert!(syn.header.syn && !syn.header.ack, "no SYN: {syn:?}");
        self.other = Some(syn.from);
        self.base = syn.start();
        self.high = syn.end();
        self.note_timestamp(&syn);
        syn
    }

    /// Answers a SYN with a SYN-ACK that acknowledges that many bytes of the SYN's data, and
    /// returns what the host sent then.
    ///
    /// # Panics
    ///
    /// Panics if no SYN has come.
    pub fn send_syn_ack(&mut self, bytes: u32) -> Sent {
        let mut segment = self.handshake();
        segment.header.ack = true;
        segment.header.acknowledgment_number = self.base.wrapping_add(bytes);
        segment.header.ece = self.options.ecn;
        self.next = self.next.wrapping_add(1);
        self.send(&segment)
    }

    /// Takes up the connection that a socket of the host opens. Returns what the host sent after
    /// the handshake.
    ///
    /// # Panics
    ///
    /// Panics if the host sends no SYN within 60 s.
    pub fn accept(&mut self) -> Sent {
        self.expect_syn();
        self.send_syn_ack(0)
    }

    /// Sends a SYN with this data to a port of the host, and returns the host's SYN-ACK. The
    /// handshake is completed by the peer's next segment.
    ///
    /// # Panics
    ///
    /// Panics if the host does not answer within 60 s.
    pub fn send_syn(&mut self, port: u16, data: &[u8]) -> Segment {
        let host = self.host.address(self.address.ip());
        self.other = Some(SocketAddr::new(host, port));
        let mut segment = self.handshake();
        segment.header.ece = self.options.ecn;
        segment.header.cwr = self.options.ecn;
        segment.payload = data.to_owned();
        self.host.tun.write(&segment.encode());
        let answer = eventually("the host sent a SYN-ACK", || self.host.read(self.address));
        assert!(
            answer.header.syn && answer.header.ack,
            "no SYN-ACK: {answer:?}"
        );
        self.next = answer.header.acknowledgment_number;
        self.base = answer.start();
        self.high = answer.start();
        self.note_timestamp(&answer);
        answer
    }

    /// A SYN or, without the rest of its fields, a SYN-ACK.
    fn handshake(&self) -> Segment {
        let mut segment = self.segment();
        segment.header.syn = true;
        segment.header.ack = false;
        segment.header.acknowledgment_number = 0;
        segment.header.window_size = u16::MAX;
        let with_timestamps = if self.options.timestamps { 12 } else { 0 };
        segment.options.mss = Some((self.options.mss + with_timestamps) as u16);
        segment.options.window_scale = Some(WINDOW_SCALE);
        segment.options.sack_permitted = self.options.sack;
        segment.options.cookie = self.options.cookie.clone();
        segment
    }

    /// Counts the script's segments from the next byte that the host has not sent yet.
    pub fn mark(&mut self) {
        self.base = self.high;
    }

    /// Sends an acknowledgement, and returns what the host sent in response.
    ///
    /// # Panics
    ///
    /// Panics if no connection exists.
    pub fn reply(&mut self, ack: Ack) -> Sent {
        let segment = self.acknowledgement(&ack);
        self.send(&segment)
    }

    /// Sends acknowledgements one right after the other, and returns what the host sent in response
    /// to all of them.
    ///
    /// # Panics
    ///
    /// Panics if no connection exists.
    pub fn reply_all(&mut self, acks: &[Ack]) -> Sent {
        let packets: Vec<_> = acks
            .iter()
            .map(|ack| self.acknowledgement(ack).encode())
            .collect();
        for packet in packets {
            self.host.tun.write(&packet);
        }
        self.sent()
    }

    /// Sends an acknowledgement with that many bytes of data, and returns what the host sent in
    /// response.
    ///
    /// # Panics
    ///
    /// Panics if no connection exists.
    pub fn send_data(&mut self, ack: Ack, bytes: usize) -> Sent {
        let mut segment = self.acknowledgement(&ack);
        segment.payload = vec![0; bytes];
        self.next = self.next.wrapping_add(bytes as u32);
        self.send(&segment)
    }

    /// Resets the connection by a segment with RST.
    ///
    /// # Panics
    ///
    /// Panics if no connection exists.
    pub fn reset(&mut self) {
        let mut segment = self.segment();
        segment.header.rst = true;
        segment.header.ack = true;
        segment.header.acknowledgment_number = self.high;
        self.send(&segment);
    }

    /// Returns what the host has sent since the last step, without waiting.
    pub fn sent(&mut self) -> Sent {
        let mut sent = Sent::default();
        while let Some(segment) = self.host.read(self.address) {
            sent.0.push(self.arrival(segment));
        }
        sent
    }

    /// Returns how many bytes of a SYN's data the host's SYN-ACK has acknowledged.
    pub fn acknowledged(&self) -> u32 {
        self.next.wrapping_sub(INITIAL + 1)
    }

    /// Returns how many bytes the host has sent since the mark, each counted once.
    pub fn received(&self) -> u32 {
        self.high.wrapping_sub(self.base)
    }

    /// Waits until the host sends something, which one of its timers makes it do, and returns it.
    ///
    /// # Panics
    ///
    /// Panics if nothing comes within 60 s.
    pub fn wait(&mut self) -> Sent {
        eventually("the host sent something", || {
            let sent = self.sent();
            (!sent.0.is_empty()).then_some(sent)
        })
    }

    /// Waits for exactly these segments of new data, in order, and nothing else with data.
    ///
    /// # Panics
    ///
    /// Panics if anything else arrives, or they do not within 60 s.
    pub fn expect_data(&mut self, segments: RangeInclusive<u32>) -> Sent {
        let count = segments.clone().count();
        let mut sent = Sent::default();
        eventually(&format!("segments {segments:?} arrived"), || {
            sent.0.extend(self.sent().0);
            (sent.data().count() >= count).then_some(())
        });
        assert_eq!(sent.fresh(), segments.collect::<Vec<_>>());
        assert_eq!(sent.again(), [0; 0]);
        sent
    }

    fn arrival(&mut self, segment: Segment) -> Arrival {
        let (start, end) = (segment.start(), segment.end());
        let is_after = |a: u32, b: u32| (a.wrapping_sub(b) as i32) > 0;
        let again = !segment.payload.is_empty() && !is_after(end, self.high);
        if is_after(end, self.high) {
            self.high = end;
        }
        self.note_timestamp(&segment);
        let from = start.wrapping_sub(self.base);
        Arrival {
            bytes: (from, from.wrapping_add(segment.payload.len() as u32)),
            again,
            segment,
        }
    }

    fn note_timestamp(&mut self, segment: &Segment) {
        if let Some((value, _)) = segment.options.timestamps {
            self.newest_timestamp = value;
        }
    }

    fn acknowledgement(&self, ack: &Ack) -> Segment {
        let mut segment = self.segment();
        let sequence = |bytes: u32| self.base.wrapping_add(bytes);
        segment.header.acknowledgment_number = sequence(ack.bytes);
        segment.header.ece = ack.echo;
        if let Some(window) = ack.window {
            segment.header.window_size = (window >> WINDOW_SCALE) as u16;
        }
        let edges = ack.sack.iter();
        segment.options.sack = edges
            .map(|&(from, to)| (sequence(from), sequence(to)))
            .collect();
        segment
    }

    /// A segment without data that acknowledges nothing of the script.
    fn segment(&self) -> Segment {
        let mut header = TcpHeader::new(0, 0, self.next, 0);
        header.window_size = (self.options.window >> WINDOW_SCALE) as u16;
        header.ack = true;
        header.acknowledgment_number = self.base;
        // The peer's own clock stands still, which timestamps may do.
        let timestamps = (1, self.newest_timestamp);
        Segment {
            from: self.address,
            to: self.other.expect("a connection"),
            ecn: IpEcn::NotEct,
            header,
            options: TcpOptions {
                timestamps: self.options.timestamps.then_some(timestamps),
                ..TcpOptions::default()
            },
            payload: Vec::new(),
        }
    }

    fn send(&mut self, segment: &Segment) -> Sent {
        self.host.tun.write(&segment.encode());
        self.sent()
    }
}
