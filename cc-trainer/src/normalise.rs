//! Normalisation: the transform of observations and rewards before they enter a network.
//!
//! Each input goes through `clip((ln(1 + curvature · max(0, x)) + slope · x − mean) / deviation)`.
//! Quantities that range over orders of magnitude have a curvature, chosen so that 1 inside the
//! logarithm is about the smallest amount that matters (a millisecond, a segment); the others have
//! a slope of 1. An analysis of recorded inputs ([`crate::dataset::features`]) may choose another
//! transform ([`Bend`]). Mean and deviation are fitted once, on the first frames, and constant from
//! then on, because a network must not see its inputs move. The policy file contains the transform.

mod inputs;

use serde::{Deserialize, Serialize};

pub use inputs::input_shapes;

/// Normalised values are clipped to ± this.
const LIMIT: f32 = 10.0;

/// The smallest deviation that inputs are divided by, so that the rare changes of a nearly constant
/// input are not magnified without bound.
const LEAST_DEVIATION: f64 = 0.05;

/// The transforms of an environment's observation and of the reward that its policy sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalizer {
    /// The transform of each element of the observation, in order.
    pub observation: Vec<Input>,
    /// The transform of the observed reward.
    pub reward: Input,
}

/// The transform of one input: the sum of its logarithmic and linear parts, or its bend; less the
/// mean; times the gain; clipped to ±10, or to another limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Factor of the input inside the logarithm; 0 for no logarithmic part.
    pub curvature: f32,
    /// Factor of the linear part; 0 for none.
    pub slope: f32,
    /// Mean of the transformed input, which is subtracted.
    pub mean: f32,
    /// 1/deviation; 0 for an input that never changed, whose result is 0.
    pub gain: f32,
    /// The result is clipped to ± this: [`Normalizer::LIMIT`], but for [raw](Normalizer::raw)
    /// inputs.
    #[serde(default = "limit", skip_serializing_if = "is_limit")]
    pub limit: f32,
    /// A transform in place of the logarithmic and linear parts, which are 0 then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bend: Option<Bend>,
}

fn limit() -> f32 {
    LIMIT
}

fn is_limit(limit: &f32) -> bool {
    *limit == LIMIT
}

/// A nonlinear transform of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Bend {
    /// Box and Cox's transform ((x + shift)^power − 1)/power, with x + shift at least
    /// [`Bend::LEAST_POSITIVE`]; for a power of 0, ln(x + shift).
    BoxCox {
        /// The exponent, called λ by Box and Cox.
        power: f32,
        /// Added to the input first.
        shift: f32,
    },
    /// The logit ln(x/(1 − x)), with x at least [`Bend::MARGIN`] from 0 and 1.
    Logit,
    /// A piecewise linear function from 0 at the first knot to 1 at the last,
    /// which rises by the same amount between any two neighbouring knots, and is
    /// constant outside (a quantile transform).
    Ramps {
        /// Rising values: at least two, or none for a constant 0.
        knots: Vec<f32>,
    },
}

impl Bend {
    /// The smallest value that a power is taken of.
    pub const LEAST_POSITIVE: f32 = 1e-4;
    /// Exponents with a smaller absolute value stand for the logarithm.
    pub const LEAST_POWER: f32 = 1e-3;
    /// The smallest distance from 0 and 1 that a logit is taken at.
    pub const MARGIN: f32 = 1e-4;

    fn apply(&self, x: f32) -> f32 {
        match self {
            Self::BoxCox { power, shift } => {
                let log = (x + shift).max(Self::LEAST_POSITIVE).ln();
                match power.abs() < Self::LEAST_POWER {
                    true => log,
                    false => ((power * log).exp() - 1.0) / power,
                }
            }
            Self::Logit => {
                let x = x.clamp(Self::MARGIN, 1.0 - Self::MARGIN);
                x.ln() - (1.0 - x).ln()
            }
            Self::Ramps { knots } => {
                let ramps = knots.windows(2).map(|ends| {
                    let width = ends[1] - ends[0];
                    (x - ends[0]).clamp(0.0, width) / width
                });
                ramps.sum::<f32>() / knots.len().saturating_sub(1).max(1) as f32
            }
        }
    }
}

impl Normalizer {
    /// Normalised values are clipped to ± this.
    pub const LIMIT: f32 = LIMIT;

    /// A transform of observations of this length, and of rewards, that only clips them.
    pub fn identity(observation: usize) -> Self {
        Self {
            observation: vec![Input::LINEAR; observation],
            reward: Input::LINEAR,
        }
    }

    /// The inputs as mvfst-rl's networks see them (arXiv 1910.04054, appendix): observations as
    /// they are, and the reward clipped to ±1.
    pub fn raw(observation: usize) -> Self {
        /// Far beyond every observation, so that nothing is clipped.
        const FAR: f32 = 1e9;
        let of = |limit| Input {
            limit,
            ..Input::LINEAR
        };
        Self {
            observation: vec![of(FAR); observation],
            reward: of(1.0),
        }
    }

    /// Transforms an observation in place.
    pub fn apply(&self, observation: &mut [f32]) {
        for (value, input) in observation.iter_mut().zip(&self.observation) {
            *value = input.apply(*value);
        }
    }
}

impl Input {
    /// The identity transform, but for clipping to ±10.
    pub const LINEAR: Self = Self {
        curvature: 0.0,
        slope: 1.0,
        mean: 0.0,
        gain: 1.0,
        limit: LIMIT,
        bend: None,
    };

    /// The transform ln(1 + curvature · max(0, x)).
    pub fn logarithmic(curvature: f32) -> Self {
        Self {
            curvature,
            slope: 0.0,
            ..Self::LINEAR
        }
    }

    /// Transforms a value of the input.
    pub fn apply(&self, x: f32) -> f32 {
        if self.gain == 0.0 {
            return 0.0;
        }
        ((self.bent(x) - self.mean) * self.gain).clamp(-self.limit, self.limit)
    }

    fn bent(&self, x: f32) -> f32 {
        if let Some(bend) = &self.bend {
            return bend.apply(x);
        }
        let linear = if self.slope == 0.0 {
            0.0
        } else {
            self.slope * x
        };
        if self.curvature == 0.0 {
            return linear;
        }
        (1.0 + self.curvature * x.max(0.0)).ln() + linear
    }

    fn fitted(&self, moments: &InputMoments, frames: u64) -> Self {
        let deviation = (moments.squares / frames.max(1) as f64).sqrt();
        // The deviation of a constant is 0 but for rounding.
        let constant = deviation <= 1e-6 * moments.mean.abs().max(1e-3);
        let gain = if constant {
            0.0
        } else {
            1.0 / deviation.max(LEAST_DEVIATION)
        };
        Self {
            mean: moments.mean as f32,
            gain: gain as f32,
            ..self.clone()
        }
    }
}

/// Fits the means and deviations of a [`Normalizer`] to frames, one at a time (B. P. Welford, "Note
/// on a Method for Calculating Corrected Sums of Squares and Products", Technometrics 1962).
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    shape: Normalizer,
    frames: u64,
    observation: Vec<InputMoments>,
    reward: InputMoments,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct InputMoments {
    mean: f64,
    /// Σ (value − mean)².
    squares: f64,
}

impl Fit {
    /// A fit without frames, of inputs with these transforms, whose means and gains are ignored.
    pub fn new(shapes: Vec<Input>) -> Self {
        Self {
            frames: 0,
            observation: vec![InputMoments::default(); shapes.len()],
            reward: InputMoments::default(),
            shape: Normalizer {
                observation: shapes,
                reward: Input::LINEAR,
            },
        }
    }

    /// Adds a frame: an observation and the reward seen with it.
    pub fn add(&mut self, observation: &[f32], reward: f32) {
        self.frames += 1;
        let frames = self.frames as f64;
        for ((moments, input), &value) in self
            .observation
            .iter_mut()
            .zip(&self.shape.observation)
            .zip(observation)
        {
            moments.add(f64::from(input.bent(value)), frames);
        }
        self.reward
            .add(f64::from(self.shape.reward.bent(reward)), frames);
    }

    /// Number of frames added so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The normaliser fitted to the frames so far. Without frames, it turns every value into 0.
    pub fn normalizer(&self) -> Normalizer {
        let inputs = self.shape.observation.iter().zip(&self.observation);
        Normalizer {
            observation: inputs
                .map(|(input, moments)| input.fitted(moments, self.frames))
                .collect(),
            reward: self.shape.reward.fitted(&self.reward, self.frames),
        }
    }
}

impl InputMoments {
    fn add(&mut self, value: f64, frames: f64) {
        let before = value - self.mean;
        self.mean += before / frames;
        self.squares += before * (value - self.mean);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Mean and deviation by two passes in f64.
    fn moments(values: &[f64]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let square = |v: &f64| (v - mean).powi(2);
        (mean, (values.iter().map(square).sum::<f64>() / n).sqrt())
    }

    proptest! {
        #[test]
        fn fitted_inputs_have_mean_0_and_deviation_1(
            values in prop::collection::vec(0.0_f32..2000.0, 3..200),
            curvature in prop_oneof![Just(0.0_f32), 0.1_f32..100.0],
        ) {
            let input = match curvature {
                0.0 => Input::LINEAR,
                _ => Input::logarithmic(curvature),
            };
            let mut fit = Fit::new(vec![input.clone()]);
            for &value in &values {
                fit.add(&[value], -value);
            }
            prop_assert_eq!(fit.frames(), values.len() as u64);
            let normalizer = fit.normalizer();
            let bent: Vec<_> = values.iter().map(|&v| f64::from(input.bent(v))).collect();
            let (mean, deviation) = moments(&bent);
            prop_assume!(deviation > LEAST_DEVIATION);
            let found = &normalizer.observation[0];
            prop_assert!((f64::from(found.mean) - mean).abs() < 1e-4 * mean.abs().max(1.0));
            prop_assert!((f64::from(found.gain) * deviation - 1.0).abs() < 1e-3);
            for &value in &values {
                let mut observation = [value];
                normalizer.apply(&mut observation);
                let standard = (f64::from(input.bent(value)) - mean) / deviation;
                let expected = standard.clamp(-10.0, 10.0);
                prop_assert!((f64::from(observation[0]) - expected).abs() < 1e-2);
            }
        }
    }

    #[test]
    fn a_constant_input_becomes_0_and_a_nearly_constant_one_stays_bounded() {
        let mut fit = Fit::new(vec![Input::logarithmic(0.7), Input::LINEAR]);
        for i in 0..10_000 {
            fit.add(&[14.48, if i == 77 { 1.0 } else { 0.0 }], 0.0);
        }
        let normalizer = fit.normalizer();
        let mut observation = [99.0, 1.0];
        normalizer.apply(&mut observation);
        assert_eq!(observation[0], 0.0);
        assert!((0.5..=LIMIT).contains(&observation[1]), "{observation:?}");
        assert_eq!(normalizer.reward.apply(5.0), 0.0);
    }

    #[test]
    fn raw_inputs_stay_as_they_are_but_for_the_reward() {
        let normalizer = Normalizer::raw(2);
        let mut observation = [2_896.0, -0.5];
        normalizer.apply(&mut observation);
        assert_eq!(observation, [2_896.0, -0.5]);
        assert_eq!(
            [-7.0, 0.25].map(|x| normalizer.reward.apply(x)),
            [-1.0, 0.25]
        );
        let json = serde_json::to_string(&normalizer).expect("plain data");
        let back: Normalizer = serde_json::from_str(&json).expect("its own format");
        assert_eq!(back, normalizer);
        // The usual limit is not written, and is what an older file means.
        let usual = serde_json::to_string(&Input::LINEAR).expect("plain data");
        assert!(!usual.contains("limit"), "{usual}");
        let back: Input = serde_json::from_str(&usual).expect("its own format");
        assert_eq!(back.limit, Normalizer::LIMIT);
    }

    #[test]
    fn a_logarithmic_input_takes_negative_values_for_0() {
        assert_eq!(Input::logarithmic(1.0).apply(-5.0), 0.0);
        assert_eq!(Input::LINEAR.apply(-5.0), -5.0);
        assert_eq!(Input::LINEAR.apply(-5e9), -LIMIT);
    }

    #[test]
    fn a_normalizer_survives_serialisation() {
        let mut fit = Fit::new(vec![Input::logarithmic(0.7); 3]);
        fit.add(&[1.0, 2.0, 3.0], 0.25);
        fit.add(&[2.0, 2.5, 7.0], 0.5);
        let normalizer = fit.normalizer();
        let json = serde_json::to_string(&normalizer).expect("plain data");
        let back: Normalizer = serde_json::from_str(&json).expect("its own format");
        assert_eq!(back, normalizer);
    }
}
