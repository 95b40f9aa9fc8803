//! What a path does to each packet with data, from captures at both of its ends.

use std::{
    collections::HashMap,
    net::UdpSocket,
    ops::Range,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cc_lab::Namespace;
use nix::poll::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, Socket, Type};

/// Every kind of packet (`ETH_P_ALL`), since only those who ask for it get what is sent.
const ALL: u16 = 3;
/// Time between two looks at whether to end, ms.
const PATIENCE_MS: u8 = 200;

/// A thread that keeps all TCP segments with payload that pass the devices of two namespaces.
///
/// Their times are those at which the thread reads them, on an idle host some 0.05 ms late. It is
/// one thread, which looks at the near end first: what is late is late at both ends.
pub(crate) struct Capture {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<[Vec<Segment>; 2]>,
}

/// A segment with payload that was seen at one end of the path.
struct Segment {
    at: Instant,
    /// The sender's port and the IP identification. Linux counts the latter up for each packet of a
    /// connection (`ip_select_ident_segs`), so that it is unique among 65,536.
    key: (u16, u16),
    payload: u64,
}

/// What became of the segments of a connection.
#[derive(Debug, Default)]
pub(crate) struct Passage {
    /// Bytes of payload that arrived, retransmissions included.
    pub(crate) payload: u64,
    /// Segments that were sent and did not arrive: dropped, or still on their way.
    pub(crate) missing: u64,
    /// Time from one end to the other of each segment that arrived, in ascending order.
    pub(crate) delays: Vec<Duration>,
}

impl Capture {
    pub(crate) fn start(near: &Namespace, far: &Namespace) -> Self {
        let sockets = [near, far].map(|namespace| namespace.within(packet_socket));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut ends = [Vec::new(), Vec::new()];
            let mut packet = [0; 128];
            while !stopped.load(Ordering::Relaxed) {
                let mut ready = sockets
                    .each_ref()
                    .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
                // A signal interrupts the wait: there is nothing to read then.
                let _ = poll(&mut ready, PATIENCE_MS);
                for (socket, segments) in sockets.iter().zip(&mut ends) {
                    while let Ok(length) = socket.recv(&mut packet) {
                        segments.extend(Segment::read(&packet[..length], Instant::now()));
                    }
                }
            }
            ends
        });
        Self { stop, thread }
    }

    /// Ends the capture, and returns what became of the segments that the connections from these
    /// ports sent within that time.
    pub(crate) fn passages(self, ports: &[u16], time: Range<Instant>) -> Vec<Passage> {
        self.stop.store(true, Ordering::Relaxed);
        let [near, far] = self.thread.join().expect("it does not panic");
        let passage = |&port: &u16| {
            let ours = |segment: &&Segment| segment.key.0 == port;
            let in_time = |segment: &&Segment| ours(segment) && time.contains(&segment.at);
            let sent: HashMap<_, _> = (near.iter().filter(ours))
                .map(|segment| (segment.key, segment.at))
                .collect();
            let mut passage = Passage {
                missing: near.iter().filter(in_time).count() as u64,
                ..Passage::default()
            };
            for segment in far.iter().filter(in_time) {
                let from = sent.get(&segment.key);
                let from = from.expect("the capture has all that was sent");
                let delay = segment.at.saturating_duration_since(*from);
                passage.payload += segment.payload;
                passage.missing = passage.missing.saturating_sub(1);
                passage.delays.push(delay);
            }
            passage.delays.sort_unstable();
            passage
        };
        ports.iter().map(passage).collect()
    }
}

/// A socket that gets what passes the devices of this thread's namespace.
fn packet_socket() -> UdpSocket {
    let protocol = Protocol::from(i32::from(ALL.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol));
    let socket = socket.expect("root may capture packets");
    socket.set_nonblocking(true).expect("a socket can be that");
    // One receives from it as from a UDP socket.
    UdpSocket::from(socket)
}

impl Segment {
    /// Reads the headers of an IPv4 packet; `None` if it is no TCP segment with payload.
    fn read(packet: &[u8], at: Instant) -> Option<Self> {
        const TCP: u8 = 6;
        let short = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let first = *packet.first()?;
        if first >> 4 != 4 || *packet.get(9)? != TCP {
            return None;
        }
        let ip_header = usize::from(first & 0xf) * 4;
        let tcp_header = usize::from(packet.get(ip_header + 12)? >> 4) * 4;
        let payload = usize::from(short(2)?).checked_sub(ip_header + tcp_header)?;
        (payload > 0).then_some(Self {
            at,
            key: (short(ip_header)?, short(4)?),
            payload: payload as u64,
        })
    }
}
