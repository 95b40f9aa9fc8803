//! Applications whose far end asks for data.

use rand::rngs::Xoshiro256PlusPlus;

use super::{Message, NEVER, Playback, exponential};
use crate::path::{Nanos, nanos};
use crate::scenario::App;
use crate::scenario::app::{RequestResponse, Video};

/// A request of the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// Index of the message's name.
    pub(super) name: usize,
    /// Size of the response in bytes.
    pub(super) bytes: u64,
    /// Whether it opens a connection of its own.
    pub(super) opens: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    /// When it asks next; never while it waits for a response.
    next: Nanos,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    RequestResponse { app: RequestResponse, asked: u32 },
    Player(Player),
}

/// A video player and the state of its buffer.
#[derive(Clone, Debug)]
struct Player {
    app: Video,
    /// Index of the bitrate of the chunk that it waits for.
    bitrate: usize,
    /// Throughput of the last chunk, bit/s; 0 before the first.
    throughput: f64,
    /// When it asked for the first chunk; `None` before that.
    begun: Option<Nanos>,
    /// When the buffer will be, or was, empty; `None` before the first chunk.
    empty: Option<Nanos>,
    playback: Playback,
}

impl Client {
    /// Creates the client with the names of its messages; `None` for an application without a
    /// client.
    pub(super) fn new(app: &App, start: Nanos) -> Option<(Self, Vec<String>)> {
        let (kind, names) = match app {
            App::RequestResponse(app) => {
                let names = match app.bytes[..] {
                    [_] => vec!["response".to_owned()],
                    _ => {
                        let sizes = app.bytes.iter();
                        sizes.map(|bytes| format!("response-{bytes}")).collect()
                    }
                };
                let app = app.clone();
                (Kind::RequestResponse { app, asked: 0 }, names)
            }
            App::Video(app) => {
                let player = Player {
                    app: app.clone(),
                    bitrate: 0,
                    throughput: 0.0,
                    begun: None,
                    empty: None,
                    playback: Playback::default(),
                };
                (Kind::Player(player), vec!["chunk".to_owned()])
            }
            _ => return None,
        };
        Some((Self { next: start, kind }, names))
    }

    /// When the client asks next.
    #[inline]
    pub(super) fn due(&self) -> Nanos {
        self.next
    }

    /// The request that is due at `now`; `None` when there are no more.
    pub(super) fn ask(&mut self, now: Nanos) -> Option<Ask> {
        self.next = NEVER;
        match &mut self.kind {
            Kind::RequestResponse { app, asked } => {
                if app.count.is_some_and(|count| *asked >= count) {
                    return None;
                }
                let place = *asked as usize % app.bytes.len();
                *asked += 1;
                Some(Ask {
                    name: place,
                    bytes: app.bytes[place],
                    opens: app.new_connections,
                })
            }
            Kind::Player(player) => Some(player.ask(now)),
        }
    }

    /// The response to the last request has arrived.
    pub(super) fn completed(
        &mut self,
        now: Nanos,
        message: &Message,
        random: &mut Xoshiro256PlusPlus,
    ) {
        self.next = match &mut self.kind {
            Kind::RequestResponse { app, .. } => {
                let think = nanos(app.think);
                match app.random {
                    true => now + exponential(random, think),
                    false => now + think,
                }
            }
            Kind::Player(player) => player.completed(now, message),
        };
    }

    /// What the player did until `now`; `None` for other clients.
    pub(super) fn playback(&self, now: Nanos) -> Option<Playback> {
        let Kind::Player(player) = &self.kind else {
            return None;
        };
        let mut playback = player.playback;
        // A pause that lasts still.
        if let Some(empty) = player.empty
            && empty < now
        {
            playback.stalls += 1;
            playback.stalled += now - empty;
        }
        Some(playback)
    }
}

impl Player {
    fn ask(&mut self, now: Nanos) -> Ask {
        self.begun.get_or_insert(now);
        let affordable = self.throughput * Video::SAFETY;
        let rates = &self.app.bitrates;
        self.bitrate = rates.partition_point(|&rate| rate <= affordable).max(1) - 1;
        let bits = rates[self.bitrate] * self.app.chunk.as_secs_f64();
        Ask {
            name: 0,
            bytes: (bits / 8.0).round().max(1.0) as u64,
            opens: false,
        }
    }

    /// Adds a chunk to the buffer, and returns when there is room for another one.
    fn completed(&mut self, now: Nanos, message: &Message) -> Nanos {
        let time = now.saturating_sub(message.start).max(1);
        self.throughput = message.bytes as f64 * 8e9 / time as f64;
        self.playback.chunks += 1;
        self.playback.bitrate_sum += self.app.bitrates[self.bitrate];
        let plays_from = match self.empty {
            None => {
                self.playback.startup = self.begun.map(|begun| now - begun);
                now
            }
            Some(empty) if empty < now => {
                self.playback.stalls += 1;
                self.playback.stalled += now - empty;
                now
            }
            Some(empty) => empty,
        };
        let (chunk, buffer) = (nanos(self.app.chunk), nanos(self.app.buffer));
        let empty = plays_from + chunk;
        self.empty = Some(empty);
        // There is room once the buffer, which empties by `empty`, holds a chunk less than it may.
        now.max((empty + chunk).saturating_sub(buffer))
    }
}
