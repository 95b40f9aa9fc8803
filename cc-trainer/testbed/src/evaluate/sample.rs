//! Samples of a sender's connection, which both platforms take at the same interval.

use std::time::Duration;

/// Scenario time between two samples of a connection.
pub(in crate::evaluate) const SAMPLE_PERIOD: Duration = Duration::from_millis(50);

/// The state of a sender's connection at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::evaluate) struct Sample {
    /// Scenario time at which the sample was taken.
    pub(in crate::evaluate) at: Duration,
    /// Congestion window of the sender, segments.
    pub(in crate::evaluate) cwnd: u32,
    /// Smoothed round-trip time of the connection (srtt).
    pub(in crate::evaluate) rtt: Duration,
}
