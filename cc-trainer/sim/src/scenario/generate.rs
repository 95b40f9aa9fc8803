//! Generated traces, for use where recorded ones cannot be distributed. The seed determines a trace
//! completely.

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{MTU, Trace, TraceError, trace::MAX_OPPORTUNITIES};

/// Parameters of a trace of deliveries at random times, after a slow start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poisson {
    /// Mean rate after the ramp, Mbit/s.
    pub mbps: f64,
    /// Length of the trace, s.
    pub seconds: f64,
    /// Length of an initial ramp with one packet per 100 ms, s. Pantheon's measured links looked
    /// like this to the tool that fitted their emulation.
    pub ramp_s: f64,
    /// Seed of the random deliveries.
    pub seed: u64,
}

/// Parameters of a trace of a cellular downlink or uplink.
///
/// The model combines three published parts, whose parameters can be compared with a recording:
///
/// - The rate is log-normal with an exponential autocorrelation. Shadow fading is Gaussian in dB
///   with `exp(-distance / correlation distance)` (M. Gudmundson, "Correlation model for shadow
///   fading in mobile radio systems", Electronics Letters 27(23), 1991), and the capacity of a
///   radio link far from its best is proportional to the received power.
/// - Outages begin and end as a Markov chain of two states, as in section 3.1 of K. Winstein, A.
///   Sivaraman and H. Balakrishnan, "Stochastic Forecasts Achieve High Throughput and Low Delay
///   over Cellular Networks", NSDI 2013.
/// - Given the rate, deliveries are a Poisson process (same section), here of batches with a
///   geometric number of packets, because a base station serves a user several packets per turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cellular {
    /// Mean rate outside of outages, Mbit/s.
    pub mbps: f64,
    /// Standard deviation of the rate outside of outages, relative to its mean.
    pub variation: f64,
    /// Time lag at which the autocorrelation of the rate's logarithm is 1/e, s.
    pub correlation_s: f64,
    /// Fraction of the time spent in outages, in [0, 1).
    pub outage_share: f64,
    /// Mean length of an outage, s; lengths are exponentially distributed.
    pub outage_s: f64,
    /// Mean number of packets per batch, at least 1.
    pub batch: f64,
    /// Length of the trace, s.
    pub seconds: f64,
    /// Seed that determines all random parts of the trace.
    pub seed: u64,
}

/// A trace of evenly spaced opportunities on mahimahi's grid of 1 ms.
///
/// # Errors
///
/// Returns an error when the trace would be too long.
pub(super) fn even(mbps: f64, seconds: f64) -> Result<Trace, TraceError> {
    let milliseconds = (seconds * 1e3).round() as u64;
    let count = packets_per_ms(mbps) * milliseconds as f64;
    let count = count.round().max(1.0) as u64;
    let times = (1..=count).map(|i| (i * milliseconds).div_ceil(count) as u32);
    Trace::from_times(times.collect())
}

impl Poisson {
    /// Generates the trace that these parameters and the seed determine.
    ///
    /// # Errors
    ///
    /// Returns an error only when a parameter is outside the limits of scenario files.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        /// Time between two packets of the ramp, ms.
        const RAMP_GAP: u32 = 100;

        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let ramp_end = (self.ramp_s * 1e3) as u32;
        let mut times: Vec<u32> = (1..=ramp_end / RAMP_GAP).map(|i| i * RAMP_GAP).collect();
        let mut now = f64::from(ramp_end);
        while times.len() <= MAX_OPPORTUNITIES {
            now += exponential(&mut random) / packets_per_ms(self.mbps);
            // A trace is never empty, however slow and short it is.
            if now > self.seconds * 1e3 && !times.is_empty() {
                break;
            }
            times.push(now.ceil() as u32);
        }
        Trace::from_times(times)
    }
}

impl Cellular {
    /// Generates the trace that these parameters and the seed determine.
    ///
    /// # Errors
    ///
    /// Returns an error only when a parameter is outside the limits of scenario files.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        /// Time between two changes of the rate, ms, as in the NSDI paper.
        const TICK: u32 = 20;

        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let memory = (-f64::from(TICK) / 1e3 / self.correlation_s).exp();
        let news = (1.0 - memory * memory).sqrt();
        // Deviation of the rate's logarithm that gives the rate the requested mean and deviation.
        let deviation = (1.0 + self.variation * self.variation).ln().sqrt();
        let gap_s = self.outage_s * (1.0 - self.outage_share) / self.outage_share;
        let change = |mean_s: f64| 1.0 - (-1e-3 / mean_s).exp();
        let (outage_begins, outage_ends) = (change(gap_s), change(self.outage_s));

        let mut fading = normal(&mut random);
        let mut outage = random.random::<f64>() < self.outage_share;
        let mut batches_per_ms = 0.0;
        // The integral of the rate until the next batch is exponentially distributed.
        let mut until_next = exponential(&mut random);
        let mut times = Vec::new();
        let length = (self.seconds * 1e3) as u32;
        let mut now = 0;
        // A trace is never empty, even if it is all outage, and never longer than the limit.
        while (now < length || times.is_empty()) && times.len() <= MAX_OPPORTUNITIES {
            if now % TICK == 0 {
                fading = memory * fading + news * normal(&mut random);
                let gain = (deviation * fading - deviation * deviation / 2.0).exp();
                batches_per_ms = packets_per_ms(self.mbps) * gain / self.batch;
            }
            now += 1;
            let change = if outage { outage_ends } else { outage_begins };
            if self.outage_share > 0.0 && random.random::<f64>() < change {
                outage = !outage;
            }
            if outage {
                continue;
            }
            until_next -= batches_per_ms;
            while until_next <= 0.0 {
                let packets = geometric(&mut random, self.batch);
                times.extend(std::iter::repeat_n(now, packets));
                until_next += exponential(&mut random);
            }
        }
        Trace::from_times(times)
    }
}

/// Converts a rate to packets of [`MTU`] bytes per ms.
fn packets_per_ms(mbps: f64) -> f64 {
    mbps * 1e3 / (f64::from(MTU) * 8.0)
}

/// Draws from the exponential distribution with mean 1.
fn exponential(random: &mut Xoshiro256PlusPlus) -> f64 {
    // 1 - u, because u may be 0 but never 1.
    -(1.0 - random.random::<f64>()).ln()
}

/// Draws from the standard normal distribution (G. Box and M. Muller 1958).
pub(super) fn normal(random: &mut Xoshiro256PlusPlus) -> f64 {
    let radius = (2.0 * exponential(random)).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// Draws from the geometric distribution on 1, 2, … with the given mean of at least 1.
fn geometric(random: &mut Xoshiro256PlusPlus, mean: f64) -> usize {
    if mean <= 1.0 {
        return 1;
    }
    1 + (exponential(random) / -(1.0 - 1.0 / mean).ln()) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: f64 = 3600.0;

    fn seconds(seconds: u32) -> Duration {
        Duration::from_secs(seconds.into())
    }

    /// Number of packets in each of the first `count` seconds.
    fn per_second(trace: &Trace, count: u32) -> Vec<f64> {
        (0..count)
            .map(|i| trace.opportunities(seconds(i), seconds(i + 1)) as f64)
            .collect()
    }

    fn mean_and_variance(samples: &[f64]) -> (f64, f64) {
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance =
            samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / samples.len() as f64;
        (mean, variance)
    }

    #[track_caller]
    fn near(value: f64, expected: f64, tolerance: f64) {
        assert!(
            (value / expected - 1.0).abs() < tolerance,
            "{value} is not near {expected}"
        );
    }

    #[test]
    fn even_opportunities_are_those_of_the_one_line_traces() {
        let twelve = even(12.0, 60.0).expect("a trace");
        assert_eq!(twelve.times(), (1..=60_000).collect::<Vec<u32>>());
        let slow = even(0.12, 60.0).expect("a trace");
        assert_eq!(
            slow.times(),
            (1..=600).map(|i| i * 100).collect::<Vec<u32>>()
        );
        // Numbers of lines of the recorded traces with these names.
        for (mbps, lines) in [(77.72, 388_600), (100.42, 502_100), (114.68, 573_400)] {
            let trace = even(mbps, 60.0).expect("a trace");
            assert_eq!((trace.times().len(), trace.period_ms()), (lines, 60_000));
            near(trace.mean_bits_per_second(), mbps * 1e6, 1e-9);
        }
    }

    #[test]
    fn poisson_deliveries_have_the_mean_and_variance_of_a_poisson_process() {
        let poisson = Poisson {
            mbps: 2.64,
            seconds: HOUR,
            ramp_s: 0.0,
            seed: 1,
        };
        let trace = poisson.trace().expect("a trace");
        let (mean, variance) = mean_and_variance(&per_second(&trace, HOUR as u32));
        near(mean, 220.0, 0.01);
        // Four standard deviations of the index of dispersion of 3600 samples are 9 %.
        near(variance / mean, 1.0, 0.1);
    }

    #[test]
    fn a_poisson_trace_starts_with_its_ramp() {
        let poisson = Poisson {
            mbps: 3.0,
            seconds: 60.0,
            ramp_s: 4.0,
            seed: 1,
        };
        let trace = poisson.trace().expect("a trace");
        assert_eq!(
            trace.times()[..40],
            (1..=40).map(|i| i * 100).collect::<Vec<u32>>()
        );
        assert!(
            trace.times()[45] < 4300,
            "250 packets a second come after the ramp"
        );
    }

    #[test]
    fn cellular_traces_have_the_statistics_asked_for() {
        let cellular = Cellular {
            mbps: 6.0,
            variation: 0.5,
            correlation_s: 4.0,
            outage_share: 0.0,
            outage_s: 1.0,
            batch: 4.0,
            seconds: 4.0 * HOUR,
            seed: 1,
        };
        let trace = cellular.trace().expect("a trace");
        let samples = per_second(&trace, 4 * HOUR as u32);
        let (mean, variance) = mean_and_variance(&samples);
        near(mean, 500.0, 0.05);
        // The mean over 1 s has nearly the variance of the instantaneous rate; batches add little.
        near(variance.sqrt() / mean, 0.5, 0.15);
        // At the correlation time, a log-normal variable's autocorrelation is slightly below 1/e,
        // that of its logarithm.
        let lagged = samples
            .windows(5)
            .map(|w| (w[0] - mean) * (w[4] - mean))
            .sum::<f64>();
        let correlation = lagged / (samples.len() - 4) as f64 / variance;
        assert!((0.25..0.45).contains(&correlation), "{correlation}");
        // Packets of the same millisecond: there are 0.125 batches of 4 packets per millisecond.
        let mut distinct = trace.times().to_vec();
        distinct.dedup();
        let together = trace.times().len() as f64 / distinct.len() as f64;
        assert!((3.9..4.8).contains(&together), "{together}");
    }

    #[test]
    fn outages_take_their_share_of_the_time() {
        let cellular = Cellular {
            mbps: 12.0,
            variation: 0.1,
            correlation_s: 4.0,
            outage_share: 0.1,
            outage_s: 0.5,
            batch: 1.0,
            seconds: HOUR,
            seed: 1,
        };
        let trace = cellular.trace().expect("a trace");
        // At one packet per millisecond, a gap of more than 30 ms is an outage.
        let gaps = trace
            .times()
            .windows(2)
            .map(|pair| f64::from(pair[1] - pair[0]));
        let outages: Vec<f64> = gaps.filter(|&gap| gap > 30.0).collect();
        let total = outages.iter().sum::<f64>() / 1e3;
        near(total / cellular.seconds, 0.1, 0.15);
        near(total / outages.len() as f64, 0.53, 0.15);
        near(trace.mean_bits_per_second(), 0.9 * 12e6, 0.05);
    }

    #[test]
    fn a_seed_determines_a_trace() {
        let poisson = |seed| {
            Poisson {
                mbps: 3.0,
                seconds: 10.0,
                ramp_s: 1.0,
                seed,
            }
            .trace()
        };
        assert_eq!(poisson(1), poisson(1));
        assert_ne!(poisson(1), poisson(2));
        let cellular = |seed| {
            let outage = (0.05, 0.5);
            Cellular {
                mbps: 3.0,
                variation: 0.5,
                correlation_s: 4.0,
                outage_share: outage.0,
                outage_s: outage.1,
                batch: 3.0,
                seconds: 10.0,
                seed,
            }
            .trace()
        };
        assert_eq!(cellular(1), cellular(1));
        assert_ne!(cellular(1), cellular(2));
    }
}
