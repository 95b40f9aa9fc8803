//! The sending end: a bulk flow's TCP, as Linux 6.18 does it (net/ipv4/tcp_input.c, tcp_output.c, tcp_timer.c).
//!
//! [`on_packet`](Sender::on_packet) follows `tcp_ack`, step by step and in its order: what was delivered, the RTT, what
//! is lost, the window, and then what may be sent. `recovery` holds the states between Open and Loss, `transmit` what
//! leaves and the timers.

mod recovery;
mod transmit;

use cc_ebpf::{AckSample, CaState, CwndState, Totals};

use crate::path::Nanos;

use super::control::{CongestionControl, Control};
use super::delivery::{Delivery, Sample};
use super::pacing::Pacing;
use super::rack::Rack;
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::timer::Ticks;
use super::wire::{Ack, Block, MAX_BLOCKS, MSS, TCP_HEADER, ToReceiver, ToSender, milliseconds};
use super::{FlowTotals, NEVER};

use recovery::Recovery;
use transmit::{Timer, Usage};

/// Segments of the first window (`TCP_INIT_CWND`, RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// Segments that the SYN-ACK's window has room for: 65,535 bytes, unscaled.
const INITIAL_ROOM: u32 = 45;
/// How long the application takes to notice that it is connected and to write.
const FIRST_WRITE: Nanos = 60_000;
/// Time between the first SYNs, jiffies, and how many there are before it doubles (`tcp_syn_linear_timeouts`).
const SYN_TIMEOUT: u64 = 250;
const SYN_LINEAR: u32 = 4;

/// A connection's sending end.
#[derive(Debug)]
pub(super) struct Sender {
    /// What sets the window.
    pub(super) control: Control,
    /// It does so in recovery too.
    rules: bool,
    phase: Phase,
    cwnd: CwndState,
    state: CaState,
    board: Scoreboard,
    rtt: Rtt,
    rack: Rack,
    delivery: Delivery,
    pacing: Pacing,
    recovery: Recovery,
    usage: Usage,
    timer: Timer,
    timer_at: Nanos,
    /// When to try sending again, for pacing.
    resume: Nanos,
    ticks: Ticks,
    /// Segments by which the path is known to reorder, and whether it was seen to (`reordering`, `reord_seen`).
    reordering: u32,
    reordered: bool,
    /// The newest TSval, to echo.
    echo: u32,
    /// The receiver has room for segments before this one (`tcp_wnd_end`).
    room_end: u32,
    /// The SACK blocks of the previous ACK: nothing new in them.
    told: [Block; MAX_BLOCKS],
    totals: Totals,
    segments_sent: u64,
    /// When the last segment left (`lsndtime`).
    last_sent: Nanos,
    probes: u32,
    /// What is to be sent.
    pub(super) outbox: Vec<ToReceiver>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Opening { sent: Nanos, tries: u32 },
    Established,
    Closed,
}

/// What an ACK told (`FLAG_*`, `struct tcp_sacktag_state`).
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// It acknowledged segments cumulatively (`FLAG_SND_UNA_ADVANCED`, `FLAG_DATA_ACKED`: data only moves together).
    advanced: bool,
    /// It newly SACKed some (`FLAG_DATA_SACKED`).
    sacked: bool,
    /// It told of a segment that came twice (`FLAG_DSACKING_ACK`).
    duplicate: bool,
    /// It acknowledged some that had been retransmitted (`FLAG_RETRANS_DATA_ACKED`).
    retransmitted: bool,
    /// It acknowledged or SACKed an original that was sent before the present recovery began (`FLAG_ORIG_SACK_ACKED`).
    original: bool,
    /// The timer is to be set (`FLAG_SET_XMIT_TIMER`).
    set_timer: bool,
    /// Retransmissions turned out lost (`FLAG_LOST_RETRANS`).
    lost_retransmission: bool,
    /// TSecr.
    echo: u32,
    /// When the first and the last of the originals that it SACKed were sent.
    sacked_sent: Option<(Nanos, Nanos)>,
    /// The lowest original that it delivered.
    lowest: Option<u32>,
    /// The RTT that it measured, µs (`rate_sample.rtt_us`).
    rtt_us: u32,
}

impl Sender {
    /// Not yet connected.
    pub(super) fn new(control: Control, ticks: Ticks) -> Self {
        Self {
            rules: control.sets_cwnd_in_recovery(),
            control,
            phase: Phase::Idle,
            cwnd: CwndState {
                cwnd: INITIAL_WINDOW,
                ssthresh: recovery::INFINITE,
                cwnd_cnt: 0,
                clamp: u32::MAX,
            },
            state: CaState::Open,
            board: Scoreboard::new(),
            rtt: Rtt::new(),
            rack: Rack::new(),
            delivery: Delivery::new(),
            pacing: Pacing::new(),
            recovery: Recovery::new(),
            usage: Usage::default(),
            timer: Timer::None,
            timer_at: NEVER,
            resume: NEVER,
            ticks,
            reordering: recovery::REORDERING,
            reordered: false,
            echo: 0,
            room_end: INITIAL_ROOM,
            told: [Block::default(); MAX_BLOCKS],
            totals: Totals::default(),
            segments_sent: 0,
            last_sent: 0,
            probes: 0,
            outbox: Vec::with_capacity(64),
        }
    }

    /// Opens the connection.
    pub(super) fn open(&mut self, now: Nanos) {
        self.send_syn(now, 0);
    }

    /// Ends it without a word.
    pub(super) fn close(&mut self) {
        self.phase = Phase::Closed;
        self.timer = Timer::None;
        self.timer_at = NEVER;
        self.resume = NEVER;
    }

    /// When [`on_timer`](Self::on_timer) is to be called.
    #[inline]
    pub(super) fn wake(&self) -> Nanos {
        self.timer_at.min(self.resume)
    }

    /// A packet arrives.
    #[inline]
    pub(super) fn on_packet(&mut self, now: Nanos, packet: ToSender) {
        match (packet, self.phase) {
            (ToSender::Ack(ack), Phase::Established) => self.on_ack(now, &ack),
            (ToSender::SynAck { echo }, Phase::Opening { sent, tries }) => {
                self.establish(now, echo, sent, tries);
            }
            // Its answer to our answer to its SYN-ACK was lost.
            (ToSender::SynAck { .. }, Phase::Established) => self.outbox.push(ToReceiver::Bare),
            _ => {}
        }
    }

    /// A time of [`wake`](Self::wake) has come.
    pub(super) fn on_timer(&mut self, now: Nanos) {
        if self.timer_at <= now {
            self.timer_at = NEVER;
            match std::mem::replace(&mut self.timer, Timer::None) {
                Timer::None => {}
                Timer::Syn => {
                    if let Phase::Opening { tries, .. } = self.phase {
                        self.send_syn(now, tries + 1);
                    }
                }
                Timer::Retransmission => self.on_timeout(now),
                Timer::LossProbe => self.send_probe(now),
                Timer::Reordering => self.on_reordering_timeout(now),
            }
        }
        if self.resume <= now {
            self.resume = NEVER;
            if self.board.lost() > self.board.retransmitted() {
                self.retransmit_lost(now);
            }
            self.transmit(now, false);
        }
    }

    /// The connection's figures.
    pub(super) fn totals(&self, payload_delivered: u64) -> FlowTotals {
        FlowTotals {
            established: matches!(self.phase, Phase::Established),
            bytes_sent: self.totals.bytes_sent,
            bytes_acked: u64::from(self.board.una()) * u64::from(MSS),
            bytes_retransmitted: self.totals.bytes_retrans,
            retransmissions: self.totals.segs_retrans.into(),
            lost: self.board.losses(),
            timeouts: self.totals.rtos,
            probes: self.probes,
            acks: self.totals.segs_in.into(),
            cwnd: self.cwnd.cwnd,
            ssthresh: self.cwnd.ssthresh,
            in_flight: self.board.in_flight(),
            state: self.state,
            srtt_us: self.rtt.smoothed_us(),
            rttvar_us: self.rtt.deviation_us(),
            min_rtt_us: match self.rtt.min_us() {
                u32::MAX => 0,
                min => min,
            },
            payload_delivered,
            delivered: self.delivery.total().into(),
            delays: 0,
            delay_sum_ns: 0,
        }
    }

    /// Bytes of memory held beside the structure's own.
    pub(super) fn memory(&self) -> usize {
        self.board.memory() + self.outbox.capacity() * size_of::<ToReceiver>()
    }

    fn send_syn(&mut self, now: Nanos, tries: u32) {
        self.phase = Phase::Opening { sent: now, tries };
        self.outbox.push(ToReceiver::Syn {
            timestamp: milliseconds(now),
        });
        let doublings = tries.saturating_sub(SYN_LINEAR).min(7);
        self.set_timer(now, Timer::Syn, SYN_TIMEOUT << doublings);
    }

    fn establish(&mut self, now: Nanos, echo: u32, sent: Nanos, tries: u32) {
        self.phase = Phase::Established;
        self.timer = Timer::None;
        self.timer_at = NEVER;
        let rtt_us = match tries {
            0 => microseconds(now - sent),
            _ => milliseconds(now).saturating_sub(echo).max(1) * 1_000,
        };
        self.rtt.sample(now, rtt_us, rtt_us, 0, 0);
        // A second lost SYN is a sign of congestion (`tcp_init_transfer`).
        if tries > 1 {
            self.cwnd.cwnd = 1;
        }
        self.control.init(now, &mut self.cwnd, rtt_us);
        self.pace();
        self.outbox.push(ToReceiver::Bare);
        self.resume = now + FIRST_WRITE;
    }

    /// `tcp_ack`.
    #[inline]
    fn on_ack(&mut self, now: Nanos, ack: &Ack) {
        self.totals.segs_in = self.totals.segs_in.wrapping_add(1);
        let prior_una = self.board.una();
        if ack.ack < prior_una || ack.ack > self.board.next() {
            return;
        }
        self.echo = ack.timestamp;
        self.room_end = self.room_end.max(ack.ack + ack.window);
        let prior_in_flight = self.board.in_flight();
        let prior_delivered = self.delivery.total();
        let prior_losses = self.board.losses();
        let prior_sacked_end = self.board.sacked_end();
        let mut sample = Sample::default();
        let mut seen = Seen {
            advanced: ack.ack > prior_una,
            echo: ack.echo,
            ..Seen::default()
        };
        if seen.advanced {
            self.recovery.retransmits = 0;
        }
        if ack.count > 0 {
            self.read_blocks(now, ack, &mut seen, &mut sample);
        } else {
            self.told = [Block::default(); MAX_BLOCKS];
        }
        if self.board.outstanding() == 0 {
            return;
        }
        self.acknowledge(now, ack.ack, &mut seen, &mut sample, prior_sacked_end);
        self.rack
            .adapt(sample.prior_delivered, self.delivery.total());
        self.recovery.end_probe(ack.ack);
        let dubious = !seen.advanced || seen.sacked || seen.duplicate;
        let mut then = recovery::Then::Nothing;
        if dubious || self.state != CaState::Open {
            then = self.alert(now, prior_una, &mut seen);
        }
        if seen.set_timer {
            self.set_transmit_timer(now);
        }
        let delivered = self.delivery.total() - prior_delivered;
        let lost = (self.board.losses() - prior_losses) as u32;
        let mut rate = self
            .delivery
            .finish(&sample, now, delivered > 0, self.rtt.min_us());
        rate.prior_in_flight = prior_in_flight;
        rate.una = self.board.una().into();
        rate.next = self.board.next().into();
        rate.last_sent = self.last_sent;
        rate.next_send = self.pacing.last();
        self.adjust_cwnd(now, &seen, delivered, lost, &rate);
        self.follow(now, then);
        self.transmit(now, false);
    }

    /// `tcp_sacktag_write_queue`.
    fn read_blocks(&mut self, now: Nanos, ack: &Ack, seen: &mut Seen, sample: &mut Sample) {
        let mut blocks = ack.blocks();
        if ack.duplicate
            && let [first, rest @ ..] = blocks
        {
            self.read_duplicate(*first, seen);
            blocks = rest;
        }
        let (una, next) = (self.board.una(), self.board.next());
        let mut sorted = [Block::default(); MAX_BLOCKS];
        let sorted = &mut sorted[..blocks.len()];
        sorted.copy_from_slice(blocks);
        sorted.sort_unstable_by_key(|block| block.from);
        let told = self.told;
        for block in sorted.iter() {
            let mut number = block.from.max(una);
            while number < block.to.min(next) {
                // What the previous ACK told already is most of it.
                let known = told
                    .iter()
                    .find(|told| told.from <= number && number < told.to);
                match known {
                    Some(known) => number = known.to,
                    None => {
                        self.sack(now, number, seen, sample);
                        number += 1;
                    }
                }
            }
        }
        self.told = [Block::default(); MAX_BLOCKS];
        self.told[..sorted.len()].copy_from_slice(sorted);
    }

    /// `tcp_sacktag_one`.
    fn sack(&mut self, now: Nanos, number: u32, seen: &mut Seen, sample: &mut Sample) {
        let sacked_end = self.board.sacked_end();
        let Some(segment) = self.board.sack(number) else {
            return;
        };
        self.rack.advance(now, number, &segment, self.rtt.min_us());
        if !segment.flags.ever_retransmitted {
            if number < sacked_end {
                seen.lowest = Some(seen.lowest.map_or(number, |lowest| lowest.min(number)));
            }
            seen.original |= number < self.recovery.high;
            let first = seen.sacked_sent.map_or(segment.sent, |(first, _)| first);
            seen.sacked_sent = Some((first, segment.sent));
        }
        seen.sacked = true;
        self.delivery.deliver(sample, number, &segment);
    }

    /// `tcp_check_dsack`.
    fn read_duplicate(&mut self, block: Block, seen: &mut Seen) {
        seen.duplicate = true;
        if self.reordered {
            self.rack.duplicate();
        }
        let (una, next) = (self.board.una(), self.board.next());
        for number in block.from..block.to.min(next) {
            let forgotten = number < una;
            if forgotten || self.board.get(number).flags.ever_retransmitted {
                self.recovery.in_vain(number);
            }
            if !forgotten {
                self.board.duplicate(number);
            }
        }
    }

    /// `tcp_clean_rtx_queue`.
    #[inline]
    fn acknowledge(
        &mut self,
        now: Nanos,
        ack: u32,
        seen: &mut Seen,
        sample: &mut Sample,
        prior_sacked_end: u32,
    ) {
        let min_rtt_us = self.rtt.min_us();
        let mut originals: Option<(Nanos, Nanos)> = None;
        let mut lowest = None;
        while self.board.una() < ack {
            let number = self.board.una();
            let segment = self.board.pop();
            let flags = segment.flags;
            if flags.ever_retransmitted {
                seen.retransmitted = true;
            } else if !flags.sacked {
                let first = originals.map_or(segment.sent, |(first, _)| first);
                originals = Some((first, segment.sent));
                lowest = lowest.or(Some(number));
                seen.original |= number < self.recovery.high;
            }
            if !flags.sacked {
                // An echo from before the retransmission: the original was delivered (`tcp_skb_spurious_retrans`).
                let spurious = flags.ever_retransmitted && seen.echo < milliseconds(segment.sent);
                if !spurious {
                    self.rack.advance(now, number, &segment, min_rtt_us);
                }
                self.delivery.deliver(sample, number, &segment);
            }
        }
        let measured = self.measure_rtt(now, seen, originals);
        if seen.advanced {
            seen.set_timer = true;
            // An original beyond the gaps filled one: reordering.
            if let Some(low) = lowest.filter(|&low| low < prior_sacked_end) {
                self.note_reordering(low);
            }
        } else if measured && let Some((first, _)) = seen.sacked_sent {
            // Not for data sent after the first segment, or a timeout would be put off for ever.
            seen.set_timer = first < self.board.get(self.board.una()).sent;
        }
        if let Some(low) = seen.lowest {
            self.note_reordering(low);
        }
    }

    /// `tcp_ack_update_rtt`.
    #[inline]
    fn measure_rtt(
        &mut self,
        now: Nanos,
        seen: &mut Seen,
        originals: Option<(Nanos, Nanos)>,
    ) -> bool {
        let since = |(first, last): (Nanos, Nanos)| {
            let (first, last) = (microseconds(now - first), microseconds(now - last));
            (first, last)
        };
        let acked = originals.filter(|_| !seen.retransmitted).map(since);
        let sacked = seen.sacked_sent.map(since);
        let first = acked.or(sacked).map(|(first, _)| first);
        let last = sacked.or(acked).map(|(_, last)| last);
        let (first, last) = match (first, last) {
            (Some(first), Some(last)) => (first, last),
            _ if seen.advanced => {
                let rtt = milliseconds(now).saturating_sub(seen.echo).max(1) * 1_000;
                (rtt, rtt)
            }
            _ => return false,
        };
        seen.rtt_us = last.max(1);
        let (una, next) = (self.board.una(), self.board.next());
        self.rtt.sample(now, first, last, una, next);
        true
    }

    /// `tcp_check_sack_reordering`.
    fn note_reordering(&mut self, low: u32) {
        let metric = self.board.sacked_end().saturating_sub(low);
        if metric == 0 {
            return;
        }
        if metric > self.reordering {
            self.reordering = metric.min(recovery::MAX_REORDERING);
        }
        self.reordered = true;
    }

    /// `tcp_cong_control`.
    #[inline]
    fn adjust_cwnd(
        &mut self,
        now: Nanos,
        seen: &Seen,
        delivered: u32,
        lost: u32,
        rate: &super::control::RateSample,
    ) {
        let ack = AckSample {
            now_ns: now,
            rtt_us: seen.rtt_us,
            srtt_us: self.rtt.smoothed_us(),
            rttvar_us: self.rtt.deviation_us(),
            mss: MSS,
            header_len: TCP_HEADER,
            in_flight: self.board.in_flight(),
            acked: delivered,
            lost,
            delivered: rate.delivered.unwrap_or_default(),
            interval_us: rate.interval_us,
            retransmits: self.recovery.retransmits,
            cwnd_limited: self.usage.is_limited(&self.cwnd),
            ca_state: self.state,
            totals: Totals {
                lost: self.board.losses() as u32,
                ..self.totals
            },
        };
        if self.rules {
            self.control.on_ack(&mut self.cwnd, &ack, rate);
        } else if self.state.is_reducing() {
            self.control.on_measurement(&mut self.cwnd, &ack, rate);
            self.reduce_cwnd(delivered, lost, seen.advanced);
        } else if self.may_raise(seen) {
            self.control.on_ack(&mut self.cwnd, &ack, rate);
        } else {
            self.control.on_measurement(&mut self.cwnd, &ack, rate);
        }
        self.cwnd.cwnd = self.cwnd.cwnd.clamp(1, self.cwnd.clamp);
        self.pace();
    }

    /// `tcp_may_raise_cwnd`.
    #[inline]
    fn may_raise(&self, seen: &Seen) -> bool {
        seen.advanced || (seen.sacked && self.reordering > recovery::REORDERING)
    }

    /// Takes the pacing rate over, or makes one to size bursts by.
    #[inline]
    fn pace(&mut self) {
        match self.control.pacing_rate() {
            Some(rate) => self.pacing.space(rate),
            None => self.pacing.follow(
                self.cwnd.cwnd,
                self.cwnd.ssthresh,
                self.board.outstanding(),
                self.rtt.smoothed_us(),
            ),
        }
    }

    fn set_state(&mut self, now: Nanos, state: CaState) {
        self.control.on_state(now, &mut self.cwnd, state);
        self.state = state;
    }
}

#[inline]
fn microseconds(time: Nanos) -> u32 {
    u32::try_from(time / 1_000).unwrap_or(u32::MAX)
}
