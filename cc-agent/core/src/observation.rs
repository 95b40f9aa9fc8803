//! The observation: the input that a policy gets for a window of a flow.
//!
//! `[sum×20 | mean×20 | std×20 | min×20 | max×20 | past decisions, oldest first]`, as in the
//! mvfst-rl paper (arXiv 1910.04054, section 3). The sums of the nine state features are 0. A past
//! decision is its action, one-hot, and the cwnd in bytes that it led to.
//!
//! That is version 1 of the features. In version 2 the [fractions](cc_ebpf::Fraction) of the window
//! come between the statistics and the past decisions:
//!
//! `[… | max×20 | marked | app_limited | past decisions, oldest first]`
//!
//! Where the interface asks for them, the [`Aspect`](crate::interface::Aspect)s of the flow's
//! situation come before the past decisions, and the time series of the last windows after them,
//! one [`Quantity`](crate::interface::Quantity) after the other, each with its newest value last.
//! With a response, `response | swing` follow `without loss`, and with changes
//! `change response | change swing` follow these:
//!
//! `[… | floor | ceiling | depth | drift | slowdown | loss | without loss | past decisions | …]`
//!
//! `[… | past decisions | throughput | RTT | delay | cwnd | in flight | lost | marked]`

mod changes;
mod regression;
mod response;
mod situation;

use std::collections::VecDeque;

use cc_ebpf::{FEATURES, Feature, Unit, WindowRecord};

use self::situation::Situation;
use crate::{
    interface::{Interface, Quantity, Scales},
    paths::PathView,
};

/// The last k decisions on a flow, k being [`Interface::history`].
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    decisions: VecDeque<(usize, f32)>,
    length: usize,
}

impl History {
    /// Creates the history of a flow without decisions: k times the no-op with the initial cwnd in
    /// bytes.
    pub fn new(interface: &Interface, initial_cwnd_bytes: u64) -> Self {
        let length = interface.history;
        let scaled = initial_cwnd_bytes as f32 / interface.scales.bytes;
        Self {
            decisions: vec![(0, scaled); length].into(),
            length,
        }
    }

    /// Adds a decision, which replaces the oldest one: the action's index and the cwnd in bytes
    /// that it led to.
    pub fn push(&mut self, interface: &Interface, action: usize, cwnd_bytes: u64) {
        if self.length == 0 {
            return;
        }
        self.decisions.pop_front();
        let scaled = cwnd_bytes as f32 / interface.scales.bytes;
        self.decisions.push_back((action, scaled));
    }
}

/// What an observation has of a flow's windows besides the newest one's statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    situation: Situation,
    series: Series,
}

impl Windows {
    /// Creates the memory of a flow without windows.
    pub fn new(interface: &Interface) -> Self {
        Self {
            situation: Situation::new(interface),
            series: Series::new(interface),
        }
    }

    /// Adds a window. Every window of a flow is added when it ends, whether or not the policy is
    /// asked about it. `path` is what was known of the flow's path at its end; it is used where the
    /// interface [shares](Interface::shared_path) it.
    pub fn push(&mut self, interface: &Interface, window: &WindowRecord, path: Option<PathView>) {
        self.situation
            .push(window, path.filter(|_| interface.shared_path));
        self.series.push(interface, window);
    }
}

/// The quantities of a flow's last windows, [`Interface::series`] of them, the newest last.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    /// `[quantities, windows]`, row-major: a series is a row.
    values: Vec<f32>,
    windows: usize,
}

impl Series {
    /// The series of a flow without windows: zeros.
    fn new(interface: &Interface) -> Self {
        Self {
            values: vec![0.0; Quantity::ALL.len() * interface.series],
            windows: interface.series,
        }
    }

    /// Adds a window, which replaces the oldest one.
    fn push(&mut self, interface: &Interface, window: &WindowRecord) {
        if self.windows == 0 {
            return;
        }
        let series = self.values.chunks_exact_mut(self.windows);
        for (quantity, series) in Quantity::ALL.into_iter().zip(series) {
            series.rotate_left(1);
            series[self.windows - 1] = match quantity {
                Quantity::Mean(feature) => {
                    let mean = window.features.mean(feature as usize, window.acks);
                    (mean / scale(feature, &interface.scales)) as f32
                }
                Quantity::Fraction(fraction) => fraction.of(window) as f32,
            };
        }
    }
}

/// Computes the observation of a window: [`Interface::observation_len`] values, scaled by
/// [`Interface::scales`]. The window itself is the newest one of `windows`.
pub fn observe(
    interface: &Interface,
    window: &WindowRecord,
    history: &History,
    windows: &Windows,
) -> Vec<f32> {
    let mut observation = Vec::with_capacity(interface.observation_len());
    let statistics = &window.features;
    let scales = Feature::ALL.map(|feature| scale(feature, &interface.scales));
    let scaled =
        |values: [f64; FEATURES]| (0..FEATURES).map(move |i| (values[i] / scales[i]) as f32);
    let per_feature = |value: &dyn Fn(usize) -> f64| std::array::from_fn(value);

    observation.extend(scaled(per_feature(&|i| {
        if Feature::ALL[i].is_state() {
            0.0
        } else {
            statistics.sum[i] as f64
        }
    })));
    observation.extend(scaled(per_feature(&|i| statistics.mean(i, window.acks))));
    observation.extend(scaled(per_feature(&|i| {
        statistics.variance(i, window.acks).sqrt()
    })));
    observation.extend(scaled(per_feature(&|i| f64::from(statistics.min[i]))));
    observation.extend(scaled(per_feature(&|i| f64::from(statistics.max[i]))));
    let fractions = interface.fractions().iter();
    observation.extend(fractions.map(|fraction| fraction.of(window) as f32));
    observation.extend(windows.situation.values(interface.aspects()));

    for &(action, cwnd) in &history.decisions {
        let actions = interface.actions.len();
        observation.extend((0..actions).map(|other| f32::from(u8::from(other == action))));
        observation.push(cwnd);
    }
    observation.extend_from_slice(&windows.series.values);
    debug_assert_eq!(observation.len(), interface.observation_len());
    observation
}

/// The divisor of a feature's integer value.
fn scale(feature: Feature, scales: &Scales) -> f64 {
    match feature.unit() {
        Unit::Micros => 1000.0 * f64::from(scales.time_ms),
        Unit::Bytes => f64::from(scales.bytes),
        // The scale is of bytes a second, the feature counts thousands of them.
        Unit::KilobytesPerSecond => f64::from(scales.bytes) / 1000.0,
        Unit::Count => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    fn window() -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        for (delay, acked) in [(10_000, 1_448), (30_000, 2_896)] {
            let mut features = [0; FEATURES];
            features[Feature::Delay as usize] = delay;
            features[Feature::Acked as usize] = acked;
            features[Feature::Throughput as usize] = 500;
            window.add(&features);
        }
        window
    }

    #[test]
    fn the_papers_layout_and_scales() {
        let interface = Interface::default();
        let mut history = History::new(&interface, 12_520);
        history.push(&interface, 4, 25_040);
        let observation = observe(&interface, &window(), &history, &Windows::new(&interface));
        assert_eq!(observation.len(), 220);
        let (delay, acked) = (Feature::Delay as usize, Feature::Acked as usize);
        assert_eq!(observation[delay], 0.0, "the sum of a state is 0");
        assert_eq!(observation[acked], 4.344);
        assert_eq!(observation[20 + delay], 0.2, "20 ms of 100");
        assert_eq!(observation[40 + delay], 0.141_421_36, "sample deviation");
        assert_eq!(observation[60 + delay], 0.1);
        assert_eq!(observation[80 + delay], 0.3);
        let throughput = Feature::Throughput as usize;
        assert_eq!(observation[20 + throughput], 500.0, "kB/s");
        assert_eq!(observation[100..106], [1.0, 0.0, 0.0, 0.0, 0.0, 12.52]);
        assert_eq!(observation[214..220], [0.0, 0.0, 0.0, 0.0, 1.0, 25.04]);
    }

    #[test]
    fn version_2_has_the_fractions_after_the_statistics_and_is_otherwise_version_1() {
        let first = Interface::default();
        let second = Interface {
            features_version: 2,
            ..first.clone()
        };
        let mut window = window();
        window.mss = 1_448;
        // One of three segments, and one of two ACKs.
        window.marked = 1;
        window.app_limited_acks = 1;
        let history = |interface| {
            let mut history = History::new(interface, 12_520);
            history.push(interface, 4, 25_040);
            history
        };
        let former = observe(&first, &window, &history(&first), &Windows::new(&first));
        let found = observe(&second, &window, &history(&second), &Windows::new(&second));
        assert_eq!(found.len(), 222);
        assert_eq!(found[..100], former[..100]);
        assert_eq!(found[100..102], [1.0 / 3.0, 0.5]);
        assert_eq!(found[102..], former[100..]);
        assert_eq!(found[second.past_action(1) + 4], 1.0, "the newest action");
    }

    #[test]
    fn no_history_is_a_shorter_observation() {
        let interface = Interface {
            history: 0,
            ..Interface::default()
        };
        let mut history = History::new(&interface, 12_520);
        history.push(&interface, 4, 25_040);
        let observation = observe(&interface, &window(), &history, &Windows::new(&interface));
        assert_eq!(observation.len(), 100);
    }

    #[test]
    fn series_have_the_last_windows_with_the_newest_last_after_the_same_observation() {
        let without = Interface::default();
        let interface = Interface {
            series: 3,
            ..without.clone()
        };
        let window = |throughput: u32, delay: u32, marked: u32| {
            let mut window = WindowRecord::zeroed();
            window.mss = 1_000;
            for more in [0, 2_000] {
                let mut features = [0; FEATURES];
                features[Feature::Delay as usize] = delay + more;
                features[Feature::Acked as usize] = 1_000;
                features[Feature::Throughput as usize] = throughput;
                window.add(&features);
            }
            window.marked = marked;
            window
        };
        let history = History::new(&interface, 12_520);
        let mut memory = Windows::new(&interface);
        let windows = [
            window(100, 9_000, 0),
            window(200, 19_000, 1),
            window(300, 29_000, 0),
            window(400, 39_000, 2),
        ];
        let observed = |window: &WindowRecord| {
            memory.push(&interface, window, None);
            observe(&interface, window, &history, &memory)
        };
        let found = windows.each_ref().map(observed);
        for (window, found) in windows.iter().zip(&found) {
            let plain = observe(&without, window, &history, &Windows::new(&without));
            assert_eq!(found[..interface.series_offset()], plain);
        }
        let row = |found: &[f32], quantity: Quantity| -> Vec<f32> {
            let at = Quantity::ALL.iter().position(|other| *other == quantity);
            let start = interface.series_offset() + 3 * at.expect("one of them");
            found[start..start + 3].to_vec()
        };
        let throughput = Quantity::Mean(Feature::Throughput);
        let marked = Quantity::Fraction(cc_ebpf::Fraction::Marked);
        assert_eq!(row(&found[0], throughput), [0.0, 0.0, 100.0]);
        assert_eq!(row(&found[1], throughput), [0.0, 100.0, 200.0]);
        assert_eq!(row(&found[3], throughput), [200.0, 300.0, 400.0]);
        assert_eq!(
            row(&found[3], Quantity::Mean(Feature::Delay)),
            [0.2, 0.3, 0.4]
        );
        // Of two segments.
        assert_eq!(row(&found[3], marked), [0.5, 0.0, 1.0]);
        // The newest of a series is the statistic of the window.
        let mean = 20 + Feature::Throughput as usize;
        assert_eq!(found[3][mean], row(&found[3], throughput)[2]);
    }
}
