//! The metadata of a policy file, and its summary.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ActionSelection;
use super::ports::Widths;
use crate::interface::{Interface, InterfaceError};
use crate::objective::Objective;

/// The largest hidden layer that a policy may have.
const MAX_HIDDEN: usize = 65_536;
/// The largest recurrent state. The agent keeps two vectors of it for every flow: 256 MiB for the
/// 16,384 flows of its default. The weights of a larger LSTM would exceed the limit of a file.
const MAX_STATE: usize = 2_048;
/// The longest observation: 16 MiB for a batch of 256.
const MAX_OBSERVATION: usize = 16_384;
/// The shortest window, ms. Every flow gives the agent a record a window, and 16,384 flows with
/// shorter ones more than it can take.
const MIN_WINDOW_MS: u32 = 5;

/// The metadata of a policy, which its file carries as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyMeta {
    /// The policy's name in logs and in the status.
    pub name: String,
    /// Whether the weights were trained or set by hand.
    pub kind: PolicyKind,
    /// The interface that the policy was made for.
    #[serde(rename = "environment")]
    pub interface: Interface,
    /// The widths of its hidden layers before the recurrent part, for information.
    pub hidden: Vec<usize>,
    /// The width H of each of its two recurrent state vectors, h and c; at least 1.
    pub state: usize,
    /// How actions are selected unless the command line asks for something else; greedy in files
    /// without this field.
    #[serde(default)]
    pub serving: ActionSelection,
    /// How the policy was made: trainer version, steps, seed, scenarios and the like, by name.
    pub provenance: BTreeMap<String, String>,
}

impl PolicyMeta {
    /// Name of the entry of [`provenance`](Self::provenance) that says on which links of test and
    /// validation sets the policy was trained: [`NO_TEST_SETS`](Self::NO_TEST_SETS), or sets and
    /// `SET/SCENARIO`s, separated by commas; `unknown` where nobody can tell. Files from before
    /// there were splits lack it.
    pub const TEST_SETS: &'static str = "test_sets";
    /// Value of [`TEST_SETS`](Self::TEST_SETS) for a policy that was trained on none of them. Only
    /// such a policy may become the embedded one.
    pub const NO_TEST_SETS: &'static str = "none";

    /// Parses and checks the JSON of a policy file.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field that is missing, unknown, of the wrong type or out of
    /// its range.
    pub fn from_json(json: &str) -> Result<Self, MetaError> {
        let value: Value = serde_json::from_str(json)?;
        // A configuration file may leave settings to their defaults; a policy file must not, for
        // defaults may differ between the release that wrote it and the one that reads it. Files
        // of before there were objectives lack the whole section.
        if let Some(interface) = value.get("environment") {
            let complete = serde_json::to_value(Interface {
                objective: interface.get("objective").map(|_| Objective::default()),
                ..Interface::default()
            })?;
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

    /// Formats the metadata as the JSON of a policy file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|e| unreachable!("plain data serialises: {e}"))
    }

    /// The widths of the inputs and outputs that the policy's graph must have.
    pub fn widths(&self) -> Widths {
        Widths {
            observation: self.interface.observation_len(),
            actions: self.interface.actions.len(),
            state: self.state,
        }
    }

    /// Checks the interface, the sizes of the layers and what they take of the agent.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field out of its range.
    pub fn validate(&self) -> Result<(), MetaError> {
        self.interface.validate()?;
        let hidden = self
            .hidden
            .iter()
            .map(|&width| ("hidden", width, MAX_HIDDEN));
        for (field, found, most) in hidden.chain([("state", self.state, MAX_STATE)]) {
            if !(1..=most).contains(&found) {
                return Err(MetaError::Width { field, found, most });
            }
        }
        let found = self.interface.observation_len();
        if found > MAX_OBSERVATION {
            return Err(MetaError::Observation { found });
        }
        let found = self.interface.window_ms;
        if found < MIN_WINDOW_MS {
            return Err(MetaError::Window { found });
        }
        Ok(())
    }
}

/// The origin of a policy's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyKind {
    /// The weights were set by hand to follow a rule.
    Heuristic,
    /// The weights were learned by `cc-trainer`.
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

/// Why the metadata of a policy file are refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// The entry is not JSON, or a field is unknown, missing or of the wrong type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A setting of the interface is left out.
    #[error("{field} is missing; a policy file states every setting of its environment")]
    Missing {
        /// The full name of the setting, beginning with `environment.`.
        field: String,
    },
    /// A setting of the interface is out of its range.
    #[error("environment.{0}")]
    Interface(#[from] InterfaceError),
    /// The observation would be too long.
    #[error(
        "environment.history, environment.actions and environment.series make observations of \
         {found} values; expected at most {MAX_OBSERVATION}: take a shorter history, fewer actions \
         or shorter series"
    )]
    Observation {
        /// The length of an observation.
        found: usize,
    },
    /// The width of a layer or of the state is out of its range.
    #[error("{field} is {found}; expected 1 to {most}")]
    Width {
        /// The field, `hidden` or `state`.
        field: &'static str,
        /// The width that the field states.
        found: usize,
        /// The largest width of the field.
        most: usize,
    },
    /// The windows are too short to be served.
    #[error("environment.window_ms is {found}; expected at least {MIN_WINDOW_MS} in a policy file")]
    Window {
        /// The length of a window in ms.
        found: u32,
    },
}

/// The metadata, sizes and hash of a policy file, for `cc-agent inspect` and for logs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The metadata that the file carries.
    #[serde(flatten)]
    pub meta: PolicyMeta,
    /// The length D of the policy's observations.
    pub observation: usize,
    /// The number of weights and biases.
    pub parameters: usize,
    /// The size of the file in bytes.
    pub bytes: usize,
    /// SHA-256 of the file, in hexadecimal: the policy's identity in traces and logs.
    pub sha256: String,
    /// The program that wrote the file, from the ONNX model.
    pub producer: String,
    /// The description of the ONNX model; may be empty.
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
            situation,
            shared_path,
            rate_memory,
            response,
            changes,
            series,
            actions,
            cwnd,
            scales,
            reward,
            objective,
            ..
        } = interface;
        let origin = match objective {
            Some(_) => "",
            None => "; derived from the reward, as the file states none",
        };
        let pacing = interface
            .pacing_gain
            .map_or_else(|| "none".to_owned(), |gain| format!("{gain} x cwnd / RTT"));
        writeln!(f, "name          {name}")?;
        writeln!(f, "kind          {kind}")?;
        if !self.description.is_empty() {
            writeln!(f, "description   {}", self.description)?;
        }
        writeln!(
            f,
            "observation   {} values: features version {}, the last {} decisions{}{}{}{}{}{}",
            self.observation,
            interface.features_version,
            history,
            match situation {
                0 => String::new(),
                _ => format!(", the situation by the last {situation} windows"),
            },
            match shared_path {
                false => "",
                true => ", with what all flows between the same hosts know",
            },
            match rate_memory {
                0 => String::new(),
                _ => format!(", its largest rate within {rate_memory} windows"),
            },
            match response {
                0 => String::new(),
                _ => format!(", the RTT's response within {response} windows"),
            },
            match changes {
                0 => String::new(),
                _ => format!(", that to changes within {changes} windows"),
            },
            match series {
                0 => String::new(),
                _ => format!(", series of {series} windows"),
            }
        )?;
        writeln!(f, "window        {} ms", interface.window_ms)?;
        writeln!(f, "actions       {actions}")?;
        if interface.mask_actions {
            writeln!(
                f,
                "masked        actions that would do the same as earlier ones"
            )?;
        }
        if interface.after_slow_start {
            writeln!(f, "decides       from the end of slow start on")?;
        }
        writeln!(f, "cwnd          {} to {} segments", cwnd.min, cwnd.max)?;
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
        writeln!(f, "objective     {}{origin}", interface.objective())?;
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
    fn masks_may_be_missing_and_are_read_where_they_are_stated() {
        let mut meta = meta();
        let json = meta.to_json();
        assert!(!json.contains("mask_actions"), "{json}");
        assert!(
            !PolicyMeta::from_json(&json)
                .expect("parses")
                .interface
                .mask_actions
        );
        meta.interface.mask_actions = true;
        let json = meta.to_json();
        assert!(json.contains(r#""mask_actions":true"#), "{json}");
        assert_eq!(PolicyMeta::from_json(&json).expect("parses"), meta);
        let wrong = json.replacen(r#""mask_actions":true"#, r#""mask_actions":"no""#, 1);
        PolicyMeta::from_json(&wrong).expect_err("neither true nor false");
    }

    #[test]
    fn an_objective_may_be_missing_and_must_otherwise_be_whole() {
        let mut meta = meta();
        assert_eq!(meta.interface.objective, None);
        meta.interface.objective = Some(Objective::default());
        let json = meta.to_json();
        assert_eq!(PolicyMeta::from_json(&json).expect("parses"), meta);
        let partial = json.replacen(r#""marks":0.0,"#, "", 1);
        assert_ne!(partial, json);
        let error = PolicyMeta::from_json(&partial).expect_err("refused");
        assert!(
            error
                .to_string()
                .starts_with("environment.objective.marks is missing"),
            "{error}"
        );
        let negative = json.replacen(r#""loss":20.0"#, r#""loss":-20.0"#, 1);
        assert_ne!(negative, json);
        let error = PolicyMeta::from_json(&negative).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "environment.objective.loss is -20; expected a weight of 0 to 1000000"
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
                r#""state":64"#,
                r#""state":2049"#,
                "state is 2049; expected 1 to 2048",
            ),
            (
                r#""window_ms":100"#,
                r#""window_ms":1"#,
                "environment.window_ms is 1; expected at least 5",
            ),
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
        let mut wide = meta();
        wide.interface.history = 1_000;
        let space: String = (1..=16).map(|n| format!(",+{n}")).collect();
        wide.interface.actions = format!("0{space}").parse().expect("an action space");
        let error = PolicyMeta::from_json(&wide.to_json()).expect_err("too long");
        assert!(
            error
                .to_string()
                .contains("observations of 18100 values; expected at most 16384"),
            "{error}"
        );
        assert!(PolicyMeta::from_json("null").is_err());
        assert!(PolicyMeta::from_json("{").is_err());
    }
}
