//! Bandwidths of both versions of BBR and what follows from them, in the kernel's fixed-point
//! arithmetic (Linux 6.18, net/ipv4/tcp_bbr.c). Nothing overflows, whatever the measurements.

use super::gain::Gain;
use crate::sim::control::RateSample;

/// A bandwidth in units of 2⁻²⁴ segments per µs (`BW_SCALE`).
pub(in crate::sim::control) type Bandwidth = u64;
/// Number of fractional bits of a [`Bandwidth`].
pub(in crate::sim::control) const BW_SCALE: u32 = 24;
/// A burst is what the pacing rate sends in a 1024th of a second (`sk_pacing_shift`).
const BURST_SHIFT: u32 = 10;
/// Largest burst in bytes (64 KiB without headers).
const BURST_BYTES: u64 = 65_536 - 1 - 320;

/// The bandwidth that an ACK measured; `None` when its sample is not valid.
pub(in crate::sim::control) fn sample(rate: &RateSample) -> Option<Bandwidth> {
    match (rate.delivered, rate.interval_us) {
        (None, _) | (_, 0) => None,
        (Some(delivered), interval) => {
            Some((u64::from(delivered) << BW_SCALE) / u64::from(interval))
        }
    }
}

/// The rate of payload in bytes/s, 1 % below the bandwidth (`bbr_rate_bytes_per_sec`); `mss` is the
/// payload of a segment in bytes.
pub(in crate::sim::control) fn pacing_rate(bandwidth: Bandwidth, gain: Gain, mss: u64) -> u64 {
    let bytes = gain.of(bandwidth.saturating_mul(mss));
    bytes.saturating_mul(1_000_000 / 100 * 99) >> BW_SCALE
}

/// The segments that the bandwidth, times the gain, delivers in `rtt_us`, rounded up (`bbr_bdp`).
pub(in crate::sim::control) fn bdp(bandwidth: Bandwidth, rtt_us: u32, gain: Gain) -> u32 {
    let scaled = gain.of(bandwidth.saturating_mul(rtt_us.into()));
    scaled.div_ceil(1 << BW_SCALE).min(1 << 30) as u32
}

/// Size of a burst in segments at a pacing rate in bytes/s, at least `least` (`bbr_tso_segs_goal`).
pub(in crate::sim::control) fn burst(pacing_rate: u64, mss: u64, least: u32) -> u32 {
    let bytes = (pacing_rate >> BURST_SHIFT).min(BURST_BYTES);
    ((bytes / mss) as u32).max(least).min(0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_per_millisecond_is_what_it_says() {
        let rate = RateSample {
            delivered: Some(40),
            interval_us: 40_000,
            ..RateSample::default()
        };
        let bandwidth = sample(&rate).expect("a valid sample");
        assert_eq!(bdp(bandwidth, 40_000, Gain::ONE), 40);
        assert_eq!(bdp(bandwidth, 40_000, Gain::TWO), 80);
        let paced = pacing_rate(bandwidth, Gain::ONE, 1_448);
        assert!((1_433_000..1_433_600).contains(&paced), "{paced}");
        assert_eq!(burst(paced, 1_448, 2), 2);
        assert_eq!(burst(20_000_000, 1_448, 2), 13);
    }

    #[test]
    fn a_sample_without_an_interval_is_none() {
        assert_eq!(sample(&RateSample::default()), None);
        let rate = RateSample {
            delivered: Some(1),
            ..RateSample::default()
        };
        assert_eq!(sample(&rate), None);
    }

    #[test]
    fn the_largest_values_saturate() {
        assert_eq!(bdp(u64::MAX, u32::MAX, Gain::TWO), 1 << 30);
        assert!(pacing_rate(u64::MAX, Gain::HIGH, 1_448) > 0);
    }
}
