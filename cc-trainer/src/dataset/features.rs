//! Finds the kind of each input of a policy, and the transform that brings it to about unit size.
//!
//! The kinds are tried in this order: a *constant*; *binary* for two values; *probability* for
//! values within [0, 1]; *enum* for a few whole numbers; *continuous* for a variable that is about
//! normal; *box_cox* for one that is about normal after a Box-Cox transform; *quantile* for any
//! other, which is replaced by its rank among quantiles. Normality is judged by D'Agostino and
//! Pearson's K² (Biometrika 60, 1973). The rules and their thresholds are those of Horizon (J.
//! Gauci et al., arXiv 1811.00260, section 4) as far as they are published.

use cc_core::interface::{Interface, Quantity};
use cc_ebpf::Feature;
use cc_recording::feature_name;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::normalise::{Bend, Fit, Input, Normalizer};

/// Largest number of distinct values of an enum.
const MOST_LEVELS: usize = 10;
/// A variable whose K² is above this is far from normal.
const MOST_K2: f64 = 1_000.0;
/// Factor by which a Box-Cox transform must lower K² to be chosen.
const GAIN_K2: f64 = 10.0;
/// Powers of a Box-Cox transform that change too little to be worth it.
const NEAR_ONE: std::ops::RangeInclusive<f64> = 0.9..=1.1;
/// Number of intervals between the quantiles of [`FeatureKind::Quantile`].
const QUANTILES: usize = 20;
/// Number of values that normality is judged on. K² grows with their number,
/// but the thresholds do not.
const JUDGED: usize = 5_000;
/// Smallest number of values that normality can be judged on.
const FEWEST: usize = 20;
/// Smallest value that a Box-Cox transform is applied to; smaller ones are clamped to it.
const LEAST_POSITIVE: f64 = Bend::LEAST_POSITIVE as f64;

/// A sample of decisions: their observations and observed rewards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecisionSample {
    /// Names of the inputs, the reward last.
    names: Vec<String>,
    /// `[row][D + 1]`: the observation, and the reward that the policy saw.
    values: Vec<f32>,
    /// D + 1, the length of a row.
    width: usize,
}

/// The kind of an input, which decides its transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// All values are equal; the input becomes 0.
    Constant,
    /// One of two values, which become 0 and 1.
    Binary,
    /// Values within [0, 1], replaced by their logit.
    Probability,
    /// A few whole numbers, replaced by equally spaced levels and then standardised.
    Enum,
    /// About normally distributed values, which are standardised.
    Continuous,
    /// About normal after a power transform, which is applied before standardising.
    BoxCox,
    /// Any distribution; replaced by the rank among quantiles and then standardised.
    Quantile,
    /// The logarithmic shape used for simulated networks ([`crate::normalise::input_shapes`]),
    /// standardised. Never found, only chosen by an [`Override`].
    Logarithmic,
}

impl FeatureKind {
    /// All kinds with their names, as in `features.json` and in overrides.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("constant", Self::Constant),
        ("binary", Self::Binary),
        ("probability", Self::Probability),
        ("enum", Self::Enum),
        ("continuous", Self::Continuous),
        ("box_cox", Self::BoxCox),
        ("quantile", Self::Quantile),
        ("logarithmic", Self::Logarithmic),
    ];
}

/// A kind that the user has chosen for some inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Name of an input, or a prefix followed by `*` for all inputs that start with it.
    pub name: String,
    /// The kind of these inputs.
    pub kind: FeatureKind,
}

impl std::str::FromStr for Override {
    type Err = String;

    /// Parses `NAME=KIND`, such as `mean.delay=continuous`.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            let kinds: Vec<_> = FeatureKind::NAMES.iter().map(|(name, _)| *name).collect();
            format!("expected NAME=KIND, the kind one of {}", kinds.join(", "))
        };
        let (name, kind) = text.split_once('=').ok_or_else(expected)?;
        let found = FeatureKind::NAMES.iter().find(|(name, _)| *name == kind);
        let (_, kind) = found.ok_or_else(expected)?;
        Ok(Self {
            name: name.to_owned(),
            kind: *kind,
        })
    }
}

/// The result for all inputs, stored as `features.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Analysis {
    /// Number of decisions in the sample.
    pub decisions: usize,
    /// The inputs in the observation's order; the last one is the reward.
    pub features: Vec<Found>,
}

/// The result for one input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Name of the input, such as `mean.delay`.
    pub name: String,
    /// The kind that was found or chosen.
    pub kind: FeatureKind,
    /// Whether the kind was chosen by an [`Override`].
    pub chosen: bool,
    /// Smallest value in the sample.
    pub least: f32,
    /// Largest value in the sample.
    pub most: f32,
    /// Mean of the untransformed values.
    pub mean: f64,
    /// Standard deviation of the untransformed values.
    pub deviation: f64,
    /// K² of the untransformed values; `None` for fewer than 20 or equal values.
    pub k2: Option<f64>,
    /// The transform that follows from the kind.
    pub input: Input,
}

impl DecisionSample {
    /// Creates an empty sample, with the inputs' names of an interface.
    pub fn new(interface: &Interface) -> Self {
        let names = names(interface);
        Self {
            width: names.len(),
            names,
            values: Vec::new(),
        }
    }

    /// Adds the observation of a decision and the reward that the policy saw with it.
    pub fn add(&mut self, observation: &[f32], observed_reward: f32) {
        self.width = observation.len() + 1;
        self.values.extend_from_slice(observation);
        self.values.push(observed_reward);
    }

    /// Adds all decisions of another sample.
    pub fn append(&mut self, other: Self) {
        self.values.extend(other.values);
    }

    /// Returns the number of decisions in the sample.
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Returns whether the sample has no decisions.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Finds kind and transform of each input. `shapes` are the transforms of
    /// [`FeatureKind::Logarithmic`], in the observation's order.
    ///
    /// # Errors
    ///
    /// Returns a message naming the override when one fits no input.
    pub fn analyse(&self, shapes: &[Input], overrides: &[Override]) -> Result<Analysis, String> {
        check(&self.names, overrides)?;
        let rows = self.len();
        let features = (self.names.par_iter().enumerate()).map(|(column, name)| {
            let values: Vec<f32> = (0..rows)
                .map(|row| self.values[row * self.width + column])
                .collect();
            let chosen = overrides.iter().rev().find(|choice| choice.fits(name));
            let shape = shapes.get(column).cloned().unwrap_or(Input::LINEAR);
            found(name, &values, chosen.map(|choice| choice.kind), &shape)
        });
        Ok(Analysis {
            decisions: rows,
            features: features.collect(),
        })
    }
}

impl Override {
    fn fits(&self, name: &str) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == self.name,
        }
    }
}

impl Analysis {
    /// Returns the transforms of all inputs, for training and for the exported graph; `None`
    /// when there are no inputs.
    pub fn normalizer(&self) -> Option<Normalizer> {
        let (reward, observation) = self.features.split_last()?;
        Some(Normalizer {
            observation: observation
                .iter()
                .map(|found| found.input.clone())
                .collect(),
            reward: reward.input.clone(),
        })
    }
}

/// Checks that each override fits at least one of the names.
///
/// # Errors
///
/// Returns a message naming the override when one fits no input.
pub fn check(names: &[String], overrides: &[Override]) -> Result<(), String> {
    let stray = |choice: &&Override| !names.iter().any(|name| choice.fits(name));
    match overrides.iter().find(stray) {
        None => Ok(()),
        Some(choice) => {
            let some: Vec<_> = names.iter().map(String::as_str).take(3).collect();
            Err(format!(
                "no input is called `{}`; inputs are called {} and so on, \
                 as listed in features.json",
                choice.name,
                some.join(", ")
            ))
        }
    }
}

/// Returns the names of an observation's values in order, followed by `reward`.
///
/// Examples are `sum.acked`, `max.delay`, `fraction.marked`, `situation.depth`, `past1.*2` (whether
/// the newest decision was `*2`), `past1.cwnd` (the cwnd that it set) and `series.delay.2` (the
/// mean delay two windows before the observed one).
pub fn names(interface: &Interface) -> Vec<String> {
    let mut names = Vec::new();
    for statistic in ["sum", "mean", "std", "min", "max"] {
        for feature in Feature::ALL {
            names.push(format!("{statistic}.{}", feature_name(feature)));
        }
    }
    for fraction in interface.fractions() {
        names.push(format!("fraction.{}", fraction.name()));
    }
    for aspect in interface.aspects() {
        names.push(format!("situation.{}", aspect.name()));
    }
    for past in (1..=interface.history).rev() {
        for action in interface.actions.actions() {
            names.push(format!("past{past}.{action}"));
        }
        names.push(format!("past{past}.cwnd"));
    }
    for quantity in Quantity::ALL {
        let name = match quantity {
            Quantity::Mean(feature) => feature_name(feature),
            Quantity::Fraction(fraction) => fraction.name().to_owned(),
        };
        for before in (0..interface.series).rev() {
            names.push(format!("series.{name}.{before}"));
        }
    }
    names.push("reward".to_owned());
    names
}

/// Analyses the values of one input.
fn found(name: &str, values: &[f32], chosen: Option<FeatureKind>, shape: &Input) -> Found {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    let wide: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
    let (mean, deviation) = moments(&wide);
    let judged = judged(&wide);
    let k2 = k_squared(&judged);
    let kind = chosen.unwrap_or_else(|| kind(&sorted, &judged, k2));
    Found {
        name: name.to_owned(),
        kind,
        chosen: chosen.is_some(),
        least: sorted.first().copied().unwrap_or(0.0),
        most: sorted.last().copied().unwrap_or(0.0),
        mean,
        deviation,
        k2,
        input: input(kind, &sorted, &judged, shape),
    }
}

/// Finds the kind of an input by the rules of the module.
fn kind(sorted: &[f32], judged: &[f64], k2: Option<f64>) -> FeatureKind {
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
        return FeatureKind::Constant;
    };
    let levels = levels(sorted);
    if levels.len() == 1 {
        return FeatureKind::Constant;
    }
    if levels.len() == 2 {
        return FeatureKind::Binary;
    }
    if least >= 0.0 && most <= 1.0 {
        return FeatureKind::Probability;
    }
    let whole = levels
        .iter()
        .all(|level| level.fract() == 0.0 && *level >= 0.0);
    if levels.len() <= MOST_LEVELS && whole {
        return FeatureKind::Enum;
    }
    let Some(k2) = k2 else {
        return FeatureKind::Continuous;
    };
    let (power, shift) = box_cox(judged);
    if !NEAR_ONE.contains(&power) {
        let bent: Vec<f64> = judged.iter().map(|x| bend(*x, power, shift)).collect();
        let after = k_squared(&bent).unwrap_or(f64::INFINITY);
        if k2 > GAIN_K2 * after && after <= MOST_K2 {
            return FeatureKind::BoxCox;
        }
    }
    match k2 > MOST_K2 {
        true => FeatureKind::Quantile,
        false => FeatureKind::Continuous,
    }
}

/// Returns the transform of a kind, with mean and gain fitted to the values.
fn input(kind: FeatureKind, sorted: &[f32], judged: &[f64], shape: &Input) -> Input {
    let fitted = |input: Input| {
        let mut fit = Fit::new(vec![input]);
        for &value in sorted {
            fit.add(&[value], 0.0);
        }
        fit.normalizer().observation.remove(0)
    };
    let none = Input {
        slope: 0.0,
        ..Input::LINEAR
    };
    let bent = |bend| Input {
        bend: Some(bend),
        ..none.clone()
    };
    let least = sorted.first().copied().unwrap_or(0.0);
    let most = sorted.last().copied().unwrap_or(0.0);
    match kind {
        FeatureKind::Constant => Input {
            gain: 0.0,
            ..Input::LINEAR
        },
        FeatureKind::Binary if most > least => Input {
            mean: least,
            gain: 1.0 / (most - least),
            ..Input::LINEAR
        },
        FeatureKind::Probability => bent(Bend::Logit),
        FeatureKind::Enum => fitted(bent(Bend::Ramps {
            knots: levels(sorted),
        })),
        FeatureKind::Binary | FeatureKind::Continuous => fitted(Input::LINEAR),
        FeatureKind::BoxCox => {
            let (power, shift) = box_cox(judged);
            fitted(bent(Bend::BoxCox {
                power: power as f32,
                shift: shift as f32,
            }))
        }
        FeatureKind::Quantile => {
            let last = sorted.len().saturating_sub(1);
            let at = |i: usize| sorted.get(i * last / QUANTILES).copied().unwrap_or(0.0);
            let knots: Vec<f32> = (0..=QUANTILES).map(at).collect();
            fitted(bent(Bend::Ramps {
                knots: levels(&knots),
            }))
        }
        FeatureKind::Logarithmic => fitted(shape.clone()),
    }
}

/// Returns the distinct ones of sorted values.
fn levels(sorted: &[f32]) -> Vec<f32> {
    let mut levels = sorted.to_vec();
    levels.dedup();
    levels
}

/// Returns at most [`JUDGED`] values, evenly spaced over the values in their original order.
fn judged(values: &[f64]) -> Vec<f64> {
    let step = values.len().div_ceil(JUDGED).max(1);
    values.iter().copied().step_by(step).collect()
}

/// Returns mean and standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / count;
    (mean, square.sqrt())
}

/// Returns D'Agostino and Pearson's omnibus statistic K², distributed about as χ² with two degrees
/// of freedom for a normal variable. `None` for fewer than 20 values, or equal ones.
fn k_squared(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let (mean, deviation) = moments(values);
    if values.len() < FEWEST || deviation <= 1e-12 * mean.abs().max(1e-12) {
        return None;
    }
    let power = |exponent| {
        let terms = values
            .iter()
            .map(|value| ((value - mean) / deviation).powi(exponent));
        terms.sum::<f64>() / n
    };
    Some(skewness_z(n, power(3)).powi(2) + kurtosis_z(n, power(4)).powi(2))
}

/// Transforms a sample's skewness to a standard normal variable
/// (R. D'Agostino, Biometrika 57, 1970).
fn skewness_z(n: f64, skewness: f64) -> f64 {
    let y = skewness * ((n + 1.0) * (n + 3.0) / (6.0 * (n - 2.0))).sqrt();
    let beta = 3.0 * (n * n + 27.0 * n - 70.0) * (n + 1.0) * (n + 3.0)
        / ((n - 2.0) * (n + 5.0) * (n + 7.0) * (n + 9.0));
    let w2 = (2.0 * (beta - 1.0)).sqrt() - 1.0;
    let delta = 1.0 / (0.5 * w2.ln()).sqrt();
    let alpha = (2.0 / (w2 - 1.0)).sqrt();
    let ratio = y / alpha;
    delta * (ratio + (ratio * ratio + 1.0).sqrt()).ln()
}

/// Transforms a sample's kurtosis to a standard normal variable (F. Anscombe and
/// W. Glynn, Biometrika 70, 1983).
fn kurtosis_z(n: f64, kurtosis: f64) -> f64 {
    let expected = 3.0 * (n - 1.0) / (n + 1.0);
    let variance = 24.0 * n * (n - 2.0) * (n - 3.0) / ((n + 1.0).powi(2) * (n + 3.0) * (n + 5.0));
    let x = (kurtosis - expected) / variance.sqrt();
    let root = 6.0 * (n * n - 5.0 * n + 2.0) / ((n + 7.0) * (n + 9.0))
        * (6.0 * (n + 3.0) * (n + 5.0) / (n * (n - 2.0) * (n - 3.0))).sqrt();
    let a = 6.0 + 8.0 / root * (2.0 / root + (1.0 + 4.0 / (root * root)).sqrt());
    let inner = (1.0 - 2.0 / a) / (1.0 + x * (2.0 / (a - 4.0)).sqrt());
    (1.0 - 2.0 / (9.0 * a) - inner.cbrt()) / (2.0 / (9.0 * a)).sqrt()
}

/// Returns the power of maximum likelihood (G. Box and D. Cox, 1964), and the shift that is added
/// first so that the smallest value is 0.
fn box_cox(values: &[f64]) -> (f64, f64) {
    let shift = -values.iter().copied().fold(f64::INFINITY, f64::min);
    let shift = if shift.is_finite() { shift } else { 0.0 };
    let logs: f64 = values
        .iter()
        .map(|x| (x + shift).max(LEAST_POSITIVE).ln())
        .sum();
    let likelihood = |power: f64| {
        let bent: Vec<f64> = values.iter().map(|x| bend(*x, power, shift)).collect();
        let (_, deviation) = moments(&bent);
        (power - 1.0) * logs - values.len() as f64 * deviation.max(1e-300).ln()
    };
    // Golden-section search: the likelihood has a single maximum.
    const SHARE: f64 = 0.618_033_988_749_894_9;
    let (mut low, mut high) = (-2.0, 3.0);
    let (mut a, mut b) = (high - SHARE * (high - low), low + SHARE * (high - low));
    let (mut at_a, mut at_b) = (likelihood(a), likelihood(b));
    for _ in 0..30 {
        if at_a > at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - SHARE * (high - low);
            at_a = likelihood(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + SHARE * (high - low);
            at_b = likelihood(b);
        }
    }
    (0.5 * (low + high), shift)
}

/// Applies the Box-Cox transform with this power after adding the shift.
fn bend(x: f64, power: f64, shift: f64) -> f64 {
    let x = (x + shift).max(LEAST_POSITIVE);
    match power.abs() < 1e-6 {
        true => x.ln(),
        false => ((power * x.ln()).exp() - 1.0) / power,
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use rand_distr::{LogNormal, Normal};

    use super::*;

    const COUNT: usize = 4_000;

    fn judge(values: &[f32]) -> Found {
        found("x", values, None, &Input::LINEAR)
    }

    fn drawn(mut one: impl FnMut(&mut StdRng) -> f32) -> Vec<f32> {
        let mut random = StdRng::seed_from_u64(5);
        (0..COUNT).map(|_| one(&mut random)).collect()
    }

    #[test]
    fn each_kind_is_distinguished_from_the_others() {
        let normal = Normal::new(50.0_f32, 10.0).expect("valid");
        let skewed = LogNormal::new(1.0_f32, 0.7).expect("valid");
        for (kind, values) in [
            (FeatureKind::Constant, drawn(|_| 3.5)),
            (
                FeatureKind::Binary,
                drawn(|r| if r.random() { 7.0 } else { 2.0 }),
            ),
            (FeatureKind::Probability, drawn(rand::RngExt::random)),
            (FeatureKind::Enum, drawn(|r| r.random_range(0..5_u8).into())),
            (FeatureKind::Continuous, drawn(|r| r.sample(normal))),
            (FeatureKind::BoxCox, drawn(|r| r.sample(skewed) + 3.0)),
            // Two clusters far apart, which no power transform makes normal.
            (
                FeatureKind::Quantile,
                drawn(|r| {
                    let far = if r.random_bool(0.9) { 0.0 } else { 1e4 };
                    far + r.random_range(0.0..1.0_f32)
                }),
            ),
        ] {
            let found = judge(&values);
            assert_eq!(found.kind, kind, "{found:?}");
            // Whatever the kind, the network's input is of about unit size.
            let seen: Vec<f64> = values
                .iter()
                .map(|&x| found.input.apply(x).into())
                .collect();
            let (mean, deviation) = moments(&seen);
            assert!(
                mean.abs() < 1.0 && deviation < 2.5,
                "{kind:?}: {mean} {deviation}"
            );
            if kind != FeatureKind::Constant {
                assert!(deviation > 0.3, "{kind:?}: {deviation}");
            }
        }
    }

    /// The examples in the documentation of `scipy.stats.skewtest` and `kurtosistest`.
    #[test]
    fn the_parts_of_k2_match_scipy() {
        let power = |values: &[f64], exponent| {
            let (mean, deviation) = moments(values);
            let terms = values
                .iter()
                .map(|x| ((x - mean) / deviation).powi(exponent));
            terms.sum::<f64>() / values.len() as f64
        };
        let z = skewness_z(8.0, power(&[2.0, 8.0, 0.0, 4.0, 1.0, 9.0, 9.0, 0.0], 3));
        assert!((z - 0.446_263_853_741_969_75).abs() < 1e-9, "{z}");
        let line: Vec<f64> = (0..20).map(f64::from).collect();
        let z = kurtosis_z(20.0, power(&line, 4));
        assert!((z + 1.705_810_415_212_206_2).abs() < 1e-9, "{z}");
        assert_eq!(k_squared(&line).map(|k2| k2 > 2.9), Some(true));
        assert_eq!(k_squared(&[1.0; 50]), None);
        assert_eq!(k_squared(&[1.0, 2.0]), None);
    }

    #[test]
    fn a_power_transform_makes_a_log_normal_normal() {
        let skewed = LogNormal::new(0.0_f32, 0.5).expect("valid");
        // The values start at 0, so that the shift is 0.
        let mut values = drawn(|r| r.sample(skewed));
        values.push(0.0);
        let wide: Vec<f64> = values.iter().map(|&x| x.into()).collect();
        let (power, shift) = box_cox(&wide[..COUNT]);
        assert!(power.abs() < 0.5 && shift < 0.0, "{power} {shift}");
    }

    #[test]
    fn overrides_replace_the_kinds_that_were_found() {
        let interface = Interface::default();
        let mut sample = DecisionSample::new(&interface);
        let width = interface.observation_len();
        for row in 0..100 {
            let observation: Vec<f32> = (0..width).map(|i| (row * i % 17) as f32).collect();
            sample.add(&observation, row as f32);
        }
        let shapes = vec![Input::logarithmic(1.0); width];
        let overrides: Vec<Override> =
            ["mean.*=quantile", "mean.delay=continuous", "reward=binary"]
                .map(|text| text.parse().expect("valid"))
                .into();
        let analysis = sample.analyse(&shapes, &overrides).expect("they fit");
        let of = |name: &str| {
            let found = analysis.features.iter().find(|found| found.name == name);
            found.expect("an input").clone()
        };
        assert_eq!(of("mean.cwnd").kind, FeatureKind::Quantile);
        assert_eq!(of("mean.delay").kind, FeatureKind::Continuous);
        assert!(of("reward").chosen && !of("max.delay").chosen);
        let normalizer = analysis.normalizer().expect("inputs");
        assert_eq!(normalizer.observation.len(), width);

        let wrong: Override = "mean.speed=enum".parse().expect("well-formed");
        let error = sample
            .analyse(&shapes, &[wrong])
            .expect_err("no such input");
        assert!(
            error.contains("`mean.speed`") && error.contains("sum.rtt_min"),
            "{error}"
        );
        let error = "mean.delay=round"
            .parse::<Override>()
            .expect_err("no such kind");
        assert!(error.contains("quantile"), "{error}");
    }
}
