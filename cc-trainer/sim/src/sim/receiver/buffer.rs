//! The receive buffer and window, which grow with what the application reads per round trip (Linux
//! 6.18, net/ipv4/tcp_input.c: `tcp_rcv_space_adjust`, `tcp_grow_window`). The window seldom limits
//! the sender; but as long as it grows, every segment is acknowledged at once.

use crate::path::Nanos;
use crate::sim::wire::MSS;

/// Memory that a segment takes in bytes (`skb->truesize` of a packet from a TUN device).
const TRUESIZE: u64 = 2_304;
/// The part of a buffer that may be payload, in 256ths (`scaling_ratio`): 1448 of 2304.
const RATIO: u64 = 160;
/// Initial and largest size of the buffer in bytes (`tcp_rmem`; the receivers of `cc-trainer
/// evaluate` allow 64 MiB).
const INITIAL: u64 = 131_072;
const LARGEST: u64 = 64 << 20;
/// Windows are announced in multiples of this many bytes (`rcv_wscale`, which is 11 with the
/// largest buffer above).
const SCALE: u64 = 2_048;
/// Receive window before the first segment, bytes.
const INITIAL_RCV_WND: u64 = 64_088;
/// Bytes that a round trip may bring at first without the buffer growing (`TCP_INIT_CWND`
/// segments).
const FIRST_ROUND: u64 = 14_480;

/// Receive buffer and receive window; all sizes are in bytes.
#[derive(Clone, Debug)]
pub(super) struct ReceiveBuffer {
    /// Size of the buffer (`sk_rcvbuf`).
    rcvbuf: u64,
    /// The part of it that may be payload (`window_clamp`).
    window_clamp: u64,
    /// Largest window that is announced (`rcv_ssthresh`).
    rcv_ssthresh: u64,
    /// Receive window that the newest ACK announced (`rcv_wnd`).
    rcv_wnd: u64,
    /// Largest amount that the application read in a round trip (`rcvq_space.space`).
    rcvq_space: u64,
    /// Begin of the present round trip: the time, and the first segment that was not read then.
    since: Nanos,
    from: u32,
    /// RTT by the sender's echoes in eighths of a µs; 0 before the first (`rcv_rtt_est.rtt_us`).
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

    /// Announces a receive window, and returns it in full segments. `held` segments wait to be read
    /// or for others, `acked` more are acknowledged than by the previous ACK. An announced window
    /// is not taken back (`tcp_select_window`).
    #[inline]
    pub(super) fn announce(&mut self, held: u32, acked: u32) -> u32 {
        let left = self
            .rcv_wnd
            .saturating_sub(u64::from(acked) * u64::from(MSS));
        self.rcv_wnd = self.room(held).max(left.next_multiple_of(SCALE));
        (self.rcv_wnd / u64::from(MSS)) as u32
    }

    /// Whether the right edge of the receive window would move by as much as an ACK now would
    /// acknowledge: if not, the ACK waits for the application to read (`__tcp_ack_snd_check`).
    #[inline]
    pub(super) fn advances(&self, held: u32) -> bool {
        self.room(held) >= self.rcv_wnd
    }

    /// The window that could be announced (`__tcp_select_window`).
    #[inline]
    fn room(&self, held: u32) -> u64 {
        let free = self.rcvbuf.saturating_sub(u64::from(held) * TRUESIZE);
        win_from_space(free)
            .min(self.rcv_ssthresh)
            .next_multiple_of(SCALE)
    }

    /// RTT in µs; 0 before the first sample.
    #[inline]
    pub(super) fn rtt_us(&self) -> u64 {
        self.rcv_rtt_us / 8
    }

    /// Measures the RTT by a segment in order that echoes the time of an ACK, both in ms
    /// (`tcp_rcv_rtt_measure_ts`). `drained` says whether the application has read everything
    /// before it.
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

    /// Grows the window when a segment arrives while `held` segments wait to be read or for others
    /// (`tcp_grow_window`). Returns whether the window grew.
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

    /// Takes note that the application has read all segments before `next`
    /// (`tcp_rcv_space_adjust`).
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

    /// Makes room for `span` segments from the first missing one to the last that arrived
    /// (`tcp_rcvbuf_grow`).
    pub(super) fn make_room(&mut self, span: u32) {
        self.resize(self.rcvq_space, span);
    }

    fn resize(&mut self, taken: u64, span: u32) {
        // Twice the amount, as it is known a round trip late, and as much more as the sender's rate
        // may still grow.
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

/// The part of a buffer that may be payload (`tcp_win_from_space`).
fn win_from_space(space: u64) -> u64 {
    space * RATIO / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_receive_window_grows_only_while_the_application_reads_more_each_round() {
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
        // Linux announces a window of 6 round trips when a round trip has doubled.
        assert_eq!(buffer.window_clamp, 6 * 40 * u64::from(MSS));
        buffer.read(80 * MS, next + 40);
        assert_eq!(buffer.window_clamp, 6 * 40 * u64::from(MSS));
    }

    #[test]
    fn segments_beyond_a_gap_keep_the_receive_window_from_growing() {
        let mut buffer = ReceiveBuffer::new();
        assert!(!buffer.grow(40));
        assert!(buffer.grow(0));
    }
}
