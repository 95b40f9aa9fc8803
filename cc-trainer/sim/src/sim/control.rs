//! Congestion controls. The simulated sender calls them where and when Linux 6.18 calls `struct
//! tcp_congestion_ops` (include/net/tcp.h).

pub mod aurora;
mod bbr;
mod bbr3;
mod bic;
mod copa;
mod cubic;
mod htcp;
mod illinois;
pub mod learned;
mod monitor;
mod observed;
mod records;
mod reno;
#[cfg(test)]
mod tests;
mod vegas;
mod vivace;
mod westwood;
mod yeah;

pub use aurora::Aurora;
pub use bbr::Bbr;
pub use bbr3::Bbr3;
pub use bic::Bic;
pub use copa::Copa;
pub use cubic::Cubic;
pub use htcp::Htcp;
pub use illinois::Illinois;
pub use observed::Observed;
pub use reno::Reno;
pub use vegas::Vegas;
pub use vivace::Vivace;
pub use westwood::Westwood;
pub use yeah::Yeah;

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
    /// BBR version 3, as in the Internet-Draft draft-ietf-ccwg-bbr-06.
    Bbr3(Box<Bbr3>),
    /// Copa (Arun and Balakrishnan, NSDI 2018).
    Copa(Copa),
    /// Vegas, as in Linux (Brakmo and Peterson, IEEE JSAC 1995).
    Vegas(Vegas),
    /// Westwood+, as in Linux (Grieco and Mascolo, ACM CCR 2004).
    Westwood(Westwood),
    /// H-TCP, as in Linux (Leith and Shorten, PFLDnet 2004).
    Htcp(Htcp),
    /// BIC, as in Linux (Xu, Harfoush and Rhee, INFOCOM 2004).
    Bic(Bic),
    /// TCP-Illinois, as in Linux (Liu, Başar and Srikant, 2008).
    Illinois(Illinois),
    /// YeAH, as in Linux (Baiocchi, Castellani and Vacirca, PFLDnet 2007).
    Yeah(Yeah),
    /// PCC Vivace (Dong et al., NSDI 2018), with its latency-aware utility.
    Vivace(Box<Vivace>),
    /// Aurora's recipe (Jay et al., ICML 2019), trained here.
    Aurora(Box<Aurora>),
    /// The learned congestion control, as the BPF programs and an agent implement it.
    Learned(Box<Learned>),
    /// Any of these, whose ACKs are measured in windows as `cc-agent observe` does.
    Observed(Box<Observed>),
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

    /// An ACK has acknowledged segments, and losses are not looked for yet (`pkts_acked`, then
    /// `in_ack_event`, which Linux has called at this place since 6.16). Called on every ACK while
    /// segments are outstanding.
    fn on_acked(&mut self, cwnd: &CwndState, acked: &Acked) {
        let _ = (cwnd, acked);
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

    /// Whether the sender keeps, for each segment, the state in which it was sent: only then does
    /// it call [`on_lost`](Self::on_lost) and fill the last fields of [`RateSample`].
    fn tracks_transmissions(&self) -> bool {
        false
    }

    /// A segment or its retransmission was marked lost (`skb_marked_lost` in the kernel of BBR
    /// version 3, github.com/google/bbr). Comes after [`ssthresh`](Self::ssthresh) and
    /// [`on_state`](Self::on_state) where the loss starts a recovery, and before the call for the
    /// ACK.
    fn on_lost(&mut self, cwnd: &CwndState, lost: &LostSegment) {
        let _ = (cwnd, lost);
    }

    /// Sending begins again after nothing was in flight (`CA_EVENT_TX_START`).
    fn on_transmit_start(&mut self, now: Nanos, cwnd: &mut CwndState, start: &TransmitStart) {
        let _ = (now, cwnd, start);
    }

    /// The sender has set the cwnd or its threshold (`cwnd_event`).
    fn on_event(&mut self, cwnd: &mut CwndState, event: CwndEvent) {
        let _ = (cwnd, event);
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

/// What an ACK acknowledges (`struct ack_sample`), with the state of the sender that some
/// congestion controls read at that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Time of the ACK, ns.
    pub now: Nanos,
    /// Segments that it acknowledged cumulatively, including those SACKed before (`pkts_acked`).
    pub segments: u32,
    /// RTT of the newest segment that it acknowledged or SACKed, µs; 0 for none (`rtt_us`, which is
    /// negative then).
    pub rtt_us: u32,
    /// Next segment to be sent for the first time (`snd_nxt`), counted from 0.
    pub snd_nxt: u64,
    /// Payload of a full segment in bytes (`mss_cache`).
    pub mss: u32,
    /// The congestion-avoidance state before the ACK (`icsk_ca_state`).
    pub state: CaState,
    /// Whether the ACK was not the one that header prediction expects: it has SACK blocks or an ECN
    /// echo, or changes the receive window (`CA_ACK_SLOWPATH`).
    pub slow_path: bool,
}

/// Why the sender has set the cwnd or its threshold (`enum tcp_ca_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CwndEvent {
    /// A retransmission timeout has set the threshold, and sets the cwnd next (`CA_EVENT_LOSS`).
    Loss,
    /// The cwnd is at the threshold at the end of Recovery or CWR (`CA_EVENT_COMPLETE_CWR`). Not
    /// for controls that set the cwnd in recovery.
    ReductionComplete,
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
    /// Next segment to be sent for the first time (`snd_nxt`), counted from 0.
    pub snd_nxt: u64,
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
    /// Whether the cwnd held the sender back in the last round trip (`tcp_sock.is_cwnd_limited`).
    pub cwnd_filled: bool,
    /// When the sample's segment was sent, ns; 0 when this ACK delivered nothing.
    pub sent: Nanos,
    /// Segments in flight when the sample's segment was sent, including it (`tx_in_flight` in BBR
    /// version 3's kernel); 0 unless the control
    /// [tracks transmissions](CongestionControl::tracks_transmissions).
    pub tx_in_flight: u32,
    /// Segments marked lost since the sample's segment was sent; 0 as above (`lost`).
    pub lost: u32,
}

/// A segment that was marked lost, as [`CongestionControl::on_lost`] hears of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostSegment {
    /// Its number, counted from 0.
    pub number: u64,
    /// When it was sent, ns.
    pub sent: Nanos,
    /// Segments in flight when it was sent, including it.
    pub tx_in_flight: u32,
    /// Segments marked lost since it was sent, including it.
    pub lost: u32,
    /// Whether it was sent while the application limited the sender.
    pub app_limited: bool,
    /// The time at which it was marked lost, ns.
    pub at: Nanos,
    /// Lifetime segments delivered until then.
    pub total_delivered: u64,
}

/// The threshold as it should be remembered, in segments: at least three quarters of the cwnd
/// (`tcp_current_ssthresh` outside Recovery and CWR).
#[inline]
pub(super) fn current_ssthresh(cwnd: &CwndState) -> u32 {
    cwnd.ssthresh.max((cwnd.cwnd >> 1) + (cwnd.cwnd >> 2))
}

/// Calls a method of the control in whichever variant.
macro_rules! each {
    ($control:expr, $inner:ident => $call:expr) => {
        match $control {
            Control::Reno($inner) => $call,
            Control::Cubic($inner) => $call,
            Control::Bbr($inner) => $call,
            Control::Bbr3($inner) => $call,
            Control::Copa($inner) => $call,
            Control::Vegas($inner) => $call,
            Control::Westwood($inner) => $call,
            Control::Htcp($inner) => $call,
            Control::Bic($inner) => $call,
            Control::Illinois($inner) => $call,
            Control::Yeah($inner) => $call,
            Control::Vivace($inner) => $call,
            Control::Aurora($inner) => $call,
            Control::Learned($inner) => $call,
            Control::Observed($inner) => $call,
            Control::Custom($inner) => $call,
        }
    };
}

impl Control {
    /// The names that [`named`](Self::named) knows.
    pub const NAMES: [&str; 15] = [
        "reno",
        "cubic",
        "cubic-hystartpp",
        "bbr",
        "bbr3",
        "copa",
        "copa-compete",
        "vegas",
        "westwood",
        "htcp",
        "bic",
        "illinois",
        "yeah",
        "vivace",
        "aurora",
    ];

    /// Creates the control of this name; `None` for a name that is not in [`NAMES`](Self::NAMES).
    /// `seed` determines what is random in it.
    pub fn named(name: &str, seed: u64) -> Option<Self> {
        Some(match name {
            "reno" => Self::Reno(Reno::new()),
            "cubic" => Self::Cubic(Cubic::new()),
            "cubic-hystartpp" => Self::Cubic(Cubic::with_hystart_plus_plus()),
            "bbr" => Self::Bbr(Bbr::new(seed)),
            "bbr3" => Self::Bbr3(Box::new(Bbr3::new(seed))),
            "copa" => Self::Copa(Copa::new()),
            "copa-compete" => Self::Copa(Copa::with_competition()),
            "vegas" => Self::Vegas(Vegas::new()),
            "westwood" => Self::Westwood(Westwood::new()),
            "htcp" => Self::Htcp(Htcp::new()),
            "bic" => Self::Bic(Bic::new()),
            "illinois" => Self::Illinois(Illinois::new()),
            "yeah" => Self::Yeah(Yeah::new()),
            "vivace" => Self::Vivace(Box::new(Vivace::new(seed))),
            "aurora" => Self::Aurora(Box::default()),
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
            Self::Bbr3(_) => Self::Bbr3(Box::new(Bbr3::new(seed))),
            Self::Copa(copa) => Self::Copa(copa.another()),
            Self::Vegas(_) => Self::Vegas(Vegas::new()),
            Self::Westwood(_) => Self::Westwood(Westwood::new()),
            Self::Htcp(_) => Self::Htcp(Htcp::new()),
            Self::Bic(_) => Self::Bic(Bic::new()),
            Self::Illinois(_) => Self::Illinois(Illinois::new()),
            Self::Yeah(_) => Self::Yeah(Yeah::new()),
            Self::Vivace(_) => Self::Vivace(Box::new(Vivace::new(seed))),
            Self::Aurora(_) => Self::Aurora(Box::default()),
            Self::Learned(learned) => Self::Learned(Box::new(learned.another())),
            Self::Observed(observed) => Self::Observed(Box::new(observed.another(seed)?)),
            Self::Custom(control) => Self::Custom(control.another()?),
        })
    }

    /// The connection takes the place of another one, which has ended.
    pub(super) fn succeed(&mut self, former: &Self, place: usize) {
        match (&mut *self, former) {
            (Self::Learned(learned), Self::Learned(former)) => learned.succeed(former),
            (Self::Observed(observed), Self::Observed(former)) => observed.succeed(former),
            _ => {}
        }
        self.set_place(place);
    }

    /// The connection has this place.
    pub(super) fn set_place(&mut self, place: usize) {
        match self {
            Self::Learned(learned) => learned.set_slot(place as u32),
            Self::Observed(observed) => observed.set_slot(place as u32),
            _ => {}
        }
    }

    /// The connection is with this host at the far end, of the scenario's
    /// [hosts](crate::scenario::Scenario::hosts).
    pub(super) fn set_host(&mut self, host: usize) {
        match self {
            Self::Learned(learned) => learned.set_host(host),
            Self::Observed(observed) => observed.set_host(host),
            _ => {}
        }
    }

    /// The connection ends at `now` (`release`).
    pub(super) fn release(&mut self, now: Nanos) {
        match self {
            Self::Learned(learned) => learned.release(now),
            Self::Observed(observed) => observed.release(now),
            _ => {}
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
    fn on_acked(&mut self, cwnd: &CwndState, acked: &Acked) {
        each!(self, control => control.on_acked(cwnd, acked));
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

    fn on_event(&mut self, cwnd: &mut CwndState, event: CwndEvent) {
        each!(self, control => control.on_event(cwnd, event));
    }

    fn tracks_transmissions(&self) -> bool {
        each!(self, control => control.tracks_transmissions())
    }

    fn on_lost(&mut self, cwnd: &CwndState, lost: &LostSegment) {
        each!(self, control => control.on_lost(cwnd, lost));
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
