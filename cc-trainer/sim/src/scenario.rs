//! Scenarios: the description of a path and of the flows on it, shared by emulated links and the
//! simulator.
//!
//! [`load`] resolves the names of built-in sets and of files. The built-in sets are files of the
//! same format (`cc-trainer/sim/scenarios`), which [`parse`] documents.
//!
//! ```
//! use std::time::Duration;
//!
//! let [bdp_1]: [_; 1] = cc_sim::scenario::load("pantheon/bdp-1")?.try_into().unwrap();
//! assert_eq!(bdp_1.base_rtt(), Duration::from_millis(60));
//! assert_eq!(bdp_1.forward.service.mean_bits_per_second(), Some(12e6));
//! # Ok::<(), cc_sim::scenario::ScenarioError>(())
//! ```

pub mod app;
mod aqm;
pub mod content;
mod delay;
mod error;
pub mod families;
mod file;
mod generate;
mod rate;
mod sage;
mod scoring;
mod select;
mod sender;
mod sets;
pub mod splits;
mod trace;
mod write;

pub use app::App;
pub use aqm::{Aqm, CoDel, DualPi2, FqCoDel, Pie};
pub use delay::{Delay, DelayChange, DelayVariation};
pub use error::ScenarioError;
pub use file::{MAX_FLOWS, parse};
pub use generate::{Cellular, Poisson};
pub use scoring::{DEFAULT_LENGTH, Rule, Scoring};
pub use select::load;
pub use sender::SenderQueue;
pub use sets::{Role, SETS, Set, set};
pub use trace::{OPPORTUNITY_BYTES, PACKET_OVERHEAD, Trace, TraceError, TraceFault};
pub use write::{TraceInLine, write};

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use file::LossValue;
pub(crate) use file::Millis;

/// Maximum transmission unit of every path, bytes of IP.
pub const MTU: u32 = 1500;

/// A path and the flows on it. All times count from the scenario's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name, unique in its set. It consists of letters, digits, `-`, `_` and `.`, so that it can be
    /// part of a file name.
    pub name: String,
    /// Description in one line; may be empty.
    pub description: String,
    /// Queue of the host at the near end, ahead of the path; `None` lets packets onto the path as
    /// they are sent.
    pub sender: Option<SenderQueue>,
    /// Direction of the data, from the near end to the far end.
    pub forward: Direction,
    /// Direction of the acknowledgements, from the far end to the near end.
    pub reverse: Direction,
    /// The flows, of which there is at least one.
    pub flows: Vec<Flow>,
    /// Length of a run, and what of it is scored.
    pub scoring: Scoring,
}

/// One direction of a path.
///
/// A packet passes, in this order: the policer, the queue, the link that serves the queue, random
/// loss, aggregation, and the propagation delay. This is the order of mahimahi's `mm-delay mm-loss
/// mm-link`.
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    /// Policer ahead of the queue; `None` passes all packets.
    pub policer: Option<Policer>,
    /// Queue of packets that wait for the link.
    pub queue: Queue,
    /// Rate at which the link serves the queue.
    pub service: Service,
    /// Random loss of packets that have left the link.
    pub loss: Loss,
    /// Period of aggregation: packets that leave the link within a period continue together at its
    /// end, as on links that hold acknowledgements back (Wi-Fi, cable modems). Periods count from
    /// the scenario's start. `None` is no aggregation.
    pub aggregation: Option<Duration>,
    /// Propagation delay with its changes and its jitter.
    pub delay: Delay,
}

/// How fast a link serves its queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Service {
    /// All packets are served at once.
    Unlimited,
    /// The link is work-conserving: a packet of `n` bytes of IP takes `8 n / rate` seconds.
    Rate(Rate),
    /// A token bucket serves the queue, as Linux's `tbf` does.
    Shaper(Shaper),
    /// The link follows mahimahi's rules: at given milliseconds it can send [`OPPORTUNITY_BYTES`]
    /// each.
    Opportunities(Arc<Trace>),
}

/// A rate over time, in bit/s of IP packets. Between two points it is constant or changes linearly.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Points in order of time, the first one at 0.
    pub points: Vec<RatePoint>,
    /// Period after which the rate repeats from the first point; `None` keeps the last rate
    /// forever.
    pub repeat: Option<Duration>,
}

/// A point of a [`Rate`]: its value from a time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// Time of the point since the scenario's start, or since the start of a period.
    pub at: Duration,
    /// Rate in bit/s; 0 is an outage.
    pub bits_per_second: f64,
    /// Whether the rate changes linearly from this point to the next, instead of staying constant.
    pub ramp: bool,
}

/// A token bucket that lets packets wait until there are enough tokens for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaper {
    /// Rate at which tokens arrive, bit/s of IP packets.
    pub bits_per_second: f64,
    /// Capacity of the bucket in bytes of IP; it is full at the start.
    pub burst: u64,
    /// Rate at which packets with tokens are sent, bit/s; `None` takes no time.
    pub peak_bits_per_second: Option<f64>,
}

/// Limits of a link's queue, and what it does about congestion. A packet is accepted if both limits
/// hold with it. As in mahimahi, the packet that the link is sending does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Most packets in the queue; `None` is no limit.
    pub packets: Option<u32>,
    /// Most bytes of IP in the queue; `None` is no limit.
    pub bytes: Option<u64>,
    /// Which packets are dropped when the queue is full.
    pub discipline: Discipline,
    /// ECN-capable packets that waited longer than this get a congestion-experienced mark when the
    /// link starts to send them (RFC 3168), as by the option `ce_threshold` of Linux's codel and
    /// fq_codel. `None` is no threshold.
    pub ce_threshold: Option<Duration>,
    /// Active queue management; `None` acts when the queue is full, and not before.
    pub aqm: Option<Aqm>,
}

/// Which packets are dropped when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// The arriving packet is dropped.
    #[default]
    DropTail,
    /// The packets that have waited longest are dropped until the arriving one fits.
    DropHead,
}

/// Random loss of packets behind the link. Files have it as [`parse`]'s key `loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "LossValue", into = "LossValue")]
pub enum Loss {
    /// No packet is lost at random.
    #[default]
    None,
    /// Each packet is lost independently with this probability.
    Bernoulli(f64),
    /// A Markov chain of two states that may change before every packet (Gilbert 1960, Elliott
    /// 1963).
    GilbertElliott {
        /// Probability of changing from good to bad, per packet.
        to_bad: f64,
        /// Probability of changing from bad to good, per packet.
        to_good: f64,
        /// Loss probability in the good state.
        good: f64,
        /// Loss probability in the bad state.
        bad: f64,
    },
}

/// A token bucket that drops packets for which it has too few tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// Rate at which tokens arrive, bit/s of IP packets.
    pub bits_per_second: f64,
    /// Capacity of the bucket in bytes of IP; it is full at the start.
    pub burst: u64,
}

/// A flow: an application and the congestion control of its data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Time at which the flow starts.
    pub start: Duration,
    /// Time at which the flow stops; `None` is the end of the run.
    pub stop: Option<Duration>,
    /// The flow's scheme, as `--schemes` names it; `None` is the scheme under test.
    pub scheme: Option<String>,
    /// Propagation delay added to the flow's packets in each direction.
    pub extra_delay: Duration,
    /// What the flow sends, and when.
    pub app: App,
}

impl Scenario {
    /// Round-trip propagation delay at the start, for a flow without extra delay.
    pub fn base_rtt(&self) -> Duration {
        self.forward.delay.base + self.reverse.delay.base
    }

    /// Bits of IP packets that host and link can carry forward in `[from, to)`; `None` when both
    /// are unlimited.
    pub fn capacity_bits(&self, from: Duration, to: Duration) -> Option<f64> {
        let link = self.forward.service.capacity_bits(from, to);
        let time = to.saturating_sub(from).as_secs_f64();
        let host = self.sender.map(|queue| queue.bits_per_second * time);
        link.into_iter().chain(host).reduce(f64::min)
    }

    /// Long-run mean of the forward direction's rate, or that of the sending host if it is slower,
    /// bit/s; `None` when both are unlimited.
    pub fn mean_bits_per_second(&self) -> Option<f64> {
        let link = self.forward.service.mean_bits_per_second();
        let host = self.sender.map(|queue| queue.bits_per_second);
        link.into_iter().chain(host).reduce(f64::min)
    }

    /// The number of the host at the far end of each flow, in the order of the flows. Flows with
    /// equal extra delay have the same one; the numbers count up from 0 with the flows.
    ///
    /// ```
    /// # use cc_sim::scenario;
    /// let [mixed]: [_; 1] = scenario::load("fairness/pair-mixed-rtt")?.try_into().unwrap();
    /// assert_eq!(mixed.hosts(), [0, 1]);
    /// let [equal]: [_; 1] = scenario::load("fairness/pair")?.try_into().unwrap();
    /// assert_eq!(equal.hosts(), [0, 0]);
    /// # Ok::<(), scenario::ScenarioError>(())
    /// ```
    pub fn hosts(&self) -> Vec<usize> {
        let mut delays = Vec::new();
        let host = |flow: &Flow| {
            let known = delays.iter().position(|delay| *delay == flow.extra_delay);
            known.unwrap_or_else(|| {
                delays.push(flow.extra_delay);
                delays.len() - 1
            })
        };
        self.flows.iter().map(host).collect()
    }

    /// The address of host number `host` at the far end ([`Self::hosts`]), in the simulator and on
    /// emulated links: in 198.18.0.0/15, the network for benchmarks (RFC 2544, appendix C.2.2).
    /// `None` for the first host, which has what is the far end's own.
    pub fn host_address(host: usize) -> Option<Ipv4Addr> {
        let first = u32::from(Ipv4Addr::new(198, 18, 0, 0));
        (host > 0).then(|| Ipv4Addr::from(first + host as u32))
    }

    /// Whether a queue of the path marks packets. Connections negotiate ECN then, and only then.
    pub fn marks(&self) -> bool {
        let marks = |Direction { queue, .. }: &Direction| {
            queue.ce_threshold.is_some() || queue.aqm.is_some_and(|aqm| aqm.marks())
        };
        marks(&self.forward) || marks(&self.reverse)
    }
}

impl Service {
    /// Bits of IP packets that the link can carry in `[from, to)`; `None` when it is unlimited. An
    /// opportunity counts as one packet of [`MTU`] bytes, and a full bucket as nothing.
    pub fn capacity_bits(&self, from: Duration, to: Duration) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(rate.bits(from, to)),
            Self::Shaper(shaper) => {
                let time = to.saturating_sub(from);
                Some(shaper.bits_per_second * time.as_secs_f64())
            }
            Self::Opportunities(trace) => {
                Some(trace.opportunities(from, to) as f64 * f64::from(MTU) * 8.0)
            }
        }
    }

    /// Long-run mean rate in bit/s; `None` when the link is unlimited.
    pub fn mean_bits_per_second(&self) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(rate.mean()),
            Self::Shaper(shaper) => Some(shaper.bits_per_second),
            Self::Opportunities(trace) => Some(trace.mean_bits_per_second()),
        }
    }
}
