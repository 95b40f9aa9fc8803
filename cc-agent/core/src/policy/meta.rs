//! What a policy file says about itself, and the summary shown to people.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ActionSelection;
use crate::interface::{Interface, InterfaceError};

/// The largest recurrent state and hidden layer that a policy may have.
const MAX_WIDTH: usize = 65_536;

/// A policy's description of itself; its file carries it as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyMeta {
    /// A name for people.
    pub name: String,
    /// Where its weights come from.
    pub kind: PolicyKind,
    /// What it was made for.
    #[serde(rename = "environment")]
    pub interface: Interface,
    /// The widths of its hidden layers before the recurrent part, for information.
    pub hidden: Vec<usize>,
    /// The width H of each of its two recurrent state vectors, h and c; at least 1.
    pub state: usize,
    /// How its actions are chosen, unless who runs it asks for something else; greedy where a file does not say.
    #[serde(default)]
    pub serving: ActionSelection,
    /// Anything that tells how it came to be: trainer version, steps, seed, scenarios.
    pub provenance: BTreeMap<String, String>,
}

impl PolicyMeta {
    /// Parses and checks the JSON of a policy file.
    ///
    /// # Errors
    ///
    /// Names the field that is missing, unknown, of the wrong type or out of its range.
    pub fn from_json(json: &str) -> Result<Self, MetaError> {
        let value: Value = serde_json::from_str(json)?;
        // A configuration file may leave settings to their defaults; a policy file must not, for
        // defaults may differ between the release that wrote it and the one that reads it.
        if let Some(interface) = value.get("environment") {
            let complete = serde_json::to_value(Interface::default())?;
            if let Some(field) = missing_field(&complete, interface) {
                return Err(MetaError::Missing {
                    field: format!("environment.{field}"),
                });
            }
        }
        let meta: Self = serde_json::from_str(json)?;
        meta.validate()?;
        Ok(meta)
    }

    /// The JSON for a policy file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|e| unreachable!("plain data serialises: {e}"))
    }

    /// Checks the environment and the sizes.
    ///
    /// # Errors
    ///
    /// Names the field out of its range.
    pub fn validate(&self) -> Result<(), MetaError> {
        self.interface.validate()?;
        let widths = self.hidden.iter().map(|&width| ("hidden", width));
        for (field, found) in widths.chain([("state", self.state)]) {
            if !(1..=MAX_WIDTH).contains(&found) {
                return Err(MetaError::Width { field, found });
            }
        }
        Ok(())
    }
}

/// Where a policy's weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// Set by hand after a rule.
    Heuristic,
    /// Learned.
    Trained,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heuristic => "heuristic (set by hand, not trained)",
            Self::Trained => "trained",
        })
    }
}

/// What is wrong with a policy's description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// Not JSON, or a field unknown, missing or of the wrong type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A setting of the environment is left out.
    #[error("{field} is missing; a policy file states every setting of its environment")]
    Missing {
        /// The setting's full name.
        field: String,
    },
    /// A setting of the environment is out of its range.
    #[error("environment.{0}")]
    Interface(#[from] InterfaceError),
    /// A layer that cannot be.
    #[error("{field} is {found}; expected 1 to {MAX_WIDTH}")]
    Width {
        /// `hidden` or `state`.
        field: &'static str,
        /// Its value.
        found: usize,
    },
}

/// A policy file at a glance, for `inspect` and for logs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// What the file says about itself.
    #[serde(flatten)]
    pub meta: PolicyMeta,
    /// The length D of its observations.
    pub observation: usize,
    /// The number of its weights and biases.
    pub parameters: usize,
    /// The size of the file in bytes.
    pub bytes: usize,
    /// SHA-256 of the file, in hexadecimal: the policy's identity in traces and logs.
    pub sha256: String,
    /// What wrote the file.
    pub producer: String,
    /// The file's own words.
    pub description: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyMeta {
            name,
            kind,
            interface,
            hidden,
            state,
            serving,
            provenance,
        } = &self.meta;
        let hidden = hidden
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(" + ");
        let Interface {
            history,
            actions,
            cwnd,
            scales,
            reward,
            ..
        } = interface;
        let pacing = interface
            .pacing_gain
            .map_or_else(|| "none".to_owned(), |gain| format!("{gain} x cwnd / srtt"));
        writeln!(f, "name          {name}")?;
        writeln!(f, "kind          {kind}")?;
        if !self.description.is_empty() {
            writeln!(f, "description   {}", self.description)?;
        }
        writeln!(
            f,
            "observation   {} values: features version {}, the last {history} decisions",
            self.observation, interface.features_version
        )?;
        writeln!(f, "window        {} ms", interface.window_ms)?;
        writeln!(f, "actions       {actions}")?;
        writeln!(f, "cwnd          {} to {} packets", cwnd.min, cwnd.max)?;
        writeln!(f, "pacing        {pacing}")?;
        writeln!(f, "serving       {serving}")?;
        writeln!(
            f,
            "scales        {} ms, {} bytes",
            scales.time_ms, scales.bytes
        )?;
        writeln!(f, "min RTT over  {} s", interface.min_rtt_window_s)?;
        writeln!(
            f,
            "reward        {:?}: throughput {} (+{}), {} delay -{} (+{}), loss -{} (+{})",
            reward.kind,
            reward.throughput_factor,
            reward.throughput_offset,
            if reward.max_delay { "max" } else { "mean" },
            reward.delay_factor,
            reward.delay_offset,
            reward.loss_factor,
            reward.loss_offset,
        )?;
        writeln!(
            f,
            "network       hidden {hidden}, state {state}, {} parameters",
            self.parameters
        )?;
        writeln!(
            f,
            "file          {} bytes, written by {}",
            self.bytes, self.producer
        )?;
        write!(f, "sha256        {}", self.sha256)?;
        for (key, value) in provenance {
            write!(f, "\n  {key}: {value}")?;
        }
        Ok(())
    }
}

/// The first field of `complete`, sections included, that `found` lacks.
fn missing_field(complete: &Value, found: &Value) -> Option<String> {
    complete
        .as_object()?
        .iter()
        .find_map(|(key, inner)| match found.as_object()?.get(key) {
            None => Some(key.clone()),
            Some(value) => missing_field(inner, value).map(|field| format!("{key}.{field}")),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> PolicyMeta {
        PolicyMeta {
            name: "test".to_owned(),
            kind: PolicyKind::Trained,
            interface: Interface::default(),
            hidden: vec![64, 64],
            state: 64,
            serving: Default::default(),
            provenance: BTreeMap::from([("seed".to_owned(), "7".to_owned())]),
        }
    }

    #[test]
    fn json_round_trips() {
        assert_eq!(
            PolicyMeta::from_json(&meta().to_json()).expect("parses"),
            meta()
        );
    }

    #[test]
    fn errors_name_the_field() {
        let json = meta().to_json();
        for (from, to, expected) in [
            (
                r#""window_ms":100,"#,
                "",
                "environment.window_ms is missing",
            ),
            (
                r#""time_ms":100.0,"#,
                "",
                "environment.scales.time_ms is missing",
            ),
            (
                r#","pacing_gain":null"#,
                "",
                "environment.pacing_gain is missing",
            ),
            (
                r#""window_ms":100"#,
                r#""window_ms":0"#,
                "environment.window_ms is 0; expected",
            ),
            (
                r#""features_version":1"#,
                r#""features_version":9"#,
                "environment.features_version is 9",
            ),
            (r#""state":64,"#, "", "missing field `state`"),
            (r#""state":64"#, r#""state":0"#, "state is 0; expected 1 to"),
            (
                r#""hidden":[64,64]"#,
                r#""hidden":[64,99999999]"#,
                "hidden is 99999999; expected",
            ),
            (
                r#""kind":"trained""#,
                r#""kind":"magic""#,
                "unknown variant `magic`",
            ),
            (r#""name""#, r#""title""#, "unknown field `title`"),
            ("0,/2", "0,!2", "action 2, `!2`: unknown operator"),
        ] {
            let changed = json.replacen(from, to, 1);
            assert_ne!(changed, json, "{from} is not in {json}");
            let error = PolicyMeta::from_json(&changed)
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
        assert!(PolicyMeta::from_json("null").is_err());
        assert!(PolicyMeta::from_json("{").is_err());
    }
}
