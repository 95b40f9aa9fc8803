//! A minimum over a sliding window: Kathleen Nichols' three-sample filter.

use bytemuck::{Pod, Zeroable};

/// A sample that is, or may become, the minimum.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Estimate {
    /// When it was taken, ns; 0 before the first sample.
    time_ns: u64,
    value: u32,
    _reserved: u32,
}

/// Tracks the minimum of the samples of the last `window_ns` in constant space.
///
/// The filter keeps the best estimate and two later ones, from the second quarter and the second
/// half of the window, that take over when the best grows too old. It is exact while the minimum is
/// renewed and otherwise errs upwards, to a larger sample of the window. The algorithm is that of
/// lib/win_minmax.c (Linux 6.18), with nanoseconds for jiffies.
///
/// ```
/// use cc_ebpf::WindowedMin;
///
/// let mut filter = WindowedMin::default();
/// assert_eq!(filter.update(1_000, 10, 1_000), 10);
/// assert_eq!(filter.update(1_500, 20, 1_000), 10);
/// // The 10 has left the window of 1,000 ns.
/// assert_eq!(filter.update(2_100, 40, 1_000), 20);
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct WindowedMin {
    /// The minimum over the filter's window.
    best: Estimate,
    /// The smallest sample after `best`.
    second: Estimate,
    /// The smallest sample after `second`.
    third: Estimate,
}

impl WindowedMin {
    /// Adds a sample taken at `now_ns` and returns the minimum of the last `window_ns`. Time must
    /// not run backwards, and 0 is not a valid time.
    #[inline(always)]
    pub fn update(&mut self, now_ns: u64, value: u32, window_ns: u64) -> u32 {
        let sample = Estimate {
            time_ns: now_ns,
            value,
            _reserved: 0,
        };
        let unset = self.best.time_ns == 0;
        if unset || value <= self.best.value || now_ns.wrapping_sub(self.third.time_ns) > window_ns
        {
            self.best = sample;
            self.second = sample;
            self.third = sample;
            return value;
        }
        if value <= self.second.value {
            self.second = sample;
            self.third = sample;
        } else if value <= self.third.value {
            self.third = sample;
        }
        self.expire(sample, window_ns);
        self.best.value
    }

    /// Forgets every sample, as if the filter were new.
    #[inline(always)]
    pub fn reset(&mut self) {
        self.best.time_ns = 0;
        self.best.value = 0;
    }

    /// The minimum as of the last update; 0 before the first one.
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.best.value
    }

    #[inline(always)]
    fn expire(&mut self, sample: Estimate, window_ns: u64) {
        let age = sample.time_ns.wrapping_sub(self.best.time_ns);
        if age > window_ns {
            self.best = self.second;
            self.second = self.third;
            self.third = sample;
            if sample.time_ns.wrapping_sub(self.best.time_ns) > window_ns {
                self.best = self.second;
                self.second = self.third;
            }
        } else if self.second.time_ns == self.best.time_ns && age > window_ns / 4 {
            self.second = sample;
            self.third = sample;
        } else if self.third.time_ns == self.second.time_ns && age > window_ns / 2 {
            self.third = sample;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::WindowedMin;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn forgets_a_minimum_that_left_the_window() {
        let mut filter = WindowedMin::default();
        assert_eq!(filter.update(1_000, 10, 1_000), 10);
        assert_eq!(filter.update(1_500, 20, 1_000), 10);
        assert_eq!(filter.update(1_900, 30, 1_000), 10);
        assert_eq!(filter.update(2_100, 40, 1_000), 20);
    }

    #[test]
    fn a_long_silence_resets() {
        let mut filter = WindowedMin::default();
        filter.update(1, 10, 1_000);
        assert_eq!(filter.update(5_000, 99, 1_000), 99);
    }

    proptest! {
        /// Against a list of all samples: the result is a sample of the window, so never below its
        /// minimum, and exactly the minimum of all while nothing has expired.
        #[test]
        fn agrees_with_the_list_of_samples(
            // Each step looks at all before it, which takes Miri too long.
            steps in proptest::collection::vec(
                (1u64..400, 1u32..1_000),
                1..if cfg!(miri) { 20 } else { 200 },
            ),
            window in 1u64..2_000,
        ) {
            let mut filter = WindowedMin::default();
            let mut seen: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            for (gap, value) in steps {
                now += gap;
                seen.push((now, value));
                let got = filter.update(now, value, window);
                let within = seen.iter().filter(|(at, _)| now - at <= window);
                let exact = within.clone().map(|(_, v)| *v).min().expect("the newest is within");
                prop_assert!(got >= exact);
                prop_assert!(within.clone().any(|(_, v)| *v == got));
                if now - seen[0].0 <= window {
                    prop_assert_eq!(got, exact);
                }
                prop_assert_eq!(got, filter.get());
            }
        }
    }
}
