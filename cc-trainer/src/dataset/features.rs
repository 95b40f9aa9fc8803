//! What kind of number each input of a policy is, and the transform that makes it one of about unit size.
//!
//! In this order: a constant; two values are *binary*; all within [0, 1] a *probability*; whole numbers of which there are few an
//! *enum*; a variable that is about normal *continuous*; one that is after a Box-Cox transform *box_cox*; any other is replaced by
//! its rank among *quantiles*. Normality is judged by D'Agostino and Pearson's K² (Biometrika 60, 1973). The rules and their
//! thresholds are those of Horizon (arXiv 1811.00260, section 4) as far as they are public.

use cc_core::interface::Interface;
use cc_ebpf::Feature;
use cc_recording::feature_name;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::normalise::{Bend, Fit, Input, Normalizer};

/// Different values that still make an enum.
const MOST_LEVELS: usize = 10;
/// A variable whose K² is above this is far from normal.
const MOST_K2: f64 = 1_000.0;
/// A Box-Cox transform has to lower K² by this factor.
const GAIN_K2: f64 = 10.0;
/// Powers so near to 1 change nothing.
const NEAR_ONE: std::ops::RangeInclusive<f64> = 0.9..=1.1;
/// Quantiles of a rank.
const QUANTILES: usize = 20;
/// Values that normality is judged on: K² grows with their number, and the thresholds with none.
const JUDGED: usize = 5_000;
/// Fewest values that it can be judged on.
const FEWEST: usize = 20;
/// Box-Cox transforms take no value below this.
const LEAST_POSITIVE: f64 = Bend::LEAST_POSITIVE as f64;

/// Some decisions' observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Names of inputs.
    names: Vec<String>,
    /// `[row][D + 1]`: the observation and the reward that the policy saw.
    values: Vec<f32>,
    width: usize,
}

/// The kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Always the same; becomes 0.
    Constant,
    /// One of two values; become 0 and 1.
    Binary,
    /// Within [0, 1]; becomes its logit.
    Probability,
    /// One of a few whole numbers; each becomes a level of its own, equally far from the next.
    Enum,
    /// About normal; standardised.
    Continuous,
    /// About normal after a power transform; that, standardised.
    BoxCox,
    /// Anything; becomes its rank among quantiles, standardised.
    Quantile,
    /// What the trainer takes for simulated networks: a logarithm above a unit, standardised. Only by choice.
    Logarithmic,
}

impl Kind {
    /// All, with their names.
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

/// A kind that somebody chose for some inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The input's name, or one that ends in `*` for all that begin so.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
}

impl std::str::FromStr for Override {
    type Err = String;

    /// From `NAME=KIND`.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            let kinds: Vec<_> = Kind::NAMES.iter().map(|(name, _)| *name).collect();
            format!("expected NAME=KIND, the kind one of {}", kinds.join(", "))
        };
        let (name, kind) = text.split_once('=').ok_or_else(expected)?;
        let found = Kind::NAMES.iter().find(|(name, _)| *name == kind);
        let (_, kind) = found.ok_or_else(expected)?;
        Ok(Self {
            name: name.to_owned(),
            kind: *kind,
        })
    }
}

/// What was found of all inputs: `features.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Analysis {
    /// Decisions that it was found from.
    pub decisions: usize,
    /// Of each input, in the observation's order; the last is the reward.
    pub features: Vec<Found>,
}

/// What was found of one input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Found {
    /// Its name, such as `mean.delay`.
    pub name: String,
    /// What it was taken for.
    pub kind: Kind,
    /// Somebody said so.
    pub chosen: bool,
    /// Least value.
    pub least: f32,
    /// Largest value.
    pub most: f32,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// K² as it is; none for too few values.
    pub k2: Option<f64>,
    /// The transform.
    pub input: Input,
}

impl Sample {
    /// Of inputs with the names that they have in an environment.
    pub fn new(environment: &Interface) -> Self {
        let names = names(environment);
        Self {
            width: names.len(),
            names,
            values: Vec::new(),
        }
    }

    /// Adds a decision.
    pub fn add(&mut self, observation: &[f32], observed_reward: f32) {
        self.width = observation.len() + 1;
        self.values.extend_from_slice(observation);
        self.values.push(observed_reward);
    }

    /// Adds another sample's decisions.
    pub fn append(&mut self, other: Self) {
        self.values.extend(other.values);
    }

    /// Decisions in it.
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Finds out what each input is. `shapes` are what [`Kind::Logarithmic`] means for each of the observation.
    ///
    /// # Errors
    ///
    /// Overrides that fit no input, by name.
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
    /// The transforms of all inputs, for training and for the exported graph.
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

/// Checks that each override is of one of the names.
///
/// # Errors
///
/// The override that fits none.
pub fn check(names: &[String], overrides: &[Override]) -> Result<(), String> {
    let stray = |choice: &&Override| !names.iter().any(|name| choice.fits(name));
    match overrides.iter().find(stray) {
        None => Ok(()),
        Some(choice) => {
            let some: Vec<_> = names.iter().map(String::as_str).take(3).collect();
            Err(format!(
                "no input is called `{}`; they are called {} and so on, as features.json lists them",
                choice.name,
                some.join(", ")
            ))
        }
    }
}

/// The names of an observation's values in order, and of the reward: `sum.acked`, `max.delay`, `past1.*2`, `past1.cwnd` (1 is
/// the newest decision), `reward`.
pub fn names(environment: &Interface) -> Vec<String> {
    let mut names = Vec::new();
    for statistic in ["sum", "mean", "std", "min", "max"] {
        for feature in Feature::ALL {
            names.push(format!("{statistic}.{}", feature_name(feature)));
        }
    }
    for past in (1..=environment.history).rev() {
        for action in environment.actions.actions() {
            names.push(format!("past{past}.{action}"));
        }
        names.push(format!("past{past}.cwnd"));
    }
    names.push("reward".to_owned());
    names
}

fn found(name: &str, values: &[f32], chosen: Option<Kind>, shape: &Input) -> Found {
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

fn kind(sorted: &[f32], judged: &[f64], k2: Option<f64>) -> Kind {
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
        return Kind::Constant;
    };
    let levels = levels(sorted);
    if levels.len() == 1 {
        return Kind::Constant;
    }
    if levels.len() == 2 {
        return Kind::Binary;
    }
    if least >= 0.0 && most <= 1.0 {
        return Kind::Probability;
    }
    let whole = levels
        .iter()
        .all(|level| level.fract() == 0.0 && *level >= 0.0);
    if levels.len() <= MOST_LEVELS && whole {
        return Kind::Enum;
    }
    let Some(k2) = k2 else {
        return Kind::Continuous;
    };
    let (power, shift) = box_cox(judged);
    if !NEAR_ONE.contains(&power) {
        let bent: Vec<f64> = judged.iter().map(|x| bend(*x, power, shift)).collect();
        let after = k_squared(&bent).unwrap_or(f64::INFINITY);
        if k2 > GAIN_K2 * after && after <= MOST_K2 {
            return Kind::BoxCox;
        }
    }
    match k2 > MOST_K2 {
        true => Kind::Quantile,
        false => Kind::Continuous,
    }
}

/// The transform of a kind; means and gains are those of the values.
fn input(kind: Kind, sorted: &[f32], judged: &[f64], shape: &Input) -> Input {
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
        Kind::Constant => Input {
            gain: 0.0,
            ..Input::LINEAR
        },
        Kind::Binary if most > least => Input {
            mean: least,
            gain: 1.0 / (most - least),
            ..Input::LINEAR
        },
        Kind::Probability => bent(Bend::Logit),
        Kind::Enum => fitted(bent(Bend::Ramps {
            knots: levels(sorted),
        })),
        Kind::Binary | Kind::Continuous => fitted(Input::LINEAR),
        Kind::BoxCox => {
            let (power, shift) = box_cox(judged);
            fitted(bent(Bend::BoxCox {
                power: power as f32,
                shift: shift as f32,
            }))
        }
        Kind::Quantile => {
            let last = sorted.len().saturating_sub(1);
            let at = |i: usize| sorted.get(i * last / QUANTILES).copied().unwrap_or(0.0);
            let knots: Vec<f32> = (0..=QUANTILES).map(at).collect();
            fitted(bent(Bend::Ramps {
                knots: levels(&knots),
            }))
        }
        Kind::Logarithmic => fitted(shape.clone()),
    }
}

/// The different ones of sorted values; at least two, so that there is a ramp between them, unless there is one value alone.
fn levels(sorted: &[f32]) -> Vec<f32> {
    let mut levels = sorted.to_vec();
    levels.dedup();
    levels
}

/// Evenly spread over the values as they came.
fn judged(values: &[f64]) -> Vec<f64> {
    let step = values.len().div_ceil(JUDGED).max(1);
    values.iter().copied().step_by(step).collect()
}

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

/// D'Agostino and Pearson's omnibus statistic, about χ² with two degrees of freedom for normal variables; none for fewer than 20
/// values, or equal ones.
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

/// A sample's skewness as a standard normal variable (D'Agostino 1970).
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

/// A sample's kurtosis as a standard normal variable (Anscombe, Glynn 1983).
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

/// The power of the largest likelihood (Box, Cox 1964), and what is added before: values begin at 0.
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
    // Golden section: the likelihood has one maximum.
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
    fn each_kind_is_told_from_the_others() {
        let normal = Normal::new(50.0_f32, 10.0).expect("valid");
        let skewed = LogNormal::new(1.0_f32, 0.7).expect("valid");
        for (kind, values) in [
            (Kind::Constant, drawn(|_| 3.5)),
            (Kind::Binary, drawn(|r| if r.random() { 7.0 } else { 2.0 })),
            (Kind::Probability, drawn(|r| r.random())),
            (Kind::Enum, drawn(|r| r.random_range(0..5_u8).into())),
            (Kind::Continuous, drawn(|r| r.sample(normal))),
            (Kind::BoxCox, drawn(|r| r.sample(skewed) + 3.0)),
            // Two heaps far apart: no power makes a bell of them.
            (
                Kind::Quantile,
                drawn(|r| {
                    let far = if r.random_bool(0.9) { 0.0 } else { 1e4 };
                    far + r.random_range(0.0..1.0_f32)
                }),
            ),
        ] {
            let found = judge(&values);
            assert_eq!(found.kind, kind, "{found:?}");
            // Whatever it is, what the network sees is of about unit size.
            let seen: Vec<f64> = values
                .iter()
                .map(|&x| found.input.apply(x).into())
                .collect();
            let (mean, deviation) = moments(&seen);
            assert!(
                mean.abs() < 1.0 && deviation < 2.5,
                "{kind:?}: {mean} {deviation}"
            );
            if kind != Kind::Constant {
                assert!(deviation > 0.3, "{kind:?}: {deviation}");
            }
        }
    }

    /// The examples of scipy.stats.skewtest and scipy.stats.kurtosistest.
    #[test]
    fn the_parts_of_k2_are_those_of_others() {
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
        // Beginning at 0, so that nothing is shifted.
        let mut values = drawn(|r| r.sample(skewed));
        values.push(0.0);
        let wide: Vec<f64> = values.iter().map(|&x| x.into()).collect();
        let (power, shift) = box_cox(&wide[..COUNT]);
        assert!(power.abs() < 0.5 && shift < 0.0, "{power} {shift}");
    }

    #[test]
    fn somebody_may_know_better() {
        let environment = Interface::default();
        let mut sample = Sample::new(&environment);
        let width = environment.observation_len();
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
        assert_eq!(of("mean.cwnd").kind, Kind::Quantile);
        assert_eq!(of("mean.delay").kind, Kind::Continuous);
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
