//! Loss detection by time: RACK (RFC 8985; Linux 6.18, net/ipv4/tcp_recovery.c).

use crate::path::Nanos;

use super::scoreboard::{Scoreboard, Segment};

/// Number of recoveries for which a reordering window that a D-SACK has widened lasts
/// (`TCP_RACK_RECOVERY_THRESH`).
const RECOVERY_THRESH: u8 = 16;

/// State of RACK (`tcp_sock.rack`): the most recently sent segment that is known to be delivered,
/// and how long segments sent before it are waited for.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// When that segment was sent, and its number, which decides between equal times (`mstamp`,
    /// `end_seq`).
    mstamp: Nanos,
    end_seq: u32,
    /// RTT of the newest delivery, ns (`rtt_us`).
    rtt: Nanos,
    /// Whether a segment was delivered since losses were last detected (`advanced`).
    advanced: bool,
    /// Reordering window in quarters of the smallest RTT (`reo_wnd_steps`).
    reo_wnd_steps: u32,
    /// Recoveries left until the window is one quarter again (`reo_wnd_persist`).
    reo_wnd_persist: u8,
    dsack_seen: bool,
    /// Lifetime segments delivered when the window was last adjusted (`last_delivered`).
    last_delivered: u32,
}

impl Rack {
    /// Creates the state before the first delivery.
    pub(super) fn new() -> Self {
        Self {
            mstamp: 0,
            end_seq: 0,
            rtt: 0,
            advanced: false,
            reo_wnd_steps: 1,
            reo_wnd_persist: 0,
            dsack_seen: false,
            last_delivered: 0,
        }
    }

    /// Takes note of a delivered segment (`tcp_rack_advance`).
    #[inline]
    pub(super) fn advance(&mut self, now: Nanos, number: u32, segment: &Segment, min_rtt_us: u32) {
        // A paced retransmission has the time at which it is to leave, which may be later than the
        // ACK of the original (`tcp_stamp_us_delta` is never negative).
        let rtt = now.saturating_sub(segment.sent);
        // It arrived too soon for the retransmission, so this was the original.
        if segment.flags.ever_retrans && rtt / 1_000 < u64::from(min_rtt_us) {
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        if (segment.sent, number) > (self.mstamp, self.end_seq) {
            self.mstamp = segment.sent;
            self.end_seq = number;
        }
    }

    /// Has the next ACK detect losses again (`tcp_undo_cwnd_reduction`).
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
    }

    /// Takes note of a segment that arrived twice (`tcp_dsack_seen`).
    pub(super) fn note_dsack(&mut self) {
        self.dsack_seen = true;
    }

    /// Takes note of a recovery that a D-SACK has undone (`tcp_try_undo_dsack`).
    pub(super) fn undone(&mut self) {
        self.reo_wnd_persist = RECOVERY_THRESH.min(self.reo_wnd_persist + 1);
    }

    /// Takes note of the end of a recovery that was necessary.
    pub(super) fn recovered(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
    }

    /// Adjusts the reordering window, once per round trip (`tcp_rack_update_reo_wnd`).
    #[inline]
    pub(super) fn update_reo_wnd(&mut self, prior_delivered: u32, delivered: u32) {
        if prior_delivered == 0 {
            return;
        }
        if prior_delivered < self.last_delivered {
            self.dsack_seen = false;
        }
        if self.dsack_seen {
            self.reo_wnd_steps = (self.reo_wnd_steps + 1).min(255);
            self.dsack_seen = false;
            self.last_delivered = delivered;
            self.reo_wnd_persist = RECOVERY_THRESH;
        } else if self.reo_wnd_persist == 0 {
            self.reo_wnd_steps = 1;
        }
    }

    /// Detects losses if a segment was delivered since the last time (`tcp_rack_mark_lost`).
    /// Returns how long to wait for the segments that may still arrive, ns.
    #[inline]
    pub(super) fn mark_lost(
        &mut self,
        now: Nanos,
        board: &mut Scoreboard,
        reo_wnd: Nanos,
    ) -> Option<Nanos> {
        if !self.advanced {
            return None;
        }
        self.advanced = false;
        self.detect_loss(now, board, reo_wnd)
    }

    /// Marks segments lost (`tcp_rack_detect_loss`). Returns how long to wait for the segments that
    /// may still arrive, ns; `None` when there are none.
    pub(super) fn detect_loss(
        &mut self,
        now: Nanos,
        board: &mut Scoreboard,
        reo_wnd: Nanos,
    ) -> Option<Nanos> {
        let mut wait = None;
        let mut candidate = board.oldest();
        while let Some(number) = candidate {
            let segment = board.get(number);
            if (segment.sent, number) >= (self.mstamp, self.end_seq) {
                break;
            }
            candidate = board.sent_after(number);
            match self.skb_timeout(now, segment, reo_wnd) {
                0 => board.mark_lost(number),
                remaining => wait = wait.max(Some(remaining)),
            }
        }
        wait
    }

    /// Time until the segment counts as lost, ns; 0 when it is lost (`tcp_rack_skb_timeout`).
    #[inline]
    pub(super) fn skb_timeout(&self, now: Nanos, segment: &Segment, reo_wnd: Nanos) -> Nanos {
        (segment.sent + self.rtt + reo_wnd).saturating_sub(now)
    }

    /// The reordering window in ns (`tcp_rack_reo_wnd`): its steps in quarters of the smallest RTT,
    /// at most the smoothed RTT. Both RTTs are in µs.
    #[inline]
    pub(super) fn reo_wnd(&self, min_rtt_us: u32, srtt_us: u32) -> Nanos {
        let quarters = u64::from(min_rtt_us / 4) * u64::from(self.reo_wnd_steps);
        quarters.min(srtt_us.into()) * 1_000
    }
}
