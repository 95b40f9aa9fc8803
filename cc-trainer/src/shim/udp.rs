//! Relaying datagrams of UDP, peer by peer.

use std::{
    collections::HashMap,
    io::Result,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    rc::Rc,
    sync::atomic::AtomicBool,
    time::Duration,
};

use cc_remote::http::REFUSED_PAUSE;
use cc_sim::{
    path::Nanos,
    shim::{Medium, Way},
};
use tokio::{
    net,
    sync::mpsc::{self, Receiver, Sender, error::TrySendError},
    task, time,
};

use super::{MAX_CONNECTIONS, Relay, alarm::Alarm, lane::Lane};
use crate::listening;

/// Bytes that any datagram fits in.
const LONGEST: usize = 1 << 16;

/// A peer that was silent for as long, in both directions, is forgotten.
const SILENCE: Duration = Duration::from_secs(60);

/// Datagrams of a peer that wait to be taken by its task.
const WAITING: usize = 1_024;

/// A datagram and the time at which it came.
type Arrived = (Nanos, Vec<u8>);

/// Relays datagrams until `stop` is true.
pub(super) async fn serve(socket: UdpSocket, relay: &Rc<Relay>, stop: &AtomicBool) -> Result<()> {
    socket.set_nonblocking(true)?;
    let socket = Rc::new(net::UdpSocket::from_std(socket)?);
    let mut peers: HashMap<SocketAddr, Sender<Arrived>> = HashMap::new();
    let mut buffer = vec![0; LONGEST];
    loop {
        let (length, from) = tokio::select! {
            () = listening::stopped(stop) => return Ok(()),
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                Err(_) => {
                    time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
            }
        };
        let mut arrived = (relay.now(), buffer[..length].to_vec());
        if let Some(peer) = peers.get(&from) {
            match peer.try_send(arrived) {
                Ok(()) => continue,
                Err(TrySendError::Full(_)) => {
                    relay.tally.borrow_mut().no_room(Way::There);
                    continue;
                }
                Err(TrySendError::Closed(again)) => arrived = again,
            }
        }
        peers.retain(|_, peer| !peer.is_closed());
        if peers.len() >= MAX_CONNECTIONS {
            relay.tally.borrow_mut().refuse("too many peers");
            continue;
        }
        let upstream = match connect(relay.settings.to).await {
            Ok(upstream) => upstream,
            Err(error) => {
                relay.tally.borrow_mut().refuse(error);
                continue;
            }
        };
        let (inbox, received) = mpsc::channel(WAITING);
        // There is room for the first one.
        let _ = inbox.try_send(arrived);
        peers.insert(from, inbox);
        let peer = Peer {
            address: from,
            socket: socket.clone(),
            upstream,
        };
        let relay = relay.clone();
        task::spawn_local(async move { peer.serve(received, &relay).await });
    }
}

/// A socket of one peer towards the server.
async fn connect(to: SocketAddr) -> Result<net::UdpSocket> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = net::UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// One peer, and the socket through which its datagrams go to the server.
struct Peer {
    address: SocketAddr,
    socket: Rc<net::UdpSocket>,
    upstream: net::UdpSocket,
}

impl Peer {
    /// Relays the peer's datagrams until it was silent for long.
    async fn serve(self, mut inbox: Receiver<Arrived>, relay: &Rc<Relay>) {
        let (mut there, mut back) = relay.connect(Medium::Datagrams);
        let mut alarm = Alarm::default();
        let mut buffer = vec![0; LONGEST];
        let mut is_open = true;
        loop {
            let next = there.next_at().into_iter().chain(back.next_at()).min();
            if !is_open && next.is_none() {
                return;
            }
            tokio::select! {
                biased;
                () = alarm.until(next, &relay.clock) => {
                    // What cannot be sent is lost, as what a network cannot deliver.
                    while let Some((at, datagram)) = there.take() {
                        let _ = self.upstream.send(&datagram).await;
                        there.forwarded(at, datagram.len());
                    }
                    while let Some((at, datagram)) = back.take() {
                        let _ = self.socket.send_to(&datagram, self.address).await;
                        back.forwarded(at, datagram.len());
                    }
                }
                arrived = inbox.recv(), if is_open => match arrived {
                    Some((at, datagram)) => offer(&mut there, at, &datagram),
                    None => is_open = false,
                },
                received = self.upstream.recv(&mut buffer) => {
                    // An error is a message of ICMP, such as that no server listens.
                    if let Ok(length) = received {
                        let now = back.now();
                        offer(&mut back, now, &buffer[..length]);
                    }
                }
                () = time::sleep(SILENCE), if next.is_none() => inbox.close(),
            }
        }
    }
}

fn offer(lane: &mut Lane, at: Nanos, datagram: &[u8]) {
    if lane.has_room() {
        lane.offer(at, datagram);
    } else {
        lane.refuse();
    }
}
