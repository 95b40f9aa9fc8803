//! Congestion controls. The simulated sender calls them where and when Linux 6.18 calls `struct
//! tcp_congestion_ops` (include/net/tcp.h).

mod bbr;
mod copa;
mod cubic;
pub mod learned;
mod reno;
#[cfg(test)]
mod tests;

pub use bbr::Bbr;
pub use copa::Copa;
pub use cubic::Cubic;
pub use reno::Reno;

use std::fmt;

use cc_ebpf::{AckSample, CaState, CwndState};

use crate::path::Nanos;

use learned::Learned;

/// The congestion control of a simulated sender. Calls of a built-in one are direct calls.
#[derive(Debug)]
pub enum Control {
    /// NewReno, as in Linux (RFC 5681, RFC 6582).
    Reno(Reno),
    /// CUBIC (RFC 9438), with HyStart or HyStart++.
    Cubic(Cubic),
    /// BBR version 1, as in Linux.
    Bbr(Bbr),
    /// Copa (Arun and Balakrishnan, NSDI 2018).
    Copa(Copa),
    /// The learned congestion control, as the BPF programs and an agent implement it.
    Learned(Box<Learned>),
    /// A control that is defined elsewhere; see `examples/own_control.rs`.
    Custom(Box<dyn CongestionControl>),
}

/// A congestion control of one connection.
///
/// The sender owns the cwnd and lends it. Controls with
/// [`sets_cwnd_in_recovery`](Self::sets_cwnd_in_recovery) are called on every ACK, as
/// `cong_control` is; for the others the sender reduces the cwnd itself while it recovers
/// (proportional rate reduction, RFC 6937), and calls [`on_ack`](Self::on_ack) at other times, as
/// `cong_avoid` is.
pub trait CongestionControl: fmt::Debug + Send {
    /// Whether the control sets the cwnd in recovery too (`cong_control`).
    fn sets_cwnd_in_recovery(&self) -> bool {
        false
    }

    /// Returns a control of the same kind for another connection. `None`, the default, is for a
    /// control that serves no flow which opens several connections.
    fn another(&self) -> Option<Box<dyn CongestionControl>> {
        None
    }

    /// The connection is established (`init`). Its handshake took `rtt_us`, which is the smoothed
    /// and the smallest RTT at this time.
    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        let _ = (now, cwnd, rtt_us);
    }

    /// An ACK has been processed (`pkts_acked`, then `cong_control`, or `cong_avoid` where
    /// `tcp_may_raise_cwnd` lets the cwnd grow).
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample);

    /// An ACK has been processed on which the cwnd may not grow, in recovery or since it
    /// acknowledged nothing new: only `pkts_acked` is called in the kernel. Controls that set the
    /// cwnd in recovery never get this call.
    fn on_measurement(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        let _ = (cwnd, ack, rate);
    }

    /// Returns the slow-start threshold in segments on entering Recovery, Loss or CWR (`ssthresh`).
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32;

    /// Returns the cwnd after a spurious loss (`undo_cwnd`); `prior` is the cwnd before the loss.
    /// Both are in segments.
    fn undo(&mut self, cwnd: &CwndState, prior: u32) -> u32 {
        cwnd.cwnd.max(prior)
    }

    /// The congestion-avoidance state is about to change to `state` (`set_state`).
    fn on_state(&mut self, now: Nanos, cwnd: &mut CwndState, state: CaState) {
        let _ = (now, cwnd, state);
    }

    /// Sending begins again after nothing was in flight (`CA_EVENT_TX_START`).
    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        let _ = (now, cwnd, start);
    }

    /// The pacing rate in bytes/s (`SK_PACING_NEEDED`); `None` for a connection that is not paced.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// The smallest burst in segments (`min_tso_segs`; `tcp_min_tso_segs` is 2 by default).
    fn min_burst(&self) -> u32 {
        2
    }
}

/// The state of a sender that transmits although nothing is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitStart {
    /// Whether the application limits the sender (`app_limited`).
    pub app_limited: bool,
    /// Time since the last transmission, or since the handshake (`lsndtime`), ticks; 0 while
    /// segments are outstanding, which are all lost: a connection that waits for its retransmission
    /// timeout is not idle (`tcp_slow_start_after_idle_check`).
    pub idle: u32,
    /// Retransmission timeout of the connection (`icsk_rto`), ticks.
    pub rto: u32,
    /// Whether segments are outstanding, all of which are lost.
    pub outstanding: bool,
}

/// The delivery-rate sample of an ACK (`struct rate_sample`, net/ipv4/tcp_rate.c), and other state
/// of the sender that some congestion controls read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateSample {
    /// Lifetime segments delivered when the segment of the sample was sent (`prior_delivered`).
    pub prior_delivered: u64,
    /// Segments delivered over the interval; `None` when the sample is not valid.
    pub delivered: Option<u32>,
    /// Length of the interval, µs (`interval_us`); 0 when the sample is not valid.
    pub interval_us: u32,
    /// Segments in flight before this ACK (`prior_in_flight`).
    pub prior_in_flight: u32,
    /// Whether the sample's segment was sent while the application limited the sender
    /// (`is_app_limited`).
    pub app_limited: bool,
    /// Whether the sample's segment was a retransmission (`is_retrans`).
    pub retransmitted: bool,
    /// Whether the receiver delayed the ACK, as far as the sender can tell (`is_ack_delayed`).
    pub ack_delayed: bool,
    /// Lifetime segments delivered, including those of this ACK (`tcp_sock.delivered`).
    pub total_delivered: u64,
    /// First unacknowledged segment (`snd_una`), counted from 0.
    pub snd_una: u64,
    /// Next segment to be sent for the first time (`snd_nxt`), counted from 0.
    pub snd_nxt: u64,
    /// Smallest RTT of the last 300 s in µs (`tcp_min_rtt`).
    pub min_rtt_us: u32,
    /// When a segment was last sent before this ACK, ns (`lsndtime`).
    pub last_sent: Nanos,
    /// When pacing lets the next segment leave, ns; may be past (`tcp_wstamp_ns`).
    pub next_send: Nanos,
}

/// Calls a method of the control in whichever variant.
macro_rules! each {
    ($control:expr, $inner:ident => $call:expr) => {
        match $control {
            Control::Reno($inner) => $call,
            Control::Cubic($inner) => $call,
            Control::Bbr($inner) => $call,
            Control::Copa($inner) => $call,
            Control::Learned($inner) => $call,
            Control::Custom($inner) => $call,
        }
    };
}

impl Control {
    /// The names that [`named`](Self::named) knows.
    pub const NAMES: [&str; 6] = [
        "reno",
        "cubic",
        "cubic-hystartpp",
        "bbr",
        "copa",
        "copa-compete",
    ];

    /// Creates the control of this name; `None` for a name that is not in [`NAMES`](Self::NAMES).
    /// `seed` determines what is random in it.
    pub fn named(name: &str, seed: u64) -> Option<Self> {
        Some(match name {
            "reno" => Self::Reno(Reno::new()),
            "cubic" => Self::Cubic(Cubic::new()),
            "cubic-hystartpp" => Self::Cubic(Cubic::with_hystart_plus_plus()),
            "bbr" => Self::Bbr(Bbr::new(seed)),
            "copa" => Self::Copa(Copa::new()),
            "copa-compete" => Self::Copa(Copa::with_competition()),
            _ => return None,
        })
    }

    /// Returns a control of the same kind for another connection; `None` for a
    /// [`Custom`](Self::Custom) one that has none ([`CongestionControl::another`]). `seed`
    /// determines what is random in it.
    pub(super) fn another(&self, seed: u64) -> Option<Self> {
        Some(match self {
            Self::Reno(_) => Self::Reno(Reno::new()),
            Self::Cubic(cubic) => Self::Cubic(cubic.another()),
            Self::Bbr(_) => Self::Bbr(Bbr::new(seed)),
            Self::Copa(copa) => Self::Copa(copa.another()),
            Self::Learned(learned) => Self::Learned(Box::new(learned.another())),
            Self::Custom(control) => Self::Custom(control.another()?),
        })
    }

    /// The connection takes the place of another one, which has ended.
    pub(super) fn succeed(&mut self, former: &Self, place: usize) {
        if let (Self::Learned(learned), Self::Learned(former)) = (&mut *self, former) {
            learned.succeed(former);
        }
        self.set_place(place);
    }

    /// The connection has this place.
    pub(super) fn set_place(&mut self, place: usize) {
        if let Self::Learned(learned) = self {
            learned.set_slot(place as u32);
        }
    }

    /// The connection ends at `now` (`release`).
    pub(super) fn release(&mut self, now: Nanos) {
        if let Self::Learned(learned) = self {
            learned.release(now);
        }
    }

    /// Whether a record waits to be taken by the agent.
    #[inline]
    pub(super) fn has_record(&self) -> bool {
        matches!(self, Self::Learned(learned) if learned.has_record())
    }
}

impl CongestionControl for Control {
    fn sets_cwnd_in_recovery(&self) -> bool {
        each!(self, control => control.sets_cwnd_in_recovery())
    }

    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        each!(self, control => control.init(now, cwnd, rtt_us));
    }

    #[inline]
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        each!(self, control => control.on_ack(cwnd, ack, rate));
    }

    #[inline]
    fn on_measurement(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        each!(self, control => control.on_measurement(cwnd, ack, rate));
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        each!(self, control => control.ssthresh(cwnd))
    }

    fn undo(&mut self, cwnd: &CwndState, prior: u32) -> u32 {
        each!(self, control => control.undo(cwnd, prior))
    }

    fn on_state(&mut self, now: Nanos, cwnd: &mut CwndState, state: CaState) {
        each!(self, control => control.on_state(now, cwnd, state));
    }

    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        each!(self, control => control.on_transmit_start(now, cwnd, start));
    }

    #[inline]
    fn pacing_rate(&self) -> Option<u64> {
        each!(self, control => control.pacing_rate())
    }

    #[inline]
    fn min_burst(&self) -> u32 {
        each!(self, control => control.min_burst())
    }
}
