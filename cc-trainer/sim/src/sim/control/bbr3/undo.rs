//! Spurious recoveries: what is saved when a recovery begins, and restored when it turns out to
//! have been unnecessary (section 5.5.11).

use cc_ebpf::CaState;

use super::{Bbr3, State};
use crate::sim::control::bbr::bandwidth::Bandwidth;

/// The state as it was before the loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    /// The state that loss ended, Startup or Up (`undo_state`).
    pub(super) state: Option<State>,
    bandwidth: Bandwidth,
    in_flight: u32,
    long_term: u32,
}

impl Bbr3 {
    /// Saves the bounds at the begin of a recovery (`SaveStateUponLoss`).
    pub(super) fn save_state(&mut self) {
        self.undo = Undo {
            state: None,
            bandwidth: self.bounds.bandwidth,
            in_flight: self.bounds.in_flight,
            long_term: self.bounds.long_term,
        };
    }

    /// Restores them, and goes back to what loss has ended (`HandleSpuriousLossDetection`). The
    /// caller restores the cwnd.
    pub(super) fn handle_spurious_loss(&mut self) {
        self.bounds.congested = false;
        self.full_pipe.restart(0);
        self.bounds.bandwidth = self.bounds.bandwidth.max(self.undo.bandwidth);
        self.bounds.in_flight = self.bounds.in_flight.max(self.undo.in_flight);
        self.bounds.long_term = self.bounds.long_term.max(self.undo.long_term);
        let probes_rtt = self.state == State::ProbeRtt;
        match self.undo.state.take() {
            Some(State::Startup) if self.state != State::Startup => {
                self.full_pipe.reached = false;
                if !probes_rtt {
                    self.state = State::Startup;
                }
            }
            Some(State::Up) if self.state != State::Up && !probes_rtt => {
                self.start_refill(self.cycle.delivered);
            }
            _ => {}
        }
    }

    /// Remembers the cwnd to restore later (`SaveCwnd`, section 5.6.4.4).
    pub(super) fn save_cwnd(&mut self, cwnd: u32) {
        let in_trouble = self.prior_state >= CaState::Recovery || self.state == State::ProbeRtt;
        self.prior_cwnd = match in_trouble {
            true => self.prior_cwnd.max(cwnd),
            false => cwnd,
        };
    }
}
