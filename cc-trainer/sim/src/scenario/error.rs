//! Errors of scenario files and of the lists that name scenarios.

use std::{io, path::PathBuf};

/// Why no scenario can be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// Two different scenarios of the list have the same name, which is to name their results.
    #[error(
        "two different scenarios are called `{name}`: choose one of them, or rename the one in your file"
    )]
    Ambiguous {
        /// The name.
        name: String,
    },
    /// Something in a file is wrong.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What is wrong, and the remedy.
        message: String,
    },
    /// The list of scenarios names none.
    #[error(
        "no scenario is named: give a set ({sets}), SET/SCENARIO, or a file that ends with .toml"
    )]
    Nothing {
        /// The sets there are.
        sets: String,
    },
    /// A file cannot be read.
    #[error("cannot read the scenario file {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is no such set.
    #[error(
        "no set of scenarios is called `{name}`: there are {sets} (or give a file, whose name ends with .toml)"
    )]
    UnknownSet {
        /// What was asked for.
        name: String,
        /// The sets there are, the nearest first.
        sets: String,
    },
    /// There is no such scenario in that set or file.
    #[error(
        "`{set}` has no scenario `{name}`: it has {scenarios}; or give its place, from 0 to {last}"
    )]
    UnknownScenario {
        /// The set or file.
        set: String,
        /// What was asked for.
        name: String,
        /// The scenarios there are, the nearest first.
        scenarios: String,
        /// The highest place.
        last: usize,
    },
}
