//! The link that serves the queue: when it starts to send a packet, and when it finishes.

use std::sync::Arc;
use std::time::Duration;

use crate::scenario::{OPPORTUNITY_BYTES, PACKET_OVERHEAD, Rate, Service, Shaper, Trace};

use super::Nanos;
use super::bucket::TokenBucket;

/// A link that sends one packet after the other. [`start`](Self::start) returns when it is ready
/// for the next packet, and [`serve`](Self::serve) sends that packet.
#[derive(Debug)]
pub(super) enum Server {
    /// The link sends packets in no time.
    Unlimited,
    /// The link sends packets at a rate.
    Rate(RateServer),
    /// The link sends packets at opportunities.
    Opportunities(OpportunityServer),
    /// The link sends packets as they get tokens.
    Shaper(Box<ShaperServer>),
}

impl Server {
    /// An idle link at time 0.
    pub(super) fn new(service: &Service) -> Self {
        match service {
            Service::Unlimited => Self::Unlimited,
            Service::Rate(rate) => Self::Rate(RateServer::new(rate.clone())),
            Service::Shaper(shaper) => Self::Shaper(Box::new(ShaperServer::new(shaper))),
            Service::Opportunities(trace) => {
                Self::Opportunities(OpportunityServer::new(Arc::clone(trace)))
            }
        }
    }

    /// Time at which the link starts to send the next packet, which arrived at `arrived`. Arrivals
    /// must not decrease.
    #[inline]
    pub(super) fn start(&mut self, arrived: Nanos) -> Nanos {
        match self {
            Self::Rate(server) => arrived.max(server.free),
            Self::Opportunities(server) => server.start(arrived),
            Self::Shaper(server) => arrived.max(server.free),
            Self::Unlimited => arrived,
        }
    }

    /// Sends a packet of `bytes` from `start`, which [`start`](Self::start) returned, and returns
    /// when it is finished.
    #[inline]
    pub(super) fn serve(&mut self, start: Nanos, bytes: u32) -> Nanos {
        match self {
            Self::Unlimited => start,
            Self::Rate(server) => server.serve(start, bytes),
            Self::Shaper(server) => server.serve(start, bytes),
            Self::Opportunities(server) => server.serve(bytes),
        }
    }
}

/// Length of a busy period after which its reference point moves, ns: often enough that a rate with
/// many points has few of them to walk through, and rarely enough to cost nothing.
const REFERENCE_MOVES: Nanos = 100_000_000;

/// A link with a rate.
///
/// Within a busy period the ends of packets are computed from one reference point and not from each
/// other: they are rounded to nanoseconds, and the rounding errors must not add up.
#[derive(Debug)]
pub(super) struct RateServer {
    rate: Rate,
    /// Time at which the link has finished all packets that it has started.
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
            // The remainder is the rounding error of `free`.
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

/// A token bucket that serves the queue: `tbf_dequeue`, net/sched/sch_tbf.c, Linux 6.18.
///
/// As in Linux with active queue management below `tbf`, a packet is taken out of the queue when
/// the one before it is sent, and then waits for its tokens.
#[derive(Debug)]
pub(super) struct ShaperServer {
    bucket: TokenBucket,
    peak_bits_per_second: Option<f64>,
    /// Time at which the link has sent all packets that it has taken.
    free: Nanos,
}

impl ShaperServer {
    fn new(shaper: &Shaper) -> Self {
        Self {
            bucket: TokenBucket::new(shaper.bits_per_second, shaper.burst),
            peak_bits_per_second: shaper.peak_bits_per_second,
            free: 0,
        }
    }

    #[inline(never)]
    fn serve(&mut self, start: Nanos, bytes: u32) -> Nanos {
        let sends = self.bucket.take(start, bytes);
        let time = (self.peak_bits_per_second)
            .map_or(0, |peak| (f64::from(bytes) * 8e9 / peak).ceil() as Nanos);
        self.free = sends.saturating_add(time);
        self.free
    }
}

/// A link by mahimahi's rules (`link_queue.cc`).
///
/// Opportunities come at whole milliseconds. Each one carries [`OPPORTUNITY_BYTES`] of packets that
/// arrived before it, and each packet counts [`PACKET_OVERHEAD`] more than its length. Small
/// packets share an opportunity. A packet that is not finished continues at the next opportunity
/// and does not count as queued in the meantime. Opportunities without a waiting packet are lost.
#[derive(Debug)]
pub(super) struct OpportunityServer {
    trace: Arc<Trace>,
    /// Start of the present pass through the trace.
    round: Nanos,
    /// Index of the present opportunity in the trace.
    index: usize,
    /// Time of the present opportunity, ns.
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
        // Passes without a waiting packet are skipped at once.
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

    /// Moves to opportunity `index` of this pass; the one after the last is the first of the next
    /// pass.
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
