//! Senders and receivers.

use std::{
    io::Write,
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

use socket2::{Domain, SockRef, Socket, Type};
use tokio::{io::Interest, net::TcpListener, sync::watch};

use super::{Namespace, TcpInfo, eventually};

/// A connection that sends.
pub(crate) struct Flow {
    stream: Arc<TcpStream>,
    writer: Option<JoinHandle<()>>,
}

impl Flow {
    /// Connects from a namespace, under a congestion control.
    pub(crate) fn connect(from: &Namespace, to: SocketAddr, congestion_control: &str) -> Self {
        let stream = from.within(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)
                .expect("a free descriptor");
            socket
                .set_tcp_congestion(congestion_control.as_bytes())
                .unwrap_or_else(|error| panic!("choosing {congestion_control}: {error}"));
            socket
                .connect(&to.into())
                .unwrap_or_else(|error| panic!("connecting to {to}: {error}"));
            TcpStream::from(socket)
        });
        Self {
            stream: Arc::new(stream),
            writer: None,
        }
    }

    /// Sends as much as the connection takes, in a thread, until this flow is dropped.
    pub(crate) fn sending(mut self) -> Self {
        let stream = self.stream.clone();
        self.writer = Some(thread::spawn(move || {
            let data = vec![0; 1 << 18];
            while (&*stream).write(&data).is_ok_and(|written| written > 0) {}
        }));
        self
    }

    /// Sends that many bytes.
    pub(crate) fn send(&self, bytes: usize) {
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

    /// Ends the flow in its own direction and waits until all of it is acknowledged. Nothing more is
    /// sent after that while the [`Sink`] holds its end open.
    pub(crate) fn finish(&self) -> TcpInfo {
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

    /// What the kernel says about it.
    pub(crate) fn info(&self) -> TcpInfo {
        TcpInfo::of(&*self.stream).expect("an open connection")
    }

    /// The socket, for options.
    pub(crate) fn socket(&self) -> SockRef<'_> {
        SockRef::from(&*self.stream)
    }

    /// Our end.
    pub(crate) fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("it is connected")
    }

    /// The other end.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.stream.peer_addr().expect("it is connected")
    }

    /// Our port.
    pub(crate) fn port(&self) -> u16 {
        self.local().port()
    }

    /// Waits until so many further bytes have been acknowledged.
    pub(crate) fn advance(&self, bytes: u64) {
        let from = self.info().bytes_acked;
        eventually("the flow advanced", || {
            (self.info().bytes_acked >= from + bytes).then_some(())
        });
    }
}

impl Drop for Flow {
    /// Stops the writer. A flow that is not finished is reset, so that a full queue delays nobody.
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

/// What a [`Sink`] does when a sender has ended its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterEnd {
    /// Closes the connection.
    Close,
    /// Leaves it half open until the sink is dropped, so that the sender's TCP_INFO can be read.
    Hold,
}

/// Receives and discards whatever comes, in one thread with its own table of descriptors: the limit
/// on open files counts each end of a connection by itself.
pub(crate) struct Sink {
    port: u16,
    received: Arc<[AtomicU64]>,
    ended: Arc<[AtomicBool]>,
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Listens in a namespace, on IPv4 and IPv6.
    pub(crate) fn listen(within: &Namespace, after_end: AfterEnd) -> Self {
        let received: Arc<[AtomicU64]> = (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect();
        let ended: Arc<[AtomicBool]> = (0..=u16::MAX).map(|_| AtomicBool::new(false)).collect();
        let (stop, stopped) = watch::channel(());
        let (tell_port, port) = mpsc::channel();
        let ledger = Ledger {
            received: received.clone(),
            ended: ended.clone(),
            after_end,
            stopped,
        };
        let thread = within.spawn(move || {
            own_descriptors();
            runtime().block_on(ledger.serve(tell_port));
        });
        Self {
            port: port.recv().expect("the sink listens"),
            received,
            ended,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens, given the host's address.
    pub(crate) fn at(&self, host: IpAddr) -> SocketAddr {
        SocketAddr::new(host, self.port)
    }

    /// Bytes received from the sender with that port.
    pub(crate) fn received_from(&self, port: u16) -> u64 {
        self.received[usize::from(port)].load(Ordering::Relaxed)
    }

    /// Bytes received from everybody.
    pub(crate) fn received(&self) -> u64 {
        let all = self.received.iter();
        all.map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Whether the sender with that port has ended its direction (or was reset).
    pub(crate) fn has_ended(&self, port: u16) -> bool {
        self.ended[usize::from(port)].load(Ordering::Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bytes and ends by the sender's port.
#[derive(Clone)]
struct Ledger {
    received: Arc<[AtomicU64]>,
    ended: Arc<[AtomicBool]>,
    after_end: AfterEnd,
    stopped: watch::Receiver<()>,
}

impl Ledger {
    async fn serve(self, tell_port: mpsc::Sender<u16>) {
        let mut stopped = self.stopped.clone();
        let listener = listener();
        let port = listener.local_addr().expect("it is bound").port();
        tell_port.send(port).expect("the sink waits for it");
        let accept = async {
            loop {
                // A connection that was reset while it waited is no reason to stop.
                if let Ok((stream, peer)) = listener.accept().await {
                    tokio::spawn(self.clone().receive(stream, peer.port()));
                }
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stopped.changed() => {}
        }
    }

    async fn receive(mut self, stream: tokio::net::TcpStream, port: u16) {
        let port = usize::from(port);
        self.received[port].store(0, Ordering::Relaxed);
        self.ended[port].store(false, Ordering::Relaxed);
        while stream.readable().await.is_ok() {
            match stream.try_io(Interest::READABLE, || discard(&stream)) {
                Ok(0) => break,
                Ok(bytes) => {
                    self.received[port].fetch_add(bytes as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        self.ended[port].store(true, Ordering::Relaxed);
        if self.after_end == AfterEnd::Hold {
            let _ = self.stopped.changed().await;
        }
    }
}

/// Takes what has arrived without copying it (tcp(7): `MSG_TRUNC`).
fn discard(stream: &tokio::net::TcpStream) -> std::io::Result<usize> {
    // SAFETY: with MSG_TRUNC, TCP writes nothing to the buffer, so there need be none.
    let bytes = unsafe {
        libc::recv(
            stream.as_raw_fd(),
            ptr::null_mut(),
            1 << 24,
            libc::MSG_TRUNC,
        )
    };
    if bytes < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(bytes as usize)
}

fn listener() -> TcpListener {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None).expect("a free descriptor");
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    socket.set_only_v6(false).expect("a dual-stack host");
    socket.bind(&any.into()).expect("any port");
    socket.listen(4_096).expect("a bound socket");
    socket.set_nonblocking(true).expect("a socket");
    TcpListener::from_std(socket.into()).expect("within the runtime")
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("descriptors for epoll")
}

/// Gives this thread a table of descriptors of its own, with standard input, output and error only:
/// copies of others would keep BPF objects alive.
pub(super) fn own_descriptors() {
    // SAFETY: with this flag the descriptors are closed in this thread's new table only, and the
    // thread owns none of them.
    let status = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as _) };
    assert_eq!(
        status,
        0,
        "close_range: {}",
        std::io::Error::last_os_error()
    );
}
