//! Fast recovery, retransmission timeouts, and undoing both (Linux 6.18, net/ipv4/tcp_input.c:
//! `tcp_fastretrans_alert` and the functions that it calls).
//!
//! The congestion-avoidance states and what moves between them:
//!
//! ```text
//! from             to         when
//! Open             Disorder   segments are SACKed, and none is lost yet
//! Disorder         Open       the gaps are filled
//! Open, Disorder   CWR        an ACK echoes a congestion-experienced mark (ECN)
//! CWR              Open       a segment beyond high_seq is acknowledged
//! Open, Disorder,
//! CWR              Recovery   a segment is marked lost
//! Recovery, Loss   Open       high_seq is acknowledged, or the reduction is undone
//! Recovery         Disorder   the reduction is undone while segments are still SACKed
//! any              Loss       the retransmission timer fires
//! ```

use cc_ebpf::CaState;

use crate::path::Nanos;
use crate::sim::control::{CongestionControl, CwndEvent, current_ssthresh};
use crate::sim::timer;
use crate::sim::wire::milliseconds;

use super::transmit::Timer;
use super::{AckFlags, Sender};

/// The slow-start threshold before the first loss (`TCP_INFINITE_SSTHRESH`).
pub(super) const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// Initial reordering distance in segments (`tcp_reordering`).
pub(super) const REORDERING: u32 = 3;
/// Largest reordering distance in segments (`tcp_max_reordering`).
pub(super) const MAX_REORDERING: u32 = 300;

/// State of the present or the last recovery.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// Recovery ends when all segments before this one are acknowledged (`high_seq`).
    pub(super) high_seq: u32,
    /// Number of retransmission timeouts in a row (`icsk_retransmits`).
    pub(super) retransmits: u32,
    /// Cwnd and slow-start threshold before the reduction, in segments; a threshold of 0 is not
    /// restored.
    prior_cwnd: u32,
    prior_ssthresh: u32,
    /// The first unacknowledged segment when recovery began, while it may still be undone
    /// (`undo_marker`).
    undo_marker: Option<u32>,
    /// Retransmissions that are not known to be spurious (`undo_retrans`); `None` before the first.
    undo_retrans: Option<u32>,
    /// TSval of the first retransmission, ms (`retrans_stamp`).
    retrans_stamp: Option<u32>,
    /// Segments delivered and sent since the reduction began (`prr_delivered`, `prr_out`).
    prr_delivered: u32,
    prr_out: u32,
    /// Whether F-RTO looks for signs that the timeout was spurious (RFC 5682).
    frto: bool,
    /// `snd_nxt` when the loss probe was sent whose ACK is awaited (`tlp_high_seq`), and whether
    /// the probe was a retransmission (`tlp_retrans`).
    tlp_high_seq: Option<u32>,
    tlp_retrans: bool,
}

/// What to send after an ACK beside the new data that the cwnd allows (`REXMIT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rexmit {
    None,
    /// Segments that are marked lost (`REXMIT_LOST`).
    Lost,
    /// New data, for F-RTO to find out whether a timeout was spurious (`REXMIT_NEW`).
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
            tlp_retrans: false,
        }
    }

    /// Whether a loss probe awaits its ACK.
    pub(super) fn has_tlp(&self) -> bool {
        self.tlp_high_seq.is_some()
    }

    pub(super) fn begin_tlp(&mut self, next: u32, retransmission: bool) {
        self.tlp_high_seq = Some(next);
        self.tlp_retrans = retransmission;
    }

    /// Whether a D-SACK block that ends before this segment reports the loss probe.
    pub(super) fn is_tlp(&self, to: u32) -> bool {
        self.tlp_high_seq == Some(to)
    }

    /// Takes note that a retransmission of this segment was spurious.
    pub(super) fn spurious_retransmission(&mut self, number: u32) {
        if self.undo_marker.is_some_and(|undo| number >= undo) {
            self.undo_retrans = self.undo_retrans.map(|useful| useful.saturating_sub(1));
        }
    }

    /// Takes note of retransmissions, for undoing (`tcp_retransmit_skb`).
    pub(super) fn note_retransmission(&mut self, now: Nanos, segments: u32) {
        self.retrans_stamp.get_or_insert(milliseconds(now));
        self.undo_retrans = Some(self.undo_retrans.unwrap_or_default() + segments);
    }

    /// Takes note of segments sent during proportional rate reduction (`prr_out`).
    #[inline]
    pub(super) fn count_sent(&mut self, segments: u32) {
        self.prr_out += segments;
    }

    /// Whether the ACK echoes a time before the first retransmission, or there was none
    /// (`tcp_packet_delayed`).
    fn packet_delayed(&self, echo: u32) -> bool {
        self.retrans_stamp.is_none_or(|first| echo < first)
    }

    /// Whether the reduction turned out to be unnecessary (`tcp_may_undo`).
    fn may_undo(&self, echo: u32) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == Some(0) || self.packet_delayed(echo))
    }

    /// Remembers where undoing would start (`tcp_init_undo`).
    fn init_undo(&mut self, una: u32, retransmitted: u32) {
        self.undo_marker = Some(una);
        self.undo_retrans = (retransmitted > 0).then_some(retransmitted);
    }
}

impl Sender {
    /// Ends a loss probe that this ACK answers (`tcp_process_tlp_ack`). Where the probe was a
    /// retransmission that arrived alone, it repaired a loss, which the cwnd has to answer.
    #[inline]
    pub(super) fn process_tlp_ack(&mut self, now: Nanos, ack: u32, flag: &AckFlags) {
        let Some(high) = self.recovery.tlp_high_seq.filter(|&high| ack >= high) else {
            return;
        };
        if !self.recovery.tlp_retrans || flag.dsack_tlp {
            self.recovery.tlp_high_seq = None;
        } else if ack > high {
            self.init_cwnd_reduction();
            self.set_state(now, CaState::Cwr);
            self.end_cwnd_reduction(now);
            self.try_keep_open(now);
        } else if !flag.snd_una_advanced && !flag.data_sacked {
            // Original and probe have arrived.
            self.recovery.tlp_high_seq = None;
        }
    }

    /// Moves between the congestion-avoidance states after an ACK that hints at loss, or in any
    /// state but Open (`tcp_fastretrans_alert`).
    pub(super) fn fastretrans_alert(
        &mut self,
        now: Nanos,
        prior_una: u32,
        flag: &mut AckFlags,
    ) -> Rexmit {
        if flag.ece {
            // The reduction is required, whatever a retransmission turns out to be.
            self.recovery.prior_ssthresh = 0;
        }
        if self.ca_state == CaState::Open {
            self.recovery.retrans_stamp = None;
        } else if self.board.snd_una() >= self.recovery.high_seq {
            match self.ca_state {
                CaState::Cwr if self.board.snd_una() != self.recovery.high_seq => {
                    self.end_cwnd_reduction(now);
                    self.set_state(now, CaState::Open);
                }
                CaState::Recovery => {
                    self.try_undo_recovery(now, flag.rcv_tsecr);
                    self.end_cwnd_reduction(now);
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
                    self.try_to_open(now, flag.ece);
                }
                self.identify_loss(now, flag);
                if self.ca_state != CaState::Recovery {
                    if self.board.lost_out() == 0 {
                        return Rexmit::None;
                    }
                    self.enter_recovery(now, flag.ece);
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

    /// Retransmits after an ACK (`tcp_xmit_recovery`).
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

    /// Handles an expired retransmission timer (`tcp_retransmit_timer`).
    pub(super) fn on_retransmission_timeout(&mut self, now: Nanos) {
        if self.board.packets_out() == 0 {
            return;
        }
        self.recovery.tlp_high_seq = None;
        self.enter_loss(now);
        self.report_losses(now);
        self.recovery.retransmits += 1;
        self.totals.rtos = self.totals.rtos.wrapping_add(1);
        self.retransmit(now, self.board.snd_una());
        self.rtt.back_off();
        let timeout = self.rtt.rto();
        self.set_timer(now, Timer::Retransmission, timeout);
    }

    /// Handles the end of the reordering window (`tcp_rack_reo_timeout`).
    pub(super) fn on_reo_timeout(&mut self, now: Nanos) {
        let prior_in_flight = self.board.packets_in_flight();
        let prior_losses = self.board.total_lost();
        let reo_wnd = self.reo_wnd();
        if let Some(wait) = self.rack.detect_loss(now, &mut self.board, reo_wnd) {
            self.set_reo_timer(now, wait);
        }
        if self.board.packets_in_flight() != prior_in_flight {
            if self.ca_state != CaState::Recovery {
                self.enter_recovery(now, false);
                if !self.has_cong_control {
                    let lost = (self.board.total_lost() - prior_losses) as u32;
                    self.cwnd_reduction(1, lost, false);
                }
            }
            self.report_losses(now);
            self.xmit_retransmit_queue(now);
        }
        if self.timer != Timer::Retransmission {
            self.rearm_rto(now);
        }
    }

    /// Sets the cwnd by proportional rate reduction (RFC 6937, `tcp_cwnd_reduction`): in proportion
    /// to delivery while more is in flight than ssthresh; then up to ssthresh by packet
    /// conservation, or by slow start while nothing more is lost.
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
        // The first retransmission is never held back.
        allowed = allowed.max((recovery.prr_out == 0).into());
        self.cwnd.cwnd = (i64::from(in_flight) + allowed).clamp(0, u32::MAX.into()) as u32;
    }

    /// Enters fast recovery when segments are lost. Returns whether it did.
    fn recover_if_lost(&mut self, now: Nanos, flag: &mut AckFlags) -> bool {
        if self.ca_state <= CaState::Disorder {
            self.try_undo_dsack();
        }
        self.identify_loss(now, flag);
        if self.board.lost_out() == 0 {
            self.try_to_open(now, flag.ece);
            return false;
        }
        self.enter_recovery(now, flag.ece);
        true
    }

    /// Detects losses by RACK, and sets the reordering timer (`tcp_identify_packet_loss`).
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

    /// Enters fast recovery (`tcp_enter_recovery`). After an ACK with an ECN echo the reduction is
    /// not undone.
    fn enter_recovery(&mut self, now: Nanos, ece: bool) {
        if !self.board.any_retrans_done() {
            self.recovery.retrans_stamp = None;
        }
        self.recovery.prior_ssthresh = 0;
        (self.recovery).init_undo(self.board.snd_una(), self.board.retrans_out());
        if !self.ca_state.is_reducing() {
            if !ece {
                self.recovery.prior_ssthresh = self.current_ssthresh();
            }
            self.init_cwnd_reduction();
        }
        self.set_state(now, CaState::Recovery);
    }

    /// Reduces the cwnd after an ECN echo or a drop in the own host, once per cwnd of data
    /// (`tcp_enter_cwr`).
    pub(super) fn enter_cwr(&mut self, now: Nanos) {
        self.recovery.prior_ssthresh = 0;
        if self.ca_state < CaState::Cwr {
            self.recovery.undo_marker = None;
            self.init_cwnd_reduction();
            self.set_state(now, CaState::Cwr);
        }
    }

    /// Enters Loss after a retransmission timeout (`tcp_enter_loss`).
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
            (self.control).on_event(&mut self.cwnd, CwndEvent::Loss);
            (self.recovery).init_undo(self.board.snd_una(), self.board.retrans_out());
        }
        self.cwnd.cwnd = self.board.packets_in_flight() + 1;
        self.cwnd.cwnd_cnt = 0;
        self.usage.changed(self.ticks.at(now));
        if self.ca_state <= CaState::Disorder && self.board.sacked_out() >= REORDERING {
            self.reordering = self.reordering.min(REORDERING);
        }
        self.set_state(now, CaState::Loss);
        self.recovery.high_seq = self.board.snd_nxt();
        self.recovery.tlp_high_seq = None;
        self.ecn.queue_cwr = self.ecn.enabled;
        self.recovery.frto = first || self.recovery.retransmits > 0;
    }

    /// Marks the first segment lost, and all that were sent more than an RTT ago
    /// (`tcp_timeout_mark_lost`).
    fn timeout_mark_lost(&mut self, now: Nanos) {
        let (una, next) = (self.board.snd_una(), self.board.snd_nxt());
        self.board.mark_lost(una);
        for number in una + 1..next {
            if self.rack.skb_timeout(now, self.board.get(number), 0) == 0 {
                self.board.mark_lost(number);
            }
        }
    }

    /// Processes an ACK in Loss, with F-RTO (`tcp_process_loss`, RFC 5682).
    fn process_loss(&mut self, now: Nanos, flag: &AckFlags) -> Rexmit {
        let recovered = self.board.snd_una() >= self.recovery.high_seq;
        if flag.snd_una_advanced && self.try_undo_loss(now, flag.rcv_tsecr, false) {
            return Rexmit::None;
        }
        if self.recovery.frto {
            // An original arrived that was sent before the timeout: the timeout was spurious.
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

    /// Undoes a spurious timeout (`tcp_try_undo_loss`). Returns whether it did.
    fn try_undo_loss(&mut self, now: Nanos, echo: u32, certain: bool) -> bool {
        if !certain && !self.recovery.may_undo(echo) {
            return false;
        }
        self.undo_cwnd_reduction(true);
        self.recovery.retransmits = 0;
        self.set_state(now, CaState::Open);
        true
    }

    /// Ends recovery, and undoes it where it was unnecessary (`tcp_try_undo_recovery`).
    fn try_undo_recovery(&mut self, now: Nanos, echo: u32) {
        if self.recovery.may_undo(echo) {
            self.undo_cwnd_reduction(false);
        } else {
            self.rack.recovered();
        }
        self.set_state(now, CaState::Open);
    }

    /// Undoes recovery when a delayed original filled a gap (`tcp_try_undo_partial`). Returns
    /// whether nothing more is to be done for this ACK.
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

    /// Undoes the reduction when D-SACKs show every retransmission to be spurious
    /// (`tcp_try_undo_dsack`). Returns whether it did.
    fn try_undo_dsack(&mut self) -> bool {
        if self.recovery.undo_marker.is_none() || self.recovery.undo_retrans != Some(0) {
            return false;
        }
        self.rack.undone();
        self.undo_cwnd_reduction(false);
        true
    }

    /// Restores cwnd and slow-start threshold (`tcp_undo_cwnd_reduction`), and the loss marks with
    /// `unmark`.
    fn undo_cwnd_reduction(&mut self, unmark: bool) {
        if unmark {
            self.board.unmark_lost();
        }
        if self.recovery.prior_ssthresh != 0 {
            self.cwnd.cwnd = self.control.undo(&self.cwnd, self.recovery.prior_cwnd);
            if self.recovery.prior_ssthresh > self.cwnd.ssthresh {
                self.cwnd.ssthresh = self.recovery.prior_ssthresh;
                self.ecn.queue_cwr = false;
            }
        }
        self.recovery.undo_marker = None;
        self.rack.look_again();
    }

    /// Returns to Open or Disorder when nothing is lost, or enters CWR after an ECN echo
    /// (`tcp_try_to_open`).
    fn try_to_open(&mut self, now: Nanos, ece: bool) {
        if !self.board.any_retrans_done() {
            self.recovery.retrans_stamp = None;
        }
        if ece {
            self.enter_cwr(now);
        }
        if self.ca_state != CaState::Cwr {
            self.try_keep_open(now);
        }
    }

    /// Enters Open, or Disorder while segments are SACKed or retransmitted (`tcp_try_keep_open`).
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

    /// Begins proportional rate reduction (`tcp_init_cwnd_reduction`).
    fn init_cwnd_reduction(&mut self) {
        self.recovery.high_seq = self.board.snd_nxt();
        self.recovery.tlp_high_seq = None;
        self.cwnd.cwnd_cnt = 0;
        self.recovery.prior_cwnd = self.cwnd.cwnd;
        self.recovery.prr_delivered = 0;
        self.recovery.prr_out = 0;
        self.cwnd.ssthresh = self.control.ssthresh(&self.cwnd);
        self.ecn.queue_cwr = self.ecn.enabled;
    }

    /// Sets the cwnd to ssthresh at the end of a reduction (`tcp_end_cwnd_reduction`).
    fn end_cwnd_reduction(&mut self, now: Nanos) {
        if self.has_cong_control {
            return;
        }
        let undone = self.recovery.undo_marker.is_none() && self.ca_state != CaState::Cwr;
        if self.cwnd.ssthresh < INFINITE_SSTHRESH && !undone {
            self.cwnd.cwnd = self.cwnd.ssthresh;
            self.usage.changed(self.ticks.at(now));
        }
        (self.control).on_event(&mut self.cwnd, CwndEvent::ReductionComplete);
    }

    /// The threshold to restore: at least three quarters of the cwnd (`tcp_current_ssthresh`).
    pub(super) fn current_ssthresh(&self) -> u32 {
        if self.ca_state.is_reducing() {
            self.cwnd.ssthresh
        } else {
            current_ssthresh(&self.cwnd)
        }
    }
}
