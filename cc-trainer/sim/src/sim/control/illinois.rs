//! TCP-Illinois (Liu, Başar and Srikant, "TCP-Illinois: A Loss- and Delay-Based Congestion Control
//! Algorithm for High-Speed Networks", Performance Evaluation 65, 2008) as in Linux
//! (net/ipv4/tcp_illinois.c) with its defaults: the queueing delay determines how fast the cwnd
//! grows and how much a loss takes.

use cc_ebpf::{
    AckSample, CaState, CwndState,
    reno::{in_slow_start, slow_start},
};

use super::{Acked, CongestionControl, RateSample};
use crate::path::Nanos;

/// Growth of one segment per round trip in the units of [`Illinois::alpha`] (`ALPHA_SCALE`,
/// `ALPHA_BASE`).
const ONE: u64 = 1 << 7;
/// Growth with the longest queue, 0.3 segments per round trip (`ALPHA_MIN`).
const SLOWEST: u64 = 3 * ONE / 10;
/// Growth with an empty queue, 10 segments per round trip (`ALPHA_MAX`).
const FASTEST: u64 = 10 * ONE;
/// The part 1 of the cwnd in the units of [`Illinois::beta`] (`BETA_SCALE`).
const WHOLE: u64 = 1 << 6;
/// Least part of the cwnd that a loss takes, an eighth (`BETA_MIN`).
const LEAST_CUT: u64 = WHOLE / 8;
/// Largest part of the cwnd that a loss takes, a half (`BETA_MAX`, `BETA_BASE`).
const LARGEST_CUT: u64 = WHOLE / 2;
/// Smallest cwnd in segments to which delay matters (`win_thresh`).
const ADAPTIVE_CWND: u32 = 15;
/// Number of round trips without queue after which the growth is the fastest again (`theta`).
const PATIENCE: u32 = 5;
/// Longest RTT that is told from longer ones, µs: 3.3 s (`RTT_MAX`).
const LONGEST_RTT: u32 = u32::MAX / FASTEST as u32;
/// The RTT of no sample.
const NO_RTT: u32 = 0x7fff_ffff;

/// The state of Illinois for one connection (`struct illinois`).
#[derive(Clone, Debug)]
pub struct Illinois {
    /// Segments by which the cwnd grows per round trip, in units of 1 / [`ONE`] (`alpha`).
    alpha: u64,
    /// Part of the cwnd that a loss takes, in units of 1 / [`WHOLE`] (`beta`).
    beta: u64,
    /// Smallest and largest RTT in µs (`base_rtt`, `max_rtt`).
    min_us: u32,
    max_us: u32,
    /// The round trip ends when a segment beyond this one is acknowledged (`end_seq`).
    end: u64,
    /// Sum and number of the RTTs in it, µs (`sum_rtt`, `cnt_rtt`).
    sum_us: u64,
    samples: u64,
    /// Whether a round trip had a queue since the growth was the fastest (`rtt_above`), and the
    /// number of round trips without one since (`rtt_low`).
    queued: bool,
    empty_rounds: u32,
    /// Segments that the next ACK counts for (`acked`).
    acked: u32,
    /// Next segment to be sent at the newest ACK.
    snd_nxt: u64,
}

impl Illinois {
    /// Creates the control of a new connection.
    pub fn new() -> Self {
        Self {
            alpha: FASTEST,
            beta: LARGEST_CUT,
            min_us: NO_RTT,
            max_us: 0,
            end: 0,
            sum_us: 0,
            samples: 0,
            queued: false,
            empty_rounds: 0,
            acked: 0,
            snd_nxt: 0,
        }
    }

    /// Begins a round trip (`rtt_reset`).
    fn begin_round(&mut self, snd_nxt: u64) {
        self.end = snd_nxt;
        self.sum_us = 0;
        self.samples = 0;
    }

    /// Sets growth and cut at the end of a round trip (`update_params`).
    fn update(&mut self, cwnd: u32, snd_nxt: u64) {
        if cwnd < ADAPTIVE_CWND {
            self.alpha = ONE;
            self.beta = LARGEST_CUT;
        } else if let Some(mean) = self.sum_us.checked_div(self.samples) {
            let delay = mean - u64::from(self.min_us);
            let longest = u64::from(self.max_us - self.min_us);
            self.alpha = self.growth(delay, longest);
            self.beta = cut(delay, longest);
        }
        self.begin_round(snd_nxt);
    }

    /// The growth at this mean and longest queueing delay, µs (`alpha`).
    fn growth(&mut self, delay: u64, longest: u64) -> u64 {
        let low = longest / 100;
        if delay > low {
            self.queued = true;
            return growth_beyond(delay - low, longest - low);
        }
        if self.queued {
            self.empty_rounds += 1;
            if self.empty_rounds < PATIENCE {
                return self.alpha;
            }
            self.empty_rounds = 0;
            self.queued = false;
        }
        FASTEST
    }
}

/// The growth with a queue: a hyperbola from [`FASTEST`] without delay to [`SLOWEST`] at the
/// longest one.
fn growth_beyond(delay: u64, longest: u64) -> u64 {
    longest * FASTEST / (longest + delay * (FASTEST - SLOWEST) / SLOWEST)
}

/// The part of the cwnd that a loss takes at this mean and longest queueing delay, µs: linear
/// between a tenth and eight tenths of the longest one (`beta`).
fn cut(delay: u64, longest: u64) -> u64 {
    let (low, high) = (longest / 10, 8 * longest / 10);
    if delay <= low {
        LEAST_CUT
    } else if delay >= high || high <= low {
        LARGEST_CUT
    } else {
        let slope = (LARGEST_CUT - LEAST_CUT) * delay;
        (LEAST_CUT * high + slope - LARGEST_CUT * low) / (high - low)
    }
}

impl Default for Illinois {
    fn default() -> Self {
        Self::new()
    }
}

impl CongestionControl for Illinois {
    fn on_acked(&mut self, _cwnd: &CwndState, acked: &Acked) {
        self.snd_nxt = acked.snd_nxt;
        self.acked = acked.segments;
        if acked.rtt_us == 0 {
            return;
        }
        let rtt_us = acked.rtt_us.min(LONGEST_RTT);
        self.min_us = self.min_us.min(rtt_us);
        self.max_us = self.max_us.max(rtt_us);
        self.sum_us += u64::from(rtt_us);
        self.samples += 1;
    }

    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, rate: &RateSample) {
        if rate.snd_una > self.end {
            self.update(cwnd.cwnd, rate.snd_nxt);
        }
        if !ack.cwnd_limited {
            return;
        }
        if in_slow_start(cwnd) {
            slow_start(cwnd, ack.acked);
            return;
        }
        cwnd.cwnd_cnt = cwnd.cwnd_cnt.saturating_add(self.acked);
        self.acked = 1;
        let segments = u64::from(cwnd.cwnd);
        let gained = u64::from(cwnd.cwnd_cnt) * self.alpha / ONE / segments;
        if gained > 0 {
            cwnd.cwnd = (segments + gained).min(cwnd.clamp.into()) as u32;
            cwnd.cwnd_cnt = 0;
        }
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        let segments = u64::from(cwnd.cwnd);
        ((segments - segments * self.beta / WHOLE) as u32).max(2)
    }

    fn on_state(&mut self, _now: Nanos, _cwnd: &mut CwndState, state: CaState) {
        if state == CaState::Loss {
            self.alpha = ONE;
            self.beta = LARGEST_CUT;
            self.queued = false;
            self.empty_rounds = 0;
            self.begin_round(self.snd_nxt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ack, cwnd, rate};
    use super::*;

    #[test]
    fn growth_falls_from_10_to_a_third_with_the_delay() {
        let mut illinois = Illinois::new();
        let mut growth = |percent: u64| illinois.growth(percent * 1_000, 100_000);
        assert_eq!(growth(0), FASTEST);
        assert_eq!(growth(1), FASTEST, "up to a hundredth of the longest");
        assert_eq!(growth(100), SLOWEST);
        // 1 / growth is linear in the delay: 0.1 + (1 / 0.3 - 0.1) · delay / longest.
        let middle = growth(50) as f64 / ONE as f64;
        assert!((0.55..=0.61).contains(&middle), "{middle}");
        let growths = [2, 10, 30, 70, 90].map(&mut growth);
        assert!(growths.is_sorted_by(|a, b| a > b), "{growths:?}");
    }

    #[test]
    fn growth_is_the_fastest_only_after_five_round_trips_without_queue() {
        let mut illinois = Illinois::new();
        illinois.alpha = illinois.growth(50_000, 100_000);
        let slow = illinois.alpha;
        for _ in 0..4 {
            illinois.alpha = illinois.growth(0, 100_000);
            assert_eq!(illinois.alpha, slow);
        }
        assert_eq!(illinois.growth(0, 100_000), FASTEST);
        assert_eq!(illinois.growth(0, 100_000), FASTEST);
    }

    #[test]
    fn a_loss_takes_an_eighth_to_a_half() {
        assert_eq!(cut(10_000, 100_000), WHOLE / 8);
        assert_eq!(cut(45_000, 100_000), WHOLE * 5 / 16, "half of the way");
        assert_eq!(cut(80_000, 100_000), WHOLE / 2);
        assert_eq!(cut(0, 0), WHOLE / 8);
        let mut illinois = Illinois::new();
        assert_eq!(illinois.ssthresh(&cwnd(100, 10)), 50);
        illinois.beta = cut(0, 100_000);
        assert_eq!(illinois.ssthresh(&cwnd(100, 10)), 88);
        assert_eq!(illinois.ssthresh(&cwnd(2, 10)), 2);
    }

    #[test]
    fn small_cwnds_are_renos() {
        let mut illinois = Illinois::new();
        illinois.update(14, 20);
        assert_eq!((illinois.alpha, illinois.beta), (ONE, WHOLE / 2));
    }

    #[test]
    fn the_mean_rtt_of_a_round_trip_counts() {
        let (mut illinois, w) = (Illinois::new(), cwnd(100, 10));
        let mut acked = |rtt_us| {
            let acked = Acked {
                segments: 1,
                rtt_us,
                ..Acked::default()
            };
            illinois.on_acked(&w, &acked);
        };
        [100_000, 200_000, 150_000, 0]
            .into_iter()
            .for_each(&mut acked);
        illinois.update(100, 50);
        // 50 ms of 100 ms.
        assert_eq!(illinois.beta, cut(50_000, 100_000));
        assert_eq!(illinois.samples, 0);
    }

    #[test]
    fn the_cwnd_grows_by_alpha_per_round_trip() {
        let (mut illinois, mut w) = (Illinois::new(), cwnd(100, 10));
        let acked = Acked {
            segments: 1,
            snd_nxt: 1_000,
            ..Acked::default()
        };
        illinois.end = 1_000;
        for _ in 0..100 {
            illinois.on_acked(&w, &acked);
            illinois.on_ack(&mut w, &ack(0, 1), &rate());
        }
        assert!((108..=110).contains(&w.cwnd), "{}", w.cwnd);
    }

    #[test]
    fn a_timeout_makes_it_reno_until_the_next_round_trip() {
        let (mut illinois, mut w) = (Illinois::new(), cwnd(100, 10));
        illinois.on_state(0, &mut w, CaState::Loss);
        assert_eq!((illinois.alpha, illinois.beta), (ONE, WHOLE / 2));
    }
}
