//! The applications of flows at run time, as pure code that the simulator and the emulated links
//! share: what each end does and when, and how long every message took.
//!
//! A [`Session`] is the application of one flow. Whoever carries the flow out asks it for the
//! [`Action`]s of each [`End`] when they are [`due`](Session::due), and reports what has arrived.
//! Nothing here reads a clock, and the seed determines every random choice: every scheme meets the
//! same arrivals, sizes and pauses.

mod client;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use crate::path::Nanos;
use crate::scenario::App;
use client::Client;
use writer::{Write, Writer};

/// A time that is never reached.
const NEVER: Nanos = Nanos::MAX;

/// Bytes unsent in its kernel from which on a near end that streams waits (`TCP_NOTSENT_LOWAT`).
pub const STREAM_AHEAD: u64 = 128 << 10;

/// Bytes that a near end which streams has unsent in its kernel after it has sent `sent` of them.
///
/// The kernel takes more when less than half of [`STREAM_AHEAD`] is unsent, and then whole socket
/// buffers of up to 64 KiB until it is reached, so that the last one exceeds it (Linux 6.18,
/// `__tcp_stream_memory_free` in include/net/tcp.h, `tcp_sendmsg_locked`).
pub(crate) fn stream_ahead(sent: u64) -> u64 {
    const SOCKET_BUFFER: u64 = 64 << 10;
    STREAM_AHEAD + SOCKET_BUFFER - sent % (STREAM_AHEAD / 2 + SOCKET_BUFFER)
}

/// An end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that sends the data in the forward direction.
    Near,
    /// The end that receives them.
    Far,
}

/// What an end of the flow does. Connections are numbered from 0 in the order in which they are
/// opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Opens a connection to the other end.
    Open {
        /// Number of the connection, from 0.
        connection: u32,
    },
    /// The near end writes that many more bytes, which are sent as the connection permits.
    Write {
        /// Number of the connection, from 0.
        connection: u32,
        /// Number of bytes that are added.
        bytes: u64,
    },
    /// The near end writes as much as the connection takes, until [`Stop`](Self::Stop).
    Stream {
        /// Number of the connection, from 0.
        connection: u32,
    },
    /// The near end writes no more, and reports what it has written by [`Session::stopped`].
    Stop {
        /// Number of the connection, from 0.
        connection: u32,
    },
    /// The far end sends a message of that many bytes, in one segment: a request or an echo.
    Send {
        /// Number of the connection, from 0.
        connection: u32,
        /// Number of bytes, at most a segment.
        bytes: u32,
    },
    /// The far end closes the connection, over which everything has arrived.
    Close {
        /// Number of the connection, from 0.
        connection: u32,
    },
}

/// A unit that an application waits for: a response, a chunk, a burst, a transfer, a keystroke.
/// Times are those of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Index of the message's name in [`Session::names`].
    pub name: usize,
    /// Number of the connection that carries it.
    pub connection: u32,
    /// When the application asked for it or wrote its first byte. A message for which a connection
    /// is opened starts with the handshake, and so does a client's first request.
    pub start: Nanos,
    /// Size of the message in bytes.
    pub bytes: u64,
    /// When the far end got its first byte.
    pub first_byte: Option<Nanos>,
    /// When the far end had all of it.
    pub completed: Option<Nanos>,
    /// When the near end had the echo of a keystroke.
    pub echoed: Option<Nanos>,
    /// Segments that were retransmitted from this message's first byte to the first byte of the
    /// next one on its connection.
    pub retransmissions: u64,
    /// Offset of its end in the connection's stream; [`u64::MAX`] while it is still being written.
    end: u64,
}

/// What a video player did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Playback {
    /// Time from the first request to the first frame, ns; `None` before it.
    pub startup: Option<Nanos>,
    /// Number of pauses because the buffer was empty.
    pub stalls: u32,
    /// Time that these pauses took, ns.
    pub stalled: Nanos,
    /// Number of complete chunks, and the sum of their bitrates in bit/s.
    pub chunks: u32,
    /// Sum of the bitrates of these chunks, bit/s.
    pub bitrate_sum: f64,
}

/// The application of one flow at run time.
#[derive(Clone, Debug)]
pub struct Session {
    driver: Driver,
    random: Xoshiro256PlusPlus,
    /// Actions that are due, by the end that carries them out.
    near: VecDeque<Action>,
    far: VecDeque<Action>,
    names: Vec<String>,
    messages: Vec<Message>,
    streams: Vec<Stream>,
    echo_bytes: Option<u32>,
    request_bytes: u32,
    /// Whether a connection is closed when it has delivered its message.
    closes: bool,
    /// When the near end begins: it opens the connection that it writes on, or, if each message
    /// has its own, waits for the first. `None` after that.
    start: Option<Nanos>,
}

/// What determines the session's course.
#[derive(Clone, Debug)]
enum Driver {
    /// The near end writes by a clock.
    Writer(Writer),
    /// The far end asks for data and waits for them.
    Client(Client),
}

/// The data of one connection.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// Bytes that the near end has written or was asked for.
    written: u64,
    /// Bytes that the far end has got.
    delivered: u64,
    /// Messages that are not complete, the oldest first.
    incomplete: VecDeque<usize>,
    /// Messages whose first byte the near end is still to write, the oldest first.
    unwritten: VecDeque<usize>,
    /// Messages that are complete but not echoed, the oldest first.
    unechoed: VecDeque<usize>,
    /// The message that retransmissions count for, and the connection's total before it.
    sending: Option<usize>,
    retransmissions: u64,
}

impl Session {
    /// Creates the session of an application that starts at `start`; `None` for
    /// [`App::Bulk`], which has no messages.
    pub fn new(app: &App, start: Nanos, seed: u64) -> Option<Self> {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (echo_bytes, request_bytes) = match app {
            App::Keystrokes(app) => (Some(app.echo_bytes), 0),
            App::RequestResponse(app) => (None, app.request_bytes),
            App::Video(app) => (None, app.request_bytes),
            _ => (None, 0),
        };
        let (driver, names) = match app {
            App::Bulk => return None,
            App::RequestResponse(_) | App::Video(_) => {
                let (client, names) = Client::new(app, start)?;
                (Driver::Client(client), names)
            }
            _ => {
                let (writer, names) = Writer::new(app)?;
                (Driver::Writer(writer), names)
            }
        };
        Some(Self {
            driver,
            random,
            near: VecDeque::new(),
            far: VecDeque::new(),
            names,
            messages: Vec::new(),
            streams: Vec::new(),
            echo_bytes,
            request_bytes,
            closes: app.opens_several_connections(),
            start: Some(start),
        })
    }

    /// When the end has something to do next, if nothing arrives before; [`Nanos::MAX`] for never.
    #[inline]
    pub fn due(&self, end: End) -> Nanos {
        match (end, &self.driver) {
            (End::Near, _) if !self.near.is_empty() => 0,
            (End::Far, _) if !self.far.is_empty() => 0,
            (End::Near, Driver::Writer(writer)) => self.start.unwrap_or(writer.due()),
            (End::Far, Driver::Client(client)) => client.due(),
            _ => NEVER,
        }
    }

    /// Returns the next action of the end at `now`; `None` when nothing more is due.
    pub fn act(&mut self, end: End, now: Nanos) -> Option<Action> {
        match (end, &mut self.driver) {
            (End::Near, Driver::Writer(_)) => self.write_what_is_due(now),
            (End::Far, Driver::Client(client)) => {
                if self.far.is_empty()
                    && client.due() <= now
                    && let Some(ask) = client.ask(now)
                {
                    let connection = match ask.opens || self.streams.is_empty() {
                        true => self.open(End::Far),
                        false => self.streams.len() as u32 - 1,
                    };
                    self.begin(now, connection, ask.name, Some(ask.bytes));
                    let bytes = self.request_bytes;
                    self.far.push_back(Action::Send { connection, bytes });
                }
            }
            _ => {}
        }
        match end {
            End::Near => self.near.pop_front(),
            End::Far => self.far.pop_front(),
        }
    }

    /// A connection is established, as the end knows that opened it. An application that writes on
    /// one connection begins to.
    pub fn established(&mut self, now: Nanos) {
        if let Driver::Writer(writer) = &mut self.driver
            && !self.closes
        {
            writer.start(now, &mut self.random);
        }
    }

    /// The far end has got the first `total` bytes of the connection's data.
    pub fn delivered(&mut self, now: Nanos, connection: u32, total: u64) {
        let stream = &mut self.streams[connection as usize];
        stream.delivered = total;
        while let Some(&index) = stream.incomplete.front() {
            let message = &mut self.messages[index];
            let begin = match message.end {
                u64::MAX => stream.written - message.bytes,
                end => end - message.bytes,
            };
            if total <= begin {
                return;
            }
            message.first_byte.get_or_insert(now);
            if total < message.end {
                return;
            }
            message.completed = Some(now);
            stream.incomplete.pop_front();
            if let Some(bytes) = self.echo_bytes {
                stream.unechoed.push_back(index);
                self.far.push_back(Action::Send { connection, bytes });
            }
            if self.closes {
                self.far.push_back(Action::Close { connection });
            }
            if let Driver::Client(client) = &mut self.driver {
                client.completed(now, message, &mut self.random);
            }
        }
    }

    /// A message of the far end has arrived at the near end: a request, which is answered, or an
    /// echo.
    pub fn received(&mut self, now: Nanos, connection: u32) {
        let stream = &mut self.streams[connection as usize];
        if let Some(index) = stream.unechoed.pop_front() {
            self.messages[index].echoed = Some(now);
        } else if let Some(&index) = stream.unwritten.front() {
            let bytes = self.messages[index].bytes;
            self.near.push_back(Action::Write { connection, bytes });
        }
    }

    /// The near end is about to write the first bytes of its next message on the connection, or the
    /// connection ends; so far it has retransmitted `total` segments.
    pub fn retransmitted(&mut self, connection: u32, total: u64) {
        let stream = &mut self.streams[connection as usize];
        if let Some(sending) = stream.sending {
            self.messages[sending].retransmissions += total - stream.retransmissions;
        }
        stream.retransmissions = total;
        stream.sending = stream.unwritten.pop_front().or(stream.sending);
    }

    /// The near end has stopped writing, after `total` bytes on the connection.
    pub fn stopped(&mut self, now: Nanos, connection: u32, total: u64) {
        let stream = &mut self.streams[connection as usize];
        if let Some(&index) = stream.incomplete.back()
            && self.messages[index].end == u64::MAX
        {
            let message = &mut self.messages[index];
            let begin = stream.written - message.bytes;
            message.bytes = total - begin;
            message.end = total;
            stream.written = total;
            let delivered = stream.delivered;
            self.delivered(now, connection, delivered);
        }
    }

    /// Size of the messages that the far end sends, bytes: requests or echoes.
    pub fn far_bytes(&self) -> u32 {
        self.echo_bytes.unwrap_or(self.request_bytes)
    }

    /// Names of the session's kinds of messages.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// All messages, in the order in which they began.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Number of connections that were opened.
    pub fn connections(&self) -> u32 {
        self.streams.len() as u32
    }

    /// What the player of a video did until `now`; `None` for other applications.
    pub fn playback(&self, now: Nanos) -> Option<Playback> {
        match &self.driver {
            Driver::Client(client) => client.playback(now),
            Driver::Writer(_) => None,
        }
    }

    /// Has the writer write until there is an action. The beginning of a period is none.
    fn write_what_is_due(&mut self, now: Nanos) {
        if let Some(start) = self.start.take_if(|start| *start <= now) {
            match &mut self.driver {
                Driver::Writer(writer) if self.closes => writer.start(start, &mut self.random),
                _ => drop(self.open(End::Near)),
            }
        }
        while self.near.is_empty()
            && let Driver::Writer(writer) = &mut self.driver
            && writer.due() <= now
        {
            let at = writer.due();
            let write = writer.next(&mut self.random);
            self.write(at, write);
        }
    }

    fn write(&mut self, now: Nanos, write: Write) {
        match write {
            Write::Message { name, bytes, opens } => {
                let connection = match opens {
                    true => self.open(End::Near),
                    false => 0,
                };
                self.begin(now, connection, name, Some(bytes));
                self.near.push_back(Action::Write { connection, bytes });
            }
            Write::Begin => {
                self.begin(now, 0, 0, None);
            }
            Write::More { bytes } => {
                let stream = &mut self.streams[0];
                stream.written += bytes;
                if let Some(&index) = stream.incomplete.back() {
                    self.messages[index].bytes += bytes;
                }
                let connection = 0;
                self.near.push_back(Action::Write { connection, bytes });
            }
            Write::Stream => self.near.push_back(Action::Stream { connection: 0 }),
            Write::Stop => self.near.push_back(Action::Stop { connection: 0 }),
        }
    }

    fn open(&mut self, end: End) -> u32 {
        let connection = self.streams.len() as u32;
        self.streams.push(Stream::default());
        let actions = match end {
            End::Near => &mut self.near,
            End::Far => &mut self.far,
        };
        actions.push_back(Action::Open { connection });
        connection
    }

    /// Begins a message; without `bytes` its size is not known yet.
    fn begin(&mut self, now: Nanos, connection: u32, name: usize, bytes: Option<u64>) {
        let stream = &mut self.streams[connection as usize];
        stream.written += bytes.unwrap_or(0);
        let index = self.messages.len();
        self.messages.push(Message {
            name,
            connection,
            start: now,
            bytes: bytes.unwrap_or(0),
            first_byte: None,
            completed: None,
            echoed: None,
            retransmissions: 0,
            end: bytes.map_or(u64::MAX, |_| stream.written),
        });
        stream.incomplete.push_back(index);
        stream.unwritten.push_back(index);
    }
}

/// Draws from the exponential distribution with this mean, ns.
fn exponential(random: &mut Xoshiro256PlusPlus, mean: Nanos) -> Nanos {
    let u: f64 = random.random();
    (-(1.0 - u).ln() * mean as f64) as Nanos
}
