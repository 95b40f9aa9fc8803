//! Fast recovery, timeouts and their undoing (`tcp_fastretrans_alert` and what it calls, net/ipv4/tcp_input.c).

use cc_ebpf::CaState;

use crate::path::Nanos;
use crate::sim::control::CongestionControl;
use crate::sim::rack::Patience;
use crate::sim::timer;
use crate::sim::wire::milliseconds;

use super::transmit::Timer;
use super::{Seen, Sender};

/// No slow-start threshold (`TCP_INFINITE_SSTHRESH`).
pub(super) const INFINITE: u32 = 0x7fff_ffff;
/// Segments by which a path is taken to reorder at first (`tcp_reordering`).
pub(super) const REORDERING: u32 = 3;
/// And at most (`tcp_max_reordering`).
pub(super) const MAX_REORDERING: u32 = 300;

/// What is known of the present or last recovery.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    /// It ends when everything before this segment is acknowledged (`high_seq`).
    pub(super) high: u32,
    /// Consecutive timeouts (`icsk_retransmits`).
    pub(super) retransmits: u32,
    /// Window and slow-start threshold before; 0 for a threshold that is not to be restored.
    prior_cwnd: u32,
    prior_ssthresh: u32,
    /// The first unacknowledged segment when it began, as long as it may be undone (`undo_marker`).
    undo: Option<u32>,
    /// Retransmissions of it that are not known to be in vain (`undo_retrans`); none before the first.
    useful: Option<u32>,
    /// TSval of its first retransmission (`retrans_stamp`).
    first_retransmission: Option<u32>,
    /// Segments delivered and sent since it began (`prr_delivered`, `prr_out`).
    delivered: u32,
    sent: u32,
    /// It may be found that the timeout was spurious (RFC 5682).
    frto: bool,
    /// The highest segment when a loss probe was sent whose ACK is awaited (`tlp_high_seq`).
    probe: Option<u32>,
}

/// What to send after an ACK besides what the window lets go anyway (`REXMIT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// What is lost.
    Lost,
    /// New data, to see whether a timeout was spurious.
    New,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            high: 0,
            retransmits: 0,
            prior_cwnd: 0,
            prior_ssthresh: 0,
            undo: None,
            useful: None,
            first_retransmission: None,
            delivered: 0,
            sent: 0,
            frto: false,
            probe: None,
        }
    }

    /// The probe is answered (`tcp_process_tlp_ack`; a bulk flow probes with new data, so that nothing is to be
    /// concluded from it).
    #[inline]
    pub(super) fn end_probe(&mut self, ack: u32) {
        if self.probe.is_some_and(|high| ack >= high) {
            self.probe = None;
        }
    }

    /// Whether a probe awaits its ACK; if not, one does now.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    pub(super) fn probed(&mut self, next: u32) {
        self.probe = Some(next);
    }

    /// A retransmission of this segment is known to be in vain.
    pub(super) fn in_vain(&mut self, number: u32) {
        if self.undo.is_some_and(|undo| number >= undo) {
            self.useful = self.useful.map(|useful| useful.saturating_sub(1));
        }
    }

    /// `segments` were retransmitted.
    pub(super) fn retransmitted(&mut self, now: Nanos, segments: u32) {
        self.first_retransmission.get_or_insert(milliseconds(now));
        self.useful = Some(self.useful.unwrap_or_default() + segments);
    }

    /// `segments` were sent while the window is being reduced.
    #[inline]
    pub(super) fn count_sent(&mut self, segments: u32) {
        self.sent += segments;
    }

    /// The ACK echoes a time before the first retransmission, or there was none (`tcp_packet_delayed`).
    fn was_only_delayed(&self, echo: u32) -> bool {
        self.first_retransmission.is_none_or(|first| echo < first)
    }

    /// `tcp_may_undo`.
    fn may_undo(&self, echo: u32) -> bool {
        self.undo.is_some() && (self.useful == Some(0) || self.was_only_delayed(echo))
    }

    /// `tcp_init_undo`.
    fn prepare_undo(&mut self, una: u32, retransmitted: u32) {
        self.undo = Some(una);
        self.useful = (retransmitted > 0).then_some(retransmitted);
    }
}

impl Sender {
    /// `tcp_fastretrans_alert`.
    pub(super) fn alert(&mut self, now: Nanos, prior_una: u32, seen: &mut Seen) -> Then {
        if self.state == CaState::Open {
            self.recovery.first_retransmission = None;
        } else if self.board.una() >= self.recovery.high {
            match self.state {
                CaState::Cwr if self.board.una() != self.recovery.high => {
                    self.end_reduction();
                    self.set_state(now, CaState::Open);
                }
                CaState::Recovery => {
                    self.end_recovery(now, seen.echo);
                    self.end_reduction();
                }
                _ => {}
            }
        }
        match self.state {
            CaState::Recovery => {
                if seen.advanced && self.undo_partially(now, prior_una, seen) {
                    return Then::Nothing;
                }
                if self.undo_by_duplicates() {
                    self.try_to_open(now);
                }
                self.find_lost(now, seen);
                if self.state != CaState::Recovery {
                    if self.board.lost() == 0 {
                        return Then::Nothing;
                    }
                    self.enter_recovery(now);
                }
            }
            CaState::Loss => {
                let then = self.go_on_after_timeout(now, seen);
                self.find_lost(now, seen);
                if self.state != CaState::Open && !seen.lost_retransmission {
                    return then;
                }
                if !self.recover_if_lost(now, seen) {
                    return then;
                }
            }
            _ => {
                if !self.recover_if_lost(now, seen) {
                    return Then::Nothing;
                }
            }
        }
        Then::Lost
    }

    /// Sends what an ACK calls for (`tcp_xmit_recovery`).
    #[inline]
    pub(super) fn follow(&mut self, now: Nanos, then: Then) {
        match then {
            Then::Nothing => return,
            Then::Lost => {}
            Then::New => {
                self.transmit(now, false);
                if self.board.next() > self.recovery.high {
                    return;
                }
                self.recovery.frto = false;
            }
        }
        self.retransmit_lost(now);
    }

    /// A retransmission timeout (`tcp_retransmit_timer`).
    pub(super) fn on_timeout(&mut self, now: Nanos) {
        if self.board.outstanding() == 0 {
            return;
        }
        self.recovery.probe = None;
        self.enter_loss(now);
        self.recovery.retransmits += 1;
        self.totals.rtos = self.totals.rtos.wrapping_add(1);
        self.retransmit(now, self.board.una());
        self.rtt.back_off();
        let timeout = self.rtt.timeout();
        self.set_timer(now, Timer::Retransmission, timeout);
    }

    /// The reordering window has passed for a segment (`tcp_rack_reo_timeout`).
    pub(super) fn on_reordering_timeout(&mut self, now: Nanos) {
        let prior_in_flight = self.board.in_flight();
        let prior_losses = self.board.losses();
        let patience = self.patience();
        if let Some(wait) = self.rack.detect(now, &mut self.board, patience) {
            self.set_reordering_timer(now, wait);
        }
        if self.board.in_flight() != prior_in_flight {
            if self.state != CaState::Recovery {
                self.enter_recovery(now);
                if !self.rules {
                    let lost = (self.board.losses() - prior_losses) as u32;
                    self.reduce_cwnd(1, lost, false);
                }
            }
            self.retransmit_lost(now);
        }
        if self.timer != Timer::Retransmission {
            self.rearm_timeout(now);
        }
    }

    /// Proportional rate reduction (RFC 6937, `tcp_cwnd_reduction`): by delivery while more is in flight than the
    /// threshold, then up to it in conservation, or in slow start while nothing more is lost.
    #[inline]
    pub(super) fn reduce_cwnd(&mut self, delivered: u32, lost: u32, advanced: bool) {
        let recovery = &mut self.recovery;
        if delivered == 0 || recovery.prior_cwnd == 0 {
            return;
        }
        let in_flight = self.board.in_flight();
        recovery.delivered += delivered;
        let ssthresh = self.cwnd.ssthresh;
        let mut allowed = if in_flight > ssthresh {
            let share = u64::from(ssthresh) * u64::from(recovery.delivered);
            let share = share.div_ceil(recovery.prior_cwnd.into()) as i64;
            share - i64::from(recovery.sent)
        } else {
            let unsent = i64::from(recovery.delivered) - i64::from(recovery.sent);
            let grown = unsent.max(delivered.into()) + i64::from(advanced && lost == 0);
            grown.min((ssthresh - in_flight).into())
        };
        // The fast retransmission is never held back.
        allowed = allowed.max((recovery.sent == 0).into());
        self.cwnd.cwnd = (i64::from(in_flight) + allowed).clamp(0, u32::MAX.into()) as u32;
    }

    /// Whether there is something lost, and so a recovery begins.
    fn recover_if_lost(&mut self, now: Nanos, seen: &mut Seen) -> bool {
        if self.state <= CaState::Disorder {
            self.undo_by_duplicates();
        }
        self.find_lost(now, seen);
        if self.board.lost() == 0 {
            self.try_to_open(now);
            return false;
        }
        self.enter_recovery(now);
        true
    }

    /// `tcp_identify_packet_loss`.
    #[inline]
    fn find_lost(&mut self, now: Nanos, seen: &mut Seen) {
        if self.board.outstanding() == 0 {
            return;
        }
        let retransmitted = self.board.retransmitted();
        let patience = self.patience();
        if let Some(wait) = self.rack.mark_lost(now, &mut self.board, patience) {
            self.set_reordering_timer(now, wait);
            seen.set_timer = false;
        }
        seen.lost_retransmission |= self.board.retransmitted() < retransmitted;
    }

    fn set_reordering_timer(&mut self, now: Nanos, wait: Nanos) {
        let jiffies = timer::jiffies(wait / 1_000 + super::transmit::TIMEOUT_MIN_US);
        self.set_timer(now, Timer::Reordering, jiffies);
    }

    fn patience(&self) -> Patience {
        Patience {
            min_rtt_us: self.rtt.min_us(),
            smoothed_us: self.rtt.smoothed_us(),
            none: !self.reordered
                && (self.state >= CaState::Recovery || self.board.sacked() >= self.reordering),
        }
    }

    fn enter_recovery(&mut self, now: Nanos) {
        if !self.board.any_retransmitted() {
            self.recovery.first_retransmission = None;
        }
        self.recovery.prior_ssthresh = 0;
        (self.recovery).prepare_undo(self.board.una(), self.board.retransmitted());
        if !self.state.is_reducing() {
            self.recovery.prior_ssthresh = self.current_ssthresh();
            self.begin_reduction();
        }
        self.set_state(now, CaState::Recovery);
    }

    /// `tcp_enter_loss`.
    fn enter_loss(&mut self, now: Nanos) {
        let first = self.state < CaState::Recovery;
        self.mark_timed_out(now);
        let once_a_window = self.state <= CaState::Disorder
            || self.recovery.high <= self.board.una()
            || (self.state == CaState::Loss && self.recovery.retransmits == 0);
        if once_a_window {
            self.recovery.prior_ssthresh = self.current_ssthresh();
            self.recovery.prior_cwnd = self.cwnd.cwnd;
            self.cwnd.ssthresh = self.control.ssthresh(&self.cwnd);
            (self.recovery).prepare_undo(self.board.una(), self.board.retransmitted());
        }
        self.cwnd.cwnd = self.board.in_flight() + 1;
        self.cwnd.cwnd_cnt = 0;
        if self.state <= CaState::Disorder && self.board.sacked() >= REORDERING {
            self.reordering = self.reordering.min(REORDERING);
        }
        self.set_state(now, CaState::Loss);
        self.recovery.high = self.board.next();
        self.recovery.probe = None;
        self.recovery.frto = first || self.recovery.retransmits > 0;
    }

    /// Takes the first segment for lost, and all that were sent an RTT ago (`tcp_timeout_mark_lost`).
    fn mark_timed_out(&mut self, now: Nanos) {
        let (una, next) = (self.board.una(), self.board.next());
        self.board.mark_lost(una);
        for number in una + 1..next {
            if self.rack.remaining(now, self.board.get(number), 0) == 0 {
                self.board.mark_lost(number);
            }
        }
    }

    /// `tcp_process_loss`.
    fn go_on_after_timeout(&mut self, now: Nanos, seen: &Seen) -> Then {
        let recovered = self.board.una() >= self.recovery.high;
        if seen.advanced && self.undo_timeout(now, seen.echo, false) {
            return Then::Nothing;
        }
        if self.recovery.frto {
            // Originals arrive that were sent before the timeout: it was spurious.
            if seen.original && self.undo_timeout(now, seen.echo, true) {
                return Then::Nothing;
            }
            if self.board.next() > self.recovery.high {
                if seen.sacked || !seen.advanced {
                    self.recovery.frto = false;
                }
            } else if seen.advanced && !recovered {
                self.recovery.high = self.board.next();
                return Then::New;
            }
        }
        if recovered {
            self.end_recovery(now, seen.echo);
            return Then::Nothing;
        }
        Then::Lost
    }

    /// `tcp_try_undo_loss`.
    fn undo_timeout(&mut self, now: Nanos, echo: u32, certain: bool) -> bool {
        if !certain && !self.recovery.may_undo(echo) {
            return false;
        }
        self.undo(true);
        self.recovery.retransmits = 0;
        self.set_state(now, CaState::Open);
        true
    }

    /// `tcp_try_undo_recovery`.
    fn end_recovery(&mut self, now: Nanos, echo: u32) {
        if self.recovery.may_undo(echo) {
            self.undo(false);
        } else {
            self.rack.recovered();
        }
        self.set_state(now, CaState::Open);
    }

    /// A gap was filled by a delayed original (`tcp_try_undo_partial`). Whether nothing more is to be done.
    fn undo_partially(&mut self, now: Nanos, prior_una: u32, seen: &Seen) -> bool {
        if self.recovery.undo.is_none() || !self.recovery.was_only_delayed(seen.echo) {
            return false;
        }
        self.note_reordering(prior_una);
        if self.board.retransmitted() > 0 {
            return true;
        }
        if !self.board.any_retransmitted() {
            self.recovery.first_retransmission = None;
        }
        self.undo(true);
        self.try_keep_open(now);
        false
    }

    /// Every retransmission was in vain (`tcp_try_undo_dsack`).
    fn undo_by_duplicates(&mut self) -> bool {
        if self.recovery.undo.is_none() || self.recovery.useful != Some(0) {
            return false;
        }
        self.rack.undone();
        self.undo(false);
        true
    }

    /// `tcp_undo_cwnd_reduction`.
    fn undo(&mut self, unmark: bool) {
        if unmark {
            self.board.unmark_lost();
        }
        if self.recovery.prior_ssthresh != 0 {
            self.cwnd.cwnd = self.control.undo(&self.cwnd, self.recovery.prior_cwnd);
            self.cwnd.ssthresh = self.cwnd.ssthresh.max(self.recovery.prior_ssthresh);
        }
        self.recovery.undo = None;
        self.rack.look_again();
    }

    /// `tcp_try_to_open`.
    fn try_to_open(&mut self, now: Nanos) {
        if !self.board.any_retransmitted() {
            self.recovery.first_retransmission = None;
        }
        if self.state != CaState::Cwr {
            self.try_keep_open(now);
        }
    }

    /// `tcp_try_keep_open`.
    fn try_keep_open(&mut self, now: Nanos) {
        let left = self.board.sacked() + self.board.lost() > 0 || self.board.any_retransmitted();
        let state = if left {
            CaState::Disorder
        } else {
            CaState::Open
        };
        if self.state != state {
            self.set_state(now, state);
            self.recovery.high = self.board.next();
        }
    }

    /// `tcp_init_cwnd_reduction`.
    fn begin_reduction(&mut self) {
        self.recovery.high = self.board.next();
        self.recovery.probe = None;
        self.cwnd.cwnd_cnt = 0;
        self.recovery.prior_cwnd = self.cwnd.cwnd;
        self.recovery.delivered = 0;
        self.recovery.sent = 0;
        self.cwnd.ssthresh = self.control.ssthresh(&self.cwnd);
    }

    /// `tcp_end_cwnd_reduction`.
    fn end_reduction(&mut self) {
        let undone = self.recovery.undo.is_none() && self.state != CaState::Cwr;
        if !self.rules && self.cwnd.ssthresh < INFINITE && !undone {
            self.cwnd.cwnd = self.cwnd.ssthresh;
        }
    }

    /// `tcp_current_ssthresh`.
    fn current_ssthresh(&self) -> u32 {
        let cwnd = self.cwnd.cwnd;
        if self.state.is_reducing() {
            self.cwnd.ssthresh
        } else {
            self.cwnd.ssthresh.max((cwnd >> 1) + (cwnd >> 2))
        }
    }
}
