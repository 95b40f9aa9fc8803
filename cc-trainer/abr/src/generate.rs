//! Traces drawn from a seed, for training and tests where no measured ones may be used.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use crate::trace::Trace;

/// Lowest throughput of a generated trace, Mbit/s.
const LEAST_MBPS: f64 = 0.01;

/// Families of generated traces of throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Pensieve's synthetic traces (section 5.3): a Markov chain of ten mean throughputs from 0.2
    /// to 4.3 Mbit/s, neighbours being more likely by a factor of two per step. It leaves a state
    /// each second with probability 1 ÷ T, T from 10 to 100 s. Around the mean the throughput is
    /// normal, with a standard deviation of 5 to 50 % of it, redrawn every 1 to 5 s. T, deviation
    /// and time are drawn for each trace.
    Markov,
    /// Like a phone on the move (HSDPA): the logarithm of the throughput is the sum of a mean, a
    /// slow component of 5 to 60 s (coverage) and a fast one of 1 to 4 s, both Gaussian, with drops
    /// to some 5 % for a few seconds now and then. The mean of a trace is lognormal around 1.2
    /// Mbit/s.
    Cellular,
}

impl Family {
    /// The families with their names.
    pub const NAMED: [(&str, Self); 2] = [("markov", Self::Markov), ("cellular", Self::Cellular)];
}

/// Draws a trace with one point per second, `seconds` of them after the one at 0.
///
/// Seed and number determine the trace, whatever others are drawn.
///
/// # Panics
///
/// Panics when `seconds` is 0.
pub fn trace(family: Family, seed: u64, number: u64, seconds: u32) -> Trace {
    assert!(seconds > 0, "a trace of at least a second");
    // Streams of neighbouring numbers are unrelated: seeding scrambles.
    let mut random = StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (name, mbps) = match family {
        Family::Markov => ("markov", markov(&mut random, seconds)),
        Family::Cellular => ("cellular", cellular(&mut random, seconds)),
    };
    let times = (0..=seconds).map(f64::from).collect();
    Trace::new(&format!("{name}-{seed}-{number}"), times, mbps)
        .unwrap_or_else(|error| unreachable!("a generated trace is one: {error}"))
}

fn normal(random: &mut impl Rng) -> f64 {
    StandardNormal.sample(random)
}

fn markov(random: &mut impl Rng, seconds: u32) -> Vec<f64> {
    const STATES: usize = 10;
    let mean = |state: usize| 0.2 + (4.3 - 0.2) * state as f64 / (STATES - 1) as f64;
    let leave = 1.0 / random.random_range(10.0..100.0);
    let deviation = random.random_range(0.05..0.5);
    let hold = random.random_range(1..=5);
    let mut state = random.random_range(0..STATES);
    let (mut noise, mut held) = (0.0, 0);
    let next = |_| {
        if random.random_range(0.0..1.0) < leave {
            let weight = |other: usize| match other.abs_diff(state) {
                0 => 0.0,
                steps => 0.5_f64.powi(steps as i32),
            };
            let all: f64 = (0..STATES).map(weight).sum();
            let mut drawn = random.random_range(0.0..all);
            let chosen = (0..STATES).find(|&other| {
                drawn -= weight(other);
                drawn < 0.0 && other != state
            });
            state = chosen.unwrap_or(state);
            held = 0;
        }
        if held == 0 {
            noise = normal(random);
            held = hold;
        }
        held -= 1;
        (mean(state) * (1.0 + deviation * noise)).max(0.1)
    };
    (0..=seconds).map(next).collect()
}

fn cellular(random: &mut impl Rng, seconds: u32) -> Vec<f64> {
    let log_mean = 1.2_f64.ln() + 0.55 * normal(random);
    let slow_s: f64 = random.random_range(5.0..60.0);
    let fast_s: f64 = random.random_range(1.0..4.0);
    let slow_deviation = random.random_range(0.1..0.6);
    let fast_deviation = random.random_range(0.05..0.4);
    // Once in 100 s to never.
    let drop = random.random_range(0.0..0.01);
    let keep = |time_s: f64| (-1.0 / time_s).exp();
    let (keep_slow, keep_fast) = (keep(slow_s), keep(fast_s));
    let (mut slow, mut fast) = (normal(random), normal(random));
    let mut dropped = 0;
    let next = |_| {
        slow = keep_slow * slow + (1.0 - keep_slow * keep_slow).sqrt() * normal(random);
        fast = keep_fast * fast + (1.0 - keep_fast * keep_fast).sqrt() * normal(random);
        if dropped == 0 && random.random_range(0.0..1.0) < drop {
            dropped = random.random_range(2..=10);
        }
        let mut log = log_mean + slow_deviation * slow + fast_deviation * fast;
        if dropped > 0 {
            dropped -= 1;
            log += 0.05_f64.ln();
        }
        log.exp().max(LEAST_MBPS)
    };
    (0..=seconds).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_and_number_determine_a_trace() {
        for (name, family) in Family::NAMED {
            assert_eq!(trace(family, 3, 5, 100), trace(family, 3, 5, 100));
            assert_ne!(
                trace(family, 3, 5, 100).mbps(),
                trace(family, 3, 6, 100).mbps()
            );
            assert_ne!(
                trace(family, 3, 5, 100).mbps(),
                trace(family, 4, 5, 100).mbps()
            );
            assert_eq!(trace(family, 3, 5, 100).name(), format!("{name}-3-5"));
        }
    }

    #[test]
    fn throughputs_are_as_documented() {
        for (_, family) in Family::NAMED {
            let means: Vec<f64> = (0..300)
                .map(|number| trace(family, 1, number, 300).mean_mbps())
                .collect();
            let mean = means.iter().sum::<f64>() / means.len() as f64;
            let expected = match family {
                Family::Markov => 1.9..2.6,
                Family::Cellular => 1.2..1.8,
            };
            assert!(expected.contains(&mean), "{family:?}: {mean}");
        }
    }

    #[test]
    fn markov_moves_to_neighbours_more_often_than_far_away() {
        // With the least noise, changes of the mean are visible: count steps of one state.
        let (mut near, mut far) = (0, 0);
        for number in 0..200 {
            let drawn = trace(Family::Markov, 2, number, 1000);
            for pair in drawn.mbps().chunks(10).collect::<Vec<_>>().windows(2) {
                let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
                match (mean(pair[0]) - mean(pair[1])).abs() {
                    change if change > 1.4 => far += 1,
                    change if change > 0.2 => near += 1,
                    _ => {}
                }
            }
        }
        assert!(near > 2 * far && far > 0, "{near} {far}");
    }
}
