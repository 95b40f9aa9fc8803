//! Why the configuration of an environment cannot be used.

use cc_core::interface::InterfaceError;

use cc_sim::scenario::ScenarioError;
use cc_sim::sim::Control;

/// Why a [`NetworkConfig`] cannot be used. The message names the setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkConfigError {
    /// The objective charges each flow both for what it causes and with the mean of all.
    #[error(
        "objective.caused and objective.shared are both true; a flow is either charged for what it \
         causes itself, or has the mean reward of all: leave one of them out"
    )]
    Charged,
    /// A parameter of the decision delay is out of its range; the string names it.
    #[error("delay: {0}")]
    Delay(String),
    /// A links entry has none of `scenarios`, `random` and `family`, or several.
    #[error(
        "links[{index}]: give either `scenarios` (such as \"training\"), `random` (a family with \
         ranges) or `family` (such as \"broad\")"
    )]
    Entry {
        /// Position of the entry in `links`, counted from 0.
        index: usize,
    },
    /// The network of the guides has a range that is none; the string names it.
    #[error("guide: {0}")]
    Guide(String),
    /// Guides are weights of delay, which the objective has not.
    #[error(
        "guide sets the weight of delay, which an objective of kind \"environment\" has not: set \
         objective.kind to \"power\", or leave guide out"
    )]
    GuideObjective,
    /// The policy's observation, actions or windows are not valid.
    #[error("policy.{0}")]
    Interface(#[from] InterfaceError),
    /// There are no guides to choose from.
    #[error("guide.values is empty; give weights of delay such as [1.0, 0.25, 4.0]")]
    NoGuides,
    /// The configuration has no links entry.
    #[error("links is empty; add an entry such as {{ family = \"broad\" }}")]
    NoLinks,
    /// A number is out of its range.
    #[error("{place} is {found}; expected {least} to {most}")]
    Range {
        /// Path of the setting, such as `links[0].random.rate_mbps`.
        place: String,
        /// The number in the configuration.
        found: f64,
        /// The smallest number that is valid.
        least: f64,
        /// The largest number that is valid.
        most: f64,
    },
    /// Links whose rate rises by itself are to rise at the start; the string names the setting.
    #[error(
        "{0} goes with `service` \"constant\" or \"poisson\": the rates of other services rise by \
         themselves, leave it out there"
    )]
    RisesAlready(String),
    /// A scenario is unknown or its file cannot be read.
    #[error("links: {0}")]
    Scenario(#[from] ScenarioError),
    /// A background flow uses a congestion control that the simulator does not have.
    #[error("{place} names the scheme `{found}`; the simulator has {}", Control::NAMES.join(", "))]
    Scheme {
        /// The setting or scenario that names it.
        place: String,
        /// The name that is unknown, possibly empty.
        found: String,
    },
    /// The scenario's link has no rate, so that throughput cannot be related to it.
    #[error("the scenario `{scenario}` has no rate, so nothing can be learned on it: leave it out")]
    Unlimited {
        /// Name of the scenario, without its set.
        scenario: String,
    },
}
