//! Round trips by delivery, and the rounds in which samples say nothing about the bandwidth.

use crate::sim::control::RateSample;

/// Round trips by delivery: a round ends when a segment sent after its start is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim::control) struct Rounds {
    /// Number of rounds so far (`rtt_cnt`).
    pub(in crate::sim::control) count: u64,
    /// The round ends with a segment sent after this many were delivered (`next_rtt_delivered`).
    pub(in crate::sim::control) end: u64,
    /// Whether this ACK began a round (`round_start`).
    pub(in crate::sim::control) began: bool,
}

impl Rounds {
    /// Takes an ACK with a valid sample, which may begin a round.
    pub(in crate::sim::control) fn update(&mut self, rate: &RateSample) {
        self.began = rate.prior_delivered >= self.end;
        if self.began {
            self.end = rate.total_delivered;
            self.count += 1;
        }
    }
}

/// Range of lifetime delivered segments in which samples say nothing about the bandwidth, since
/// BBR probes the RTT: the kernel marks them as limited by the application.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim::control) struct Limited {
    from: u64,
    to: u64,
}

impl Limited {
    /// The range begins after the segments delivered so far.
    pub(in crate::sim::control) fn begin(&mut self, rate: &RateSample) {
        self.from = rate.total_delivered;
    }

    /// The range goes on, at least until the segments in flight are delivered.
    pub(in crate::sim::control) fn extend(&mut self, rate: &RateSample, in_flight: u32) {
        self.to = rate.total_delivered + u64::from(in_flight);
    }

    /// Whether the sample is limited by the application or by this range.
    pub(in crate::sim::control) fn covers(&self, rate: &RateSample) -> bool {
        rate.app_limited || (self.from..self.to).contains(&rate.prior_delivered)
    }
}
