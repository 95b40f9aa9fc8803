//! `train.json`: what is needed to repeat a run, and how it went.

use serde::{Deserialize, Serialize};

use super::{config::Config, statistics::Point};
use crate::model::Shape;
use cc_testbed::summary::Host;

/// The account of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of cc-trainer.
    pub version: String,
    /// [`Config::sha256`] of the settings; the policy's file has it, too.
    #[serde(default)]
    pub config_sha256: String,
    /// Every setting, defaults and command line included.
    pub config: Config,
    /// The network.
    pub shape: Shape,
    /// Its parameters.
    pub parameters: u64,
    /// When and where it ran, a part for each time that it was begun or continued.
    pub parts: Vec<Part>,
    /// How it ended, or that it has not yet.
    pub finish: Finish,
    /// How it stands.
    pub last: Point,
    /// How it went: some hundreds of points.
    pub curve: Vec<Point>,
}

/// From the start, or a continuation, to the end or the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// UTC, as RFC 3339 has it.
    pub date: String,
    /// The command line; empty when there was none.
    pub command: String,
    /// Environment steps done before.
    pub from_step: u64,
    /// Time spent, s.
    pub seconds: f64,
    /// On what.
    pub host: Host,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// Its steps are done.
    Steps,
    /// The return asked for was reached.
    Return,
    /// It was ended from outside, or goes on; it can be continued.
    Open,
}
