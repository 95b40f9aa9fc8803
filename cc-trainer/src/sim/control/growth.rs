//! The two ways in which a window grows by acknowledgements (RFC 5681), as Linux counts them.

use cc_ebpf::CwndState;

/// Whether the window is below its threshold (`tcp_in_slow_start`).
pub(super) fn in_slow_start(cwnd: &CwndState) -> bool {
    cwnd.cwnd < cwnd.ssthresh
}

/// One segment for each acknowledged one, up to the threshold (`tcp_slow_start`, net/ipv4/tcp_cong.c). Returns the
/// acknowledged segments that it left for congestion avoidance.
pub(super) fn slow_start(cwnd: &mut CwndState, acked: u32) -> u32 {
    let grown = cwnd.cwnd.saturating_add(acked).min(cwnd.ssthresh);
    let used = grown.saturating_sub(cwnd.cwnd);
    cwnd.cwnd = grown.min(cwnd.clamp);
    acked - used
}

/// One segment for every `interval` acknowledged ones (`tcp_cong_avoid_ai`, net/ipv4/tcp_cong.c). `interval` is at
/// least 1.
pub(super) fn additive_increase(cwnd: &mut CwndState, interval: u32, acked: u32) {
    // Credit that was gathered under a longer interval is worth one segment, not a burst.
    if cwnd.cwnd_cnt >= interval {
        cwnd.cwnd_cnt = 0;
        cwnd.cwnd += 1;
    }
    cwnd.cwnd_cnt += acked;
    if cwnd.cwnd_cnt >= interval {
        cwnd.cwnd += cwnd.cwnd_cnt / interval;
        cwnd.cwnd_cnt %= interval;
    }
    cwnd.cwnd = cwnd.cwnd.min(cwnd.clamp);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cwnd(cwnd: u32, ssthresh: u32) -> CwndState {
        CwndState {
            cwnd,
            ssthresh,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        }
    }

    #[test]
    fn slow_start_stops_at_the_threshold_and_leaves_the_rest() {
        let mut w = cwnd(10, 12);
        assert_eq!(slow_start(&mut w, 1), 0);
        assert_eq!(slow_start(&mut w, 4), 3);
        assert_eq!(w.cwnd, 12);
        assert!(!in_slow_start(&w));
    }

    #[test]
    fn a_window_of_segments_is_worth_one() {
        let mut w = cwnd(10, 5);
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
        let mut w = cwnd(10, 5);
        additive_increase(&mut w, 100, 90);
        additive_increase(&mut w, 10, 1);
        assert_eq!((w.cwnd, w.cwnd_cnt), (11, 1));
    }

    #[test]
    fn the_clamp_holds() {
        let mut w = cwnd(10, u32::MAX);
        w.clamp = 11;
        slow_start(&mut w, 5);
        assert_eq!(w.cwnd, 11);
        additive_increase(&mut w, 1, 5);
        assert_eq!(w.cwnd, 11);
    }
}
