//! What a recording suggests of its path without a simulation: where the search begins, and the box
//! that it is confined to.

use super::recorded::RecordedControl;
use super::statistics::{Sample, Statistics, seconds};
use super::twin::{Feature, Steps, TokenBucket, Twin, Wandering};

/// Bytes of IP in a full segment over those of payload.
const WIRE: f64 = 1500.0 / 1448.0;

/// What a path's recording suggests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Estimates {
    /// Highest rate that lasted for seconds, Mbit/s of IP packets.
    rate_mbps: f64,
    /// Smallest RTT over all controls of the path, ms.
    rtt_ms: f64,
    /// Whether some control kept packets waiting, so that the rate is the link's.
    saturated: bool,
    /// What RTTs grow by when the buffer is full, ms, as far as a control filled it.
    queue_ms: f64,
    /// Smallest and largest loss of a control, 0 to 1.
    loss: [f64; 2],
    /// Deviation of RTTs within windows, ms: that of the control where it is least.
    spread_ms: f64,
    /// Deviation of the throughput of seconds over its mean, of the control where it is least.
    variation: f64,
    /// The two levels between which the throughput alternates, if it does.
    steps: Steps,
}

impl Estimates {
    /// What the controls of one path suggest. There is at least one.
    pub(super) fn of(controls: &[&RecordedControl]) -> Self {
        let of = |value: fn(&Statistics) -> f64| controls.iter().map(move |c| value(&c.statistics));
        let least = |value| of(value).fold(f64::MAX, f64::min);
        let most = |value| of(value).fold(0.0, f64::max);
        let rtt_ms = least(|s| s.least_rtt_ms);
        let spread_ms = least(|s| s.spread_ms);
        let samples = || controls.iter().flat_map(|c| c.flows.iter().flatten());
        let queue_ms = high_delay(samples(), rtt_ms);
        let waiting = most(|s| s.median_rtt_ms) - rtt_ms;
        let steadiest = (controls.iter()).max_by(|a, b| {
            a.statistics
                .throughput_mbps
                .total_cmp(&b.statistics.throughput_mbps)
        });
        let series = steadiest.and_then(|c| c.flows.iter().map(|flow| seconds(flow)).next());
        Self {
            rate_mbps: most(|s| s.high_mbps.max(s.throughput_mbps)) * WIRE,
            rtt_ms,
            saturated: waiting > (3.0 * spread_ms).max(1.0).max(0.03 * rtt_ms),
            queue_ms: queue_ms.max(0.5),
            loss: [least(|s| s.loss), most(|s| s.loss)],
            spread_ms: spread_ms.max(0.05),
            variation: least(|s| s.variation),
            steps: levels(&series.unwrap_or_default()),
        }
    }

    /// The twin at which a search with these features begins.
    pub(super) fn start(&self, features: &[Feature]) -> Twin {
        let packet_ms = 12.0 / self.rate_mbps;
        let rtt_ms = (self.rtt_ms - packet_ms).max(0.5 * self.rtt_ms);
        let mut twin = Twin::plain(self.rate_mbps, rtt_ms, self.queue_ms);
        for feature in features {
            match feature {
                Feature::Loss => twin.loss = Some(self.loss[0].max(1e-5)),
                // The deviation of a uniform distribution over the period.
                Feature::Aggregation => twin.aggregation_ms = Some(self.spread_ms * 12f64.sqrt()),
                Feature::Jitter => twin.jitter_ms = Some(self.spread_ms),
                Feature::Steps => twin.steps = Some(self.steps),
                Feature::Policer => {
                    twin.policer = Some(TokenBucket {
                        rate_mbps: self.rate_mbps,
                        burst_kb: 30.0,
                    });
                    twin.rate_mbps *= 3.0;
                }
                Feature::Cellular => {
                    twin.cellular = Some(Wandering {
                        variation: self.variation.clamp(0.05, 1.2),
                        correlation_s: 2.0,
                    });
                }
            }
        }
        if features.contains(&Feature::Steps) {
            // The rate is that of the first level, the estimate that of the higher one.
            twin.rate_mbps /= self.steps.ratio.max(1.0);
            twin.queue_ms *= self.steps.ratio.min(1.0);
        }
        twin
    }

    pub(super) fn rate_range(&self, features: &[Feature]) -> [f64; 2] {
        let (low, high) = if features.contains(&Feature::Policer) {
            (1.02, 12.0)
        } else if features.contains(&Feature::Steps) {
            (0.12, 1.5)
        } else if features.contains(&Feature::Cellular) {
            (0.4, 1.6)
        } else if self.saturated {
            (0.85, 1.3)
        } else {
            (0.85, 4.0)
        };
        [low * self.rate_mbps, high * self.rate_mbps]
    }

    pub(super) fn rtt_range(&self, features: &[Feature]) -> [f64; 2] {
        let packet_ms = 12.0 / self.rate_mbps;
        let varies =
            features.contains(&Feature::Jitter) || features.contains(&Feature::Aggregation);
        let spread_ms = if varies { self.spread_ms } else { 0.0 };
        let low = self.rtt_ms - 2.5 * packet_ms - 3.0 * spread_ms - 0.5;
        [low.max(0.4 * self.rtt_ms), 1.01 * self.rtt_ms]
    }

    pub(super) fn queue_range(&self) -> [f64; 2] {
        // A packet's time at the least.
        let packet_ms = 12.0 / self.rate_mbps;
        [
            (0.2 * self.queue_ms).max(packet_ms),
            (4.0 * self.queue_ms).max(4.0 * packet_ms),
        ]
    }

    pub(super) fn loss_range(&self) -> [f64; 2] {
        [1e-5, (2.0 * self.loss[1]).clamp(1e-3, 0.5)]
    }

    /// A range of delays about the deviation of the RTT, ms.
    pub(super) fn spread_range(&self, low: f64, high: f64) -> [f64; 2] {
        [
            low * self.spread_ms.min(1.0),
            (high * self.spread_ms).max(1.0),
        ]
    }

    pub(super) fn period_range(&self) -> [f64; 2] {
        let period_s = self.steps.period_s;
        [0.6 * period_s, 1.6 * period_s]
    }

    pub(super) fn policer_range(&self) -> [f64; 2] {
        [0.7 * self.rate_mbps, 1.2 * self.rate_mbps]
    }

    /// Those of some path, for tests.
    #[cfg(test)]
    pub(super) fn example() -> Self {
        Self {
            rate_mbps: 10.0,
            rtt_ms: 40.0,
            saturated: true,
            queue_ms: 30.0,
            loss: [1e-4, 1e-3],
            spread_ms: 2.0,
            variation: 0.2,
            steps: Steps {
                ratio: 0.5,
                period_s: 8.0,
            },
        }
    }
}

/// What the RTT exceeds its minimum by in the fullest of a hundred windows, ms.
fn high_delay<'a>(samples: impl Iterator<Item = &'a Sample>, least_ms: f64) -> f64 {
    let mut delays: Vec<f64> = samples
        .filter(|sample| sample.acked > 0)
        .map(|sample| sample.rtt_range_ms[1] - least_ms)
        .collect();
    delays.sort_by(f64::total_cmp);
    let last = delays.len().saturating_sub(1);
    delays.get(last * 99 / 100).copied().unwrap_or_default()
}

/// The levels between which the throughput of a flow's seconds alternates: the second over the
/// first, and the time of a turn. A throughput that does not alternate has levels nearly alike.
fn levels(series: &[f64]) -> Steps {
    /// The time of a turn where there is none, s.
    const UNKNOWN: f64 = 8.0;
    /// Seconds at the beginning in which flows are still gaining their rate.
    const BEGINNING: usize = 2;
    let later = series.get(BEGINNING..).unwrap_or_default();
    let mut sorted = later.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| {
        sorted
            .get(sorted.len().saturating_sub(1) * part / 10)
            .copied()
    };
    let (Some(low), Some(high)) = (at(1), at(9)) else {
        return Steps {
            ratio: 0.8,
            period_s: UNKNOWN,
        };
    };
    let middle = (low * high).max(1e-12).sqrt();
    let turns = later
        .windows(2)
        .filter(|pair| (pair[0] > middle) != (pair[1] > middle))
        .count();
    let begins_high = later.iter().take(2).any(|&rate| rate > middle);
    let ratio = (low / high.max(1e-9)).clamp(0.12, 0.95);
    Steps {
        ratio: if begins_high { ratio } else { 1.0 / ratio },
        period_s: match turns {
            0 => UNKNOWN,
            // Each turn has two changes.
            turns => (2.0 * later.len() as f64 / turns as f64).clamp(2.0, 40.0),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_a_series() {
        let series: Vec<f64> = (0..40)
            .map(|s| if s / 5 % 2 == 0 { 10.0 } else { 4.0 })
            .collect();
        let found = levels(&series);
        assert!((found.ratio - 0.4).abs() < 0.01, "{found:?}");
        assert!((found.period_s - 10.0).abs() < 1.5, "{found:?}");
        let reversed: Vec<f64> = series.iter().map(|rate| 14.0 - rate).collect();
        assert!((levels(&reversed).ratio - 2.5).abs() < 0.01);
        assert!(levels(&[5.0; 30]).ratio > 0.9, "nothing alternates");
        assert_eq!(levels(&[]).period_s, 8.0);
    }
}
