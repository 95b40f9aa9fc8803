//! What the receiving end sends beside ACKs: the handshake of a connection that it opens, and the
//! messages of its application, each in one segment.
//!
//! Messages leave at once, whatever the cwnd of this end: an application waits for what it has
//! asked for before it asks again. A timer repeats them.

use std::collections::VecDeque;

use crate::path::Nanos;
use crate::sim::NEVER;
use crate::sim::timer::Ticks;

/// Timeout of the first SYNs in jiffies, and the number of SYNs before it doubles
/// (`tcp_syn_linear_timeouts`).
const SYN_TIMEOUT: u64 = 250;
const SYN_LINEAR: u32 = 4;

/// The data of the receiving end.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    /// When the last SYN was sent and how many before it; `None` when none waits for its answer.
    connecting: Option<(Nanos, u32)>,
    /// Payload of the messages that are not acknowledged, the oldest first.
    messages: VecDeque<u16>,
    /// Number of the first of them, and how many of them were sent.
    first: u32,
    sent: usize,
    /// Number of timeouts in a row.
    timeouts: u32,
    timer_at: Nanos,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            connecting: None,
            messages: VecDeque::new(),
            first: 0,
            sent: 0,
            timeouts: 0,
            timer_at: NEVER,
        }
    }
}

impl Upstream {
    /// When the timer fires, or [`NEVER`] without one.
    #[inline]
    pub(super) fn wake(&self) -> Nanos {
        self.timer_at
    }

    /// Whether a SYN waits for its answer.
    pub(super) fn is_connecting(&self) -> bool {
        self.connecting.is_some()
    }

    /// Takes note of a SYN that is sent now.
    pub(super) fn connect(&mut self, now: Nanos, ticks: Ticks) {
        let tries = self.connecting.map_or(0, |(_, tries)| tries + 1);
        self.connecting = Some((now, tries));
        let doublings = tries.saturating_sub(SYN_LINEAR).min(7);
        self.timer_at = ticks.expiry(now, SYN_TIMEOUT << doublings);
    }

    /// The SYN was answered. Returns when it was sent; `None` when none waited.
    pub(super) fn accepted(&mut self) -> Option<Nanos> {
        let (sent, _) = self.connecting.take()?;
        self.timer_at = NEVER;
        Some(sent)
    }

    /// Adds a message, which is to be sent next.
    pub(super) fn send(&mut self, payload: u16) {
        self.messages.push_back(payload);
    }

    /// Whether messages wait to be sent.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.messages.len()
    }

    /// Takes the next message to be sent, with its number. `rto` is the retransmission timeout in
    /// jiffies.
    pub(super) fn next(&mut self, now: Nanos, rto: u64, ticks: Ticks) -> Option<(u32, u16)> {
        let payload = *self.messages.get(self.sent)?;
        let number = self.first + self.sent as u32;
        self.sent += 1;
        if self.sent == 1 {
            self.timer_at = ticks.expiry(now, rto << self.timeouts.min(7));
        }
        Some((number, payload))
    }

    /// The other end has got the first `count` messages.
    pub(super) fn arrived(&mut self, now: Nanos, count: u32, rto: u64, ticks: Ticks) {
        while self.first < count && self.messages.pop_front().is_some() {
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            self.timeouts = 0;
            self.timer_at = match self.sent {
                0 => NEVER,
                _ => ticks.expiry(now, rto),
            };
        }
    }

    /// Has all messages sent again that are not acknowledged, after the timer has fired.
    pub(super) fn repeat(&mut self) {
        self.timer_at = NEVER;
        self.timeouts += 1;
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn messages_are_repeated_until_they_are_acknowledged() {
        let ticks = Ticks::new(0);
        let mut upstream = Upstream::default();
        upstream.send(200);
        upstream.send(300);
        assert_eq!(upstream.next(0, 60, ticks), Some((0, 200)));
        assert_eq!(upstream.next(0, 60, ticks), Some((1, 300)));
        assert_eq!(upstream.next(0, 60, ticks), None);
        assert!((240 * MS..250 * MS).contains(&upstream.wake()));
        upstream.repeat();
        assert_eq!(upstream.next(250 * MS, 60, ticks), Some((0, 200)));
        let backed_off = upstream.wake() - 250 * MS;
        assert!((480 * MS..520 * MS).contains(&backed_off), "{backed_off}");
        upstream.arrived(260 * MS, 1, 60, ticks);
        assert_eq!(upstream.next(260 * MS, 60, ticks), Some((1, 300)));
        upstream.arrived(300 * MS, 2, 60, ticks);
        assert_eq!(upstream.wake(), NEVER);
        assert!(!upstream.has_unsent());
    }

    #[test]
    fn a_syn_is_repeated_each_second_at_first() {
        let ticks = Ticks::new(0);
        let mut upstream = Upstream::default();
        upstream.connect(0, ticks);
        let first = upstream.wake();
        assert!((1_000 * MS..1_040 * MS).contains(&first), "{first}");
        upstream.connect(first, ticks);
        assert!(upstream.is_connecting());
        assert_eq!(upstream.accepted(), Some(first));
        assert_eq!((upstream.accepted(), upstream.wake()), (None, NEVER));
    }
}
