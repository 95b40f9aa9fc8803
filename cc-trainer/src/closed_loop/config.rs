//! The configuration of a closed loop: a file in TOML.

use std::{path::Path, time::Duration};

use cc_core::policy::{ActionSelection, PolicySpec};
use cc_sim::scenario::{self, Flow, Scenario, ScenarioError};
use cc_testbed::{
    evaluate::{Jobs, digest},
    summary::Platform,
};
use serde::{Deserialize, Serialize};

use serde_json::Value;

use crate::{
    ope::LEAST_CLUSTERS,
    toml_file::{self, TomlFileError},
    train::config::Config,
};

/// A closed loop, as its file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopConfig {
    /// Number of turns after turn 0, which measures the policy that the loop begins with.
    pub turns: u32,
    /// The policy that the loop begins with: a FILE.onnx, or `default`.
    pub policy: String,
    /// How policies select actions throughout, `softmax` or `softmax:T`: a recording of a greedy
    /// policy says nothing about other actions.
    #[serde(default = "sampled")]
    pub serving: ActionSelection,
    /// Where flows run: `kernel` or `sim`.
    #[serde(default)]
    pub on: Platform,
    /// Links, as `--scenarios` of `cc-trainer evaluate` takes them, each with one flow.
    pub scenarios: String,
    /// Number of runs at the same time; left out, as many as the host has room for.
    #[serde(default)]
    pub jobs: Option<usize>,
    /// Seed of links, sampled actions, training and estimates.
    #[serde(default = "one")]
    pub seed: u64,
    /// What is recorded in a turn.
    #[serde(default)]
    pub collect: Collect,
    /// How a candidate is trained from the recordings.
    #[serde(default)]
    pub train: Train,
    /// How a candidate is estimated, and what follows from that.
    #[serde(default)]
    pub estimate: Estimate,
    /// How a candidate is tried on live flows.
    #[serde(default)]
    pub canary: Canary,
    /// How the policy in force is measured.
    #[serde(default)]
    pub measure: Measure,
    /// Policies of other origin that are tried like candidates, after all turns.
    #[serde(default, rename = "trial")]
    pub trials: Vec<Trial>,
}

fn sampled() -> ActionSelection {
    ActionSelection::Softmax { temperature: 1.0 }
}

fn one() -> u64 {
    1
}

/// What is recorded in a turn: the policy in force on every link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Collect {
    /// Length of a flow, s.
    pub seconds: f64,
    /// Flows on each link to learn from.
    pub runs: u32,
    /// Flows on each link that are held out: candidates are estimated on them.
    pub held_out: u32,
    /// Number of turns whose recordings are learned from, this one included; 0 for all.
    pub last: usize,
}

impl Default for Collect {
    fn default() -> Self {
        Self {
            seconds: 20.0,
            runs: 12,
            held_out: 12,
            last: 3,
        }
    }
}

/// How is trained: `cc-trainer train --from RECORDINGS --init POLICY`, with these settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Train {
    /// Environment steps (decisions) to learn from, recorded ones many times over.
    pub steps: u64,
    /// Settings of the training configuration other than the defaults for recordings, as `learner`.
    pub set: toml::Table,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            steps: 400_000,
            set: toml::Table::new(),
        }
    }
}

/// How a candidate is estimated on the held-out recordings, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Estimate {
    /// Number of decisions over which rewards are summed.
    pub horizon: usize,
    /// Smallest effective sample size, in clusters, that allows a conclusion.
    pub least_effective: f64,
    /// Confidence level of the intervals.
    pub confidence: f64,
    /// What follows when the estimate allows no conclusion. One that says worse always refuses.
    pub no_conclusion: NoConclusion,
    /// The smallest mean entropy of a candidate's actions on the held-out recordings, as a fraction
    /// of that of the policy that the loop began with: a candidate below it is refused, since the
    /// loop could not learn from its recordings. 0 for none.
    pub least_entropy: f64,
}

impl Default for Estimate {
    fn default() -> Self {
        Self {
            horizon: 10,
            least_effective: 30.0,
            confidence: 0.95,
            no_conclusion: NoConclusion::Canary,
            least_entropy: 0.5,
        }
    }
}

/// What follows when an estimate allows no conclusion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoConclusion {
    /// The candidate is tried on live flows, and the canary decides.
    #[default]
    Canary,
    /// The candidate is refused without a canary.
    Refuse,
}

/// How a candidate is tried on live flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Canary {
    /// Length of a block of time, s.
    pub block_s: f64,
    /// Pairs of blocks that are needed before anything is found.
    pub units: u64,
    /// The phases, one after the other. All have to find the candidate not worse.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
}

impl Default for Canary {
    /// First with half of the flows of links that several flows share, so that neighbours show
    /// harm; then with all flows.
    fn default() -> Self {
        Self {
            block_s: 2.0,
            units: 10,
            phases: vec![
                Phase {
                    percent: 50.0,
                    flows: 4,
                    seconds: 90.0,
                },
                Phase {
                    percent: 100.0,
                    flows: 1,
                    seconds: 90.0,
                },
            ],
        }
    }
}

/// A phase of a canary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The candidate's share of the flows in its blocks, percent. Below 100 the others are its
    /// neighbours, and their harm is a guard rail.
    pub percent: f64,
    /// Number of flows that share each link.
    #[serde(default = "alone")]
    pub flows: usize,
    /// Time after which nothing found is no success, s.
    pub seconds: f64,
}

fn alone() -> usize {
    1
}

/// How the policy in force is measured, on fresh runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Measure {
    /// Length of a run, s.
    pub seconds: f64,
    /// Number of runs on each link, which is the number of rounds.
    pub runs: u32,
    /// Whether there are as many runs beside a cubic flow.
    pub beside_cubic: bool,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            seconds: 20.0,
            runs: 4,
            beside_cubic: true,
        }
    }
}

/// A policy of other origin that is tried like a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Name of the trial, of letters, digits, `-` and `_`.
    pub name: String,
    /// The policy's file, whose name ends in `.onnx`.
    pub policy: String,
}

/// Why a loop cannot be run as it is configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopConfigError {
    /// The file cannot be read, or is no configuration in TOML.
    #[error(transparent)]
    File(#[from] TomlFileError),
    /// A setting is out of its range.
    #[error("{field} is {found}, and has to be {expected}")]
    Range {
        /// The setting's key, such as `canary.block_s`.
        field: String,
        /// The value that it has.
        found: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The links cannot be loaded.
    #[error("scenarios: {0}")]
    Scenarios(#[from] ScenarioError),
    /// A link has flows of its own.
    #[error(
        "scenarios: `{scenario}` has {flows} flows of its own, and the loop gives every link the \
         flows that a stage needs: use links with one flow of the scheme under test"
    )]
    Flows {
        /// Name of the link's scenario.
        scenario: String,
        /// Number of flows that the scenario has.
        flows: usize,
    },
    /// The training settings are no configuration.
    #[error("train.set: {0}")]
    Train(String),
    /// There are too few held-out flows.
    #[error(
        "collect.held_out is {held_out} on each of {links} links, and nothing can be estimated \
         from fewer than {LEAST_CLUSTERS} flows in all: raise it"
    )]
    HeldOut {
        /// Number of held-out flows on each link.
        held_out: u32,
        /// Number of links in the scenarios.
        links: usize,
    },
}

impl LoopConfig {
    /// Reads a configuration from a file in TOML and checks it.
    ///
    /// # Errors
    ///
    /// Returns an error with the file's name when it cannot be read or does not parse, and one with
    /// the setting's when it is out of its range.
    pub fn load(path: &Path) -> Result<Self, LoopConfigError> {
        let config: Self = toml_file::read(path)?;
        config.validate()?;
        config.training()?;
        Ok(config)
    }

    /// Checks that every setting is within its range.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first setting that is out of its range.
    pub fn validate(&self) -> Result<(), LoopConfigError> {
        let check = |field: &str, found: String, fits: bool, expected| match fits {
            true => Ok(()),
            false => Err(LoopConfigError::Range {
                field: field.to_owned(),
                found,
                expected,
            }),
        };
        let seconds = |field: &str, found: f64| {
            let fits = (1.0..=86_400.0).contains(&found);
            check(field, found.to_string(), fits, "from 1 to 86400 seconds")
        };
        let at_least_1 =
            |field: &str, found: u64| check(field, found.to_string(), found >= 1, "at least 1");
        check(
            "serving",
            self.serving.to_string(),
            matches!(self.serving, ActionSelection::Softmax { .. }),
            "`softmax` or `softmax:T`, because nothing can be learned from recordings in which \
             every decision is the most likely one",
        )?;
        let spec = |text: &str| match text.parse::<PolicySpec>() {
            Ok(PolicySpec::Onnx(_) | PolicySpec::Pinned { .. }) => Some(true),
            Ok(PolicySpec::Default) => Some(false),
            _ => None,
        };
        check(
            "policy",
            format!("`{}`", self.policy),
            spec(&self.policy).is_some(),
            "a file that ends in .onnx, or `default`",
        )?;
        let jobs = self.jobs.unwrap_or(1);
        check(
            "jobs",
            jobs.to_string(),
            (1..=64).contains(&jobs),
            "from 1 to 64",
        )?;
        seconds("collect.seconds", self.collect.seconds)?;
        at_least_1("collect.runs", self.collect.runs.into())?;
        at_least_1("collect.held_out", self.collect.held_out.into())?;
        at_least_1("train.steps", self.train.steps)?;
        at_least_1("estimate.horizon", self.estimate.horizon as u64)?;
        let share = |field: &str, found: f64| {
            let fits = (0.0..=1.0).contains(&found);
            check(field, found.to_string(), fits, "from 0 to 1")
        };
        share("estimate.confidence", self.estimate.confidence)?;
        share("estimate.least_entropy", self.estimate.least_entropy)?;
        seconds("canary.block_s", self.canary.block_s)?;
        at_least_1("canary.phase", self.canary.phases.len() as u64)?;
        let units = self.canary.units;
        check("canary.units", units.to_string(), units >= 2, "at least 2")?;
        for (number, phase) in self.canary.phases.iter().enumerate() {
            let field = |name: &str| format!("canary.phase[{number}].{name}");
            let percent = phase.percent;
            let fits = percent > 0.0 && percent <= 100.0;
            check(
                &field("percent"),
                percent.to_string(),
                fits,
                "above 0 and at most 100",
            )?;
            let fits = (1..=64).contains(&phase.flows);
            check(
                &field("flows"),
                phase.flows.to_string(),
                fits,
                "from 1 to 64",
            )?;
            // The first block is the incumbent's, and then there are pairs.
            let least = self.canary.block_s * (1 + 2 * self.canary.units) as f64;
            check(
                &field("seconds"),
                phase.seconds.to_string(),
                (least..=86_400.0).contains(&phase.seconds),
                "at least (1 + 2 × canary.units) × canary.block_s, before which nothing is found, \
                 and at most 86400",
            )?;
        }
        seconds("measure.seconds", self.measure.seconds)?;
        at_least_1("measure.runs", self.measure.runs.into())?;
        let mut names: Vec<&str> = Vec::new();
        for trial in &self.trials {
            let name = trial.name.as_str();
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            let fits = (1..=40).contains(&name.len()) && name.bytes().all(plain);
            check(
                "trial.name",
                format!("`{name}`"),
                fits && !names.contains(&name),
                "1 to 40 letters, digits, `-` or `_`, and another one for each trial",
            )?;
            check(
                "trial.policy",
                format!("`{}`", trial.policy),
                spec(&trial.policy) == Some(true),
                "a file that ends in .onnx",
            )?;
            names.push(name);
        }
        Ok(())
    }

    /// Loads the scenarios of the links that the loop runs on.
    ///
    /// # Errors
    ///
    /// Returns an error when there are no such links, or when one has flows of its own.
    pub fn links(&self) -> Result<Vec<Scenario>, LoopConfigError> {
        let links = scenario::load(&self.scenarios)?;
        for link in &links {
            let own = Flow::default();
            if link.flows != [own] {
                return Err(LoopConfigError::Flows {
                    scenario: link.name.clone(),
                    flows: link.flows.len(),
                });
            }
        }
        let held_out = self.collect.held_out;
        match held_out as usize * links.len() < LEAST_CLUSTERS {
            true => Err(LoopConfigError::HeldOut {
                held_out,
                links: links.len(),
            }),
            false => Ok(links),
        }
    }

    /// The configuration of a training run from recordings: the defaults for recordings, with
    /// [`Train::set`] in place of what it names. The caller fills in what depends on the turn.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting that does not exist or has another type.
    pub fn training(&self) -> Result<Config, LoopConfigError> {
        let wrong = |error: serde_json::Error| LoopConfigError::Train(error.to_string());
        let mut settings = serde_json::to_value(Config::recorded(Vec::new())).map_err(wrong)?;
        let set = serde_json::to_value(&self.train.set).map_err(wrong)?;
        merge(&mut settings, set);
        serde_json::from_value(settings).map_err(wrong)
    }

    /// How many runs there are at the same time.
    pub fn jobs(&self) -> Jobs {
        self.jobs.map_or(Jobs::Auto, Jobs::Count)
    }
}

/// The settings that shape a loop's result, for the comparison of a loop that is continued: all but
/// the number of turns, trials and runs at the same time.
pub(super) fn shaping(config: &LoopConfig, links: &[Scenario]) -> Value {
    let mut value = serde_json::to_value(config).unwrap_or_default();
    if let Value::Object(settings) = &mut value {
        for free in ["turns", "jobs", "trial"] {
            settings.remove(free);
        }
        let digests = links
            .iter()
            .map(|link| (link.name.clone(), digest(link).into()));
        settings.insert("links".to_owned(), Value::Object(digests.collect()));
    }
    value
}

/// The links with this many flows of the scheme under test on each.
pub(super) fn shared(links: &[Scenario], flows: usize) -> Vec<Scenario> {
    let link = |link: &Scenario| Scenario {
        flows: vec![Flow::default(); flows],
        ..link.clone()
    };
    links.iter().map(link).collect()
}

/// The links with a cubic flow beside that of the scheme under test.
pub(super) fn beside_cubic(links: &[Scenario]) -> Vec<Scenario> {
    let cubic = Flow {
        scheme: Some("cubic".to_owned()),
        ..Flow::default()
    };
    let link = |link: &Scenario| Scenario {
        name: format!("{}-beside-cubic", link.name),
        flows: vec![Flow::default(), cubic.clone()],
        ..link.clone()
    };
    links.iter().map(link).collect()
}

/// Puts values in the place of others; objects are merged.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A number of seconds as a duration.
pub(super) fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LEAST: &str = "turns = 1\npolicy = \"a.onnx\"\nscenarios = \"demo/demo\"\n";

    fn parsed(text: &str) -> Result<LoopConfig, String> {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("loop.toml");
        fs::write(&path, format!("{LEAST}{text}")).expect("there is space");
        LoopConfig::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_defaults() {
        let config = parsed("").expect("all else has defaults");
        assert_eq!(config.serving.to_string(), "softmax:1");
        assert_eq!(config.estimate.no_conclusion, NoConclusion::Canary);
        assert_eq!(config.canary.phases.len(), 2);
        assert_eq!((config.on, config.jobs()), (Platform::Kernel, Jobs::Auto));
        // What the state holds is read again.
        let json = serde_json::to_string(&config).expect("plain data");
        let again: LoopConfig = serde_json::from_str(&json).expect("its own format");
        assert_eq!(again, config);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_remedy() {
        for (text, expected) in [
            ("turn = 3", "unknown field `turn`"),
            (
                "[collect]\nruns = 0",
                "collect.runs is 0, and has to be at least 1",
            ),
            ("[collect]\nsecond = 3", "unknown field `second`"),
            (
                "serving = \"greedy\"",
                "serving is greedy, and has to be `softmax`",
            ),
            ("jobs = 65", "jobs is 65, and has to be from 1 to 64"),
            ("on = \"moon\"", "unknown variant `moon`"),
            (
                "[estimate]\nno_conclusion = \"promote\"",
                "unknown variant `promote`",
            ),
            (
                "[estimate]\nleast_entropy = 2",
                "estimate.least_entropy is 2",
            ),
            (
                "[canary]\nphase = []",
                "canary.phase is 0, and has to be at least 1",
            ),
            (
                "[[canary.phase]]\npercent = 0\nseconds = 100",
                "canary.phase[0].percent is 0, and has to be above 0",
            ),
            (
                "[[canary.phase]]\npercent = 50\nseconds = 41",
                "canary.phase[0].seconds is 41, and has to be at least (1 + 2 × canary.units)",
            ),
            (
                "[[trial]]\nname = \"a b\"\npolicy = \"b.onnx\"",
                "trial.name is `a b`",
            ),
            (
                "[[trial]]\nname = \"a\"\npolicy = \"fixed:3\"",
                "trial.policy is `fixed:3`",
            ),
            (
                "[train.set.learner]\nrate = 3",
                "train.set: unknown field `rate`",
            ),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn links_have_the_flows_that_a_stage_needs() {
        let config = LoopConfig {
            scenarios: "jitter".to_owned(),
            ..parsed("").expect("valid")
        };
        let links = config.links().expect("a built-in set");
        assert_eq!(shared(&links, 3)[0].flows.len(), 3);
        let beside = beside_cubic(&links);
        assert_eq!(beside[0].flows[1].scheme.as_deref(), Some("cubic"));
        assert_eq!(beside[0].name, format!("{}-beside-cubic", links[0].name));
        let crowded = LoopConfig {
            scenarios: "fairness".to_owned(),
            ..config
        };
        let error = crowded.links().expect_err("flows of their own").to_string();
        assert!(error.contains("use links with one flow"), "{error}");
    }

    #[test]
    fn a_training_has_the_defaults_for_recordings_but_for_what_is_set() {
        let config = parsed("[train.set.learner]\nlearning_rate = 0.25").expect("valid");
        let training = config.training().expect("valid");
        let mut expected = Config::recorded(Vec::new());
        expected.learner.learning_rate = 0.25;
        assert_eq!(training, expected);
        let few = LoopConfig {
            collect: Collect {
                held_out: 3,
                ..Collect::default()
            },
            scenarios: "jitter".to_owned(),
            ..config
        };
        let error = few.links().expect_err("nine flows").to_string();
        assert!(error.contains("fewer than 10 flows"), "{error}");
    }

    #[test]
    fn turns_trials_and_jobs_may_change() {
        let config = parsed("").expect("valid");
        let more = LoopConfig {
            turns: 9,
            jobs: Some(3),
            ..config.clone()
        };
        assert_eq!(shaping(&config, &[]), shaping(&more, &[]));
        let other = LoopConfig { seed: 2, ..config };
        assert_ne!(shaping(&other, &[]), shaping(&more, &[]));
    }
}
