//! What the model sets: pacing rate and cwnd (section 5.6).

use cc_ebpf::{CaState, CwndState};

use super::{Bbr3, INITIAL_CWND, Input, MIN_PIPE_CWND, State, bounds::UNBOUNDED, pacing_rate};
use crate::sim::control::CongestionControl;
use crate::sim::control::bbr::{bandwidth, gain::Gain};

impl Bbr3 {
    /// Sets the pacing rate, which does not fall before the pipe was full
    /// (`SetPacingRateWithGain`, section 5.6.2).
    pub(super) fn pace(&mut self, gain: Gain) {
        let rate = pacing_rate(self.bandwidth(), gain, self.mss).max(1);
        if self.full_pipe.reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Segments in flight that `gain` asks for (`Inflight`, section 5.6.4.2).
    pub(super) fn inflight(&self, gain: Gain) -> u32 {
        self.with_bursts(self.bdp(self.bandwidth(), gain))
    }

    /// Makes room for bursts at the sender, in offloads and at the receiver (`QuantizationBudget`).
    pub(super) fn with_bursts(&self, segments: u32) -> u32 {
        let burst = bandwidth::burst(self.pacing_rate, self.mss, self.min_burst());
        let probing = match self.state {
            State::Up => 2,
            _ => 0,
        };
        segments.max(3 * burst).max(MIN_PIPE_CWND) + probing
    }

    /// The cwnd while the RTT is probed (`ProbeRTTCwnd`, section 5.6.4.5).
    pub(super) fn probe_rtt_cwnd(&self) -> u32 {
        let gain = State::ProbeRtt.cwnd_gain();
        self.bdp(self.bandwidth(), gain).max(MIN_PIPE_CWND)
    }

    /// Sets the cwnd after an ACK (`SetCwnd`, section 5.6.4.6).
    pub(super) fn set_cwnd(&mut self, cwnd: &mut CwndState, input: &Input) {
        let state = input.ack.ca_state;
        if self.prior_state >= CaState::Recovery && state < CaState::Recovery {
            cwnd.cwnd = cwnd.cwnd.max(self.prior_cwnd);
        }
        let acked = input.ack.acked;
        if acked > 0 {
            let bandwidth = self.bandwidth();
            let wanted = self.bdp(bandwidth, self.state.cwnd_gain());
            let most = self.with_bursts(wanted + self.aggregation.extra(bandwidth));
            let grown = cwnd.cwnd.saturating_add(acked);
            if self.full_pipe.reached {
                cwnd.cwnd = grown.min(most);
            } else if cwnd.cwnd < most || input.rate.total_delivered < INITIAL_CWND.into() {
                cwnd.cwnd = grown;
            }
            cwnd.cwnd = cwnd.cwnd.max(MIN_PIPE_CWND);
        }
        if self.state == State::ProbeRtt {
            cwnd.cwnd = cwnd.cwnd.min(self.probe_rtt_cwnd());
        }
        cwnd.cwnd = cwnd.cwnd.min(self.cap()).min(cwnd.clamp);
    }

    /// The bound that congestion sets (`BoundCwndForModel`, section 5.6.4.7).
    fn cap(&self) -> u32 {
        let long_term = match self.state {
            State::Startup | State::Drain => UNBOUNDED,
            State::Cruise | State::ProbeRtt => self.inflight_with_headroom(),
            State::Down | State::Refill | State::Up => self.bounds.long_term,
        };
        long_term.min(self.bounds.in_flight).max(MIN_PIPE_CWND)
    }
}
