//! Settings of the environment: traces, videos, reward and observation.

use std::path::PathBuf;

use cc_abr::{
    generate::Family,
    qoe::Qoe,
    state::{COLUMNS, Throughput},
    video::ENVIVIO_KBPS,
};
use serde::{Deserialize, Serialize};

use super::video::VideoChoice;

/// Settings of an [`AbrEnvironment`](super::AbrEnvironment): the table `[environment]` of a
/// configuration of kind `abr`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AbrConfig {
    /// Where the traces come from: one for each entry, drawn in proportion to their weights.
    pub sources: Vec<TraceSource>,
    /// Of the traces in directories, in the order of their names, every so many-th is not trained
    /// on but judged by [`validation`](Self::validation); 0 for none.
    pub hold_out: usize,
    /// The videos, of which one is drawn for each session in proportion to their weights.
    pub videos: Vec<VideoSource>,
    /// Bitrates of the actions, kbit/s, ascending: those of all videos are among them.
    pub actions: Vec<f64>,
    /// What is done about actions that a video does not have.
    pub lacking: Lacking,
    /// Reward that an action costs that the video does not have, when it is replaced.
    pub lacking_cost: f64,
    /// The measure of quality that is the reward.
    pub qoe: Qoe,
    /// Penalty for a second of rebuffering; `None` stands for the measure's own.
    pub rebuffer_penalty: Option<f64>,
    /// What the measure is divided by to become the reward.
    pub reward_divisor: f64,
    /// Number of past chunks that a policy observes, up to [`COLUMNS`].
    pub past_chunks: usize,
    /// The unit in which a policy observes throughputs.
    pub throughput: Throughput,
    /// Whether sessions start at random points of their traces, instead of at the beginning.
    pub random_start: bool,
    /// Whether delays are multiplied by random factors
    /// ([`TRAINING_NOISE`](cc_abr::session::TRAINING_NOISE)).
    pub noise: bool,
    /// How policies are judged in between, on traces that are not trained on; `None` for not at
    /// all.
    pub validation: Option<ValidationConfig>,
}

impl Default for AbrConfig {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            hold_out: 0,
            videos: vec![VideoSource::default()],
            actions: ENVIVIO_KBPS.to_vec(),
            lacking: Lacking::default(),
            lacking_cost: 1.0,
            qoe: Qoe::default(),
            rebuffer_penalty: None,
            reward_divisor: 1.0,
            past_chunks: COLUMNS,
            throughput: Throughput::default(),
            random_start: true,
            noise: true,
            validation: None,
        }
    }
}

/// Where traces come from: files, or a family of generated ones. Either is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceSource {
    /// A directory of trace files, or one file.
    pub traces: Option<PathBuf>,
    /// A family that traces are drawn from.
    pub family: Option<Family>,
    /// Seed of the family's traces.
    pub seed: u64,
    /// Number of different traces of the family; `None` for a new one each time.
    pub count: Option<u64>,
    /// Length of the family's traces, s.
    pub seconds: u32,
    /// Range of a factor that each session multiplies its trace's throughputs by, drawn uniformly
    /// in its logarithm, so that policies meet faster and slower networks than those of the traces;
    /// `None` leaves them as they are.
    pub scale: Option<[f64; 2]>,
    /// Range of a factor that each session multiplies its trace's times by, drawn in the same way:
    /// throughput then changes faster and more slowly than in the traces.
    pub stretch: Option<[f64; 2]>,
    /// How often a session has a trace of this source, in proportion to the other ones' weights.
    pub weight: f64,
}

impl Default for TraceSource {
    fn default() -> Self {
        Self {
            traces: None,
            family: None,
            seed: 1,
            count: None,
            seconds: 320,
            scale: None,
            stretch: None,
            weight: 1.0,
        }
    }
}

impl TraceSource {
    /// The ranges of factors that are given, with the names of their settings.
    pub(super) fn factors(&self) -> impl Iterator<Item = (&'static str, [f64; 2])> {
        let given = [("scale", self.scale), ("stretch", self.stretch)];
        given
            .into_iter()
            .filter_map(|(name, range)| Some((name, range?)))
    }
}

/// A video that sessions play.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VideoSource {
    /// Which video, and which of its bitrates.
    pub choice: VideoChoice,
    /// Draws for each session which of the bitrates the video has, at least this many of them;
    /// `None` leaves it all.
    pub least_levels: Option<usize>,
    /// How often a session plays this video, in proportion to the other ones' weights.
    pub weight: f64,
}

impl Default for VideoSource {
    fn default() -> Self {
        Self {
            choice: VideoChoice::default(),
            least_levels: None,
            weight: 1.0,
        }
    }
}

/// What is done about actions that a video does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lacking {
    /// They are masked, so that they are never taken.
    #[default]
    Masked,
    /// They may be taken: the nearest lower quality that the video has is downloaded, and the
    /// reward is lowered by [`AbrConfig::lacking_cost`].
    Replaced,
}

/// How policies are judged in the course of training: greedily, from the beginning of traces that
/// are not trained on, without noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationConfig {
    /// Traces beside those that are [held out](AbrConfig::hold_out): files, or so many of a family
    /// as [`TraceSource::count`] says.
    pub sources: Vec<TraceSource>,
    /// Factors of the throughputs: each trace is played once for each of them.
    pub scales: Vec<f64>,
    /// Number of environment steps between two judgements.
    pub every: u64,
    /// Whether the policy file is that of the best judgement, instead of the newest policy.
    pub keep_best: bool,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            scales: vec![1.0],
            every: 200_000,
            keep_best: true,
        }
    }
}
