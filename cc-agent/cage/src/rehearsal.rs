//! The try-out of a policy before it decides for flows: whether its answers are finite, and how
//! long a batch takes.

use std::time::Duration;

use bytemuck::Zeroable;
use cc_core::{
    interface::Interface,
    observation::{History, Windows, observe},
    policy::{Choice, Policy, Query, State},
    reward::Reward,
};
use cc_ebpf::{FEATURES, Feature, Unit, WindowRecord};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::load_error::LoadError;

/// Sizes of the batches that are timed: one flow, a few, and as many as are asked about at once.
const ROWS: [usize; 3] = [1, 64, 256];

/// Runs of each size. The second longest is what counts, so that one disturbance does not.
const RUNS: usize = 32;

/// Bytes of a segment in the windows of the try-out.
const MSS: u32 = 1_448;

/// The processor time that batches took in the try-out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The numbers of queries, each with the second longest time of 32 runs.
    pub batches: Vec<(usize, Duration)>,
}

/// Asks a policy about an observation of zeros and about plausible windows, and times it. `budget`
/// is the longest time for a batch; `None` is a quarter of the policy's window.
///
/// The number of runs does not depend on the time that they take, so that a policy that draws
/// random numbers goes on with the same ones wherever it was tried out.
pub(crate) fn rehearse(
    policy: &mut dyn Policy,
    budget: Option<Duration>,
) -> Result<Times, LoadError> {
    let interface = policy.interface().clone();
    let window = Duration::from_millis(interface.window_ms.into());
    let budget = budget.unwrap_or(window / 4);
    let zeros = Query {
        observation: vec![0.0; interface.observation_len()],
        reward: 0.0,
        cwnd: interface.cwnd.min,
        state: State::default(),
        probabilities: Vec::new(),
    };
    must_be_finite(policy, &mut [zeros], "an observation of zeros")?;
    let plausible = plausible(&interface, ROWS[ROWS.len() - 1]);
    let mut times = Times::default();
    for rows in ROWS {
        let mut queries = plausible[..rows].to_vec();
        must_be_finite(policy, &mut queries, "plausible observations")?;
        let mut longest = [Duration::ZERO; 2];
        for _ in 0..RUNS {
            let start = processor_time();
            policy.decide(&mut queries);
            let took = processor_time().saturating_sub(start);
            longest = match longest {
                [first, _] if took > first => [took, first],
                [first, second] => [first, second.max(took)],
            };
            if longest[1] > budget {
                return Err(LoadError::Slow {
                    rows,
                    took: longest[1],
                    budget,
                });
            }
        }
        // The same flows, whose states have moved on since.
        must_be_finite(policy, &mut queries, "plausible observations")?;
        times.batches.push((rows, longest[1]));
    }
    Ok(times)
}

fn must_be_finite(
    policy: &mut dyn Policy,
    queries: &mut [Query],
    observations: &'static str,
) -> Result<(), LoadError> {
    let choices = policy.decide(queries);
    let invalid = choices.iter().filter(|c| **c == Choice::Invalid).count();
    match invalid {
        0 => Ok(()),
        _ => Err(LoadError::NotFinite {
            observations,
            invalid,
            answers: choices.len(),
        }),
    }
}

/// Queries about windows of very different flows. Every call returns the same ones.
fn plausible(interface: &Interface, count: usize) -> Vec<Query> {
    let mut random = Lcg(1);
    (0..count)
        .map(|_| {
            let mut window = WindowRecord::zeroed();
            window.cwnd = random.between(interface.cwnd.min, interface.cwnd.max);
            window.mss = MSS;
            for _ in 0..random.between(1, 20) {
                let features: [u32; FEATURES] = std::array::from_fn(|i| {
                    let most = match Feature::ALL[i].unit() {
                        Unit::Micros => 300_000,
                        Unit::Bytes => 1_000_000,
                        Unit::KilobytesPerSecond => 125_000,
                        Unit::Count => 3,
                    };
                    // Small values are as frequent as large ones.
                    random.between(0, most) >> random.between(0, 12)
                });
                window.add(&features);
            }
            window.marked = random.between(0, 100);
            window.app_limited_acks = random.between(0, window.acks);
            let history = History::new(interface, u64::from(window.cwnd) * u64::from(MSS));
            let mut windows = Windows::new(interface);
            windows.push(interface, &window, None);
            Query {
                observation: observe(interface, &window, &history, &windows),
                reward: Reward::of(&window, &interface.reward).value as f32,
                cwnd: window.cwnd,
                state: State::default(),
                probabilities: Vec::new(),
            }
        })
        .collect()
}

/// Knuth's linear congruential generator (MMIX), good enough to vary a try-out.
struct Lcg(u64);

impl Lcg {
    /// A number from `least` to `most`, both included.
    fn between(&mut self, least: u32, most: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let span = u64::from(most.max(least) - least) + 1;
        least + (((self.0 >> 32) * span) >> 32) as u32
    }
}

/// The processor time of this thread. Unlike the time of day it leaves out what other processes of
/// a busy host take.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers `first` queries well, and all others by `then`.
    struct Script<F> {
        interface: Interface,
        left: usize,
        then: F,
    }

    impl<F: FnMut() -> Choice + Send> Policy for Script<F> {
        fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
            let mut choose = |_: &mut Query| match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    Choice::Cwnd(10)
                }
                None => (self.then)(),
            };
            queries.iter_mut().map(&mut choose).collect()
        }

        fn interface(&self) -> &Interface {
            &self.interface
        }
    }

    fn rehearsed(left: usize, then: impl FnMut() -> Choice + Send) -> Result<Times, String> {
        let mut policy = Script {
            interface: Interface::default(),
            left,
            then,
        };
        rehearse(&mut policy, None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_that_answers_is_timed() {
        let times = rehearsed(0, || Choice::Cwnd(1)).expect("it is accepted");
        assert_eq!(times.batches.iter().map(|b| b.0).collect::<Vec<_>>(), ROWS);
    }

    #[test]
    fn answers_that_are_not_finite_are_refused() {
        let error = rehearsed(0, || Choice::Invalid).expect_err("zeros");
        assert!(
            error.starts_with("1 of its 1 answers to an observation of zeros"),
            "{error}"
        );
        // One query of zeros, 34 times one plausible one, then some of 64.
        let error = rehearsed(1 + 34 + 50, || Choice::Invalid).expect_err("plausible");
        assert!(
            error.starts_with("14 of its 64 answers to plausible"),
            "{error}"
        );
        // The last 64 of the batches of 64.
        let later = 1 + 34 + 33 * 64 + 60;
        let error = rehearsed(later, || Choice::Invalid).expect_err("later");
        assert!(error.starts_with("4 of its 64 answers"), "{error}");
    }

    #[test]
    fn a_slow_policy_is_refused_with_its_time() {
        let spin = || {
            let start = processor_time();
            while processor_time() - start < Duration::from_micros(500) {}
            Choice::Cwnd(1)
        };
        // 0.5 ms a query: one is fine, 64 take more than a quarter of the window of 100 ms.
        let error = rehearsed(1, spin).expect_err("too slow");
        let expected = "but at most 25.0 ms are allowed: use a smaller policy";
        assert!(error.starts_with("a batch of 64 flows takes "), "{error}");
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn the_windows_of_the_try_out_are_finite_and_differ() {
        let queries = plausible(&Interface::default(), 256);
        let finite = |query: &Query| query.observation.iter().all(|value| value.is_finite());
        assert!(queries.iter().all(|q| finite(q) && q.reward.is_finite()));
        assert_ne!(queries[0].observation, queries[1].observation);
        assert_eq!(queries, plausible(&Interface::default(), 256));
    }
}
