//! The 20 features of an ACK.
//!
//! They are those of the mvfst-rl paper (arXiv 1910.04054, appendix A), in the order of its code,
//! each with its counterpart in Linux 6.18. Here they are unsigned integers in a base unit: µs,
//! bytes, counts, kB/s. Observations divide µs by 100 000 and bytes by 1 000 (the paper's scales),
//! which is the agent's business; integers keep the kernel, the simulator and the tests in exact
//! agreement.

use bytemuck::{Pod, Zeroable};

use crate::{AckSample, CaState, Totals, WindowedMin};

/// Number of features of an ACK, the length of [`Features`].
pub const FEATURES: usize = 20;

/// The newest version of what a policy observes of a window. It changes when an observed quantity
/// is added, or when the meaning of one changes: a policy trained for one version must not be
/// served with another.
///
/// All versions from 1 on are computed. Version 1 has the statistics of the features; version 2
/// adds the [`Fraction`](crate::Fraction)s of the window.
pub const FEATURES_VERSION: u32 = 2;

/// One ACK's features, indexed by [`Feature`], each saturated to 32 bits.
pub type Features = [u32; FEATURES];

/// Index of a feature in [`Features`]. The first nine are states, the rest amounts.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// µs. Minimum of [`Feature::LatestRtt`] over the configured time (10 s by default): our own
    /// filter rather than `tcp_sock.rtt_min`, whose length is a sysctl (300 s) and not a policy's.
    RttMin,
    /// µs. Minimum of the latest RTT over srtt/2 (100 ms before the first srtt): Copa's standing
    /// RTT.
    RttStanding,
    /// µs. The newest RTT measurement, `rate_sample.rtt_us`; carried over by ACKs without one.
    LatestRtt,
    /// µs. Smoothed RTT, `tcp_sock.srtt_us >> 3`.
    SmoothedRtt,
    /// µs. Mean deviation, `tcp_sock.mdev_us >> 2`: gain 1/4, as in the paper's transport.
    RttVar,
    /// µs. LatestRtt − RttMin, as all of the paper's code has it (its text says standing − min).
    Delay,
    /// Bytes. `snd_cwnd × mss_cache`, as it was when the ACK arrived.
    Cwnd,
    /// Bytes. `tcp_packets_in_flight × mss_cache`, after the ACK.
    InFlight,
    /// Bytes. What the cwnd leaves room for: max(0, Cwnd − InFlight).
    Writable,
    /// Bytes sent since the previous ACK: Δ`bytes_sent` (payload, retransmissions included).
    Sent,
    /// Bytes received since the previous ACK: Δ`bytes_received` + Δ`segs_in` × `tcp_header_len`. A
    /// pure sender receives only headers, which the paper's UDP count includes too.
    Received,
    /// Bytes retransmitted since the previous ACK: Δ`bytes_retrans`.
    Retransmitted,
    /// Count. Consecutive timeouts at this moment, `icsk_retransmits`: an ACK of new data resets it
    /// first, so it is almost always 0, as it is in the paper's code.
    PtoCount,
    /// Count. Timeouts since the previous ACK: Δ`total_rto` (see [`Totals::rtos`]).
    PtoDelta,
    /// Segments marked lost since the previous ACK: Δ`lost` (at detection, not at resend).
    RtxCount,
    /// Segments retransmitted since the previous ACK because of a timeout: Δ`total_retrans` if the
    /// connection was in `TCP_CA_Loss` or a timeout fired in between, else 0.
    TimeoutRtxCount,
    /// Bytes newly acknowledged by this ACK: `rate_sample.acked_sacked × mss_cache`.
    Acked,
    /// kB/s (1000 bytes/s), rounded. Delivery rate: `rate_sample.delivered × mss_cache /
    /// interval_us` (net/ipv4/tcp_rate.c); carried over by ACKs whose sample the kernel rejects.
    Throughput,
    /// Bytes marked lost on this ACK: `rate_sample.losses × mss_cache`.
    Lost,
    /// 0 or 1. Two or more timeouts since the previous ACK. The second comes three RTOs after the
    /// lost packet was sent, the span of RFC 9002 section 7.6.
    PersistentCongestion,
}

/// Base unit of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds (µs), as TCP keeps its RTTs.
    Micros,
    /// Bytes of payload, or of payload and headers.
    Bytes,
    /// Thousands of bytes per second (1000 bytes/s).
    KilobytesPerSecond,
    /// A number of events or segments.
    Count,
}

impl Feature {
    /// Every feature, in index order.
    pub const ALL: [Feature; FEATURES] = [
        Self::RttMin,
        Self::RttStanding,
        Self::LatestRtt,
        Self::SmoothedRtt,
        Self::RttVar,
        Self::Delay,
        Self::Cwnd,
        Self::InFlight,
        Self::Writable,
        Self::Sent,
        Self::Received,
        Self::Retransmitted,
        Self::PtoCount,
        Self::PtoDelta,
        Self::RtxCount,
        Self::TimeoutRtxCount,
        Self::Acked,
        Self::Throughput,
        Self::Lost,
        Self::PersistentCongestion,
    ];

    /// The unit of the feature's integer value.
    pub fn unit(self) -> Unit {
        match self {
            Self::RttMin
            | Self::RttStanding
            | Self::LatestRtt
            | Self::SmoothedRtt
            | Self::RttVar
            | Self::Delay => Unit::Micros,
            Self::Cwnd
            | Self::InFlight
            | Self::Writable
            | Self::Sent
            | Self::Received
            | Self::Retransmitted
            | Self::Acked
            | Self::Lost => Unit::Bytes,
            Self::Throughput => Unit::KilobytesPerSecond,
            Self::PtoCount
            | Self::PtoDelta
            | Self::RtxCount
            | Self::TimeoutRtxCount
            | Self::PersistentCongestion => Unit::Count,
        }
    }

    /// Whether the feature is a state, whose sum over a window means nothing, rather than an
    /// amount. Observations hold 0 in place of that sum (mvfst-rl's nine).
    pub fn is_state(self) -> bool {
        (self as usize) < Self::Sent as usize
    }
}

/// Length of the standing-RTT filter before the first smoothed RTT, ns.
const INITIAL_STANDING_WINDOW_NS: u64 = 100_000_000;

/// Turns a connection's ACKs into features.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Extractor {
    /// Totals at the last ACK that had features.
    previous: Totals,
    /// Filter of [`Feature::RttMin`].
    rtt_min: WindowedMin,
    /// Filter of [`Feature::RttStanding`].
    rtt_standing: WindowedMin,
    /// The newest RTT measurement, µs; 0 before the first.
    latest_rtt_us: u32,
    /// The newest delivery-rate sample, kB/s; 0 before the first.
    throughput: u32,
    /// 1 if the last ACK with features left the connection in [`CaState::Loss`], otherwise 0.
    was_in_loss: u32,
    /// Segments that the last ACK with features delivered with the ECN echo
    /// ([`Totals::delivered_ce`]).
    marked: u32,
    /// Time of the last ACK with features if it left the flow idle ([`AckSample::idle`]), ns;
    /// otherwise 0.
    idle_since_ns: u64,
}

impl Extractor {
    /// Forgets what it knows; the differences of the first ACK count from these totals.
    #[inline(always)]
    pub fn start(&mut self, totals: Totals) {
        self.previous = totals;
        self.rtt_min.reset();
        self.rtt_standing.reset();
        self.latest_rtt_us = 0;
        self.throughput = 0;
        self.was_in_loss = 0;
        self.marked = 0;
        self.idle_since_ns = 0;
    }

    /// For how long the application has had nothing to send at `now_ns`, ns: since the last ACK
    /// with features, and 0 unless that left the flow idle.
    #[inline(always)]
    pub fn idle_ns(&self, now_ns: u64) -> u64 {
        match self.idle_since_ns {
            0 => 0,
            since_ns => now_ns.saturating_sub(since_ns),
        }
    }

    /// Segments that the last ACK with features, and those before it without features, delivered
    /// with the ECN echo.
    #[inline(always)]
    pub fn marked(&self) -> u32 {
        self.marked
    }

    /// The features of an ACK that found the cwnd at `cwnd` segments, or `None` before the first
    /// RTT is known; differences then roll over into the next ACK's. `min_rtt_window_ns` is the
    /// length of the filter of [`Feature::RttMin`].
    #[inline(always)]
    pub fn extract(
        &mut self,
        ack: &AckSample,
        cwnd: u32,
        min_rtt_window_ns: u64,
    ) -> Option<Features> {
        self.update_rtt(ack, min_rtt_window_ns);
        if self.latest_rtt_us == 0 {
            return None;
        }
        if ack.interval_us > 0 {
            self.throughput = delivery_rate(ack);
        }
        let previous = self.previous;
        let now = ack.totals;
        let in_loss = ack.ca_state == CaState::Loss;
        // The kernel's counter has 16 bits.
        let rtos = now.rtos.wrapping_sub(previous.rtos) & 0xffff;
        let timed_out = in_loss || self.was_in_loss != 0 || rtos > 0;
        let received = now.bytes_received.wrapping_sub(previous.bytes_received)
            + u64::from(now.segs_in.wrapping_sub(previous.segs_in)) * u64::from(ack.header_len);
        self.previous = now;
        self.was_in_loss = u32::from(in_loss);
        self.marked = now.delivered_ce.wrapping_sub(previous.delivered_ce);
        self.idle_since_ns = if ack.idle { ack.now_ns } else { 0 };

        let cwnd = bytes(cwnd, ack.mss);
        let in_flight = bytes(ack.in_flight, ack.mss);
        let rtt_min = self.rtt_min.get();
        let mut features = [0; FEATURES];
        features[Feature::RttMin as usize] = rtt_min;
        features[Feature::RttStanding as usize] = self.rtt_standing.get();
        features[Feature::LatestRtt as usize] = self.latest_rtt_us;
        features[Feature::SmoothedRtt as usize] = ack.srtt_us;
        features[Feature::RttVar as usize] = ack.rttvar_us;
        features[Feature::Delay as usize] = self.latest_rtt_us.saturating_sub(rtt_min);
        features[Feature::Cwnd as usize] = cwnd;
        features[Feature::InFlight as usize] = in_flight;
        features[Feature::Writable as usize] = cwnd.saturating_sub(in_flight);
        features[Feature::Sent as usize] =
            saturate(now.bytes_sent.wrapping_sub(previous.bytes_sent));
        features[Feature::Received as usize] = saturate(received);
        features[Feature::Retransmitted as usize] =
            saturate(now.bytes_retrans.wrapping_sub(previous.bytes_retrans));
        features[Feature::PtoCount as usize] = ack.retransmits;
        features[Feature::PtoDelta as usize] = rtos;
        features[Feature::RtxCount as usize] = now.lost.wrapping_sub(previous.lost);
        features[Feature::TimeoutRtxCount as usize] = if timed_out {
            now.segs_retrans.wrapping_sub(previous.segs_retrans)
        } else {
            0
        };
        features[Feature::Acked as usize] = bytes(ack.acked, ack.mss);
        features[Feature::Throughput as usize] = self.throughput;
        features[Feature::Lost as usize] = bytes(ack.lost, ack.mss);
        features[Feature::PersistentCongestion as usize] = u32::from(rtos >= 2);
        Some(features)
    }

    #[inline(always)]
    fn update_rtt(&mut self, ack: &AckSample, min_rtt_window_ns: u64) {
        let rtt_us = if ack.rtt_us > 0 {
            ack.rtt_us
        } else if self.latest_rtt_us == 0 {
            // The handshake's measurement, on a connection whose ACKs have had none yet.
            ack.srtt_us
        } else {
            return;
        };
        if rtt_us == 0 {
            return;
        }
        let standing_window_ns = if ack.srtt_us > 0 {
            u64::from(ack.srtt_us) * 500
        } else {
            INITIAL_STANDING_WINDOW_NS
        };
        self.latest_rtt_us = rtt_us;
        self.rtt_min.update(ack.now_ns, rtt_us, min_rtt_window_ns);
        self.rtt_standing
            .update(ack.now_ns, rtt_us, standing_window_ns);
    }
}

#[inline(always)]
fn delivery_rate(ack: &AckSample) -> u32 {
    let bytes = u64::from(ack.delivered) * u64::from(ack.mss);
    let interval = u64::from(ack.interval_us);
    // Bytes per millisecond are kB/s. `delivered` and `mss` are at most 2^32, so cap before
    // scaling.
    let capped = if bytes > u64::MAX / 2_000 {
        u64::MAX / 2_000
    } else {
        bytes
    };
    saturate((capped * 1_000 + interval / 2) / interval)
}

#[inline(always)]
fn bytes(segments: u32, mss: u32) -> u32 {
    saturate(u64::from(segments) * u64::from(mss))
}

#[inline(always)]
fn saturate(value: u64) -> u32 {
    if value > u64::from(u32::MAX) {
        u32::MAX
    } else {
        value as u32
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ack() -> AckSample {
        AckSample {
            now_ns: 1_000_000_000,
            rtt_us: 30_000,
            srtt_us: 31_000,
            rttvar_us: 500,
            mss: 1_448,
            header_len: 32,
            in_flight: 8,
            acked: 2,
            lost: 0,
            delivered: 10,
            interval_us: 30_000,
            retransmits: 0,
            cwnd_limited: true,
            max_packets_out: 10,
            app_limited: false,
            idle: false,
            decays_unused: true,
            ca_state: CaState::Open,
            totals: Totals {
                bytes_sent: 14_480,
                segs_in: 3,
                ..Totals::default()
            },
        }
    }

    fn get(features: &Features, feature: Feature) -> u32 {
        features[feature as usize]
    }

    #[test]
    fn an_ordinary_ack() {
        let mut extractor = Extractor::default();
        let features = extractor
            .extract(&ack(), 10, 10_000_000_000)
            .expect("it has an RTT");
        assert_eq!(get(&features, Feature::LatestRtt), 30_000);
        assert_eq!(get(&features, Feature::RttMin), 30_000);
        assert_eq!(get(&features, Feature::Delay), 0);
        assert_eq!(get(&features, Feature::Cwnd), 14_480);
        assert_eq!(get(&features, Feature::InFlight), 11_584);
        assert_eq!(get(&features, Feature::Writable), 2_896);
        assert_eq!(get(&features, Feature::Sent), 14_480);
        assert_eq!(get(&features, Feature::Received), 96);
        assert_eq!(get(&features, Feature::Acked), 2_896);
        // 14 480 bytes in 30 ms: 482.67 kB/s.
        assert_eq!(get(&features, Feature::Throughput), 483);
    }

    #[test]
    fn delay_is_latest_minus_minimum() {
        let mut extractor = Extractor::default();
        let mut sample = ack();
        extractor.extract(&sample, 10, 10_000_000_000);
        sample.now_ns += 5_000_000;
        sample.rtt_us = 42_000;
        let features = extractor
            .extract(&sample, 10, 10_000_000_000)
            .expect("it has an RTT");
        assert_eq!(get(&features, Feature::Delay), 12_000);
        assert_eq!(get(&features, Feature::RttStanding), 30_000);
        assert_eq!(get(&features, Feature::Sent), 0, "no new totals");
    }

    #[test]
    fn no_rtt_no_features_and_differences_roll_over() {
        let mut extractor = Extractor::default();
        let mut sample = ack();
        sample.rtt_us = 0;
        sample.srtt_us = 0;
        assert!(extractor.extract(&sample, 10, 1).is_none());
        sample.totals.bytes_sent += 1_448;
        sample.rtt_us = 30_000;
        let features = extractor.extract(&sample, 10, 1).expect("it has an RTT");
        assert_eq!(get(&features, Feature::Sent), 15_928);
    }

    #[test]
    fn an_ack_without_rtt_or_rate_repeats_the_last() {
        let mut extractor = Extractor::default();
        extractor.extract(&ack(), 10, 10_000_000_000);
        let mut sample = ack();
        sample.rtt_us = 0;
        sample.interval_us = 0;
        let features = extractor.extract(&sample, 10, 1).expect("RTT is known");
        assert_eq!(get(&features, Feature::LatestRtt), 30_000);
        assert_eq!(get(&features, Feature::Throughput), 483);
    }

    #[test]
    fn a_timeouts_retransmissions_are_told_from_fast_ones() {
        let mut extractor = Extractor::default();
        extractor.extract(&ack(), 10, 1);
        let mut sample = ack();
        sample.totals.segs_retrans = 3;
        sample.ca_state = CaState::Recovery;
        let fast = extractor.extract(&sample, 10, 1).expect("RTT is known");
        assert_eq!(get(&fast, Feature::TimeoutRtxCount), 0);
        sample.totals.segs_retrans = 5;
        sample.totals.rtos = 2;
        sample.ca_state = CaState::Open;
        let timeout = extractor.extract(&sample, 10, 1).expect("RTT is known");
        assert_eq!(get(&timeout, Feature::TimeoutRtxCount), 2);
        assert_eq!(get(&timeout, Feature::PtoDelta), 2);
        assert_eq!(get(&timeout, Feature::PersistentCongestion), 1);
    }

    #[test]
    fn narrow_totals_wrap() {
        let mut extractor = Extractor::default();
        extractor.start(Totals {
            lost: u32::MAX,
            segs_in: u32::MAX,
            ..Totals::default()
        });
        let mut sample = ack();
        sample.totals.lost = 1;
        sample.totals.segs_in = 0;
        let features = extractor.extract(&sample, 10, 1).expect("it has an RTT");
        assert_eq!(get(&features, Feature::RtxCount), 2);
        assert_eq!(get(&features, Feature::Received), 32);
    }

    #[test]
    fn the_count_of_timeouts_wraps_at_16_bits() {
        let mut extractor = Extractor::default();
        extractor.start(Totals {
            rtos: 0xffff,
            ..Totals::default()
        });
        let mut sample = ack();
        sample.totals.rtos = 1;
        let features = extractor.extract(&sample, 10, 1).expect("it has an RTT");
        assert_eq!(get(&features, Feature::PtoDelta), 2);
    }

    #[test]
    fn marks_roll_over_to_the_next_ack_with_features() {
        let mut extractor = Extractor::default();
        let mut sample = ack();
        (sample.rtt_us, sample.srtt_us) = (0, 0);
        sample.totals.delivered_ce = 2;
        assert!(extractor.extract(&sample, 10, 1).is_none());
        assert_eq!(extractor.marked(), 0);
        sample.rtt_us = 30_000;
        sample.totals.delivered_ce = 5;
        extractor.extract(&sample, 10, 1);
        assert_eq!(extractor.marked(), 5);
        extractor.extract(&sample, 10, 1);
        assert_eq!(extractor.marked(), 0);
    }

    #[test]
    fn values_saturate() {
        let mut sample = ack();
        sample.mss = u32::MAX;
        sample.delivered = u32::MAX;
        sample.interval_us = 1;
        sample.totals.bytes_sent = u64::MAX;
        let features = Extractor::default()
            .extract(&sample, u32::MAX, 1)
            .expect("it has an RTT");
        assert_eq!(get(&features, Feature::Cwnd), u32::MAX);
        assert_eq!(get(&features, Feature::Throughput), u32::MAX);
        assert_eq!(get(&features, Feature::Sent), u32::MAX);
    }

    #[test]
    fn all_is_in_index_order() {
        for (index, feature) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, index);
        }
        assert_eq!(Feature::ALL.iter().filter(|f| f.is_state()).count(), 9);
    }
}
