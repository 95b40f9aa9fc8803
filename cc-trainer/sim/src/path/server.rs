//! When the link starts on a packet, and when it is through.

use std::sync::Arc;
use std::time::Duration;

use crate::scenario::{OPPORTUNITY_BYTES, PACKET_OVERHEAD, Rate, Service, Trace};

use super::Nanos;

/// A link that serves one packet after the other. [`start`](Self::start) tells when it is ready for the next
/// one, [`serve`](Self::serve) commits it.
#[derive(Debug)]
pub(super) enum Server {
    /// Serves at once.
    Unlimited,
    /// Serves at a rate.
    Rate(RateServer),
    /// Serves at opportunities.
    Opportunities(OpportunityServer),
}

impl Server {
    /// An idle link at time 0.
    pub(super) fn new(service: &Service) -> Self {
        match service {
            Service::Unlimited => Self::Unlimited,
            Service::Rate(rate) => Self::Rate(RateServer::new(rate.clone())),
            Service::Opportunities(trace) => {
                Self::Opportunities(OpportunityServer::new(Arc::clone(trace)))
            }
        }
    }

    /// When the link starts on the packet that is served next, which arrived at `arrived`. Arrivals never decrease.
    #[inline]
    pub(super) fn start(&mut self, arrived: Nanos) -> Nanos {
        match self {
            Self::Unlimited => arrived,
            Self::Rate(server) => arrived.max(server.free),
            Self::Opportunities(server) => server.start(arrived),
        }
    }

    /// Starts on a packet of `bytes` at `start`, which [`start`](Self::start) gave; tells when it is through.
    #[inline]
    pub(super) fn serve(&mut self, start: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::Unlimited => start,
            Self::Rate(server) => server.serve(start, bytes),
            Self::Opportunities(server) => server.serve(bytes),
        }
    }
}

/// After how many nanoseconds the reference point of a busy period moves on: often enough that a rate with many
/// points has few to go through, seldom enough to cost nothing.
const REFERENCE_MOVES: Nanos = 100_000_000;

/// A link with a rate. While it is busy, the ends of its packets are counted from one reference point, not
/// each from the one before: they are rounded to nanoseconds, and the roundings must not add up.
#[derive(Debug)]
pub(super) struct RateServer {
    rate: Rate,
    /// When the link is through with all that it has started on.
    free: Nanos,
    reference: Nanos,
    /// Bits that the link sends from `reference` to `free`.
    bits: f64,
}

impl RateServer {
    fn new(rate: Rate) -> Self {
        Self {
            rate,
            free: 0,
            reference: 0,
            bits: 0.0,
        }
    }

    fn serve(&mut self, start: Nanos, bytes: u32) -> Nanos {
        if start > self.free {
            self.reference = start;
            self.bits = 0.0;
        } else if self.free - self.reference >= REFERENCE_MOVES {
            // What remains is what the rounding of `free` was too early or too late.
            let served = self.rate.bits(
                Duration::from_nanos(self.reference),
                Duration::from_nanos(self.free),
            );
            self.reference = self.free;
            self.bits -= served;
        }
        self.bits += f64::from(bytes) * 8.0;
        self.free = self
            .rate
            .finish(self.reference, self.bits.max(0.0))
            .max(start);
        self.free
    }
}

/// A link by mahimahi's rules (`link_queue.cc`). Opportunities come at milliseconds and carry
/// [`OPPORTUNITY_BYTES`] each, of packets that arrived before them; a packet counts [`PACKET_OVERHEAD`] more
/// than its length. Small packets share an opportunity. A packet that is not through continues in the next one,
/// and is out of the queue meanwhile. What nothing waits for is lost.
#[derive(Debug)]
pub(super) struct OpportunityServer {
    trace: Arc<Trace>,
    /// Start of the present round through the trace.
    round: Nanos,
    /// Which opportunity is the present one.
    index: usize,
    /// When the present opportunity comes.
    at: Nanos,
    /// Bytes that it can still carry.
    left: u32,
}

impl OpportunityServer {
    fn new(trace: Arc<Trace>) -> Self {
        let mut server = Self {
            trace,
            round: 0,
            index: 0,
            at: 0,
            left: 0,
        };
        server.come(0);
        server
    }

    fn start(&mut self, arrived: Nanos) -> Nanos {
        // Rounds that pass while nothing waits need no counting.
        let period = milliseconds(self.trace.period_ms());
        if arrived > self.round + period {
            self.round += (arrived - self.round - 1) / period * period;
            self.come(0);
        }
        while self.left == 0 || self.at <= arrived {
            self.come(self.index + 1);
        }
        self.at
    }

    fn serve(&mut self, bytes: u32) -> Nanos {
        let mut remaining = bytes.saturating_add(PACKET_OVERHEAD);
        loop {
            let carried = remaining.min(self.left);
            self.left -= carried;
            remaining -= carried;
            if remaining == 0 {
                return self.at;
            }
            self.come(self.index + 1);
        }
    }

    /// Makes opportunity `index` of this round the present one; beyond the last one comes the next round's first.
    fn come(&mut self, index: usize) {
        let times = self.trace.times();
        self.index = index;
        if index == times.len() {
            self.index = 0;
            self.round += milliseconds(self.trace.period_ms());
        }
        self.at = self.round + milliseconds(times[self.index]);
        self.left = OPPORTUNITY_BYTES;
    }
}

fn milliseconds(milliseconds: impl Into<u64>) -> Nanos {
    milliseconds.into() * 1_000_000
}
