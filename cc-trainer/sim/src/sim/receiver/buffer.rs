//! The receive buffer: how far the receiver lets the sender go, which grows with what the application takes in a
//! round trip (`tcp_rcv_space_adjust`, `tcp_grow_window`, net/ipv4/tcp_input.c). The sender seldom feels it; but as long as
//! the window grows, every segment is acknowledged at once.

use crate::path::Nanos;
use crate::sim::wire::MSS;

/// Memory that a segment takes, bytes (`skb->truesize` of a packet from a TUN device).
const TRUESIZE: u64 = 2_304;
/// Of a buffer, what may be data, in 256ths (`scaling_ratio`): 1448 of 2304.
const RATIO: u64 = 160;
/// The buffer at first and at most, bytes (`tcp_rmem`; the receivers of `cc-trainer evaluate` allow 64 MiB).
const INITIAL: u64 = 131_072;
const LARGEST: u64 = 64 << 20;
/// Windows are announced in multiples of this, bytes (`rcv_wscale`, 11 with the largest buffer above).
const SCALE: u64 = 2_048;
/// The window before the first segment, bytes.
const INITIAL_RCV_WND: u64 = 64_088;
/// What a round trip may bring without the buffer growing at first, bytes (`TCP_INIT_CWND` segments).
const FIRST_ROUND: u64 = 14_480;

/// Receive buffer and window, bytes.
#[derive(Clone, Debug)]
pub(super) struct ReceiveBuffer {
    /// `sk_rcvbuf`.
    rcvbuf: u64,
    /// What of it may be data (`window_clamp`).
    window_clamp: u64,
    /// The window that is announced at most (`rcv_ssthresh`).
    rcv_ssthresh: u64,
    /// The one that the newest ACK announced (`rcv_wnd`).
    rcv_wnd: u64,
    /// Most that the application took in a round trip (`rcvq_space.space`).
    rcvq_space: u64,
    /// Since when, and from which segment, the present round trip counts.
    since: Nanos,
    from: u32,
    /// RTT by the sender's echoes, eighths of a µs; 0 before the first (`rcv_rtt_est.rtt_us`).
    rcv_rtt_us: u64,
    last_echo: u32,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self {
            rcvbuf: INITIAL,
            window_clamp: win_from_space(INITIAL),
            rcv_ssthresh: INITIAL_RCV_WND,
            rcv_wnd: INITIAL_RCV_WND,
            rcvq_space: FIRST_ROUND,
            since: 0,
            from: 0,
            rcv_rtt_us: 0,
            last_echo: 0,
        }
    }

    /// Announces a window, and says how many full segments it has. `held` segments wait to be read or for others, `acked`
    /// more are acknowledged than by the ACK before. What was announced is not taken back (`tcp_select_window`).
    #[inline]
    pub(super) fn announce(&mut self, held: u32, acked: u32) -> u32 {
        let left = self
            .rcv_wnd
            .saturating_sub(u64::from(acked) * u64::from(MSS));
        self.rcv_wnd = self.room(held).max(left.next_multiple_of(SCALE));
        (self.rcv_wnd / u64::from(MSS)) as u32
    }

    /// Whether the right edge of the window would move as far as what an ACK now would be for: if not, the ACK waits for
    /// the application to read (`__tcp_ack_snd_check`).
    #[inline]
    pub(super) fn advances(&self, held: u32) -> bool {
        self.room(held) >= self.rcv_wnd
    }

    /// `__tcp_select_window`.
    #[inline]
    fn room(&self, held: u32) -> u64 {
        let free = self.rcvbuf.saturating_sub(u64::from(held) * TRUESIZE);
        win_from_space(free)
            .min(self.rcv_ssthresh)
            .next_multiple_of(SCALE)
    }

    /// RTT, µs; 0 before the first sample.
    #[inline]
    pub(super) fn rtt_us(&self) -> u64 {
        self.rcv_rtt_us / 8
    }

    /// A segment in order echoes the time of an ACK, both in ms (`tcp_rcv_rtt_measure_ts`). `drained`: the application
    /// has read all before it.
    #[inline]
    pub(super) fn measure(&mut self, now_ms: u32, echo: u32, drained: bool) {
        if echo == self.last_echo {
            return;
        }
        self.last_echo = echo;
        let sample = u64::from(now_ms.saturating_sub(echo)) * 1_000;
        if sample == 0 {
            return;
        }
        if self.rcv_rtt_us == 0 || sample * 8 < self.rcv_rtt_us {
            self.rcv_rtt_us = sample * 8;
        } else if drained {
            self.rcv_rtt_us += sample - self.rcv_rtt_us / 8;
        }
    }

    /// A segment came while `held` wait to be read or for others; whether the window grew.
    #[inline]
    pub(super) fn grow(&mut self, held: u32) -> bool {
        let free = self.rcvbuf.saturating_sub(u64::from(held) * TRUESIZE);
        let limit = self.window_clamp.min(win_from_space(free));
        if limit <= self.rcv_ssthresh {
            return false;
        }
        self.rcv_ssthresh = limit.min(self.rcv_ssthresh + 2 * u64::from(MSS));
        true
    }

    /// The application has read all segments before `next` (`tcp_rcv_space_adjust`).
    #[inline]
    pub(super) fn read(&mut self, now: Nanos, next: u32) {
        if self.rcv_rtt_us == 0 || (now - self.since) / 1_000 < self.rtt_us() {
            return;
        }
        let taken = u64::from(next - self.from) * u64::from(MSS);
        if taken > self.rcvq_space {
            self.resize(taken, 0);
        }
        self.since = now;
        self.from = next;
    }

    /// `span` segments lie from the first missing one to the last that came (`tcp_rcvbuf_grow`).
    pub(super) fn make_room(&mut self, span: u32) {
        self.resize(self.rcvq_space, span);
    }

    fn resize(&mut self, taken: u64, span: u32) {
        // Twice, as it is known a round trip late, and as much more as the sender's rate may still double.
        let mut rcvwin = 2 * taken;
        rcvwin += 2 * (rcvwin * (taken - self.rcvq_space) / self.rcvq_space);
        rcvwin += u64::from(span) * u64::from(MSS);
        self.rcvq_space = taken;
        let size = (rcvwin * 256 / RATIO).min(LARGEST);
        if size > self.rcvbuf {
            self.rcvbuf = size;
            self.window_clamp = win_from_space(size);
        }
    }
}

/// `tcp_win_from_space`.
fn win_from_space(space: u64) -> u64 {
    space * RATIO / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_window_grows_only_while_the_application_takes_more_each_round() {
        let mut buffer = ReceiveBuffer::new();
        let grew = (0..100).filter(|_| buffer.grow(0)).count();
        assert_eq!(grew, 7, "to what the first buffer may hold");
        buffer.measure(100, 80, true);
        assert_eq!(buffer.rtt_us(), 20_000);
        let mut next = 0;
        for (round, segments) in (1..).zip([10, 20, 40]) {
            next += segments;
            buffer.read(round * 20 * MS, next);
        }
        // What was seen of Linux: a window of 6 rounds when a round has doubled.
        assert_eq!(buffer.window_clamp, 6 * 40 * u64::from(MSS));
        buffer.read(80 * MS, next + 40);
        assert_eq!(buffer.window_clamp, 6 * 40 * u64::from(MSS));
    }

    #[test]
    fn what_waits_for_a_gap_to_be_filled_keeps_the_window_from_growing() {
        let mut buffer = ReceiveBuffer::new();
        assert!(!buffer.grow(40));
        assert!(buffer.grow(0));
    }
}
