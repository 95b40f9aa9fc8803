//! BBR version 3 (draft-ietf-ccwg-bbr-06, July 2026): like version 1 a model of the path determines
//! pacing rate and cwnd, but the model also has bounds that loss sets, long-term ones on the
//! segments in flight and short-term ones on rate and segments in flight. Sections are those of the
//! draft, whose variables are named in parentheses; where the draft is silent on TCP, what Google's
//! kernel does is followed (net/ipv4/tcp_bbr.c of github.com/google/bbr, branch v3).
//!
//! An ECN echo is answered as congestion, as section 3.7 demands of a connection that negotiates
//! ECN, in the same way as loss: it lowers the short-term bounds once per round, and ends a probe
//! for bandwidth. Not modelled are the kernel's responses to the share of marked segments
//! (`ecn_alpha`, for accurate ECN only), its protective load balancing, and its fast path.

mod bandwidth;
mod bounds;
mod cycle;
mod full_pipe;
mod output;
mod round_trip;
#[cfg(test)]
mod tests;
mod undo;

use cc_ebpf::{AckSample, CaState, CwndState};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

use super::bbr::{
    aggregation::{self, Aggregation},
    bandwidth::{BW_SCALE, Bandwidth, bdp, pacing_rate, sample},
    gain::Gain,
    rounds::{Limited, Rounds},
};
use super::{CongestionControl, LostSegment, RateSample, TransmitStart};
use crate::path::Nanos;
use bandwidth::MaxBandwidth;
use bounds::{Bounds, UNBOUNDED};
use cycle::Cycle;
use full_pipe::{FullPipe, StartupLoss};
use round_trip::RoundTrip;
use undo::Undo;

const SECOND: Nanos = 1_000_000_000;
/// The smallest cwnd outside the first moments of a timeout, in segments (`MinPipeCwnd`).
const MIN_PIPE_CWND: u32 = 4;
/// The initial cwnd in segments (`InitialCwnd`).
const INITIAL_CWND: u32 = 10;
/// Rounds after which Drain ends although the queue is not drained (section 5.3.2).
const DRAIN_ROUNDS: u64 = 3;

/// The state of BBR version 3 for one connection.
#[derive(Clone, Debug)]
pub struct Bbr3 {
    state: State,
    random: Xoshiro256PlusPlus,
    /// Rate at which the sender paces, in bytes/s.
    pacing_rate: u64,
    rounds: Rounds,
    max_bandwidth: MaxBandwidth,
    bounds: Bounds,
    full_pipe: FullPipe,
    startup_loss: StartupLoss,
    /// Round in which Drain began (`drain_start_round`).
    drain_start: u64,
    cycle: Cycle,
    round_trip: RoundTrip,
    /// The samples that say nothing about the bandwidth, since the RTT is probed.
    limited: Limited,
    aggregation: Aggregation,
    undo: Undo,
    /// The cwnd to restore after recovery and RTT probing, segments (`prior_cwnd`).
    prior_cwnd: u32,
    /// Congestion-avoidance state at the last ACK.
    prior_state: CaState,
    /// Whether sending began again after the application had paused (`idle_restart`).
    restarted: bool,
    /// Segments that were reported to have met a congestion-experienced mark.
    marked: u32,
    /// Payload of a segment in bytes.
    mss: u64,
}

/// The states of the control's machine (section 5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The rate doubles every round until the bandwidth grows no more or much is lost.
    Startup,
    /// Drains the queue that startup has built.
    Drain,
    /// Sends a little slower than the path delivers, until the queue is gone (`ProbeBW_DOWN`).
    Down,
    /// Sends as fast as the path delivers, and yields to loss (`ProbeBW_CRUISE`).
    Cruise,
    /// Fills the pipe for a round before probing (`ProbeBW_REFILL`).
    Refill,
    /// Sends faster than the path delivers (`ProbeBW_UP`).
    Up,
    /// Halves the segments in flight for a moment, to measure the RTT without a queue.
    ProbeRtt,
}

impl State {
    /// The factor of the pacing rate (section 5.6.1).
    fn pacing_gain(self) -> Gain {
        match self {
            // 4 ln 2, the smallest with which the rate doubles every round.
            Self::Startup => Gain::hundredths(277),
            Self::Drain => Gain::hundredths(50),
            Self::Down => Gain::hundredths(90),
            Self::Cruise | Self::Refill | Self::ProbeRtt => Gain::ONE,
            Self::Up => Gain::hundredths(125),
        }
    }

    /// The factor of the bandwidth-delay product in the cwnd (section 5.6.1).
    fn cwnd_gain(self) -> Gain {
        match self {
            Self::Up => Gain::hundredths(225),
            Self::ProbeRtt => Gain::hundredths(50),
            _ => Gain::TWO,
        }
    }

    /// Whether this is one of the four states that probe for bandwidth in turn
    /// (`IsInAProbeBWState`).
    fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// Whether more is sent than is known to be safe (`IsProbingBW`, section 5.3.3.9).
    fn is_accelerating(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
}

/// What an ACK says, in one place.
#[derive(Clone, Copy)]
struct Input<'a> {
    now: Nanos,
    cwnd: u32,
    ack: &'a AckSample,
    rate: &'a RateSample,
    /// The delivery rate that it measured; `None` when its sample is not valid
    /// (`RS.delivery_rate`).
    bandwidth: Option<Bandwidth>,
    /// Whether the application, or probing the RTT, limited the sample (`RS.is_app_limited`).
    limited: bool,
}

impl Bbr3 {
    /// Creates the control. `seed` determines how long each cycle waits before it probes.
    pub fn new(seed: u64) -> Self {
        Self {
            state: State::Startup,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            pacing_rate: 0,
            rounds: Rounds::default(),
            max_bandwidth: MaxBandwidth::default(),
            bounds: Bounds::default(),
            full_pipe: FullPipe::default(),
            startup_loss: StartupLoss::default(),
            drain_start: 0,
            cycle: Cycle::default(),
            round_trip: RoundTrip::default(),
            limited: Limited::default(),
            aggregation: Aggregation::default(),
            undo: Undo::default(),
            prior_cwnd: 0,
            prior_state: CaState::Open,
            restarted: false,
            marked: 0,
            mss: 1448,
        }
    }

    /// The bandwidth to send at (`BBR.bw`, `BoundBWForModel`, section 5.5.10.3).
    fn bandwidth(&self) -> Bandwidth {
        self.max_bandwidth.get().min(self.bounds.bandwidth)
    }

    /// Updates model and state (`UpdateModelAndState`, section 5.2.3).
    fn update(&mut self, cwnd: &mut CwndState, input: &Input) {
        self.update_rounds(input);
        self.bounds.update_latest(input);
        self.update_bounds(input);
        self.update_aggregation(input);
        self.full_pipe.update(input, self.rounds.began);
        self.check_startup(cwnd, input);
        self.check_drain(input);
        self.update_cycle(input);
        self.update_round_trip(input);
        self.check_probe_rtt(cwnd, input);
        self.bounds.advance_latest(input);
    }

    /// Counts round trips, and takes the delivery rate into the maximum (sections 5.5.1 and 5.5.5).
    fn update_rounds(&mut self, input: &Input) {
        self.rounds.began = false;
        let Some(bandwidth) = input.bandwidth else {
            return;
        };
        self.rounds.update(input.rate);
        self.cycle.rounds += u32::from(self.rounds.began);
        if !input.limited || bandwidth >= self.max_bandwidth.get() {
            self.max_bandwidth.update(bandwidth);
        }
    }

    /// Updates the estimate of ACK aggregation (section 5.5.9): the maximum of one round in Startup
    /// and of ten rounds later, which are twice five as in the kernel.
    fn update_aggregation(&mut self, input: &Input) {
        if input.ack.acked == 0 || input.bandwidth.is_none() {
            return;
        }
        let window = match self.full_pipe.reached {
            true => aggregation::ROUNDS,
            false => 1,
        };
        let (bandwidth, began) = (self.bandwidth(), self.rounds.began);
        (self.aggregation).update(
            input.now,
            input.ack.acked,
            bandwidth,
            input.cwnd,
            began,
            window,
        );
    }

    /// Leaves Startup when the pipe is full (`CheckStartupDone`, section 5.3.1.1).
    fn check_startup(&mut self, cwnd: &mut CwndState, input: &Input) {
        self.check_startup_loss(input);
        if self.state == State::Startup && self.full_pipe.reached {
            self.state = State::Drain;
            self.drain_start = self.rounds.count;
            // BBR does not use it; a threshold that is set tells observers that startup is over.
            cwnd.ssthresh = self.inflight(Gain::ONE);
        }
    }

    /// Takes the pipe for full when the losses of a round in recovery are too many and not of a
    /// single burst (`CheckStartupHighLoss`, section 5.3.1.3).
    fn check_startup_loss(&mut self, input: &Input) {
        let over = self.bounds.round_began;
        let ranges = match over {
            true => self.startup_loss.take(),
            false => 0,
        };
        if self.full_pipe.reached || !over {
            return;
        }
        let recovering = input.ack.ca_state == CaState::Recovery;
        let lossy = ranges >= full_pipe::LOST_RANGES
            && bounds::is_too_high(input.rate.lost, input.rate.tx_in_flight);
        if recovering && lossy {
            self.undo.state = Some(State::Startup);
            self.fill_startup();
        }
    }

    /// Ends Startup at what the path has delivered in the last round.
    fn fill_startup(&mut self) {
        self.full_pipe.reached = true;
        self.bounds.long_term = self
            .bdp(self.bandwidth(), Gain::ONE)
            .max(self.bounds.latest.1);
    }

    /// Ends Drain when the queue is drained, or should be (`CheckDrainDone`, section 5.3.2).
    fn check_drain(&mut self, input: &Input) {
        let overdue = self.rounds.count > self.drain_start + DRAIN_ROUNDS;
        if self.state == State::Drain
            && (input.ack.in_flight <= self.inflight(Gain::ONE) || overdue)
        {
            self.start_down(input.now, input.rate.total_delivered);
        }
    }

    /// Starts a round with what is sent from now on (`StartRound`).
    fn start_round(&mut self, total_delivered: u64) {
        self.rounds.end = total_delivered;
    }

    /// Bandwidth-delay product times `gain`, in segments (`BDPMultiple`, section 5.6.4.2).
    fn bdp(&self, bandwidth: Bandwidth, gain: Gain) -> u32 {
        match self.round_trip.smallest.0 {
            u32::MAX => INITIAL_CWND,
            rtt_us => bdp(bandwidth, rtt_us, gain),
        }
    }

    /// Answers ECN echoes as congestion (section 3.7).
    fn check_marks(&mut self, input: &Input) {
        let marked = input.ack.totals.delivered_ce;
        if marked == self.marked {
            return;
        }
        self.marked = marked;
        self.note_congestion(input.rate.total_delivered);
        if self.cycle.is_probe_sample {
            let in_flight = input.rate.tx_in_flight;
            let delivered = input.rate.total_delivered;
            self.inflight_too_high(input.now, in_flight, input.limited, input.cwnd, delivered);
        }
    }
}

impl CongestionControl for Bbr3 {
    fn sets_cwnd_in_recovery(&self) -> bool {
        true
    }

    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        let rtt_us = rtt_us.max(1);
        self.round_trip = RoundTrip::new(now, rtt_us);
        cwnd.ssthresh = u32::MAX;
        let bandwidth = (u64::from(cwnd.cwnd) << BW_SCALE) / u64::from(rtt_us);
        let gain = State::Startup.pacing_gain();
        self.pacing_rate = pacing_rate(bandwidth, gain, self.mss).max(1);
        self.aggregation = Aggregation::new(now);
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        self.mss = u64::from(ack.mss.max(1));
        let input = Input {
            now: ack.now_ns,
            cwnd: cwnd.cwnd,
            ack,
            rate,
            bandwidth: sample(rate).filter(|_| ack.acked > 0),
            limited: self.limited.covers(rate),
        };
        self.check_marks(&input);
        self.update(cwnd, &input);
        self.pace(self.state.pacing_gain());
        self.set_cwnd(cwnd, &input);
        self.prior_state = ack.ca_state;
    }

    /// A recovery begins (`OnEnterRTO`, `OnEnterFastRecovery`, section 5.6.4.4).
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        self.save_cwnd(cwnd.cwnd);
        self.save_state();
        cwnd.ssthresh
    }

    fn undo(&mut self, cwnd: &CwndState, _prior: u32) -> u32 {
        self.handle_spurious_loss();
        cwnd.cwnd.max(self.prior_cwnd)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        if state == CaState::Loss {
            self.prior_state = CaState::Loss;
            self.full_pipe.restart(0);
            // The short-term bound starts from the cwnd before the timeout (`bbr_set_state`).
            if !self.state.is_accelerating() && self.bounds.in_flight == UNBOUNDED {
                self.bounds.in_flight = self.prior_cwnd.max(MIN_PIPE_CWND);
            }
        }
    }

    fn tracks_transmissions(&self) -> bool {
        true
    }

    fn on_lost(&mut self, cwnd: &CwndState, lost: &LostSegment) {
        self.handle_lost(cwnd.cwnd, lost);
    }

    /// Restarts from idle (`HandleRestartFromIdle`, section 5.4.1).
    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        // While BBR probes the RTT, it counts as limited by the application.
        if !start.app_limited && self.state != State::ProbeRtt {
            return;
        }
        self.restarted = true;
        self.aggregation.restart(now);
        match self.state {
            State::ProbeRtt => self.check_probe_rtt_done(now, cwnd, None),
            state if state.is_probe_bw() => self.pace(Gain::ONE),
            _ => {}
        }
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate)
    }
}
