//! Congestion controls, as the simulated sender calls them: where and when Linux calls `struct tcp_congestion_ops`
//! (include/net/tcp.h).

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

use cc_ebpf::{AckSample, CaState, CwndState};

use crate::path::Nanos;

use learned::Learned;

/// The congestion controls that a simulated sender can have; calls of a variant are direct calls.
#[derive(Debug)]
pub enum Control {
    /// NewReno.
    Reno(Reno),
    /// CUBIC.
    Cubic(Cubic),
    /// BBR, version 1.
    Bbr(Bbr),
    /// Copa.
    Copa(Copa),
    /// The learned one, as the BPF program and an agent do it.
    Learned(Box<Learned>),
}

/// A congestion control of one connection.
///
/// The sender owns the window and lends it. Those with [`sets_cwnd_in_recovery`](Self::sets_cwnd_in_recovery) are
/// called on every ACK, as `cong_control` is; for the others the sender reduces the window itself (PRR, RFC 6937)
/// while it recovers, and calls [`on_ack`](Self::on_ack) at other times, as `cong_avoid` is.
pub trait CongestionControl: Send {
    /// Whether it rules the window in recovery too (`cong_control`).
    fn sets_cwnd_in_recovery(&self) -> bool {
        false
    }

    /// The connection is established (`init`); its handshake took `rtt_us`, which is the smoothed RTT and the smallest
    /// one now.
    fn init(&mut self, now: Nanos, cwnd: &mut CwndState, rtt_us: u32) {
        let _ = (now, cwnd, rtt_us);
    }

    /// An ACK has been processed (`cong_control`, or `cong_avoid` when the kernel lets the window grow:
    /// `tcp_may_raise_cwnd`), and `pkts_acked` before it.
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample);

    /// An ACK came on which the window may not grow (in recovery, or with nothing newly acknowledged): only for
    /// what `pkts_acked` measures. Those that rule the window in recovery never get this.
    fn on_measurement(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        let _ = (cwnd, ack, rate);
    }

    /// Slow-start threshold on entering recovery, loss or CWR (`ssthresh`).
    fn ssthresh(&mut self, cwnd: &CwndState) -> u32;

    /// The window after a loss that was none (`undo_cwnd`); `prior` is the one before it.
    fn undo(&mut self, cwnd: &CwndState, prior: u32) -> u32 {
        cwnd.cwnd.max(prior)
    }

    /// The congestion-avoidance state changes (`set_state`), before it does.
    fn on_state(&mut self, now: Nanos, cwnd: &mut CwndState, state: CaState) {
        let _ = (now, cwnd, state);
    }

    /// Sending begins again after nothing was in flight (`CA_EVENT_TX_START`).
    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, app_limited: bool) {
        let _ = (now, cwnd, app_limited);
    }

    /// The rate in bytes/s at which segments are paced (`SK_PACING_NEEDED`); none for no pacing.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// The fewest segments that are sent together (`min_tso_segs`; `tcp_min_tso_segs` is 2 by default).
    fn min_burst(&self) -> u32 {
        2
    }
}

/// The delivery-rate sample of an ACK (`struct rate_sample`, net/ipv4/tcp_rate.c) and what else of the sender some
/// congestion controls read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateSample {
    /// Lifetime segments delivered when the segment of the sample was sent (`prior_delivered`).
    pub prior_delivered: u64,
    /// Segments delivered over the interval; none when the sample is not valid.
    pub delivered: Option<u32>,
    /// Length of the interval, µs (`interval_us`); 0 when the sample is not valid.
    pub interval_us: u32,
    /// Segments in flight before this ACK (`prior_in_flight`).
    pub prior_in_flight: u32,
    /// The sample's segment was sent while the sender had nothing more to send (`is_app_limited`).
    pub app_limited: bool,
    /// The sample's segment was a retransmission (`is_retrans`).
    pub retransmitted: bool,
    /// The ACK was delayed by the receiver as far as the sender can tell (`is_ack_delayed`).
    pub ack_delayed: bool,
    /// Lifetime segments delivered, this ACK's included (`tcp_sock.delivered`).
    pub total_delivered: u64,
    /// First unacknowledged segment (`snd_una`), counted from 0.
    pub una: u64,
    /// Next segment to be sent for the first time (`snd_nxt`), counted from 0.
    pub next: u64,
    /// Smallest RTT over the kernel's window (`tcp_min_rtt`), µs.
    pub min_rtt_us: u32,
    /// When a segment was last sent, before this ACK let others go (`lsndtime`, as a time).
    pub last_sent: Nanos,
    /// When pacing lets the next segment go, which may be over (`tcp_wstamp_ns`).
    pub next_send: Nanos,
}

/// Calls the same method of whichever it is.
macro_rules! each {
    ($control:expr, $inner:ident => $call:expr) => {
        match $control {
            Control::Reno($inner) => $call,
            Control::Cubic($inner) => $call,
            Control::Bbr($inner) => $call,
            Control::Copa($inner) => $call,
            Control::Learned($inner) => $call,
        }
    };
}

impl Control {
    /// The names of those that [`named`](Self::named) makes.
    pub const NAMES: [&str; 6] = [
        "reno",
        "cubic",
        "cubic-hystartpp",
        "bbr",
        "copa",
        "copa-compete",
    ];

    /// The one of this name; none for a name that is not in [`NAMES`](Self::NAMES). `seed` fixes what is random in it.
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

    /// The connection ends (`release`).
    pub(super) fn release(&mut self, now: Nanos) {
        if let Self::Learned(learned) = self {
            learned.release(now);
        }
    }

    /// Whether a record waits for the agent.
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

    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, app_limited: bool) {
        each!(self, control => control.on_transmit_start(now, cwnd, app_limited));
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
