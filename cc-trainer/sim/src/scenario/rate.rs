//! Integration of a rate over time: the bits that it carries, and the time that bits take.

use std::time::Duration;

use super::{Rate, RatePoint};

/// Number of bits that counts as none. It is far below the number of bits that rounding a time to 1
/// ns stands for, so that a packet that finishes just before an outage does not wait for its end.
const NOTHING: f64 = 1e-3;

impl Rate {
    /// A constant rate, in bit/s.
    pub fn constant(bits_per_second: f64) -> Self {
        let start = RatePoint {
            at: Duration::ZERO,
            bits_per_second,
            ramp: false,
        };
        Self {
            points: vec![start],
            repeat: None,
        }
    }

    /// The rate at a time, in bit/s.
    pub fn at(&self, time: Duration) -> f64 {
        let (_, offset) = self.cycle(nanos(time));
        self.piece(self.index(offset)).at(offset)
    }

    /// Number of bits carried in `[from, to)`.
    pub fn bits(&self, from: Duration, to: Duration) -> f64 {
        if to <= from {
            return 0.0;
        }
        let (first, start) = self.cycle(nanos(from));
        let (last, end) = self.cycle(nanos(to));
        match last - first {
            0 => self.bits_in_cycle(start, end),
            // Whole cycles in between are multiplied, so that long runs lose no precision.
            cycles => {
                self.bits_in_cycle(start, self.period())
                    + (cycles - 1) as f64 * self.bits_in_cycle(0, self.period())
                    + self.bits_in_cycle(0, end)
            }
        }
    }

    /// Mean rate in bit/s, over one cycle if the rate repeats. Otherwise the last point counts for
    /// as long as all points before it.
    pub fn mean(&self) -> f64 {
        let last = self.points.last().map_or(0, |point| nanos(point.at));
        let span = match self.repeat {
            Some(repeat) => nanos(repeat),
            None => last.saturating_mul(2),
        };
        match span {
            0 => self.at(Duration::ZERO),
            _ => self.bits_in_cycle(0, span) / seconds(span),
        }
    }

    /// Time at which `bits` bits are sent whose transmission starts at `start`. Times are
    /// nanoseconds since the scenario's start; `u64::MAX` is never.
    #[inline]
    pub fn finish(&self, start: u64, bits: f64) -> u64 {
        match self.points.as_slice() {
            [only] if !only.ramp => later(start, bits / only.bits_per_second),
            _ => self.finish_over_points(start, bits),
        }
    }

    fn finish_over_points(&self, start: u64, bits: f64) -> u64 {
        let (_, mut offset) = self.cycle(start);
        let mut base = start - offset;
        let mut left = bits;
        let mut index = self.index(offset);
        let mut skipped = self.repeat.is_none();
        loop {
            let piece = self.piece(index);
            let carried = piece.bits(offset, piece.end);
            if left <= carried + NOTHING {
                return later(base.saturating_add(offset), piece.time(offset, left)).min(
                    // The bits may fit only by the tolerance.
                    base.saturating_add(piece.end),
                );
            }
            if piece.end == u64::MAX {
                return u64::MAX;
            }
            left -= carried;
            offset = piece.end;
            index += 1;
            if index < self.points.len() {
                continue;
            }
            base = base.saturating_add(self.period());
            (offset, index) = (0, 0);
            if !skipped {
                skipped = true;
                let whole = self.bits_in_cycle(0, self.period());
                if whole <= 0.0 {
                    return u64::MAX;
                }
                // The last cycle is walked through even if the bits end exactly with it.
                let cycles = ((left / whole).ceil() - 1.0).max(0.0);
                base = base.saturating_add((cycles as u64).saturating_mul(self.period()));
                left -= cycles * whole;
            }
            if base == u64::MAX {
                return u64::MAX;
            }
        }
    }

    /// Index of the cycle that contains `time`, and the time since the start of that cycle, ns.
    fn cycle(&self, time: u64) -> (u64, u64) {
        match self.period() {
            u64::MAX | 0 => (0, time),
            period => (time / period, time % period),
        }
    }

    /// Length of a cycle in ns; `u64::MAX` if the rate does not repeat.
    fn period(&self) -> u64 {
        self.repeat.map_or(u64::MAX, nanos)
    }

    /// Index of the point that determines the rate at a time of a cycle.
    fn index(&self, offset: u64) -> usize {
        match self.points.as_slice() {
            [] | [_] => 0,
            points => points
                .partition_point(|point| nanos(point.at) <= offset)
                .saturating_sub(1),
        }
    }

    /// The piece of the rate that begins at a point.
    fn piece(&self, index: usize) -> RatePiece {
        let Some(point) = self.points.get(index) else {
            return RatePiece {
                start: 0,
                end: u64::MAX,
                from: 0.0,
                to: 0.0,
            };
        };
        let (end, next) = match (self.points.get(index + 1), self.points.first()) {
            (Some(next), _) => (nanos(next.at), Some(next)),
            (None, first) if self.repeat.is_some() => (self.period(), first),
            (None, _) => (u64::MAX, None),
        };
        let to = match next {
            Some(next) if point.ramp => next.bits_per_second,
            _ => point.bits_per_second,
        };
        RatePiece {
            start: nanos(point.at),
            end,
            from: point.bits_per_second,
            to,
        }
    }

    /// Number of bits carried between two times of the same cycle.
    fn bits_in_cycle(&self, from: u64, to: u64) -> f64 {
        let (first, last) = (self.index(from), self.index(to));
        (first..=last)
            .map(|index| {
                let piece = self.piece(index);
                piece.bits(from.max(piece.start), to.min(piece.end))
            })
            .sum()
    }
}

/// A piece of a rate, constant or linear. Times are nanoseconds since the start of the cycle.
#[derive(Clone, Copy, Debug)]
struct RatePiece {
    start: u64,
    /// End of the piece; `u64::MAX` is no end.
    end: u64,
    /// Rate at the start, bit/s.
    from: f64,
    /// Rate at the end, bit/s.
    to: f64,
}

impl RatePiece {
    /// Slope in bit/s per second.
    fn slope(&self) -> f64 {
        if self.from == self.to {
            0.0
        } else {
            (self.to - self.from) / seconds(self.end - self.start)
        }
    }

    /// The rate at a time of the piece, bit/s.
    fn at(&self, time: u64) -> f64 {
        self.from + self.slope() * seconds(time - self.start)
    }

    /// Number of bits carried between two times of the piece.
    fn bits(&self, from: u64, to: u64) -> f64 {
        if to <= from {
            0.0
        } else {
            (self.at(from) + self.at(to)) / 2.0 * seconds(to - from)
        }
    }

    /// Seconds that `bits` take from the time `from`, provided that they end within the piece.
    fn time(&self, from: u64, bits: f64) -> f64 {
        if bits <= 0.0 {
            return 0.0;
        }
        // The root of `slope t² / 2 + rate t = bits`, in the form without cancellation.
        let rate = self.at(from);
        let end = (rate * rate + 2.0 * self.slope() * bits).max(0.0).sqrt();
        2.0 * bits / (rate + end)
    }
}

/// Adds seconds to a time, rounded to the nearest nanosecond; `u64::MAX` for an infinite time. NaN
/// is 0 bits at rate 0, which take no time.
#[inline]
fn later(time: u64, seconds: f64) -> u64 {
    time.saturating_add(rounded(seconds * 1e9))
}

/// The nearest integer, of two the larger one; 0 for negative numbers and NaN.
#[inline]
fn rounded(value: f64) -> u64 {
    /// 2^52: from here to its double, neighbouring numbers differ by 1.
    const UNITS: f64 = (1_u64 << 52) as f64;
    if !(0.0..UNITS).contains(&value) {
        return value.round() as u64;
    }
    // Much quicker than `round`, which the baseline of x86-64 has no instruction for.
    let even = value + UNITS;
    let half_was_lost = value - (even - UNITS) == 0.5;
    even.to_bits() - UNITS.to_bits() + u64::from(half_was_lost)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEGABIT: f64 = 1e6;

    fn rate(points: &[(u64, f64, bool)], repeat_ms: Option<u64>) -> Rate {
        let points = points.iter().map(|&(ms, megabits, ramp)| RatePoint {
            at: Duration::from_millis(ms),
            bits_per_second: megabits * MEGABIT,
            ramp,
        });
        Rate {
            points: points.collect(),
            repeat: repeat_ms.map(Duration::from_millis),
        }
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Steps, ramps and outages, with or without repetition; the rate of at least one point is
    /// positive.
    fn any_rate() -> impl Strategy<Value = Rate> {
        let point = (
            1_u64..400,
            prop_oneof![1 => Just(0.0), 4 => 0.1_f64..200.0],
            any::<bool>(),
        );
        (
            0.5_f64..100.0,
            prop::collection::vec(point, 0..6),
            any::<bool>(),
            1_u64..400,
        )
            .prop_map(|(first, rest, repeats, tail)| {
                let mut points = vec![(0, first, false)];
                let mut at = 0;
                for (gap, megabits, ramp) in rest {
                    at += gap;
                    points.push((at, megabits, ramp));
                }
                if !repeats && let Some(last) = points.last_mut() {
                    last.1 = last.1.max(0.5);
                }
                rate(&points, repeats.then_some(at + tail))
            })
    }

    #[test]
    fn at_a_constant_rate_a_packet_takes_bits_over_rate() {
        let rate = Rate::constant(12.0 * MEGABIT);
        assert_eq!(rate.finish(5, 12_000.0), 1_000_005);
        assert_eq!(rate.bits(ms(500), ms(1500)), 12.0 * MEGABIT);
        assert_eq!(rate.mean(), 12.0 * MEGABIT);
        assert_eq!(rate.at(ms(77)), 12.0 * MEGABIT);
    }

    #[test]
    fn a_packet_crosses_a_step() {
        // 0.5 ms at 12 Mbit/s carry half of the packet; the rest is sent at 24 Mbit/s.
        let rate = rate(&[(0, 12.0, false), (10, 24.0, false)], None);
        assert_eq!(rate.finish(9_500_000, 12_000.0), 10_250_000);
        assert_eq!(rate.mean(), 18.0 * MEGABIT);
    }

    #[test]
    fn a_packet_waits_for_an_outage_to_end() {
        let rate = rate(
            &[(0, 12.0, false), (10, 0.0, false), (30, 12.0, false)],
            None,
        );
        assert_eq!(rate.finish(9_500_000, 12_000.0), 30_500_000);
        assert_eq!(
            rate.finish(9_000_000, 12_000.0),
            10_000_000,
            "through just before the outage"
        );
        assert_eq!(rate.finish(15_000_000, 12_000.0), 31_000_000);
        assert_eq!(rate.at(ms(15)), 0.0);
    }

    #[test]
    fn a_packet_never_finishes_in_an_endless_outage() {
        let rate = rate(&[(0, 12.0, false), (10, 0.0, false)], None);
        assert_eq!(rate.finish(20_000_000, 1.0), u64::MAX);
        assert_eq!(Rate::constant(0.0).finish(7, 1.0), u64::MAX);
        assert_eq!(Rate::constant(0.0).finish(7, 0.0), 7);
    }

    #[test]
    fn a_ramp_moves_linearly_and_the_last_one_back_to_the_start() {
        let up_and_down = rate(&[(0, 10.0, true), (1000, 30.0, true)], Some(2000));
        assert_eq!(up_and_down.at(ms(500)), 20.0 * MEGABIT);
        assert_eq!(up_and_down.at(ms(1500)), 20.0 * MEGABIT);
        assert_eq!(up_and_down.at(ms(3500)), 20.0 * MEGABIT);
        assert_eq!(up_and_down.bits(ms(0), ms(2000)), 40.0 * MEGABIT);
        assert_eq!(up_and_down.mean(), 20.0 * MEGABIT);
        // A million cycles take one division.
        assert_eq!(
            up_and_down.finish(0, 40.0 * MEGABIT * 1e6),
            2_000_000 * 1_000_000_000
        );
    }

    proptest! {
        #[test]
        fn numbers_are_rounded_as_by_the_standard_library(
            whole in 0..1_u64 << 52,
            part in prop::sample::select(vec![0.0, 0.25, 0.499_999_999, 0.5, 0.500_000_001, 0.9]),
            shift in 0..52,
        ) {
            let value = (whole >> shift) as f64 + part;
            prop_assert_eq!(rounded(value), value.round() as u64);
            prop_assert_eq!(rounded(-value), 0);
        }
    }

    #[test]
    fn numbers_beyond_all_times_are_rounded_too() {
        let odd = [
            0.499_999_999_999_999_94,
            4_503_599_627_370_495.5,
            1e18,
            f64::INFINITY,
        ];
        for value in odd {
            assert_eq!(rounded(value), value.round() as u64, "{value}");
        }
        assert_eq!(rounded(f64::NAN), 0);
    }

    proptest! {
        #[test]
        fn finish_is_the_inverse_of_bits(
            rate in any_rate(),
            start in 0_u64..5_000_000_000,
            bits in prop_oneof![Just(12_000.0), 1.0_f64..1e8],
        ) {
            let end = rate.finish(start, bits);
            prop_assert!(end >= start);
            if end < u64::MAX {
                let carried = rate.bits(Duration::from_nanos(start), Duration::from_nanos(end));
                // 1 ns at the highest rate is 0.2 bit.
                prop_assert!((carried - bits).abs() < 0.3, "carried {carried} of {bits}");
            }
        }

        #[test]
        fn bits_of_adjacent_periods_add_up(
            rate in any_rate(),
            mut times in prop::collection::vec(0_u64..5_000_000_000, 3),
        ) {
            times.sort_unstable();
            let [a, b, c] = [times[0], times[1], times[2]].map(Duration::from_nanos);
            let parts = rate.bits(a, b) + rate.bits(b, c);
            prop_assert!((parts - rate.bits(a, c)).abs() < 1e-2);
        }

        #[test]
        fn bits_are_the_integral_of_the_rate(
            rate in any_rate(),
            from in 0_u64..2000,
            length in 1_u64..500,
        ) {
            // Midpoint rule with fine steps, exact except at kinks inside a step.
            const STEPS_PER_MS: u64 = 20;
            let step = Duration::from_millis(1) / STEPS_PER_MS as u32;
            let sum: f64 = (0..length * STEPS_PER_MS)
                .map(|i| rate.at(ms(from) + step * i as u32 + step / 2) * step.as_secs_f64())
                .sum();
            let exact = rate.bits(ms(from), ms(from + length));
            prop_assert!((sum - exact).abs() <= 1e-6 * exact + 1e-3, "{sum} {exact}");
        }
    }
}
