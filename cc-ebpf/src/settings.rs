//! What the agent tells the datapath: one settings block and one heartbeat, in mmapable maps.

use bytemuck::{Pod, Zeroable};

use crate::{Gains, Mode};

/// Changes with the layout of anything in a map. An agent adopts the flows that another left behind
/// only when their layouts are the same.
pub const LAYOUT_VERSION: u32 = 8;

/// Settings of the datapath; the agent may change them while flows run.
///
/// The default is that of a datapath of its own, as in the simulator: one slot, windows of 100 ms,
/// a 10 s minimum-RTT filter, a cwnd of 2 to 2000 segments, slow start until the first decision, no
/// pacing, no per-ACK records, and an agent that never counts as gone.
///
/// ```
/// use cc_ebpf::{AckFilter, Settings, Startup};
///
/// let settings = Settings { cwnd_max: 500, ..Settings::default() }
///     .with_startup(Startup::Constant)
///     .with_pacing_gain(Some(1.25))
///     .with_ack_filter(AckFilter::Port(443));
/// assert!(settings.constant_start());
/// assert_eq!(settings.pacing_gain_1024, 1280);
/// assert!(settings.records_acks_of(0, 40_000, 443));
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Settings {
    /// [`LAYOUT_VERSION`] of the agent that made the maps.
    pub layout: u32,
    /// Number of flow slots in the maps.
    pub slots: u32,
    /// Length of the observation window, ns.
    pub window_ns: u64,
    /// The agent counts as gone when its heartbeat is older than this, ns.
    pub heartbeat_limit_ns: u64,
    /// Length of the window of the minimum-RTT filter, ns.
    pub min_rtt_window_ns: u64,
    /// Smallest cwnd that a decision may set, segments.
    pub cwnd_min: u32,
    /// Largest cwnd that anything may set, segments.
    pub cwnd_max: u32,
    /// The number of the [`Startup`] to use.
    pub startup: u32,
    /// Pacing rate as a multiple of cwnd / RTT, in units of 1/1024; 0 leaves the flow unpaced.
    /// [`Controller::pacing_rate`](crate::Controller::pacing_rate) says which RTT it is.
    pub pacing_gain_1024: u32,
    /// Kind of the [`AckFilter`] ([`AckFilter::encode`]).
    pub ack_filter: u32,
    /// Argument of the [`AckFilter`].
    pub ack_filter_argument: u32,
    /// Windows of a flow that may end without a newer decision before the flow falls back. Windows
    /// that the application limited do not count.
    pub unanswered_limit: u32,
    /// 1 where a flow that finds a queue in slow start drains it and leaves slow start, as policies
    /// want it that decide from there on; 0 where HyStart++ ends slow start by itself.
    pub drains_slow_start: u32,
    /// Name of the congestion control that these maps serve, NUL-padded.
    pub name: [u8; 16],
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            layout: LAYOUT_VERSION,
            slots: 1,
            window_ns: 100_000_000,
            heartbeat_limit_ns: u64::MAX,
            min_rtt_window_ns: 10_000_000_000,
            cwnd_min: 2,
            cwnd_max: 2_000,
            startup: Startup::SlowStart as u32,
            pacing_gain_1024: 0,
            ack_filter: 0,
            ack_filter_argument: 0,
            unanswered_limit: u32::MAX,
            drains_slow_start: 0,
            name: [0; 16],
        }
    }
}

/// What a flow does before its first decision.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// Slow start (and, after a loss, congestion avoidance), as any Reno flow.
    SlowStart = 0,
    /// The initial cwnd, unchanged, as in the mvfst-rl paper.
    Constant = 1,
}

/// Which flows' ACKs are recorded one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckFilter {
    /// No flow's ACKs are recorded.
    Off,
    /// The ACKs of every flow.
    All,
    /// The ACKs of the flow in this slot.
    Slot(u32),
    /// The ACKs of flows with this local or remote port.
    Port(u16),
    /// The ACKs of every flow whose slot is a multiple of this; 0 takes none.
    OneIn(u32),
}

impl AckFilter {
    /// Kind and argument as numbers, as [`Settings::ack_filter`] and
    /// [`Settings::ack_filter_argument`] hold them.
    pub fn encode(self) -> (u32, u32) {
        match self {
            Self::Off => (0, 0),
            Self::All => (1, 0),
            Self::Slot(slot) => (2, slot),
            Self::Port(port) => (3, u32::from(port)),
            Self::OneIn(n) => (4, n),
        }
    }
}

impl Settings {
    /// The settings with this behaviour before the first decision.
    pub fn with_startup(self, startup: Startup) -> Self {
        Self {
            startup: startup as u32,
            ..self
        }
    }

    /// The settings under which flows fall back when the agent gives no sign of life for
    /// `limit_ns`, or leaves as many windows of a flow without a decision as last that long, at
    /// least ten: a decision takes the time that it takes, however short the windows are. Where
    /// decisions are waited for, on a policy server, `answer_ns` is added to that time.
    pub fn with_patience(self, limit_ns: u64, answer_ns: u64) -> Self {
        const LEAST_WINDOWS: u64 = 10;
        let undecided_ns = limit_ns.saturating_add(answer_ns);
        let windows = undecided_ns
            .div_ceil(self.window_ns.max(1))
            .max(LEAST_WINDOWS);
        Self {
            heartbeat_limit_ns: limit_ns,
            unanswered_limit: u32::try_from(windows).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// The settings with pacing at `gain` × cwnd / RTT, truncated to a multiple of 1/1024; `None`
    /// leaves flows unpaced.
    pub fn with_pacing_gain(self, gain: Option<f32>) -> Self {
        Self {
            pacing_gain_1024: gain.map_or(0, |gain| (gain * 1024.0) as u32),
            ..self
        }
    }

    /// The settings with this choice of the flows whose ACKs are recorded one by one.
    pub fn with_ack_filter(self, filter: AckFilter) -> Self {
        let (ack_filter, ack_filter_argument) = filter.encode();
        Self {
            ack_filter,
            ack_filter_argument,
            ..self
        }
    }

    /// Whether the [`AckFilter`] takes the flow in `slot` between these ports (host byte order).
    #[inline(always)]
    pub fn records_acks_of(&self, slot: u32, local_port: u16, remote_port: u16) -> bool {
        let argument = self.ack_filter_argument;
        match self.ack_filter {
            1 => true,
            2 => slot == argument,
            3 => u32::from(local_port) == argument || u32::from(remote_port) == argument,
            4 => argument != 0 && slot.is_multiple_of(argument),
            _ => false,
        }
    }

    /// The pacing gains of a flow in this mode: the policy's while its decisions govern the cwnd.
    #[inline(always)]
    pub fn pacing_gains(&self, mode: Mode) -> Gains {
        if self.pacing_gain_1024 == 0 {
            Gains::KERNEL
        } else if mode.is_decided() {
            Gains::constant(self.pacing_gain_1024)
        } else {
            Gains::UNDECIDED
        }
    }

    /// The fewest segments that a flow sends together (`min_tso_segs`, net/ipv4/tcp_output.c).
    ///
    /// A paced flow sends segments singly: behind a policer, or a queue of one packet, the second
    /// of a pair would find the queue full. An unpaced flow has the kernel's default of 2
    /// (`sysctl_tcp_min_tso_segs`).
    #[inline(always)]
    pub fn min_burst(&self) -> u32 {
        if self.pacing_gain_1024 != 0 { 1 } else { 2 }
    }

    /// Whether flows keep their initial cwnd until the first decision ([`Startup::Constant`]).
    #[inline(always)]
    pub fn constant_start(&self) -> bool {
        self.startup == Startup::Constant as u32
    }
}

/// The agent's sign of life.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Heartbeat {
    /// `CLOCK_MONOTONIC` when the agent was last known to be serving, ns; 0 before it ever was.
    pub at_ns: u64,
    /// Process id of the agent.
    pub pid: u64,
}

impl Heartbeat {
    /// Whether the heartbeat is more than `limit_ns` away from `now_ns`, so that the agent counts
    /// as gone. The clocks of two CPUs may differ by a little, so a heartbeat from the near future
    /// is fresh; one from the far future was set by another clock.
    #[inline(always)]
    pub fn is_stale(&self, now_ns: u64, limit_ns: u64) -> bool {
        now_ns.abs_diff(self.at_ns) > limit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(filter: AckFilter) -> Settings {
        Settings::default().with_ack_filter(filter)
    }

    #[test]
    fn filters_take_what_they_name() {
        assert!(!with(AckFilter::Off).records_acks_of(4, 1, 2));
        assert!(with(AckFilter::All).records_acks_of(4, 1, 2));
        assert!(with(AckFilter::Slot(4)).records_acks_of(4, 1, 2));
        assert!(!with(AckFilter::Slot(5)).records_acks_of(4, 1, 2));
        assert!(with(AckFilter::Port(2)).records_acks_of(4, 1, 2));
        assert!(with(AckFilter::Port(1)).records_acks_of(4, 1, 2));
        assert!(!with(AckFilter::Port(3)).records_acks_of(4, 1, 2));
        assert!(with(AckFilter::OneIn(2)).records_acks_of(4, 1, 2));
        assert!(!with(AckFilter::OneIn(3)).records_acks_of(4, 1, 2));
        assert!(!with(AckFilter::OneIn(0)).records_acks_of(4, 1, 2));
    }

    #[test]
    fn patience_is_counted_in_windows_too() {
        let patience = |window_ns, limit_ns, answer_ns| {
            let settings = Settings {
                window_ns,
                ..Settings::default()
            };
            settings.with_patience(limit_ns, answer_ns).unanswered_limit
        };
        assert_eq!(patience(100_000_000, 1_000_000_000, 0), 10);
        assert_eq!(patience(10_000_000, 1_000_000_001, 0), 101);
        assert_eq!(patience(100_000_000, 40_000_000, 0), 10, "ten at least");
        assert_eq!(patience(100_000_000, 1_000_000_000, 1_500_000_000), 25);
        assert_eq!(patience(100_000_000, u64::MAX, 1), u32::MAX);
    }

    #[test]
    fn a_heartbeat_grows_stale() {
        let heartbeat = Heartbeat { at_ns: 100, pid: 1 };
        assert!(!heartbeat.is_stale(90, 10));
        assert!(heartbeat.is_stale(89, 10), "set by another clock");
        assert!(!heartbeat.is_stale(110, 10));
        assert!(heartbeat.is_stale(111, 10));
        assert!(Heartbeat::default().is_stale(1_000, 10));
    }
}
