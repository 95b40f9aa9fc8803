//! NewReno (RFC 5681, RFC 6582), as net/ipv4/tcp_cong.c has it.

use cc_ebpf::{AckSample, CwndState, reno};

use super::{CongestionControl, RateSample};

/// Slow start, then a segment a window; half the window after a loss.
#[derive(Clone, Debug, Default)]
pub struct Reno;

impl Reno {
    /// It has no state beside the window.
    pub fn new() -> Self {
        Self
    }
}

impl CongestionControl for Reno {
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _: &RateSample) {
        reno::on_ack(cwnd, ack);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        reno::ssthresh(cwnd.cwnd)
    }
}
