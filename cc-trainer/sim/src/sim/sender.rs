//! The sending end of a connection: TCP as Linux 6.18 implements it (net/ipv4/tcp_input.c,
//! tcp_output.c and tcp_timer.c).
//!
//! [`Sender::on_packet`] follows `tcp_ack` in its order: what the ACK delivered, the RTT, what is
//! lost, the cwnd, and then what may be sent. `recovery` has the states from Disorder to Loss,
//! `transmit` what leaves the host and the timers. Fields and functions have the kernel's names
//! where the kernel has one.

mod recovery;
mod small_queue;
mod transmit;
mod written;

use cc_ebpf::{AckSample, CaState, CwndState, Totals};

use crate::path::Nanos;

use super::control::{Acked, CongestionControl, Control, LostSegment};
use super::delivery::{DeliveryRate, RateSampleDraft};
use super::pacing::Pacing;
use super::rack::Rack;
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::timer::Ticks;
use super::wire::{
    Ack, MAX_BLOCKS, MSS, SackBlock, TCP_HEADER, ToReceiver, ToSender, milliseconds,
};
use super::{FlowTotals, NEVER};

use recovery::{Recovery, Rexmit};
use small_queue::SmallQueue;
use transmit::{CwndUsage, Timer};
use written::Written;

/// Initial cwnd in segments (`TCP_INIT_CWND`, RFC 6928).
const INIT_CWND: u32 = 10;
/// Segments that fit into the receive window of the SYN-ACK: 65,535 bytes, unscaled.
const INITIAL_SND_WND: u32 = 45;
/// Time from the end of the handshake to the application's first write, ns.
pub(super) const FIRST_WRITE: Nanos = 60_000;
/// Timeout of the first SYNs in jiffies, and the number of SYNs before it doubles
/// (`tcp_syn_linear_timeouts`).
const SYN_TIMEOUT: u64 = 250;
const SYN_LINEAR: u32 = 4;

/// The sending end of a connection, with its congestion control.
#[derive(Debug)]
pub(super) struct Sender {
    /// The congestion control of this connection.
    pub(super) control: Control,
    /// Whether the control sets the cwnd in recovery too (`tcp_congestion_ops.cong_control`); if
    /// not, the sender does so by proportional rate reduction.
    has_cong_control: bool,
    sk_state: SkState,
    cwnd: CwndState,
    ca_state: CaState,
    board: Scoreboard,
    rtt: Rtt,
    rack: Rack,
    delivery: DeliveryRate,
    pacing: Pacing,
    recovery: Recovery,
    usage: CwndUsage,
    /// The purpose of the connection's timer, and when it fires (`icsk_pending`).
    timer: Timer,
    timer_at: Nanos,
    /// When pacing lets the sender send again (`pacing_timer`); [`NEVER`] when it does not wait for
    /// that.
    pacing_timer_at: Nanos,
    ticks: Ticks,
    /// Reordering distance of the path in segments (`reordering`), and whether any reordering was
    /// seen (`reord_seen`).
    reordering: u32,
    reord_seen: bool,
    /// The newest TSval received, which the next segment echoes (`ts_recent`).
    ts_recent: u32,
    /// The first segment beyond the receive window (`tcp_wnd_end`).
    snd_wnd_end: u32,
    /// The receive window that the newest ACK announced, in segments (`snd_wnd`).
    snd_wnd: u32,
    /// The SACK blocks of the previous ACK (`recv_sack_cache`): a block that covers the same
    /// segments again brings nothing new.
    recv_sack_cache: [SackBlock; MAX_BLOCKS],
    ecn: Ecn,
    totals: Totals,
    segments_sent: u64,
    /// Time at which the last segment left (`lsndtime`).
    lsndtime: Nanos,
    /// Number of tail loss probes sent.
    probes: u32,
    /// Bytes that were acknowledged cumulatively (`bytes_acked`).
    bytes_acked: u64,
    /// What the application has written; `None` for a bulk flow, which always has data.
    written: Option<Written>,
    /// Messages of the far end that have arrived, and those of them that the application has not
    /// taken.
    messages: u32,
    untaken: u32,
    /// What waits in the host's own queue; `None` where packets leave the host as they are sent.
    host: Option<Box<SmallQueue>>,
    /// Packets that wait to be offered to the path.
    pub(super) outbox: Vec<ToReceiver>,
}

/// Explicit congestion notification (RFC 3168, `tcp_sock.ecn_flags`).
#[derive(Clone, Copy, Debug, Default)]
struct Ecn {
    /// Whether the handshake has negotiated it (`TCP_ECN_OK`).
    enabled: bool,
    /// Whether the next new segment tells the receiver that its echo is answered
    /// (`TCP_ECN_QUEUE_CWR`).
    queue_cwr: bool,
}

/// The state of the connection (`sk_state`), as far as its sender needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkState {
    /// The flow has not started.
    Idle,
    /// A SYN waits for its answer (`TCP_SYN_SENT`).
    SynSent {
        /// When it was last sent, ns.
        sent: Nanos,
        /// Number of SYNs before it that were not answered in time.
        tries: u32,
    },
    /// A SYN-ACK waits for its answer (`TCP_SYN_RECV`).
    SynReceived {
        /// When it was last sent, ns.
        sent: Nanos,
        /// Number of SYN-ACKs before it that were not answered in time.
        tries: u32,
    },
    /// The handshake is complete (`TCP_ESTABLISHED`).
    Established,
    /// The flow has stopped and sends nothing more.
    Closed,
}

/// What processing an ACK found out: the kernel's `FLAG_*` and `struct tcp_sacktag_state`.
#[derive(Clone, Copy, Debug, Default)]
struct AckFlags {
    /// The ACK acknowledged segments cumulatively (`FLAG_SND_UNA_ADVANCED`, which is also
    /// `FLAG_DATA_ACKED` here, since nothing but data has sequence numbers).
    snd_una_advanced: bool,
    /// It newly SACKed segments (`FLAG_DATA_SACKED`).
    data_sacked: bool,
    /// It reported a segment that arrived twice (`FLAG_DSACKING_ACK`, RFC 2883).
    dsacking_ack: bool,
    /// That segment was a loss probe (`FLAG_DSACK_TLP`).
    dsack_tlp: bool,
    /// It acknowledged segments that had been retransmitted (`FLAG_RETRANS_DATA_ACKED`).
    retrans_data_acked: bool,
    /// It acknowledged or SACKed an original that was sent before the present recovery began
    /// (`FLAG_ORIG_SACK_ACKED`).
    orig_sack_acked: bool,
    /// The retransmission timer or the loss probe has to be set again (`FLAG_SET_XMIT_TIMER`).
    set_xmit_timer: bool,
    /// Loss detection found retransmissions lost (`FLAG_LOST_RETRANS`).
    lost_retrans: bool,
    /// It echoes a congestion-experienced mark (`FLAG_ECE`).
    ece: bool,
    /// TSecr of the ACK, ms.
    rcv_tsecr: u32,
    /// Times at which the first and the last of the newly SACKed originals were sent
    /// (`first_sackt`, `last_sackt`).
    sackt: Option<(Nanos, Nanos)>,
    /// The lowest original that it newly SACKed below the highest one SACKed before (`reord`).
    reord: Option<u32>,
    /// The RTT that the ACK measured, µs; 0 for none (`rate_sample.rtt_us`).
    rtt_us: u32,
}

impl Sender {
    /// Creates the sending end of a connection that is not open yet.
    pub(super) fn new(control: Control, ticks: Ticks) -> Self {
        Self {
            has_cong_control: control.sets_cwnd_in_recovery(),
            control,
            sk_state: SkState::Idle,
            cwnd: CwndState {
                cwnd: INIT_CWND,
                ssthresh: recovery::INFINITE_SSTHRESH,
                cwnd_cnt: 0,
                clamp: u32::MAX,
            },
            ca_state: CaState::Open,
            board: Scoreboard::new(),
            rtt: Rtt::new(),
            rack: Rack::new(),
            delivery: DeliveryRate::new(),
            pacing: Pacing::new(),
            recovery: Recovery::new(),
            usage: CwndUsage::default(),
            timer: Timer::None,
            timer_at: NEVER,
            pacing_timer_at: NEVER,
            ticks,
            reordering: recovery::REORDERING,
            reord_seen: false,
            ts_recent: 0,
            snd_wnd_end: INITIAL_SND_WND,
            snd_wnd: INITIAL_SND_WND,
            recv_sack_cache: [SackBlock::default(); MAX_BLOCKS],
            ecn: Ecn::default(),
            totals: Totals::default(),
            segments_sent: 0,
            lsndtime: 0,
            probes: 0,
            bytes_acked: 0,
            written: None,
            messages: 0,
            untaken: 0,
            host: None,
            outbox: Vec::with_capacity(64),
        }
    }

    /// Makes the sender one whose application writes, instead of a bulk flow's.
    #[must_use]
    pub(super) fn of_application(mut self) -> Self {
        self.written = Some(Written::default());
        self
    }

    /// Makes the connection one that negotiates ECN.
    #[must_use]
    pub(super) fn with_ecn(mut self) -> Self {
        self.ecn.enabled = true;
        self
    }

    /// Makes the sender one whose host has a queue of its own. It is told of every segment of data
    /// that leaves the host ([`on_departure`](Self::on_departure)).
    #[must_use]
    pub(super) fn behind_queue(mut self) -> Self {
        self.host = Some(Box::default());
        self
    }

    /// Opens the connection by sending a SYN.
    pub(super) fn open(&mut self, now: Nanos) {
        self.send_syn(now, 0);
    }

    /// Number of segments retransmitted (`total_retrans`).
    pub(super) fn retransmissions(&self) -> u32 {
        self.totals.segs_retrans
    }

    /// Whether everything that was sent is acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.board.packets_out() == 0
    }

    /// Whether there are data that the application has written and that are not acknowledged.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.is_established() && (self.board.packets_out() > 0 || self.unsent_segments() > 0)
    }

    /// Whether the handshake is complete and the connection is not closed.
    #[inline]
    pub(super) fn is_established(&self) -> bool {
        self.sk_state == SkState::Established
    }

    /// Whether the connection was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.sk_state == SkState::Closed
    }

    /// Returns the payload of a segment that is not acknowledged cumulatively, bytes.
    #[inline]
    pub(super) fn payload(&self, segment: u32) -> u64 {
        self.board.get(segment).payload.into()
    }

    /// Takes the far end's messages that have arrived, and returns their number.
    #[inline]
    pub(super) fn take_messages(&mut self) -> u32 {
        std::mem::take(&mut self.untaken)
    }

    /// Closes the connection at once. Nothing is sent, and later packets are ignored.
    pub(super) fn close(&mut self) {
        self.sk_state = SkState::Closed;
        self.timer = Timer::None;
        self.timer_at = NEVER;
        self.pacing_timer_at = NEVER;
    }

    /// The time at which [`on_timer`](Self::on_timer) has to be called, or [`NEVER`].
    #[inline]
    pub(super) fn wake(&self) -> Nanos {
        self.timer_at.min(self.pacing_timer_at)
    }

    /// Processes a packet that has arrived from the receiver.
    #[inline]
    pub(super) fn on_packet(&mut self, now: Nanos, packet: ToSender) {
        match (packet, self.sk_state) {
            (ToSender::Ack(ack), SkState::Established) => self.on_ack(now, &ack),
            (ToSender::SynAck { echo }, SkState::SynSent { sent, tries }) => {
                self.establish(now, echo, sent, tries);
            }
            // The ACK that ended the handshake was lost.
            (ToSender::SynAck { .. }, SkState::Established) => self.outbox.push(ToReceiver::Bare),
            (ToSender::Syn, SkState::Idle) => self.send_syn_ack(now, 0),
            (ToSender::Syn, SkState::SynReceived { tries, .. }) => self.send_syn_ack(now, tries),
            (ToSender::Bare { echo }, SkState::SynReceived { sent, tries }) => {
                self.establish(now, echo, sent, tries);
            }
            (
                ToSender::Message {
                    number,
                    payload,
                    ack,
                },
                state,
            ) => {
                if let SkState::SynReceived { sent, tries } = state {
                    // The ACK that ended the handshake was lost.
                    self.establish(now, ack.echo, sent, tries);
                }
                if self.sk_state == SkState::Established {
                    self.on_message(now, number, payload, &ack);
                }
            }
            _ => {}
        }
    }

    /// Does what is due at a time that [`wake`](Self::wake) named.
    pub(super) fn on_timer(&mut self, now: Nanos) {
        if self.timer_at <= now {
            self.timer_at = NEVER;
            match std::mem::replace(&mut self.timer, Timer::None) {
                Timer::None => {}
                Timer::Syn => match self.sk_state {
                    SkState::SynSent { tries, .. } => self.send_syn(now, tries + 1),
                    SkState::SynReceived { tries, .. } => self.send_syn_ack(now, tries + 1),
                    _ => {}
                },
                Timer::Retransmission => self.on_retransmission_timeout(now),
                Timer::LossProbe => self.send_loss_probe(now),
                Timer::Reordering => self.on_reo_timeout(now),
            }
        }
        if self.pacing_timer_at <= now {
            self.pacing_timer_at = NEVER;
            if self.board.lost_out() > self.board.retrans_out() {
                self.xmit_retransmit_queue(now);
            }
            self.write_xmit(now, false);
        }
    }

    /// Takes note that a segment of data has left the host, or was `dropped` there, and sends what
    /// has waited for that if it `may_send` now (`tcp_tsq_write`).
    pub(super) fn on_departure(&mut self, now: Nanos, dropped: bool, may_send: bool) {
        let room = self.host.as_mut().is_some_and(|host| host.leave());
        if !self.is_established() {
            return;
        }
        // The kernel's qdisc returns NET_XMIT_DROP (`__tcp_transmit_skb`).
        if dropped {
            self.enter_cwr(now);
        }
        if room && may_send {
            if self.board.lost_out() > self.board.retrans_out() {
                self.xmit_retransmit_queue(now);
            }
            self.write_xmit(now, false);
        }
    }

    /// Returns the connection's figures. `payload_delivered` is the receiver's count, in bytes.
    pub(super) fn totals(&self, payload_delivered: u64) -> FlowTotals {
        FlowTotals {
            established: self.is_established(),
            bytes_sent: self.totals.bytes_sent,
            bytes_acked: self.bytes_acked,
            bytes_retransmitted: self.totals.bytes_retrans,
            retransmissions: self.totals.segs_retrans.into(),
            lost: self.board.total_lost(),
            timeouts: self.totals.rtos,
            probes: self.probes,
            acks: self.totals.segs_in.into(),
            cwnd: self.cwnd.cwnd,
            ssthresh: self.cwnd.ssthresh,
            pacing_rate: self.control.pacing_rate(),
            in_flight: self.board.packets_in_flight(),
            state: self.ca_state,
            srtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.mdev_us(),
            min_rtt_us: match self.rtt.min_rtt_us() {
                u32::MAX => 0,
                min => min,
            },
            payload_delivered,
            delivered: self.delivery.delivered().into(),
            delivered_ce: self.totals.delivered_ce.into(),
            delays: 0,
            delay_sum_ns: 0,
            busy_ns: 0,
        }
    }

    /// Memory on the heap in bytes: scoreboard and outbox.
    pub(super) fn memory(&self) -> usize {
        self.board.memory() + self.outbox.capacity() * size_of::<ToReceiver>()
    }

    fn send_syn(&mut self, now: Nanos, tries: u32) {
        self.sk_state = SkState::SynSent { sent: now, tries };
        self.outbox.push(ToReceiver::Syn {
            timestamp: milliseconds(now),
        });
        let doublings = tries.saturating_sub(SYN_LINEAR).min(7);
        self.set_timer(now, Timer::Syn, SYN_TIMEOUT << doublings);
    }

    fn send_syn_ack(&mut self, now: Nanos, tries: u32) {
        self.sk_state = SkState::SynReceived { sent: now, tries };
        self.outbox.push(ToReceiver::SynAck {
            timestamp: milliseconds(now),
        });
        self.set_timer(now, Timer::Syn, SYN_TIMEOUT << tries.min(7));
    }

    /// Processes a segment with a message of the far end.
    fn on_message(&mut self, now: Nanos, number: u32, payload: u16, ack: &Ack) {
        self.on_ack(now, ack);
        if number == self.messages && payload > 0 {
            self.messages += 1;
            self.untaken += 1;
        }
        self.outbox.push(ToReceiver::Messages {
            arrived: self.messages,
        });
    }

    fn establish(&mut self, now: Nanos, echo: u32, sent: Nanos, tries: u32) {
        let active = matches!(self.sk_state, SkState::SynSent { .. });
        self.sk_state = SkState::Established;
        self.lsndtime = now;
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
        if self.control.tracks_transmissions() {
            self.board.track_transmissions();
        }
        self.update_pacing_rate();
        if active {
            self.outbox.push(ToReceiver::Bare);
        }
        self.usage.changed(self.ticks.at(now));
        self.pacing_timer_at = now + FIRST_WRITE;
        if self.written.is_none() {
            // A bulk flow's first write finds nothing queued, so that what it sends at once counts
            // as limited by the application (`tcp_rate_check_app_limited`).
            self.delivery.limit_by_application(0);
        }
    }

    /// Processes an ACK of an established connection (`tcp_ack`).
    #[inline]
    fn on_ack(&mut self, now: Nanos, ack: &Ack) {
        self.totals.segs_in = self.totals.segs_in.wrapping_add(1);
        let prior_una = self.board.snd_una();
        if ack.ack < prior_una || ack.ack > self.board.snd_nxt() {
            return;
        }
        self.ts_recent = ack.timestamp;
        self.snd_wnd_end = self.snd_wnd_end.max(ack.ack + ack.rwnd);
        let window_changed = std::mem::replace(&mut self.snd_wnd, ack.rwnd) != ack.rwnd;
        let prior_in_flight = self.board.packets_in_flight();
        let prior_delivered = self.delivery.delivered();
        let prior_losses = self.board.total_lost();
        let prior_sacked_end = self.board.highest_sack_end();
        let mut sample = RateSampleDraft::default();
        let mut flag = AckFlags {
            snd_una_advanced: ack.ack > prior_una,
            ece: ack.ece && self.ecn.enabled,
            rcv_tsecr: ack.echo,
            ..AckFlags::default()
        };
        if flag.snd_una_advanced {
            self.recovery.retransmits = 0;
        }
        if ack.count > 0 {
            self.sacktag_write_queue(now, ack, &mut flag, &mut sample);
        } else {
            self.recv_sack_cache = [SackBlock::default(); MAX_BLOCKS];
        }
        if self.board.packets_out() == 0 {
            return;
        }
        self.clean_rtx_queue(now, ack.ack, &mut flag, &mut sample, prior_sacked_end);
        self.rack
            .update_reo_wnd(sample.prior_delivered, self.delivery.delivered());
        let acked = Acked {
            now,
            segments: ack.ack - prior_una,
            rtt_us: flag.rtt_us,
            snd_nxt: self.board.snd_nxt().into(),
            mss: MSS,
            state: self.ca_state,
            slow_path: window_changed || ack.count > 0 || ack.ece,
        };
        self.control.on_acked(&self.cwnd, &acked);
        self.process_tlp_ack(now, ack.ack, &flag);
        let alert = flag.data_sacked || flag.ece || flag.dsacking_ack;
        let dubious = !flag.snd_una_advanced || alert;
        let mut rexmit = Rexmit::None;
        if dubious || self.ca_state != CaState::Open {
            rexmit = self.fastretrans_alert(now, prior_una, &mut flag);
        }
        if flag.set_xmit_timer {
            self.set_xmit_timer(now);
        }
        let delivered = self.delivery.delivered() - prior_delivered;
        if flag.ece {
            let marked = &mut self.totals.delivered_ce;
            *marked = marked.wrapping_add(delivered);
        }
        let lost = (self.board.total_lost() - prior_losses) as u32;
        let mut rate = self
            .delivery
            .rate_gen(&sample, now, delivered > 0, self.rtt.min_rtt_us());
        rate.prior_in_flight = prior_in_flight;
        rate.snd_una = self.board.snd_una().into();
        rate.snd_nxt = self.board.snd_nxt().into();
        rate.last_sent = self.lsndtime;
        rate.next_send = self.pacing.wstamp_ns();
        rate.cwnd_filled = self.usage.is_filled();
        if sample.prior_delivered > 0
            && let Some(sent) = self.board.transmission(sample.number)
        {
            rate.tx_in_flight = sent.in_flight;
            rate.lost = (self.board.total_lost() - sent.lost) as u32;
        }
        self.cong_control(now, &flag, delivered, lost, &rate);
        self.xmit_recovery(now, rexmit);
        self.write_xmit(now, false);
    }

    /// Applies the SACK blocks of an ACK to the scoreboard (`tcp_sacktag_write_queue`).
    fn sacktag_write_queue(
        &mut self,
        now: Nanos,
        ack: &Ack,
        flag: &mut AckFlags,
        sample: &mut RateSampleDraft,
    ) {
        let mut blocks = ack.blocks();
        if ack.dsack
            && let [first, rest @ ..] = blocks
        {
            self.check_dsack(*first, flag);
            blocks = rest;
        }
        let (una, next) = (self.board.snd_una(), self.board.snd_nxt());
        let mut sorted = [SackBlock::default(); MAX_BLOCKS];
        let sorted = &mut sorted[..blocks.len()];
        sorted.copy_from_slice(blocks);
        sorted.sort_unstable_by_key(|block| block.from);
        let cache = self.recv_sack_cache;
        for block in sorted.iter() {
            let mut number = block.from.max(una);
            while number < block.to.min(next) {
                // Most of a block was in the previous ACK already.
                let known = cache
                    .iter()
                    .find(|block| block.from <= number && number < block.to);
                match known {
                    Some(known) => number = known.to,
                    None => {
                        self.sacktag_one(now, number, flag, sample);
                        number += 1;
                    }
                }
            }
        }
        self.recv_sack_cache = [SackBlock::default(); MAX_BLOCKS];
        self.recv_sack_cache[..sorted.len()].copy_from_slice(sorted);
    }

    /// Marks a segment as SACKed (`tcp_sacktag_one`).
    fn sacktag_one(
        &mut self,
        now: Nanos,
        number: u32,
        flag: &mut AckFlags,
        sample: &mut RateSampleDraft,
    ) {
        let sacked_end = self.board.highest_sack_end();
        let Some(segment) = self.board.sack(number) else {
            return;
        };
        self.rack
            .advance(now, number, &segment, self.rtt.min_rtt_us());
        if !segment.flags.ever_retrans {
            if number < sacked_end {
                flag.reord = Some(flag.reord.map_or(number, |lowest| lowest.min(number)));
            }
            flag.orig_sack_acked |= number < self.recovery.high_seq;
            let first = flag.sackt.map_or(segment.sent, |(first, _)| first);
            flag.sackt = Some((first, segment.sent));
        }
        flag.data_sacked = true;
        self.delivery.skb_delivered(sample, number, &segment);
    }

    /// Takes note of a D-SACK block (`tcp_check_dsack`).
    fn check_dsack(&mut self, block: SackBlock, flag: &mut AckFlags) {
        flag.dsacking_ack = true;
        flag.dsack_tlp |= self.recovery.is_tlp(block.to);
        if self.reord_seen && !flag.dsack_tlp {
            self.rack.note_dsack();
        }
        let (una, next) = (self.board.snd_una(), self.board.snd_nxt());
        for number in block.from..block.to.min(next) {
            let forgotten = number < una;
            if forgotten || self.board.get(number).flags.ever_retrans {
                self.recovery.spurious_retransmission(number);
            }
            if !forgotten {
                self.board.dsack(number);
            }
        }
    }

    /// Removes the segments that are acknowledged cumulatively and measures the RTT
    /// (`tcp_clean_rtx_queue`).
    #[inline]
    fn clean_rtx_queue(
        &mut self,
        now: Nanos,
        ack: u32,
        flag: &mut AckFlags,
        sample: &mut RateSampleDraft,
        prior_sacked_end: u32,
    ) {
        let min_rtt_us = self.rtt.min_rtt_us();
        let mut originals: Option<(Nanos, Nanos)> = None;
        let mut lowest = None;
        while self.board.snd_una() < ack {
            let number = self.board.snd_una();
            let segment = self.board.pop();
            self.bytes_acked += u64::from(segment.payload);
            let flags = segment.flags;
            if flags.ever_retrans {
                flag.retrans_data_acked = true;
            } else if !flags.sacked {
                let first = originals.map_or(segment.sent, |(first, _)| first);
                originals = Some((first, segment.sent));
                lowest = lowest.or(Some(number));
                flag.orig_sack_acked |= number < self.recovery.high_seq;
            }
            if !flags.sacked {
                // TSecr is older than the retransmission, so the original was delivered
                // (`tcp_skb_spurious_retrans`).
                let spurious = flags.ever_retrans && flag.rcv_tsecr < milliseconds(segment.sent);
                if !spurious {
                    self.rack.advance(now, number, &segment, min_rtt_us);
                }
                self.delivery.skb_delivered(sample, number, &segment);
            }
        }
        let measured = self.ack_update_rtt(now, flag, originals);
        if flag.snd_una_advanced {
            flag.set_xmit_timer = true;
            // An original arrived after later segments had been SACKed: reordering.
            if let Some(low) = lowest.filter(|&low| low < prior_sacked_end) {
                self.check_sack_reordering(low);
            }
        } else if measured && let Some((first, _)) = flag.sackt {
            // Only for data sent before the first unacknowledged segment: otherwise the timeout
            // could be put off for ever.
            flag.set_xmit_timer = first < self.board.get(self.board.snd_una()).sent;
        }
        if let Some(low) = flag.reord {
            self.check_sack_reordering(low);
        }
    }

    /// Feeds the RTT estimator, from the times of sending where segments were not retransmitted and
    /// from TSecr elsewhere (`tcp_ack_update_rtt`). Returns whether there was a sample.
    #[inline]
    fn ack_update_rtt(
        &mut self,
        now: Nanos,
        flag: &mut AckFlags,
        originals: Option<(Nanos, Nanos)>,
    ) -> bool {
        let since = |(first, last): (Nanos, Nanos)| {
            let (first, last) = (microseconds(now - first), microseconds(now - last));
            (first, last)
        };
        let acked = originals.filter(|_| !flag.retrans_data_acked).map(since);
        let sacked = flag.sackt.map(since);
        let first = acked.or(sacked).map(|(first, _)| first);
        let last = sacked.or(acked).map(|(_, last)| last);
        let (first, last) = match (first, last) {
            (Some(first), Some(last)) => (first, last),
            _ if flag.snd_una_advanced => {
                let rtt = milliseconds(now).saturating_sub(flag.rcv_tsecr).max(1) * 1_000;
                (rtt, rtt)
            }
            _ => return false,
        };
        flag.rtt_us = last.max(1);
        let (una, next) = (self.board.snd_una(), self.board.snd_nxt());
        self.rtt.sample(now, first, last, una, next);
        true
    }

    /// Raises the reordering distance after the original `low` was delivered late
    /// (`tcp_check_sack_reordering`).
    fn check_sack_reordering(&mut self, low: u32) {
        let metric = self.board.highest_sack_end().saturating_sub(low);
        if metric == 0 {
            return;
        }
        if metric > self.reordering {
            self.reordering = metric.min(recovery::MAX_REORDERING);
        }
        self.reord_seen = true;
    }

    /// Lets the congestion control, or proportional rate reduction, set the cwnd
    /// (`tcp_cong_control`). `delivered` and `lost` are the segments that this ACK newly delivered
    /// and found lost.
    #[inline]
    fn cong_control(
        &mut self,
        now: Nanos,
        flag: &AckFlags,
        delivered: u32,
        lost: u32,
        rate: &super::control::RateSample,
    ) {
        let ack = AckSample {
            now_ns: now,
            rtt_us: flag.rtt_us,
            srtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.mdev_us(),
            mss: MSS,
            header_len: TCP_HEADER,
            in_flight: self.board.packets_in_flight(),
            acked: delivered,
            lost,
            delivered: rate.delivered.unwrap_or_default(),
            interval_us: rate.interval_us,
            retransmits: self.recovery.retransmits,
            cwnd_limited: self.usage.is_limited(&self.cwnd),
            max_packets_out: self.usage.max_packets_out(),
            app_limited: rate.app_limited,
            idle: !self.is_busy(),
            decays_unused: true,
            ca_state: self.ca_state,
            totals: Totals {
                lost: self.board.total_lost() as u32,
                delivered: rate.total_delivered as u32,
                ..self.totals
            },
        };
        self.report_losses(now);
        if self.has_cong_control {
            self.control.on_ack(&mut self.cwnd, &ack, rate);
        } else if self.ca_state.is_reducing() {
            self.control.on_measurement(&mut self.cwnd, &ack, rate);
            self.cwnd_reduction(delivered, lost, flag.snd_una_advanced);
        } else if self.may_raise_cwnd(flag) {
            self.control.on_ack(&mut self.cwnd, &ack, rate);
            self.usage.changed(self.ticks.at(now));
        } else {
            self.control.on_measurement(&mut self.cwnd, &ack, rate);
        }
        self.cwnd.cwnd = self.cwnd.cwnd.clamp(1, self.cwnd.clamp);
        self.update_pacing_rate();
    }

    /// Tells a control that tracks transmissions which segments were marked lost.
    #[inline]
    fn report_losses(&mut self, now: Nanos) {
        if !self.board.has_newly_lost() {
            return;
        }
        let lost = self.board.take_newly_lost();
        let total_delivered = self.delivery.delivered().into();
        for &segment in &lost {
            let segment = LostSegment {
                at: now,
                total_delivered,
                ..segment
            };
            self.control.on_lost(&self.cwnd, &segment);
        }
        self.board.reuse(lost);
    }

    /// Whether this ACK may raise the cwnd of a control without `cong_control`
    /// (`tcp_may_raise_cwnd`).
    #[inline]
    fn may_raise_cwnd(&self, flag: &AckFlags) -> bool {
        flag.snd_una_advanced || (flag.data_sacked && self.reordering > recovery::REORDERING)
    }

    /// Takes the pacing rate of the congestion control, or derives one that only sizes bursts.
    #[inline]
    fn update_pacing_rate(&mut self) {
        match self.control.pacing_rate() {
            Some(rate) => self.pacing.pace_at(rate),
            None => self.pacing.update_rate(
                self.cwnd.cwnd,
                self.cwnd.ssthresh,
                self.board.packets_out(),
                self.rtt.srtt_us(),
            ),
        }
    }

    fn set_state(&mut self, now: Nanos, state: CaState) {
        self.control.on_state(now, &mut self.cwnd, state);
        self.ca_state = state;
    }
}

#[inline]
fn microseconds(time: Nanos) -> u32 {
    u32::try_from(time / 1_000).unwrap_or(u32::MAX)
}
