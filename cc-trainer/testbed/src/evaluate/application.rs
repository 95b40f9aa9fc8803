//! Both ends of an application over the kernel's TCP: they carry out what a [`Session`] asks for,
//! on connections that they open and close.
//!
//! Each end is a thread in its network namespace, and the session between them is locked for each
//! step. It is asked what to do and told what has arrived; nothing else passes between the ends but
//! what TCP carries.

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    mem::MaybeUninit,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        socket::{setsockopt, sockopt::SndBufForce},
        time::TimeSpec,
    },
};
use socket2::{Domain, Protocol, Socket, Type};

use cc_sim::{
    app::{Action, End, STREAM_AHEAD, Session},
    path::{Nanos, nanos},
};

use super::{
    sample::SAMPLE_PERIOD,
    traffic::{Received, Sent, Span, TrafficError, contention, failed, look, tcp_info},
};

/// Bytes passed to the kernel per send, or discarded per receive, at most.
const CHUNK: usize = 1 << 20;
/// Bytes after which a connection lets the clock and the others have their turn. Where the other
/// end keeps up, as over loopback, the kernel always takes more and always has more.
const TURN: u64 = 16 << 20;
/// Send buffer of a connection that streams, bytes: so large that only [`STREAM_AHEAD`] limits what
/// is unsent. The kernel's own size depends on the cwnd and on the congestion control.
const SEND_BUFFER: usize = 256 << 20;
/// Longest time without looking for cancellation.
const PATIENCE: Duration = Duration::from_millis(50);

/// What both ends of an application share.
#[derive(Debug)]
pub(super) struct Application<'a> {
    session: Mutex<Session>,
    /// Numbers of the connections by the port of the end that opened them.
    numbers: Mutex<HashMap<u16, u32>>,
    span: Span,
    cancel: &'a AtomicBool,
}

/// A connection at one end.
#[derive(Debug)]
struct Connection {
    number: u32,
    socket: Socket,
    /// Whether the handshake is complete.
    established: bool,
    /// Bytes that wait to be passed to the kernel, and those that were.
    unsent: u64,
    sent: u64,
    /// Whether it takes as much as the kernel does.
    streams: bool,
    /// Bytes received over the connection so far.
    received: u64,
    /// Whether the other end has closed it.
    over: bool,
}

impl<'a> Application<'a> {
    /// Creates the state of an application that runs during `span`.
    pub(super) fn new(session: Session, span: Span, cancel: &'a AtomicBool) -> Self {
        Self {
            session: Mutex::new(session),
            numbers: Mutex::new(HashMap::new()),
            span,
            cancel,
        }
    }

    /// Carries out the near end, in a thread within its namespace. It connects to `peer`, with the
    /// congestion control given, or accepts connections from `listener`. Calls `before_end` with
    /// the addresses of the latest connection while it still exists.
    ///
    /// # Errors
    ///
    /// Returns an error when a connection is refused, which no path can cause.
    pub(super) fn near(
        &self,
        control: &str,
        peer: SocketAddrV4,
        listener: Option<Socket>,
        before_end: impl FnOnce(SocketAddr, SocketAddr),
    ) -> Result<Sent, TrafficError> {
        let failed = || failed(move || format!("the connection to {peer}"));
        let mut sent = Sent::default();
        let mut connections = Vec::new();
        let mut next_sample = self.span.start;
        self.span.wait_for_start(self.cancel);
        while let Some(now) = self.span.left(self.cancel) {
            if now >= next_sample {
                if let Some(latest) = connections.last()
                    && let Some(sample) = look(latest_socket(latest), now).map_err(failed())?
                {
                    sent.samples.push(sample);
                }
                next_sample = now.max(next_sample + SAMPLE_PERIOD);
            }
            while let Some(action) = self.next_action(End::Near) {
                if let Action::Open { connection } = action {
                    let open = || {
                        let socket = socket(Some(control), Ipv4Addr::UNSPECIFIED)?;
                        self.connect(socket, connection, peer)
                    };
                    connections.push(open().map_err(failed())?);
                } else {
                    let number = number_of(action);
                    let mut open = connections.iter_mut();
                    if let Some(connection) = open.find(|open| open.number == number) {
                        self.write(connection, action).map_err(failed())?;
                    }
                }
            }
            for connection in &mut connections {
                connection.flush().map_err(failed())?;
            }
            let due = self.due(End::Near).min(next_sample);
            self.wait(listener.as_ref(), &connections, due);
            self.accept(listener.as_ref(), &mut connections)
                .map_err(failed())?;
            for connection in &mut connections {
                if !connection.established && connection.check().map_err(failed())? {
                    self.session().established(nanos(self.span.zero.elapsed()));
                }
                self.take_messages(connection).map_err(failed())?;
            }
            for ended in connections.extract_if(.., |connection| connection.over) {
                sent.retransmissions += self.end(&ended);
            }
        }
        if let Some(connection) = connections.last()
            && let (Ok(local), Ok(remote)) = (
                connection.socket.local_addr(),
                connection.socket.peer_addr(),
            )
            && let (Some(local), Some(remote)) = (local.as_socket(), remote.as_socket())
        {
            before_end(local, remote);
        }
        for connection in connections {
            sent.retransmissions += self.end(&connection);
            let _ = connection.socket.set_linger(Some(Duration::ZERO));
        }
        sent.contention = contention();
        Ok(sent)
    }

    /// Carries out the far end, in a thread within its namespace. It accepts connections from
    /// `listener`, or connects to `peer` from the address `own`.
    ///
    /// # Errors
    ///
    /// Returns an error when a connection is refused, which no path can cause.
    pub(super) fn far(
        &self,
        own: Ipv4Addr,
        peer: SocketAddrV4,
        listener: Option<Socket>,
    ) -> Result<Received, TrafficError> {
        let failed = || failed(move || format!("the connection with {peer}"));
        let mut received = Received::default();
        let mut connections: Vec<Connection> = Vec::new();
        self.span.wait_for_start(self.cancel);
        // Reserved but never written to, so that no memory is committed.
        let mut nowhere: Vec<u8> = Vec::with_capacity(CHUNK);
        while self.span.left(self.cancel).is_some() {
            while let Some(action) = self.next_action(End::Far) {
                let number = number_of(action);
                match action {
                    Action::Open { .. } => {
                        let open = || self.connect(socket(None, own)?, number, peer);
                        connections.push(open().map_err(failed())?);
                    }
                    Action::Send { bytes, .. } => {
                        let mut open = connections.iter_mut();
                        if let Some(connection) = open.find(|open| open.number == number) {
                            connection.unsent += u64::from(bytes);
                        }
                    }
                    Action::Close { .. } => {
                        // A reset leaves nothing behind: with thousands of connections, those that
                        // wait for late packets would take the ports.
                        for closed in connections.extract_if(.., |open| open.number == number) {
                            let _ = closed.socket.set_linger(Some(Duration::ZERO));
                        }
                    }
                    _ => {}
                }
            }
            for connection in &mut connections {
                connection.flush().map_err(failed())?;
            }
            self.wait(listener.as_ref(), &connections, self.due(End::Far));
            self.accept(listener.as_ref(), &mut connections)
                .map_err(failed())?;
            for connection in &mut connections {
                if !connection.established {
                    connection.check().map_err(failed())?;
                }
                let taken = connection.discard(&mut nowhere).map_err(failed())?;
                if taken > 0 {
                    received.payload += taken;
                    let now = nanos(self.span.zero.elapsed());
                    (self.session()).delivered(now, connection.number, connection.received);
                }
            }
            connections.retain(|connection| !connection.over);
        }
        received.contention = contention();
        Ok(received)
    }

    /// The session, after both ends have ended.
    pub(super) fn into_session(self) -> Session {
        (self.session.into_inner()).unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_action(&self, end: End) -> Option<Action> {
        self.session().act(end, nanos(self.span.zero.elapsed()))
    }

    /// Scenario time at which the end has something to do without a packet.
    fn due(&self, end: End) -> Duration {
        let due: Nanos = self.session().due(end);
        Duration::from_nanos(due).min(self.span.stop)
    }

    fn connect(&self, socket: Socket, number: u32, peer: SocketAddrV4) -> io::Result<Connection> {
        let local = socket.local_addr()?.as_socket();
        if let Some(local) = local {
            self.numbers().insert(local.port(), number);
        }
        match socket.connect(&SocketAddr::V4(peer).into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        Ok(Connection::new(number, socket))
    }

    fn accept(
        &self,
        listener: Option<&Socket>,
        connections: &mut Vec<Connection>,
    ) -> io::Result<()> {
        let Some(listener) = listener else {
            return Ok(());
        };
        loop {
            let (socket, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_nothing(&error) => return Ok(()),
                // It was closed before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            let port = peer.as_socket().map_or(0, |peer| peer.port());
            let number = self.numbers().get(&port).copied();
            if let Some(number) = number {
                let established = true;
                connections.push(Connection {
                    established,
                    ..Connection::new(number, socket)
                });
            }
        }
    }

    fn numbers(&self) -> MutexGuard<'_, HashMap<u16, u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the near end write.
    fn write(&self, connection: &mut Connection, action: Action) -> io::Result<()> {
        let number = connection.number;
        match action {
            Action::Write { bytes, .. } => {
                (self.session()).retransmitted(number, connection.retransmissions());
                connection.unsent += bytes;
            }
            Action::Stream { .. } => {
                (self.session()).retransmitted(number, connection.retransmissions());
                (connection.socket).set_tcp_notsent_lowat(STREAM_AHEAD as u32)?;
                setsockopt(&connection.socket, SndBufForce, &SEND_BUFFER)?;
                connection.streams = true;
            }
            Action::Stop { .. } => {
                connection.streams = false;
                let now = nanos(self.span.zero.elapsed());
                (self.session()).stopped(now, number, connection.sent + connection.unsent);
            }
            Action::Open { .. } | Action::Send { .. } | Action::Close { .. } => {}
        }
        Ok(())
    }

    /// Takes the far end's messages at the near end.
    fn take_messages(&self, connection: &mut Connection) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4_096];
        let size = u64::from(self.session().far_bytes().max(1));
        while let Some(taken) = connection.receive(&mut buffer, 0)? {
            let before = connection.received / size;
            connection.received += taken;
            let now = nanos(self.span.zero.elapsed());
            for _ in before..connection.received / size {
                self.session().received(now, connection.number);
            }
        }
        Ok(())
    }

    /// Accounts for the end of a connection at the near end, and returns the number of segments
    /// that it retransmitted.
    fn end(&self, connection: &Connection) -> u64 {
        let retransmissions = connection.retransmissions();
        self.session()
            .retransmitted(connection.number, retransmissions);
        retransmissions
    }

    /// Waits until a connection is ready or until the scenario time `until`.
    fn wait(&self, listener: Option<&Socket>, connections: &[Connection], until: Duration) {
        let connections = connections.iter().map(|connection| {
            let sends = !connection.established || connection.unsent > 0 || connection.streams;
            let events = match sends {
                true => PollFlags::POLLIN | PollFlags::POLLOUT,
                false => PollFlags::POLLIN,
            };
            PollFd::new(connection.socket.as_fd(), events)
        });
        let listener = listener.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        let mut polled: Vec<PollFd<'_>> = connections.chain(listener).collect();
        let patience = until.saturating_sub(self.span.zero.elapsed()).min(PATIENCE);
        match ppoll(&mut polled, Some(TimeSpec::from_duration(patience)), None) {
            // The calls that follow report whatever is wrong.
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_) => std::thread::sleep(patience),
        }
    }
}

impl Connection {
    fn new(number: u32, socket: Socket) -> Self {
        Self {
            number,
            socket,
            established: false,
            unsent: 0,
            sent: 0,
            streams: false,
            received: 0,
            over: false,
        }
    }

    /// Whether the handshake is complete.
    fn check(&mut self) -> io::Result<bool> {
        match self.socket.take_error()? {
            // On a path that delivers nothing at all the kernel gives up at some point.
            Some(error) if error.kind() == ErrorKind::TimedOut => self.over = true,
            Some(error) => return Err(error),
            None => self.established = self.socket.peer_addr().is_ok(),
        }
        Ok(self.established)
    }

    /// Passes as much to the kernel as it takes, [`TURN`] bytes or a little more at most.
    fn flush(&mut self) -> io::Result<()> {
        static ZEROS: [u8; CHUNK] = [0; CHUNK];
        let most_sent = self.sent + TURN;
        while self.established
            && !self.over
            && self.sent < most_sent
            && (self.unsent > 0 || self.streams)
        {
            let most = match self.streams {
                true => CHUNK,
                false => CHUNK.min(usize::try_from(self.unsent).unwrap_or(CHUNK)),
            };
            match self.socket.send(&ZEROS[..most]) {
                Ok(taken) => {
                    self.sent += taken as u64;
                    self.unsent = self.unsent.saturating_sub(taken as u64);
                }
                Err(error) if is_nothing(&error) => break,
                Err(error) if is_end(&error) => self.over = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Discards what has arrived, [`TURN`] bytes or a little more at most, and returns its size.
    fn discard(&mut self, nowhere: &mut Vec<u8>) -> io::Result<u64> {
        let mut all = 0;
        // MSG_TRUNC discards the data without a copy (tcp(7)).
        while let Some(taken) = self.receive(nowhere.spare_capacity_mut(), libc::MSG_TRUNC)? {
            all += taken;
            self.received += taken;
            if all >= TURN {
                break;
            }
        }
        Ok(all)
    }

    /// Receives data; `None` when there are none at present, or no more.
    fn receive(
        &mut self,
        buffer: &mut [MaybeUninit<u8>],
        flags: libc::c_int,
    ) -> io::Result<Option<u64>> {
        if self.over || !self.established {
            return Ok(None);
        }
        match self.socket.recv_with_flags(buffer, flags) {
            Ok(0) => self.over = true,
            Ok(taken) => return Ok(Some(taken as u64)),
            Err(error) if is_nothing(&error) => {}
            Err(error) if is_end(&error) => self.over = true,
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Number of segments that the connection has retransmitted so far.
    fn retransmissions(&self) -> u64 {
        tcp_info(&self.socket).map_or(0, |info| info.tcpi_total_retrans.into())
    }
}

fn latest_socket(connection: &Connection) -> &Socket {
    &connection.socket
}

/// A socket of the calling thread's namespace, with a local port and the congestion control and
/// local address given.
fn socket(control: Option<&str>, own: Ipv4Addr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    if let Some(control) = control {
        socket.set_tcp_congestion(control.as_bytes())?;
    }
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::from((own, 0)).into())?;
    Ok(socket)
}

fn number_of(action: Action) -> u32 {
    let (Action::Open { connection }
    | Action::Write { connection, .. }
    | Action::Stream { connection }
    | Action::Stop { connection }
    | Action::Send { connection, .. }
    | Action::Close { connection }) = action;
    connection
}

/// Whether an error says that nothing can be done at present.
fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::Interrupted
    )
}

/// Whether an error says that the other end has reset the connection, or that nothing is delivered.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::{path::Path, thread, time::Instant};

    use super::super::traffic;
    use super::*;
    use cc_sim::{app::Message, scenario};

    /// Carries an application out over loopback for `ms`, and returns its messages.
    fn over_loopback(app: &str, ms: u64) -> (Vec<Message>, u64) {
        let text = format!(
            "[[scenario]]\nname = \"a\"\nrate_mbps = 24\ndelay_ms = 20\n[[scenario.flow]]\napp = \
             {app}"
        );
        let mut scenarios = scenario::parse(&text, Path::new(".")).expect("a good file");
        let app = scenarios.remove(0).flows.remove(0).app;
        let span = Span {
            zero: Instant::now(),
            start: Duration::ZERO,
            stop: Duration::from_millis(ms),
        };
        let session = Session::new(&app, 0, 1).expect("not bulk");
        let cancel = AtomicBool::new(false);
        let application = Application::new(session, span, &cancel);
        let listener = traffic::listener(
            SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0),
            app.has_client().then_some("reno"),
        );
        let listener = listener.expect("any port");
        let address = listener.local_addr().expect("it is bound");
        let peer = address.as_socket_ipv4().expect("it is IPv4");
        let (near, far) = match app.has_client() {
            true => (Some(listener), None),
            false => (None, Some(listener)),
        };
        let received = thread::scope(|scope| {
            let near = scope.spawn(|| application.near("reno", peer, near, |_, _| {}));
            let far = scope.spawn(|| application.far(*peer.ip(), peer, far));
            near.join().expect("no panic").expect("loopback");
            far.join().expect("no panic").expect("loopback").payload
        });
        (application.into_session().messages().to_vec(), received)
    }

    fn completed(messages: &[Message]) -> Vec<&Message> {
        let done = messages
            .iter()
            .filter(|message| message.completed.is_some());
        done.collect()
    }

    #[test]
    fn requests_are_answered_over_one_connection_or_many() {
        for connection in ["keep-alive", "new"] {
            let app = format!(
                "{{ kind = \"request-response\", bytes = [1000, 300000], think_ms = 2, count = 40, \
                 connection = \"{connection}\" }}"
            );
            let (messages, received) = over_loopback(&app, 4_000);
            assert_eq!(completed(&messages).len(), 40, "{connection}");
            assert_eq!(received, 20 * 301_000);
            let connections = messages.last().expect("40").connection + 1;
            assert_eq!(connections, if connection == "new" { 40 } else { 1 });
        }
    }

    #[test]
    fn keystrokes_come_back() {
        let app = "{ kind = \"keystrokes\", mean_ms = 5 }";
        let (messages, _) = over_loopback(app, 1_000);
        let echoed = messages.iter().filter(|message| message.echoed.is_some());
        assert!(echoed.count() > 50, "{}", messages.len());
    }

    #[test]
    fn short_flows_are_closed_after_their_transfer() {
        let app = "{ kind = \"short-flows\", per_s = 200, count = 100, sizes = { pareto = 1.2, \
                   least_bytes = 500, most_bytes = 100000 } }";
        let (messages, received) = over_loopback(app, 5_000);
        assert_eq!(completed(&messages).len(), 100);
        assert_eq!(
            received,
            messages.iter().map(|message| message.bytes).sum::<u64>()
        );
    }

    #[test]
    fn a_source_without_a_rate_sends_what_the_connection_takes() {
        let (messages, received) =
            over_loopback("{ kind = \"on-off\", on_s = 0.3, off_s = 0.3 }", 1_500);
        assert!(completed(&messages).len() >= 2, "{messages:?}");
        assert!(received > 10 << 20, "{received}");
    }
}
