//! The reward of a window, an input of the policy's network: mvfst-rl's (arXiv 1910.04054, section
//! 3, and the later code of its authors).
//!
//! What a policy was trained for, and is judged by, is its [objective](crate::objective).
//!
//! # Whose settings apply
//!
//! A window's reward depends on a policy's [`RewardSettings`]. The agent uses:
//!
//! - for [`Query::reward`](crate::policy::Query::reward) and
//!   [`Row::reward`](crate::rows::Row::reward), the settings of the policy that decides for the
//!   flow when the window arrives. When a policy with another interface takes the flow over, a
//!   window that still waits is discarded, so the policy that answers is rewarded by its own
//!   settings;
//! - for flows of other congestion controls, the settings in the header of the recording.

use cc_ebpf::{Feature, WindowRecord};

use crate::interface::{RewardKind, RewardSettings};

/// The quantities that a window's reward is computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Mean over the ACKs of the kernel's delivery-rate samples, MB/s. What arrived over time is
    /// [`Measured::throughput_mbps`](crate::objective::Measured::throughput_mbps).
    pub throughput: f64,
    /// Queueing delay, ms: the largest of the window, or its mean.
    pub delay: f64,
    /// Bytes lost in the window, MB.
    pub loss: f64,
}

/// A window's reward under one policy's settings, with the terms that it was computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reward {
    /// The window's terms; [`RewardSettings::max_delay`] affects them.
    pub terms: Terms,
    /// The reward itself, without a unit.
    pub value: f64,
}

impl Reward {
    /// Computes the reward of a window.
    pub fn of(window: &WindowRecord, settings: &RewardSettings) -> Self {
        let terms = Terms::of(window, settings);
        let value = terms.reward(settings);
        Self { terms, value }
    }
}

impl Terms {
    /// Computes the terms of a window.
    pub fn of(window: &WindowRecord, settings: &RewardSettings) -> Self {
        let statistics = &window.features;
        let delay_us = if settings.max_delay {
            f64::from(statistics.max[Feature::Delay as usize])
        } else {
            statistics.mean(Feature::Delay as usize, window.acks)
        };
        Self {
            throughput: statistics.mean(Feature::Throughput as usize, window.acks) / 1e3,
            delay: delay_us / 1e3,
            loss: statistics.sum[Feature::Lost as usize] as f64 / 1e6,
        }
    }

    /// Combines the terms: a·t − b·d − c·l when linear, a·ln(a'+t) − b·ln(b'+d) − c·ln(c'+l)
    /// otherwise, where a, b, c are the factors and a', b', c' the offsets of the settings.
    pub fn reward(&self, settings: &RewardSettings) -> f64 {
        let (throughput, delay, loss) = match settings.kind {
            RewardKind::Linear => (self.throughput, self.delay, self.loss),
            RewardKind::Log => (
                (f64::from(settings.throughput_offset) + self.throughput).ln(),
                (f64::from(settings.delay_offset) + self.delay).ln(),
                (f64::from(settings.loss_offset) + self.loss).ln(),
            ),
        };
        f64::from(settings.throughput_factor) * throughput
            - f64::from(settings.delay_factor) * delay
            - f64::from(settings.loss_factor) * loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;
    use cc_ebpf::FEATURES;

    fn window() -> WindowRecord {
        let mut window = WindowRecord::zeroed();
        for (delay, lost) in [(20_000, 0), (62_500, 250_000)] {
            let mut features = [0; FEATURES];
            features[Feature::Throughput as usize] = 12_500;
            features[Feature::Delay as usize] = delay;
            features[Feature::Lost as usize] = lost;
            window.add(&features);
        }
        window
    }

    #[test]
    fn linear_is_the_papers() {
        let settings = RewardSettings {
            kind: RewardKind::Linear,
            ..RewardSettings::default()
        };
        let terms = Terms::of(&window(), &settings);
        assert_eq!(
            (terms.throughput, terms.delay, terms.loss),
            (12.5, 62.5, 0.25)
        );
        // 100 Mbit/s are cancelled by 62.5 ms at b = 0.2.
        assert!(terms.reward(&settings).abs() < 1e-6);
    }

    #[test]
    fn log_takes_logarithms_of_offset_quantities() {
        let settings = RewardSettings {
            loss_factor: 0.5,
            max_delay: false,
            ..RewardSettings::default()
        };
        let terms = Terms::of(&window(), &settings);
        assert_eq!(terms.delay, 41.25);
        let expected = 12.500_01f64.ln() - 0.2 * 41.250_01f64.ln() - 0.5 * 0.250_01f64.ln();
        assert!((terms.reward(&settings) - expected).abs() < 1e-6);
        assert!(Terms::default().reward(&settings).is_finite());
    }
}
