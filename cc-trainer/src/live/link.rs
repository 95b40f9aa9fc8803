//! What carries the messages: datagrams, or frames of connections.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

use cc_sim::shim::Medium;
use socket2::SockRef;

use super::{
    SILENCE, SLICE,
    wire::{Frames, LARGEST, frame},
};
use crate::shim::Socket;

/// Messages that wait to be taken by a service; further ones are dropped.
const WAITING: usize = 1_024;
/// Most connections of a service at the same time; further ones are closed at once.
const CONNECTIONS: usize = 16;
/// Bytes that are read at once: one more than fits, which tells a datagram that is too large.
const BUFFER: usize = LARGEST + 1;

/// Whom a message is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Udp(SocketAddr),
    /// Number of the connection, from 1 on.
    Tcp(u64),
}

/// A message that a service has got.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) at: Instant,
    pub(super) from: Peer,
    pub(super) bytes: Vec<u8>,
}

/// A service's way to its peers.
pub(super) enum Outlet {
    Udp(UdpSocket),
    Tcp(Connections),
}

/// The connections of a service by their number.
#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<HashMap<u64, TcpStream>>>);

/// Receives on threads of `scope`, which end with `stop`. A thread that blocks knows when a message
/// came, however late the service looks for it.
pub(super) fn receive<'scope>(
    socket: Socket,
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
) -> io::Result<(Receiver<Arrived>, Outlet)> {
    let (inbox, received) = mpsc::sync_channel(WAITING);
    let outlet = match socket {
        Socket::Udp(socket) => {
            socket.set_read_timeout(Some(SLICE))?;
            let outlet = Outlet::Udp(socket.try_clone()?);
            scope.spawn(move || receive_datagrams(&socket, &inbox, stop));
            outlet
        }
        Socket::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let connections = Connections::default();
            let outlet = Outlet::Tcp(connections.clone());
            scope.spawn(move || accept(&listener, &connections, &inbox, scope, stop));
            outlet
        }
    };
    Ok((received, outlet))
}

fn receive_datagrams(socket: &UdpSocket, inbox: &SyncSender<Arrived>, stop: &AtomicBool) {
    let mut buffer = [0; BUFFER];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => pass_on(inbox, Peer::Udp(from), buffer[..length].to_vec()),
            Err(error) if is_timeout(&error) => {}
            // Such as an answer of ICMP to what was sent.
            Err(_) => thread::sleep(SLICE),
        }
    }
}

fn accept<'scope>(
    listener: &TcpListener,
    connections: &Connections,
    inbox: &SyncSender<Arrived>,
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(SLICE);
            continue;
        };
        number += 1;
        let (connections, inbox) = (connections.clone(), inbox.clone());
        if connections.add(number, &stream).is_ok() {
            scope.spawn(move || {
                receive_frames(stream, number, &inbox, stop);
                connections.remove(number);
            });
        }
    }
}

fn receive_frames(
    mut stream: TcpStream,
    number: u64,
    inbox: &SyncSender<Arrived>,
    stop: &AtomicBool,
) {
    let (mut frames, mut buffer) = (Frames::default(), [0; BUFFER]);
    let mut heard = Instant::now();
    while !stop.load(Ordering::Relaxed) && heard.elapsed() < SILENCE {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                heard = Instant::now();
                frames.extend(&buffer[..length]);
            }
            Err(error) if is_timeout(&error) => {}
            Err(_) => return,
        }
        loop {
            match frames.next() {
                Ok(Some(message)) => pass_on(inbox, Peer::Tcp(number), message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Passes a message on, if there is room.
fn pass_on(inbox: &SyncSender<Arrived>, from: Peer, bytes: Vec<u8>) {
    let at = Instant::now();
    let _ = inbox.try_send(Arrived { at, from, bytes });
}

fn is_timeout(error: &io::Error) -> bool {
    use ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, number: u64, stream: &TcpStream) -> io::Result<()> {
        let mut connections = self.lock();
        if connections.len() >= CONNECTIONS {
            return Err(ErrorKind::ResourceBusy.into());
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_nodelay(true)?;
        connections.insert(number, stream.try_clone()?);
        Ok(())
    }

    fn remove(&self, number: u64) {
        self.lock().remove(&number);
    }
}

impl Outlet {
    /// Sends a message, or loses it: a peer that does not read must not stop the world.
    pub(super) fn send(&self, to: Peer, message: &[u8]) {
        match (self, to) {
            (Self::Udp(socket), Peer::Udp(to)) => {
                let _ = socket.send_to(message, to);
            }
            (Self::Tcp(connections), Peer::Tcp(number)) => {
                let mut connections = connections.lock();
                let Some(stream) = connections.get(&number) else {
                    return;
                };
                let frame = frame(message);
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let outcome = SockRef::from(stream).send_with_flags(&frame, flags);
                match outcome {
                    Ok(sent) if sent == frame.len() => {}
                    Err(error) if is_timeout(&error) => {}
                    // Half a frame: what follows would not be understood.
                    _ => {
                        let _ = stream.shutdown(std::net::Shutdown::Both);
                        connections.remove(&number);
                    }
                }
            }
            _ => {}
        }
    }
}

/// A policy's way to the service.
#[derive(Debug)]
pub(super) enum Link {
    Udp(UdpSocket),
    Tcp(TcpStream, Frames),
}

impl Link {
    pub(super) fn connect(to: SocketAddr, medium: Medium) -> io::Result<Self> {
        match medium {
            Medium::Datagrams => {
                let any: SocketAddr = match to {
                    SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                    SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(to)?;
                Ok(Self::Udp(socket))
            }
            Medium::Stream => {
                let stream = TcpStream::connect_timeout(&to, SILENCE)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(SILENCE))?;
                Ok(Self::Tcp(stream, Frames::default()))
            }
        }
    }

    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            // An error is that of an earlier datagram, such as that no one listens yet.
            Self::Udp(socket) => drop(socket.send(message)),
            Self::Tcp(stream, _) => io::Write::write_all(stream, &frame(message))?,
        }
        Ok(())
    }

    /// Waits for a message, `None` if there is none within about `patience`.
    pub(super) fn receive(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; BUFFER];
        match self {
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(patience))?;
                match socket.recv(&mut buffer) {
                    Ok(length) => Ok(Some(buffer[..length].to_vec())),
                    Err(error) if is_timeout(&error) => Ok(None),
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        thread::sleep(patience);
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            }
            Self::Tcp(stream, frames) => {
                let invalid = |fault| io::Error::new(ErrorKind::InvalidData, fault);
                if let Some(message) = frames.next().map_err(invalid)? {
                    return Ok(Some(message));
                }
                stream.set_read_timeout(Some(patience))?;
                match stream.read(&mut buffer) {
                    Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                    Ok(length) => {
                        frames.extend(&buffer[..length]);
                        frames.next().map_err(invalid)
                    }
                    Err(error) if is_timeout(&error) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}
