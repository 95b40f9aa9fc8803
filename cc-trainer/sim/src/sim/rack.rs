//! Loss detection by time: RACK (RFC 8985, net/ipv4/tcp_recovery.c).

use crate::path::Nanos;

use super::scoreboard::{Scoreboard, Segment};

/// Recoveries for which a reordering window that a D-SACK has widened lasts (`TCP_RACK_RECOVERY_THRESH`).
const PERSISTENCE: u8 = 16;

/// Which segment that was sent last is known to be delivered, and how long to wait for those sent before it.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// When that segment was sent, and its number, which decides between equal times.
    sent: Nanos,
    number: u32,
    /// RTT of the newest delivery, ns.
    rtt: Nanos,
    /// Something was delivered since losses were looked for.
    advanced: bool,
    /// The reordering window in quarters of the smallest RTT.
    steps: u32,
    /// Recoveries until it is one quarter again.
    persist: u8,
    duplicate_seen: bool,
    /// Segments delivered when the window was adjusted last.
    adjusted_at: u32,
}

/// What the reordering window depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Smallest RTT, µs.
    pub(super) min_rtt_us: u32,
    /// Smoothed RTT, µs.
    pub(super) smoothed_us: u32,
    /// Nothing suggests that the path reorders, and segments are missing beyond doubt: no waiting.
    pub(super) none: bool,
}

impl Rack {
    /// Nothing delivered yet.
    pub(super) fn new() -> Self {
        Self {
            sent: 0,
            number: 0,
            rtt: 0,
            advanced: false,
            steps: 1,
            persist: 0,
            duplicate_seen: false,
            adjusted_at: 0,
        }
    }

    /// A segment was delivered (`tcp_rack_advance`).
    #[inline]
    pub(super) fn advance(&mut self, now: Nanos, number: u32, segment: &Segment, min_rtt_us: u32) {
        let rtt = now - segment.sent;
        // Too soon for the retransmission: that was the original.
        if segment.flags.ever_retransmitted && rtt / 1_000 < u64::from(min_rtt_us) {
            return;
        }
        self.advanced = true;
        self.rtt = rtt;
        if (segment.sent, number) > (self.sent, self.number) {
            self.sent = segment.sent;
            self.number = number;
        }
    }

    /// Losses are to be looked for again (`tcp_undo_cwnd_reduction`).
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
    }

    /// A segment came twice (`tcp_dsack_seen`).
    pub(super) fn duplicate(&mut self) {
        self.duplicate_seen = true;
    }

    /// A loss turned out to be none by a D-SACK (`tcp_try_undo_dsack`).
    pub(super) fn undone(&mut self) {
        self.persist = PERSISTENCE.min(self.persist + 1);
    }

    /// A recovery ended, and was needed.
    pub(super) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
    }

    /// Adjusts the reordering window once a round trip (`tcp_rack_update_reo_wnd`).
    #[inline]
    pub(super) fn adapt(&mut self, prior_delivered: u32, delivered: u32) {
        if prior_delivered == 0 {
            return;
        }
        if prior_delivered < self.adjusted_at {
            self.duplicate_seen = false;
        }
        if self.duplicate_seen {
            self.steps = (self.steps + 1).min(255);
            self.duplicate_seen = false;
            self.adjusted_at = delivered;
            self.persist = PERSISTENCE;
        } else if self.persist == 0 {
            self.steps = 1;
        }
    }

    /// Marks what is lost, if something was delivered since the last time (`tcp_rack_mark_lost`). Gives how long to wait
    /// for the rest of what should have come, ns.
    #[inline]
    pub(super) fn mark_lost(
        &mut self,
        now: Nanos,
        board: &mut Scoreboard,
        patience: Patience,
    ) -> Option<Nanos> {
        if !self.advanced {
            return None;
        }
        self.advanced = false;
        self.detect(now, board, patience)
    }

    /// Marks what is lost (`tcp_rack_detect_loss`).
    pub(super) fn detect(
        &mut self,
        now: Nanos,
        board: &mut Scoreboard,
        patience: Patience,
    ) -> Option<Nanos> {
        let window = self.reordering_window(patience);
        let mut wait = None;
        let mut candidate = board.oldest();
        while let Some(number) = candidate {
            let segment = board.get(number);
            if (segment.sent, number) >= (self.sent, self.number) {
                break;
            }
            candidate = board.sent_after(number);
            match self.remaining(now, segment, window) {
                0 => board.mark_lost(number),
                remaining => wait = wait.max(Some(remaining)),
            }
        }
        wait
    }

    /// How long it may still take until the segment counts as lost, ns (`tcp_rack_skb_timeout`).
    #[inline]
    pub(super) fn remaining(&self, now: Nanos, segment: &Segment, window: Nanos) -> Nanos {
        (segment.sent + self.rtt + window).saturating_sub(now)
    }

    /// `tcp_rack_reo_wnd`, ns.
    #[inline]
    fn reordering_window(&self, patience: Patience) -> Nanos {
        if patience.none {
            return 0;
        }
        let quarters = u64::from(patience.min_rtt_us / 4) * u64::from(self.steps);
        quarters.min(patience.smoothed_us.into()) * 1_000
    }
}
