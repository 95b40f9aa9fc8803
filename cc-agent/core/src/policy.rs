//! Policies: from a flow's observation to what happens to its window.
//!
//! [`OnnxPolicy`] runs a network from a file, or the trained one that is built in
//! ([`DEFAULT_POLICY`]); [`Heuristic`] follows a rule that was set by hand; [`Fixed`] and [`Random`]
//! are for measurements and tests. A [`PolicySpec`] names any of them on a command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::interface::{Interface, InterfaceError};

pub mod export;
mod file;
mod heuristic;
mod meta;
mod onnx;

pub use file::{FileError, META_KEY, PolicyFile};
pub use heuristic::{Heuristic, HeuristicError};
pub use meta::{MetaError, PolicyKind, PolicyMeta, Summary};
pub use onnx::{Answer, OnnxPolicy};

/// The embedded default policy: the `policy.onnx` of a run of `cc-trainer train`, whose metadata say
/// which.
pub const DEFAULT_POLICY: &[u8] = include_bytes!("policy/default.onnx");

/// The rule of [`Heuristic`] as a policy file; the same bytes every time.
pub fn heuristic_file() -> Vec<u8> {
    heuristic::export()
}

/// Decides for the flows that wait.
pub trait Policy: Send {
    /// Decides for every query, in order, and moves each query's state on in place.
    ///
    /// A query that cannot be answered gets [`Choice::Invalid`] and keeps its state.
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice>;

    /// What observations, actions and windows this policy expects.
    fn interface(&self) -> &Interface;

    /// The file that it was loaded from, at a glance; `None` where it came from none.
    fn file(&self) -> Option<&Summary> {
        None
    }
}

/// One flow that waits for a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The observation, of [`Interface::observation_len`] values.
    pub observation: Vec<f32>,
    /// The reward of the window just observed.
    pub reward: f32,
    /// The window in force, in packets.
    pub cwnd: u32,
    /// The policy's memory of this flow.
    pub state: State,
    /// Left empty by who asks. A policy that knows them fills in the probabilities with which each action was to be
    /// chosen here.
    pub probabilities: Vec<f32>,
}

/// A policy's memory of one flow: the recurrent state.
///
/// The default, empty vectors, is a new flow's and stands for zeros. So does a state of another
/// width, as is left after a policy of another size was loaded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// The hidden vector, of the policy's state width H.
    pub h: Vec<f32>,
    /// The cell vector, of the policy's state width H.
    pub c: Vec<f32>,
}

/// What a policy decided for one flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// An action of the environment's action space.
    Action {
        /// Its index.
        index: usize,
        /// The probability with which the policy chooses it here; 1 when served greedily.
        probability: f32,
    },
    /// This window, in packets, whatever it was before.
    Cwnd(u32),
    /// The policy gave no usable answer: the flow keeps its window, the caller counts it.
    Invalid,
}

/// How an action is chosen from a network's logits: `greedy`, `softmax` or `softmax:T`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActionSelection {
    /// The action of the largest logit; of equal ones the first.
    #[default]
    Greedy,
    /// Drawn from softmax(logits / temperature).
    Softmax {
        /// Above 0; 1 is the distribution that was trained.
        temperature: f32,
    },
}

impl FromStr for ActionSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let serving = match text.split_once(':') {
            None if text == "greedy" => Some(Self::Greedy),
            None if text == "softmax" => Some(Self::Softmax { temperature: 1.0 }),
            Some(("softmax", temperature)) => temperature
                .parse()
                .ok()
                .filter(|t: &f32| t.is_finite() && *t > 0.0)
                .map(|temperature| Self::Softmax { temperature }),
            _ => None,
        };
        serving.ok_or_else(|| {
            format!("`{text}`: expected `greedy`, `softmax`, or `softmax:T` with T above 0")
        })
    }
}

impl TryFrom<String> for ActionSelection {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ActionSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greedy => f.write_str("greedy"),
            Self::Softmax { temperature } => write!(f, "softmax:{temperature}"),
        }
    }
}

impl From<ActionSelection> for String {
    fn from(serving: ActionSelection) -> Self {
        serving.to_string()
    }
}

impl ActionSelection {
    /// The index of the chosen action and its probability. `logits` are finite and at least one.
    fn choose(self, logits: &[f32], rng: &mut StdRng) -> (usize, f32) {
        let (best, max) =
            logits
                .iter()
                .copied()
                .enumerate()
                .fold(
                    (0, f32::NEG_INFINITY),
                    |top, (i, l)| if l > top.1 { (i, l) } else { top },
                );
        let Self::Softmax { temperature } = self else {
            return (best, 1.0);
        };
        let weight = |logit: f32| (f64::from(logit - max) / f64::from(temperature)).exp();
        let total: f64 = logits.iter().map(|&l| weight(l)).sum();
        let mut left = rng.random::<f64>() * total;
        for (i, &logit) in logits.iter().enumerate() {
            let weight = weight(logit);
            if left < weight {
                return (i, (weight / total) as f32);
            }
            left -= weight;
        }
        // Rounding may leave a remainder at the very end of the last weight.
        (best, (1.0 / total) as f32)
    }

    /// The probability of every action. `logits` are finite and at least one.
    fn probabilities(self, logits: &[f32]) -> Vec<f32> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let Self::Softmax { temperature } = self else {
            let best = logits.iter().position(|&logit| logit == max);
            return one_hot(best.unwrap_or(0), logits.len());
        };
        let weight = |logit: f32| (f64::from(logit - max) / f64::from(temperature)).exp();
        let total: f64 = logits.iter().map(|&l| weight(l)).sum();
        logits.iter().map(|&l| (weight(l) / total) as f32).collect()
    }
}

/// Probability 1 for one of `actions`.
fn one_hot(index: usize, actions: usize) -> Vec<f32> {
    (0..actions)
        .map(|i| f32::from(u8::from(i == index)))
        .collect()
}

/// Sets every flow's window to the same value.
#[derive(Debug, Clone)]
pub struct Fixed {
    cwnd: u32,
    interface: Interface,
}

impl Fixed {
    /// A policy that sets `cwnd` packets.
    pub fn new(cwnd: u32, interface: Interface) -> Self {
        Self { cwnd, interface }
    }
}

impl Policy for Fixed {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        vec![Choice::Cwnd(self.cwnd); queries.len()]
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

/// Chooses every action with equal probability.
#[derive(Debug)]
pub struct Random {
    interface: Interface,
    rng: StdRng,
}

impl Random {
    /// A policy whose choices the seed determines.
    pub fn new(interface: Interface, seed: u64) -> Self {
        Self {
            interface,
            rng: StdRng::seed_from_u64(seed),
        }
    }
}

impl Policy for Random {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        let actions = self.interface.actions.len();
        let probability = 1.0 / actions as f32;
        queries
            .iter_mut()
            .map(|query| {
                query.probabilities = vec![probability; actions];
                Choice::Action {
                    index: self.rng.random_range(0..actions),
                    probability,
                }
            })
            .collect()
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

/// The name of a policy, as on a command line: a path to an `.onnx` file, `default`, `fixed:N`,
/// `heuristic` or `random`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PolicySpec {
    /// [`DEFAULT_POLICY`].
    #[default]
    Default,
    /// [`Fixed`], with its window in packets.
    Fixed(u32),
    /// [`Heuristic`].
    Heuristic,
    /// An ONNX file.
    Onnx(PathBuf),
    /// [`Random`].
    Random,
}

impl PolicySpec {
    /// Makes the policy. A file brings its own environment; the others work in `environment`.
    ///
    /// `serving` is how files are served, if not as they ask for themselves, and `seed` determines every random choice.
    ///
    /// # Errors
    ///
    /// The file is refused, or the environment or temperature does not fit the policy.
    pub fn load(
        &self,
        interface: &Interface,
        serving: Option<ActionSelection>,
        seed: u64,
    ) -> Result<Box<dyn Policy>, PolicyError> {
        if let Some(ActionSelection::Softmax { temperature }) = serving
            && !(temperature.is_finite() && temperature > 0.0)
        {
            return Err(PolicyError::Temperature { temperature });
        }
        interface.validate()?;
        let interface = || interface.clone();
        Ok(match self {
            Self::Default => Box::new(OnnxPolicy::from_bytes(DEFAULT_POLICY, serving, seed)?),
            Self::Fixed(cwnd) => Box::new(Fixed::new(*cwnd, interface())),
            Self::Heuristic => Box::new(Heuristic::new(interface())?),
            Self::Onnx(path) => Box::new(OnnxPolicy::from_file(path, serving, seed)?),
            Self::Random => Box::new(Random::new(interface(), seed)),
        })
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Fixed(cwnd) => write!(f, "fixed:{cwnd}"),
            Self::Heuristic => f.write_str("heuristic"),
            Self::Onnx(path) => write!(f, "{}", path.display()),
            Self::Random => f.write_str("random"),
        }
    }
}

impl FromStr for PolicySpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if let Some(cwnd) = s.strip_prefix("fixed:") {
            return match cwnd.parse() {
                Ok(cwnd) if cwnd > 0 => Ok(Self::Fixed(cwnd)),
                _ => Err(SpecError::Fixed {
                    found: cwnd.to_owned(),
                }),
            };
        }
        match s {
            "default" => Ok(Self::Default),
            "heuristic" => Ok(Self::Heuristic),
            "random" => Ok(Self::Random),
            path if path.ends_with(".onnx") => Ok(Self::Onnx(PathBuf::from(path))),
            other => Err(SpecError::Unknown {
                found: other.to_owned(),
            }),
        }
    }
}

/// Why a string names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// `fixed:` without a window.
    #[error("`fixed:{found}`: expected a window of at least 1 packet, for example `fixed:100`")]
    Fixed {
        /// What follows the colon.
        found: String,
    },
    /// None of the known ones.
    #[error(
        "no policy is called `{found}`; expected a path that ends in .onnx, \
         `default`, `fixed:N`, `heuristic` or `random`"
    )]
    Unknown {
        /// The string.
        found: String,
    },
}

/// Why a policy cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The environment that it should work in is impossible.
    #[error("environment: {0}")]
    Interface(#[from] InterfaceError),
    /// Its file is refused.
    #[error("policy file refused: {0}")]
    File(#[from] FileError),
    /// The rule does not fit the environment.
    #[error(transparent)]
    Heuristic(#[from] HeuristicError),
    /// A temperature that softmax cannot have.
    #[error("the softmax temperature is {temperature}; expected a number above 0, for example 1")]
    Temperature {
        /// Its value.
        temperature: f32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queries(n: usize) -> Vec<Query> {
        let query = Query {
            observation: vec![0.0; 220],
            reward: 0.0,
            cwnd: 10,
            state: State::default(),
            probabilities: Vec::new(),
        };
        vec![query; n]
    }

    #[test]
    fn specs_round_trip() {
        for spec in [
            "default",
            "fixed:64",
            "heuristic",
            "random",
            "dir/policy.onnx",
        ] {
            assert_eq!(
                spec.parse::<PolicySpec>()
                    .expect("a policy's name")
                    .to_string(),
                spec
            );
        }
    }

    #[test]
    fn bad_specs_say_what_is_expected() {
        for (spec, expected) in [
            (
                "fixed:0",
                "`fixed:0`: expected a window of at least 1 packet",
            ),
            ("fixed:-3", "`fixed:-3`: expected"),
            ("fixed:many", "`fixed:many`: expected"),
            (
                "",
                "no policy is called ``; expected a path that ends in .onnx",
            ),
            (
                "policy.pt",
                "no policy is called `policy.pt`; expected a path",
            ),
        ] {
            let error = spec.parse::<PolicySpec>().expect_err(spec).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn load_names_what_is_wrong() {
        let load = |spec: PolicySpec, interface: Interface, serving| {
            spec.load(&interface, serving, 0)
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default()
        };
        let missing = PolicySpec::Onnx(PathBuf::from("no/such/policy.onnx"));
        let error = load(missing, Interface::default(), None);
        assert!(
            error.contains("no/such/policy.onnx: No such file"),
            "{error}"
        );
        let short = Interface {
            history: 1,
            ..Interface::default()
        };
        let error = load(PolicySpec::Heuristic, short, None);
        assert!(error.contains("history"), "{error}");
        let broken = Interface {
            window_ms: 0,
            ..Interface::default()
        };
        let error = load(PolicySpec::Random, broken, None);
        assert!(error.starts_with("environment: window_ms is 0"), "{error}");
        let cold = Some(ActionSelection::Softmax { temperature: 0.0 });
        let error = load(PolicySpec::Default, Interface::default(), cold);
        assert!(error.starts_with("the softmax temperature is 0"), "{error}");
    }

    #[test]
    fn the_default_policy_is_trained_and_says_how() {
        let file = PolicyFile::parse(DEFAULT_POLICY).expect("accepted");
        let meta = file.meta();
        assert_eq!(meta.kind, PolicyKind::Trained);
        assert!(!meta.name.is_empty() && !file.summary().description.is_empty());
        for key in [
            "trainer",
            "algorithm",
            "config",
            "date",
            "steps",
            "seed",
            "tasks",
        ] {
            let value = meta.provenance.get(key);
            assert!(
                value.is_some_and(|value| !value.is_empty()),
                "{key}: {meta:?}"
            );
        }
        let steps = meta.provenance["steps"].parse::<u64>();
        assert!(steps.is_ok_and(|steps| steps > 0), "{meta:?}");

        // Other settings than the file's own do not reach it.
        let other = Interface {
            window_ms: 50,
            ..Interface::default()
        };
        let policy = PolicySpec::Default.load(&other, None, 0);
        let policy = policy.expect("it loads");
        assert_eq!(policy.interface(), &meta.interface);
        assert_eq!(policy.file(), Some(file.summary()));
    }

    #[test]
    fn fixed_sets_its_window() {
        let mut policy = Fixed::new(64, Interface::default());
        assert_eq!(policy.decide(&mut queries(3)), [Choice::Cwnd(64); 3]);
        assert_eq!(policy.decide(&mut []), []);
    }

    #[test]
    fn random_is_uniform_and_seeded() {
        let decide = |seed| Random::new(Interface::default(), seed).decide(&mut queries(5_000));
        assert_eq!(decide(7), decide(7));
        assert_ne!(decide(7), decide(8));
        let mut counts = [0; 5];
        for choice in decide(7) {
            let Choice::Action { index, probability } = choice else {
                panic!("{choice:?}")
            };
            assert_eq!(probability, 0.2);
            counts[index] += 1;
        }
        // Binomial(5000, 0.2): mean 1000, standard deviation 28.
        assert!(counts.iter().all(|n| (860..1140).contains(n)), "{counts:?}");
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let mut rng = StdRng::seed_from_u64(0);
        assert_eq!(
            ActionSelection::Greedy.choose(&[-1.0, 3.0, 3.0], &mut rng),
            (1, 1.0)
        );
        assert_eq!(
            ActionSelection::Greedy.choose(&[f32::MIN], &mut rng),
            (0, 1.0)
        );
        assert_eq!(
            ActionSelection::Greedy.probabilities(&[-1.0, 3.0, 3.0]),
            [0.0, 1.0, 0.0]
        );
    }

    #[test]
    fn softmax_draws_by_the_probability_that_it_reports() {
        let mut rng = StdRng::seed_from_u64(1);
        let logits = [2f32.ln(), 0.0, 6f32.ln(), 1f32.ln()];
        for (temperature, expected) in [(1.0, [0.2, 0.1, 0.6, 0.1]), (1e-3, [0.0, 0.0, 1.0, 0.0])] {
            let mut counts = [0.0; 4];
            for _ in 0..10_000 {
                let serving = ActionSelection::Softmax { temperature };
                let (index, probability) = serving.choose(&logits, &mut rng);
                assert_eq!(serving.probabilities(&logits)[index], probability);
                assert!(
                    (probability - expected[index]).abs() < 1e-5,
                    "{index}: {probability}"
                );
                counts[index] += 1e-4;
            }
            // Four standard deviations of 10 000 draws are at most 0.02.
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 0.02;
            assert!(counts.iter().zip(&expected).all(close), "{counts:?}");
        }
    }

    #[test]
    fn softmax_survives_extreme_logits() {
        let mut rng = StdRng::seed_from_u64(2);
        let (index, probability) =
            ActionSelection::Softmax { temperature: 0.01 }.choose(&[f32::MIN, f32::MAX], &mut rng);
        assert_eq!((index, probability), (1, 1.0));
    }
}
