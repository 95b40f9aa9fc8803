//! How a flow's RTT follows changes of its own cwnd.
//!
//! A regression of the RTT on the cwnd ([`Response`](super::response::Response)) compares windows
//! that are seconds apart, and anything else that lengthens the RTT in between, such as a lesser
//! rate of the link, is in it until those windows are forgotten: a flow that drains the queue which
//! a lesser rate has left sees a longer RTT at a smaller cwnd, and a slope below 0, as if the queue
//! were somebody else's. This one compares each window with that of a round trip before. A lesser
//! rate is in the few pairs of windows that it falls between, and what a pair can say is limited.

use std::collections::VecDeque;

use cc_ebpf::WindowRecord;

use super::regression::{LONGEST_LAG, Sums, cwnd_and_rtt, lag};

/// Added to the mean square of the changes of ln cwnd, which draws the slope to 0 where the cwnd
/// has hardly changed: the square of half a percent.
const LEAST_SQUARE: f64 = 0.005 * 0.005;

/// The largest change of ln RTT that counts: that of the largest usual step of a cwnd, and not that
/// of a link which has lost half of its rate.
const LARGEST_CHANGE: f64 = 0.2;

/// The regression, through 0, of the changes of ln RTT on those of ln cwnd, each over a round trip
/// or a window, whichever is longer. Weights fall by a factor of e in so many windows.
///
/// A change of the RTT is put beside that of the cwnd of a round trip before, which sent the
/// packets that it was measured on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Changes {
    /// Length of a window, µs.
    window_us: f64,
    /// ln cwnd and ln RTT of the last windows, the newest last.
    recent: VecDeque<[f64; 2]>,
    /// Of the changes of ln cwnd and ln RTT.
    sums: Sums,
}

impl Changes {
    /// The regression of a flow without windows, whose windows have this length. Weights fall by a
    /// factor of e in `windows`; with 0 of them nothing is observed.
    pub(super) fn new(windows: usize, window_ms: u32) -> Self {
        Self {
            window_us: 1000.0 * f64::from(window_ms),
            recent: VecDeque::new(),
            sums: Sums::new(windows),
        }
    }

    /// Adds a window; one without ACKs has neither a cwnd nor an RTT.
    pub(super) fn push(&mut self, window: &WindowRecord) {
        if self.sums.is_off() || window.acks == 0 {
            return;
        }
        let (cwnd, rtt_us) = cwnd_and_rtt(window);
        self.recent.push_back([cwnd.ln(), rtt_us.ln()]);
        if self.recent.len() > 2 * LONGEST_LAG + 1 {
            self.recent.pop_front();
        }
        let lag = lag(rtt_us, self.window_us);
        let span = lag.max(1);
        let newest = self.recent.len() - 1;
        if newest < lag + span {
            return;
        }
        let cwnd = |at: usize| self.recent[at][0];
        let rtt = |at: usize| self.recent[at][1];
        let sent = newest - lag;
        let changes = [
            cwnd(sent) - cwnd(sent - span),
            rtt(newest) - rtt(newest - span),
        ];
        self.add(changes[0], changes[1]);
    }

    /// Adds a change of ln cwnd and that of ln RTT which followed it.
    fn add(&mut self, cwnd: f64, rtt: f64) {
        let rtt = rtt.clamp(-LARGEST_CHANGE, LARGEST_CHANGE);
        self.sums.turn();
        self.sums.square += cwnd * cwnd;
        self.sums.product += cwnd * rtt;
    }

    /// d ln RTT / d ln cwnd, −1 to 2; 0 before the first change.
    pub(super) fn slope(&self) -> f64 {
        self.sums.slope(LEAST_SQUARE)
    }

    /// The root of the mean square of the changes of ln cwnd, at most 2: how much the slope rests
    /// on.
    pub(super) fn swing(&self) -> f64 {
        self.sums.swing()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::observation::response::tests::{probing, window};

    /// The slope after `cwnds`, where `rtt` is what a cwnd of so many segments in a window of this
    /// number leads to, one round trip of `lag` windows later.
    fn slope(cwnds: &[f64], lag: usize, rtt: impl Fn(usize, f64) -> f64) -> f64 {
        let mut changes = Changes::new(20, 100);
        for at in lag..cwnds.len() {
            changes.push(&window(rtt(at, cwnds[at - lag]), 1448.0 * cwnds[at]));
        }
        changes.slope()
    }

    #[test]
    fn a_lone_flow_is_the_queue_and_one_beside_a_neighbour_a_part_of_it() {
        // Small enough steps that nothing is limited.
        let cwnds: Vec<_> = probing().iter().map(|cwnd| cwnd / 4.0 + 400.0).collect();
        let alone = slope(&cwnds, 0, |_, cwnd| 80.0 * cwnd);
        assert!((alone - 1.0).abs() < 0.05, "{alone}");
        let half = slope(&cwnds, 0, |_, cwnd| 40.0 * (cwnd + 500.0));
        assert!((half - 0.5).abs() < 0.1, "{half}");
        let none = slope(&cwnds, 0, |_, _| 42_000.0);
        assert!(none.abs() < 1e-6, "{none}");
        let late = slope(&cwnds, 3, |_, cwnd| 700.0 * cwnd);
        assert!(late > 0.8, "{late}");
    }

    /// Where the response takes the queue for somebody else's.
    #[test]
    fn a_rate_that_falls_does_not_turn_the_slope() {
        // A cwnd that goes up and down by 5 %, and is brought down after the fall.
        let cwnd = |at: usize| {
            let swing = if (at / 5).is_multiple_of(2) {
                1.0
            } else {
                1.05
            };
            500.0 * swing * 0.97_f64.powi(at.saturating_sub(150) as i32)
        };
        let cwnds: Vec<_> = (0..165).map(cwnd).collect();
        let rtt = |at: usize, cwnd: f64| cwnd * if at < 150 { 80.0 } else { 160.0 };
        let found = slope(&cwnds, 0, rtt);
        assert!(found > 0.7, "{found}");
        let mut response = super::super::response::Response::new(40, 100);
        for (at, &cwnd) in cwnds.iter().enumerate() {
            response.push(&window(rtt(at, cwnd), 1448.0 * cwnd));
        }
        assert!(response.slope() < 0.0, "{}", response.slope());
    }

    #[test]
    fn nothing_is_observed_of_a_cwnd_that_stands_still_or_without_windows() {
        let mut changes = Changes::new(20, 100);
        for at in 0..100 {
            changes.push(&window(20_000.0 + 1000.0 * f64::from(at % 7), 50_000.0));
        }
        assert_eq!((changes.slope(), changes.swing()), (0.0, 0.0));
        let mut none = Changes::new(0, 100);
        none.push(&window(20_000.0, 50_000.0));
        assert_eq!(none, Changes::new(0, 100));
    }

    proptest! {
        /// Against the weighted sums over all pairs, kept in full.
        #[test]
        fn the_slope_is_that_of_the_weighted_regression(
            windows in 1_usize..60,
            pairs in prop::collection::vec((-1.0_f64..1.0, -1.0_f64..1.0), 1..80),
        ) {
            let mut changes = Changes::new(windows, 100);
            for &(cwnd, rtt) in &pairs {
                changes.add(cwnd, rtt);
            }
            let newest = pairs.len() - 1;
            let mean = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
                let weight = |at: usize| (-((newest - at) as f64) / windows as f64).exp();
                let total: f64 = (0..pairs.len()).map(weight).sum();
                let pairs = pairs.iter().enumerate();
                let terms = pairs.map(|(at, &(x, y))| weight(at) * of(x, y.clamp(-0.2, 0.2)));
                terms.sum::<f64>() / total
            };
            let square = mean(&|x, _| x * x);
            let expected = mean(&|x, y| x * y) / (square + LEAST_SQUARE);
            prop_assert!((changes.slope() - expected.clamp(-1.0, 2.0)).abs() < 1e-6);
            prop_assert!((changes.swing() - square.sqrt()).abs() < 1e-6);
        }
    }
}
