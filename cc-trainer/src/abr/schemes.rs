//! What can select bitrates, by its name on a command line.
//!
//! This is the one place that a kind of scheme is added to: evaluation and server take what it
//! returns.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

use cc_abr::{
    baseline::{self, NAMES},
    qoe::Aim,
    request::ChooserFor,
};
use cc_core::policy::ActionSelection;

use super::{
    policy::{BitrateError, BitratePolicy},
    tabular::{QTable, TableError},
};

/// Name of the optimum, which needs the whole trace and can therefore not serve players.
const OPTIMUM: &str = "optimum";

/// Ending of the files of learned policies.
const POLICY_FILE: &str = ".onnx";
/// Ending of the files of tables.
const TABLE_FILE: &str = ".json";

/// What selects bitrates in an evaluation: a chooser by its name or its file, or the optimum.
#[derive(Clone, Debug)]
pub enum Scheme {
    /// A classical chooser, by its name in [`baseline::named`].
    Classical(String),
    /// A learned policy, with the path of its file as it was given.
    Learned(String, Arc<BitratePolicy>),
    /// The best schedule for the whole trace, known beforehand.
    Optimum,
    /// A table of tabular Q-learning, with the path of its file as it was given.
    Table(String, Arc<QTable>),
}

/// Why there is no such scheme.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeError {
    /// The file of a learned policy cannot be used.
    #[error("the policy {path}: {source}")]
    Policy {
        /// The file as it was given.
        path: String,
        /// Why it cannot be used.
        source: BitrateError,
    },
    /// The file of a table cannot be used.
    #[error("the table {path}: {source}")]
    Table {
        /// The file as it was given.
        path: String,
        /// Why it cannot be used.
        source: TableError,
    },
    /// No scheme has this name.
    #[error(
        "`{0}` is no scheme: take {names}, fixed:N (N from 0), {OPTIMUM}, or the file of a learned \
         policy ({POLICY_FILE}) or of a table ({TABLE_FILE})",
        names = NAMES.join(", ")
    )]
    Unknown(String),
}

impl FromStr for Scheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        if text == OPTIMUM {
            return Ok(Self::Optimum);
        }
        let path = text.to_owned();
        if text.ends_with(POLICY_FILE) {
            return match BitratePolicy::read(Path::new(text)) {
                Ok(policy) => Ok(Self::Learned(path, Arc::new(policy))),
                Err(source) => Err(SchemeError::Policy { path, source }),
            };
        }
        if text.ends_with(TABLE_FILE) {
            return match QTable::read(Path::new(text)) {
                Ok(table) => Ok(Self::Table(path, Arc::new(table))),
                Err(source) => Err(SchemeError::Table { path, source }),
            };
        }
        let fixed = text
            .strip_prefix("fixed:")
            .is_some_and(|n| n.parse::<usize>().is_ok());
        match fixed || NAMES.contains(&text) {
            true => Ok(Self::Classical(text.to_owned())),
            false => Err(SchemeError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classical(name) | Self::Learned(name, _) | Self::Table(name, _) => name,
            Self::Optimum => OPTIMUM,
        })
    }
}

impl Scheme {
    /// The same scheme with a learned policy's actions selected in this way instead of that which
    /// its file asks for, and sampled ones determined by the seed. Others are as they were.
    #[must_use]
    pub fn selecting(&self, selection: ActionSelection, seed: u64) -> Self {
        match self {
            Self::Learned(path, policy) => {
                Self::Learned(path.clone(), Arc::new(policy.selecting(selection, seed)))
            }
            other => other.clone(),
        }
    }

    /// Makes choosers of this scheme for the bitrates of a video; `None` for the optimum, which
    /// decides with the whole trace known.
    pub fn choosers(&self, aim: Aim) -> Option<Box<ChooserFor>> {
        match self {
            Self::Optimum => None,
            Self::Classical(name) => {
                let name = name.clone();
                Some(Box::new(move |kbps| {
                    let metric = aim.metric(kbps).map_err(|error| error.to_string())?;
                    baseline::named(&name, &metric)
                        .ok_or_else(|| SchemeError::Unknown(name.clone()).to_string())
                }))
            }
            Self::Learned(_, policy) => {
                let policy = Arc::clone(policy);
                Some(Box::new(move |kbps| {
                    policy.chooser(kbps).map_err(|error| error.to_string())
                }))
            }
            Self::Table(_, table) => {
                let table = Arc::clone(table);
                Some(Box::new(move |kbps| {
                    table.chooser(kbps).map_err(|error| error.to_string())
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cc_abr::qoe::Qoe;

    use super::*;

    #[test]
    fn names_are_read_back_and_make_choosers() {
        let aim = Aim {
            qoe: Qoe::Linear,
            rebuffer_penalty: None,
        };
        for name in NAMES.iter().chain(&["fixed:2", OPTIMUM]) {
            let scheme: Scheme = name.parse().expect("a known name");
            assert_eq!(scheme.to_string(), *name);
            let made = scheme
                .choosers(aim)
                .map(|choosers| choosers(&[300.0]).is_ok());
            assert_eq!(made, (*name != OPTIMUM).then_some(true));
        }
        for unknown in ["", "pensieve", "fixed:", "fixed:x", "BOLA"] {
            let error = unknown.parse::<Scheme>().expect_err(unknown);
            assert!(error.to_string().contains("robust-mpc"), "{error}");
        }
        for (missing, kind) in [("no/such.onnx", "policy"), ("no/such.json", "table")] {
            let error = missing.parse::<Scheme>().expect_err(missing).to_string();
            assert!(
                error.starts_with(&format!("the {kind} {missing}: ")),
                "{error}"
            );
        }
    }
}
