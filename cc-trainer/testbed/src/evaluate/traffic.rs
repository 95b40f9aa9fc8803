//! Sender and receiver of one bulk flow over the kernel's TCP, and what they share with the ends of
//! [applications](super::application).

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

use super::sample::{SAMPLE_PERIOD, Sample};
use crate::link::Contention;

/// Pause of a receiver after each read. Waking for every packet would take processor time from the
/// emulated link.
const READ_PAUSE: Duration = Duration::from_millis(1);
/// Bytes passed to the kernel per send, or discarded per receive, at most.
const CHUNK: usize = 1 << 20;

/// The period in which a flow runs, on the scenario's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Wall-clock instant of scenario time 0.
    pub(super) zero: Instant,
    /// Scenario time at which the flow starts.
    pub(super) start: Duration,
    /// Scenario time at which the flow stops.
    pub(super) stop: Duration,
}

/// Measurements on the sender's side of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// Samples taken every [`SAMPLE_PERIOD`] while the flow is connected.
    pub(super) samples: Vec<Sample>,
    /// Number of retransmitted segments (`tcpi_total_retrans`).
    pub(super) retransmissions: u64,
    /// Processor use of the sender's thread; `None` where the kernel does not account for it.
    pub(super) contention: Option<Contention>,
}

/// Measurements on the receiver's side of a connection.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Kept open, because closing the connection would reset it while its sender is still at work.
    pub(super) connection: Option<Socket>,
    /// Bytes of payload that arrived in order and once each, until the flow's stop.
    pub(super) payload: u64,
    /// Processor use of the receiver's thread; `None` where the kernel does not account for it.
    pub(super) contention: Option<Contention>,
}

/// A socket of a flow could not be created, or its connection failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct TrafficError {
    what: String,
    source: io::Error,
}

/// Creates a listening socket in the calling thread's network namespace. Its connections use the
/// congestion control `control`, if one is given.
///
/// # Errors
///
/// Returns an error when the kernel refuses the address, or does not have this congestion control.
pub fn listener(address: SocketAddrV4, control: Option<&str>) -> Result<Socket, TrafficError> {
    let make = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        if let Some(control) = control {
            socket.set_tcp_congestion(control.as_bytes())?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::V4(address).into())?;
        socket.listen(1024)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    make().map_err(failed(|| format!("listening at {address}")))
}

/// Creates a socket in the calling thread's network namespace that uses the congestion control
/// `control`.
///
/// # Errors
///
/// Returns an error when the kernel does not have this congestion control, or does not allow it to
/// this process.
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

/// Sends as much as the connection takes, from the flow's start to its stop or until `cancel` is
/// true. Calls `before_end` with the local and the remote address while the connection still
/// exists, and then resets the connection so that a long queue does not delay the end.
///
/// A path on which no connection is ever established is a result, not an error.
///
/// # Errors
///
/// Returns an error when the connection is refused or breaks, which no path can cause.
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
        // On a path that delivers nothing at all the kernel gives up at some point.
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

/// Receives and discards data, until the flow's stop or until `cancel` is true.
///
/// # Errors
///
/// Returns an error when the kernel refuses the data of a connection.
pub(super) fn receive(
    listener: Socket,
    span: Span,
    cancel: &AtomicBool,
) -> Result<Received, TrafficError> {
    let failed = || failed(|| "receiving".into());
    let mut received = Received::default();
    // Reserved but never written to, so that no memory is committed.
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
        // MSG_TRUNC discards the data without a copy (tcp(7)).
        let taken = socket.recv_with_flags(nowhere.spare_capacity_mut(), libc::MSG_TRUNC);
        match taken {
            Ok(0) => break,
            Ok(bytes) => {
                received.payload += bytes as u64;
                thread::sleep(READ_PAUSE);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The sender resets the connection at its own end of the flow.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(failed()(error)),
        }
    }
    received.contention = contention();
    Ok(received)
}

impl Span {
    /// The scenario time, before and while the flow runs; `None` after its stop or when cancelled.
    pub(super) fn left(&self, cancel: &AtomicBool) -> Option<Duration> {
        let now = self.zero.elapsed();
        (now < self.stop && !cancel.load(Ordering::Relaxed)).then_some(now)
    }

    /// Waits for the flow's start, and returns whether it is reached at all.
    pub(super) fn wait_for_start(&self, cancel: &AtomicBool) -> bool {
        while let Some(now) = self.left(cancel) {
            if now >= self.start {
                return true;
            }
            thread::sleep((self.start - now).min(SAMPLE_PERIOD));
        }
        false
    }
}

/// Whether the socket became ready in time. An interrupted poll counts as not ready.
fn wait(socket: &Socket, events: PollFlags, patience: Duration) -> bool {
    // Rounded up, because a timeout of 0 does not wait at all.
    let ms = patience.as_micros().div_ceil(1_000);
    let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
    let mut polled = [PollFd::new(socket.as_fd(), events)];
    match poll(&mut polled, timeout) {
        Ok(count) => count > 0,
        Err(Errno::EINTR) => false,
        // The call that follows fails as well and reports the error.
        Err(_) => true,
    }
}

/// Samples a connection; `None` until it is established and has measured a round trip.
pub(super) fn look(socket: &Socket, at: Duration) -> io::Result<Option<Sample>> {
    let info = tcp_info(socket)?;
    Ok((info.tcpi_rtt > 0).then(|| Sample {
        at,
        cwnd: info.tcpi_snd_cwnd,
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
    }))
}

/// Reads `TCP_INFO` (include/uapi/linux/tcp.h). `libc::tcp_info` ends with `tcpi_total_retrans`,
/// which all supported kernels fill in.
pub(super) fn tcp_info(socket: &Socket) -> io::Result<libc::tcp_info> {
    // SAFETY: tcp_info consists of integers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the buffer has the stated length, and any bytes are valid integers.
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

/// Processor use of the calling thread; `None` where the kernel does not account for it.
pub(super) fn contention() -> Option<Contention> {
    Contention::this_thread().ok()
}

pub(super) fn failed<W: FnOnce() -> String>(what: W) -> impl FnOnce(io::Error) -> TrafficError {
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
        let socket = listener(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), None).expect("any port");
        let address = socket.local_addr().expect("it is bound");
        (socket, address.as_socket_ipv4().expect("it is IPv4"))
    }

    #[test]
    fn the_receiver_counts_the_payload() {
        let (listener, address) = free_port();
        let socket = sender("reno").expect("every kernel has Reno");
        let (span, cancel) = (span(400), AtomicBool::new(false));
        let (ends, reported) = mpsc::channel();
        let (sent, received) = thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(listener, span, &cancel));
            let sent = send(socket, address, span, &cancel, |local, remote| {
                ends.send((local, remote)).expect("the receiver exists");
            });
            (sent, receiver.join().expect("no panic"))
        });
        let (sent, received) = (sent.expect("loopback"), received.expect("loopback"));
        assert!(received.payload > CHUNK as u64, "{received:?}");
        assert!(!sent.samples.is_empty());
        assert!(sent.samples.iter().all(|sample| sample.cwnd > 0));
        let (local, remote) = reported.recv().expect("the sender reported them");
        assert_eq!(remote, SocketAddr::V4(address));
        assert!(local.port() != 0 && local.ip().is_loopback());
    }

    #[test]
    fn a_cancelled_flow_ends() {
        let (listener, address) = free_port();
        let socket = sender("reno").expect("every kernel has Reno");
        // Without the cancellation the flow would end by itself and fail the test.
        let (span, cancel) = (span(60_000), AtomicBool::new(false));
        thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(listener, span, &cancel));
            let sender = scope.spawn(|| send(socket, address, span, &cancel, |_, _| {}));
            while span.zero.elapsed() <= span.start {
                thread::sleep(span.start);
            }
            cancel.store(true, Ordering::Relaxed);
            assert!(sender.join().expect("no panic").is_ok());
            assert!(receiver.join().expect("no panic").is_ok());
        });
        assert!(span.zero.elapsed() < span.stop, "it ended at its stop");
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
        let error = sent.expect_err("the port is closed");
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[test]
    fn an_unknown_control_is_named_in_the_error() {
        let error = sender("no_such_control").expect_err("no kernel has it");
        assert!(error.to_string().contains("no_such_control"), "{error}");
    }
}
