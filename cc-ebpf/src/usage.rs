//! How much of its cwnd a flow uses, and what becomes of the part that it does not use.
//!
//! A cwnd that the application has not filled says nothing about the path any more. The kernel
//! reduces it while the application limits the sender (`tcp_cwnd_application_limited`, RFC 2861)
//! and after idle time (`tcp_cwnd_restart`), but only for congestion controls without
//! `cong_control` (net/ipv4/tcp_output.c, Linux 6.18). This module does both for those that have
//! it, and bounds what a decision may add by what was used (RFC 7661, section 4.3) and by the
//! round trip.

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample, CwndState,
    bounds::{at_least, at_most},
};

/// Initial cwnd in segments (RFC 6928; `TCP_INIT_CWND`, include/net/tcp.h). No rule of this module
/// reduces a cwnd below it.
pub const INITIAL_CWND: u32 = 10;

/// Slow-start threshold that remembers a cwnd which is about to be reduced although nothing was
/// lost: three quarters of it (`tcp_current_ssthresh`, include/net/tcp.h).
#[inline(always)]
fn remembered(cwnd: &CwndState) -> u32 {
    at_least(cwnd.ssthresh, cwnd.cwnd / 2 + cwnd.cwnd / 4)
}

/// Reduces the cwnd of a sender that transmits again after it had nothing in flight: by half for
/// each retransmission timeout that it was idle, down to [`INITIAL_CWND`] (`tcp_cwnd_restart`, RFC
/// 2861). `idle` is the time since the last transmission, in the unit of `rto`; nothing happens
/// while it is not longer than `rto`.
///
/// Returns whether the cwnd has to be probed anew, which is when `idle` was longer than `rto`.
///
/// ```
/// use cc_ebpf::{CwndState, restart_after_idle};
///
/// let mut cwnd = CwndState { cwnd: 400, ssthresh: 200, cwnd_cnt: 0, clamp: u32::MAX };
/// assert!(!restart_after_idle(&mut cwnd, 200, 200));
/// assert!(restart_after_idle(&mut cwnd, 500, 200));
/// assert_eq!((cwnd.cwnd, cwnd.ssthresh), (100, 300));
/// ```
#[inline(always)]
pub fn restart_after_idle(cwnd: &mut CwndState, idle: u32, rto: u32) -> bool {
    if idle <= rto {
        return false;
    }
    // The kernel halves once for each timeout that ended before now.
    let halvings = at_most((idle - 1) / at_least(rto, 1), 31);
    let floor = at_most(INITIAL_CWND, cwnd.cwnd);
    cwnd.ssthresh = remembered(cwnd);
    cwnd.cwnd = at_least(cwnd.cwnd >> halvings, floor);
    true
}

/// Since when, and how far, a flow has left its cwnd unused.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Usage {
    /// When the cwnd last limited the sender or was last reduced, ns; 0 for the next ACK.
    since_ns: u64,
    /// Most segments outstanding since then.
    used: u32,
    /// The cwnd when the round trip under way began; 0 before the first.
    base: u32,
}

impl Usage {
    /// Starts with a cwnd that counts as used until the next ACK.
    #[inline(always)]
    pub(crate) fn restart(&mut self) {
        self.start(0);
    }

    #[inline(always)]
    fn start(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
        self.used = 0;
    }

    /// Takes note of the cwnd with which a round trip begins.
    #[inline(always)]
    pub(crate) fn begin_round(&mut self, cwnd: u32) {
        self.base = cwnd;
    }

    /// The largest cwnd that a decision may lead to now, in segments: while the cwnd limits the
    /// sender twice what was outstanding during the last cwnd of data, and twice the cwnd with
    /// which the round trip began, so that no decision grows faster than slow start does: what a
    /// larger cwnd does to the path is known a round trip later, and where many windows end before,
    /// each of their decisions would add to it. Otherwise no more than now. At least
    /// [`INITIAL_CWND`].
    #[inline(always)]
    pub(crate) fn supported(&self, cwnd: u32, ack: &AckSample) -> u32 {
        let supported = if ack.cwnd_limited {
            let doubled = at_most(ack.max_packets_out, self.base).saturating_mul(2);
            at_least(doubled, cwnd)
        } else {
            cwnd
        };
        at_least(supported, INITIAL_CWND)
    }

    /// Reduces a cwnd that the application has left unused for a retransmission timeout: to the
    /// mean of it and what was used, but not below [`INITIAL_CWND`]
    /// (`tcp_cwnd_application_limited`, RFC 2861).
    #[inline(always)]
    pub(crate) fn decay(&mut self, cwnd: &mut CwndState, ack: &AckSample) {
        if ack.cwnd_limited || ack.ca_state.is_reducing() || self.since_ns == 0 {
            return self.start(ack.now_ns);
        }
        self.used = at_least(self.used, ack.max_packets_out);
        let unused_ns = ack.now_ns.wrapping_sub(self.since_ns);
        if unused_ns < ack.rto_us() * 1_000 {
            return;
        }
        let used = at_least(self.used, INITIAL_CWND);
        if used < cwnd.cwnd {
            cwnd.ssthresh = remembered(cwnd);
            cwnd.cwnd = used + (cwnd.cwnd - used) / 2;
        }
        self.start(ack.now_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{cwnd::tests::state, feature::tests::ack};

    #[test]
    fn a_cwnd_that_limits_the_sender_supports_twice_what_was_outstanding() {
        let mut usage = Usage::default();
        usage.begin_round(1_000);
        let mut sample = ack();
        sample.max_packets_out = 40;
        assert_eq!(usage.supported(40, &sample), 80);
        assert_eq!(
            usage.supported(100, &sample),
            100,
            "never below the present cwnd"
        );
        sample.cwnd_limited = false;
        assert_eq!(usage.supported(40, &sample), 40);
        assert_eq!(usage.supported(4, &sample), INITIAL_CWND);
    }

    #[test]
    fn within_a_round_trip_the_cwnd_doubles_at_most() {
        let mut usage = Usage::default();
        let mut sample = ack();
        assert_eq!(usage.supported(30, &sample), 30, "before the first");
        usage.begin_round(30);
        for cwnd in [30, 45, 60] {
            sample.max_packets_out = cwnd;
            assert_eq!(usage.supported(cwnd, &sample), 60);
        }
        usage.begin_round(60);
        assert_eq!(usage.supported(60, &sample), 120);
        usage.begin_round(2);
        sample.max_packets_out = 2;
        assert_eq!(usage.supported(2, &sample), INITIAL_CWND);
    }

    #[test]
    fn unused_cwnd_decays_once_per_timeout() {
        let (mut usage, mut w) = (Usage::default(), state(100, u32::MAX));
        let mut sample = ack();
        usage.decay(&mut w, &sample);
        assert_eq!(w.cwnd, 100, "the cwnd limits the sender");
        sample.cwnd_limited = false;
        sample.max_packets_out = 20;
        sample.now_ns += sample.rto_us() * 1_000 - 1;
        usage.decay(&mut w, &sample);
        assert_eq!(w.cwnd, 100, "not for a whole timeout");
        sample.now_ns += 1;
        usage.decay(&mut w, &sample);
        assert_eq!((w.cwnd, w.ssthresh), (60, u32::MAX));
        usage.decay(&mut w, &sample);
        assert_eq!(w.cwnd, 60, "the next timeout has begun");
        sample.max_packets_out = 3;
        for _ in 0..20 {
            sample.now_ns += 1_000_000_000;
            usage.decay(&mut w, &sample);
        }
        assert_eq!(w.cwnd, INITIAL_CWND);
    }

    #[test]
    fn a_decayed_cwnd_is_remembered_as_threshold() {
        let (mut usage, mut w) = (Usage::default(), state(100, 50));
        let mut sample = ack();
        sample.cwnd_limited = false;
        sample.max_packets_out = 10;
        usage.start(sample.now_ns);
        sample.now_ns += 1_000_000_000;
        usage.decay(&mut w, &sample);
        assert_eq!((w.cwnd, w.ssthresh), (55, 75));
    }

    proptest! {
        /// Against the kernel's loop.
        #[test]
        fn restarts_as_the_kernel_does(
            cwnd in 1u32..5_000, ssthresh in 2u32..5_000, idle in 0u32..100_000,
            rto in 1u32..4_000,
        ) {
            let mut w = state(cwnd, ssthresh);
            let restarted = restart_after_idle(&mut w, idle, rto);
            prop_assert_eq!(restarted, idle > rto);
            if !restarted {
                prop_assert_eq!(w, state(cwnd, ssthresh));
                return Ok(());
            }
            let (mut expected, floor) = (cwnd, INITIAL_CWND.min(cwnd));
            let mut delta = i64::from(idle);
            loop {
                delta -= i64::from(rto);
                if delta <= 0 || expected <= floor {
                    break;
                }
                expected >>= 1;
            }
            prop_assert_eq!(w.cwnd, expected.max(floor));
            prop_assert_eq!(w.ssthresh, ssthresh.max(cwnd / 2 + cwnd / 4));
        }
    }
}
