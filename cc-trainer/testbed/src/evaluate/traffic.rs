//! Our sender and our receiver: one bulk flow over TCP.

use std::{
    io, mem,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use socket2::{Domain, Protocol, Socket, Type};

use super::run::sample::{SAMPLE_PERIOD, Sample};
use crate::link::Contention;

/// How long a receiver lets data gather: to wake for every packet would take processor time from the link.
const READ_PAUSE: Duration = Duration::from_millis(1);
/// Bytes handed to the kernel, or taken from it, at a time.
const CHUNK: usize = 1 << 20;

/// When a flow runs, on the scenario's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Scenario time 0.
    pub(super) zero: Instant,
    /// When the flow starts.
    pub(super) start: Duration,
    /// When it stops.
    pub(super) stop: Duration,
}

/// What a sender saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// Taken every [`SAMPLE_PERIOD`] while connected.
    pub(super) samples: Vec<Sample>,
    /// Segments sent again.
    pub(super) retransmissions: u64,
    /// What its thread got of the processors; none where the kernel does not tell.
    pub(super) contention: Option<Contention>,
}

/// What a receiver got.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Held, as closing it would reset the connection under a sender that is still at work.
    connection: Option<Socket>,
    /// Bytes of payload, in order and once each, until the flow's stop.
    pub(super) payload: u64,
    /// What its thread got of the processors; none where the kernel does not tell.
    pub(super) contention: Option<Contention>,
}

/// Why a flow could not do its work.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct TrafficError {
    what: String,
    source: io::Error,
}

/// A socket of the calling thread's namespace that waits for a flow.
///
/// # Errors
/// When the kernel refuses the address.
pub(super) fn listener(address: SocketAddrV4) -> Result<Socket, TrafficError> {
    let make = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::V4(address).into())?;
        socket.listen(8)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    make().map_err(failed(|| format!("listening at {address}")))
}

/// A socket of the calling thread's namespace that has the congestion control `control`.
///
/// # Errors
/// When the kernel does not have it, or not for this process.
pub(super) fn sender(control: &str) -> Result<Socket, TrafficError> {
    let make = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_congestion(control.as_bytes())?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())?;
        Ok(socket)
    };
    make().map_err(failed(|| {
        format!("a socket with congestion control `{control}`")
    }))
}

/// Sends as much as the connection takes, from the flow's start to its stop or until `cancel`. Calls `before_end` with
/// the connection's ends while it still lives. Then resets the connection, so that a long queue delays nobody.
///
/// A path that lets no connection come about is a result, not an error.
///
/// # Errors
/// When a connection is refused or breaks, as no path can do that.
pub(super) fn send(
    socket: Socket,
    to: SocketAddrV4,
    span: Span,
    cancel: &AtomicBool,
    before_end: impl FnOnce(SocketAddr, SocketAddr),
) -> Result<Sent, TrafficError> {
    let mut sent = Sent::default();
    let failed = || failed(move || format!("the connection to {to}"));
    if !span.wait_for_start(cancel) {
        return Ok(sent);
    }
    let to = SocketAddr::V4(to);
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
            return Err(failed()(error));
        }
        _ => {}
    }
    let zeros = vec![0; CHUNK];
    let mut next = span.start;
    while let Some(now) = span.left(cancel) {
        if now >= next {
            if let Some(sample) = look(&socket, now).map_err(failed())? {
                sent.samples.push(sample);
            }
            next = now.max(next + SAMPLE_PERIOD);
        }
        let ready = wait(
            &socket,
            PollFlags::POLLOUT,
            next.min(span.stop).saturating_sub(now),
        );
        if !ready {
            continue;
        }
        // A path that carries nothing at all makes the kernel give up in the end.
        match socket.take_error().map_err(failed())? {
            Some(error) if error.kind() == io::ErrorKind::TimedOut => break,
            Some(error) => return Err(failed()(error)),
            None => {}
        }
        loop {
            match socket.send(&zeros) {
                Ok(_) if span.left(cancel).is_some() => {}
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => break,
                Err(error) => return Err(failed()(error)),
            }
        }
    }
    sent.retransmissions = tcp_info(&socket)
        .map_err(failed())?
        .tcpi_total_retrans
        .into();
    if let Some(local) = socket.local_addr().ok().and_then(|local| local.as_socket()) {
        before_end(local, to);
    }
    let _ = socket.set_linger(Some(Duration::ZERO));
    sent.contention = contention();
    Ok(sent)
}

/// Takes and discards what arrives, until the flow's stop or until `cancel`.
///
/// # Errors
/// When the kernel refuses a connection's data.
pub(super) fn receive(
    listener: Socket,
    span: Span,
    cancel: &AtomicBool,
) -> Result<Received, TrafficError> {
    let failed = || failed(|| "receiving".into());
    let mut received = Received::default();
    // Never written to, so that it takes no memory.
    let mut nowhere: Vec<u8> = Vec::with_capacity(CHUNK);
    while let Some(now) = span.left(cancel) {
        let patience = SAMPLE_PERIOD.min(span.stop.saturating_sub(now));
        let Some(socket) = &received.connection else {
            if wait(&listener, PollFlags::POLLIN, patience) {
                let (socket, _) = listener.accept().map_err(failed())?;
                socket.set_nonblocking(true).map_err(failed())?;
                received.connection = Some(socket);
            }
            continue;
        };
        if !wait(socket, PollFlags::POLLIN, patience) {
            continue;
        }
        // Discards without a copy (tcp(7), MSG_TRUNC).
        let taken = socket.recv_with_flags(nowhere.spare_capacity_mut(), libc::MSG_TRUNC);
        match taken {
            Ok(0) => break,
            Ok(bytes) => {
                received.payload += bytes as u64;
                thread::sleep(READ_PAUSE);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The sender's own end of the flow.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(failed()(error)),
        }
    }
    received.contention = contention();
    Ok(received)
}

impl Span {
    /// Scenario time, while the flow runs or has not started; none when it is over.
    fn left(&self, cancel: &AtomicBool) -> Option<Duration> {
        let now = self.zero.elapsed();
        (now < self.stop && !cancel.load(Ordering::Relaxed)).then_some(now)
    }

    /// Whether the flow starts at all.
    fn wait_for_start(&self, cancel: &AtomicBool) -> bool {
        while let Some(now) = self.left(cancel) {
            if now >= self.start {
                return true;
            }
            thread::sleep((self.start - now).min(SAMPLE_PERIOD));
        }
        false
    }
}

/// Whether the socket became ready in time. A poll that is interrupted found nothing.
fn wait(socket: &Socket, events: PollFlags, patience: Duration) -> bool {
    // Rounded up: 0 would not wait at all.
    let ms = patience.as_micros().div_ceil(1_000);
    let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
    let mut polled = [PollFd::new(socket.as_fd(), events)];
    match poll(&mut polled, timeout) {
        Ok(count) => count > 0,
        Err(Errno::EINTR) => false,
        // Then the call that follows fails as well, and says why.
        Err(_) => true,
    }
}

/// None until the connection is there and has measured a round trip.
fn look(socket: &Socket, at: Duration) -> io::Result<Option<Sample>> {
    let info = tcp_info(socket)?;
    Ok((info.tcpi_rtt > 0).then(|| Sample {
        at,
        cwnd: info.tcpi_snd_cwnd,
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
    }))
}

/// What the kernel says about a connection (include/uapi/linux/tcp.h); as far as `tcpi_total_retrans`, which every
/// kernel has.
fn tcp_info(socket: &Socket) -> io::Result<libc::tcp_info> {
    // SAFETY: it consists of integers, of which all zeros are values.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the place is as long as it is said to be, and any bytes are values.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(info),
        _ => Err(io::Error::last_os_error()),
    }
}

/// None where the kernel does not tell.
fn contention() -> Option<Contention> {
    Contention::this_thread().ok()
}

fn failed<W: FnOnce() -> String>(what: W) -> impl FnOnce(io::Error) -> TrafficError {
    move |source| TrafficError {
        what: what(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn span(stop_ms: u64) -> Span {
        Span {
            zero: Instant::now(),
            start: Duration::from_millis(20),
            stop: Duration::from_millis(stop_ms),
        }
    }

    fn free_port() -> (Socket, SocketAddrV4) {
        let socket = listener(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("any port");
        let address = socket.local_addr().expect("it is bound");
        (socket, address.as_socket_ipv4().expect("it is IPv4"))
    }

    #[test]
    fn what_is_sent_is_counted_at_the_far_end() {
        let (listener, address) = free_port();
        let socket = sender("reno").expect("every kernel has Reno");
        let (span, cancel) = (span(400), AtomicBool::new(false));
        let (ends, told) = mpsc::channel();
        let (sent, received) = thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(listener, span, &cancel));
            let sent = send(socket, address, span, &cancel, |local, remote| {
                ends.send((local, remote)).expect("it is listened to");
            });
            (sent, receiver.join().expect("no panic"))
        });
        let (sent, received) = (sent.expect("loopback"), received.expect("loopback"));
        assert!(received.payload > CHUNK as u64, "{received:?}");
        assert!(!sent.samples.is_empty());
        assert!(sent.samples.iter().all(|sample| sample.cwnd > 0));
        let (local, remote) = told.recv().expect("it was told");
        assert_eq!(remote, SocketAddr::V4(address));
        assert!(local.port() != 0 && local.ip().is_loopback());
    }

    #[test]
    fn a_flow_that_is_cancelled_ends() {
        let (listener, address) = free_port();
        let socket = sender("reno").expect("every kernel has Reno");
        let (span, cancel) = (span(3_600_000), AtomicBool::new(false));
        thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(listener, span, &cancel));
            let sender = scope.spawn(|| send(socket, address, span, &cancel, |_, _| {}));
            thread::sleep(Duration::from_millis(50));
            cancel.store(true, Ordering::Relaxed);
            assert!(sender.join().expect("no panic").is_ok());
            assert!(receiver.join().expect("no panic").is_ok());
        });
    }

    #[test]
    fn a_refused_connection_is_an_error() {
        let (listener, address) = free_port();
        drop(listener);
        let socket = sender("reno").expect("every kernel has Reno");
        let sent = send(
            socket,
            address,
            span(5_000),
            &AtomicBool::new(false),
            |_, _| {},
        );
        let error = sent.expect_err("nobody listens");
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[test]
    fn an_unknown_control_is_named() {
        let error = sender("no_such_control").expect_err("no kernel has it");
        assert!(error.to_string().contains("no_such_control"), "{error}");
    }
}
