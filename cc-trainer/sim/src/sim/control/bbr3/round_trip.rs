//! The smallest RTT, and probing for it (section 5.3.4).

use cc_ebpf::CwndState;

use super::{Bbr3, Input, SECOND, State};
use crate::path::Nanos;

/// Time for which a smallest RTT counts, ns (`MinRTTFilterLen`).
const WINDOW: Nanos = 10 * SECOND;
/// Time after which the RTT is probed, ns (`ProbeRTTInterval`).
const INTERVAL: Nanos = 5 * SECOND;
/// Time for which few segments are in flight then, ns (`ProbeRTTDuration`).
const DURATION: Nanos = SECOND / 5;

/// The estimate of the smallest RTT.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// Smallest RTT of the window in µs, and when it was measured, ns (`min_rtt`,
    /// `min_rtt_stamp`).
    pub(super) smallest: (u32, Nanos),
    /// The same since the RTT was last probed (`probe_rtt_min_delay`, `probe_rtt_min_stamp`).
    pub(super) recent: (u32, Nanos),
    /// Whether the RTT has to be probed (`probe_rtt_expired`).
    expired: bool,
    /// When probing ends, once few enough segments are in flight (`probe_rtt_done_stamp`).
    end: Option<Nanos>,
    /// Whether a round has passed with few segments in flight (`probe_rtt_round_done`).
    round_over: bool,
}

impl Default for RoundTrip {
    fn default() -> Self {
        Self::new(0, u32::MAX)
    }
}

impl RoundTrip {
    /// The estimate after a handshake at `now` with this RTT in µs.
    pub(super) fn new(now: Nanos, rtt_us: u32) -> Self {
        Self {
            smallest: (rtt_us, now),
            recent: (rtt_us, now),
            expired: false,
            end: None,
            round_over: false,
        }
    }
}

impl Bbr3 {
    /// Takes the RTT of an ACK (`UpdateMinRTT`, section 5.3.4.3).
    pub(super) fn update_round_trip(&mut self, input: &Input) {
        let (now, rtt_us) = (input.now, input.ack.rtt_us);
        let times = &mut self.round_trip;
        times.expired = now > times.recent.1 + INTERVAL;
        // An RTT that the receiver has lengthened says less (`bbr_update_min_rtt`).
        let counts = rtt_us < times.recent.0 || (times.expired && !input.rate.ack_delayed);
        if rtt_us > 0 && counts {
            times.recent = (rtt_us, now);
        }
        if times.recent.0 < times.smallest.0 || now > times.smallest.1 + WINDOW {
            times.smallest = times.recent;
        }
    }

    /// Enters and handles ProbeRTT (`CheckProbeRTT`).
    pub(super) fn check_probe_rtt(&mut self, cwnd: &mut CwndState, input: &Input) {
        let delivered = input.rate.total_delivered;
        if self.state != State::ProbeRtt && self.round_trip.expired && !self.restarted {
            self.save_cwnd(cwnd.cwnd);
            self.state = State::ProbeRtt;
            self.round_trip.end = None;
            self.limited.begin(input.rate);
            self.stop_feedback();
            self.start_round(delivered);
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(cwnd, input);
        }
        if input.rate.delivered.is_some_and(|delivered| delivered > 0) {
            self.restarted = false;
        }
    }

    /// Waits until few segments have been in flight for long enough (`HandleProbeRTT`).
    fn handle_probe_rtt(&mut self, cwnd: &mut CwndState, input: &Input) {
        self.limited.extend(input.rate, input.ack.in_flight);
        match self.round_trip.end {
            None if input.ack.in_flight <= self.probe_rtt_cwnd() => {
                self.round_trip.end = Some(input.now + DURATION);
                self.round_trip.round_over = false;
                self.start_round(input.rate.total_delivered);
            }
            None => {}
            Some(_) => {
                self.round_trip.round_over |= self.rounds.began;
                if self.round_trip.round_over {
                    let delivered = input.rate.total_delivered;
                    self.check_probe_rtt_done(input.now, cwnd, Some(delivered));
                }
            }
        }
    }

    /// Leaves ProbeRTT when its time has come (`CheckProbeRTTDone`, `ExitProbeRTT`, section
    /// 5.3.4.4), on an ACK or before sending.
    pub(super) fn check_probe_rtt_done(
        &mut self,
        now: Nanos,
        cwnd: &mut CwndState,
        total_delivered: Option<u64>,
    ) {
        if self.round_trip.end.is_none_or(|end| now <= end) {
            return;
        }
        self.round_trip.recent.1 = now;
        cwnd.cwnd = cwnd.cwnd.max(self.prior_cwnd).min(cwnd.clamp);
        self.bounds.reset_short_term();
        match self.full_pipe.reached {
            true => {
                self.start_down(now, total_delivered.unwrap_or(self.cycle.delivered));
                self.state = State::Cruise;
            }
            false => self.state = State::Startup,
        }
    }
}
