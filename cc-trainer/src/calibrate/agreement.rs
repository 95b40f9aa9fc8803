//! How far a twin's figures are from the recorded ones.

use serde::Serialize;

use super::statistics::Statistics;

/// Number of residuals of a control; the first three are of the figures that are compared.
const RESIDUALS: usize = 7;
/// How much more the number of losses varies than if packets were lost independently.
const CLUMPS: f64 = 1.5;
/// Weight of the figures that only guide the search.
const GUIDE: f64 = 0.5;

/// How far figures may differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Part of the recorded figure by which throughput, delay and loss may differ.
    pub relative: f64,
    /// Difference of the lost share that is allowed however small the recorded one is: a recording
    /// of a minute has few losses, and their number is a matter of chance.
    pub loss: f64,
}

impl Default for Tolerance {
    /// 10 %, and a tenth of a percentage point of loss.
    fn default() -> Self {
        Self {
            relative: 0.1,
            loss: 0.001,
        }
    }
}

impl Tolerance {
    /// Differences of throughput, delay and loss, in units of what is allowed.
    fn differences(self, recorded: &Statistics, found: &Statistics) -> [f64; 3] {
        let relative =
            |of: fn(&Statistics) -> f64| (of(found) / of(recorded) - 1.0) / self.relative;
        [
            relative(|s| s.throughput_mbps),
            relative(|s| s.p95_rtt_ms),
            (found.loss - recorded.loss) / self.loss.max(self.relative * recorded.loss),
        ]
    }

    /// The largest difference of a compared figure among the [`residuals`] of several controls, in
    /// units of what is allowed.
    pub(super) fn largest_compared(self, residuals: &[f64]) -> f64 {
        let compared = residuals
            .chunks(RESIDUALS)
            .flat_map(|control| &control[..3]);
        compared.map(|r| r.abs().sinh()).fold(0.0, f64::max)
    }
}

/// The weighted residuals of a control. Large ones count as their logarithms, so that a search is
/// not ruled by one figure that is far off.
pub(super) fn residuals(
    recorded: &Statistics,
    found: &Statistics,
    tolerance: Tolerance,
) -> [f64; RESIDUALS] {
    let [throughput, delay, loss] = tolerance.differences(recorded, found);
    // A control that sent little says little of the loss: a share of few packets is chance.
    let packets = recorded.throughput_mbps * recorded.seconds * 1e6 / (8.0 * 1448.0);
    let chance = CLUMPS * (recorded.loss / packets.max(1.0)).sqrt();
    let allowed = tolerance.loss.max(tolerance.relative * recorded.loss);
    let loss = loss * (allowed / allowed.max(chance));
    let median = (found.median_rtt_ms / recorded.median_rtt_ms - 1.0) / 0.1;
    let least = (found.least_rtt_ms / recorded.least_rtt_ms - 1.0) / 0.05;
    let little_ms = 0.3 + 0.02 * recorded.least_rtt_ms;
    let spread = (found.spread_ms - recorded.spread_ms) / (0.2 * recorded.spread_ms).max(little_ms);
    let variation = (found.variation - recorded.variation) / 0.1;
    [
        throughput.asinh(),
        delay.asinh(),
        loss.asinh(),
        GUIDE * median.asinh(),
        GUIDE * least.asinh(),
        GUIDE * spread.asinh(),
        GUIDE * variation.asinh(),
    ]
}

/// A control as it was recorded and on the twin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Name of the control, or the beginning of a policy's identifier.
    pub control: String,
    /// Whether the twin was fitted without it.
    pub held_out: bool,
    /// Figures of the recorded flows of the control.
    pub recorded: Statistics,
    /// Figures of simulated flows of the control on the twin.
    pub twin: Statistics,
    /// Differences of throughput, delay and loss in units of what is allowed: −1 to 1 agree.
    pub differences: [f64; 3],
}

impl Agreement {
    pub(super) fn new(
        control: String,
        held_out: bool,
        recorded: Statistics,
        twin: Statistics,
        tolerance: Tolerance,
    ) -> Self {
        Self {
            control,
            held_out,
            recorded,
            twin,
            differences: tolerance.differences(&recorded, &twin),
        }
    }

    /// Whether throughput, delay and loss are each within the tolerance.
    pub fn agree(&self) -> [bool; 3] {
        self.differences.map(|difference| difference.abs() <= 1.0)
    }

    /// Whether throughput, delay and loss are all within the tolerance.
    pub fn agrees(&self) -> bool {
        self.agree().into_iter().all(|agrees| agrees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(throughput_mbps: f64, p95_rtt_ms: f64, loss: f64) -> Statistics {
        Statistics {
            seconds: 30.0,
            throughput_mbps,
            p95_rtt_ms,
            loss,
            median_rtt_ms: 50.0,
            least_rtt_ms: 40.0,
            spread_ms: 2.0,
            variation: 0.1,
            high_mbps: 11.0,
        }
    }

    #[test]
    fn figures_agree_within_a_tenth_or_a_tenth_of_a_point_of_loss() {
        let of = |twin| {
            let recorded = figures(10.0, 80.0, 0.02);
            Agreement::new("cubic".into(), false, recorded, twin, Tolerance::default())
        };
        assert!(of(figures(10.9, 73.0, 0.0219)).agrees());
        assert_eq!(of(figures(11.1, 80.0, 0.02)).agree(), [false, true, true]);
        assert_eq!(of(figures(10.0, 71.0, 0.02)).agree(), [true, false, true]);
        assert_eq!(of(figures(10.0, 80.0, 0.0225)).agree(), [true, true, false]);
        let clean = figures(10.0, 80.0, 0.0);
        let few = figures(10.0, 80.0, 0.0009);
        let agreement = Agreement::new("bbr".into(), true, clean, few, Tolerance::default());
        assert!(agreement.agrees());
    }

    #[test]
    fn a_loss_that_is_chance_guides_less() {
        let tolerance = Tolerance::default();
        let residual = |throughput_mbps| {
            let (one, other) = (
                figures(throughput_mbps, 80.0, 0.02),
                figures(throughput_mbps, 80.0, 0.026),
            );
            residuals(&one, &other, tolerance)[2].sinh()
        };
        assert!((residual(100.0) - 3.0).abs() < 1e-6, "{}", residual(100.0));
        // Of 43 packets a second for 30 s, 26 were lost, give or take 1.5 times the root of 26,
        // which is 7.6; 7.8 more are 1.02 of that.
        assert!((residual(0.5) - 1.02).abs() < 0.01, "{}", residual(0.5));
    }

    #[test]
    fn residuals_tell_the_largest_difference() {
        let (recorded, found) = (figures(10.0, 80.0, 0.02), figures(12.0, 80.0, 0.02));
        let tolerance = Tolerance::default();
        let mut all = residuals(&recorded, &recorded, tolerance).to_vec();
        assert!(all.iter().all(|residual| *residual == 0.0));
        all.extend(residuals(&recorded, &found, tolerance));
        assert!((tolerance.largest_compared(&all) - 2.0).abs() < 1e-9);
    }
}
