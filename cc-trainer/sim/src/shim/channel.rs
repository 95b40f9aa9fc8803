//! What is in flight in one direction, and what becomes of each message.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

use super::OneWay;
use crate::path::{Losses, Nanos, nanos};

/// Most transmissions of a piece of a stream; when all of them are lost, the stream breaks.
pub const MAX_TRANSMISSIONS: u32 = 8;

/// What carries the messages of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Each message is on its own, as in UDP: it may be lost, and may overtake others.
    #[default]
    Datagrams,
    /// The messages are pieces of a stream, as in TCP. A lost transmission is repeated after
    /// [`Conditions::retransmission`](super::Conditions::retransmission), after twice that time
    /// when the second is lost as well, and so on (RFC 6298, 5.5); each has its own delay and loss.
    /// All pieces behind it wait for it. After [`MAX_TRANSMISSIONS`] in vain the stream breaks.
    Stream,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, once and unchanged.
    Arrives {
        /// Time of its arrival, ns.
        at: Nanos,
        /// Number of times that it was sent again; 0 for datagrams.
        resent: u32,
    },
    /// It is lost; in a stream, so is everything after it.
    Lost,
}

/// The delays and losses of one direction, in the order of the messages.
#[derive(Debug)]
pub struct Fates(Source);

#[derive(Debug)]
enum Source {
    Drawn(Box<Drawn>),
    Replayed {
        fates: Arc<[Option<Nanos>]>,
        next: usize,
    },
}

#[derive(Debug)]
struct Drawn {
    /// Mean of the delay, ns.
    delay: f64,
    /// Standard deviation of the delay, ns.
    jitter: f64,
    losses: Losses,
    random: StdRng,
}

/// One direction with the messages that are in flight, ordered by their arrival.
///
/// Times are in ns since any moment that the caller has chosen.
#[derive(Debug)]
pub struct Channel<M> {
    fates: Fates,
    medium: Medium,
    retransmission: Nanos,
    /// By time of arrival, and then by number.
    in_flight: BTreeMap<(Nanos, u64), M>,
    /// Number of the next message.
    number: u64,
    /// Arrival of a stream's latest piece, before which no later one arrives.
    latest: Nanos,
    is_broken: bool,
}

impl Fates {
    /// The messages of one direction from the first one on; `seed` determines what is drawn.
    ///
    /// Delay and loss are drawn independently: the n-th message has the same delay whatever the
    /// loss is.
    pub fn new(one_way: &OneWay, seed: u64) -> Self {
        Self(match one_way {
            OneWay::Drawn {
                delay,
                jitter,
                loss,
            } => {
                let mut seeds = StdRng::seed_from_u64(seed);
                Source::Drawn(Box::new(Drawn {
                    delay: nanos(*delay) as f64,
                    jitter: nanos(*jitter) as f64,
                    losses: Losses::new(*loss, StdRng::from_rng(&mut seeds)),
                    random: StdRng::from_rng(&mut seeds),
                }))
            }
            OneWay::Replayed(fates) => Source::Replayed {
                fates: fates.clone(),
                next: 0,
            },
        })
    }

    /// The delay of the next message in ns, or `None` when it is lost.
    pub fn draw(&mut self) -> Option<Nanos> {
        match &mut self.0 {
            Source::Drawn(drawn) => {
                let deviation: f64 = drawn.random.sample(StandardNormal);
                let delay = (drawn.delay + drawn.jitter * deviation).max(0.0) as Nanos;
                (!drawn.losses.takes()).then_some(delay)
            }
            Source::Replayed { fates, next } => {
                let fate = fates.get(*next).copied().flatten();
                *next = (*next + 1) % fates.len().max(1);
                fate
            }
        }
    }
}

impl<M> Channel<M> {
    /// A direction with nothing in flight. A stream sends again after `retransmission`; `seed`
    /// determines what is drawn.
    pub fn new(one_way: &OneWay, medium: Medium, retransmission: Duration, seed: u64) -> Self {
        Self {
            fates: Fates::new(one_way, seed),
            medium,
            retransmission: nanos(retransmission),
            in_flight: BTreeMap::new(),
            number: 0,
            latest: 0,
            is_broken: false,
        }
    }

    /// Sends a message at `now`, and tells what becomes of it. A lost one is dropped.
    pub fn offer(&mut self, now: Nanos, message: M) -> Fate {
        let fate = match self.medium {
            Medium::Datagrams => match self.fates.draw() {
                Some(delay) => Fate::Arrives {
                    at: now.saturating_add(delay),
                    resent: 0,
                },
                None => Fate::Lost,
            },
            Medium::Stream => self.send_piece(now),
        };
        if let Fate::Arrives { at, .. } = fate {
            self.in_flight.insert((at, self.number), message);
            self.number += 1;
        }
        fate
    }

    fn send_piece(&mut self, now: Nanos) -> Fate {
        if self.is_broken {
            return Fate::Lost;
        }
        let (mut sent, mut wait) = (now, self.retransmission);
        for resent in 0..MAX_TRANSMISSIONS {
            if let Some(delay) = self.fates.draw() {
                self.latest = self.latest.max(sent.saturating_add(delay));
                return Fate::Arrives {
                    at: self.latest,
                    resent,
                };
            }
            sent = sent.saturating_add(wait);
            wait = wait.saturating_mul(2);
        }
        self.is_broken = true;
        Fate::Lost
    }

    /// Time of the next arrival, ns; `None` when nothing is in flight.
    pub fn next_at(&self) -> Option<Nanos> {
        let ((at, _), _) = self.in_flight.first_key_value()?;
        Some(*at)
    }

    /// Takes the earliest message that has arrived by `now`, with the time of its arrival.
    pub fn take(&mut self, now: Nanos) -> Option<(Nanos, M)> {
        let entry = self.in_flight.first_entry()?;
        let (at, _) = *entry.key();
        (at <= now).then(|| (at, entry.remove()))
    }

    /// Number of messages in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

impl Channel<()> {
    /// Sends a message at `now` whose content the caller keeps. Returns the time of its arrival,
    /// ns; `None` when it is lost.
    pub fn pass(&mut self, now: Nanos) -> Option<Nanos> {
        match self.offer(now, ()) {
            Fate::Arrives { at, .. } => {
                self.take(Nanos::MAX);
                Some(at)
            }
            Fate::Lost => None,
        }
    }
}
