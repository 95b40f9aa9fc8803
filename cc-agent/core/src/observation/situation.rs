//! The situation of a flow: what its windows since its beginning tell about the path and about
//! neighbours.
//!
//! A window shows how long the RTT is, and not how much of it is a queue that has never been empty
//! since the flow began, nor how deep the queue can become. These inputs compare the last windows
//! with all of them. They are ratios, so that they mean the same at any rate and RTT.
//!
//! The largest rate may be forgotten with time ([`Interface::rate_memory`]). The first flow of many
//! remembers that it had the path for itself, which none of the others ever had: as long as it does
//! it is in another situation than they are, and a policy need not give it the same rate.
//!
//! Flows between the same hosts may share what they know ([`Interface::shared_path`]). The least
//! RTT is then that of all of them, by which a flow that began while others kept a queue can tell
//! it from a long path. And the largest rate is one among as many flows as there are: where they
//! become more, what each remembers becomes less.

use std::collections::VecDeque;

use cc_ebpf::{Feature, WindowRecord};

use super::{changes::Changes, response::Response};
use crate::{
    interface::{Aspect, Interface},
    objective::{Measured, mbps},
    paths::PathView,
};

/// What a window adds: the extremes of the RTT, and amounts of bytes and time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    least_rtt_us: u32,
    largest_rtt_us: u32,
    measured: Measured,
    /// Number of flows on the path, this one included; 1 where that is not shared.
    flows: u32,
}

impl Seen {
    fn of(window: &WindowRecord, flows: u32) -> Self {
        let features = &window.features;
        Self {
            least_rtt_us: features.min[Feature::LatestRtt as usize],
            largest_rtt_us: features.max[Feature::LatestRtt as usize],
            measured: Measured::of(window),
            flows,
        }
    }
}

/// The windows of a flow so far.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Situation {
    /// The last windows, the newest last.
    recent: VecDeque<Seen>,
    /// Windows that count as recent; 0 where nothing is observed.
    windows: usize,
    /// Least RTT of all windows, µs.
    least_rtt_us: u32,
    /// Least RTT of the flow's path that was known at the end of the newest window, µs; `None`
    /// where none is known or it is not [shared](Interface::shared_path).
    path_rtt_us: Option<u32>,
    /// Largest RTT of all windows, µs.
    largest_rtt_us: u32,
    /// Largest throughput that a full number of recent windows had, as far as it is remembered,
    /// Mbit/s.
    largest_mbps: f64,
    /// What a window leaves of [`Self::largest_mbps`] ([`Interface::rate_memory`]), 0 to 1.
    remembered: f64,
    /// [`Feature::RttMin`] at the end of the newest window, µs.
    rtt_min_us: u32,
    /// Windows since the last one with a loss, or since the first.
    without_loss: u32,
    response: Response,
    changes: Changes,
}

impl Situation {
    /// The situation of a flow without windows, of which the last
    /// [`situation`](Interface::situation) will count as recent.
    pub(super) fn new(interface: &Interface) -> Self {
        let windows = interface.situation;
        Self {
            recent: VecDeque::with_capacity(windows),
            windows,
            least_rtt_us: u32::MAX,
            path_rtt_us: None,
            largest_rtt_us: 0,
            largest_mbps: 0.0,
            remembered: match interface.rate_memory {
                0 => 1.0,
                windows => (-1.0 / windows as f64).exp(),
            },
            rtt_min_us: 0,
            without_loss: 0,
            response: Response::new(interface.response, interface.window_ms),
            changes: Changes::new(interface.changes, interface.window_ms),
        }
    }

    /// Adds a window, and what is known of the flow's path at its end.
    pub(super) fn push(&mut self, window: &WindowRecord, path: Option<PathView>) {
        if self.windows == 0 || window.acks == 0 {
            return;
        }
        self.response.push(window);
        self.changes.push(window);
        let flows = path.map_or(1, |path| path.flows.max(1));
        let before = self.recent.back().map_or(flows, |seen| seen.flows);
        if flows > before {
            self.largest_mbps *= f64::from(before) / f64::from(flows);
        }
        let seen = Seen::of(window, flows);
        if self.recent.len() == self.windows {
            self.recent.pop_front();
        }
        self.recent.push_back(seen);
        self.least_rtt_us = self.least_rtt_us.min(seen.least_rtt_us.max(1));
        self.path_rtt_us = path.and_then(|path| path.rtt_us);
        self.largest_rtt_us = self.largest_rtt_us.max(seen.largest_rtt_us);
        self.rtt_min_us = window.features.min[Feature::RttMin as usize];
        self.without_loss = match seen.measured.lost_bytes {
            0 => self.without_loss.saturating_add(1),
            _ => 0,
        };
        if self.recent.len() == self.windows {
            let mbps = self.recent_mbps_among(flows);
            self.largest_mbps = (self.largest_mbps * self.remembered).max(mbps);
        }
    }

    /// The values of these aspects.
    pub(super) fn values(&self, aspects: &'static [Aspect]) -> impl Iterator<Item = f32> {
        aspects.iter().map(|aspect| self.value(*aspect) as f32)
    }

    fn value(&self, aspect: Aspect) -> f64 {
        if self.recent.is_empty() {
            return 0.0;
        }
        let path_rtt_us = self.path_rtt_us.unwrap_or(u32::MAX).max(1);
        let least_rtt_us = self.least_rtt_us.min(path_rtt_us);
        let above_least = |rtt_us: u32| {
            let ratio = f64::from(rtt_us) / f64::from(least_rtt_us);
            ratio.ln().max(0.0)
        };
        let recent = self.recent.iter();
        match aspect {
            Aspect::Floor => above_least(recent.map(|seen| seen.least_rtt_us).min().unwrap_or(0)),
            Aspect::Ceiling => {
                above_least(recent.map(|seen| seen.largest_rtt_us).max().unwrap_or(0))
            }
            Aspect::Depth => above_least(self.largest_rtt_us),
            Aspect::Drift => above_least(self.rtt_min_us),
            Aspect::Slowdown => {
                let mbps = self.recent_sum().throughput_mbps();
                match mbps > 0.0 && mbps < self.largest_mbps {
                    true => (self.largest_mbps / mbps).ln(),
                    false => 0.0,
                }
            }
            Aspect::Loss => self.recent_sum().loss(),
            Aspect::WithoutLoss => f64::from(self.without_loss).ln_1p(),
            Aspect::Response => self.response.slope(),
            Aspect::Swing => self.response.swing(),
            Aspect::ChangeResponse => self.changes.slope(),
            Aspect::ChangeSwing => self.changes.swing(),
        }
    }

    /// The rate of the recent windows, Mbit/s, had there been so many flows on the path in those in
    /// which there were fewer.
    fn recent_mbps_among(&self, flows: u32) -> f64 {
        let bytes = |seen: &Seen| {
            let share = f64::from(seen.flows.min(flows)) / f64::from(flows);
            seen.measured.acked_bytes as f64 * share
        };
        mbps(self.recent.iter().map(bytes).sum(), self.recent_sum().ns)
    }

    /// What was observed in the recent windows together.
    fn recent_sum(&self) -> Measured {
        let recent = self.recent.iter().map(|seen| seen.measured);
        recent.fold(Measured::default(), |sum, measured| sum + measured)
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use cc_ebpf::FEATURES;
    use proptest::prelude::*;

    use super::*;

    /// A window of 100 ms in which the RTT was between these, in ms, and so many segments of 1000
    /// bytes were acknowledged and lost.
    fn window(rtt_ms: [u32; 2], acked: u32, lost: u32) -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        for rtt_ms in rtt_ms {
            let mut features = [0; FEATURES];
            features[Feature::LatestRtt as usize] = rtt_ms * 1000;
            features[Feature::RttMin as usize] = 20_000;
            features[Feature::Acked as usize] = acked * 500;
            features[Feature::Lost as usize] = lost * 500;
            window.add(&features);
        }
        window.header.time_ns = 100_000_000;
        window
    }

    /// The situation of a flow without windows, of which so many will count as recent.
    fn of(windows: usize) -> Situation {
        forgetting(windows, 0)
    }

    /// The same, with the largest rate falling by a factor of e in `rate_memory` windows.
    fn forgetting(windows: usize, rate_memory: usize) -> Situation {
        Situation::new(&Interface {
            situation: windows,
            rate_memory,
            ..Interface::default()
        })
    }

    fn value(situation: &Situation, aspect: Aspect) -> f32 {
        let at = Aspect::ALL.iter().position(|other| *other == aspect);
        let mut values = situation.values(&Aspect::ALL);
        values.nth(at.expect("one of them")).expect("observed")
    }

    #[test]
    fn the_recent_windows_are_compared_with_all() {
        let mut situation = of(2);
        assert!(situation.values(&Aspect::ALL).all(|value| value == 0.0));
        situation.push(&window([10, 20], 30, 0), None);
        situation.push(&window([10, 80], 50, 10), None);
        situation.push(&window([40, 80], 20, 0), None);
        situation.push(&window([20, 40], 20, 0), None);
        assert_eq!(
            value(&situation, Aspect::Floor),
            2_f32.ln(),
            "20 ms of the last two, 10 of all"
        );
        assert_eq!(value(&situation, Aspect::Ceiling), 8_f32.ln());
        assert_eq!(value(&situation, Aspect::Depth), 8_f32.ln());
        assert_eq!(
            value(&situation, Aspect::Drift),
            2_f32.ln(),
            "the filter has forgotten the 10 ms"
        );
        assert_eq!(
            value(&situation, Aspect::Slowdown),
            2_f32.ln(),
            "40 segments in 200 ms, and once 80"
        );
        assert_eq!(value(&situation, Aspect::Loss), 0.0);
        assert_eq!(value(&situation, Aspect::WithoutLoss), 3_f32.ln());
        situation.push(&window([20, 40], 60, 20), None);
        assert_eq!(value(&situation, Aspect::Loss), 0.2, "20 of 100 segments");
        assert_eq!(value(&situation, Aspect::WithoutLoss), 0.0);
    }

    /// What is known of a path with so many flows.
    fn path(rtt_us: Option<u32>, flows: u32) -> Option<PathView> {
        Some(PathView { rtt_us, flows })
    }

    #[test]
    fn the_least_rtt_may_be_one_that_other_flows_had() {
        let mut situation = of(2);
        situation.push(&window([40, 80], 30, 0), path(Some(10_000), 2));
        assert_eq!(value(&situation, Aspect::Floor), 4_f32.ln());
        assert_eq!(value(&situation, Aspect::Depth), 8_f32.ln());
        assert_eq!(value(&situation, Aspect::Drift), 2_f32.ln());
        situation.push(&window([40, 80], 30, 0), path(Some(20_000), 2));
        assert_eq!(value(&situation, Aspect::Floor), 2_f32.ln(), "forgotten");
        for known in [Some(50_000), None] {
            situation.push(&window([40, 80], 30, 0), path(known, 2));
            assert_eq!(value(&situation, Aspect::Floor), 0.0, "its own is less");
        }
    }

    #[test]
    fn the_largest_rate_is_one_among_as_many_flows() {
        let mut situation = of(2);
        // Alone, then among two, then among four, always with its share.
        for (segments, flows) in [(80, 1), (80, 1), (40, 2), (40, 2), (20, 4), (20, 4)] {
            situation.push(&window([10, 20], segments, 0), path(None, flows));
        }
        assert_eq!(value(&situation, Aspect::Slowdown), 0.0);
        situation.push(&window([10, 20], 10, 0), path(None, 4));
        situation.push(&window([10, 20], 10, 0), path(None, 4));
        assert_eq!(value(&situation, Aspect::Slowdown), 2_f32.ln(), "half");
        situation.push(&window([10, 20], 10, 0), path(None, 1));
        let slowdown = value(&situation, Aspect::Slowdown);
        assert_eq!(slowdown, 2_f32.ln(), "that others end brings nothing back");
    }

    #[test]
    fn who_had_the_path_alone_forgets_it() {
        let slowdown_after = |windows: usize| {
            let mut situation = forgetting(1, 200);
            for segments in [800].into_iter().chain(vec![100; windows]) {
                situation.push(&window([10, 20], segments, 0), None);
            }
            value(&situation, Aspect::Slowdown)
        };
        for windows in [1, 20, 200, 400] {
            let expected = 8_f32.ln() - windows as f32 / 200.0;
            assert!((slowdown_after(windows) - expected).abs() < 1e-5);
        }
        assert_eq!(slowdown_after(420), 0.0, "200 ln 8 is 416");
    }

    #[test]
    fn nothing_is_observed_or_kept_without_windows() {
        let mut situation = of(0);
        situation.push(&window([10, 20], 30, 0), None);
        assert_eq!(situation, of(0));
    }

    proptest! {
        /// Against sums and extremes over all windows, kept in full.
        #[test]
        fn the_values_are_those_of_the_whole_past(
            windows in 1_usize..6,
            rate_memory in 0_usize..30,
            past in prop::collection::vec((1_u32..500, 0_u32..500, 0_u32..50, 0_u32..3), 1..20),
            path_ms in prop::option::of(1_u32..500),
            flows in prop::collection::vec(1_u32..9, 20),
        ) {
            let past: Vec<_> = past
                .into_iter()
                .map(|(least, more, acked, lost)| ([least, least + more], acked, lost))
                .collect();
            let mut situation = forgetting(windows, rate_memory);
            for ((rtt, acked, lost), flows) in past.iter().zip(&flows) {
                let path = path(path_ms.map(|ms| ms * 1000), *flows);
                situation.push(&window(*rtt, *acked, *lost), path);
            }
            let ratio = |a: u32, b: u32| (f64::from(a) / f64::from(b)).ln() as f32;
            let recent = &past[past.len().saturating_sub(windows)..];
            let known = past.iter().map(|(rtt, ..)| rtt[0]).chain(path_ms);
            let least = known.min().expect("one");
            let most = past.iter().map(|(rtt, ..)| rtt[1]).max().expect("one");
            let floor = recent.iter().map(|(rtt, ..)| rtt[0]).min().expect("one");
            let ceiling = recent.iter().map(|(rtt, ..)| rtt[1]).max().expect("one");
            prop_assert!((value(&situation, Aspect::Floor) - ratio(floor, least)).abs() < 1e-6);
            prop_assert!((value(&situation, Aspect::Ceiling) - ratio(ceiling, least)).abs() < 1e-6);
            prop_assert!((value(&situation, Aspect::Depth) - ratio(most, least)).abs() < 1e-6);
            let lost: u32 = recent.iter().map(|(.., lost)| lost).sum();
            let acked: u32 = recent.iter().map(|(_, acked, _)| acked).sum();
            let part = f64::from(lost) / f64::from((lost + acked).max(1));
            prop_assert!((f64::from(value(&situation, Aspect::Loss)) - part).abs() < 1e-6);
            // What is left of each rate, with the newest one first.
            let flows = &flows[..past.len()];
            let all: Vec<_> = past.iter().zip(flows).collect();
            let left = all.windows(windows).rev().enumerate().map(|(age, windows)| {
                let newest = past.len() - 1 - age;
                let among = |n: u32| f64::from(n.min(flows[newest])) / f64::from(flows[newest]);
                let acked = windows.iter().map(|((_, acked, _), n)| f64::from(*acked) * among(**n));
                let acked: f64 = acked.sum();
                let kept = |n: &[u32]| f64::from(n[0].min(n[1])) / f64::from(n[1]);
                let left: f64 = flows[newest..].windows(2).map(kept).product();
                let lifetimes = match rate_memory {
                    0 => 0.0,
                    _ => age as f64 / rate_memory as f64,
                };
                acked * left * (-lifetimes).exp()
            });
            let largest = left.fold(0.0, f64::max);
            let slowdown = value(&situation, Aspect::Slowdown);
            match (acked, past.len() >= windows) {
                (1.., true) => {
                    let expected = (largest / f64::from(acked)).ln().max(0.0) as f32;
                    prop_assert!((slowdown - expected).abs() < 1e-6);
                }
                _ => prop_assert_eq!(slowdown, 0.0),
            }
            let mut values = situation.values(&Aspect::ALL);
            prop_assert!(values.all(|value| value.is_finite() && value >= 0.0));
        }
    }
}
