//! Axes: the mapping from values to pixels, and the ticks.

/// A linear or logarithmic axis of a plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    is_log: bool,
    /// The least and the greatest value.
    values: (f64, f64),
    /// Positions of the two values in pixels. A vertical axis has the greater position first.
    places: (f64, f64),
}

impl Axis {
    /// A linear axis. Ends that are not finite or in the wrong order give an axis of nonzero length
    /// all the same.
    pub(super) fn linear(least: f64, greatest: f64, places: (f64, f64)) -> Self {
        let least = if least.is_finite() { least } else { 0.0 };
        let is_sound = greatest.is_finite() && greatest > least;
        Self {
            is_log: false,
            values: (least, if is_sound { greatest } else { least + 1.0 }),
            places,
        }
    }

    /// A logarithmic axis with some room around the positive values, which spans at least a factor
    /// of `span`.
    pub(super) fn log(values: impl Iterator<Item = f64>, span: f64, places: (f64, f64)) -> Self {
        let positive = values.filter(|value| value.is_finite() && *value > 0.0);
        let (least, greatest) = positive
            .fold((f64::INFINITY, 0.0_f64), |(least, greatest), value| {
                (least.min(value), greatest.max(value))
            });
        let (least, greatest) = if greatest > 0.0 {
            (least, greatest)
        } else {
            (1.0, 10.0)
        };
        let missing = (span / (greatest / least)).max(1.0).sqrt();
        let room = (greatest / least).powf(0.07).max(1.03) * missing;
        Self {
            is_log: true,
            values: (least / room, greatest * room),
            places,
        }
    }

    /// The position of a value in pixels; values beyond an end are placed at the end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.is_log { value.ln() } else { value };
        let value = value.clamp(self.values.0, self.values.1);
        let (least, greatest) = (scale(self.values.0), scale(self.values.1));
        let share = (scale(value) - least) / (greatest - least);
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// About `count` values to label, in order: multiples of 1, 2 and 5 times a power of ten.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        if !self.is_log {
            return self.steps(count);
        }
        let decades =
            (self.values.0.log10().floor() as i32)..=(self.values.1.log10().ceil() as i32);
        // 10^-1 is not exact; 1 / 10^1 is closer to the decimal digits.
        let power = |exponent: i32| match exponent {
            0.. => 10_f64.powi(exponent),
            _ => 1.0 / 10_f64.powi(-exponent),
        };
        let of = |factors: &'static [f64]| -> Vec<f64> {
            let all = decades
                .clone()
                .flat_map(|e| factors.iter().map(move |f| f * power(e)));
            all.filter(|tick| (self.values.0..=self.values.1).contains(tick))
                .collect()
        };
        let fine = of(&[1.0, 2.0, 5.0]);
        match fine.len() {
            0..=2 => self.steps(count),
            found if found <= count + 1 => fine,
            _ => {
                let coarse = of(&[1.0]);
                let every = coarse.len().div_ceil(count.max(1));
                coarse.into_iter().step_by(every.max(1)).collect()
            }
        }
    }

    /// About `count` multiples of one step.
    fn steps(&self, count: usize) -> Vec<f64> {
        let (least, greatest) = self.values;
        let rough = (greatest - least) / count.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let factors = [1.0, 2.0, 5.0, 10.0];
        let step = factors
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(rough);
        let (first, last) = (
            (least / step - 1e-6).ceil() as i64,
            (greatest / step + 1e-6).floor() as i64,
        );
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// The label of a tick: its value without the noise of binary fractions.
pub(super) fn label(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    match rounded.abs() {
        size if size >= 1e6 => format!("{}M", rounded / 1e6),
        size if size >= 1e4 => format!("{}k", rounded / 1e3),
        _ => format!("{}", rounded + 0.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ticks_of_a_log_axis_are_multiples_of_1_2_and_5() {
        let axis = Axis::log([12.0, 900.0].into_iter(), 2.0, (0.0, 100.0));
        assert_eq!(
            axis.ticks(8),
            [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
        );
        assert_eq!(axis.ticks(3), [10.0, 100.0, 1000.0]);
    }

    #[test]
    fn a_short_log_axis_has_evenly_spaced_ticks() {
        let axis = Axis::log([30.0, 34.0].into_iter(), 1.3, (0.0, 100.0));
        let ticks = axis.ticks(6);
        assert!((3..=7).contains(&ticks.len()), "{ticks:?}");
    }

    #[test]
    fn ticks_have_short_labels() {
        for (value, name) in [
            (0.1 + 0.2, "0.3"),
            (10.0, "10"),
            (20_000.0, "20k"),
            (-0.0, "0"),
        ] {
            assert_eq!(label(value), name);
        }
    }

    #[test]
    fn an_axis_without_values_has_a_length() {
        let axis = Axis::log([f64::NAN, 0.0].into_iter(), 2.0, (0.0, 100.0));
        assert!(axis.place(0.0).is_finite());
        assert!(!axis.ticks(5).is_empty());
        for (least, greatest) in [(0.0, 0.0), (f64::NAN, f64::INFINITY), (0.0, f64::NAN)] {
            assert!(
                Axis::linear(least, greatest, (0.0, 1.0))
                    .place(0.0)
                    .is_finite()
            );
        }
    }

    proptest! {
        #[test]
        fn a_reversed_log_axis_puts_less_further_on(a in 0.01..1e4_f64, b in 0.01..1e4_f64) {
            prop_assume!(a < b);
            let axis = Axis::log([a, b].into_iter(), 2.0, (400.0, 0.0));
            prop_assert!(axis.place(a) > axis.place(b));
            prop_assert!((0.0..=400.0).contains(&axis.place(a)));
        }

        #[test]
        fn ticks_rise_and_are_not_many(
            least in 0.0..1e3_f64, length in 1e-3..1e4_f64, count in 3_usize..9,
        ) {
            for axis in [
                Axis::linear(least, least + length, (0.0, 100.0)),
                Axis::log([least + 0.01, least + length + 0.02].into_iter(), 1.5, (0.0, 100.0)),
            ] {
                let ticks = axis.ticks(count);
                prop_assert!(ticks.len() <= count + 2, "{ticks:?}");
                prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{ticks:?}");
            }
        }
    }
}
