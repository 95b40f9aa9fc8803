//! The propagation delay of a direction and how it changes over time.

use std::time::Duration;

use crate::seed;

/// Propagation delay of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delay {
    /// Delay at the scenario's start.
    pub base: Duration,
    /// Later delays, in order of time.
    pub changes: Vec<DelayChange>,
    /// A delay that comes on top of these and changes all the time; `None` is none.
    pub variation: Option<DelayVariation>,
    /// Standard deviation of a normal random variable that is added to each packet's delay, where a
    /// negative sum counts as 0. The packets of a flow keep their order.
    pub jitter: Duration,
}

/// A change of the propagation delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayChange {
    /// Time of the change since the scenario's start.
    pub at: Duration,
    /// Propagation delay from that time on.
    pub delay: Duration,
}

/// A delay that changes as that of satellites in low orbits: at regular times the terminal is
/// assigned to another satellite, and between them the satellite moves.
///
/// In each period the delay starts at a value drawn uniformly from 0 to `spread`, and moves
/// linearly by an amount drawn uniformly from `-drift` to `drift`, within the same limits. (On
/// Starlink the period is 15 s: N. Mohan et al., "A Multifaceted Look at Starlink Performance", WWW
/// 2024.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayVariation {
    /// Length of a period; above 0. Periods count from the scenario's start.
    pub every: Duration,
    /// Largest delay that is added to the base delay.
    pub spread: Duration,
    /// Largest change within a period.
    pub drift: Duration,
    /// Seed of the values. Both directions of a path have the same with the same seed.
    pub seed: u64,
}

impl Delay {
    /// The delay of a packet at `time`, without jitter.
    pub fn at(&self, time: Duration) -> Duration {
        let changed = self.changes.iter().rev().find(|change| change.at <= time);
        let fixed = changed.map_or(self.base, |change| change.delay);
        fixed
            + self
                .variation
                .map_or(Duration::ZERO, |variation| variation.at(time))
    }
}

impl DelayVariation {
    /// The delay at `time`.
    #[inline(never)]
    pub fn at(&self, time: Duration) -> Duration {
        let (every, time) = (self.every.as_nanos(), time.as_nanos());
        let period = (time / every) as u64;
        let passed = (time % every) as f64 / every as f64;
        let [start, end] = self.ends(period);
        Duration::from_nanos((start + (end - start) * passed) as u64)
    }

    /// The delays at which a period starts and ends, ns.
    fn ends(&self, period: u64) -> [f64; 2] {
        let uniform = |n| {
            let bits = seed::output(seed::fold(self.seed, period), n) >> 11;
            bits as f64 / (1_u64 << 53) as f64
        };
        let (spread, drift) = (self.spread.as_nanos() as f64, self.drift.as_nanos() as f64);
        let start = spread * uniform(1);
        let end = start + drift * (2.0 * uniform(2) - 1.0);
        [start, end.clamp(0.0, spread)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SATELLITES: DelayVariation = DelayVariation {
        every: Duration::from_secs(15),
        spread: Duration::from_millis(20),
        drift: Duration::from_millis(4),
        seed: 1,
    };

    fn ms(time: f64) -> f64 {
        SATELLITES.at(Duration::from_secs_f64(time)).as_secs_f64() * 1e3
    }

    #[test]
    fn a_period_is_a_line_and_the_next_one_another() {
        let mut starts = Vec::new();
        for period in 0..400 {
            let start = f64::from(period) * 15.0;
            let (first, middle, last) = (ms(start), ms(start + 7.5), ms(start + 15.0 - 1e-9));
            assert!((middle - (first + last) / 2.0).abs() < 1e-5, "it is a line");
            assert!((last - first).abs() <= 4.0 + 1e-6);
            assert!((0.0..=20.0).contains(&first) && (0.0..=20.0).contains(&last));
            starts.push(first);
        }
        let mean = starts.iter().sum::<f64>() / 400.0;
        // Four standard errors of a uniform distribution.
        assert!(
            (mean - 10.0).abs() < 4.0 * 20.0 / 12.0_f64.sqrt() / 20.0,
            "{mean}"
        );
        let jumps = starts
            .windows(2)
            .filter(|pair| (pair[0] - pair[1]).abs() > 1.0);
        assert!(jumps.count() > 300, "most reconfigurations are visible");
    }

    #[test]
    fn the_seed_decides() {
        let other = DelayVariation {
            seed: 2,
            ..SATELLITES
        };
        let second = Duration::from_secs(1);
        assert_ne!(SATELLITES.at(second), other.at(second));
        assert_eq!(SATELLITES.at(second), SATELLITES.at(second));
    }

    #[test]
    fn it_comes_on_top_of_changes() {
        let delay = Delay {
            base: Duration::from_millis(20),
            changes: vec![DelayChange {
                at: Duration::from_secs(3),
                delay: Duration::from_millis(50),
            }],
            variation: Some(SATELLITES),
            jitter: Duration::ZERO,
        };
        for (second, fixed) in [(2, 20), (3, 50), (60, 50)] {
            let time = Duration::from_secs(second);
            let expected = Duration::from_millis(fixed) + SATELLITES.at(time);
            assert_eq!(delay.at(time), expected);
        }
    }
}
