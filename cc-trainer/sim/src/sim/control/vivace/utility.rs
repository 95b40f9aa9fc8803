//! How useful the rate of an interval was (sections 3 and 4.3).

use super::super::monitor::Interval;

/// Exponent of the rate in the utility (t, section 3).
const EXPONENT: f64 = 0.9;
/// Weight of the RTT's growth (b).
const LATENCY: f64 = 900.0;
/// Weight of loss (c, section 3).
const LOSS: f64 = 11.35;
/// Growth of the RTT, s per s, below which it counts as noise (section 4.3, low-pass filtering).
const NOISE: f64 = 0.01;

/// The utility x⁰·⁹ - 900 · x · dRTT/dt - 11.35 · x · L of the rate x in Mbit/s (equation 1).
/// `starting` says whether a falling RTT counts as one that stays: then it only shows that what was
/// sent before has left the queue.
pub(super) fn utility<P>(interval: &Interval<P>, starting: bool) -> f64 {
    let growth = match interval.rtt_growth() {
        growth if growth.abs() < NOISE || (starting && growth < 0.0) => 0.0,
        growth => growth,
    };
    let rate = interval.rate;
    rate.powf(EXPONENT) - LATENCY * rate * growth - LOSS * rate * interval.loss()
}

#[cfg(test)]
mod tests {
    use super::super::super::{monitor::Delivery, tests::MS};
    use super::*;
    use crate::path::Nanos;

    /// An interval of 100 ms at 10 Mbit/s in which 100 segments were acknowledged, with an RTT that
    /// grows by `growth` µs for each.
    fn interval(growth: f64, lost: u32) -> Interval<()> {
        let mut interval = Interval::new((), 10.0, 0, 100 * MS, 0);
        for number in 0..100_u32 {
            let rtt_us = 40_000.0 + growth * f64::from(number);
            let sent = MS * Nanos::from(number);
            interval.acknowledge(&Delivery {
                now: sent,
                acked: 1,
                sent,
                rtt_us: rtt_us as u32,
                limited: false,
            });
        }
        (0..lost).for_each(|_| interval.lose());
        interval
    }

    #[test]
    fn without_queue_and_loss_the_utility_is_that_of_the_rate() {
        assert!((utility(&interval(0.0, 0), false) - 10.0_f64.powf(0.9)).abs() < 1e-9);
    }

    #[test]
    fn a_growing_queue_costs_and_a_falling_one_pays() {
        let steady = utility(&interval(0.0, 0), false);
        // 50 µs in 1 ms: a growth of 0.05.
        let growing = utility(&interval(50.0, 0), false);
        assert!(
            (steady - growing - 900.0 * 10.0 * 0.05).abs() < 1.0,
            "{growing}"
        );
        let falling = utility(&interval(-50.0, 0), false);
        assert!(
            (falling - steady - 900.0 * 10.0 * 0.05).abs() < 1.0,
            "{falling}"
        );
        assert_eq!(utility(&interval(-50.0, 0), true), steady);
    }

    #[test]
    fn noise_of_the_rtt_is_none() {
        assert_eq!(
            utility(&interval(9.0, 0), false),
            utility(&interval(0.0, 0), false)
        );
    }

    #[test]
    fn loss_costs_in_proportion() {
        let steady = utility(&interval(0.0, 0), false);
        let lossy = utility(&interval(0.0, 25), false);
        assert!(
            (steady - lossy - 11.35 * 10.0 * 0.2).abs() < 1e-9,
            "{lossy}"
        );
    }

    #[test]
    fn one_sample_has_no_slope() {
        let mut interval = Interval::new((), 10.0, 0, MS, 0);
        interval.acknowledge(&Delivery {
            now: 40 * MS,
            acked: 1,
            sent: 0,
            rtt_us: 40_000,
            limited: false,
        });
        assert!(utility(&interval, false).is_finite());
    }
}
