//! How a flow's RTT answers to its own cwnd.
//!
//! On a full path the packets of a flow that has it for itself are the queue: by Little's law the
//! RTT is proportional to the cwnd, and d ln RTT / d ln cwnd is 1. Among others it is the flow's
//! part of what is in flight, one half for either of two equal flows; and beside a neighbour that
//! makes room, as BBR does when it keeps to a multiple of the BDP, it is 0 although the RTT is
//! never that of an empty path. On a path that is not full it is 0 as well. A single window shows
//! none of this, since the RTT moves for other reasons, too: the slope is a regression over many.

use std::collections::VecDeque;

use cc_ebpf::WindowRecord;

use super::regression::{LONGEST_LAG, Sums, cwnd_and_rtt, lag};

/// Added to the variance of ln cwnd, which draws the slope to 0 where the cwnd has hardly varied:
/// the square of 2 %.
const LEAST_VARIANCE: f64 = 0.02 * 0.02;

/// The regression of ln RTT on ln cwnd over a flow's windows, whose weights fall by a factor of e
/// in so many windows.
///
/// An RTT is put beside the cwnd of a round trip before, which sent the packets that it was
/// measured on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Response {
    /// Length of a window, µs.
    window_us: f64,
    /// ln cwnd of the last windows, the newest last.
    recent: VecDeque<f64>,
    /// Weighted means of ln cwnd and ln RTT.
    mean: [f64; 2],
    /// Of the differences of ln cwnd and ln RTT from their means.
    sums: Sums,
}

impl Response {
    /// The regression of a flow without windows, whose windows have this length. Weights fall by a
    /// factor of e in `windows`; with 0 of them nothing is observed.
    pub(super) fn new(windows: usize, window_ms: u32) -> Self {
        Self {
            window_us: 1000.0 * f64::from(window_ms),
            recent: VecDeque::new(),
            mean: [0.0; 2],
            sums: Sums::new(windows),
        }
    }

    /// Adds a window; one without ACKs has neither a cwnd nor an RTT.
    pub(super) fn push(&mut self, window: &WindowRecord) {
        if self.sums.is_off() || window.acks == 0 {
            return;
        }
        let (cwnd, rtt_us) = cwnd_and_rtt(window);
        self.recent.push_back(cwnd.ln());
        if self.recent.len() > LONGEST_LAG + 1 {
            self.recent.pop_front();
        }
        let newest = self.recent.len() - 1;
        let lag = lag(rtt_us, self.window_us).min(newest);
        let cwnd = self.recent[newest - lag];
        self.add(cwnd, rtt_us.ln());
    }

    /// Adds a pair of logarithms (West, *Updating mean and variance estimates*, CACM 22(9), 1979,
    /// with weights that fall).
    fn add(&mut self, cwnd: f64, rtt: f64) {
        self.sums.turn();
        let before = [cwnd - self.mean[0], rtt - self.mean[1]];
        for (mean, before) in self.mean.iter_mut().zip(before) {
            *mean += before / self.sums.weight;
        }
        let after = cwnd - self.mean[0];
        self.sums.square += before[0] * after;
        self.sums.product += before[1] * after;
    }

    /// d ln RTT / d ln cwnd, −1 to 2; 0 before the first window.
    pub(super) fn slope(&self) -> f64 {
        self.sums.slope(LEAST_VARIANCE)
    }

    /// The standard deviation of ln cwnd, at most 2: how much the slope rests on.
    pub(super) fn swing(&self) -> f64 {
        self.sums.swing()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bytemuck::Zeroable;
    use cc_ebpf::{FEATURES, Feature};
    use proptest::prelude::*;

    use super::*;

    /// A window with this mean RTT and cwnd.
    pub(in crate::observation) fn window(rtt_us: f64, cwnd_bytes: f64) -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        let mut features = [0; FEATURES];
        features[Feature::LatestRtt as usize] = rtt_us as u32;
        features[Feature::Cwnd as usize] = cwnd_bytes as u32;
        window.add(&features);
        window
    }

    /// The slope after `cwnds`, where `rtt` is what a cwnd of so many segments leads to, one round
    /// trip of `lag` windows later.
    fn slope(cwnds: &[f64], lag: usize, rtt: impl Fn(f64) -> f64) -> f64 {
        let mut response = Response::new(40, 100);
        for at in lag..cwnds.len() {
            response.push(&window(rtt(cwnds[at - lag]), 1448.0 * cwnds[at]));
        }
        response.slope()
    }

    /// Cwnds, in segments, that go up and down every second.
    pub(in crate::observation) fn probing() -> Vec<f64> {
        let cwnd = |at: usize| match at / 10 % 2 {
            0 => 500.0,
            _ => 300.0,
        };
        (0..200).map(cwnd).collect()
    }

    #[test]
    fn a_lone_flow_is_the_queue_and_one_beside_a_neighbour_a_part_of_it() {
        let cwnds = probing();
        // So many µs for each segment in flight.
        let alone = slope(&cwnds, 0, |cwnd| 80.0 * cwnd);
        assert!((alone - 1.0).abs() < 0.05, "{alone}");
        // Beside as much of somebody else's.
        let half = slope(&cwnds, 0, |cwnd| 50.0 * (cwnd + 400.0));
        assert!((half - 0.5).abs() < 0.1, "{half}");
        // The neighbour makes room, or there is no queue.
        let none = slope(&cwnds, 0, |_| 42_000.0);
        assert!(none.abs() < 1e-6, "{none}");
    }

    #[test]
    fn an_rtt_is_compared_with_the_cwnd_of_a_round_trip_before() {
        let cwnds = probing();
        let rtt = |cwnd: f64| 750.0 * cwnd;
        // 225 to 375 ms, two to four windows.
        let found = slope(&cwnds, 3, rtt);
        assert!(found > 0.8, "{found}");
        let late = slope(&cwnds, 13, rtt);
        assert!(late < 0.0, "{late}");
    }

    #[test]
    fn a_cwnd_that_stands_still_has_no_response() {
        let mut response = Response::new(40, 100);
        assert_eq!((response.slope(), response.swing()), (0.0, 0.0));
        for at in 0..100 {
            response.push(&window(20_000.0 + 1000.0 * f64::from(at % 7), 50_000.0));
        }
        assert_eq!((response.slope(), response.swing()), (0.0, 0.0));
    }

    #[test]
    fn nothing_is_observed_or_kept_without_windows() {
        let mut response = Response::new(0, 100);
        response.push(&window(20_000.0, 50_000.0));
        assert_eq!(response, Response::new(0, 100));
    }

    proptest! {
        /// Against the weighted regression over all pairs, kept in full.
        #[test]
        fn the_slope_is_that_of_the_weighted_regression(
            windows in 1_usize..60,
            pairs in prop::collection::vec((0.0_f64..8.0, 0.0_f64..8.0), 1..80),
        ) {
            let mut response = Response::new(windows, 100);
            for &(cwnd, rtt) in &pairs {
                response.add(cwnd, rtt);
            }
            let newest = pairs.len() - 1;
            let weights: Vec<f64> = (0..pairs.len())
                .map(|at| (-((newest - at) as f64) / windows as f64).exp())
                .collect();
            let total: f64 = weights.iter().sum();
            let mean = |of: &dyn Fn(&(f64, f64)) -> f64| -> f64 {
                let terms = weights.iter().zip(&pairs).map(|(weight, pair)| weight * of(pair));
                terms.sum::<f64>() / total
            };
            let (x, y) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
            let variance = mean(&|pair| (pair.0 - x).powi(2));
            let covariance = mean(&|pair| (pair.0 - x) * (pair.1 - y));
            let expected = (covariance / (variance + LEAST_VARIANCE)).clamp(-1.0, 2.0);
            prop_assert!((response.slope() - expected).abs() < 1e-6);
            prop_assert!((response.swing() - variance.sqrt().min(2.0)).abs() < 1e-6);
        }
    }
}
