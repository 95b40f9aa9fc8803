//! Vegas (Brakmo and Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet",
//! IEEE JSAC 13(8), 1995) as in Linux (net/ipv4/tcp_vegas.c) with its defaults: once per round
//! trip the cwnd moves by a segment, so that two to four segments are queued.

use cc_ebpf::{
    AckSample, CaState, CwndState,
    reno::{self, in_slow_start, slow_start},
};

use super::{Acked, CongestionControl, RateSample, TransmitStart, current_ssthresh};
use crate::path::Nanos;

/// Fewest and most queued segments in congestion avoidance (`alpha`, `beta`).
const QUEUED: std::ops::RangeInclusive<u32> = 2..=4;
/// Most queued segments in slow start (`gamma`).
const QUEUED_IN_SLOW_START: u32 = 1;
/// Smallest cwnd in segments that Vegas sets.
const LEAST: u32 = 2;
/// Most RTT samples of a round trip which may all be of delayed ACKs.
const TOO_FEW_SAMPLES: u32 = 2;
/// The RTT of no sample.
const NO_RTT: u32 = 0x7fff_ffff;

/// The state of Vegas for one connection (`struct vegas`).
#[derive(Clone, Debug, Default)]
pub struct Vegas {
    rounds: RttRounds,
    /// Whether the connection is not recovering; Reno acts while it is (`doing_vegas_now`).
    open: bool,
}

/// The smallest RTT of each round trip, and that of all since the connection was last idle.
#[derive(Clone, Debug)]
pub(super) struct RttRounds {
    /// The round trip ends when a segment beyond this one is acknowledged (`beg_snd_nxt`).
    end: u64,
    /// Number of samples in it (`cntRTT`).
    samples: u32,
    /// Its smallest RTT in µs (`minRTT`).
    min_us: u32,
    /// Smallest RTT of all in µs (`baseRTT`).
    base_us: u32,
    /// Next segment to be sent at the newest ACK.
    snd_nxt: u64,
}

/// The RTTs of a round trip with enough samples, in µs. Neither is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundTrip {
    /// The smallest one, which leaves out the noise of delayed ACKs.
    pub(super) rtt_us: u32,
    /// The smallest one of all, at most [`rtt_us`](Self::rtt_us): the RTT without a queue.
    pub(super) base_us: u32,
}

impl Vegas {
    /// Creates the control of a new connection.
    pub fn new() -> Self {
        Self {
            rounds: RttRounds::default(),
            open: true,
        }
    }

    /// Adjusts the cwnd at the end of a round trip.
    fn adjust(cwnd: &mut CwndState, acked: u32, round: RoundTrip) {
        let queued = round.queued(cwnd.cwnd);
        if in_slow_start(cwnd) {
            if queued > QUEUED_IN_SLOW_START {
                // What was acknowledged in a round trip without a queue would have been.
                let rtt = u64::from(round.rtt_us);
                let target = u64::from(cwnd.cwnd) * u64::from(round.base_us) / rtt;
                cwnd.cwnd = cwnd.cwnd.min(target as u32 + 1);
                cwnd.ssthresh = cwnd.ssthresh.min(cwnd.cwnd);
            } else {
                slow_start(cwnd, acked);
            }
        } else if queued > *QUEUED.end() {
            cwnd.cwnd = cwnd.cwnd.saturating_sub(1);
            cwnd.ssthresh = cwnd.ssthresh.min(cwnd.cwnd);
        } else if queued < *QUEUED.start() {
            cwnd.cwnd = cwnd.cwnd.saturating_add(1);
        }
        cwnd.cwnd = cwnd.cwnd.min(cwnd.clamp).max(LEAST);
        cwnd.ssthresh = current_ssthresh(cwnd);
    }
}

impl CongestionControl for Vegas {
    fn on_acked(&mut self, _cwnd: &CwndState, acked: &Acked) {
        self.rounds.measure(acked);
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        if !self.open {
            reno::on_ack(cwnd, ack, ack.acked);
        } else if self.rounds.is_over(rate) {
            match self.rounds.next(rate) {
                Some(round) => Self::adjust(cwnd, ack.acked, round),
                None => reno::on_ack(cwnd, ack, ack.acked),
            }
        } else if in_slow_start(cwnd) {
            slow_start(cwnd, ack.acked);
        }
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        reno::ssthresh(cwnd.cwnd)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        self.open = state == CaState::Open;
        self.rounds.on_state(state);
    }

    fn on_transmit_start(&mut self, _now: Nanos, _cwnd: &mut CwndState, start: &TransmitStart) {
        self.open = true;
        self.rounds.forget(start.snd_nxt);
    }
}

impl RttRounds {
    /// Adds the RTT that an ACK measured, a µs longer so that it is never 0
    /// (`tcp_vegas_pkts_acked`).
    pub(super) fn measure(&mut self, acked: &Acked) {
        self.snd_nxt = acked.snd_nxt;
        if acked.rtt_us == 0 {
            return;
        }
        let rtt_us = acked.rtt_us.saturating_add(1);
        self.base_us = self.base_us.min(rtt_us);
        self.min_us = self.min_us.min(rtt_us);
        self.samples += 1;
    }

    /// Begins a round trip when the connection has recovered (`tcp_vegas_state`).
    pub(super) fn on_state(&mut self, state: CaState) {
        if state == CaState::Open {
            self.begin(self.snd_nxt);
        }
    }

    /// Begins again after an idle time, in which the path may have changed
    /// (`tcp_vegas_cwnd_event`).
    pub(super) fn forget(&mut self, snd_nxt: u64) {
        self.base_us = NO_RTT;
        self.begin(snd_nxt);
    }

    /// Whether this ACK ends the round trip.
    pub(super) fn is_over(&self, rate: &RateSample) -> bool {
        rate.snd_una > self.end
    }

    /// Begins the next round trip, and returns the one that has ended; `None` where too few samples
    /// tell of it.
    pub(super) fn next(&mut self, rate: &RateSample) -> Option<RoundTrip> {
        let ended = RoundTrip {
            rtt_us: self.min_us,
            base_us: self.base_us,
        };
        let samples = self.samples;
        self.begin(rate.snd_nxt);
        (samples > TOO_FEW_SAMPLES).then_some(ended)
    }

    fn begin(&mut self, snd_nxt: u64) {
        self.end = snd_nxt;
        self.samples = 0;
        self.min_us = NO_RTT;
    }
}

impl Default for RttRounds {
    fn default() -> Self {
        Self {
            end: 0,
            samples: 0,
            min_us: NO_RTT,
            base_us: NO_RTT,
            snd_nxt: 0,
        }
    }
}

impl RoundTrip {
    /// Time that segments spent in queues, µs.
    pub(super) fn queueing_us(self) -> u32 {
        self.rtt_us - self.base_us
    }

    /// The segments of a cwnd that were queued, counted at the rate of an empty queue. The product
    /// has 32 bits, as in the kernel: it overflows where cwnd and queueing delay exceed 4,295
    /// segments times seconds.
    fn queued(self, cwnd: u32) -> u32 {
        cwnd.wrapping_mul(self.queueing_us()) / self.base_us
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, Path, ack, cwnd, rate};
    use super::*;

    fn adjusted(mut w: CwndState, base_us: u32, rtt_us: u32) -> CwndState {
        Vegas::adjust(&mut w, 1, RoundTrip { rtt_us, base_us });
        w
    }

    /// Acknowledges segments until `una`, each with this RTT.
    fn acknowledge(
        vegas: &mut Vegas,
        w: &mut CwndState,
        acked: std::ops::Range<u64>,
        nxt: u64,
        rtt_us: u32,
    ) {
        for una in acked {
            let acked = Acked {
                segments: 1,
                rtt_us,
                snd_nxt: nxt,
                ..Acked::default()
            };
            let rate = RateSample {
                snd_una: una + 1,
                snd_nxt: nxt,
                ..rate()
            };
            vegas.on_acked(w, &acked);
            vegas.on_ack(w, &ack(0, 1), &rate);
        }
    }

    #[test]
    fn the_cwnd_moves_by_a_segment_towards_two_to_four_queued_ones() {
        // At a cwnd of 100 and 100 ms without a queue, a queued segment is a ms of delay.
        let at = |queued: u32| adjusted(cwnd(100, 50), 100_000, 100_000 + queued * 1_000).cwnd;
        assert_eq!([at(0), at(1), at(2)], [101, 101, 100]);
        assert_eq!([at(4), at(5), at(50)], [100, 99, 99]);
    }

    #[test]
    fn slow_start_ends_with_more_than_one_queued_segment() {
        let grows = adjusted(cwnd(100, 1_000), 100_000, 101_900);
        assert_eq!((grows.cwnd, grows.ssthresh), (101, 1_000));
        // A fifth of the RTT is queueing: four fifths of the cwnd would do.
        let ended = adjusted(cwnd(100, 1_000), 80_000, 100_000);
        assert_eq!((ended.cwnd, ended.ssthresh), (81, 81));
    }

    #[test]
    fn the_threshold_follows_the_cwnd() {
        let fell = adjusted(cwnd(60, 60), 100_000, 200_000);
        assert_eq!((fell.cwnd, fell.ssthresh), (59, 59));
        let grew = adjusted(cwnd(100, 20), 100_000, 100_000);
        assert_eq!((grew.cwnd, grew.ssthresh), (101, 75));
        let least = adjusted(cwnd(2, 2), 1_000, 500_000);
        assert_eq!(least.cwnd, 2);
    }

    #[test]
    fn it_keeps_two_to_four_segments_in_the_queue() {
        // 1,000 segments/s and 40 ms.
        let mut vegas = Vegas::new();
        let mut path = Path::new(MS, 40 * MS);
        // Slow start leaves a queue that shrinks by a segment per round trip.
        path.run(&mut vegas, 20_000 * MS);
        let before = path.delivered();
        let w = path.run(&mut vegas, 5_000 * MS);
        assert!(path.delivered() - before > 4_950);
        let (pipe, queued) = (41, w.cwnd - 41);
        assert!((1..=5).contains(&queued), "{queued} beyond {pipe}");
        let longest = path.longest_queue(20_000 * MS);
        assert!((1..=6).contains(&longest), "{longest}");
    }

    #[test]
    fn a_round_trip_with_two_samples_is_renos() {
        let (mut vegas, mut w) = (Vegas::new(), cwnd(50, 10));
        w.cwnd_cnt = 49;
        // The first round trip of the connection ends with the first ACK.
        acknowledge(&mut vegas, &mut w, 0..1, 2, 100_000);
        assert_eq!(w.cwnd, 51);
        acknowledge(&mut vegas, &mut w, 1..3, 5, 100_000);
        assert_eq!((w.cwnd, w.cwnd_cnt), (51, 1), "two samples");
        acknowledge(&mut vegas, &mut w, 3..6, 9, 100_000);
        assert_eq!((w.cwnd, w.cwnd_cnt), (52, 1), "three samples");
    }

    #[test]
    fn recovery_is_renos_and_begins_a_round_trip_at_its_end() {
        let (mut vegas, mut w) = (Vegas::new(), cwnd(50, 10));
        vegas.on_state(0, &mut w, CaState::Disorder);
        acknowledge(&mut vegas, &mut w, 0..20, 60, 100_000);
        assert_eq!((w.cwnd, w.cwnd_cnt), (50, 20));
        vegas.on_state(0, &mut w, CaState::Open);
        // Nothing is adjusted before a segment is acknowledged that was sent since.
        acknowledge(&mut vegas, &mut w, 20..60, 110, 100_000);
        assert_eq!((w.cwnd, w.cwnd_cnt), (50, 20));
        acknowledge(&mut vegas, &mut w, 60..61, 110, 100_000);
        assert_eq!(w.cwnd, 51);
    }

    #[test]
    fn an_idle_time_forgets_the_smallest_rtt() {
        let (mut vegas, mut w) = (Vegas::new(), cwnd(50, 10));
        acknowledge(&mut vegas, &mut w, 0..40, 50, 20_000);
        assert_eq!(vegas.rounds.base_us, 20_001);
        let start = TransmitStart {
            snd_nxt: 50,
            ..TransmitStart::default()
        };
        vegas.on_transmit_start(0, &mut w, &start);
        acknowledge(&mut vegas, &mut w, 50..90, 150, 200_000);
        assert_eq!(vegas.rounds.base_us, 200_001);
    }
}
