//! The pacing rate that goes with a congestion window.

use crate::{
    AckSample, CwndState,
    bounds::{at_most, at_most_64, exceeds, select},
    usage::INITIAL_CWND,
};

/// One, as a gain in units of 1/1024.
const UNIT: u32 = 1 << GAIN_SHIFT;
/// Bits behind the point of a gain.
const GAIN_SHIFT: u32 = 10;
/// The largest gain that has an effect: 16.
const MAX_GAIN_1024: u32 = 16 << GAIN_SHIFT;
/// More bytes in flight than any real connection has: 8 TB.
const MAX_BYTES: u64 = 1 << 43;
/// A faster rate than any real connection has, in bytes/s: 1 PB/s.
const MAX_RATE: u64 = 1 << 50;

/// The gains of [`pacing_rate`] in units of 1/1024, each bounded by 16: one while the cwnd is below
/// half of ssthresh, and one at any other cwnd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gains {
    slow_start: u32,
    otherwise: u32,
}

impl Gains {
    /// The kernel's own (`tcp_update_pacing_rate`, net/ipv4/tcp_input.c, Linux 6.18): 2 and 1.2.
    ///
    /// Flows that are not paced have them, too: the kernel reads the rate to size their bursts
    /// (`tcp_tso_autosize`, net/ipv4/tcp_output.c), and no one but a `cong_control` updates it.
    pub const KERNEL: Self = Self::of(2 * UNIT);

    /// Those of a paced flow whose cwnd no decision governs: 4 and 1.2.
    ///
    /// In slow start every ACK sends twice what it acknowledges. At a gain of 2 that is spread over
    /// half of an RTT in every round trip, and a short response comes later by as much than from a
    /// flow that is not paced; at a gain of 4 by half of that.
    pub const UNDECIDED: Self = Self::of(4 * UNIT);

    /// The same gain at every cwnd.
    #[inline(always)]
    pub const fn constant(gain_1024: u32) -> Self {
        Self {
            slow_start: gain_1024,
            otherwise: gain_1024,
        }
    }

    const fn of(slow_start: u32) -> Self {
        Self {
            slow_start,
            otherwise: UNIT * 6 / 5,
        }
    }
}

/// Pacing rate in bytes/s: gain × cwnd × MSS / `rtt_us`; `None` where that is 0.
///
/// `rtt_us` is the time in which a cwnd is to be sent at a gain of one, µs: the smoothed RTT, or
/// what the flow's controller finds ([`Controller::pacing_rate`](crate::Controller::pacing_rate)).
#[inline(always)]
pub fn pacing_rate(cwnd: &CwndState, ack: &AckSample, rtt_us: u32, gains: Gains) -> Option<u64> {
    if rtt_us == 0 {
        return None;
    }
    let slow_starts = exceeds((cwnd.ssthresh / 2).into(), cwnd.cwnd);
    let gain = select(slow_starts, gains.slow_start, gains.otherwise);
    let segments = if ack.in_flight > cwnd.cwnd {
        ack.in_flight
    } else {
        cwnd.cwnd
    };
    // The bounds keep each product within 64 bits: BPF has no wider multiplication to saturate
    // with.
    let bytes = at_most_64(u64::from(segments) * u64::from(ack.mss), MAX_BYTES);
    let per_second = at_most_64(bytes * 1_000_000 / u64::from(rtt_us), MAX_RATE);
    let gain = at_most(gain, MAX_GAIN_1024);
    Some((per_second * u64::from(gain)) >> GAIN_SHIFT)
}

/// The least pacing rate in bytes/s of a paced flow that transmits while nothing is in flight,
/// until its next ACK: an initial cwnd within a sixteenth of the smoothed RTT.
///
/// `None` before the first smoothed RTT, and for a cwnd larger than twice the initial one. A flow
/// whose application never writes more than an initial cwnd at once has none larger: slow start
/// takes the cwnd to twice what is in flight (`tcp_is_cwnd_limited`, include/net/tcp.h). All of a
/// larger one could leave at that rate, and find no room in the bottleneck's queue.
///
/// Pacing at [`pacing_rate`] spreads over much of a round trip what an application writes at once,
/// where the cwnd is little larger than that: a response of 10 kB would come half an RTT later than
/// from a flow that is not paced. An initial cwnd at once is what every new connection may send
/// (RFC 6928), and what the kernel never paces there (`tcp_update_skb_after_send`,
/// net/ipv4/tcp_output.c).
#[inline(always)]
pub fn first_flight_rate(cwnd: u32, srtt_us: u32, mss: u32) -> Option<u64> {
    if cwnd > 2 * INITIAL_CWND || srtt_us == 0 {
        return None;
    }
    let bytes = u64::from(INITIAL_CWND) * u64::from(mss);
    Some(at_most_64(
        bytes * (16 * 1_000_000) / u64::from(srtt_us),
        MAX_RATE,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature::tests::ack;

    #[test]
    fn an_initial_cwnd_may_leave_within_a_sixteenth_of_the_rtt() {
        assert_eq!(first_flight_rate(20, 100_000, 1_000), Some(1_600_000));
        assert_eq!(first_flight_rate(21, 100_000, 1_000), None);
        assert_eq!(first_flight_rate(10, 0, 1_000), None);
        assert_eq!(first_flight_rate(10, 1, u32::MAX), Some(MAX_RATE));
    }

    #[test]
    fn pacing_follows_the_cwnd() {
        let sample = AckSample {
            mss: 1_000,
            ..ack()
        };
        let state = |ssthresh| CwndState {
            cwnd: 100,
            ssthresh,
            cwnd_cnt: 0,
            clamp: u32::MAX,
        };
        let rate = |ssthresh, gains| pacing_rate(&state(ssthresh), &sample, 10_000, gains);
        for ssthresh in [10, 1_000] {
            assert_eq!(rate(ssthresh, Gains::constant(UNIT)), Some(10_000_000));
        }
        for (gains, in_slow_start) in [(Gains::KERNEL, 20_000_000), (Gains::UNDECIDED, 40_000_000)]
        {
            assert_eq!(rate(1_000, gains), Some(in_slow_start));
            assert_eq!(rate(201, gains), Some(11_992_187));
            assert_eq!(rate(202, gains), Some(in_slow_start));
        }
        assert_eq!(pacing_rate(&state(10), &sample, 0, Gains::KERNEL), None);
    }
}
