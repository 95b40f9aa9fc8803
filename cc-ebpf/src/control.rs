//! What sets the congestion window on each ACK: the agent's newest decision where there is one,
//! Reno where there is none.

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample, CaState, CwndState, Decision, Heartbeat, Settings,
    bounds::{at_least, at_most},
    reno,
};

/// What currently sets a flow's cwnd. [`Controller`] has the diagram of the transitions.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No decision has arrived yet: slow start and Reno, or the initial cwnd
    /// ([`Startup`](crate::Startup)).
    Startup = 0,
    /// The cwnd is the newest decision, unchanged between decisions.
    Decided = 1,
    /// A retransmission timeout fired: slow start, from the cwnd that the kernel set, up to the
    /// newest decision.
    AfterTimeout = 2,
    /// The agent's heartbeat is too old: Reno from the cwnd that was in force.
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

    /// The name in reports and recordings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Decided => "decided",
            Self::AfterTimeout => "after-timeout",
            Self::Fallback => "fallback",
        }
    }

    /// The mode with this number; unknown numbers count as [`Mode::Fallback`].
    #[inline(always)]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Startup,
            1 => Self::Decided,
            2 => Self::AfterTimeout,
            _ => Self::Fallback,
        }
    }

    /// Whether the cwnd, or the end of its slow start, is a decision.
    #[inline(always)]
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Decided | Self::AfterTimeout)
    }
}

/// What the agent has published for a flow, as the flow's owner finds it at an ACK.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// The flow's entry in the cwnd map ([`Decision::from_cell`]).
    pub cell: u64,
    /// The agent's newest sign of life.
    pub heartbeat: &'a Heartbeat,
}

/// Which transitions an ACK caused, for the datapath's [counters](crate::Counter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// A new decision was taken up.
    pub taken: bool,
    /// The decision taken up was outside the cwnd bounds.
    pub clamped: bool,
    /// A new decision was for another generation of the slot and had no effect.
    pub stale: bool,
    /// The flow entered [`Mode::Fallback`].
    pub fallback_entered: bool,
    /// The flow left [`Mode::Fallback`] for a new decision.
    pub fallback_left: bool,
}

/// The part of a flow's state that sets its cwnd: the [`Mode`] and the newest decision.
///
/// ```text
///  flow opened    +---------+    decision     +---------+   cwnd reaches the decision,
/// --------------->| Startup |---------------->| Decided |<--- or the timeout was spurious --+
///                 +---------+                 +---------+                                   |
///                      |                       |  ^  |                                      |
///                      | heartbeat             |  |  | retransmission    +--------------+   |
///                      | too old               |  |  +------------------>| AfterTimeout |---+
///                      |      heartbeat        |  |    timeout           +--------------+
///                      |      too old          |  |                             |
///                      v                       |  | decision and                |
///                 +----------+ <---------------+  | fresh heartbeat             |
///                 | Fallback |--------------------+                             |
///                 +----------+ <------------------------------------------------+
///                                             heartbeat too old
/// ```
///
/// A decision that arrives in `AfterTimeout` moves the end of slow start. A decision is new when
/// the flow's entry in the cwnd map has changed since the last ACK.
///
/// ```
/// use cc_ebpf::{Controller, Decision, Heartbeat, Mode, Published, Settings};
/// # use cc_ebpf::{AckSample, CaState, CwndState, Totals};
/// # let ack = AckSample {
/// #     now_ns: 1_000_000, rtt_us: 30_000, srtt_us: 30_000, rttvar_us: 0, mss: 1448,
/// #     header_len: 32, in_flight: 8, acked: 2, lost: 0, delivered: 0, interval_us: 0,
/// #     retransmits: 0, cwnd_limited: true, ca_state: CaState::Open, totals: Totals::default(),
/// # };
/// let settings = Settings::default();
/// let heartbeat = Heartbeat { at_ns: ack.now_ns, pid: 1 };
/// let mut cwnd = CwndState { cwnd: 10, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: u32::MAX };
/// let mut controller = Controller::default();
/// controller.start(0);
///
/// let nothing = Published { cell: 0, heartbeat: &heartbeat };
/// controller.on_ack(&mut cwnd, &ack, nothing, 1, &settings);
/// assert_eq!((controller.mode(), cwnd.cwnd), (Mode::Startup, 12)); // slow start
///
/// let cell = Decision { generation: 1, window: 1, cwnd: 40 }.to_cell();
/// let decided = Published { cell, heartbeat: &heartbeat };
/// assert!(controller.on_ack(&mut cwnd, &ack, decided, 1, &settings).taken);
/// assert_eq!((controller.mode(), cwnd.cwnd), (Mode::Decided, 40));
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Controller {
    /// The number of the [`Mode`] in force.
    mode: u32,
    /// The newest decision's cwnd in segments, within the bounds of the settings; meaningless
    /// before the first decision.
    target: u32,
    /// The flow's entry in the cwnd map at the last ACK with a fresh heartbeat. Another value is a
    /// new decision.
    seen: u64,
    /// The entry that `target` comes from; 0 before the first decision.
    taken: u64,
    /// Time of the ACK that took `taken` up, ns.
    taken_ns: u64,
}

impl Controller {
    /// Starts a flow in [`Mode::Startup`]. `cell` is the slot's entry in the cwnd map, which the
    /// slot's previous flow may have left there and which therefore is no decision for this one.
    #[inline(always)]
    pub fn start(&mut self, cell: u64) {
        self.mode = Mode::Startup as u32;
        self.target = 0;
        self.seen = cell;
        self.taken = 0;
        self.taken_ns = 0;
    }

    /// What currently sets the cwnd.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        Mode::from_raw(self.mode)
    }

    /// The newest decision taken up, as a cell (0 before the first), and the time of the ACK that
    /// took it up, ns.
    #[inline(always)]
    pub fn taken(&self) -> (u64, u64) {
        (self.taken, self.taken_ns)
    }

    /// Sets the cwnd after an ACK (`cong_control`).
    ///
    /// The result is at least 1, and at most the settings' `cwnd_max` and the connection's clamp.
    #[inline(always)]
    pub fn on_ack(
        &mut self,
        cwnd: &mut CwndState,
        ack: &AckSample,
        published: Published<'_>,
        generation: u32,
        settings: &Settings,
    ) -> Events {
        let Published { cell, heartbeat } = published;
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

    /// Takes note of a new congestion-avoidance state (`set_state`).
    ///
    /// Returns whether this is a retransmission timeout that moved the flow from [`Mode::Decided`]
    /// to [`Mode::AfterTimeout`].
    #[inline(always)]
    pub fn on_state(&mut self, state: CaState) -> bool {
        let timeout = state == CaState::Loss && self.mode() == Mode::Decided;
        if timeout {
            self.mode = Mode::AfterTimeout as u32;
        }
        timeout
    }

    /// The slow-start threshold on entering recovery, loss or CWR (`ssthresh`): the decision where
    /// there is one, since losses do not overrule it, else Reno's.
    #[inline(always)]
    pub fn ssthresh(&self, cwnd: u32) -> u32 {
        if self.mode().is_decided() {
            self.target
        } else {
            reno::ssthresh(cwnd)
        }
    }

    /// The cwnd after the kernel found a loss to be spurious (`undo_cwnd`). `prior` is the cwnd
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

    /// Enters [`Mode::Fallback`]; false when the flow is in it already.
    #[inline(always)]
    fn fall_back(&mut self, cwnd: &mut CwndState) -> bool {
        let from = self.mode();
        match from {
            Mode::Fallback => return false,
            Mode::Startup => {}
            // Congestion avoidance from the present cwnd, not a new slow start.
            Mode::Decided => cwnd.ssthresh = cwnd.cwnd,
            Mode::AfterTimeout => cwnd.ssthresh = self.target,
        }
        self.mode = Mode::Fallback as u32;
        cwnd.cwnd_cnt = 0;
        true
    }

    /// Takes up the decision in `cell`, if it holds one for this generation.
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

    const FRESH: Heartbeat = Heartbeat {
        at_ns: SECOND,
        pid: 1,
    };

    /// Published by an agent whose heartbeat is of the time of [`ack`].
    fn published(cell: u64) -> Published<'static> {
        Published {
            cell,
            heartbeat: &FRESH,
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
        controller.on_ack(cwnd, &ack(), published(cell), 7, &settings())
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
    fn the_initial_cwnd_can_be_kept_instead() {
        let mut w = state(10, u32::MAX);
        let constant = Settings {
            startup: Startup::Constant as u32,
            ..settings()
        };
        Controller::default().on_ack(&mut w, &ack(), published(0), 7, &constant);
        assert_eq!(w.cwnd, 10);
    }

    #[test]
    fn an_idle_application_does_not_grow_the_cwnd() {
        let mut w = state(10, u32::MAX);
        let sample = AckSample {
            cwnd_limited: false,
            ..ack()
        };
        Controller::default().on_ack(&mut w, &sample, published(0), 7, &settings());
        assert_eq!(w.cwnd, 10);
    }

    #[test]
    fn the_bounds_hold() {
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
        let events = controller.on_ack(&mut w, &ack(), published(left_behind), 8, &settings());
        assert_eq!(
            events,
            Events::default(),
            "the predecessor's entry is not new"
        );
        let events = controller.on_ack(&mut w, &ack(), published(cell(4, 99)), 8, &settings());
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
            "a timer that backs off changes nothing"
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
    fn a_silent_agent_means_reno_from_the_present_cwnd() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, cell(1, 100));
        let late = AckSample {
            now_ns: 3 * SECOND,
            acked: 100,
            ..ack()
        };
        let events = controller.on_ack(&mut w, &late, published(cell(1, 100)), 7, &settings());
        assert!(events.fallback_entered);
        assert_eq!((w.cwnd, w.ssthresh), (101, 100));
        let events = controller.on_ack(&mut w, &late, published(cell(2, 50)), 7, &settings());
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

    proptest! {
        /// Whatever arrives in whatever order, the cwnd stays between 1 and the maximum, and in
        /// `Decided` it is exactly the decision.
        #[test]
        fn the_cwnd_stays_within_its_bounds(
            steps in proptest::collection::vec(
                (0u64..3, 0u32..3_000, 0u32..300, 0u32..6, any::<bool>(), 0u32..3_000), 1..200),
        ) {
            let mut controller = Controller::default();
            let mut w = state(10, u32::MAX);
            let mut sample = ack();
            let mut heartbeat = FRESH;
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
                let published = Published {
                    cell: cell(index as u32, cwnd),
                    heartbeat: &heartbeat,
                };
                let events = controller.on_ack(&mut w, &sample, published, 7, &settings);
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
