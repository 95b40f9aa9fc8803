//! Errors of scenario files and of the lists that name scenarios.

use std::{io, path::PathBuf};

/// Errors of scenario files, and of lists that select scenarios.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// Two different scenarios of the list have the same name, which would name the results of
    /// both.
    #[error(
        "two different scenarios are called `{name}`: choose one of them, or rename the one in \
         your file"
    )]
    Ambiguous {
        /// Name that both scenarios have.
        name: String,
    },
    /// A file is not a valid description of scenarios.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Invalid {
        /// Path of the file with the error.
        path: PathBuf,
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error in characters, from 1.
        column: usize,
        /// Description of the error and its remedy.
        message: String,
    },
    /// The list names no scenario.
    #[error(
        "no scenario is named: give a set ({sets}), SET/SCENARIO, or a file that ends with .toml"
    )]
    Nothing {
        /// Names of the built-in sets.
        sets: String,
    },
    /// A file could not be read.
    #[error("cannot read the scenario file {}: {error}", path.display())]
    Read {
        /// Path of the file that could not be read.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
    /// There is no built-in set of this name.
    #[error(
        "no set of scenarios is called `{name}`: there are {sets} (or give a file, whose name \
         ends with .toml)"
    )]
    UnknownSet {
        /// Name that was asked for.
        name: String,
        /// Names of the built-in sets, the most similar one first.
        sets: String,
    },
    /// A set or file has no such scenario.
    #[error(
        "`{set}` has no scenario `{name}`: it has {scenarios}; or give its place, from 0 to {last}"
    )]
    UnknownScenario {
        /// Name of the set, or path of the file.
        set: String,
        /// Scenario that was asked for.
        name: String,
        /// Names of its scenarios, the most similar one first; of a large set only some.
        scenarios: String,
        /// Highest index of a scenario in the set or file.
        last: usize,
    },
}
