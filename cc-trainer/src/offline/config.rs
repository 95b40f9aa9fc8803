//! The settings of offline learning.

use cc_core::{interface::Interface, policy::ActionSelection};
use serde::{Deserialize, Serialize};

use crate::{dataset::Reading, model::Activation};

/// Settings of a run, the content of a configuration file of `cc-trainer offline`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OfflineConfig {
    /// Number of updates of the networks, each from one batch.
    pub updates: u64,
    /// Number B of states in an update.
    pub batch: usize,
    /// Determines the initial parameters and the order of the states.
    pub seed: u64,
    /// Fraction of the links, or of the flows where no addresses were recorded, that nothing is
    /// learned from: at least 0 and below 1.
    pub held_out: f64,
    /// γ, the discount over a window; 0 looks one decision ahead.
    pub discount: f64,
    /// Number of decisions whose rewards are added up before the value of what follows is
    /// estimated; 1 for none but the first.
    pub n_step: usize,
    /// How decisions of observed flows are read.
    pub reading: Reading,
    /// Names of the inputs that the policy heeds (`cc-trainer dataset` lists them in
    /// features.json), of which each may end with `*`; empty for all.
    pub inputs: Vec<String>,
    /// Interface of the policy. Its windows are those of the recordings.
    pub policy: Interface,
    /// How the policy's file asks to be served.
    pub serving: ActionSelection,
    /// Widths of the networks' layers.
    pub hidden: Vec<usize>,
    /// Activation of the networks' layers.
    pub activation: Activation,
    /// The optimiser of all networks.
    pub optimiser: Optimiser,
    /// The method, with its settings.
    pub method: Method,
}

/// Settings of RMSprop, whose learning rate falls linearly to 0 over a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optimiser {
    /// Learning rate at the start.
    pub learning_rate: f32,
    /// Decay of the mean square of the gradient.
    pub decay: f32,
    /// ε, added to the root of the mean square.
    pub epsilon: f32,
    /// Largest norm of the gradient; 0 for any.
    pub gradient_clip: f32,
}

/// A method of learning from what others did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Method {
    /// Behaviour cloning, which imitates what was recorded.
    Bc,
    /// Critic-regularised regression, which imitates the better actions.
    Crr(Crr),
    /// Q-learning, which learns the value of every action in a state.
    Dqn(Dqn),
    /// Regression of the next outcome on state and action.
    Myopic(Myopic),
    /// Q-learning with the action as an input.
    Parametric(Parametric),
}

/// Settings of critic-regularised regression (Wang et al., arXiv 2006.15134) with a critic of
/// quantiles (Dabney et al., arXiv 1710.10044).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Crr {
    /// Weight of an action by its advantage.
    pub filter: Filter,
    /// β of the exponential filter, in units of the advantages' root mean square.
    pub beta: f64,
    /// Number of quantiles of a value.
    pub quantiles: usize,
    /// Updates between two copies to the networks that targets are computed with.
    pub target_period: u64,
}

/// How an action of the data is weighted by its advantage A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// 1 where A is above 0, and otherwise 0.
    Binary,
    /// exp(A / β), at most 20.
    #[default]
    Exponential,
}

/// Settings of double Q-learning (van Hasselt et al., arXiv 1509.06461) with a dueling network
/// (Wang et al., arXiv 1511.06581), pessimistic about what the data lack (Kumar et al., arXiv
/// 2006.04779).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dqn {
    /// Weight α of the conservative regulariser.
    pub pessimism: f64,
    /// The policy's logits are the values divided by this.
    pub temperature: f64,
    /// Updates between two copies to the network that targets are computed with.
    pub target_period: u64,
}

/// Settings of the regression of the next outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Myopic {
    /// Weight of the conservative regulariser; 0 for plain regression.
    pub pessimism: f64,
    /// The policy's logits are the expected outcomes divided by this.
    pub temperature: f64,
}

/// Settings of Q-learning with the change of the cwnd as an input of the network, so that one
/// network serves every list of actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parametric {
    /// Number of networks of values, whose mean counts.
    pub ensemble: usize,
    /// Weight α of the conservative regulariser.
    pub pessimism: f64,
    /// Temperature of the softmax over the actions' values that the policy learns.
    pub temperature: f64,
    /// Updates between two copies to the network that targets are computed with.
    pub target_period: u64,
}

impl Default for OfflineConfig {
    fn default() -> Self {
        Self {
            updates: 20_000,
            batch: 256,
            seed: 1,
            held_out: 0.1,
            discount: 0.9,
            n_step: 1,
            reading: Reading::default(),
            inputs: Vec::new(),
            policy: Interface::default(),
            serving: ActionSelection::Greedy,
            hidden: vec![64, 64],
            activation: Activation::Tanh,
            optimiser: Optimiser::default(),
            method: Method::Crr(Crr::default()),
        }
    }
}

impl Default for Optimiser {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            decay: 0.99,
            epsilon: 1e-4,
            gradient_clip: 1.0,
        }
    }
}

impl Default for Crr {
    fn default() -> Self {
        Self {
            filter: Filter::default(),
            beta: 1.0,
            quantiles: 16,
            target_period: 100,
        }
    }
}

impl Default for Dqn {
    fn default() -> Self {
        Self {
            pessimism: 0.05,
            temperature: 0.05,
            target_period: 100,
        }
    }
}

impl Default for Myopic {
    fn default() -> Self {
        Self {
            pessimism: 0.0,
            temperature: 0.05,
        }
    }
}

impl Default for Parametric {
    fn default() -> Self {
        Self {
            ensemble: 4,
            pessimism: 0.05,
            temperature: 0.05,
            target_period: 100,
        }
    }
}

/// A setting that is out of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{setting} is {found}; expected {expected}")]
pub struct SettingError {
    /// Name of the setting, as configurations have it.
    pub setting: &'static str,
    /// The value that was found, as text.
    pub found: String,
    /// The values that it may have.
    pub expected: &'static str,
}

impl Method {
    /// Name of the method in configurations and in the policy's file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bc => "bc",
            Self::Crr(_) => "crr",
            Self::Dqn(_) => "dqn",
            Self::Myopic(_) => "myopic",
            Self::Parametric(_) => "parametric",
        }
    }
}

impl OfflineConfig {
    /// The discount by which outcomes are added up: that of the settings, and 0 for a method that
    /// looks at the next outcome alone.
    pub fn effective_discount(&self) -> f64 {
        match self.method {
            Method::Myopic(_) => 0.0,
            _ => self.discount,
        }
    }

    /// Checks all settings but those of the interface, which are checked with the recordings.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting out of its range.
    pub fn validate(&self) -> Result<(), SettingError> {
        type Check<'a> = (bool, &'static str, &'a dyn std::fmt::Display, &'static str);
        const WEIGHT: &str = "a number of at least 0";
        const POSITIVE: &str = "a number above 0";
        const COUNT: &str = "at least 1";
        let weight = |value: f64| (0.0..=1e6).contains(&value);
        let positive = |value: f64| value > 0.0 && value <= 1e6;
        let optimiser = &self.optimiser;
        let rate = f64::from(optimiser.learning_rate);
        let widths = format!("{:?}", self.hidden);
        let layers = !self.hidden.is_empty() && self.hidden.iter().all(|w| (1..=4096).contains(w));
        let mut checks: Vec<Check<'_>> = vec![
            (self.updates > 0, "updates", &self.updates, COUNT),
            (
                !self.policy.mask_actions,
                "policy.mask_actions",
                &self.policy.mask_actions,
                "false: offline methods learn about all actions; masks are for cc-trainer train",
            ),
            (
                (1..=65_536).contains(&self.batch),
                "batch",
                &self.batch,
                "1 to 65536",
            ),
            (
                (0.0..1.0).contains(&self.held_out),
                "held_out",
                &self.held_out,
                "0 or more, and below 1",
            ),
            (
                (0.0..1.0).contains(&self.discount),
                "discount",
                &self.discount,
                "0 or more, and below 1: recorded flows have no end",
            ),
            (
                (1..=1_000).contains(&self.n_step),
                "n_step",
                &self.n_step,
                "1 to 1000",
            ),
            (
                layers,
                "hidden",
                &widths,
                "at least one layer, each of 1 to 4096",
            ),
            (
                positive(rate),
                "optimiser.learning_rate",
                &optimiser.learning_rate,
                POSITIVE,
            ),
            (
                (0.0..1.0).contains(&optimiser.decay),
                "optimiser.decay",
                &optimiser.decay,
                "0 or more, and below 1",
            ),
            (
                positive(optimiser.epsilon.into()),
                "optimiser.epsilon",
                &optimiser.epsilon,
                POSITIVE,
            ),
            (
                weight(optimiser.gradient_clip.into()),
                "optimiser.gradient_clip",
                &optimiser.gradient_clip,
                WEIGHT,
            ),
        ];
        let names = [
            "method.pessimism",
            "method.temperature",
            "method.target_period",
        ];
        match &self.method {
            Method::Bc => {}
            Method::Crr(crr) => checks.extend([
                (
                    positive(crr.beta),
                    "method.beta",
                    &crr.beta as &dyn std::fmt::Display,
                    POSITIVE,
                ),
                (
                    (1..=256).contains(&crr.quantiles),
                    "method.quantiles",
                    &crr.quantiles,
                    "1 to 256",
                ),
                (crr.target_period > 0, names[2], &crr.target_period, COUNT),
            ]),
            Method::Dqn(Dqn {
                pessimism,
                temperature,
                target_period,
            }) => checks.extend([
                (
                    weight(*pessimism),
                    names[0],
                    pessimism as &dyn std::fmt::Display,
                    WEIGHT,
                ),
                (positive(*temperature), names[1], temperature, POSITIVE),
                (*target_period > 0, names[2], target_period, COUNT),
            ]),
            Method::Parametric(Parametric {
                ensemble,
                pessimism,
                temperature,
                target_period,
            }) => checks.extend([
                (
                    (1..=64).contains(ensemble),
                    "method.ensemble",
                    ensemble as &dyn std::fmt::Display,
                    "1 to 64",
                ),
                (weight(*pessimism), names[0], pessimism, WEIGHT),
                (positive(*temperature), names[1], temperature, POSITIVE),
                (*target_period > 0, names[2], target_period, COUNT),
            ]),
            Method::Myopic(Myopic {
                pessimism,
                temperature,
            }) => checks.extend([
                (
                    weight(*pessimism),
                    names[0],
                    pessimism as &dyn std::fmt::Display,
                    WEIGHT,
                ),
                (positive(*temperature), names[1], temperature, POSITIVE),
            ]),
        }
        let wrong = checks.into_iter().find(|(is_right, ..)| !is_right);
        match wrong {
            None => Ok(()),
            Some((_, setting, found, expected)) => Err(SettingError {
                setting,
                found: found.to_string(),
                expected,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        assert_eq!(OfflineConfig::default().validate(), Ok(()));
        for (text, expected) in [
            ("updates = 0", "updates is 0; expected at least 1"),
            ("batch = 0", "batch is 0"),
            (
                "held_out = 1.0",
                "held_out is 1; expected 0 or more, and below 1",
            ),
            ("discount = 1.0", "discount is 1"),
            ("n_step = 0", "n_step is 0"),
            ("hidden = []", "hidden is []"),
            (
                "optimiser = { learning_rate = 0 }",
                "optimiser.learning_rate is 0",
            ),
            ("method = { kind = \"crr\", beta = 0 }", "method.beta is 0"),
            (
                "method = { kind = \"crr\", quantiles = 0 }",
                "method.quantiles is 0",
            ),
            (
                "method = { kind = \"dqn\", pessimism = -1 }",
                "method.pessimism is -1",
            ),
            (
                "method = { kind = \"dqn\", target_period = 0 }",
                "method.target_period is 0",
            ),
            (
                "method = { kind = \"parametric\", ensemble = 0 }",
                "method.ensemble is 0; expected 1 to 64",
            ),
            (
                "method = { kind = \"myopic\", temperature = 0 }",
                "method.temperature is 0",
            ),
        ] {
            let config: OfflineConfig = toml::from_str(text).expect(text);
            let error = config.validate().expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for text in [
            "epochs = 3",
            "method = { kind = \"sac\" }",
            "method = { kind = \"dqn\", beta = 1 }",
            "reading = \"rate\"",
        ] {
            assert!(toml::from_str::<OfflineConfig>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn looking_one_outcome_ahead_has_no_discount() {
        let config: OfflineConfig = toml::from_str("method = { kind = \"myopic\" }").expect("TOML");
        assert_eq!(config.effective_discount(), 0.0);
        assert_eq!(OfflineConfig::default().effective_discount(), 0.9);
    }
}
