//! TCP flows on the live kernel: bulk senders, and sinks that read.

use std::{
    collections::HashMap,
    io::{self, Write},
    net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    os::fd::AsRawFd,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    resource::{Resource, getrlimit, setrlimit},
};
use socket2::{Domain, SockRef, Socket, Type};

use super::{Namespace, TcpInfo, eventually};

/// A TCP connection that sends. Dropping it resets the connection, unless it was finished.
pub struct Flow {
    stream: Arc<TcpStream>,
    writer: Option<JoinHandle<()>>,
}

impl Flow {
    /// Connects from a namespace under the named congestion control.
    ///
    /// # Panics
    ///
    /// Panics if the kernel lacks the congestion control or refuses the connection.
    pub fn connect(from: &Namespace, to: SocketAddr, congestion_control: &str) -> Self {
        Self::connect_after(from, to, |socket| {
            socket
                .set_tcp_congestion(congestion_control.as_bytes())
                .unwrap_or_else(|error| panic!("choosing {congestion_control}: {error}"));
        })
    }

    /// Connects from a namespace under the kernel's choice of congestion control.
    ///
    /// # Panics
    ///
    /// Panics if the connection is refused.
    pub fn connect_without_choice(from: &Namespace, to: SocketAddr) -> Self {
        Self::connect_after(from, to, |_| {})
    }

    fn connect_after(
        from: &Namespace,
        to: SocketAddr,
        prepare: impl FnOnce(&Socket) + Send,
    ) -> Self {
        let stream = from.within(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)
                .expect("a free descriptor");
            prepare(&socket);
            socket
                .connect(&to.into())
                .unwrap_or_else(|error| panic!("connecting to {to}: {error}"));
            TcpStream::from(socket)
        });
        stream.into()
    }

    /// Sends as much as the connection takes, on a thread of its own, until this flow is dropped.
    pub fn sending(mut self) -> Self {
        let stream = self.stream.clone();
        self.writer = Some(thread::spawn(move || {
            let data = vec![0; 1 << 18];
            while (&*stream).write(&data).is_ok_and(|written| written > 0) {}
        }));
        self
    }

    /// Sends that many bytes, and waits until the socket's buffer holds the last of them.
    ///
    /// # Panics
    ///
    /// Panics if the connection is broken.
    pub fn send(&self, bytes: usize) {
        let data = vec![0; 1 << 16];
        let mut left = bytes;
        while left > 0 {
            let chunk = &data[..left.min(data.len())];
            (&*self.stream)
                .write_all(chunk)
                .expect("an open connection");
            left -= chunk.len();
        }
    }

    /// Ends the flow in its own direction, waits until everything including the FIN is
    /// acknowledged, and returns its TCP_INFO. After that, nothing more is sent while the [`Sink`]
    /// holds its end open ([`AfterEnd::Hold`]).
    ///
    /// # Panics
    ///
    /// Panics if the connection is broken or does not come to rest within 60 s.
    pub fn finish(&self) -> TcpInfo {
        self.stream
            .shutdown(Shutdown::Write)
            .expect("an open connection");
        eventually("the end of the flow was acknowledged", || {
            Some(self.info()).filter(|info| info.state == TcpInfo::FIN_WAIT2)
        });
        let mut last = self.info();
        // The receiver may still send window updates while it reads.
        eventually("the connection came to rest", || {
            thread::sleep(Duration::from_millis(50));
            let info = self.info();
            let rests = info.segs_in == last.segs_in && info.segs_out == last.segs_out;
            last = info;
            rests.then_some(info)
        })
    }

    /// Reads the connection's TCP_INFO.
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses, which it never does for an open connection.
    pub fn info(&self) -> TcpInfo {
        TcpInfo::of(&*self.stream).expect("an open connection")
    }

    /// Returns the name of its congestion control (`TCP_CONGESTION`).
    ///
    /// # Panics
    ///
    /// Panics if the kernel refuses, which it never does for an open connection.
    pub fn congestion_control(&self) -> String {
        let name = self.socket().tcp_congestion().expect("an open connection");
        String::from_utf8_lossy(&name)
            .trim_end_matches('\0')
            .to_owned()
    }

    /// Returns the socket, to get and set options.
    pub fn socket(&self) -> SockRef<'_> {
        SockRef::from(&*self.stream)
    }

    /// Returns the sender's address and port.
    ///
    /// # Panics
    ///
    /// Panics if the connection is broken.
    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("it is connected")
    }

    /// Returns the local port of the sending socket.
    ///
    /// # Panics
    ///
    /// Panics if the connection is broken.
    pub fn port(&self) -> u16 {
        self.local().port()
    }

    /// Waits until that many more bytes have been acknowledged.
    ///
    /// # Panics
    ///
    /// Panics if they are not within 60 s.
    pub fn advance(&self, bytes: u64) {
        let from = self.info().bytes_acked;
        eventually("the flow advanced", || {
            (self.info().bytes_acked >= from + bytes).then_some(())
        });
    }
}

/// A connection that was opened elsewhere, such as an accepted one.
impl From<TcpStream> for Flow {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            writer: None,
        }
    }
}

impl Drop for Flow {
    /// Stops the writer. A flow that is not finished is reset, so that closing does not wait for a
    /// full queue.
    fn drop(&mut self) {
        let finished = TcpInfo::of(&*self.stream).is_ok_and(|i| i.state == TcpInfo::FIN_WAIT2);
        if !finished {
            let _ = self.socket().set_linger(Some(Duration::ZERO));
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// What a [`Sink`] does with a connection whose sender has ended its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterEnd {
    /// The sink closes the connection.
    Close,
    /// The sink leaves the connection half open until it is dropped itself, so that the sender's
    /// TCP_INFO can be read.
    Hold,
}

/// A server that accepts every connection and discards what it receives, on one thread.
pub struct Sink {
    port: u16,
    /// Bytes received, by the sender's port.
    received: Arc<[AtomicU64]>,
    /// Bytes received from all senders.
    total: Arc<AtomicU64>,
    _worker: Worker,
}

impl Sink {
    /// Listens in a namespace on any free port, for IPv4 and IPv6.
    ///
    /// # Panics
    ///
    /// Panics if no socket can be bound.
    pub fn listen(within: &Namespace, after_end: AfterEnd) -> Self {
        let received: Arc<[AtomicU64]> = (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect();
        let total = Arc::<AtomicU64>::default();
        let (tell_port, port) = mpsc::channel();
        let (ledger, sum) = (received.clone(), total.clone());
        let worker = Worker::start(within, move |stop| {
            let listener = listener();
            let address = listener.local_addr().ok();
            let port = address.and_then(|a| a.as_socket()).map(|a| a.port());
            tell_port
                .send(port.expect("it is bound"))
                .expect("the sink waits for it");
            serve(&listener, &ledger, &sum, after_end, stop);
        });
        Self {
            port: port.recv().expect("the sink listens"),
            received,
            total,
            _worker: worker,
        }
    }

    /// Returns the port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the host's address with the port on which the sink listens.
    pub fn at(&self, host: IpAddr) -> SocketAddr {
        SocketAddr::new(host, self.port)
    }

    /// Returns the bytes received from the last sender with that port.
    pub fn received_from(&self, port: u16) -> u64 {
        self.received[usize::from(port)].load(Ordering::Relaxed)
    }

    /// Returns the bytes received from all senders.
    pub fn received(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// Accepts and receives until `stop` is set. `received` counts bytes by the sender's port, `total`
/// all of them.
fn serve(
    listener: &Socket,
    received: &[AtomicU64],
    total: &AtomicU64,
    after_end: AfterEnd,
    stop: &AtomicBool,
) {
    const LISTENER: u64 = u64::MAX;
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("a free descriptor");
    let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
    epoll.add(listener, readable(LISTENER)).expect("a socket");
    let mut connections: HashMap<u64, (Socket, usize)> = HashMap::new();
    let mut ended = Vec::new();
    for_each_event(&epoll, stop, |token| {
        if token == LISTENER {
            // The connection may have been reset while it waited.
            if let Ok((socket, peer)) = listener.accept() {
                let port = usize::from(peer.as_socket().map_or(0, |peer| peer.port()));
                let token = socket.as_raw_fd() as u64;
                received[port].store(0, Ordering::Relaxed);
                epoll.add(&socket, readable(token)).expect("a new socket");
                connections.insert(token, (socket, port));
            }
            return;
        }
        let Some((socket, port)) = connections.get(&token) else {
            return;
        };
        match discard(socket) {
            0 => {
                let _ = epoll.delete(socket);
                let connection = connections.remove(&token);
                ended.extend(connection.filter(|_| after_end == AfterEnd::Hold));
            }
            bytes => {
                received[*port].fetch_add(bytes, Ordering::Relaxed);
                total.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    });
}

/// Discards what has arrived without copying it (tcp(7): `MSG_TRUNC`), and returns its length in
/// bytes: 0 at the end of the stream and after errors.
fn discard(socket: &Socket) -> u64 {
    let (nowhere, most) = (ptr::null_mut(), 1 << 24);
    // SAFETY: with MSG_TRUNC, TCP writes nothing to the buffer, so there need be none.
    let bytes = unsafe { libc::recv(socket.as_raw_fd(), nowhere, most, libc::MSG_TRUNC) };
    u64::try_from(bytes).unwrap_or(0)
}

/// Returns a listening socket for IPv4 and IPv6 on any free port.
fn listener() -> Socket {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a free descriptor");
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    socket.set_only_v6(false).expect("a dual-stack host");
    socket.bind(&any.into()).expect("any port");
    socket.listen(4_096).expect("a bound socket");
    socket
}

/// A thread in a namespace with a file descriptor table of its own, because the limit on open
/// files would otherwise count both ends of every connection. Dropping it stops the thread.
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(
        within: &Namespace,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = within.spawn(move || {
            // Copies of other threads' descriptors would keep BPF objects alive.
            // SAFETY: with this flag they are closed in this thread's new table only, and the
            // thread owns none but standard input, output and error.
            let status = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as _) };
            assert_eq!(
                status,
                0,
                "close_range: {}",
                std::io::Error::last_os_error()
            );
            work(&stopped);
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Calls `work` with the token of every event until `stop` is set.
pub(super) fn for_each_event(epoll: &Epoll, stop: &AtomicBool, mut work: impl FnMut(u64)) {
    let mut events = [EpollEvent::empty(); 256];
    while !stop.load(Ordering::Relaxed) {
        // A signal interrupts the wait: there are no events then.
        let count = epoll.wait(&mut events, 10u8).unwrap_or(0);
        for event in &events[..count] {
            work(event.data());
        }
    }
}

/// Bytes that senders of many connections ask for as their send buffer: little, to save memory.
pub(super) const SMALL_SEND_BUFFER: usize = 1 << 16;

/// Starts one of many non-blocking connections, with a small send buffer, under the named
/// congestion control or, with `None`, the kernel's choice. It is complete when the socket becomes
/// writable. At its end it is reset (a linger time of zero), so that thousands of full buffers need
/// not be sent first.
pub(super) fn start_connecting(
    to: SocketAddr,
    congestion_control: Option<&str>,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Some(name) = congestion_control {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_send_buffer_size(SMALL_SEND_BUFFER)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Raises the limit on open files as far as the host allows: a crowd needs one per sender.
pub(super) fn raise_descriptor_limit() {
    let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    // If this is refused, connecting fails later and reports it.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
}
