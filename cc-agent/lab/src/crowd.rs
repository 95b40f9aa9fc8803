//! Thousands of senders in one thread.

use std::{
    collections::HashMap,
    io::{ErrorKind, Write},
    net::SocketAddr,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use socket2::Socket;

use super::{
    Namespace, eventually,
    tcp::{SMALL_SEND_BUFFER, Worker, for_each_event, raise_descriptor_limit, start_connecting},
};

/// Many connections that all send as much as they can, until the crowd is dropped and resets them.
pub struct Crowd {
    counts: Arc<Counts>,
    _worker: Worker,
}

#[derive(Default)]
struct Counts {
    connected: AtomicUsize,
    failed: AtomicUsize,
}

impl Crowd {
    /// Bytes that each sender asks for as its send buffer. A cwnd of more than these does not limit
    /// it any more; the kernel counts it as limited by the application.
    pub const SEND_BUFFER: usize = SMALL_SEND_BUFFER;

    /// Connects `flows` senders from a namespace, under the named congestion control, and waits
    /// until all of them are connected.
    ///
    /// # Panics
    ///
    /// Panics if one of them fails, or not all are connected within 60 s.
    pub fn connect(
        from: &Namespace,
        to: SocketAddr,
        congestion_control: &str,
        flows: usize,
    ) -> Self {
        let counts = Arc::new(Counts::default());
        let (ours, name) = (counts.clone(), congestion_control.to_owned());
        let worker = Worker::start(from, move |stop| {
            raise_descriptor_limit();
            let connect = || {
                start_connecting(to, Some(&name)).map_err(|e| eprintln!("connecting to {to}: {e}"))
            };
            let sockets: Vec<Socket> = (0..flows).map_while(|_| connect().ok()).collect();
            let missing = flows - sockets.len();
            ours.failed.fetch_add(missing, Ordering::Relaxed);
            send(sockets, &ours, stop);
        });
        let crowd = Self {
            counts,
            _worker: worker,
        };
        eventually("the whole crowd was connected", || {
            assert_eq!(crowd.failed(), 0, "connections of the crowd failed");
            (crowd.connected() == flows).then_some(())
        });
        crowd
    }

    /// Returns the number of senders that have connected so far.
    pub fn connected(&self) -> usize {
        self.counts.connected.load(Ordering::Relaxed)
    }

    /// Returns the number of senders that could not connect or were disconnected.
    pub fn failed(&self) -> usize {
        self.counts.failed.load(Ordering::Relaxed)
    }
}

/// Sends zeros on all sockets until `stop` is set, and counts connections made and lost.
fn send(sockets: Vec<Socket>, counts: &Counts, stop: &AtomicBool) {
    let data = vec![0; 1 << 14];
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("a free descriptor");
    // By file descriptor: the socket, and whether it has connected.
    let mut members: HashMap<u64, (Socket, bool)> = HashMap::new();
    for socket in sockets {
        let token = socket.as_raw_fd() as u64;
        let writable = EpollEvent::new(EpollFlags::EPOLLOUT, token);
        epoll.add(&socket, writable).expect("a socket");
        members.insert(token, (socket, false));
    }
    for_each_event(&epoll, stop, |token| {
        let Some((socket, connected)) = members.get_mut(&token) else {
            return;
        };
        let written = (&*socket).write(&data);
        if written
            .as_ref()
            .is_err_and(|e| e.kind() != ErrorKind::WouldBlock)
        {
            eprintln!("a member of the crowd was disconnected: {written:?}");
            counts.failed.fetch_add(1, Ordering::Relaxed);
            members.remove(&token);
        } else if !*connected {
            *connected = true;
            counts.connected.fetch_add(1, Ordering::Relaxed);
        }
    });
}
