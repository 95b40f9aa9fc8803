//! Probing for bandwidth: the cycle of DOWN, CRUISE, REFILL and UP (section 5.3.3).

use rand::RngExt;

use super::{Bbr3, Input, MIN_PIPE_CWND, SECOND, State, bounds::UNBOUNDED};
use crate::path::Nanos;
use crate::sim::control::bbr::gain::Gain;

/// Most rounds between two probes, so that Reno has as many losses where it works well
/// (`T_reno_bound`, section 5.3.3.8.2).
const RENO_ROUNDS: u32 = 63;
/// Shortest time between two probes, ns, to which up to a second is added (section 5.3.3.8.2).
const WAIT: Nanos = 2 * SECOND;
/// Largest exponent of the growth of the long-term bound per round.
const MOST_DOUBLINGS: u32 = 30;

/// The state of the cycle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycle {
    /// When it began, ns (`cycle_stamp`).
    since: Nanos,
    /// Time after which it probes at the latest, ns (`bw_probe_wait`).
    wait: Nanos,
    /// Number of rounds since the last probe (`rounds_since_probe_up`).
    pub(super) rounds: u32,
    /// What ACKs tell about the probe (`ack_phase`).
    feedback: Feedback,
    /// Whether samples come from a probe that was not answered yet (`is_bw_probe_sample`).
    pub(super) is_probe_sample: bool,
    /// Whether the last probe lost too much (`prev_probe_too_high`).
    pub(super) was_too_high: bool,
    /// Whether the last probe stopped early, at the volume that had lost too much before
    /// (`prev_probe_precautionary`).
    was_precautionary: bool,
    /// Segments acknowledged towards the next increase of the long-term bound
    /// (`bw_probe_up_acked`), and how many it takes (`probe_up_acked_per_inc`).
    acked: u32,
    acked_per_increase: u32,
    /// Number of rounds in which the bound has grown (`bw_probe_up_rounds`).
    doublings: u32,
    /// Lifetime segments delivered with the last ACK.
    pub(super) delivered: u64,
}

/// The meaning of ACKs for the probe (`ack_phase`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Feedback {
    /// They do not concern a probe.
    #[default]
    None,
    /// The pipe is being filled.
    Refilling,
    /// The probe has begun, and they are of what was sent before it.
    Starting,
    /// They are of the probe.
    Probing,
    /// The probe is over, and they are still of it.
    Stopping,
}

impl Bbr3 {
    /// Moves through the cycle after an ACK (`UpdateProbeBWCyclePhase`, section 5.3.3.9).
    pub(super) fn update_cycle(&mut self, input: &Input) {
        self.cycle.delivered = input.rate.total_delivered;
        if !self.full_pipe.reached || self.adapt_long_term(input) {
            return;
        }
        let (now, delivered) = (input.now, input.rate.total_delivered);
        let state = self.state;
        match state {
            State::Down | State::Cruise if self.is_time_to_probe(input) => {
                self.start_refill(delivered);
            }
            State::Down if self.is_time_to_cruise(input) => self.state = State::Cruise,
            State::Refill if self.rounds.began => {
                self.cycle.is_probe_sample = true;
                self.start_up(input);
            }
            State::Up if self.is_time_to_go_down(input) => {
                self.cycle.was_too_high = false;
                self.start_down(now, delivered);
            }
            _ => {}
        }
    }

    /// Begins a cycle by slowing down (`StartProbeBW_DOWN`).
    pub(super) fn start_down(&mut self, now: Nanos, total_delivered: u64) {
        self.bounds.forget_signals();
        self.cycle.acked_per_increase = u32::MAX;
        self.cycle.rounds = self.random.random_range(0..=1);
        self.cycle.wait = WAIT + self.random.random_range(0..SECOND);
        self.cycle.since = now;
        self.cycle.feedback = Feedback::Stopping;
        self.start_round(total_delivered);
        self.state = State::Down;
    }

    /// Fills the pipe to probe then (`StartProbeBW_REFILL`).
    pub(super) fn start_refill(&mut self, total_delivered: u64) {
        self.bounds.reset_short_term();
        self.cycle.doublings = 0;
        self.cycle.acked = 0;
        self.cycle.was_precautionary = false;
        self.cycle.feedback = Feedback::Refilling;
        self.start_round(total_delivered);
        self.state = State::Refill;
    }

    /// Begins to probe for bandwidth (`StartProbeBW_UP`).
    fn start_up(&mut self, input: &Input) {
        self.cycle.feedback = Feedback::Starting;
        self.start_round(input.rate.total_delivered);
        self.full_pipe.restart(input.bandwidth.unwrap_or_default());
        self.state = State::Up;
        self.raise_slope(input.cwnd);
    }

    /// The samples of a probe end a round after RTT probing has begun, too (section 5.3.4.3).
    pub(super) fn stop_feedback(&mut self) {
        self.cycle.feedback = Feedback::Stopping;
    }

    /// Whether to probe for bandwidth (`IsTimeToProbeBW`, section 5.3.3.8).
    fn is_time_to_probe(&self, input: &Input) -> bool {
        let reno = self.target_inflight(input.cwnd).min(RENO_ROUNDS);
        input.now > self.cycle.since + self.cycle.wait || self.cycle.rounds >= reno
    }

    /// The segments that are wanted in flight, unless congestion has cut the cwnd
    /// (`TargetInflight`).
    pub(super) fn target_inflight(&self, cwnd: u32) -> u32 {
        self.bdp(self.bandwidth(), Gain::ONE).min(cwnd)
    }

    /// Whether headroom is free and the queue is drained (`IsTimeToCruise`). Like the kernel, this
    /// and the end of UP look at what was in flight before the ACK.
    fn is_time_to_cruise(&self, input: &Input) -> bool {
        let in_flight = input.rate.prior_in_flight;
        let bdp = self.bdp(self.max_bandwidth.get(), Gain::ONE);
        in_flight <= self.inflight_with_headroom() && in_flight <= self.with_bursts(bdp)
    }

    /// Whether probing has shown what there is (`IsTimeToGoDown`, section 5.3.3.7).
    fn is_time_to_go_down(&mut self, input: &Input) -> bool {
        let bound = self.bounds.long_term;
        if self.cycle.was_too_high && input.rate.prior_in_flight >= bound {
            self.cycle.was_precautionary = true;
            return true;
        }
        if input.rate.cwnd_filled && input.cwnd >= bound {
            // The bound keeps the bandwidth from growing.
            self.full_pipe.restart(input.bandwidth.unwrap_or_default());
            return false;
        }
        self.full_pipe.now
    }

    /// The long-term bound less 15 %, which other flows may use (`InflightWithHeadroom`).
    pub(super) fn inflight_with_headroom(&self) -> u32 {
        match self.bounds.long_term {
            UNBOUNDED => UNBOUNDED,
            bound => {
                let headroom = (u64::from(bound) * 15 / 100).max(1) as u32;
                bound.saturating_sub(headroom).max(MIN_PIPE_CWND)
            }
        }
    }

    /// Doubles the growth of the long-term bound per round (`RaiseInflightLongtermSlope`).
    fn raise_slope(&mut self, cwnd: u32) {
        let growth = 1 << self.cycle.doublings;
        self.cycle.doublings = (self.cycle.doublings + 1).min(MOST_DOUBLINGS);
        self.cycle.acked_per_increase = (cwnd / growth).max(1);
    }

    /// Grows the long-term bound while the cwnd uses it up (`ProbeInflightLongtermUpward`).
    fn grow_long_term(&mut self, input: &Input) {
        if !input.rate.cwnd_filled || input.cwnd < self.bounds.long_term {
            return;
        }
        let acked = self.cycle.acked.saturating_add(input.ack.acked);
        let increase = acked / self.cycle.acked_per_increase;
        self.cycle.acked = acked % self.cycle.acked_per_increase;
        // The largest bound that does not stand for none.
        let grown = self.bounds.long_term.saturating_add(increase);
        self.bounds.long_term = grown.min(UNBOUNDED - 1);
        if self.rounds.began {
            self.raise_slope(input.cwnd);
        }
    }

    /// Follows what ACKs tell about the probe (`AdaptLongTermModel`). Returns whether the state was
    /// decided.
    fn adapt_long_term(&mut self, input: &Input) -> bool {
        if self.rounds.began {
            match self.cycle.feedback {
                Feedback::Starting => self.cycle.feedback = Feedback::Probing,
                Feedback::Stopping => {
                    self.cycle.is_probe_sample = false;
                    self.cycle.feedback = Feedback::None;
                    if self.state.is_probe_bw() && !input.limited {
                        self.max_bandwidth.advance();
                    }
                    // What was too much before is not any more, so the next probe may stay there.
                    if self.state.is_probe_bw()
                        && self.cycle.was_precautionary
                        && !self.cycle.was_too_high
                    {
                        self.start_refill(input.rate.total_delivered);
                        return true;
                    }
                }
                _ => {}
            }
        }
        let too_high = super::bounds::is_too_high(input.rate.lost, input.rate.tx_in_flight);
        if !too_high && self.bounds.long_term != UNBOUNDED {
            self.bounds.long_term = self.bounds.long_term.max(input.rate.tx_in_flight);
            if self.state == State::Up {
                self.grow_long_term(input);
            }
        }
        false
    }
}
