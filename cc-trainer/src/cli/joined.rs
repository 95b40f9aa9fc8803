//! What `dataset`, `ope` and `train` have in common: application outcomes that are joined with
//! recordings.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr};

use cc_trainer::dataset::{JoinError, Joined};

/// A file of application outcomes, and the weights of its terms.
#[derive(Debug, clap::Args)]
pub(super) struct JoinArgs {
    /// What applications measured, in Parquet, a row per flow: `cookie` (SO_COOKIE of its socket)
    /// or `flow`, and columns of numbers, such as completion_s, each of which becomes an outcome
    /// term. Flows without a row are left out where terms count.
    #[arg(long, value_name = "FILE.parquet")]
    pub(super) join: Option<PathBuf>,
    /// Add a joined term to the reward, with this weight: below 0 for a cost, as in
    /// `completion_s=-0.5`. Can be given several times.
    #[arg(long, value_name = "TERM=WEIGHT", requires = "join")]
    weigh: Vec<Weight>,
}

impl JoinArgs {
    /// Reads the file; `None` where none was given.
    pub(super) fn read(&self) -> Result<Option<Joined>, JoinError> {
        let Some(path) = &self.join else {
            return Ok(None);
        };
        Ok(Some(Joined::read(path)?.weighed(&self.weights())?))
    }

    /// The weights by the names of their terms; the last one given for a term counts.
    pub(super) fn weights(&self) -> BTreeMap<String, f64> {
        let own = self.weigh.iter();
        own.map(|weight| (weight.term.clone(), weight.weight))
            .collect()
    }
}

/// The weight of a term, `TERM=WEIGHT`.
#[derive(Clone, Debug, PartialEq)]
struct Weight {
    term: String,
    weight: f64,
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=');
        let weight = parts.and_then(|(term, weight)| {
            let weight = weight.parse().ok()?;
            Some(Self {
                term: term.to_owned(),
                weight,
            })
        });
        weight.ok_or_else(|| "expected a term and its weight, as in completion_s=-0.5".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_names_its_term() {
        let weight: Weight = "stalls_s=-2.5".parse().expect("valid");
        assert_eq!((weight.term.as_str(), weight.weight), ("stalls_s", -2.5));
        for text in ["stalls_s", "stalls_s=", "=", "stalls_s=much"] {
            assert!(text.parse::<Weight>().is_err(), "{text}");
        }
    }
}
