//! What sets the congestion window on each ACK: the agent's newest decision where there is one,
//! Reno where there is none.
//!
//! A decision is an upper bound that the flow has to earn: it raises the cwnd only while the cwnd
//! limits the sender, only to twice what was in flight (RFC 7661), and within a round trip only to
//! twice what it was. Congestion that cannot wait for the next decision reduces the cwnd at once, a
//! congestion-experienced mark to seven tenths, heavy loss to a half, at most once per round trip,
//! and keeps it from rising for the rest of that round trip. A small cwnd that keeps losing rises
//! again as slowly as Reno's.

use bytemuck::{Pod, Zeroable};

use crate::{
    AckSample, CaState, CwndState, Decision, Heartbeat, Settings, Totals,
    bounds::{at_least, at_most},
    hystart::HyStart,
    pacing, reno,
    round::{Round, SMALL_CWND},
    usage::{INITIAL_CWND, Usage, restart_after_idle},
};

/// The slow-start threshold of a connection that has none (`TCP_INFINITE_SSTHRESH`,
/// include/net/tcp.h). Decided flows keep it, as BBR's do: a threshold made of a decision would go
/// into the host's `tcp_metrics` at the connection's end, and from there into connections of other
/// congestion controls.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// What a congestion-experienced mark leaves of the cwnd, in 1024ths: as much as of CUBIC's, 0.7
/// (RFC 9438, section 4.6; `beta` in net/ipv4/tcp_cubic.c, Linux 6.18). RFC 8511 has the reason why
/// a half, which RFC 3168 asks for, is too little: queues that mark are short, and a cwnd that is
/// halved no longer fills the path.
const MARKED_1024: u64 = 717;

/// What currently sets a flow's cwnd. [`Controller`] has the diagram of the transitions.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No decision has arrived yet: slow start and Reno, or the initial cwnd
    /// ([`Startup`](crate::Startup)).
    Startup = 0,
    /// The newest decision bounds the cwnd, which reaches it as far as the flow uses its cwnd.
    Decided = 1,
    /// A retransmission timeout fired: slow start, from the cwnd that the kernel set, up to the
    /// newest decision.
    AfterTimeout = 2,
    /// The agent's heartbeat is too old, or it has left too many windows of this flow without a
    /// decision: Reno from the cwnd that was in force.
    Fallback = 3,
    /// The application limits the flow, so that its windows say nothing about the path: slow start
    /// up to the last decision and Reno, with a cwnd that decays while it is not used.
    ApplicationLimited = 4,
}

impl Mode {
    /// Every mode, in the order of their numbers.
    pub const ALL: [Mode; 5] = [
        Self::Startup,
        Self::Decided,
        Self::AfterTimeout,
        Self::Fallback,
        Self::ApplicationLimited,
    ];

    /// The name in reports and recordings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Decided => "decided",
            Self::AfterTimeout => "after-timeout",
            Self::Fallback => "fallback",
            Self::ApplicationLimited => "application-limited",
        }
    }

    /// The mode with this number; unknown numbers count as [`Mode::Fallback`].
    #[inline(always)]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Startup,
            1 => Self::Decided,
            2 => Self::AfterTimeout,
            4 => Self::ApplicationLimited,
            _ => Self::Fallback,
        }
    }

    /// Whether the cwnd, or the end of its slow start, is a decision.
    #[inline(always)]
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Decided | Self::AfterTimeout)
    }
}

/// The end of an observation window, as [`Controller::on_ack`] takes it into account.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowEnd {
    /// No window has ended with this ACK.
    None = 0,
    /// A window has ended in which the network limited the flow: the agent decides on it.
    NetworkLimited = 1,
    /// A window has ended in which the application limited the flow: no decision is made on it.
    ApplicationLimited = 2,
}

impl WindowEnd {
    /// The end with this number; unknown numbers count as [`WindowEnd::None`].
    #[inline(always)]
    pub(crate) fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::NetworkLimited,
            2 => Self::ApplicationLimited,
            _ => Self::None,
        }
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

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $name:ident, $constant:ident = $bit:literal;)+) => {
        /// What an ACK caused, for the datapath's [counters](crate::Counter).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Events(u32);

        impl Events {
            $(
                $(#[doc = $doc])+
                #[inline(always)]
                pub fn $name(self) -> bool {
                    self.0 & Self::$constant != 0
                }
            )+

            $(const $constant: u32 = 1 << $bit;)+
        }
    };
}

events! {
    /// A new decision was taken up.
    taken, TAKEN = 0;
    /// The decision taken up was outside the cwnd bounds.
    clamped, CLAMPED = 1;
    /// A new decision was for another generation of the slot and had no effect.
    stale, STALE = 2;
    /// The flow entered [`Mode::Fallback`].
    fallback_entered, FALLBACK_ENTERED = 3;
    /// The flow left [`Mode::Fallback`] for a new decision.
    fallback_left, FALLBACK_LEFT = 4;
    /// The fallback was entered because the agent has left the flow's windows unanswered, although
    /// its heartbeat is fresh.
    unanswered, UNANSWERED = 5;
    /// Congestion-experienced marks reduced the cwnd.
    marks_answered, MARKS_ANSWERED = 6;
    /// Heavy loss halved the cwnd.
    loss_answered, LOSS_ANSWERED = 7;
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
///                      |      or decision      |  |                             |
///                      v      too old          |  | decision and                |
///                 +----------+ <---------------+  | fresh heartbeat             |
///                 | Fallback |--------------------+                             |
///                 +----------+ <------------------------------------------------+
///                                             heartbeat or decision too old
/// ```
///
/// A window in which the application limited the flow leads from `Decided` and `AfterTimeout` to
/// `ApplicationLimited`, and so does a restart after idle time. From there a decision, which the
/// agent makes on the next window that the network limits, leads back to `Decided`, and a heartbeat
/// that is too old to `Fallback`.
///
/// A decision that arrives in `AfterTimeout` moves the end of slow start. A decision is new when
/// the flow's entry in the cwnd map has changed since the last ACK.
///
/// ```
/// use cc_ebpf::{Controller, Decision, Heartbeat, Mode, Published, Settings, WindowEnd};
/// # use cc_ebpf::{AckSample, CaState, CwndState, Totals};
/// # let ack = AckSample {
/// #     now_ns: 1_000_000, rtt_us: 30_000, srtt_us: 30_000, rttvar_us: 0, mss: 1448,
/// #     header_len: 32, in_flight: 8, acked: 2, lost: 0, delivered: 0, interval_us: 0,
/// #     retransmits: 0, cwnd_limited: true, max_packets_out: 20, app_limited: false, idle: false,
/// #     decays_unused: true,
/// #     ca_state: CaState::Open, totals: Totals::default(),
/// # };
/// let settings = Settings::default();
/// let heartbeat = Heartbeat { at_ns: ack.now_ns, pid: 1 };
/// let mut cwnd = CwndState { cwnd: 10, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: u32::MAX };
/// let mut controller = Controller::default();
/// controller.start(0, Totals::default());
///
/// let nothing = Published { cell: 0, heartbeat: &heartbeat };
/// controller.on_ack(&mut cwnd, &ack, nothing, 1, WindowEnd::None, &settings);
/// assert_eq!((controller.mode(), cwnd.cwnd), (Mode::Startup, 12)); // slow start
///
/// let cell = Decision { generation: 1, window: 1, cwnd: 20 }.to_cell();
/// let decided = Published { cell, heartbeat: &heartbeat };
/// let ended = WindowEnd::NetworkLimited;
/// assert!(controller.on_ack(&mut cwnd, &ack, decided, 1, ended, &settings).taken());
/// assert_eq!((controller.mode(), cwnd.cwnd), (Mode::Decided, 20));
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Controller {
    /// The number of the [`Mode`] in force.
    mode: u32,
    /// The newest decision's cwnd in segments, within the bounds of the settings, or less where
    /// congestion has been answered since; meaningless before the first decision.
    target: u32,
    /// The flow's entry in the cwnd map at the last ACK with a fresh heartbeat. Another value is a
    /// new decision.
    seen: u64,
    /// The entry that `target` comes from; 0 before the first decision.
    taken: u64,
    /// Time of the ACK that took `taken` up, ns.
    taken_ns: u64,
    /// Windows that the network limited and that have ended since the newest decision was taken up.
    unanswered: u32,
    /// [`Totals::delivered_ce`] at the last ACK.
    marked: u32,
    /// The [`Events`] of the last ACK.
    events: u32,
    /// What the last ACK found: [`Self::BEGINS_ROUND`], [`Self::SLOW_START`].
    found: u32,
    /// Where losses have persisted at a small cwnd, the most that the cwnd may reach, in segments;
    /// otherwise 0.
    ceiling: u32,
    /// The round trip under way.
    round: Round,
    /// How long the cwnd has been left unused.
    usage: Usage,
    /// Decides when slow start ends.
    hystart: HyStart,
}

impl Controller {
    /// Bit of `found`: the ACK began a round trip.
    const BEGINS_ROUND: u32 = 1;
    /// Bit of `found`: slow start goes on after the ACK.
    const SLOW_START: u32 = 2;

    /// Starts a flow in [`Mode::Startup`] on a connection whose totals stand at `totals`. `cell` is
    /// the slot's entry in the cwnd map, which the slot's previous flow may have left there and
    /// which therefore is no decision for this one.
    #[inline(always)]
    pub fn start(&mut self, cell: u64, totals: Totals) {
        self.mode = Mode::Startup as u32;
        self.target = 0;
        self.seen = cell;
        self.taken = 0;
        self.taken_ns = 0;
        self.unanswered = 0;
        self.marked = totals.delivered_ce;
        self.found = 0;
        self.ceiling = 0;
        self.round.open(totals.delivered);
        self.usage.restart();
        self.hystart.restart();
    }

    /// What currently sets the cwnd.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        Mode::from_raw(self.mode)
    }

    /// Whether the flow was in slow start after the last ACK and had found no limit of the path
    /// yet: no decision governs its cwnd, and there was neither a loss nor the rise of the RTT by
    /// which HyStart++ notices a queue.
    #[inline(always)]
    pub fn slow_starts(&self) -> bool {
        self.found & Self::SLOW_START != 0
    }

    /// The pacing rate that goes with the cwnd after this ACK, bytes/s; `None` before the first
    /// RTT.
    ///
    /// A cwnd that is decided is spread over the smoothed RTT or over the longest RTT of the last
    /// two round trips, whichever is longer; any other over the smoothed RTT.
    ///
    /// Where ACKs come in batches, the RTTs of the segments that a batch acknowledges are spread
    /// over the time between two batches, and the smoothed one is about their mean. A cwnd that
    /// lasts until the next batch, paced by the mean, leaves early and waits in the bottleneck's
    /// queue; paced by the longest it leaves as evenly as the path carries it.
    #[inline(always)]
    pub fn pacing_rate(
        &self,
        cwnd: &CwndState,
        ack: &AckSample,
        settings: &Settings,
    ) -> Option<u64> {
        let gains = settings.pacing_gains(self.mode());
        pacing::pacing_rate(cwnd, ack, self.pacing_rtt_us(ack), gains)
    }

    /// The time over which [`Controller::pacing_rate`] spreads the cwnd, µs; 0 before the first
    /// RTT.
    #[inline(always)]
    fn pacing_rtt_us(&self, ack: &AckSample) -> u32 {
        match self.mode().is_decided() {
            true => at_least(ack.srtt_us, self.round.longest_rtt_us()),
            false => ack.srtt_us,
        }
    }

    /// The newest decision taken up, as a cell (0 before the first), and the time of the ACK that
    /// took it up, ns.
    #[inline(always)]
    pub fn taken(&self) -> (u64, u64) {
        (self.taken, self.taken_ns)
    }

    /// Sets the cwnd after an ACK (`cong_control`). `ended` says whether the ACK has ended a window
    /// of the flow.
    ///
    /// The result is at least 1, and at most the settings' `cwnd_max` and the connection's clamp.
    #[inline(always)]
    pub fn on_ack(
        &mut self,
        cwnd: &mut CwndState,
        ack: &AckSample,
        published: Published<'_>,
        generation: u32,
        ended: WindowEnd,
        settings: &Settings,
    ) -> Events {
        let Published { cell, heartbeat } = published;
        self.events = 0;
        self.found = match self.round.on_ack(ack) {
            true => {
                self.usage.begin_round(cwnd.cwnd);
                Self::BEGINS_ROUND
            }
            false => 0,
        };
        match ended {
            WindowEnd::None => {}
            WindowEnd::NetworkLimited => self.unanswered = self.unanswered.saturating_add(1),
            WindowEnd::ApplicationLimited => self.lose_sight(cwnd),
        }
        if heartbeat.is_stale(ack.now_ns, settings.heartbeat_limit_ns) {
            self.fall_back(cwnd, 0);
        } else if cell != self.seen {
            self.seen = cell;
            self.take(cell, generation, ack, settings);
        } else if self.unanswered > settings.unanswered_limit && self.mode().is_decided() {
            self.fall_back(cwnd, Events::UNANSWERED);
        }
        match Mode::from_raw(self.mode) {
            Mode::Startup if settings.constant_start() => {}
            Mode::Decided => self.follow_decision(cwnd, ack, settings),
            Mode::AfterTimeout => {
                cwnd.ssthresh = INFINITE_SSTHRESH;
                cwnd.cwnd = cwnd.cwnd.saturating_add(ack.acked);
                let end = self.below_ceiling(self.target);
                if cwnd.cwnd >= end {
                    cwnd.cwnd = end;
                    self.mode = Mode::Decided as u32;
                    // Slow start has answered what the timeout found lost.
                    self.round.start(ack.totals.delivered, ack.in_flight);
                }
            }
            Mode::Startup | Mode::Fallback | Mode::ApplicationLimited => {
                self.grow(cwnd, ack, settings);
            }
        }
        self.marked = ack.totals.delivered_ce;
        bound(cwnd, settings);
        Events(self.events)
    }

    /// Takes note of a transmission after idle time, when nothing is in flight
    /// (`CA_EVENT_TX_START`): the cwnd restarts as by [`restart_after_idle`], and slow start takes
    /// it back up. `idle` is the time since the last transmission, in the unit of `rto`.
    #[inline(always)]
    pub fn on_transmission(&mut self, cwnd: &mut CwndState, idle: u32, rto: u32) {
        if idle > rto {
            self.lose_sight(cwnd);
            restart_after_idle(cwnd, idle, rto);
            self.hystart.restart();
        }
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

    /// The slow-start threshold on entering recovery, loss or CWR (`ssthresh`): none while a
    /// decision governs the cwnd, otherwise Reno's.
    #[inline(always)]
    pub fn ssthresh(&self, cwnd: u32) -> u32 {
        if self.mode().is_decided() {
            INFINITE_SSTHRESH
        } else {
            reno::ssthresh(cwnd)
        }
    }

    /// The cwnd after the kernel found a loss to be spurious (`undo_cwnd`). `prior` is the cwnd
    /// before the supposed loss.
    #[inline(always)]
    pub fn undo(&mut self, cwnd: u32, prior: u32) -> u32 {
        let undone = reno::undo(cwnd, prior);
        if self.mode().is_decided() {
            self.mode = Mode::Decided as u32;
            self.ceiling = 0;
            at_most(undone, self.target)
        } else {
            undone
        }
    }

    /// Raises the cwnd as Reno does, with HyStart++ in slow start, or reduces it where it has not
    /// been used.
    #[inline(always)]
    fn grow(&mut self, cwnd: &mut CwndState, ack: &AckSample, settings: &Settings) {
        if ack.decays_unused {
            self.usage.decay(cwnd, ack);
        }
        let mut acked = ack.acked;
        if reno::in_slow_start(cwnd) && !ack.ca_state.is_reducing() {
            let begins_round = self.found & Self::BEGINS_ROUND != 0;
            let drains = settings.drains_slow_start != 0;
            acked = self.hystart.on_ack(cwnd, ack, begins_round, drains);
            if !self.hystart.is_conservative() {
                self.found |= Self::SLOW_START;
            } else if drains {
                self.drain(cwnd, ack);
            }
        }
        reno::on_ack(cwnd, ack, acked);
        if !reno::in_slow_start(cwnd) {
            self.found &= !Self::SLOW_START;
        }
    }

    /// Ends slow start, which has filled the path and perhaps a queue, with a cwnd that empties the
    /// queue while the path stays full.
    ///
    /// The delivery rate is that of the ACK train that has shown the path to be full, or otherwise
    /// of the last round trip, in which slow start began to outrun the path: six to ten tenths of
    /// the path's.
    #[inline(always)]
    fn drain(&mut self, cwnd: &mut CwndState, ack: &AckSample) {
        let (segments, time_us) = self.hystart.rate(ack);
        let held = self.round.held_by_path(segments, time_us);
        if held != 0 {
            let kept = held.saturating_add(held / 2);
            cwnd.cwnd = at_most(cwnd.cwnd, at_least(kept, INITIAL_CWND));
        }
        cwnd.ssthresh = cwnd.cwnd;
        self.hystart.restart();
    }

    /// Moves the cwnd to the decision, as far as the flow's use of its cwnd supports it, and
    /// answers congestion that cannot wait for the next decision.
    #[inline(always)]
    fn follow_decision(&mut self, cwnd: &mut CwndState, ack: &AckSample, settings: &Settings) {
        cwnd.ssthresh = INFINITE_SSTHRESH;
        self.raise_ceiling();
        let marked = self.marked != ack.totals.delivered_ce;
        if (marked || self.round.has_heavy_loss(cwnd.cwnd)) && !self.round.is_answered() {
            let persists = self.round.loss_persists(cwnd.cwnd);
            self.round.answer(ack);
            let present = at_most(cwnd.cwnd, self.target);
            if marked {
                let reduced = ((u64::from(present) * MARKED_1024) >> 10) as u32;
                self.target = at_least(reduced, settings.cwnd_min);
                self.events |= Events::MARKS_ANSWERED;
            } else {
                // Not below what any new connection may send; persisting losses, the policy and
                // timeouts go lower.
                let halved = at_least(reno::ssthresh(present), settings.cwnd_min);
                self.target = at_most(present, at_least(halved, INITIAL_CWND));
                if persists && halved < SMALL_CWND {
                    self.ceiling = halved;
                }
                self.events |= Events::LOSS_ANSWERED;
            }
        }
        let limit = if self.round.is_answered() || ack.ca_state == CaState::Cwr {
            cwnd.cwnd
        } else {
            self.usage.supported(cwnd.cwnd, ack)
        };
        cwnd.cwnd = self.below_ceiling(at_most(self.target, limit));
    }

    /// Raises the ceiling by a segment where the ACK begins a round trip, as Reno would, until the
    /// cwnd is no longer small and there is none.
    #[inline(always)]
    fn raise_ceiling(&mut self) {
        let begins_round = self.found & Self::BEGINS_ROUND != 0;
        if self.ceiling != 0 && begins_round && !self.round.is_answered() {
            self.ceiling += 1;
            if self.ceiling >= SMALL_CWND {
                self.ceiling = 0;
            }
        }
    }

    /// This cwnd, or the ceiling where that is less.
    #[inline(always)]
    fn below_ceiling(&self, cwnd: u32) -> u32 {
        match self.ceiling {
            0 => cwnd,
            ceiling => at_most(cwnd, ceiling),
        }
    }

    /// Enters [`Mode::ApplicationLimited`] where a decision governed the cwnd: what the decision
    /// was made on is no longer seen.
    #[inline(always)]
    fn lose_sight(&mut self, cwnd: &mut CwndState) {
        if self.mode().is_decided() {
            cwnd.ssthresh = self.target;
            self.mode = Mode::ApplicationLimited as u32;
            self.usage.restart();
            self.hystart.restart();
        }
    }

    /// Enters [`Mode::Fallback`], unless the flow is in it already, with this further event.
    #[inline(always)]
    fn fall_back(&mut self, cwnd: &mut CwndState, event: u32) {
        let from = self.mode();
        match from {
            Mode::Fallback => return,
            Mode::Startup | Mode::ApplicationLimited => {}
            // Congestion avoidance from the present cwnd, not a new slow start.
            Mode::Decided => cwnd.ssthresh = cwnd.cwnd,
            Mode::AfterTimeout => cwnd.ssthresh = self.target,
        }
        self.usage.restart();
        self.hystart.restart();
        self.mode = Mode::Fallback as u32;
        self.events |= Events::FALLBACK_ENTERED | event;
        cwnd.cwnd_cnt = 0;
    }

    /// Takes up the decision in `cell`, if it holds one for this generation.
    #[inline(always)]
    fn take(&mut self, cell: u64, generation: u32, ack: &AckSample, settings: &Settings) {
        let Some(decision) = Decision::from_cell(cell) else {
            return;
        };
        if !decision.is_for(generation) {
            self.events |= Events::STALE;
            return;
        }
        if decision.revokes(generation) {
            // The flow has lost its slot while it handles this ACK.
            return;
        }
        let target = at_least(at_most(decision.cwnd, settings.cwnd_max), settings.cwnd_min);
        self.events |= Events::TAKEN;
        if target != decision.cwnd {
            self.events |= Events::CLAMPED;
        }
        if self.mode() == Mode::Fallback {
            self.events |= Events::FALLBACK_LEFT;
        }
        self.target = target;
        self.taken = cell;
        self.taken_ns = ack.now_ns;
        self.unanswered = 0;
        match self.mode() {
            Mode::Decided | Mode::AfterTimeout => {}
            Mode::Startup | Mode::Fallback | Mode::ApplicationLimited => {
                self.mode = Mode::Decided as u32;
                self.ceiling = 0;
                // Reno has answered what was lost so far.
                self.round.start(ack.totals.delivered, ack.in_flight);
            }
        }
    }
}

/// Keeps the cwnd within the bounds that hold for every flow: at least 1 segment, and at most the
/// settings' `cwnd_max` and the connection's clamp.
#[inline(always)]
pub fn bound(cwnd: &mut CwndState, settings: &Settings) {
    let most = at_most(settings.cwnd_max, cwnd.clamp);
    cwnd.cwnd = at_least(at_most(cwnd.cwnd, most), 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cwnd::tests::state;
    use crate::feature::tests::ack;
    use crate::settings::Startup;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn settings() -> Settings {
        Settings {
            heartbeat_limit_ns: SECOND,
            cwnd_min: 2,
            cwnd_max: 2_000,
            unanswered_limit: 10,
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

    fn cell(window: u32, cwnd: u32) -> u64 {
        Decision {
            generation: 7,
            window,
            cwnd,
        }
        .to_cell()
    }

    /// An ACK of a sender that fills a cwnd of `segments`, in a round trip of its own.
    fn full(segments: u32, delivered: u32) -> AckSample {
        let mut sample = AckSample {
            in_flight: segments,
            max_packets_out: segments,
            ..ack()
        };
        sample.totals.delivered = delivered;
        sample
    }

    /// A controller that has taken the decision for this cwnd up, on a flow that fills it.
    fn decided(cwnd: u32) -> (Controller, CwndState) {
        let (mut controller, mut w) = (Controller::default(), state(cwnd, u32::MAX));
        let sample = full(cwnd, 1);
        let cell = cell(1, cwnd);
        controller.on_ack(
            &mut w,
            &sample,
            published(cell),
            7,
            WindowEnd::None,
            &settings(),
        );
        assert_eq!((w.cwnd, controller.mode()), (cwnd, Mode::Decided));
        (controller, w)
    }

    fn step(controller: &mut Controller, cwnd: &mut CwndState, cell: u64) -> Events {
        controller.on_ack(
            cwnd,
            &ack(),
            published(cell),
            7,
            WindowEnd::None,
            &settings(),
        )
    }

    #[test]
    fn slow_start_until_the_first_decision() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, 0);
        assert_eq!(w.cwnd, 12);
        let events = step(&mut controller, &mut w, cell(1, 15));
        assert!(events.taken() && !events.clamped());
        assert_eq!((w.cwnd, controller.mode()), (15, Mode::Decided));
        step(&mut controller, &mut w, cell(1, 15));
        assert_eq!(w.cwnd, 15, "constant between decisions");
    }

    #[test]
    fn slow_start_goes_on_until_a_decision_a_loss_or_a_rise_of_the_rtt() {
        let started = || {
            let (mut controller, mut w) = (Controller::default(), state(10, u32::MAX));
            controller.start(0, Totals::default());
            assert!(!controller.slow_starts(), "no ACK yet");
            step(&mut controller, &mut w, 0);
            assert!(controller.slow_starts());
            (controller, w)
        };
        let (mut controller, mut w) = started();
        step(&mut controller, &mut w, cell(1, 15));
        assert!(!controller.slow_starts(), "decided");

        let acknowledge = |controller: &mut Controller, w: &mut CwndState, sample: &AckSample| {
            let nothing = published(0);
            controller.on_ack(w, sample, nothing, 7, WindowEnd::None, &settings());
            controller.slow_starts()
        };
        let (mut controller, mut w) = started();
        w.ssthresh = controller.ssthresh(w.cwnd);
        let recovering = AckSample {
            ca_state: CaState::Recovery,
            ..ack()
        };
        assert!(!acknowledge(&mut controller, &mut w, &recovering), "a loss");
        let open = full(w.cwnd, 9);
        assert!(!acknowledge(&mut controller, &mut w, &open), "and after it");

        let (mut controller, mut w) = started();
        let (mut rtt_us, mut delivered, mut rounds) = (30_000, 1, 0);
        while controller.slow_starts() {
            // Each round trip begins with the ACK of a segment that was sent after the last one
            // began, and has enough samples to be judged.
            for _ in 0..20 {
                let sample = AckSample {
                    rtt_us,
                    ..full(w.cwnd, delivered)
                };
                delivered += 2;
                acknowledge(&mut controller, &mut w, &sample);
            }
            rounds += 1;
            rtt_us += 5_000;
            assert!(rounds < 50, "HyStart++ has not noticed the rise");
        }
        assert!(
            reno::in_slow_start(&w),
            "slow start is conservative, and not over"
        );
    }

    #[test]
    fn a_queue_that_slow_start_has_filled_is_drained_where_the_policy_asks_for_it() {
        let run = |settings: &Settings, interval_us| {
            let (mut controller, mut w) = (Controller::default(), state(200, u32::MAX));
            controller.start(0, Totals::default());
            let mut delivered = 1;
            for rtt_us in [30_000, 40_000] {
                // From the eighth sample on, the second round trip is found longer.
                for _ in 0..8 {
                    let sample = AckSample {
                        rtt_us,
                        delivered: 80,
                        interval_us,
                        acked: 0,
                        ..full(w.cwnd, delivered)
                    };
                    delivered += w.cwnd / 8 + 1;
                    let nothing = published(0);
                    controller.on_ack(&mut w, &sample, nothing, 7, WindowEnd::None, settings);
                }
            }
            (w.cwnd, w.ssthresh, controller.slow_starts())
        };
        let drains = Settings {
            drains_slow_start: 1,
            ..settings()
        };
        // 80 segments in 40 ms are 60 in 30 ms, of which half as many again are kept.
        assert_eq!(run(&drains, 40_000), (90, 90, false));
        assert_eq!(run(&settings(), 40_000), (200, u32::MAX, false));
        assert_eq!(run(&drains, 10_000), (200, 200, false), "never upwards");
        assert_eq!(run(&drains, 400_000), (10, 10, false), "the initial cwnd");
    }

    #[test]
    fn a_decision_is_reached_by_doubling_what_is_in_flight() {
        let (mut controller, mut w) = decided(20);
        let mut delivered = 1;
        let mut on_ack = |cell, acked| {
            delivered += acked;
            let sample = full(w.cwnd, delivered);
            let published = published(cell);
            controller.on_ack(&mut w, &sample, published, 7, WindowEnd::None, &settings());
            w.cwnd
        };
        let up = cell(2, 300);
        assert_eq!([on_ack(up, 1), on_ack(up, 1)], [40; 2], "one round trip");
        let round_trips = [300; 4].map(|acked| on_ack(up, acked));
        assert_eq!(round_trips, [80, 160, 300, 300]);
        assert_eq!(on_ack(cell(3, 30), 1), 30, "downwards at once");
    }

    #[test]
    fn many_decisions_within_a_round_trip_double_the_cwnd_once() {
        let (mut controller, mut w) = decided(100);
        let cwnds = [1, 2, 3, 4, 101].map(|acked| {
            let raised = cell(1 + acked, w.cwnd + w.cwnd / 2);
            let sample = full(w.cwnd, 1 + acked);
            let raised = published(raised);
            controller.on_ack(&mut w, &sample, raised, 7, WindowEnd::None, &settings());
            w.cwnd
        });
        assert_eq!(cwnds, [150, 200, 200, 200, 300]);
    }

    #[test]
    fn decided_cwnds_are_paced_over_the_longest_rtt() {
        let with_rtt = |rtt_us, delivered| AckSample {
            rtt_us,
            srtt_us: 60_000,
            ..full(20, delivered)
        };
        let pacing_rtt = |cell| {
            let (mut controller, mut w) = (Controller::default(), state(20, u32::MAX));
            let mut on_ack = |sample: AckSample| {
                let published = published(cell);
                let none = WindowEnd::None;
                controller.on_ack(&mut w, &sample, published, 7, none, &settings());
                controller.pacing_rtt_us(&sample)
            };
            [(110_000, 1), (10_000, 2)]
                .map(|(rtt_us, delivered)| on_ack(with_rtt(rtt_us, delivered)))
        };
        assert_eq!(pacing_rtt(cell(1, 20)), [110_000; 2], "a batch of ACKs");
        assert_eq!(pacing_rtt(0), [60_000; 2], "slow start");
        let (controller, _) = decided(20);
        assert_eq!(controller.pacing_rtt_us(&with_rtt(0, 3)), 60_000);
    }

    #[test]
    fn a_decision_raises_nothing_while_the_application_limits_the_flow() {
        let (mut controller, mut w) = decided(20);
        let sample = AckSample {
            cwnd_limited: false,
            ..full(4, 1)
        };
        let up = published(cell(2, 40));
        controller.on_ack(&mut w, &sample, up, 7, WindowEnd::None, &settings());
        assert_eq!((w.cwnd, controller.mode()), (20, Mode::Decided));
        // At the window's end the flow leaves the decision, and what is unused decays.
        let ended = WindowEnd::ApplicationLimited;
        controller.on_ack(&mut w, &sample, up, 7, ended, &settings());
        assert_eq!(controller.mode(), Mode::ApplicationLimited);
        assert_eq!(
            (w.cwnd, w.ssthresh),
            (20, 40),
            "slow start up to the decision"
        );
        // With a window that fills, the agent decides again.
        let sample = full(20, 2);
        let again = published(cell(5, 44));
        controller.on_ack(
            &mut w,
            &sample,
            again,
            7,
            WindowEnd::NetworkLimited,
            &settings(),
        );
        assert_eq!((w.cwnd, controller.mode()), (40, Mode::Decided));
    }

    #[test]
    fn transmission_after_idle_time_restarts_the_cwnd() {
        let (mut controller, mut w) = decided(400);
        controller.on_transmission(&mut w, 200, 200);
        assert_eq!((w.cwnd, controller.mode()), (400, Mode::Decided));
        controller.on_transmission(&mut w, 5_000, 200);
        assert_eq!((w.cwnd, w.ssthresh), (10, 400));
        assert_eq!(controller.mode(), Mode::ApplicationLimited);
    }

    #[test]
    fn marks_reduce_the_cwnd_once_per_round_trip() {
        let (mut controller, mut w) = decided(100);
        let mut sample = full(100, 2);
        sample.totals.delivered_ce = 1;
        sample.ca_state = CaState::Cwr;
        let cell = cell(1, 100);
        let mut step = |sample: &AckSample, cell| {
            let published = published(cell);
            let events =
                controller.on_ack(&mut w, sample, published, 7, WindowEnd::None, &settings());
            (w.cwnd, events.marks_answered())
        };
        assert_eq!(step(&sample, cell), (70, true));
        sample.totals.delivered += 50;
        sample.totals.delivered_ce += 50;
        sample.in_flight = 50;
        assert_eq!(step(&sample, cell), (70, false), "the same round trip");
        // A decision cannot raise it meanwhile.
        let decision = super::tests::cell(2, 200);
        sample.totals.delivered += 50;
        assert_eq!(
            step(&sample, decision),
            (70, false),
            "the last of the flight"
        );
        sample.totals.delivered += 1;
        sample.totals.delivered_ce += 50;
        assert_eq!(
            step(&sample, decision),
            (49, true),
            "the next round trip is marked as well"
        );
        // Without marks the flow goes on from there.
        sample.totals.delivered += 51;
        sample.ca_state = CaState::Open;
        (sample.in_flight, sample.max_packets_out) = (25, 25);
        let decision = super::tests::cell(3, 30);
        assert_eq!(step(&sample, decision), (30, false));
    }

    #[test]
    fn a_small_cwnd_that_keeps_losing_rises_by_a_segment_per_round_trip() {
        let (mut controller, mut w) = decided(12);
        let mut sample = full(12, 2);
        let mut decision = 1;
        // A round trip with as many losses, after which the agent decides on 40.
        let mut round_trip = |w: &mut CwndState, lost: u32| {
            sample.totals.delivered += 20;
            decision += 1;
            let sample = AckSample {
                lost,
                in_flight: w.cwnd,
                max_packets_out: w.cwnd,
                ..sample
            };
            let decided = published(cell(decision, 40));
            let end = WindowEnd::NetworkLimited;
            controller.on_ack(w, &sample, decided, 7, end, &settings());
            w.cwnd
        };
        assert_eq!(round_trip(&mut w, 0), 24, "twice what was in flight");
        w.cwnd = 12;
        assert_eq!(round_trip(&mut w, 8), 6, "halved, whatever is decided");
        let risen: [u32; 12] = core::array::from_fn(|_| round_trip(&mut w, 0));
        assert_eq!(risen, [7, 8, 9, 10, 11, 12, 13, 14, 15, 30, 40, 40]);
    }

    #[test]
    fn heavy_loss_is_not_left_to_the_next_decision() {
        let (mut controller, mut w) = decided(100);
        let mut sample = AckSample {
            lost: 24,
            ca_state: CaState::Recovery,
            ..full(80, 2)
        };
        let cell = published(cell(1, 100));
        let mut step = |sample: &AckSample| {
            let events = controller.on_ack(&mut w, sample, cell, 7, WindowEnd::None, &settings());
            (w.cwnd, events.loss_answered())
        };
        assert_eq!(step(&sample), (100, false), "less than a quarter");
        sample.lost = 1;
        assert_eq!(step(&sample), (50, true));
        sample.lost = 30;
        assert_eq!(step(&sample), (50, false), "once per round trip");
        sample.totals.delivered += 100;
        assert_eq!(step(&sample), (25, true));
    }

    #[test]
    fn too_many_windows_without_a_decision_lead_to_the_fallback() {
        let (mut controller, mut w) = decided(100);
        let sample = full(100, 2);
        let cell_1 = published(cell(1, 100));
        let mut step = |cell, ended| {
            let events = controller.on_ack(&mut w, &sample, cell, 7, ended, &settings());
            (
                events.fallback_entered() && events.unanswered(),
                controller.mode(),
            )
        };
        for _ in 0..10 {
            let outcome = step(cell_1, WindowEnd::NetworkLimited);
            assert_eq!(outcome, (false, Mode::Decided));
        }
        assert_eq!(step(cell_1, WindowEnd::None), (false, Mode::Decided));
        assert_eq!(
            step(cell_1, WindowEnd::NetworkLimited),
            (true, Mode::Fallback)
        );
        assert_eq!(
            step(cell_1, WindowEnd::NetworkLimited),
            (false, Mode::Fallback)
        );
        let newer = published(cell(2, 100));
        assert_eq!(step(newer, WindowEnd::None), (false, Mode::Decided));
    }

    #[test]
    fn the_initial_cwnd_can_be_kept_instead() {
        let mut w = state(10, u32::MAX);
        let constant = Settings {
            startup: Startup::Constant as u32,
            ..settings()
        };
        Controller::default().on_ack(&mut w, &ack(), published(0), 7, WindowEnd::None, &constant);
        assert_eq!(w.cwnd, 10);
    }

    #[test]
    fn an_idle_application_does_not_grow_the_cwnd() {
        let mut w = state(10, u32::MAX);
        let sample = AckSample {
            cwnd_limited: false,
            ..ack()
        };
        Controller::default().on_ack(
            &mut w,
            &sample,
            published(0),
            7,
            WindowEnd::None,
            &settings(),
        );
        assert_eq!(w.cwnd, 10);
    }

    #[test]
    fn the_bounds_hold() {
        let mut controller = Controller::default();
        let mut w = state(1_500, u32::MAX);
        let sample = full(1_500, 1);
        let cell_1 = published(cell(1, 5_000));
        let ended = WindowEnd::None;
        assert!(
            controller
                .on_ack(&mut w, &sample, cell_1, 7, ended, &settings())
                .clamped()
        );
        assert_eq!(w.cwnd, 2_000);
        assert!(step(&mut controller, &mut w, cell(2, 1)).clamped());
        assert_eq!(w.cwnd, 2);
        w.clamp = 1;
        step(&mut controller, &mut w, cell(3, 50));
        assert_eq!(w.cwnd, 1, "the host's own clamp is lower still");
    }

    #[test]
    fn a_decision_for_another_generation_changes_nothing() {
        let mut controller = Controller::default();
        let left_behind = cell(3, 40);
        controller.start(left_behind, Totals::default());
        let mut w = state(10, 10);
        let events = controller.on_ack(
            &mut w,
            &ack(),
            published(left_behind),
            8,
            WindowEnd::None,
            &settings(),
        );
        assert_eq!(
            events,
            Events::default(),
            "the predecessor's entry is not new"
        );
        let events = controller.on_ack(
            &mut w,
            &ack(),
            published(cell(4, 99)),
            8,
            WindowEnd::None,
            &settings(),
        );
        assert!(events.stale() && !events.taken());
        assert_eq!(controller.mode(), Mode::Startup);
    }

    #[test]
    fn after_a_timeout_slow_start_ends_at_the_decision() {
        let mut controller = Controller::default();
        let mut w = state(10, u32::MAX);
        step(&mut controller, &mut w, cell(1, 6));
        assert_eq!(controller.ssthresh(6), INFINITE_SSTHRESH);
        assert!(controller.on_state(CaState::Loss));
        assert!(
            !controller.on_state(CaState::Loss),
            "a timer that backs off changes nothing"
        );
        w.cwnd = 1; // tcp_enter_loss
        step(&mut controller, &mut w, cell(1, 6));
        assert_eq!((w.cwnd, controller.mode()), (3, Mode::AfterTimeout));
        let sample = AckSample { lost: 6, ..ack() };
        let lower = published(cell(2, 5));
        controller.on_ack(&mut w, &sample, lower, 7, WindowEnd::None, &settings());
        assert_eq!((w.cwnd, controller.mode()), (5, Mode::Decided));
        step(&mut controller, &mut w, cell(2, 5));
        assert_eq!(w.cwnd, 5, "slow start was the answer to the losses");
    }

    #[test]
    fn a_spurious_timeout_is_undone() {
        let (mut controller, _) = decided(60);
        controller.on_state(CaState::Loss);
        assert_eq!(controller.undo(1, 60), 60);
        assert_eq!(controller.undo(1, 80), 60, "no more than the decision");
        assert_eq!(controller.mode(), Mode::Decided);
        assert_eq!(Controller::default().undo(5, 20), 20);
    }

    #[test]
    fn a_silent_agent_means_reno_from_the_present_cwnd() {
        let (mut controller, mut w) = decided(100);
        let late = AckSample {
            now_ns: 3 * SECOND,
            acked: 100,
            ..ack()
        };
        let events = controller.on_ack(
            &mut w,
            &late,
            published(cell(1, 100)),
            7,
            WindowEnd::None,
            &settings(),
        );
        assert!(events.fallback_entered());
        assert_eq!((w.cwnd, w.ssthresh), (101, 100));
        let events = controller.on_ack(
            &mut w,
            &late,
            published(cell(2, 50)),
            7,
            WindowEnd::None,
            &settings(),
        );
        assert_eq!(
            events,
            Events::default(),
            "a decision without a heartbeat waits"
        );
        assert_eq!(controller.ssthresh(w.cwnd), 50);
        // The agent is back: first its heartbeat, then its decision.
        let events = step(&mut controller, &mut w, cell(1, 100));
        assert!(!events.taken(), "the decision from before is not fresh");
        assert_eq!(controller.mode(), Mode::Fallback);
        let events = step(&mut controller, &mut w, cell(3, 80));
        assert!(events.taken() && events.fallback_left());
        assert_eq!(w.cwnd, 80);
    }

    proptest! {
        /// Whatever arrives in whatever order, the cwnd stays between 1 and the maximum, and in
        /// `Decided` it is at most the decision.
        #[test]
        fn the_cwnd_stays_within_its_bounds(
            steps in proptest::collection::vec(
                (0u64..3, 1u32..3_000, 0u32..300, 0u32..6, any::<bool>(), 0u32..3_000), 1..200),
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
                let events =
                    controller.on_ack(&mut w, &sample, published, 7, WindowEnd::None, &settings);
                prop_assert!((1..=2_000).contains(&w.cwnd));
                if events.taken() && controller.mode() == Mode::Decided {
                    prop_assert!(w.cwnd <= cwnd.clamp(2, 2_000));
                }
                prop_assert_eq!(
                    controller.mode() == Mode::Fallback,
                    heartbeat.is_stale(sample.now_ns, SECOND)
                );
            }
        }
    }
}
