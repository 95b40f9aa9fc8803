//! `train.json`: everything needed to repeat a run, and its learning curve.

use serde::{Deserialize, Serialize};

use super::{config::Config, held_out::HeldOutPoint, statistics::CurvePoint};
use crate::model::Shape;
use cc_testbed::summary::Host;

/// The record of a run, as `train.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of cc-trainer that wrote the record.
    pub version: String,
    /// [`Config::sha256`] of the settings, which the policy file names as well. Empty in records of
    /// versions that did not write it.
    #[serde(default)]
    pub config_sha256: String,
    /// The run's name, which workers on other machines know it by; `None` while it has never
    /// listened for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Every setting, with defaults and the command line's overrides filled in.
    pub config: Config,
    /// The test and validation sets on whose links the run was trained, as sets and
    /// `SET/SCENARIO`s, and `unknown` where nobody can tell; empty if there are none.
    #[serde(default)]
    pub test_sets: Vec<String>,
    /// SHA-256 of the policy file that the run began with, in hexadecimal; `None` if it began with
    /// a new network, and in records of versions that did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_sha256: Option<String>,
    /// Sizes of the network that is trained.
    pub shape: Shape,
    /// Number of the network's parameters.
    pub parameters: u64,
    /// Parts of the run: one for its beginning and one for each continuation.
    pub parts: Vec<RunPart>,
    /// Why the run ended, or [`Finish::Open`].
    pub finish: Finish,
    /// The figures when the record was written.
    pub last: CurvePoint,
    /// The learning curve: about 200 points, and one at the end of each part.
    pub curve: Vec<CurvePoint>,
    /// The policy on the recorded flows that are held out, after each pass over the others.
    #[serde(default)]
    pub held_out: Vec<HeldOutPoint>,
    /// The policy on the traces that are held out, where it selects bitrates.
    #[serde(default)]
    pub validation: Vec<ValidationPoint>,
}

/// The policy at one point of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationPoint {
    /// Number of environment steps learnt from.
    pub steps: u64,
    /// Mean over the traces of the means per chunk of the quality of experience, the first chunk
    /// left out and replaced actions paid for.
    pub score: f64,
}

/// The time from the beginning or a continuation of a run until it stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPart {
    /// When the part began: UTC, as in RFC 3339.
    pub date: String,
    /// The command line; empty if there was none.
    pub command: String,
    /// Environment steps learnt from before this part.
    pub from_step: u64,
    /// Duration of the part, s.
    pub seconds: f64,
    /// The host that the part ran on.
    pub host: Host,
}

/// Why a run ended, or that it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The configured number of steps was reached.
    Steps,
    /// The configured mean return was reached.
    Return,
    /// The policy has got no better on the flows that are held out for as long as configured.
    Patience,
    /// The run is in progress or was interrupted; it can be continued.
    Open,
}
