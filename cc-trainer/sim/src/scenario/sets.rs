//! The built-in sets of scenarios, and the role that each has.
//!
//! A set is a file of `cc-trainer/sim/scenarios`, or is generated from its specification by one of
//! the modules below. docs/sets.md describes all of them.

mod sage;
mod sampled;
mod sussex;
#[cfg(test)]
mod tests;

use std::{fmt, path::Path};

use super::{Scenario, ScenarioError, content, file};

/// A named list of built-in scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Name of the set, as [`load`](super::load) takes it.
    pub name: &'static str,
    /// Description of the set in one line.
    pub description: &'static str,
    /// What the set may be used for.
    pub role: Role,
    /// Where its scenarios come from.
    content: Content,
}

/// What a set may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Links to train policies on, beside the families.
    Training,
    /// To choose between policies and designs: seed, checkpoint, temperature.
    Validation,
    /// To judge what was chosen, and for nothing else. Training refuses the links of these sets.
    Test,
}

/// Where the scenarios of a set come from.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// The first `count` scenarios of a scenario file.
    File { text: &'static str, count: usize },
    /// Scenarios that a function generates from their specification.
    Generated(fn() -> Vec<Scenario>),
}

impl Content {
    const fn file(text: &'static str) -> Self {
        Self::File {
            text,
            count: usize::MAX,
        }
    }
}

/// All built-in sets, in the order in which they are listed.
pub const SETS: &[Set] = &[
    Set {
        name: "calibrated",
        description: "six paths of the Internet, on which the published policy was trained (the \
                      first of `pantheon`)",
        role: Role::Test,
        content: Content::File {
            text: PANTHEON,
            count: 6,
        },
    },
    Set {
        name: "pantheon",
        description: "the eighteen paths of Pantheon's emulation: measured ones, policers, sparse \
                      ACKs, small buffers",
        role: Role::Test,
        content: Content::file(PANTHEON),
    },
    Set {
        name: "cellular",
        description: "mobile networks from 3G to 5G, generated",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/cellular.toml")),
    },
    Set {
        name: "dynamic",
        description: "paths whose rate or delay changes under the flow",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/dynamic.toml")),
    },
    Set {
        name: "jitter",
        description: "links whose delay varies from packet to packet, as in a busy radio network",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/jitter.toml")),
    },
    Set {
        name: "fairness",
        description: "two to eight flows on one link",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/fairness.toml")),
    },
    Set {
        name: "fast",
        description: "500 Mbit/s up to what the host can carry",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/fast.toml")),
    },
    Set {
        name: "applications",
        description: "bursts after silence, requests, keystrokes, video and short flows",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/applications.toml")),
    },
    Set {
        name: "sage-1",
        description: "Sage's Set I (ccBench): one flow, steady rates and steps",
        role: Role::Test,
        content: Content::Generated(sage::single),
    },
    Set {
        name: "sage-2",
        description: "Sage's Set II (ccBench): beside a cubic flow that was there first",
        role: Role::Test,
        content: Content::Generated(sage::beside_cubic),
    },
    Set {
        name: "sussex-intra-rtt",
        description: "two flows of one RTT, the second of which joins late",
        role: Role::Test,
        content: Content::Generated(sussex::intra_rtt),
    },
    Set {
        name: "sussex-inter-rtt",
        description: "two flows of different RTTs",
        role: Role::Test,
        content: Content::Generated(sussex::inter_rtt),
    },
    Set {
        name: "sussex-bandwidth",
        description: "two flows at 10 to 100 Mbit/s",
        role: Role::Test,
        content: Content::Generated(sussex::bandwidth),
    },
    Set {
        name: "sussex-friendliness",
        description: "a flow after a cubic, and before one",
        role: Role::Test,
        content: Content::Generated(sussex::friendliness),
    },
    Set {
        name: "sussex-convergence",
        description: "four flows that join and leave 25 s apart",
        role: Role::Test,
        content: Content::Generated(sussex::convergence),
    },
    Set {
        name: "sussex-fq-codel",
        description: "the links of `sussex-convergence` under fq_codel",
        role: Role::Test,
        content: Content::Generated(sussex::convergence_fq_codel),
    },
    Set {
        name: "sussex-handover",
        description: "a link that is cut for 20 to 200 ms every 5 s",
        role: Role::Test,
        content: Content::Generated(sussex::handover),
    },
    Set {
        name: "broad",
        description: "200 plain links of a Latin hypercube: rate, RTT, buffer, loss",
        role: Role::Test,
        content: Content::Generated(sampled::broad),
    },
    Set {
        name: "extreme",
        description: "the ends of what is found: rates, RTTs, buffers, queue management, loss, ACK \
                      paths, crowds, cross traffic",
        role: Role::Test,
        content: Content::Generated(sampled::extreme),
    },
    Set {
        name: "validation",
        description: "as `broad`, `extreme` and Sage's sets, drawn with another seed, to choose by",
        role: Role::Validation,
        content: Content::Generated(sampled::validation),
    },
    Set {
        name: "training",
        description: "as `validation`, drawn with a third seed, to train on",
        role: Role::Training,
        content: Content::Generated(sampled::training),
    },
    Set {
        name: "demo",
        description: "one link, alone and beside a cubic flow",
        role: Role::Test,
        content: Content::file(include_str!("../../scenarios/demo.toml")),
    },
];

const PANTHEON: &str = include_str!("../../scenarios/pantheon.toml");

impl Set {
    /// The scenarios of the set.
    ///
    /// # Errors
    ///
    /// Returns an error when the set's file is invalid, which the tests exclude for the built-in
    /// sets.
    pub fn scenarios(&self) -> Result<Vec<Scenario>, ScenarioError> {
        match self.content {
            Content::File { text, count } => {
                let path = format!("(built in) {}.toml", self.name);
                let mut scenarios = file::parse(text, Path::new(&path))?;
                scenarios.truncate(count);
                Ok(scenarios)
            }
            Content::Generated(generate) => Ok(generate()),
        }
    }

    /// SHA-256 of the set's scenarios, in hexadecimal: their links, flows and scoring in their
    /// order, without names and descriptions. Results state it, so that figures of two versions can
    /// be told apart when a set has changed between them.
    ///
    /// # Errors
    ///
    /// Returns an error when the set's file is invalid.
    pub fn hash(&self) -> Result<String, ScenarioError> {
        Ok(content::set(&self.scenarios()?))
    }
}

impl Role {
    /// Name of the role in lists and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Test => "test",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The built-in set with that name, if there is one.
pub fn set(name: &str) -> Option<&'static Set> {
    SETS.iter().find(|set| set.name == name)
}

/// Names of all sets, separated by commas.
pub(super) fn names() -> String {
    SETS.iter()
        .map(|set| set.name)
        .collect::<Vec<_>>()
        .join(", ")
}
