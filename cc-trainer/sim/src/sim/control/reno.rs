//! NewReno (RFC 5681, RFC 6582), as in Linux 6.18 (net/ipv4/tcp_cong.c).

use cc_ebpf::{AckSample, CwndState, reno};

use super::{CongestionControl, RateSample};

/// Reno: slow start, then one segment per cwnd of acknowledged ones; half the cwnd after a loss.
#[derive(Clone, Debug, Default)]
pub struct Reno;

impl Reno {
    /// Creates the control, which has no state but the cwnd.
    pub fn new() -> Self {
        Self
    }
}

impl CongestionControl for Reno {
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _: &RateSample) {
        reno::on_ack(cwnd, ack, ack.acked);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        reno::ssthresh(cwnd.cwnd)
    }
}
