//! What the congestion window does on each ACK: the agent's decision where there is one, Reno where
//! there is none.

use bytemuck::{Pod, Zeroable};

use crate::{AckSample, CaState, Decision, Heartbeat, Settings};

/// The window of a connection, as the kernel keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CwndState {
    /// Congestion window in segments (`tcp_sock.snd_cwnd`).
    pub cwnd: u32,
    /// Slow-start threshold in segments (`tcp_sock.snd_ssthresh`).
    pub ssthresh: u32,
    /// Segments acknowledged since the window last grew in congestion avoidance
    /// (`tcp_sock.snd_cwnd_cnt`).
    pub cwnd_cnt: u32,
    /// Upper bound that the host sets for this connection (`tcp_sock.snd_cwnd_clamp`).
    pub clamp: u32,
}

/// Who sets the window now.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No decision has arrived yet: slow start, or the initial window.
    Startup = 0,
    /// The last decision.
    Decided = 1,
    /// A retransmission timeout fired: slow start up to the last decision.
    AfterTimeout = 2,
    /// The agent is gone: Reno from where the window was.
    Fallback = 3,
}

impl Mode {
    /// Every mode, in the order of their numbers.
    pub const ALL: [Mode; 4] = [
        Self::Startup,
        Self::Decided,
        Self::AfterTimeout,
        Self::Fallback,
    ];

    /// Its name in reports and recordings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Decided => "decided",
            Self::AfterTimeout => "after-timeout",
            Self::Fallback => "fallback",
        }
    }

    /// The mode with this number; unknown numbers count as the fallback.
    #[inline(always)]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Startup,
            1 => Self::Decided,
            2 => Self::AfterTimeout,
            _ => Self::Fallback,
        }
    }

    /// Whether a decision rules the window.
    #[inline(always)]
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Decided | Self::AfterTimeout)
    }
}

/// What an ACK led to, for the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// A decision was taken up.
    pub taken: bool,
    /// It was outside the guard rails.
    pub clamped: bool,
    /// A decision was for another generation of the slot.
    pub stale: bool,
    /// The flow fell back.
    pub fallback_entered: bool,
    /// The flow left the fallback.
    pub fallback_left: bool,
}

/// A flow's controller: which mode it is in and what was decided last.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Controller {
    mode: u32,
    target: u32,
    seen: u64,
    taken: u64,
    taken_ns: u64,
}

impl Controller {
    /// Starts a flow. `cell` is what its slot's previous owner may have left in the cwnd map.
    #[inline(always)]
    pub fn start(&mut self, cell: u64) {
        self.mode = Mode::Startup as u32;
        self.target = 0;
        self.seen = cell;
        self.taken = 0;
        self.taken_ns = 0;
    }

    /// The mode.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        Mode::from_raw(self.mode)
    }

    /// The newest decision taken up, as a cell (0 before the first), and when, in ns.
    #[inline(always)]
    pub fn taken(&self) -> (u64, u64) {
        (self.taken, self.taken_ns)
    }

    /// Sets the window after an ACK. `cell` is the flow's entry in the cwnd map now; what it held
    /// at the previous ACK is known, so a change is a new decision.
    #[inline(always)]
    pub fn on_ack(
        &mut self,
        cwnd: &mut CwndState,
        ack: &AckSample,
        cell: u64,
        generation: u32,
        heartbeat: &Heartbeat,
        settings: &Settings,
    ) -> Events {
        let mut events = Events::default();
        if heartbeat.is_stale(ack.now_ns, settings.heartbeat_limit_ns) {
            events.fallback_entered = self.fall_back(cwnd);
        } else if cell != self.seen {
            self.seen = cell;
            self.take(cell, generation, ack.now_ns, settings, &mut events);
        }
        match self.mode() {
            Mode::Startup if settings.constant_start() => {}
            Mode::Startup | Mode::Fallback => reno::on_ack(cwnd, ack),
            Mode::Decided => cwnd.cwnd = self.target,
            Mode::AfterTimeout => {
                cwnd.cwnd = cwnd.cwnd.saturating_add(ack.acked);
                if cwnd.cwnd >= self.target {
                    cwnd.cwnd = self.target;
                    self.mode = Mode::Decided as u32;
                }
            }
        }
        cwnd.cwnd = at_most(cwnd.cwnd, at_most(settings.cwnd_max, cwnd.clamp));
        if cwnd.cwnd == 0 {
            cwnd.cwnd = 1;
        }
        events
    }

    /// The kernel changed the congestion-avoidance state (`set_state`).
    ///
    /// Returns whether a timeout has just ended the rule of a decision.
    #[inline(always)]
    pub fn on_state(&mut self, state: CaState) -> bool {
        let timeout = state == CaState::Loss && self.mode() == Mode::Decided;
        if timeout {
            self.mode = Mode::AfterTimeout as u32;
        }
        timeout
    }

    /// The slow-start threshold on entering recovery, loss or CWR (`ssthresh`).
    #[inline(always)]
    pub fn ssthresh(&self, cwnd: u32) -> u32 {
        if self.mode().is_decided() {
            self.target
        } else {
            reno::ssthresh(cwnd)
        }
    }

    /// The window after the kernel found that a loss was none (`undo_cwnd`). `prior` is the window
    /// before the supposed loss.
    #[inline(always)]
    pub fn undo(&mut self, cwnd: u32, prior: u32) -> u32 {
        if self.mode().is_decided() {
            self.mode = Mode::Decided as u32;
            self.target
        } else {
            reno::undo(cwnd, prior)
        }
    }

    #[inline(always)]
    fn fall_back(&mut self, cwnd: &mut CwndState) -> bool {
        let from = self.mode();
        match from {
            Mode::Fallback => return false,
            Mode::Startup => {}
            // Congestion avoidance from the present window, not a new slow start.
            Mode::Decided => cwnd.ssthresh = cwnd.cwnd,
            Mode::AfterTimeout => cwnd.ssthresh = self.target,
        }
        self.mode = Mode::Fallback as u32;
        cwnd.cwnd_cnt = 0;
        true
    }

    #[inline(always)]
    fn take(
        &mut self,
        cell: u64,
        generation: u32,
        now_ns: u64,
        settings: &Settings,
        events: &mut Events,
    ) {
        let Some(decision) = Decision::from_cell(cell) else {
            return;
        };
        if !decision.is_for(generation) {
            events.stale = true;
            return;
        }
        let target = at_least(at_most(decision.cwnd, settings.cwnd_max), settings.cwnd_min);
        events.taken = true;
        events.clamped = target != decision.cwnd;
        events.fallback_left = self.mode() == Mode::Fallback;
        self.target = target;
        self.taken = cell;
        self.taken_ns = now_ns;
        if self.mode() != Mode::AfterTimeout {
            self.mode = Mode::Decided as u32;
        }
    }
}

/// Pacing rate in bytes/s: `gain` (in 1/1024, at most 16) × cwnd / srtt; `None` before the first srtt.
///
/// Without pacing the kernel still reads the rate to size its bursts (`tcp_tso_autosize`), and with
/// `cong_control` set nobody else updates it: a flow whose `gain` is 0 gets what
/// `tcp_update_pacing_rate` (net/ipv4/tcp_input.c) would set, 2 in slow start and 1.2 after.
#[inline(always)]
pub fn pacing_rate(cwnd: &CwndState, ack: &AckSample, gain_1024: u32) -> Option<u64> {
    if ack.srtt_us == 0 {
        return None;
    }
    let gain = if gain_1024 != 0 {
        gain_1024
    } else if cwnd.cwnd < cwnd.ssthresh / 2 {
        2 * 1024
    } else {
        1024 * 6 / 5
    };
    let segments = if ack.in_flight > cwnd.cwnd {
        ack.in_flight
    } else {
        cwnd.cwnd
    };
    // Bounds that no real connection reaches (8 TB in flight, 1 PB/s) keep each product within 64
    // bits: BPF has no wider multiplication to saturate with.
    let bytes = at_most_64(u64::from(segments) * u64::from(ack.mss), 1 << 43);
    let per_second = at_most_64(bytes * 1_000_000 / u64::from(ack.srtt_us), 1 << 50);
    let gain = at_most(gain, 1 << 14);
    Some((per_second * u64::from(gain)) >> 10)
}

/// Reno's window (RFC 5681, net/ipv4/tcp_cong.c), for flows without a decision.
pub mod reno {
    use super::{CwndState, at_least, at_most};
    use crate::AckSample;

    /// Half the window, at least 2 (`tcp_reno_ssthresh`).
    #[inline(always)]
    pub fn ssthresh(cwnd: u32) -> u32 {
        at_least(cwnd / 2, 2)
    }

    /// The larger of the present window and the one before the loss (`tcp_reno_undo_cwnd`).
    #[inline(always)]
    pub fn undo(cwnd: u32, prior: u32) -> u32 {
        at_least(cwnd, prior)
    }

    /// One ACK: proportional reduction towards ssthresh in recovery, slow start below it, one
    /// segment a window above it.
    #[inline(always)]
    pub fn on_ack(cwnd: &mut CwndState, ack: &AckSample) {
        if ack.ca_state.is_reducing() {
            // One segment out for two delivered (RFC 6937 with Reno's factor), at least one, so
            // that the fast retransmission never waits for half the flight to drain.
            let allowance = at_least(ack.acked.div_ceil(2), 1);
            let reduced = at_most(cwnd.cwnd, ack.in_flight.saturating_add(allowance));
            cwnd.cwnd = at_least(reduced, cwnd.ssthresh);
            return;
        }
        if !ack.cwnd_limited {
            return;
        }
        let mut acked = ack.acked;
        if cwnd.cwnd < cwnd.ssthresh {
            let grown = at_most(cwnd.cwnd.saturating_add(acked), cwnd.ssthresh);
            acked -= grown - cwnd.cwnd;
            cwnd.cwnd = grown;
        }
        congestion_avoidance(cwnd, acked);
    }

    /// `tcp_cong_avoid_ai`, with the window as its interval.
    #[inline(always)]
    fn congestion_avoidance(cwnd: &mut CwndState, acked: u32) {
        let interval = at_least(cwnd.cwnd, 1);
        let credit = cwnd.cwnd_cnt.saturating_add(acked);
        cwnd.cwnd = cwnd.cwnd.saturating_add(credit / interval);
        cwnd.cwnd_cnt = credit % interval;
    }
}

// `Ord::min` and `Ord::max` make LLVM emit conditional moves through helpers on some BPF levels;
// these compile to one branch each.
#[inline(always)]
fn at_most(value: u32, limit: u32) -> u32 {
    if value > limit { limit } else { value }
}

#[inline(always)]
fn at_most_64(value: u64, limit: u64) -> u64 {
    if value > limit { limit } else { value }
}

#[inline(always)]
fn at_least(value: u32, limit: u32) -> u32 {
    if value < limit { limit } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::tests::ack;
    use crate::settings::Startup;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn settings() -> Settings {
        Settings {
            heartbeat_limit_ns: SECOND,
            cwnd_min: 2,
            cwnd_max: 2_000,
            ..Settings::zeroed()
        }
    }

    fn fresh() -> Heartbeat {
        Heartbeat {
            at_ns: SECOND,
            pid: 1,
        }
    }

    fn state(cwnd: u32, ssthresh: u32) -> CwndState {
        CwndState {
            cwnd,
            ssthresh,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        }
    }

    fn cell(window: u32, cwnd: u32) -> u64 {
        Decision {
            generation: 7,
            window,
            cwnd,
        }
        .to_cell()
    }

    fn step(controller: &mut Controller, cwnd: &mut CwndState, cell: u64) -> Events {
        controller.on_ack(cwnd, &ack(), cell, 7, &fresh(), &settings())
    }

    #[test]
    fn slow_start_until_the_first_decision() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, 0);
        assert_eq!(w.cwnd, 12);
        let events = step(&mut controller, &mut w, cell(1, 300));
        assert!(events.taken && !events.clamped);
        assert_eq!((w.cwnd, controller.mode()), (300, Mode::Decided));
        step(&mut controller, &mut w, cell(1, 300));
        assert_eq!(w.cwnd, 300, "constant between decisions");
    }

    #[test]
    fn the_initial_window_can_be_kept_instead() {
        let mut w = state(10, u32::MAX);
        let constant = Settings {
            startup: Startup::Constant as u32,
            ..settings()
        };
        Controller::default().on_ack(&mut w, &ack(), 0, 7, &fresh(), &constant);
        assert_eq!(w.cwnd, 10);
    }

    #[test]
    fn an_idle_application_does_not_grow_the_window() {
        let mut w = state(10, u32::MAX);
        let sample = AckSample {
            cwnd_limited: false,
            ..ack()
        };
        Controller::default().on_ack(&mut w, &sample, 0, 7, &fresh(), &settings());
        assert_eq!(w.cwnd, 10);
    }

    #[test]
    fn guard_rails_hold() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        assert!(step(&mut controller, &mut w, cell(1, 5_000)).clamped);
        assert_eq!(w.cwnd, 2_000);
        assert!(step(&mut controller, &mut w, cell(2, 0)).clamped);
        assert_eq!(w.cwnd, 2);
        w.clamp = 1;
        step(&mut controller, &mut w, cell(3, 50));
        assert_eq!(w.cwnd, 1, "the host's own clamp is lower still");
    }

    #[test]
    fn a_decision_for_another_generation_changes_nothing() {
        let mut controller = Controller::default();
        let left_behind = cell(3, 40);
        controller.start(left_behind);
        let mut w = state(10, 10);
        let events = controller.on_ack(&mut w, &ack(), left_behind, 8, &fresh(), &settings());
        assert_eq!(events, Events::default(), "its predecessor's is no news");
        let events = controller.on_ack(&mut w, &ack(), cell(4, 99), 8, &fresh(), &settings());
        assert!(events.stale && !events.taken);
        assert_eq!(controller.mode(), Mode::Startup);
    }

    #[test]
    fn after_a_timeout_slow_start_ends_at_the_decision() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, cell(1, 6));
        assert_eq!(controller.ssthresh(6), 6);
        assert!(controller.on_state(CaState::Loss));
        assert!(
            !controller.on_state(CaState::Loss),
            "a backed-off timeout is no news"
        );
        w.cwnd = 1; // tcp_enter_loss
        step(&mut controller, &mut w, cell(1, 6));
        assert_eq!((w.cwnd, controller.mode()), (3, Mode::AfterTimeout));
        step(&mut controller, &mut w, cell(2, 5));
        assert_eq!((w.cwnd, controller.mode()), (5, Mode::Decided));
    }

    #[test]
    fn a_spurious_timeout_is_undone() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, cell(1, 60));
        controller.on_state(CaState::Loss);
        assert_eq!(controller.undo(1, 60), 60);
        assert_eq!(controller.mode(), Mode::Decided);
        assert_eq!(Controller::default().undo(5, 20), 20);
    }

    #[test]
    fn a_silent_agent_means_reno_from_the_present_window() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, cell(1, 100));
        let late = AckSample {
            now_ns: 3 * SECOND,
            acked: 100,
            ..ack()
        };
        let events = controller.on_ack(&mut w, &late, cell(1, 100), 7, &fresh(), &settings());
        assert!(events.fallback_entered);
        assert_eq!((w.cwnd, w.ssthresh), (101, 100));
        let events = controller.on_ack(&mut w, &late, cell(2, 50), 7, &fresh(), &settings());
        assert_eq!(
            events,
            Events::default(),
            "a decision without a heartbeat waits"
        );
        assert_eq!(controller.ssthresh(w.cwnd), 50);
        // The agent is back: first its heartbeat, then its decision.
        let events = step(&mut controller, &mut w, cell(1, 100));
        assert!(!events.taken, "the decision from before is not fresh");
        assert_eq!(controller.mode(), Mode::Fallback);
        let events = step(&mut controller, &mut w, cell(3, 80));
        assert!(events.taken && events.fallback_left);
        assert_eq!(w.cwnd, 80);
    }

    #[test]
    fn reno_reduces_in_proportion_and_never_stalls() {
        let mut w = state(100, 50);
        let mut sample = AckSample {
            ca_state: CaState::Recovery,
            acked: 2,
            in_flight: 97,
            ..ack()
        };
        reno::on_ack(&mut w, &sample);
        assert_eq!(w.cwnd, 98);
        sample.in_flight = 10;
        reno::on_ack(&mut w, &sample);
        assert_eq!(w.cwnd, 50);
    }

    #[test]
    fn reno_crosses_ssthresh_without_losing_acks() {
        let mut w = state(8, 10);
        let sample = AckSample { acked: 12, ..ack() };
        reno::on_ack(&mut w, &sample);
        assert_eq!(
            (w.cwnd, w.cwnd_cnt),
            (11, 0),
            "2 of slow start, 10 make one more"
        );
    }

    #[test]
    fn pacing_follows_the_window() {
        let mut sample = ack();
        sample.srtt_us = 10_000;
        sample.mss = 1_000;
        let w = state(100, 10);
        assert_eq!(pacing_rate(&w, &sample, 1024), Some(10_000_000));
        assert_eq!(pacing_rate(&w, &sample, 0), Some(11_992_187));
        assert_eq!(
            pacing_rate(&state(100, 1_000), &sample, 0),
            Some(20_000_000)
        );
        sample.srtt_us = 0;
        assert_eq!(pacing_rate(&w, &sample, 1024), None);
    }

    proptest! {
        /// Whatever arrives in whatever order, the window stays between 1 and the maximum, and
        /// while a decision rules outside recovery from a timeout it is exactly the decision.
        #[test]
        fn the_window_is_always_sane(
            steps in proptest::collection::vec(
                (0u64..3, 0u32..3_000, 0u32..300, 0u32..6, any::<bool>(), 0u32..3_000), 1..200),
        ) {
            let mut controller = Controller::default();
            let mut w = state(10, u32::MAX);
            let mut sample = ack();
            let mut heartbeat = fresh();
            let settings = settings();
            for (index, (seconds, cwnd, acked, state, limited, in_flight)) in
                steps.into_iter().enumerate()
            {
                sample.now_ns += seconds * SECOND;
                if seconds < 2 {
                    heartbeat.at_ns = sample.now_ns;
                }
                let state = CaState::from_raw(state);
                if state != sample.ca_state {
                    w.ssthresh = controller.ssthresh(w.cwnd);
                    controller.on_state(state);
                }
                sample.ca_state = state;
                sample.acked = acked;
                sample.cwnd_limited = limited;
                sample.in_flight = in_flight;
                let cell = cell(index as u32, cwnd);
                let events = controller.on_ack(&mut w, &sample, cell, 7, &heartbeat, &settings);
                prop_assert!((1..=2_000).contains(&w.cwnd));
                if events.taken && controller.mode() == Mode::Decided {
                    prop_assert_eq!(w.cwnd, cwnd.clamp(2, 2_000));
                }
                prop_assert_eq!(
                    controller.mode() == Mode::Fallback,
                    heartbeat.is_stale(sample.now_ns, SECOND)
                );
            }
        }
    }
}
