//! The receiving end: what it acknowledges, and when (Linux 6.18, net/ipv4/tcp_input.c and
//! tcp_output.c). Its application reads data as it arrives, with a pause after each read. On a fast
//! link that pause determines when it acknowledges: once the receive window has stopped growing,
//! data that waits to be read keeps it from being announced again.

mod arrived;
mod buffer;
mod upstream;

use crate::path::Nanos;

use arrived::Arrived;
use buffer::ReceiveBuffer;
use upstream::Upstream;

use super::NEVER;
use super::rtt::RTO_MIN_US;
use super::timer::{Ticks, jiffies};
use super::wire::{Ack, SackBlock, ToReceiver, ToSender, milliseconds};

/// Shortest delay of an ACK in jiffies, 40 ms (`TCP_ATO_MIN`, `TCP_DELACK_MIN`).
const ATO_MIN: u64 = 10;
/// Longest delay of an ACK in jiffies, a tick less than the sender's shortest timeout
/// (`tcp_delack_max`).
const ATO_MAX: u64 = 49;
/// Number of ACKs that are not delayed at the start, after a long pause and after a D-SACK
/// (`TCP_MAX_QUICKACKS`).
const QUICK_ACKS: u32 = 16;
/// Segments that may arrive before an ACK is sent at once: the second one exceeds it (`rcv_mss`).
const UNACKED: u32 = 1;
/// ACKs of segments out of order that are sent at once before they are compressed
/// (`TCP_FASTRETRANS_THRESH`).
const FASTRETRANS_THRESH: u32 = 3;
/// Number of ACKs that one compressed ACK may replace (`tcp_comp_sack_nr`).
const MAX_COMPRESSED: u32 = 44;
/// Longest time that a compressed ACK waits for others, ns (`tcp_comp_sack_delay_ns`).
const COMPRESSION: Nanos = 1_000_000;

/// The receiving end of a connection, with its application.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    arrived: Arrived,
    buffer: ReceiveBuffer,
    /// All segments before this one were acknowledged (`rcv_wup`).
    rcv_wup: u32,
    /// TSval to echo: that of the first segment that the next ACK acknowledges (`ts_recent`).
    ts_recent: u32,
    /// A segment that arrived twice, to be reported by a D-SACK (RFC 2883).
    dsack: Option<SackBlock>,

    /// Time of the SYN-ACK; `None` before the SYN.
    opened: Option<Nanos>,
    /// RTT of the handshake in µs; `None` before its end.
    rtt_us: Option<u64>,

    /// Whether an ACK is due, at once or later (`ICSK_ACK_SCHED`).
    ack_scheduled: bool,
    /// Whether it is due at once (`ICSK_ACK_NOW`).
    ack_now: bool,
    /// Whether it is due when the application has read everything (`ICSK_ACK_PUSHED`).
    ack_pushed: bool,
    /// Number of ACKs that are still to be sent without delay (`icsk_ack.quick`).
    quick_acks: u32,
    /// Delay of an ACK in jiffies; 0 before the first data (`icsk_ack.ato`).
    ato: u64,
    /// Tick of the newest data in order (`lrcvtime`).
    lrcvtime: u64,
    /// Tick that the delayed ACK is set for, and the time at which its timer fires
    /// (`icsk_ack.timeout`).
    delayed: Option<(u64, Nanos)>,

    /// ACKs of segments out of order since the last one in order, at most [`FASTRETRANS_THRESH`]
    /// (`dup_ack_counter`), and the segment that was missing then.
    dup_ack_counter: u32,
    duplicates_at: u32,
    /// Number of ACKs held back (`compressed_ack`), and until when.
    compressed_ack: u32,
    compressed_until: Nanos,

    /// What the ACKs say of congestion.
    ecn: EcnEcho,

    /// What this end sends beside ACKs.
    upstream: Upstream,

    /// Pause of the application after a read, ns.
    pub(super) rest: Nanos,
    /// Time of the last read, and the first segment that it left (`copied_seq`).
    last_read: Nanos,
    copied_seq: u32,

    /// Packets that wait to be offered to the path.
    pub(super) outbox: Vec<ToSender>,
}

/// The receiver's part of explicit congestion notification (RFC 3168, `tcp_sock.ecn_flags`).
#[derive(Clone, Copy, Debug, Default)]
struct EcnEcho {
    /// Whether an ECN-capable packet has arrived (`TCP_ECN_SEEN`).
    seen: bool,
    /// Whether a mark has arrived since the sender last answered: ACKs echo it
    /// (`TCP_ECN_DEMAND_CWR`).
    demand_cwr: bool,
}

/// What the network and the sender say of congestion with a segment.
#[derive(Clone, Copy, Debug)]
struct EcnSegment {
    /// Whether the packet is ECN-capable.
    ect: bool,
    /// Whether it was marked on its way.
    ce: bool,
    /// Whether the sender has answered the echo.
    cwr: bool,
}

impl Receiver {
    /// Creates a listening receiver whose application pauses for `rest` ns after a read.
    pub(super) fn new(rest: Nanos) -> Self {
        Self {
            arrived: Arrived::default(),
            buffer: ReceiveBuffer::new(),
            rcv_wup: 0,
            ts_recent: 0,
            dsack: None,
            opened: None,
            rtt_us: None,
            ack_scheduled: false,
            ack_now: false,
            ack_pushed: false,
            quick_acks: 0,
            ato: 0,
            lrcvtime: 0,
            delayed: None,
            dup_ack_counter: 0,
            duplicates_at: 0,
            compressed_ack: 0,
            compressed_until: NEVER,
            ecn: EcnEcho::default(),
            upstream: Upstream::default(),
            rest,
            last_read: 0,
            copied_seq: 0,
            outbox: Vec::with_capacity(4),
        }
    }

    /// Number of segments received in order (`rcv_nxt`).
    pub(super) fn in_order(&self) -> u32 {
        self.arrived.rcv_nxt()
    }

    /// The time at which [`on_timer`](Self::on_timer) has to be called, or [`NEVER`].
    #[inline]
    pub(super) fn wake(&self) -> Nanos {
        let delayed = self.delayed.map_or(NEVER, |(_, at)| at);
        let acks = delayed.min(self.compressed_until).min(self.read_due());
        acks.min(self.upstream.wake())
    }

    /// Opens the connection by sending a SYN.
    pub(super) fn connect(&mut self, now: Nanos, ticks: Ticks) {
        self.upstream.connect(now, ticks);
        self.outbox.push(ToSender::Syn);
    }

    /// The application sends a message of `payload` bytes, which wait for the end of the handshake.
    pub(super) fn send(&mut self, now: Nanos, payload: u16, ticks: Ticks) {
        self.upstream.send(payload);
        self.transmit(now, ticks);
    }

    /// Closes the connection at once. Nothing more is sent.
    pub(super) fn close(&mut self) {
        self.upstream = Upstream::default();
        self.delayed = None;
        self.compressed_until = NEVER;
        self.ack_scheduled = false;
    }

    /// Processes a packet that has arrived from the sender. `marked` is whether the path has marked
    /// it, provided that it is ECN-capable.
    #[inline]
    pub(super) fn on_packet(&mut self, now: Nanos, packet: ToReceiver, marked: bool, ticks: Ticks) {
        match packet {
            ToReceiver::Syn { timestamp } => {
                if self.arrived.rcv_nxt() == 0 {
                    self.ts_recent = timestamp;
                    self.opened = Some(now);
                    self.outbox.push(ToSender::SynAck { echo: timestamp });
                }
            }
            ToReceiver::Bare => {
                self.establish(now);
                self.transmit(now, ticks);
            }
            ToReceiver::SynAck { timestamp } => {
                if let Some(sent) = self.upstream.accepted() {
                    self.rtt_us = Some((now - sent) / 1_000);
                    self.ts_recent = timestamp;
                }
                self.outbox.push(ToSender::Bare { echo: timestamp });
                self.transmit(now, ticks);
            }
            ToReceiver::Messages { arrived } => {
                let rto = self.rto();
                self.upstream.arrived(now, arrived, rto, ticks);
            }
            ToReceiver::Data {
                segment,
                timestamp,
                echo,
                push,
                ect,
                cwr,
                payload: _,
            } => {
                self.establish(now);
                let ecn = EcnSegment {
                    ect,
                    ce: ect && marked,
                    cwr,
                };
                if segment <= self.rcv_wup {
                    self.ts_recent = self.ts_recent.max(timestamp);
                }
                self.on_data(now, segment, echo, push, ecn, ticks);
            }
        }
    }

    /// Does what is due at a time that [`wake`](Self::wake) named.
    pub(super) fn on_timer(&mut self, now: Nanos, ticks: Ticks) {
        if self.upstream.wake() <= now {
            if self.upstream.is_connecting() {
                self.upstream.connect(now, ticks);
                self.outbox.push(ToSender::Syn);
            } else {
                self.upstream.repeat();
                self.transmit(now, ticks);
            }
        }
        if self.read_due() <= now {
            self.read(now);
        }
        if self.compressed_until <= now {
            self.compressed_until = NEVER;
            if self.compressed_ack > 0 {
                self.acknowledge(now);
            }
        }
        if self.delayed.is_some_and(|(_, at)| at <= now) {
            self.delayed = None;
            if self.ack_scheduled {
                // The sender may have waited for this ACK (`tcp_delack_timer_handler`).
                self.ato = (self.ato * 2).min(self.rto());
                self.acknowledge(now);
            }
        }
    }

    /// Memory on the heap in bytes: blocks and outbox.
    pub(super) fn memory(&self) -> usize {
        self.arrived.memory() + self.outbox.capacity() * size_of::<ToSender>()
    }

    fn establish(&mut self, now: Nanos) {
        if self.rtt_us.is_none() {
            self.rtt_us = self.opened.map(|opened| (now - opened) / 1_000);
        }
    }

    /// The receiver's own retransmission timeout in jiffies, from the handshake alone, since it
    /// sends no data.
    fn rto(&self) -> u64 {
        let rtt = self.rtt_us.unwrap_or_default();
        jiffies(rtt + (2 * rtt).max(RTO_MIN_US))
    }

    #[inline]
    fn on_data(
        &mut self,
        now: Nanos,
        segment: u32,
        echo: u32,
        push: bool,
        ecn: EcnSegment,
        ticks: Ticks,
    ) {
        let next = self.arrived.rcv_nxt();
        if ecn.cwr {
            // The cwnd may be a single segment now (`tcp_ecn_accept_cwr`).
            self.ecn.demand_cwr = false;
            self.ack_now = true;
        }
        if segment < next {
            // A spurious retransmission (`tcp_rcv_spurious_retrans`).
            self.dsack = Some(SackBlock {
                from: segment,
                to: segment + 1,
            });
            self.quick_acks = self.quick_acks.max(QUICK_ACKS);
            self.ato = ATO_MIN;
            self.schedule();
        } else if segment == next {
            self.catch_up(now);
            let drained = self.copied_seq == next;
            self.buffer.measure(milliseconds(now), echo, drained);
            self.event_data_recv(now, push, ecn, ticks);
            let had_gap = self.arrived.has_gap();
            self.arrived.advance();
            // A gap was filled (RFC 5681, section 4.2).
            self.ack_now |= had_gap && !self.arrived.has_gap();
        } else {
            self.data_ecn_check(ecn);
            let block = SackBlock {
                from: segment,
                to: segment + 1,
            };
            if !self.arrived.add(segment) {
                self.dsack = Some(block);
            }
            if self.arrived.full() && self.compressed_ack > 0 {
                // The oldest SACK block is about to be dropped (`tcp_sack_compress_send_ack`).
                self.acknowledge(now);
            }
            self.grow_rcv_wnd(self.held());
            self.buffer.make_room(self.arrived.span());
            self.schedule();
        }
        self.ack_snd_check(now, ticks);
        if segment == next {
            self.deliver(now);
        }
    }

    /// Adapts the delay of ACKs to a segment in order (`tcp_event_data_recv`).
    #[inline]
    fn event_data_recv(&mut self, now: Nanos, push: bool, ecn: EcnSegment, ticks: Ticks) {
        self.schedule();
        self.ack_pushed |= push;
        let tick = ticks.at(now);
        if self.ato == 0 {
            self.quick_acks = self.quick_acks.max(QUICK_ACKS);
            self.ato = ATO_MIN;
        } else {
            let gap = tick - self.lrcvtime;
            if gap <= ATO_MIN / 2 {
                self.ato = self.ato / 2 + ATO_MIN / 2;
            } else if gap < self.ato {
                self.ato = (self.ato / 2 + gap).min(self.rto());
            } else if gap > self.rto() {
                self.quick_acks = self.quick_acks.max(QUICK_ACKS);
            }
        }
        self.lrcvtime = tick;
        self.data_ecn_check(ecn);
        // The segment itself waits to be read.
        self.grow_rcv_wnd(self.held() + 1);
    }

    /// Takes note of a mark, which the following ACKs echo until the sender has answered. The sender
    /// is told without delay, also of what is probably a retransmission (`tcp_data_ecn_check`).
    #[inline]
    fn data_ecn_check(&mut self, EcnSegment { ect, ce, .. }: EcnSegment) {
        let tell = match ect {
            true => ce && !self.ecn.demand_cwr,
            false => self.ecn.seen,
        };
        if tell {
            self.quick_acks = self.quick_acks.max(2);
            self.ato = ATO_MIN;
        }
        self.ecn.seen |= ect;
        self.ecn.demand_cwr |= ce;
    }

    /// Grows the receive window while `held` segments wait to be read or for others; a window that
    /// has grown is announced at once (`tcp_grow_window`).
    #[inline]
    fn grow_rcv_wnd(&mut self, held: u32) {
        if self.buffer.grow(held) {
            self.quick_acks |= 1;
        }
    }

    /// Segments that wait to be read or for a gap to be filled.
    #[inline]
    fn held(&self) -> u32 {
        self.arrived.held() + self.arrived.rcv_nxt() - self.copied_seq
    }

    /// Whether more than one segment is not acknowledged.
    #[inline]
    fn owes(&self) -> bool {
        self.arrived.rcv_nxt() - self.rcv_wup > UNACKED
    }

    fn schedule(&mut self) {
        self.ack_scheduled = true;
    }

    /// Sends the ACK that is due, or sets a timer for it (`__tcp_ack_snd_check`).
    #[inline]
    fn ack_snd_check(&mut self, now: Nanos, ticks: Ticks) {
        let next = self.arrived.rcv_nxt();
        let acks = self.owes() && self.buffer.advances(self.held());
        if acks || self.quick_acks > 0 || self.ack_now {
            return self.acknowledge(now);
        }
        if !self.arrived.has_gap() {
            return self.send_delayed_ack(now, ticks);
        }
        if self.duplicates_at != next {
            self.duplicates_at = next;
            self.dup_ack_counter = 0;
        }
        if self.compressed_ack >= MAX_COMPRESSED {
            return self.acknowledge(now);
        }
        if self.dup_ack_counter < FASTRETRANS_THRESH {
            self.dup_ack_counter += 1;
            return self.acknowledge(now);
        }
        self.compressed_ack += 1;
        if self.compressed_until == NEVER {
            let rtt_us = self.rtt_us.unwrap_or(u64::MAX).min(self.buffer.rtt_us());
            let twentieth = rtt_us * 1_000 / 20;
            self.compressed_until = now + twentieth.min(COMPRESSION);
        }
    }

    /// Sets the timer of a delayed ACK (`tcp_send_delayed_ack`).
    fn send_delayed_ack(&mut self, now: Nanos, ticks: Ticks) {
        let mut ato = self.ato;
        if ato > ATO_MIN {
            // At most half a second, a fifth of a second after a push, or the RTT.
            let mut longest = if self.ack_pushed { ATO_MAX + 1 } else { 125 };
            if let Some(rtt) = self.rtt_us {
                longest = longest.min(jiffies(rtt).max(ATO_MIN));
            }
            ato = ato.min(longest);
        }
        ato = ato.min(ATO_MAX);
        let tick = ticks.at(now);
        let mut meant = tick + ato;
        if let Some((earlier, at)) = self.delayed {
            if earlier <= tick + ato / 4 {
                return self.acknowledge(now);
            }
            if earlier <= meant {
                self.delayed = Some((earlier, at));
                return;
            }
            meant = meant.min(earlier);
        }
        self.delayed = Some((meant, ticks.expiry(now, meant - tick)));
    }

    fn acknowledge(&mut self, now: Nanos) {
        let ack = self.ack(now);
        self.outbox.push(ToSender::Ack(ack));
    }

    /// Sends the messages that wait, each with an ACK.
    #[inline]
    fn transmit(&mut self, now: Nanos, ticks: Ticks) {
        if self.rtt_us.is_none() || !self.upstream.has_unsent() {
            return;
        }
        let rto = self.rto();
        while let Some((number, payload)) = self.upstream.next(now, rto, ticks) {
            let ack = self.ack(now);
            self.outbox.push(ToSender::Message {
                number,
                payload,
                ack,
            });
        }
    }

    /// Makes an ACK, after which none is due.
    fn ack(&mut self, now: Nanos) -> Ack {
        let next = self.arrived.rcv_nxt();
        let mut ack = Ack {
            ack: next,
            timestamp: milliseconds(now),
            echo: self.ts_recent,
            rwnd: self.buffer.announce(self.held(), next - self.rcv_wup),
            ece: self.ecn.demand_cwr,
            ..Ack::default()
        };
        if let Some(block) = self.dsack.take() {
            ack.dsack = true;
            ack.add(block);
        }
        for &block in self.arrived.recent() {
            ack.add(block);
        }
        if self.quick_acks > 0 && self.ack_scheduled {
            self.quick_acks -= 1;
            if self.quick_acks == 0 {
                self.ato = ATO_MIN;
            }
        }
        self.rcv_wup = next;
        self.ack_scheduled = false;
        self.ack_now = false;
        self.ack_pushed = false;
        self.delayed = None;
        self.compressed_ack = 0;
        self.compressed_until = NEVER;
        ack
    }

    /// Accounts for the read that the application did since the last call. It reads data as it
    /// arrives, and then pauses.
    #[inline]
    fn catch_up(&mut self, now: Nanos) {
        if self.copied_seq < self.arrived.rcv_nxt() && self.last_read + self.rest <= now {
            self.take(self.last_read + self.rest);
        }
    }

    /// Hands data in order to the application, unless it pauses.
    #[inline]
    fn deliver(&mut self, now: Nanos) {
        if self.last_read + self.rest <= now {
            self.read(now);
        }
    }

    /// When the application reads next, if that leads to an ACK; otherwise [`NEVER`].
    #[inline]
    fn read_due(&self) -> Nanos {
        if self.acks_on_read() && self.copied_seq < self.arrived.rcv_nxt() {
            self.last_read + self.rest
        } else {
            NEVER
        }
    }

    /// Whether an ACK follows when the application reads everything (`__tcp_cleanup_rbuf`).
    #[inline]
    fn acks_on_read(&self) -> bool {
        self.ack_scheduled && (self.ack_pushed || self.owes())
    }

    /// The application reads everything now.
    fn read(&mut self, now: Nanos) {
        self.take(now);
        if self.acks_on_read() {
            self.acknowledge(now);
        }
    }

    /// Marks everything as read at `now`.
    #[inline]
    fn take(&mut self, now: Nanos) {
        self.last_read = now;
        self.copied_seq = self.arrived.rcv_nxt();
        self.buffer.read(now, self.copied_seq);
    }
}
