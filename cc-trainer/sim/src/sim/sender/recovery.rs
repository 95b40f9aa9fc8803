//! Fast recovery, timeouts and their undoing (`tcp_fastretrans_alert` and what it calls, net/ipv4/tcp_input.c).

use cc_ebpf::CaState;

use crate::path::Nanos;
use crate::sim::control::CongestionControl;
use crate::sim::timer;
use crate::sim::wire::milliseconds;

use super::transmit::Timer;
use super::{AckFlags, Sender};

/// No slow-start threshold (`TCP_INFINITE_SSTHRESH`).
pub(super) const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// Segments by which a path is taken to reorder at first (`tcp_reordering`).
pub(super) const REORDERING: u32 = 3;
/// And at most (`tcp_max_reordering`).
pub(super) const MAX_REORDERING: u32 = 300;

/// What is known of the present or last recovery.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// It ends when everything before this segment is acknowledged (`high_seq`).
    pub(super) high_seq: u32,
    /// Consecutive timeouts (`icsk_retransmits`).
    pub(super) retransmits: u32,
    /// Window and slow-start threshold before; 0 for a threshold that is not to be restored.
    prior_cwnd: u32,
    prior_ssthresh: u32,
    /// The first unacknowledged segment when it began, as long as it may be undone (`undo_marker`).
    undo_marker: Option<u32>,
    /// Retransmissions of it that are not known to be in vain (`undo_retrans`); none before the first.
    undo_retrans: Option<u32>,
    /// TSval of its first retransmission (`retrans_stamp`).
    retrans_stamp: Option<u32>,
    /// Segments delivered and sent since it began (`prr_delivered`, `prr_out`).
    prr_delivered: u32,
    prr_out: u32,
    /// It may be found that the timeout was spurious (RFC 5682).
    frto: bool,
    /// The highest segment when a loss probe was sent whose ACK is awaited (`tlp_high_seq`).
    tlp_high_seq: Option<u32>,
}

/// What to send after an ACK besides what the window lets go anyway (`REXMIT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rexmit {
    None,
    /// What is lost.
    Lost,
    /// New data, to see whether a timeout was spurious.
    New,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            high_seq: 0,
            retransmits: 0,
            prior_cwnd: 0,
            prior_ssthresh: 0,
            undo_marker: None,
            undo_retrans: None,
            retrans_stamp: None,
            prr_delivered: 0,
            prr_out: 0,
            frto: false,
            tlp_high_seq: None,
        }
    }

    /// The probe is answered (`tcp_process_tlp_ack`; a bulk flow probes with new data, so that nothing is to be
    /// concluded from it).
    #[inline]
    pub(super) fn process_tlp_ack(&mut self, ack: u32) {
        if self.tlp_high_seq.is_some_and(|high| ack >= high) {
            self.tlp_high_seq = None;
        }
    }

    /// Whether a probe awaits its ACK; if not, one does now.
    pub(super) fn has_tlp(&self) -> bool {
        self.tlp_high_seq.is_some()
    }

    pub(super) fn begin_tlp(&mut self, next: u32) {
        self.tlp_high_seq = Some(next);
    }

    /// A retransmission of this segment is known to be in vain.
    pub(super) fn spurious_retransmission(&mut self, number: u32) {
        if self.undo_marker.is_some_and(|undo| number >= undo) {
            self.undo_retrans = self.undo_retrans.map(|useful| useful.saturating_sub(1));
        }
    }

    /// `segments` were retransmitted.
    pub(super) fn note_retransmission(&mut self, now: Nanos, segments: u32) {
        self.retrans_stamp.get_or_insert(milliseconds(now));
        self.undo_retrans = Some(self.undo_retrans.unwrap_or_default() + segments);
    }

    /// `segments` were sent while the window is being reduced.
    #[inline]
    pub(super) fn count_sent(&mut self, segments: u32) {
        self.prr_out += segments;
    }

    /// The ACK echoes a time before the first retransmission, or there was none (`tcp_packet_delayed`).
    fn packet_delayed(&self, echo: u32) -> bool {
        self.retrans_stamp.is_none_or(|first| echo < first)
    }

    /// `tcp_may_undo`.
    fn may_undo(&self, echo: u32) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == Some(0) || self.packet_delayed(echo))
    }

    /// `tcp_init_undo`.
    fn init_undo(&mut self, una: u32, retransmitted: u32) {
        self.undo_marker = Some(una);
        self.undo_retrans = (retransmitted > 0).then_some(retransmitted);
    }
}

impl Sender {
    /// `tcp_fastretrans_alert`.
    pub(super) fn fastretrans_alert(
        &mut self,
        now: Nanos,
        prior_una: u32,
        flag: &mut AckFlags,
    ) -> Rexmit {
        if self.ca_state == CaState::Open {
            self.recovery.retrans_stamp = None;
        } else if self.board.snd_una() >= self.recovery.high_seq {
            match self.ca_state {
                CaState::Cwr if self.board.snd_una() != self.recovery.high_seq => {
                    self.end_cwnd_reduction();
                    self.set_state(now, CaState::Open);
                }
                CaState::Recovery => {
                    self.try_undo_recovery(now, flag.rcv_tsecr);
                    self.end_cwnd_reduction();
                }
                _ => {}
            }
        }
        match self.ca_state {
            CaState::Recovery => {
                if flag.snd_una_advanced && self.try_undo_partial(now, prior_una, flag) {
                    return Rexmit::None;
                }
                if self.try_undo_dsack() {
                    self.try_to_open(now);
                }
                self.identify_loss(now, flag);
                if self.ca_state != CaState::Recovery {
                    if self.board.lost_out() == 0 {
                        return Rexmit::None;
                    }
                    self.enter_recovery(now);
                }
            }
            CaState::Loss => {
                let rexmit = self.process_loss(now, flag);
                self.identify_loss(now, flag);
                if self.ca_state != CaState::Open && !flag.lost_retrans {
                    return rexmit;
                }
                if !self.recover_if_lost(now, flag) {
                    return rexmit;
                }
            }
            _ => {
                if !self.recover_if_lost(now, flag) {
                    return Rexmit::None;
                }
            }
        }
        Rexmit::Lost
    }

    /// Sends what an ACK calls for (`tcp_xmit_recovery`).
    #[inline]
    pub(super) fn xmit_recovery(&mut self, now: Nanos, rexmit: Rexmit) {
        match rexmit {
            Rexmit::None => return,
            Rexmit::Lost => {}
            Rexmit::New => {
                self.write_xmit(now, false);
                if self.board.snd_nxt() > self.recovery.high_seq {
                    return;
                }
                self.recovery.frto = false;
            }
        }
        self.xmit_retransmit_queue(now);
    }

    /// A retransmission timeout (`tcp_retransmit_timer`).
    pub(super) fn on_retransmission_timeout(&mut self, now: Nanos) {
        if self.board.packets_out() == 0 {
            return;
        }
        self.recovery.tlp_high_seq = None;
        self.enter_loss(now);
        self.recovery.retransmits += 1;
        self.totals.rtos = self.totals.rtos.wrapping_add(1);
        self.retransmit(now, self.board.snd_una());
        self.rtt.back_off();
        let timeout = self.rtt.rto();
        self.set_timer(now, Timer::Retransmission, timeout);
    }

    /// The reordering window has passed for a segment (`tcp_rack_reo_timeout`).
    pub(super) fn on_reo_timeout(&mut self, now: Nanos) {
        let prior_in_flight = self.board.packets_in_flight();
        let prior_losses = self.board.total_lost();
        let reo_wnd = self.reo_wnd();
        if let Some(wait) = self.rack.detect_loss(now, &mut self.board, reo_wnd) {
            self.set_reo_timer(now, wait);
        }
        if self.board.packets_in_flight() != prior_in_flight {
            if self.ca_state != CaState::Recovery {
                self.enter_recovery(now);
                if !self.has_cong_control {
                    let lost = (self.board.total_lost() - prior_losses) as u32;
                    self.cwnd_reduction(1, lost, false);
                }
            }
            self.xmit_retransmit_queue(now);
        }
        if self.timer != Timer::Retransmission {
            self.rearm_rto(now);
        }
    }

    /// Proportional rate reduction (RFC 6937, `tcp_cwnd_reduction`): by delivery while more is in flight than the
    /// threshold, then up to it in conservation, or in slow start while nothing more is lost.
    #[inline]
    pub(super) fn cwnd_reduction(&mut self, delivered: u32, lost: u32, advanced: bool) {
        let recovery = &mut self.recovery;
        if delivered == 0 || recovery.prior_cwnd == 0 {
            return;
        }
        let in_flight = self.board.packets_in_flight();
        recovery.prr_delivered += delivered;
        let ssthresh = self.cwnd.ssthresh;
        let mut allowed = if in_flight > ssthresh {
            let share = u64::from(ssthresh) * u64::from(recovery.prr_delivered);
            let share = share.div_ceil(recovery.prior_cwnd.into()) as i64;
            share - i64::from(recovery.prr_out)
        } else {
            let unsent = i64::from(recovery.prr_delivered) - i64::from(recovery.prr_out);
            let grown = unsent.max(delivered.into()) + i64::from(advanced && lost == 0);
            grown.min((ssthresh - in_flight).into())
        };
        // The fast retransmission is never held back.
        allowed = allowed.max((recovery.prr_out == 0).into());
        self.cwnd.cwnd = (i64::from(in_flight) + allowed).clamp(0, u32::MAX.into()) as u32;
    }

    /// Whether there is something lost, and so a recovery begins.
    fn recover_if_lost(&mut self, now: Nanos, flag: &mut AckFlags) -> bool {
        if self.ca_state <= CaState::Disorder {
            self.try_undo_dsack();
        }
        self.identify_loss(now, flag);
        if self.board.lost_out() == 0 {
            self.try_to_open(now);
            return false;
        }
        self.enter_recovery(now);
        true
    }

    /// `tcp_identify_packet_loss`.
    #[inline]
    fn identify_loss(&mut self, now: Nanos, flag: &mut AckFlags) {
        if self.board.packets_out() == 0 {
            return;
        }
        let retransmitted = self.board.retrans_out();
        let reo_wnd = self.reo_wnd();
        if let Some(wait) = self.rack.mark_lost(now, &mut self.board, reo_wnd) {
            self.set_reo_timer(now, wait);
            flag.set_xmit_timer = false;
        }
        flag.lost_retrans |= self.board.retrans_out() < retransmitted;
    }

    fn set_reo_timer(&mut self, now: Nanos, wait: Nanos) {
        let jiffies = timer::jiffies(wait / 1_000 + super::transmit::TIMEOUT_MIN_US);
        self.set_timer(now, Timer::Reordering, jiffies);
    }

    /// The reordering window, ns. There is none where nothing suggests that the path reorders and
    /// segments are missing beyond doubt.
    #[inline]
    fn reo_wnd(&self) -> Nanos {
        let certain = !self.reord_seen
            && (self.ca_state >= CaState::Recovery || self.board.sacked_out() >= self.reordering);
        if certain {
            return 0;
        }
        self.rack.reo_wnd(self.rtt.min_rtt_us(), self.rtt.srtt_us())
    }

    fn enter_recovery(&mut self, now: Nanos) {
        if !self.board.any_retrans_done() {
            self.recovery.retrans_stamp = None;
        }
        self.recovery.prior_ssthresh = 0;
        (self.recovery).init_undo(self.board.snd_una(), self.board.retrans_out());
        if !self.ca_state.is_reducing() {
            self.recovery.prior_ssthresh = self.current_ssthresh();
            self.init_cwnd_reduction();
        }
        self.set_state(now, CaState::Recovery);
    }

    /// `tcp_enter_loss`.
    fn enter_loss(&mut self, now: Nanos) {
        let first = self.ca_state < CaState::Recovery;
        self.timeout_mark_lost(now);
        let once_a_window = self.ca_state <= CaState::Disorder
            || self.recovery.high_seq <= self.board.snd_una()
            || (self.ca_state == CaState::Loss && self.recovery.retransmits == 0);
        if once_a_window {
            self.recovery.prior_ssthresh = self.current_ssthresh();
            self.recovery.prior_cwnd = self.cwnd.cwnd;
            self.cwnd.ssthresh = self.control.ssthresh(&self.cwnd);
            (self.recovery).init_undo(self.board.snd_una(), self.board.retrans_out());
        }
        self.cwnd.cwnd = self.board.packets_in_flight() + 1;
        self.cwnd.cwnd_cnt = 0;
        if self.ca_state <= CaState::Disorder && self.board.sacked_out() >= REORDERING {
            self.reordering = self.reordering.min(REORDERING);
        }
        self.set_state(now, CaState::Loss);
        self.recovery.high_seq = self.board.snd_nxt();
        self.recovery.tlp_high_seq = None;
        self.recovery.frto = first || self.recovery.retransmits > 0;
    }

    /// Takes the first segment for lost, and all that were sent an RTT ago (`tcp_timeout_mark_lost`).
    fn timeout_mark_lost(&mut self, now: Nanos) {
        let (una, next) = (self.board.snd_una(), self.board.snd_nxt());
        self.board.mark_lost(una);
        for number in una + 1..next {
            if self.rack.skb_timeout(now, self.board.get(number), 0) == 0 {
                self.board.mark_lost(number);
            }
        }
    }

    /// `tcp_process_loss`.
    fn process_loss(&mut self, now: Nanos, flag: &AckFlags) -> Rexmit {
        let recovered = self.board.snd_una() >= self.recovery.high_seq;
        if flag.snd_una_advanced && self.try_undo_loss(now, flag.rcv_tsecr, false) {
            return Rexmit::None;
        }
        if self.recovery.frto {
            // Originals arrive that were sent before the timeout: it was spurious.
            if flag.orig_sack_acked && self.try_undo_loss(now, flag.rcv_tsecr, true) {
                return Rexmit::None;
            }
            if self.board.snd_nxt() > self.recovery.high_seq {
                if flag.data_sacked || !flag.snd_una_advanced {
                    self.recovery.frto = false;
                }
            } else if flag.snd_una_advanced && !recovered {
                self.recovery.high_seq = self.board.snd_nxt();
                return Rexmit::New;
            }
        }
        if recovered {
            self.try_undo_recovery(now, flag.rcv_tsecr);
            return Rexmit::None;
        }
        Rexmit::Lost
    }

    /// `tcp_try_undo_loss`.
    fn try_undo_loss(&mut self, now: Nanos, echo: u32, certain: bool) -> bool {
        if !certain && !self.recovery.may_undo(echo) {
            return false;
        }
        self.undo_cwnd_reduction(true);
        self.recovery.retransmits = 0;
        self.set_state(now, CaState::Open);
        true
    }

    /// `tcp_try_undo_recovery`.
    fn try_undo_recovery(&mut self, now: Nanos, echo: u32) {
        if self.recovery.may_undo(echo) {
            self.undo_cwnd_reduction(false);
        } else {
            self.rack.recovered();
        }
        self.set_state(now, CaState::Open);
    }

    /// A gap was filled by a delayed original (`tcp_try_undo_partial`). Whether nothing more is to be done.
    fn try_undo_partial(&mut self, now: Nanos, prior_una: u32, flag: &AckFlags) -> bool {
        if self.recovery.undo_marker.is_none() || !self.recovery.packet_delayed(flag.rcv_tsecr) {
            return false;
        }
        self.check_sack_reordering(prior_una);
        if self.board.retrans_out() > 0 {
            return true;
        }
        if !self.board.any_retrans_done() {
            self.recovery.retrans_stamp = None;
        }
        self.undo_cwnd_reduction(true);
        self.try_keep_open(now);
        false
    }

    /// Every retransmission was in vain (`tcp_try_undo_dsack`).
    fn try_undo_dsack(&mut self) -> bool {
        if self.recovery.undo_marker.is_none() || self.recovery.undo_retrans != Some(0) {
            return false;
        }
        self.rack.undone();
        self.undo_cwnd_reduction(false);
        true
    }

    /// `tcp_undo_cwnd_reduction`.
    fn undo_cwnd_reduction(&mut self, unmark: bool) {
        if unmark {
            self.board.unmark_lost();
        }
        if self.recovery.prior_ssthresh != 0 {
            self.cwnd.cwnd = self.control.undo(&self.cwnd, self.recovery.prior_cwnd);
            self.cwnd.ssthresh = self.cwnd.ssthresh.max(self.recovery.prior_ssthresh);
        }
        self.recovery.undo_marker = None;
        self.rack.look_again();
    }

    /// `tcp_try_to_open`.
    fn try_to_open(&mut self, now: Nanos) {
        if !self.board.any_retrans_done() {
            self.recovery.retrans_stamp = None;
        }
        if self.ca_state != CaState::Cwr {
            self.try_keep_open(now);
        }
    }

    /// `tcp_try_keep_open`.
    fn try_keep_open(&mut self, now: Nanos) {
        let left =
            self.board.sacked_out() + self.board.lost_out() > 0 || self.board.any_retrans_done();
        let state = if left {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if self.ca_state != state {
            self.set_state(now, state);
            self.recovery.high_seq = self.board.snd_nxt();
        }
    }

    /// `tcp_init_cwnd_reduction`.
    fn init_cwnd_reduction(&mut self) {
        self.recovery.high_seq = self.board.snd_nxt();
        self.recovery.tlp_high_seq = None;
        self.cwnd.cwnd_cnt = 0;
        self.recovery.prior_cwnd = self.cwnd.cwnd;
        self.recovery.prr_delivered = 0;
        self.recovery.prr_out = 0;
        self.cwnd.ssthresh = self.control.ssthresh(&self.cwnd);
    }

    /// `tcp_end_cwnd_reduction`.
    fn end_cwnd_reduction(&mut self) {
        let undone = self.recovery.undo_marker.is_none() && self.ca_state != CaState::Cwr;
        if !self.has_cong_control && self.cwnd.ssthresh < INFINITE_SSTHRESH && !undone {
            self.cwnd.cwnd = self.cwnd.ssthresh;
        }
    }

    /// `tcp_current_ssthresh`.
    fn current_ssthresh(&self) -> u32 {
        let cwnd = self.cwnd.cwnd;
        if self.ca_state.is_reducing() {
            self.cwnd.ssthresh
        } else {
            self.cwnd.ssthresh.max((cwnd >> 1) + (cwnd >> 2))
        }
    }
}
