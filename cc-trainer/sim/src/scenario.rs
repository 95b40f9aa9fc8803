//! What a path and the flows on it are like: one description for the emulated link and the simulator.
//!
//! [`load`] finds built-in sets by name and reads files; the built-in sets are files of the same format
//! (`cc-trainer/scenarios`).

mod error;
mod file;
mod generate;
mod rate;
mod select;
mod sets;
mod trace;

pub use error::ScenarioError;
pub use file::{MAX_FLOWS, parse};
pub use generate::{Cellular, Poisson};
pub use select::load;
pub use sets::{SETS, Set};
pub use trace::{OPPORTUNITY_BYTES, PACKET_OVERHEAD, Trace, TraceError, TraceFault};

use std::{sync::Arc, time::Duration};

/// Maximum transmission unit of every emulated path, bytes of IP.
pub const MTU: u32 = 1500;

/// A path and the flows on it. Times count from the scenario's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name, unique in its set; made of letters, digits, `-`, `_` and `.`, so that it can name a file.
    pub name: String,
    /// What it stands for, in a line; may be empty.
    pub description: String,
    /// The way of the data.
    pub forward: Direction,
    /// The way of the acknowledgements.
    pub reverse: Direction,
    /// The flows, at least one.
    pub flows: Vec<Flow>,
}

/// One direction of a path. A packet meets, in this order: the policer, the queue, the link that serves it,
/// random loss, aggregation, and the propagation delay (the order of mahimahi's `mm-delay mm-loss mm-link`).
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    /// What passes the policer.
    pub policer: Option<Policer>,
    /// What may wait for the link.
    pub queue: Queue,
    /// How fast the link serves the queue.
    pub service: Service,
    /// What is lost behind the link.
    pub loss: Loss,
    /// Packets that leave the link within a period of this length leave together at its end: links that hold
    /// acknowledgements back, as Wi-Fi and cable modems do. Periods count from the scenario's start.
    pub aggregation: Option<Duration>,
    /// Propagation.
    pub delay: Delay,
}

/// How fast a link serves its queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Service {
    /// At once.
    Unlimited,
    /// At a rate, work-conserving: a packet of `n` bytes of IP takes `8 n / rate`.
    Rate(Rate),
    /// By mahimahi's rules: at given milliseconds, [`OPPORTUNITY_BYTES`] each.
    Opportunities(Arc<Trace>),
}

/// A rate over time, bit/s of IP packets. Between two points it is the first one's, or moves linearly to the second's.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// In order of time, the first at 0.
    pub points: Vec<RatePoint>,
    /// Start again at the first point after this time.
    pub repeat: Option<Duration>,
}

/// The rate from a time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// When.
    pub at: Duration,
    /// bit/s; 0 is an outage.
    pub bits_per_second: f64,
    /// Whether the rate moves linearly from this point to the next, instead of stepping there.
    pub ramp: bool,
}

/// What may wait for a link. A packet is accepted when both limits hold with it. The packet that the link is
/// sending is outside the queue (as in mahimahi).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Packets.
    pub packets: Option<u32>,
    /// Bytes of IP.
    pub bytes: Option<u64>,
    /// Which packet goes when there is no room.
    pub discipline: Discipline,
}

/// Which packet goes when there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// The arriving one.
    #[default]
    DropTail,
    /// The ones that have waited longest, until the arriving one fits.
    DropHead,
}

/// Random loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each packet independently with this probability.
    Bernoulli(f64),
    /// A chain of two states that may change before every packet (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// Probability of changing from good to bad.
        to_bad: f64,
        /// Probability of changing from bad to good.
        to_good: f64,
        /// Loss probability in the good state.
        good: f64,
        /// Loss probability in the bad state.
        bad: f64,
    },
}

/// A token bucket that drops what finds too few tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// bit/s of IP packets at which tokens come.
    pub bits_per_second: f64,
    /// Bytes that the bucket holds; full at the start.
    pub burst: u64,
}

/// Propagation delay of one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Delay {
    /// At the start.
    pub base: Duration,
    /// Later values, in order of time.
    pub changes: Vec<DelayChange>,
    /// Standard deviation of a normal variable that is added per packet, cut off where the sum would be
    /// negative. Packets of a flow keep their order.
    pub jitter: Duration,
}

/// A new propagation delay from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayChange {
    /// When.
    pub at: Duration,
    /// The delay from then on.
    pub delay: Duration,
}

/// A bulk flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// When it starts.
    pub start: Duration,
    /// When it stops; none is the end of the run.
    pub stop: Option<Duration>,
    /// Its scheme, as `--schemes` names it; none is the scheme under test.
    pub scheme: Option<String>,
    /// Added to the propagation delay of its packets, in each direction.
    pub extra_delay: Duration,
}

impl Scenario {
    /// Round-trip propagation at the start, of a flow without extra delay.
    pub fn base_rtt(&self) -> Duration {
        self.forward.delay.base + self.reverse.delay.base
    }
}

impl Service {
    /// Bits of IP packets that the link could carry in `[from, to)`; none when it is unlimited. An opportunity
    /// counts as one packet of [`MTU`] bytes.
    pub fn capacity_bits(&self, from: Duration, to: Duration) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(rate.bits(from, to)),
            Self::Opportunities(trace) => {
                Some(trace.opportunities(from, to) as f64 * f64::from(MTU) * 8.0)
            }
        }
    }

    /// Long-run mean rate, bit/s; none when it is unlimited.
    pub fn mean_bits_per_second(&self) -> Option<f64> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(rate.mean()),
            Self::Opportunities(trace) => Some(trace.mean_bits_per_second()),
        }
    }
}
