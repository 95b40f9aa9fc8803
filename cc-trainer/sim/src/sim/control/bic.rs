//! BIC (Xu, Harfoush and Rhee, "Binary Increase Congestion Control for Fast Long-Distance
//! Networks", INFOCOM 2004) as in Linux (net/ipv4/tcp_bic.c) with its defaults: a binary
//! search for the cwnd of the last loss, and beyond it the search mirrored.

use cc_ebpf::{
    AckSample, CaState, CwndState,
    reno::{additive_increase, in_slow_start, slow_start},
};

use super::{Acked, CongestionControl, RateSample};
use crate::path::Nanos;
use crate::sim::timer::{HZ, tick};

/// A step of the search goes this part of the way (`BICTCP_B`).
const STEP: u32 = 4;
/// Largest growth in segments per round trip (`max_increment`).
const LARGEST_STEP: u32 = 16;
/// Largest cwnd in segments at which BIC is Reno (`low_window`).
const LOW_WINDOW: u32 = 14;
/// Round trips that the last [`STEP`] segments before the maximum and the first ones beyond it
/// take (`smooth_part`).
const SMOOTH: u32 = 20;
/// Factor of the cwnd after a loss in units of 1 / [`SCALE`]: 0.8 (`beta`).
const BETA: u64 = 819;
/// The factor 1 in the units of [`BETA`] (`BICTCP_BETA_SCALE`).
const SCALE: u64 = 1024;
/// Most acknowledged segments per segment gained before the first loss.
const FIRST_SEARCH: u32 = 20;
/// Fractional bits of [`Bic::per_ack`] (`ACK_RATIO_SHIFT`), which averages about 2⁴ ACKs too.
const RATIO_BITS: u32 = 4;

/// The state of BIC for one connection (`struct bictcp`).
#[derive(Clone, Debug)]
pub struct Bic {
    /// Acknowledged segments per segment gained (`cnt`).
    interval: u32,
    /// The cwnd at the last loss, less what fast convergence gives up, in segments; 0 for none
    /// (`last_max_cwnd`).
    last_max: u32,
    /// The cwnd at the last evaluation, and the tick of it (`last_cwnd`, `last_time`).
    evaluated: (u32, u64),
    /// Mean number of segments per ACK, in 16ths (`delayed_ack`).
    per_ack: u32,
}

impl Bic {
    /// Creates the control of a new connection.
    pub fn new() -> Self {
        Self {
            interval: 0,
            last_max: 0,
            evaluated: (0, 0),
            per_ack: 2 << RATIO_BITS,
        }
    }

    /// Sets the interval between two increases (`bictcp_update`).
    fn evaluate(&mut self, cwnd: u32, now: u64) {
        let (last_cwnd, last) = self.evaluated;
        if last_cwnd == cwnd && now <= last + HZ / 32 {
            return;
        }
        self.evaluated = (cwnd, now);
        if cwnd <= LOW_WINDOW {
            self.interval = cwnd;
            return;
        }
        let mut interval = self.search(cwnd);
        if self.last_max == 0 {
            interval = interval.min(FIRST_SEARCH);
        }
        // Stretched ACKs count here and in `additive_increase` too, so that the cwnd grows twice as
        // fast as the search says where ACKs are delayed.
        self.interval = ((interval << RATIO_BITS) / self.per_ack).max(1);
    }

    /// Acknowledged segments per segment gained at this cwnd with an ACK for each segment.
    fn search(&self, cwnd: u32) -> u32 {
        let slowest = cwnd * SMOOTH / STEP;
        match cwnd.checked_sub(self.last_max) {
            None => match (self.last_max - cwnd) / STEP {
                0..=1 => slowest,
                step => cwnd / step.min(LARGEST_STEP),
            },
            Some(beyond) if beyond < STEP => slowest,
            Some(beyond) if beyond < LARGEST_STEP * (STEP - 1) => cwnd * (STEP - 1) / beyond,
            Some(_) => cwnd / LARGEST_STEP,
        }
    }
}

impl Default for Bic {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Bic {
    fn on_acked(&mut self, _cwnd: &CwndState, acked: &Acked) {
        if acked.state == CaState::Open {
            let mean = self.per_ack >> RATIO_BITS;
            self.per_ack = (self.per_ack - mean).saturating_add(acked.segments);
        }
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _rate: &RateSample) {
        if !ack.cwnd_limited {
            return;
        }
        let mut acked = ack.acked;
        if in_slow_start(cwnd) {
            acked = slow_start(cwnd, acked);
            if acked == 0 {
                return;
            }
        }
        self.evaluate(cwnd.cwnd, tick(ack.now_ns));
        additive_increase(cwnd, self.interval, acked);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        let segments = u64::from(cwnd.cwnd);
        // Fast convergence: a flow that lost before it came back to its last maximum makes room for
        // others.
        self.last_max = match cwnd.cwnd < self.last_max {
            true => (segments * (SCALE + BETA) / (2 * SCALE)) as u32,
            false => cwnd.cwnd,
        };
        let reduced = match cwnd.cwnd <= LOW_WINDOW {
            true => segments / 2,
            false => segments * BETA / SCALE,
        };
        (reduced as u32).max(2)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        if state == CaState::Loss {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MS, ack, cwnd, rate};
    use super::*;

    /// Growth in hundredths of a segment per round trip with an ACK for each segment, at a cwnd
    /// after a loss at `last_max`.
    fn growth(last_max: u32, cwnd: u32) -> u32 {
        let bic = Bic {
            last_max,
            ..Bic::new()
        };
        100 * cwnd / bic.search(cwnd)
    }

    #[test]
    fn a_loss_takes_a_fifth_and_small_cwnds_are_halved() {
        let mut bic = Bic::new();
        assert_eq!(bic.ssthresh(&cwnd(1_000, 10)), 799);
        assert_eq!(bic.last_max, 1_000);
        assert_eq!(bic.ssthresh(&cwnd(14, 10)), 7);
        assert_eq!(bic.ssthresh(&cwnd(2, 10)), 2);
    }

    #[test]
    fn a_loss_below_the_last_maximum_makes_room() {
        let mut bic = Bic::new();
        bic.ssthresh(&cwnd(1_000, 10));
        bic.ssthresh(&cwnd(900, 10));
        assert_eq!(bic.last_max, 809, "nine tenths of 900");
    }

    #[test]
    fn the_search_goes_a_quarter_of_the_way_per_round_trip() {
        // Far below the maximum at most 16 segments, then a quarter of the distance, then less.
        assert_eq!(growth(1_024, 512), 1_600);
        let near = growth(1_024, 984);
        assert!((1_000..1_020).contains(&near), "{near}");
        assert_eq!(growth(1_024, 1_020), 20, "4 segments in 20 round trips");
        assert_eq!(growth(1_024, 1_024), 20);
    }

    #[test]
    fn beyond_the_maximum_the_search_is_mirrored() {
        let growths = [1_027, 1_030, 1_045, 1_072, 2_048].map(|cwnd| growth(1_024, cwnd));
        assert_eq!(growths[0], 20);
        assert!((195..=205).contains(&growths[1]), "{growths:?}");
        assert!(growths[1] < growths[2] && growths[2] < growths[3]);
        assert!((1_600..1_620).contains(&growths[3]), "{growths:?}");
        assert_eq!(growths[4], 1_600);
    }

    #[test]
    fn it_is_reno_at_small_cwnds() {
        let (mut bic, mut w) = (Bic::new(), cwnd(8, 2));
        for number in 1..=8 {
            bic.on_ack(&mut w, &ack(number * MS, 1), &rate());
        }
        assert_eq!(w.cwnd, 9);
    }

    #[test]
    fn stretched_acks_shorten_the_interval() {
        // At 16 segments per round trip and cwnd of 1,000 it would be 62. The mean begins at two
        // segments per ACK, and the rounding of its parts keeps it there with one per ACK.
        let w = cwnd(1_000, 10);
        let interval = |segments: u32| {
            let mut bic = Bic {
                last_max: 2_000,
                ..Bic::new()
            };
            for _ in 0..200 {
                let acked = Acked {
                    segments,
                    ..Acked::default()
                };
                bic.on_acked(&w, &acked);
            }
            bic.evaluate(1_000, 1);
            bic.interval
        };
        assert_eq!([1, 2, 5].map(interval), [32, 31, 12]);
    }

    #[test]
    fn only_acks_in_the_open_state_show_how_they_are_stretched() {
        let mut bic = Bic::new();
        let acked = Acked {
            segments: 40,
            state: CaState::Recovery,
            ..Acked::default()
        };
        bic.on_acked(&cwnd(100, 10), &acked);
        assert_eq!(bic.per_ack, 32);
    }

    #[test]
    fn a_timeout_forgets_the_maximum() {
        let (mut bic, mut w) = (Bic::new(), cwnd(500, 10));
        bic.ssthresh(&w);
        bic.on_state(0, &mut w, CaState::Loss);
        assert_eq!(bic.last_max, 0);
        bic.evaluate(500, 1);
        assert_eq!(bic.interval, 10, "5 % per round trip, with delayed ACKs 10");
    }
}
