//! Policies: from a flow's observation to a choice about its cwnd.
//!
//! [`OnnxPolicy`] runs a network from a file, or the trained one that is built in
//! ([`DEFAULT_POLICY`]); [`Heuristic`] follows a rule that was set by hand; [`Fixed`] and
//! [`Random`] are for measurements and tests. A [`PolicySpec`] names any of them on a command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::interface::{Interface, InterfaceError};

mod bounds;
pub mod export;
mod file;
mod file_error;
mod heuristic;
mod meta;
mod onnx;
mod ports;
mod server_address;
mod wire;

pub use file::{PolicyFile, PolicyGraph};
pub use file_error::{BITRATE_META_KEY, FileError, MAX_BYTES, META_KEY};
pub use heuristic::{Heuristic, HeuristicError};
pub use meta::{MetaError, PolicyKind, PolicyMeta, Summary};
pub use onnx::{Answer, OnnxNetwork, OnnxPolicy};
pub use ports::Widths;
pub use server_address::ServerAddress;

/// The embedded default policy: the `policy.onnx` of a run of `cc-trainer train`. Its metadata name
/// the run.
pub const DEFAULT_POLICY: &[u8] = include_bytes!("policy/default.onnx");

/// The rule of [`Heuristic`] as a policy file. Every call returns the same bytes.
pub fn heuristic_file() -> Vec<u8> {
    heuristic::export()
}

/// Makes decisions for flows, many at a time.
pub trait Policy: Send {
    /// Decides for every query, in order, and moves each query's state on in place.
    ///
    /// A query that cannot be answered gets [`Choice::Invalid`] and keeps its state.
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice>;

    /// The interface that the policy was made for: its observations, actions and windows.
    fn interface(&self) -> &Interface;

    /// Summary of the file that the policy was loaded from; `None` for a policy without a file.
    fn file(&self) -> Option<&Summary> {
        None
    }
}

/// A question to a policy: the window of one flow that waits for a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The observation, of [`Interface::observation_len`] values.
    pub observation: Vec<f32>,
    /// The reward of the observed window, under this policy's settings.
    pub reward: f32,
    /// The cwnd in segments that an action is applied to ([`crate::action::base_cwnd`]).
    pub cwnd: u32,
    /// The policy's memory of this flow; the policy replaces it.
    pub state: State,
    /// Empty in the question. A policy that samples from a distribution over the actions fills in
    /// their probabilities, in the order of the actions.
    pub probabilities: Vec<f32>,
}

/// A policy's memory of one flow: the recurrent state.
///
/// The default, empty vectors, is the state of a new flow and stands for zeros. So does a state of
/// another width, which a flow has after a policy of another size was loaded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// The hidden vector h of the LSTM; its length is the policy's state width H.
    pub h: Vec<f32>,
    /// The cell vector c of the LSTM; its length is the policy's state width H.
    pub c: Vec<f32>,
}

/// A policy's choice for one flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// An action of the interface's action space.
    Action {
        /// Index of the action in the action space.
        index: usize,
        /// The probability with which the policy chooses the action here; 1 when chosen greedily.
        probability: f32,
    },
    /// This cwnd in segments, whatever the cwnd was before.
    Cwnd(u32),
    /// The policy gave no usable answer: the flow keeps its cwnd, and the agent counts the answer.
    Invalid,
}

/// How an action is selected by a network's logits, written `greedy`, `softmax` or `softmax:T`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActionSelection {
    /// The action of the largest logit; of equal ones the first.
    #[default]
    Greedy,
    /// The action is sampled from softmax(logits / temperature).
    Softmax {
        /// The temperature, above 0; 1 gives the distribution that was trained.
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
    /// Selects one of the allowed actions and returns its index and its probability. `logits` must
    /// be finite and at least one; `allowed` is as [`Interface::allowed`] writes it.
    pub fn choose(self, logits: &[f32], allowed: &[bool], rng: &mut StdRng) -> (usize, f32) {
        let (best, weights) = self.weights(logits, allowed);
        let Self::Softmax { .. } = self else {
            return (best, 1.0);
        };
        let total: f64 = weights.iter().sum();
        let mut left = rng.random::<f64>() * total;
        for (i, &weight) in weights.iter().enumerate() {
            if left < weight {
                return (i, (weight / total) as f32);
            }
            left -= weight;
        }
        // Rounding errors alone lead here.
        (best, (1.0 / total) as f32)
    }

    /// The probability of every action, which is 0 for those that are not allowed. `logits` must be
    /// finite and at least one; `allowed` is as [`Interface::allowed`] writes it.
    fn probabilities(self, logits: &[f32], allowed: &[bool]) -> Vec<f32> {
        let (best, weights) = self.weights(logits, allowed);
        let Self::Softmax { .. } = self else {
            return one_hot(best, logits.len());
        };
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| (w / total) as f32).collect()
    }

    /// The allowed action of the largest logit, the first of equal ones, and the weight of each
    /// action in the distribution, relative to that one; no weights where there is none to draw
    /// from.
    fn weights(self, logits: &[f32], allowed: &[bool]) -> (usize, Vec<f64>) {
        let (mut best, mut max) = (0, f32::NEG_INFINITY);
        for (i, &logit) in logits.iter().enumerate() {
            if is_allowed(allowed, i) && logit > max {
                (best, max) = (i, logit);
            }
        }
        let Self::Softmax { temperature } = self else {
            return (best, Vec::new());
        };
        let weight = |(i, logit): (usize, &f32)| match is_allowed(allowed, i) {
            true => (f64::from(logit - max) / f64::from(temperature)).exp(),
            false => 0.0,
        };
        (best, logits.iter().enumerate().map(weight).collect())
    }
}

/// Whether an action may be chosen, given what [`Interface::allowed`] writes.
fn is_allowed(allowed: &[bool], action: usize) -> bool {
    allowed.get(action).is_none_or(|allowed| *allowed)
}

/// A distribution over `actions` that gives one of them probability 1.
fn one_hot(index: usize, actions: usize) -> Vec<f32> {
    (0..actions)
        .map(|i| f32::from(u8::from(i == index)))
        .collect()
}

/// A policy that sets the cwnd of every flow to the same value.
#[derive(Debug, Clone)]
pub struct Fixed {
    cwnd: u32,
    interface: Interface,
}

impl Fixed {
    /// Creates a policy that sets a cwnd of `cwnd` segments.
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

/// A policy that leaves the cwnd of every flow as it is: what a flow does whose decision does not
/// come. From its first decision on a flow is no longer in slow start.
#[derive(Debug, Clone)]
pub struct Keep {
    interface: Interface,
}

impl Keep {
    /// Creates a policy for flows of this interface.
    pub fn new(interface: Interface) -> Self {
        Self { interface }
    }
}

impl Policy for Keep {
    fn decide(&mut self, queries: &mut [Query]) -> Vec<Choice> {
        let keep = |query: &Query| Choice::Cwnd(query.cwnd);
        queries.iter().map(keep).collect()
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

/// A policy that samples every allowed action with equal probability.
#[derive(Debug)]
pub struct Random {
    interface: Interface,
    rng: StdRng,
}

impl Random {
    /// Creates a policy whose choices the seed determines.
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
        let mut allowed = Vec::new();
        queries
            .iter_mut()
            .map(|query| {
                self.interface.allowed(query.cwnd, &mut allowed);
                let own: Vec<usize> = (0..actions)
                    .filter(|&action| is_allowed(&allowed, action))
                    .collect();
                let probability = 1.0 / own.len() as f32;
                query.probabilities = vec![0.0; actions];
                for &action in &own {
                    query.probabilities[action] = probability;
                }
                Choice::Action {
                    index: own[self.rng.random_range(0..own.len())],
                    probability,
                }
            })
            .collect()
    }

    fn interface(&self) -> &Interface {
        &self.interface
    }
}

/// The name of a policy, as on a command line: a path to an `.onnx` file, with or without the
/// `@sha256:HEX` of its content, `default`, `fixed:N`, `heuristic`, `keep`, `random`, or the
/// address of a policy server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PolicySpec {
    /// `default`: the embedded [`DEFAULT_POLICY`].
    #[default]
    Default,
    /// `fixed:N`: the policy [`Fixed`] with a cwnd of N segments.
    Fixed(u32),
    /// `heuristic`: the rule of [`Heuristic`].
    Heuristic,
    /// `keep`: the policy [`Keep`], which leaves the cwnd of every flow as it is.
    Keep,
    /// The path of an ONNX file, which ends in `.onnx`.
    Onnx(PathBuf),
    /// `FILE.onnx@sha256:HEX`: an ONNX file, served only while it has this content.
    Pinned {
        /// The path of the file.
        path: PathBuf,
        /// The SHA-256 of the file, 64 hexadecimal digits.
        sha256: String,
    },
    /// `random`: the policy [`Random`].
    Random,
    /// `grpc://HOST:PORT` or `grpcs://HOST:PORT`: a policy server decides ([`crate::remote`]).
    Server(ServerAddress),
}

/// What separates a path from the hash of the file's content in the text of a [`PolicySpec`].
const PIN: &str = "@sha256:";

impl PolicySpec {
    /// The policy of a file, whose path may end in `@sha256:HEX`.
    pub fn of_file(path: PathBuf) -> Self {
        let pinned = path.to_str().and_then(|text| text.split_once(PIN));
        match pinned {
            Some((file, sha256)) => Self::Pinned {
                path: file.into(),
                sha256: sha256.to_owned(),
            },
            None => Self::Onnx(path),
        }
    }

    /// This policy, served only while its file has the content of this hash.
    ///
    /// # Errors
    ///
    /// Returns an error when the policy has no file, or when `sha256` is not 64 hexadecimal digits.
    pub fn pinned(self, sha256: &str) -> Result<Self, SpecError> {
        let digits = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
        match self {
            Self::Onnx(path) | Self::Pinned { path, .. } if digits => Ok(Self::Pinned {
                path,
                sha256: sha256.to_ascii_lowercase(),
            }),
            other => Err(SpecError::Pin {
                policy: other.to_string(),
                found: sha256.to_owned(),
            }),
        }
    }

    /// Reads the policy's file, if it has one, and creates the policy as [`Self::create`] does.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, and in the cases of [`Self::create`].
    pub fn load(
        &self,
        interface: &Interface,
        serving: Option<ActionSelection>,
        seed: u64,
    ) -> Result<Box<dyn Policy>, PolicyError> {
        self.create(&self.read()?, interface, serving, seed)
    }

    /// Reads the policy's file. A policy without a file of its own has no bytes.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read or is not to be served
    /// ([`PolicyFile::bytes_to_serve`]).
    pub fn read(&self) -> Result<Vec<u8>, FileError> {
        match self {
            Self::Onnx(path) => PolicyFile::bytes_to_serve(path, None),
            Self::Pinned { path, sha256 } => PolicyFile::bytes_to_serve(path, Some(sha256)),
            _ => Ok(Vec::new()),
        }
    }

    /// Creates the policy from the bytes that [`Self::read`] returned. A file brings its own
    /// interface; all others work with `interface`.
    ///
    /// `serving` selects the actions of a network; `None` takes what its file asks for. `seed`
    /// determines every random choice.
    ///
    /// # Errors
    ///
    /// Returns an error when the file is refused, or when the interface or the temperature is not
    /// valid for the policy.
    pub fn create(
        &self,
        file: &[u8],
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
            Self::Keep => Box::new(Keep::new(interface())),
            Self::Onnx(_) | Self::Pinned { .. } => {
                Box::new(OnnxPolicy::from_bytes(file, serving, seed)?)
            }
            Self::Random => Box::new(Random::new(interface(), seed)),
            Self::Server(address) => {
                return Err(PolicyError::Elsewhere {
                    address: address.clone(),
                });
            }
        })
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Fixed(cwnd) => write!(f, "fixed:{cwnd}"),
            Self::Heuristic => f.write_str("heuristic"),
            Self::Keep => f.write_str("keep"),
            Self::Onnx(path) => write!(f, "{}", path.display()),
            Self::Pinned { path, sha256 } => write!(f, "{}{PIN}{sha256}", path.display()),
            Self::Random => f.write_str("random"),
            Self::Server(address) => address.fmt(f),
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
        if ServerAddress::is_meant_by(s) {
            let address = s.parse();
            return address
                .map(Self::Server)
                .map_err(|reason| SpecError::Server { reason });
        }
        if let Some((path, sha256)) = s.split_once(PIN) {
            return path.parse::<Self>()?.pinned(sha256);
        }
        match s {
            "default" => Ok(Self::Default),
            "heuristic" => Ok(Self::Heuristic),
            "keep" => Ok(Self::Keep),
            "random" => Ok(Self::Random),
            path if path.ends_with(".onnx") => Ok(Self::Onnx(PathBuf::from(path))),
            other => Err(SpecError::Unknown {
                found: other.to_owned(),
            }),
        }
    }
}

/// Why a string is not a [`PolicySpec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// `fixed:` is not followed by a cwnd.
    #[error("`fixed:{found}`: expected a cwnd of at least 1 segment, for example `fixed:100`")]
    Fixed {
        /// The text after the colon.
        found: String,
    },
    /// The hash is none, or the policy is no file.
    #[error(
        "`{policy}` cannot be pinned to `{found}`: expected the path of an .onnx file, and its \
         SHA-256 as 64 hexadecimal digits"
    )]
    Pin {
        /// The policy that was to be pinned.
        policy: String,
        /// The text that was given as its hash.
        found: String,
    },
    /// The text begins like the address of a policy server, and is none.
    #[error("{reason}")]
    Server {
        /// The text, and what is expected.
        reason: String,
    },
    /// The string is neither a known name nor the path of an `.onnx` file.
    #[error(
        "no policy is called `{found}`; expected a path that ends in .onnx, \
         `default`, `fixed:N`, `heuristic`, `keep`, `random` or grpcs://HOST:PORT"
    )]
    Unknown {
        /// The string that was given.
        found: String,
    },
}

/// Why a policy that a [`PolicySpec`] names could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The policy decides on another host.
    #[error(
        "{address} is the address of a policy server, which only `cc-agent run --policy` asks; \
         name a policy that runs here"
    )]
    Elsewhere {
        /// The server's address, as it was given.
        address: ServerAddress,
    },
    /// A setting of the interface is out of its range.
    #[error("environment: {0}")]
    Interface(#[from] InterfaceError),
    /// The policy's file is refused.
    #[error("policy file refused: {0}")]
    File(#[from] FileError),
    /// The rule of [`Heuristic`] does not work with the interface.
    #[error(transparent)]
    Heuristic(#[from] HeuristicError),
    /// The softmax temperature is not a finite number above 0.
    #[error("the softmax temperature is {temperature}; expected a number above 0, for example 1")]
    Temperature {
        /// The temperature that was asked for, which is not above 0.
        temperature: f32,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            "keep",
            "random",
            "grpc://localhost:1",
            "grpcs://[2001:db8::1]:65535",
            "dir/policy.onnx",
            "policy.onnx@sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
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
                "`fixed:0`: expected a cwnd of at least 1 segment",
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
            (
                "grpc://host",
                "`grpc://host`: expected grpc://HOST:PORT or grpcs://",
            ),
            ("grpcs://host:0", "`grpcs://host:0`: expected"),
            ("grpcs://a@b:1", "`grpcs://a@b:1`: expected"),
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

    /// Where it is a mean of policies, the provenance of the first is under `1.`, and so on; each
    /// of these can be a mean itself. One of a single policy is that policy with another setting.
    #[test]
    fn the_default_policy_is_trained_and_says_how() {
        fn says_how(meta: &PolicyMeta, source: &str) {
            let said = |key: &str| {
                let value = meta.provenance.get(&format!("{source}{key}"));
                value.unwrap_or_else(|| panic!("{source}{key}: {meta:?}"))
            };
            for key in ["trainer", "algorithm", "date"] {
                assert!(!said(key).is_empty(), "{source}{key}: {meta:?}");
            }
            let sources = (1..).map(|number| format!("{source}{number}."));
            let found = |source: &String| meta.provenance.contains_key(&format!("{source}date"));
            let sources: Vec<_> = sources.take_while(found).collect();
            if sources.is_empty() {
                for key in ["config", "seed", "tasks"] {
                    assert!(!said(key).is_empty(), "{source}{key}: {meta:?}");
                }
                let steps = said("steps").parse::<u64>();
                assert!(steps.is_ok_and(|steps| steps > 0), "{source}: {meta:?}");
            }
            let is_alone = sources.len() == 1;
            assert!(
                !is_alone || meta.interface.shared_path,
                "{source}: {meta:?}"
            );
            for source in sources {
                says_how(meta, &source);
            }
        }

        let file = PolicyFile::parse(DEFAULT_POLICY).expect("accepted");
        let meta = file.meta();
        assert_eq!(meta.kind, PolicyKind::Trained);
        assert!(!meta.name.is_empty() && !file.summary().description.is_empty());
        says_how(meta, "");

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

    /// What the default policy is trained for is stated in it, by which recordings, estimates and
    /// canaries judge it; a policy that has seen test sets, or that may have, must not become it.
    #[test]
    fn the_default_policy_states_its_objective_and_saw_no_test_set() {
        let file = PolicyFile::parse(DEFAULT_POLICY).expect("accepted");
        assert!(file.meta().interface.objective.is_some());
        let test_sets = file.meta().provenance.get(PolicyMeta::TEST_SETS);
        assert_eq!(
            test_sets.map(String::as_str),
            Some(PolicyMeta::NO_TEST_SETS)
        );
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
            ActionSelection::Greedy.choose(&[-1.0, 3.0, 3.0], &[], &mut rng),
            (1, 1.0)
        );
        assert_eq!(
            ActionSelection::Greedy.choose(&[f32::MIN], &[], &mut rng),
            (0, 1.0)
        );
        assert_eq!(
            ActionSelection::Greedy.probabilities(&[-1.0, 3.0, 3.0], &[]),
            [0.0, 1.0, 0.0]
        );
        let masked = [true, false, true];
        assert_eq!(
            ActionSelection::Greedy.choose(&[f32::MIN, 3.0, f32::MIN], &masked, &mut rng),
            (0, 1.0)
        );
        assert_eq!(
            ActionSelection::Greedy.probabilities(&[-1.0, 3.0, 3.0], &masked),
            [0.0, 0.0, 1.0]
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
                let (index, probability) = serving.choose(&logits, &[], &mut rng);
                assert_eq!(serving.probabilities(&logits, &[])[index], probability);
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
        let serving = ActionSelection::Softmax { temperature: 0.01 };
        let logits = [f32::MIN, f32::MAX];
        let (index, probability) = serving.choose(&logits, &[], &mut rng);
        assert_eq!((index, probability), (1, 1.0));
        let (index, probability) = serving.choose(&logits, &[true, false], &mut rng);
        assert_eq!((index, probability), (0, 1.0));
    }

    proptest! {
        /// Against the softmax over the allowed actions alone, in f64; where all are allowed, the
        /// distribution and the choices are those without a mask, to the bit.
        #[test]
        fn a_masked_action_has_no_probability_and_the_others_share_it(
            actions in proptest::collection::vec((-9.0..9.0f32, any::<bool>()), 1..9),
            first: prop::sample::Index,
            temperature in 0.1..3.0f32,
            seed: u64,
        ) {
            let (logits, mut allowed): (Vec<f32>, Vec<bool>) = actions.into_iter().unzip();
            let first = first.index(logits.len());
            allowed[first] = true;
            let serving = ActionSelection::Softmax { temperature };
            let found = serving.probabilities(&logits, &allowed);
            let weight = |i: usize| (f64::from(logits[i]) / f64::from(temperature)).exp();
            let total: f64 = (0..logits.len()).filter(|&i| allowed[i]).map(weight).sum();
            for (i, &found) in found.iter().enumerate() {
                match allowed[i] {
                    true => prop_assert!((f64::from(found) - weight(i) / total).abs() < 1e-6),
                    false => prop_assert_eq!(found, 0.0),
                }
            }
            let mut rng = StdRng::seed_from_u64(seed);
            for _ in 0..30 {
                let (index, probability) = serving.choose(&logits, &allowed, &mut rng);
                prop_assert!(allowed[index]);
                prop_assert_eq!(found[index], probability);
            }
            let (best, _) = ActionSelection::Greedy.choose(&logits, &allowed, &mut rng);
            prop_assert!(allowed[best]);
            for (i, &logit) in logits.iter().enumerate().filter(|(i, _)| allowed[*i]) {
                prop_assert!(logit < logits[best] || (logit == logits[best] && best <= i));
            }

            let all = vec![true; logits.len()];
            prop_assert_eq!(
                serving.probabilities(&logits, &all),
                serving.probabilities(&logits, &[])
            );
            let draw = |allowed: &[bool]| {
                let mut rng = StdRng::seed_from_u64(seed);
                (0..30).map(|_| serving.choose(&logits, allowed, &mut rng)).collect::<Vec<_>>()
            };
            prop_assert_eq!(draw(&all), draw(&[]));
        }
    }

    /// Interfaces with masks bind policies without a network as well.
    #[test]
    fn policies_without_a_file_choose_allowed_actions() {
        let interface = Interface {
            mask_actions: true,
            ..Interface::default()
        };
        let mut asked = queries(300);
        for query in &mut asked {
            query.cwnd = interface.cwnd.min;
        }
        // `/2` and `-10` lead to what `0` leads to.
        let allowed = [0, 3, 4];
        let mut random = Random::new(interface.clone(), 3);
        for choice in random.decide(&mut asked) {
            let Choice::Action { index, probability } = choice else {
                panic!("{choice:?}")
            };
            assert!(allowed.contains(&index), "{index}");
            assert_eq!(probability, 1.0 / 3.0);
        }
        let third = 1.0 / 3.0;
        assert_eq!(asked[0].probabilities, [third, 0.0, 0.0, third, third]);
        // A delay of half a second, for which the rule halves the cwnd wherever it may.
        let mut observation = vec![0.0; interface.observation_len()];
        let mean = cc_ebpf::FEATURES + cc_ebpf::Feature::Delay as usize;
        observation[mean] = 5.0;
        let mut rule = Heuristic::new(interface.clone()).expect("the default actions");
        let mut index = |cwnd: u32| {
            let mut asked = queries(1);
            asked[0].observation.clone_from(&observation);
            asked[0].cwnd = cwnd;
            match rule.decide(&mut asked)[..] {
                [Choice::Action { index, .. }] => index,
                _ => panic!("an answer"),
            }
        };
        assert_eq!(index(100), 1);
        assert_eq!(index(interface.cwnd.min), 0);
    }
}
