//! What a flow is to achieve, in quantities that its host observes: the one figure by which
//! recordings, retraining, off-policy estimates and canaries judge a policy.
//!
//! # Reward and objective
//!
//! A policy file states both. The [reward](crate::reward) is an input of the network, which must
//! see at work what it saw in training. The [`Objective`] is what the policy was trained for. The
//! simulator knows a link's rate and its idle delay; the objective has what takes their place on a
//! host.
//!
//! # Formula
//!
//! The objective of a [`Measured`] span of a flow is
//!
//! ```text
//! a ln(t + ε)  −  b ln(1 + q / (p/2 + f))  −  c l  −  m k
//! ```
//!
//! | | quantity | from the windows' records |
//! |---|---|---|
//! | t | throughput, Mbit/s | bytes that ACKs acknowledged or SACKed, over the time |
//! | q | queueing delay, ms | mean over the ACKs of [`Feature::Delay`] |
//! | p | RTT without a queue, ms | smallest [`Feature::RttMin`] |
//! | l | loss, 0 to 1 | lost bytes over lost and acknowledged bytes |
//! | k | marks, 0 to 1 | bytes acknowledged with the ECN echo over acknowledged bytes |
//!
//! a, b, c and m are weights, ε ([`Objective::throughput_offset_mbps`]) makes the throughput of a
//! flow at rest a finite loss, and f ([`Objective::delay_floor_ms`]) keeps the noise of a host's
//! clock from counting as delay on links that are shorter than it. The whole quotient is the
//! queueing delay relative to the propagation one way, p/2, on a path whose data wait in one
//! queue.
//!
//! The figure has no unit. It is a *rate*, what a flow earns per unit of time: over several spans,
//! weigh each by its duration ([`Measured::ns`]).
//!
//! # Time without ACKs
//!
//! A window without an ACK has no record, so the time between two windows counts towards the later
//! one ([`Measured::following`]), unless the application had nothing to send. Throughput is what
//! was acknowledged over this time. It is not the mean of the kernel's delivery rates, which are
//! samples of single ACKs: an ACK that covers a bundle of segments has the rate at which the bundle
//! crossed its last hop.
//!
//! ```
//! use cc_core::objective::{Measured, Objective};
//!
//! let second = Measured { ns: 1_000_000_000, acked_bytes: 1_250_000, ..Measured::default() };
//! assert_eq!(second.throughput_mbps(), 10.0);
//! let lossy = Measured { lost_bytes: 12_500, ..second };
//! let objective = Objective::default();
//! assert!(objective.value(&second) > objective.value(&lossy));
//! ```

use std::fmt;

use cc_ebpf::{Feature, WindowRecord};
use serde::{Deserialize, Serialize};

/// The weights of what a flow is to achieve; the [module](self) has the formula.
///
/// `Default` has the weights that the embedded policy was trained with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// The weight a of the throughput's logarithm; positive.
    pub throughput: f64,
    /// The weight b of the logarithm of the relative delay; at least 0.
    pub delay: f64,
    /// The weight c of the lost fraction; at least 0.
    pub loss: f64,
    /// The weight m of the marked fraction; at least 0.
    pub marks: f64,
    /// ε, added to the throughput inside the logarithm, Mbit/s; positive.
    pub throughput_offset_mbps: f64,
    /// f, added to the propagation delay that the queueing delay is divided by, ms; positive.
    pub delay_floor_ms: f64,
}

impl Default for Objective {
    fn default() -> Self {
        Self {
            throughput: 5.0,
            delay: 1.0,
            loss: 20.0,
            marks: 0.0,
            throughput_offset_mbps: 0.01,
            delay_floor_ms: 1.0,
        }
    }
}

impl Objective {
    /// The objective of a span, without a unit; finite for every span.
    pub fn value(&self, measured: &Measured) -> f64 {
        self.throughput * (measured.throughput_mbps() + self.throughput_offset_mbps).ln()
            - self.delay * measured.relative_delay(self.delay_floor_ms).ln_1p()
            - self.loss * measured.loss()
            - self.marks * measured.marks()
    }

    /// The setting that is out of its range, with its value and its range; `None` when all are
    /// within theirs.
    pub(crate) fn wrong_setting(&self) -> Option<(&'static str, f64, &'static str)> {
        let weights = [
            ("objective.delay", self.delay),
            ("objective.loss", self.loss),
            ("objective.marks", self.marks),
        ];
        let positive = [
            ("objective.throughput", self.throughput),
            (
                "objective.throughput_offset_mbps",
                self.throughput_offset_mbps,
            ),
            ("objective.delay_floor_ms", self.delay_floor_ms),
        ];
        let negative = weights
            .into_iter()
            .filter(|&(_, weight)| !(0.0..=Self::MOST).contains(&weight))
            .map(|(field, weight)| (field, weight, "a weight of 0 to 1000000"));
        let too_small = positive
            .into_iter()
            .filter(|&(_, value)| !(Self::LEAST..=Self::MOST).contains(&value))
            .map(|(field, value)| (field, value, "0.000001 to 1000000"));
        negative.chain(too_small).next()
    }

    /// The smallest value of a setting that must be positive.
    const LEAST: f64 = 1e-6;
    /// The largest value of a setting.
    const MOST: f64 = 1e6;
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ln(throughput in Mbit/s + {}) - {} ln(1 + delay / (propagation + {} ms)) - {} loss \
             - {} marks",
            self.throughput,
            self.throughput_offset_mbps,
            self.delay,
            self.delay_floor_ms,
            self.loss,
            self.marks,
        )
    }
}

/// What a host observed of a flow, or of several flows together, over a span of time. Spans add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Length of the span, ns; of several flows, the sum of their spans.
    pub ns: u64,
    /// Number of ACKs that the delays were measured with.
    pub acks: u64,
    /// Payload that was acknowledged or SACKed, bytes.
    pub acked_bytes: u64,
    /// Payload that was marked lost, bytes.
    pub lost_bytes: u64,
    /// Payload that was acknowledged with the ECN echo, bytes.
    pub marked_bytes: u64,
    /// Number of retransmission timeouts that fired.
    pub timeouts: u64,
    /// Queueing delay summed over the ACKs, µs.
    pub delay_sum_us: u64,
    /// The smallest [`Feature::RttMin`], µs; 0 before the first ACK.
    pub rtt_min_us: u32,
}

impl Measured {
    /// A span without an ACK.
    pub fn silence(ns: u64) -> Self {
        Self {
            ns,
            ..Self::default()
        }
    }

    /// What a window observed, from its start to its end.
    pub fn of(window: &WindowRecord) -> Self {
        let ns = window.header.time_ns.saturating_sub(window.start_ns);
        if window.acks == 0 {
            return Self::silence(ns);
        }
        let statistics = &window.features;
        let sum = |feature: Feature| statistics.sum[feature as usize];
        let acked_bytes = sum(Feature::Acked);
        let marked = u64::from(window.marked).saturating_mul(window.mss.into());
        Self {
            ns,
            acks: window.acks.into(),
            acked_bytes,
            lost_bytes: sum(Feature::Lost),
            marked_bytes: marked.min(acked_bytes),
            timeouts: sum(Feature::PtoDelta),
            delay_sum_us: sum(Feature::Delay),
            rtt_min_us: statistics.min[Feature::RttMin as usize],
        }
    }

    /// What a window observed, with the time since the end of the flow's window `before` in which
    /// the flow waited for an ACK ([`waited_ns`]).
    pub fn following(before: Option<&WindowRecord>, window: &WindowRecord) -> Self {
        let waited = before.map_or(0, |before| waited_ns(before, window));
        Self::of(window) + Self::silence(waited)
    }

    /// Acknowledged payload over the span, Mbit/s; 0 for a span without a length.
    pub fn throughput_mbps(&self) -> f64 {
        mbps(self.acked_bytes as f64, self.ns)
    }

    /// Mean queueing delay over the ACKs, ms; 0 without an ACK.
    pub fn delay_ms(&self) -> f64 {
        self.delay_sum_us as f64 / self.acks.max(1) as f64 / 1e3
    }

    /// Mean queueing delay in units of the propagation delay one way, half of the smallest RTT,
    /// plus `floor_ms`, which must be positive.
    pub fn relative_delay(&self, floor_ms: f64) -> f64 {
        self.delay_ms() / (f64::from(self.rtt_min_us) / 2e3 + floor_ms)
    }

    /// Lost bytes over lost and acknowledged bytes, 0 to 1; 0 when there were neither.
    pub fn loss(&self) -> f64 {
        share(
            self.lost_bytes,
            self.acked_bytes.saturating_add(self.lost_bytes),
        )
    }

    /// Marked bytes over acknowledged bytes, 0 to 1; 0 when none were acknowledged.
    pub fn marks(&self) -> f64 {
        share(self.marked_bytes, self.acked_bytes)
    }

    /// Retransmission timeouts per minute of the span; 0 for a span without a length.
    pub fn timeouts_per_minute(&self) -> f64 {
        if self.ns == 0 {
            return 0.0;
        }
        self.timeouts as f64 * 60e9 / self.ns as f64
    }
}

/// The rate of so many bytes in so many ns, Mbit/s; 0 where no time has passed.
pub(crate) fn mbps(bytes: f64, ns: u64) -> f64 {
    match ns {
        0 => 0.0,
        // Bits per ns are Gbit/s.
        _ => bytes * 8e3 / ns as f64,
    }
}

impl std::ops::Add for Measured {
    type Output = Self;

    /// Both spans, one after the other.
    fn add(self, other: Self) -> Self {
        Self {
            ns: self.ns.saturating_add(other.ns),
            acks: self.acks.saturating_add(other.acks),
            acked_bytes: self.acked_bytes.saturating_add(other.acked_bytes),
            lost_bytes: self.lost_bytes.saturating_add(other.lost_bytes),
            marked_bytes: self.marked_bytes.saturating_add(other.marked_bytes),
            timeouts: self.timeouts.saturating_add(other.timeouts),
            delay_sum_us: self.delay_sum_us.saturating_add(other.delay_sum_us),
            rtt_min_us: match (self.acks, other.acks) {
                (_, 0) => self.rtt_min_us,
                (0, _) => other.rtt_min_us,
                _ => self.rtt_min_us.min(other.rtt_min_us),
            },
        }
    }
}

impl std::ops::AddAssign for Measured {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Time between two windows of a flow, one after the other, in which the flow waited for an ACK,
/// ns.
///
/// A flow whose application pauses does not wait: the segments that it sends next are marked as
/// limited by the application ([`WindowRecord::app_limited_acks`]), and no timeout fires
/// meanwhile. 0 also where a window in between is missing, since it had ACKs.
pub fn waited_ns(before: &WindowRecord, after: &WindowRecord) -> u64 {
    let timed_out = after.acks > 0 && after.features.sum[Feature::PtoDelta as usize] > 0;
    let paused = after.app_limited_acks > 0 && !timed_out;
    if paused || after.index != before.index.wrapping_add(1) {
        return 0;
    }
    after.start_ns.saturating_sub(before.header.time_ns)
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use cc_ebpf::{FEATURES, Features, Header};
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A window of 100 ms, `index`, from `start_ms`, with these ACKs: bytes acknowledged, and the
    /// kernel's delivery rate in kB/s.
    fn window(index: u32, start_ms: u64, acks: &[(u32, u32)]) -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        window.header = Header::of::<WindowRecord>(0, 1, (start_ms + 100) * MS);
        (window.index, window.start_ns, window.mss) = (index, start_ms * MS, 1_250);
        for &(acked, rate) in acks {
            let mut features = [0; FEATURES];
            features[Feature::RttMin as usize] = 20_000;
            features[Feature::Delay as usize] = 5_000;
            features[Feature::Acked as usize] = acked;
            features[Feature::Throughput as usize] = rate;
            window.add(&features);
        }
        window
    }

    #[test]
    fn the_terms_of_a_window() {
        let mut window = window(1, 0, &[(100_000, 9), (25_000, 9)]);
        window.features.sum[Feature::Lost as usize] = 31_250;
        window.features.sum[Feature::PtoDelta as usize] = 2;
        window.marked = 25;
        let measured = Measured::of(&window);
        assert_eq!(measured.throughput_mbps(), 10.0);
        assert_eq!(measured.delay_ms(), 5.0);
        // 5 ms of queue to 10 ms of propagation one way.
        assert_eq!(measured.relative_delay(0.0), 0.5);
        assert_eq!((measured.loss(), measured.marks()), (0.2, 0.25));
        assert_eq!(measured.timeouts_per_minute(), 1_200.0);
        let objective = Objective {
            marks: 4.0,
            ..Objective::default()
        };
        let expected = 5.0 * 10.01_f64.ln() - (16.0_f64 / 11.0).ln() - 20.0 * 0.2 - 4.0 * 0.25;
        assert!((objective.value(&measured) - expected).abs() < 1e-12);
    }

    /// The kernel's sample of a bundle is the rate of the bundle's last hop, here 40 Gbit/s.
    #[test]
    fn an_ack_for_a_bundle_does_not_inflate_the_throughput() {
        let singles = window(1, 0, &[(1_250, 1_250); 100]);
        let bundles = window(1, 0, &[(31_250, 5_000_000); 4]);
        let rate = |window: &WindowRecord| {
            window
                .features
                .mean(Feature::Throughput as usize, window.acks)
        };
        assert!(rate(&bundles) > 1_000.0 * rate(&singles));
        let [singles, bundles] = [singles, bundles].map(|window| Measured::of(&window));
        assert_eq!(singles.throughput_mbps(), 10.0);
        assert_eq!(bundles.throughput_mbps(), 10.0);
    }

    #[test]
    fn waiting_for_an_ack_counts_and_an_applications_pause_does_not() {
        let first = window(1, 0, &[(125_000, 0)]);
        let mut later = window(2, 1_000, &[(125_000, 0), (0, 0)]);
        assert_eq!(waited_ns(&first, &later), 900 * MS);
        let measured = Measured::following(Some(&first), &later);
        assert_eq!(measured.ns, 1_000 * MS);
        assert_eq!(measured.throughput_mbps(), 1.0);
        later.app_limited_acks = 1;
        assert_eq!(waited_ns(&first, &later), 0);
        assert_eq!(Measured::following(Some(&first), &later).ns, 100 * MS);
        // A timeout fires only while data are on their way.
        later.features.sum[Feature::PtoDelta as usize] = 1;
        assert_eq!(waited_ns(&first, &later), 900 * MS);
        assert_eq!(Measured::following(None, &later).ns, 100 * MS);
        later.index = 3;
        assert_eq!(waited_ns(&first, &later), 0, "window 2 had ACKs");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        type Change = fn(&mut Objective);
        let changes: [(&str, Change); 6] = [
            ("objective.throughput", |o| o.throughput = 0.0),
            ("objective.delay", |o| o.delay = -1.0),
            ("objective.loss", |o| o.loss = f64::NAN),
            ("objective.marks", |o| o.marks = f64::INFINITY),
            ("objective.throughput_offset_mbps", |o| {
                o.throughput_offset_mbps = 0.0;
            }),
            ("objective.delay_floor_ms", |o| o.delay_floor_ms = -0.5),
        ];
        for (expected, change) in changes {
            let mut objective = Objective::default();
            change(&mut objective);
            let (field, ..) = objective.wrong_setting().expect(expected);
            assert_eq!(field, expected);
        }
        assert_eq!(Objective::default().wrong_setting(), None);
    }

    fn features() -> impl Strategy<Value = Features> {
        proptest::array::uniform20(prop_oneof![Just(0), 0..100_000_u32, any::<u32>()])
    }

    prop_compose! {
        /// Any window that a datapath could send, also with times and counts that make no sense.
        fn any_window()(
            acks in prop::collection::vec(features(), 0..6),
            times in any::<[u64; 2]>(),
            counts in any::<[u32; 4]>(),
        ) -> WindowRecord {
            let mut window = WindowRecord::zeroed();
            acks.iter().for_each(|features| window.add(features));
            (window.header.time_ns, window.start_ns) = (times[0], times[1]);
            (window.index, window.mss) = (counts[0], counts[1]);
            (window.marked, window.app_limited_acks) = (counts[2], counts[3]);
            window
        }
    }

    prop_compose! {
        /// Any objective whose settings are within their ranges.
        fn any_objective()(
            weights in prop::array::uniform3(0.0..1e6_f64),
            positive in prop::array::uniform3(1e-6..1e6_f64),
        ) -> Objective {
            Objective {
                throughput: positive[0],
                delay: weights[0],
                loss: weights[1],
                marks: weights[2],
                throughput_offset_mbps: positive[1],
                delay_floor_ms: positive[2],
            }
        }
    }

    prop_compose! {
        fn any_measured()(
            ns in 1..100_000_000_000_u64,
            acks in 1..1_000_u64,
            bytes in prop::array::uniform3(0..1_000_000_000_u64),
            timeouts in 0..10_u64,
            delay_sum_us in 0..1_000_000_000_u64,
            rtt_min_us in 0..1_000_000_u32,
        ) -> Measured {
            let [acked_bytes, lost_bytes, marked] = bytes;
            let marked_bytes = marked.min(acked_bytes);
            Measured {
                ns, acks, acked_bytes, lost_bytes, marked_bytes, timeouts, delay_sum_us, rtt_min_us,
            }
        }
    }

    proptest! {
        #[test]
        fn the_value_of_every_window_is_finite(
            windows in prop::collection::vec(any_window(), 1..5),
            objective in any_objective(),
        ) {
            prop_assert_eq!(objective.wrong_setting(), None);
            let mut all = Measured::default();
            for (i, window) in windows.iter().enumerate() {
                let before = i.checked_sub(1).map(|i| &windows[i]);
                for measured in [Measured::of(window), Measured::following(before, window)] {
                    all += measured;
                    let value = objective.value(&measured);
                    prop_assert!(value.is_finite(), "{} of {:?}", value, measured);
                    prop_assert!((0.0..=1.0).contains(&measured.loss()));
                    prop_assert!((0.0..=1.0).contains(&measured.marks()));
                }
            }
            prop_assert!(objective.value(&all).is_finite());
        }

        /// More throughput is better; more delay, loss or marks, and a longer wait for the same
        /// bytes are not.
        #[test]
        fn the_value_is_monotone_in_each_term(
            measured in any_measured(),
            objective in any_objective(),
            more in 1..1_000_000_u64,
        ) {
            let base = objective.value(&measured);
            // The logarithm is within a unit of its last place.
            let rounding = 1e-9 * (1.0 + base.abs());
            let better = Measured { acked_bytes: measured.acked_bytes + more, ..measured };
            prop_assert!(objective.value(&better) >= base - rounding, "{:?}", better);
            let marked_bytes = (measured.marked_bytes + more).min(measured.acked_bytes);
            let worse = [
                Measured { delay_sum_us: measured.delay_sum_us + more, ..measured },
                Measured { lost_bytes: measured.lost_bytes + more, ..measured },
                Measured { marked_bytes, ..measured },
                Measured { ns: measured.ns + more, ..measured },
                measured + Measured::silence(more),
            ];
            for worse in worse {
                prop_assert!(objective.value(&worse) <= base + rounding, "{:?}", worse);
            }
        }

        /// Windows one after the other are the same as one long window.
        #[test]
        fn spans_add_up(parts in prop::collection::vec(any_measured(), 1..6)) {
            let sum = parts.iter().fold(Measured::default(), |sum, &part| sum + part);
            let total = |of: fn(&Measured) -> u64| parts.iter().map(of).sum::<u64>();
            prop_assert_eq!(sum.ns, total(|part| part.ns));
            prop_assert_eq!(sum.acked_bytes, total(|part| part.acked_bytes));
            prop_assert_eq!(sum.delay_sum_us, total(|part| part.delay_sum_us));
            let least = parts.iter().map(|part| part.rtt_min_us).min();
            prop_assert_eq!(Some(sum.rtt_min_us), least);
            let bits = total(|part| part.acked_bytes) as f64 * 8e3;
            let mbps = bits / total(|part| part.ns) as f64;
            prop_assert!((sum.throughput_mbps() - mbps).abs() <= 1e-9 * mbps);
        }
    }
}
