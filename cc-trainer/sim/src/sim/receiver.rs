//! The receiving end: what it acknowledges, and when (net/ipv4/tcp_input.c). Its application reads what comes at once,
//! with a rest after each read. On a fast link that is when it acknowledges:
//! once the window has stopped growing, what waits to be read keeps it from being announced again.

mod arrived;
mod buffer;

use crate::path::Nanos;

use arrived::Arrived;
use buffer::ReceiveBuffer;

use super::NEVER;
use super::rtt::RTO_MIN_US;
use super::timer::{Ticks, jiffies};
use super::wire::{Ack, SackBlock, ToReceiver, ToSender, milliseconds};

/// Least delay of an ACK, jiffies: 40 ms (`TCP_ATO_MIN`, `TCP_DELACK_MIN`).
const ATO_MIN: u64 = 10;
/// Longest delay of an ACK, jiffies: a tick less than the sender's least timeout (`tcp_delack_max`).
const ATO_MAX: u64 = 49;
/// ACKs that are not delayed at the start, after a long pause and after a dsack (`TCP_MAX_QUICKACKS`).
const QUICK_ACKS: u32 = 16;
/// Segments that may come before an ACK is sent at once: the second one exceeds it (`rcv_mss`).
const UNACKED: u32 = 1;
/// ACKs for segments out of order that are sent at once before they are compressed (`TCP_FASTRETRANS_THRESH`).
const FASTRETRANS_THRESH: u32 = 3;
/// ACKs that one ACK may stand for (`tcp_comp_sack_nr`).
const MAX_COMPRESSED: u32 = 44;
/// Longest time that an ACK waits for others, ns (`tcp_comp_sack_delay_ns`).
const COMPRESSION: Nanos = 1_000_000;

/// A connection's receiving end.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    arrived: Arrived,
    buffer: ReceiveBuffer,
    /// Everything before this was acknowledged (`rcv_wup`).
    rcv_wup: u32,
    /// TSval to echo: of the segment that the next ACK is for first (`ts_recent`).
    ts_recent: u32,
    /// Segments that came twice, to be told (RFC 2883).
    dsack: Option<SackBlock>,

    /// When the SYN was answered.
    opened: Option<Nanos>,
    /// RTT of the handshake, µs.
    rtt_us: Option<u64>,

    /// An ACK is due, at once or later (`ICSK_ACK_SCHED`).
    ack_scheduled: bool,
    /// It is due at once (`ICSK_ACK_NOW`).
    ack_now: bool,
    /// It is due when the application has read all (`ICSK_ACK_PUSHED`).
    ack_pushed: bool,
    /// ACKs that will still be sent without delay.
    quick_acks: u32,
    /// Delay of an ACK, jiffies; 0 before the first data (`icsk_ack.ato`).
    ato: u64,
    /// Tick of the newest data in order (`lrcvtime`).
    lrcvtime: u64,
    /// Tick that the delayed ACK is meant for, and when its timer fires.
    delayed: Option<(u64, Nanos)>,

    /// ACKs of segments out of order since the last one in order, at most [`FASTRETRANS_THRESH`] (`dup_ack_counter`).
    dup_ack_counter: u32,
    duplicates_at: u32,
    /// ACKs held back, and until when.
    compressed_ack: u32,
    compressed_until: Nanos,

    /// How long the application rests after a read.
    pub(super) rest: Nanos,
    /// When it read last, and everything before which segment.
    last_read: Nanos,
    copied_seq: u32,

    /// What is to be sent.
    pub(super) outbox: Vec<ToSender>,
}

impl Receiver {
    /// Listens.
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
            rest,
            last_read: 0,
            copied_seq: 0,
            outbox: Vec::with_capacity(4),
        }
    }

    /// Segments received in order.
    pub(super) fn in_order(&self) -> u32 {
        self.arrived.rcv_nxt()
    }

    /// When [`on_timer`](Self::on_timer) is to be called.
    #[inline]
    pub(super) fn wake(&self) -> Nanos {
        let delayed = self.delayed.map_or(NEVER, |(_, at)| at);
        delayed.min(self.compressed_until).min(self.read_due())
    }

    /// A packet arrives.
    #[inline]
    pub(super) fn on_packet(&mut self, now: Nanos, packet: ToReceiver, ticks: Ticks) {
        match packet {
            ToReceiver::Syn { timestamp } => {
                if self.arrived.rcv_nxt() == 0 {
                    self.ts_recent = timestamp;
                    self.opened = Some(now);
                    self.outbox.push(ToSender::SynAck { echo: timestamp });
                }
            }
            ToReceiver::Bare => self.establish(now),
            ToReceiver::Data {
                segment,
                timestamp,
                echo,
                push,
            } => {
                self.establish(now);
                if segment <= self.rcv_wup {
                    self.ts_recent = self.ts_recent.max(timestamp);
                }
                self.on_data(now, segment, echo, push, ticks);
            }
        }
    }

    /// A time of [`wake`](Self::wake) has come.
    pub(super) fn on_timer(&mut self, now: Nanos) {
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
                // The sender waited for it.
                self.ato = (self.ato * 2).min(self.rto());
                self.acknowledge(now);
            }
        }
    }

    /// Bytes of memory held beside the structure's own.
    pub(super) fn memory(&self) -> usize {
        self.arrived.memory() + self.outbox.capacity() * size_of::<ToSender>()
    }

    fn establish(&mut self, now: Nanos) {
        if self.rtt_us.is_none() {
            self.rtt_us = self.opened.map(|opened| (now - opened) / 1_000);
        }
    }

    /// Its own retransmission timeout, jiffies: from the handshake alone, as it sends no data.
    fn rto(&self) -> u64 {
        let rtt = self.rtt_us.unwrap_or_default();
        jiffies(rtt + (2 * rtt).max(RTO_MIN_US))
    }

    #[inline]
    fn on_data(&mut self, now: Nanos, segment: u32, echo: u32, push: bool, ticks: Ticks) {
        let next = self.arrived.rcv_nxt();
        if segment < next {
            // Retransmitted in vain (`tcp_rcv_spurious_retrans`).
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
            self.event_data_recv(now, push, ticks);
            let had_gap = self.arrived.has_gap();
            self.arrived.advance();
            // A gap is filled (RFC 5681, 4.2).
            self.ack_now |= had_gap && !self.arrived.has_gap();
        } else {
            let block = SackBlock {
                from: segment,
                to: segment + 1,
            };
            if !self.arrived.add(segment) {
                self.dsack = Some(block);
            }
            if self.arrived.full() && self.compressed_ack > 0 {
                // Its oldest block is about to be forgotten (`tcp_sack_compress_send_ack`).
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

    /// What `tcp_event_data_recv` learns from a segment in order.
    #[inline]
    fn event_data_recv(&mut self, now: Nanos, push: bool, ticks: Ticks) {
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
        // It waits to be read itself.
        self.grow_rcv_wnd(self.held() + 1);
    }

    /// `held` segments wait to be read or for others. A window that grows is told at once (`tcp_grow_window`).
    #[inline]
    fn grow_rcv_wnd(&mut self, held: u32) {
        if self.buffer.grow(held) {
            self.quick_acks |= 1;
        }
    }

    /// Segments that wait to be read or for others.
    #[inline]
    fn held(&self) -> u32 {
        self.arrived.held() + self.arrived.rcv_nxt() - self.copied_seq
    }

    /// More than one segment is not acknowledged.
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

    /// `tcp_send_delayed_ack`.
    fn send_delayed_ack(&mut self, now: Nanos, ticks: Ticks) {
        let mut ato = self.ato;
        if ato > ATO_MIN {
            // Half a second, or a fifth after a push, or the RTT.
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
        let next = self.arrived.rcv_nxt();
        let mut ack = Ack {
            ack: next,
            timestamp: milliseconds(now),
            echo: self.ts_recent,
            rwnd: self.buffer.announce(self.held(), next - self.rcv_wup),
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
        self.outbox.push(ToSender::Ack(ack));
    }

    /// The application has read what it did since it was last asked about. It reads what comes at once, and then
    /// rests.
    #[inline]
    fn catch_up(&mut self, now: Nanos) {
        if self.copied_seq < self.arrived.rcv_nxt() && self.last_read + self.rest <= now {
            self.take(self.last_read + self.rest);
        }
    }

    /// Data in order is there for the application.
    #[inline]
    fn deliver(&mut self, now: Nanos) {
        if self.last_read + self.rest <= now {
            self.read(now);
        }
    }

    /// When the application reads, as far as that leads to an ACK.
    #[inline]
    fn read_due(&self) -> Nanos {
        if self.acks_on_read() && self.copied_seq < self.arrived.rcv_nxt() {
            self.last_read + self.rest
        } else {
            NEVER
        }
    }

    /// Reading everything leads to an ACK (`__tcp_cleanup_rbuf`).
    #[inline]
    fn acks_on_read(&self) -> bool {
        self.ack_scheduled && (self.ack_pushed || self.owes())
    }

    /// The application reads now.
    fn read(&mut self, now: Nanos) {
        self.take(now);
        if self.acks_on_read() {
            self.acknowledge(now);
        }
    }

    /// The application takes all there is.
    #[inline]
    fn take(&mut self, now: Nanos) {
        self.last_read = now;
        self.copied_seq = self.arrived.rcv_nxt();
        self.buffer.read(now, self.copied_seq);
    }
}
