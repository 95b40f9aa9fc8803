//! Reno's congestion window (RFC 5681), as Linux 6.18 computes it in net/ipv4/tcp_cong.c.
//!
//! The datapath uses [`on_ack`] for flows without a decision, and the simulator for its `reno`.
//! [`slow_start`] and [`additive_increase`] are also the building blocks of the simulator's other
//! loss-based controls, as they are in the kernel.
//!
//! ```
//! use cc_ebpf::{CwndState, reno};
//!
//! let mut cwnd = CwndState { cwnd: 10, ssthresh: 12, cwnd_cnt: 0, clamp: u32::MAX };
//! // Two of five segments take the cwnd to the threshold; three are left for congestion avoidance.
//! assert_eq!(reno::slow_start(&mut cwnd, 5), 3);
//! assert!(!reno::in_slow_start(&cwnd));
//! // A whole cwnd of acknowledged segments is worth one more.
//! reno::additive_increase(&mut cwnd, 12, 12);
//! assert_eq!(cwnd.cwnd, 13);
//! ```

use crate::{
    AckSample, CwndState,
    bounds::{at_least, at_most, at_most_64},
};

/// Slow-start threshold after a loss: half the cwnd, at least 2 (`tcp_reno_ssthresh`).
#[inline(always)]
pub fn ssthresh(cwnd: u32) -> u32 {
    at_least(cwnd / 2, 2)
}

/// The cwnd after a spurious loss: the larger of the present one and `prior`, the one before the
/// loss (`tcp_reno_undo_cwnd`).
#[inline(always)]
pub fn undo(cwnd: u32, prior: u32) -> u32 {
    at_least(cwnd, prior)
}

/// Sets the cwnd after an ACK of which `acked` segments count for growth: proportional reduction
/// towards ssthresh in recovery and CWR, slow start below ssthresh, one segment per cwnd of
/// acknowledged ones above it (`tcp_reno_cong_avoid`).
#[inline(always)]
pub fn on_ack(cwnd: &mut CwndState, ack: &AckSample, mut acked: u32) {
    if ack.ca_state.is_reducing() {
        // One segment out for two delivered (RFC 6937 with Reno's factor), at least one, so that
        // the fast retransmission never waits for half the flight to drain.
        let allowance = at_least(ack.acked.div_ceil(2), 1);
        let reduced = at_most(cwnd.cwnd, ack.in_flight.saturating_add(allowance));
        cwnd.cwnd = at_least(reduced, cwnd.ssthresh);
        return;
    }
    if !ack.cwnd_limited {
        return;
    }
    if in_slow_start(cwnd) {
        acked = slow_start(cwnd, acked);
    }
    if acked > 0 {
        additive_increase(cwnd, cwnd.cwnd, acked);
    }
}

/// Whether the cwnd is below its threshold (`tcp_in_slow_start`, include/net/tcp.h).
#[inline(always)]
pub fn in_slow_start(cwnd: &CwndState) -> bool {
    cwnd.cwnd < cwnd.ssthresh
}

/// Grows the cwnd by one segment per acknowledged one, up to the threshold (`tcp_slow_start`).
///
/// Returns the acknowledged segments that are left for congestion avoidance.
#[inline(always)]
pub fn slow_start(cwnd: &mut CwndState, acked: u32) -> u32 {
    let most = cwnd.ssthresh.saturating_sub(cwnd.cwnd);
    let used = at_most(acked, most);
    cwnd.cwnd = at_most(cwnd.cwnd + used, cwnd.clamp);
    acked - used
}

/// Grows the cwnd by one segment per `interval` acknowledged ones (`tcp_cong_avoid_ai`). An
/// interval of 0 counts as 1.
#[inline(always)]
pub fn additive_increase(cwnd: &mut CwndState, interval: u32, acked: u32) {
    let interval = at_least(interval, 1);
    let (interval, count) = (u64::from(interval), u64::from(cwnd.cwnd_cnt));
    // Credit that was gathered under a longer interval is worth one segment, not a burst. 1 for
    // such credit, else 0; without a branch, as each one multiplies the paths that the verifier
    // follows.
    let old = (interval - 1).wrapping_sub(count) >> 63;
    let credit = (count & old.wrapping_sub(1)) + u64::from(acked);
    let grown = u64::from(cwnd.cwnd) + old + credit / interval;
    cwnd.cwnd_cnt = (credit % interval) as u32;
    cwnd.cwnd = at_most_64(grown, u64::from(cwnd.clamp)) as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CaState, cwnd::tests::state, feature::tests::ack};

    #[test]
    fn slow_start_stops_at_the_threshold_and_leaves_the_rest() {
        let mut w = state(10, 12);
        assert_eq!(slow_start(&mut w, 1), 0);
        assert_eq!(slow_start(&mut w, 4), 3);
        assert_eq!(w.cwnd, 12);
        assert!(!in_slow_start(&w));
    }

    #[test]
    fn a_cwnd_of_acknowledged_segments_is_worth_one() {
        let mut w = state(10, 5);
        for _ in 0..9 {
            additive_increase(&mut w, 10, 1);
        }
        assert_eq!((w.cwnd, w.cwnd_cnt), (10, 9));
        additive_increase(&mut w, 10, 1);
        assert_eq!((w.cwnd, w.cwnd_cnt), (11, 0));
        additive_increase(&mut w, 10, 25);
        assert_eq!((w.cwnd, w.cwnd_cnt), (13, 5));
    }

    #[test]
    fn old_credit_is_applied_gently() {
        let mut w = state(10, 5);
        additive_increase(&mut w, 100, 90);
        additive_increase(&mut w, 10, 1);
        assert_eq!((w.cwnd, w.cwnd_cnt), (11, 1));
    }

    #[test]
    fn credit_from_before_a_loss_is_worth_one_segment() {
        // 90 segments were acknowledged at a cwnd of 100; the loss leaves a cwnd of 10.
        let mut w = state(10, 10);
        w.cwnd_cnt = 90;
        on_ack(&mut w, &ack(), 1);
        assert_eq!((w.cwnd, w.cwnd_cnt), (11, 1));
    }

    #[test]
    fn the_clamp_holds() {
        let mut w = state(10, u32::MAX);
        w.clamp = 11;
        slow_start(&mut w, 5);
        assert_eq!(w.cwnd, 11);
        additive_increase(&mut w, 1, 5);
        assert_eq!(w.cwnd, 11);
    }

    #[test]
    fn recovery_reduces_in_proportion_and_never_stalls() {
        let mut w = state(100, 50);
        let mut sample = AckSample {
            ca_state: CaState::Recovery,
            acked: 2,
            in_flight: 97,
            ..ack()
        };
        on_ack(&mut w, &sample, 2);
        assert_eq!(w.cwnd, 98);
        sample.in_flight = 10;
        on_ack(&mut w, &sample, 2);
        assert_eq!(w.cwnd, 50);
    }

    #[test]
    fn crossing_ssthresh_loses_no_acknowledged_segments() {
        let mut w = state(8, 10);
        on_ack(&mut w, &ack(), 12);
        assert_eq!(
            (w.cwnd, w.cwnd_cnt),
            (11, 0),
            "2 of slow start, 10 make one more"
        );
    }
}
