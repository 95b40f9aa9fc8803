//! What rows tell of a control on a path: the figures that a twin has to reproduce.
//!
//! They are computed of windows alone, by the same function for recorded and for simulated flows,
//! so that the two are compared like with like.

use cc_core::objective::Measured;
use cc_ebpf::{Feature, WindowRecord};
use serde::Serialize;

/// The quantile of the RTT that is compared.
const HIGH: f64 = 0.95;

/// One window of a flow, as far as calibration looks at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the flow's previous window, or since the window's start for the first one, ns.
    pub ns: u64,
    /// Payload that was acknowledged or SACKed, bytes.
    pub acked: u64,
    /// Payload that was marked lost, bytes.
    pub lost: u64,
    /// Mean and standard deviation of the RTT over the window's ACKs, ms.
    pub rtt_ms: [f64; 2],
    /// Smallest and largest RTT in the window, ms.
    pub rtt_range_ms: [f64; 2],
    /// Whether the application limited the flow, rather than the network.
    pub app_limited: bool,
}

impl Sample {
    /// What a window measured; `before` is the flow's window before it.
    pub fn of(before: Option<&WindowRecord>, window: &WindowRecord) -> Self {
        let measured = Measured::following(before, window);
        let rtt = Feature::LatestRtt as usize;
        let statistics = &window.features;
        let ms = |us: f64| us / 1e3;
        Self {
            ns: measured.ns,
            acked: measured.acked_bytes,
            lost: measured.lost_bytes,
            rtt_ms: [
                ms(statistics.mean(rtt, window.acks)),
                ms(statistics.variance(rtt, window.acks).sqrt()),
            ],
            rtt_range_ms: [statistics.min[rtt], statistics.max[rtt]].map(|us| ms(us.into())),
            app_limited: window.is_application_limited(),
        }
    }
}

/// Figures of one control's flows on a path, over all of their windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Time that the flows took, s.
    pub seconds: f64,
    /// Acknowledged payload over that time, Mbit/s.
    pub throughput_mbps: f64,
    /// 95th percentile of the RTT over the acknowledged bytes, ms. The RTTs of a window count as
    /// uniformly distributed with the mean and the standard deviation of its ACKs, within their
    /// smallest and largest.
    pub p95_rtt_ms: f64,
    /// Lost bytes over lost and acknowledged bytes, 0 to 1.
    pub loss: f64,
    /// Median of the RTT, as the percentile is computed, ms.
    pub median_rtt_ms: f64,
    /// Smallest RTT in all windows, ms.
    pub least_rtt_ms: f64,
    /// Standard deviation of the RTT within windows, ms: the root of the mean variance.
    pub spread_ms: f64,
    /// Standard deviation of the throughput of whole seconds over its mean.
    pub variation: f64,
    /// 95th percentile of the throughput of whole seconds, Mbit/s.
    pub high_mbps: f64,
}

impl Statistics {
    /// Figures of flows, each of which has its windows in order; `None` when nothing was
    /// acknowledged.
    pub fn of(flows: &[&[Sample]]) -> Option<Self> {
        let samples = || flows.iter().copied().flatten();
        let acked: u64 = samples().map(|sample| sample.acked).sum();
        let lost: u64 = samples().map(|sample| sample.lost).sum();
        let ns: u64 = samples().map(|sample| sample.ns).sum();
        if acked == 0 || ns == 0 {
            return None;
        }
        let weighted = |value: &dyn Fn(&Sample) -> f64| {
            let sum: f64 = samples().map(|s| s.acked as f64 * value(s)).sum();
            sum / acked as f64
        };
        let least = samples().filter(|sample| sample.acked > 0);
        let rates = flows.iter().copied().flat_map(seconds).collect();
        let (variation, high_mbps) = spread(rates);
        Some(Self {
            seconds: ns as f64 / 1e9,
            throughput_mbps: acked as f64 * 8e3 / ns as f64,
            p95_rtt_ms: quantile(samples(), HIGH),
            loss: lost as f64 / (acked + lost) as f64,
            median_rtt_ms: quantile(samples(), 0.5),
            least_rtt_ms: least.map(|s| s.rtt_range_ms[0]).fold(f64::MAX, f64::min),
            spread_ms: weighted(&|sample| sample.rtt_ms[1].powi(2)).sqrt(),
            variation,
            high_mbps,
        })
    }
}

/// The quantile of the RTT over acknowledged bytes, ms, to a microsecond.
fn quantile<'a>(samples: impl Iterator<Item = &'a Sample> + Clone, quantile: f64) -> f64 {
    let acked = samples.clone().filter(|sample| sample.acked > 0);
    let total: f64 = acked.clone().map(|sample| sample.acked as f64).sum();
    let (mut low, mut high) = acked.clone().fold((f64::MAX, 0.0), |(low, high), sample| {
        let [least, most] = sample.rtt_range_ms;
        (f64::min(low, least), f64::max(high, most))
    });
    while high - low > 1e-3 {
        let middle = f64::midpoint(low, high);
        let below: f64 = (acked.clone())
            .map(|sample| sample.acked as f64 * share_below(sample, middle))
            .sum();
        match below >= quantile * total {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// The share of a window's RTTs that is at most `ms`.
fn share_below(sample: &Sample, ms: f64) -> f64 {
    let [mean, deviation] = sample.rtt_ms;
    let [least, most] = sample.rtt_range_ms;
    if ms >= most {
        return 1.0;
    }
    if ms < least {
        return 0.0;
    }
    // A uniform distribution with this deviation has this half width.
    let half = (deviation * 3f64.sqrt()).max(1e-9);
    ((ms - (mean - half)) / (2.0 * half)).clamp(0.0, 1.0)
}

/// Throughput of a flow in each of its seconds, Mbit/s. The last one is left out if it is shorter.
pub(super) fn seconds(flow: &[Sample]) -> Vec<f64> {
    let mut rates = Vec::new();
    let (mut ns, mut acked) = (0, 0);
    for sample in flow {
        ns += sample.ns;
        acked += sample.acked;
        if ns >= 1_000_000_000 {
            rates.push(acked as f64 * 8e3 / ns as f64);
            (ns, acked) = (0, 0);
        }
    }
    rates
}

/// The standard deviation of rates over their mean, and their 95th percentile.
fn spread(mut rates: Vec<f64>) -> (f64, f64) {
    if rates.is_empty() {
        return (0.0, 0.0);
    }
    let n = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n;
    rates.sort_by(f64::total_cmp);
    let high = rates[((n - 1.0) * HIGH).round() as usize];
    (variance.sqrt() / mean.max(1e-9), high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(acked: u64, mean: f64, deviation: f64) -> Sample {
        let half = deviation * 3f64.sqrt();
        Sample {
            ns: 100_000_000,
            acked,
            lost: 0,
            rtt_ms: [mean, deviation],
            rtt_range_ms: [mean - half, mean + half],
            app_limited: false,
        }
    }

    #[test]
    fn figures_of_a_flow_that_can_be_computed_by_hand() {
        // Half a second at 8 Mbit/s, then a second and a half at 4, with RTTs of 20 to 40 ms.
        let mut flow = vec![sample(100_000, 30.0, 10.0 / 3f64.sqrt()); 5];
        flow.extend([sample(50_000, 30.0, 10.0 / 3f64.sqrt()); 15]);
        flow[0].lost = 12_500;
        let found = Statistics::of(&[&flow]).expect("bytes were acknowledged");
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-3);
        near(found.seconds, 2.0);
        near(found.throughput_mbps, 5.0);
        near(found.loss, 12.5 / 1262.5);
        near(found.p95_rtt_ms, 39.0);
        near(found.median_rtt_ms, 30.0);
        near(found.least_rtt_ms, 20.0);
        near(found.spread_ms, 10.0 / 3f64.sqrt());
        // A second of 6 Mbit/s and one of 4.
        near(found.variation, 0.2);
        near(found.high_mbps, 6.0);
        assert_eq!(Statistics::of(&[&[]]), None);
    }

    proptest! {
        /// The quantile of windows whose ACKs all have one RTT is that of the sorted bytes.
        #[test]
        fn a_quantile_is_that_of_the_bytes(
            windows in proptest::collection::vec((1..1000u64, 1.0..500.0f64), 1..50),
            at in 0.05..0.99f64,
        ) {
            let samples: Vec<_> = windows.iter().map(|&(n, ms)| sample(n, ms, 0.0)).collect();
            let mut bytes: Vec<f64> = windows
                .iter()
                .flat_map(|&(n, ms)| std::iter::repeat_n(ms, n as usize))
                .collect();
            bytes.sort_by(f64::total_cmp);
            let place = (at * bytes.len() as f64).ceil() as usize;
            let expected = bytes[place.clamp(1, bytes.len()) - 1];
            let found = quantile(samples.iter(), at);
            prop_assert!((found - expected).abs() < 2e-3, "{found}, not {expected}");
        }
    }
}
