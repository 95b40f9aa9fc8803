//! Learned policies that select bitrates: their files, and choosers that run them.
//!
//! The file is an ONNX graph as cc-agent's policies are, with metadata of a kind of its own, so
//! that neither program takes the other's files. The graph takes the state of [`cc_abr::state`], a
//! reward that is always 0, and the LSTM's state.
//!
//! A chooser keeps nothing between decisions. For a network with an LSTM it therefore runs the
//! whole history at each decision ([`View::replay`]): of a session of 48 chunks 24 passes on
//! average, and from a player that sends its history the same decision as in the simulator.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use cc_abr::{
    Chooser, View,
    ladder::{Actions, LadderError},
    qoe::Qoe,
    state::{COLUMNS, ROWS, State, Throughput},
};
use cc_core::policy::{
    self, ActionSelection, Answer, BITRATE_META_KEY, FileError, META_KEY, OnnxNetwork, PolicyGraph,
    Widths,
};
use cc_sim::seed;
use rand::{SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use crate::{
    environment::abr::Lacking,
    model::Shape,
    policy_file::{self, ExportError},
};

/// The layout of observations, by the name that files have: Pensieve's state of six rows and eight
/// columns, row after row.
const LAYOUT: &str = "pensieve-6x8";
/// Description in the files, which ONNX tools show.
const DESCRIPTION: &str = "Policy that selects bitrates of videos, learnt by cc-trainer";
/// Widest recurrent state of a file, as that of cc-agent's policies.
const MAX_STATE: usize = 2_048;

/// The metadata of a policy that selects bitrates, which its file carries as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitrateMeta {
    /// The policy's name, for people.
    pub name: String,
    /// Name of the observation's layout: `pensieve-6x8`.
    pub layout: String,
    /// Bitrates of the actions, kbit/s, ascending.
    pub kbps: Vec<f64>,
    /// Number of past chunks that are observed.
    pub past_chunks: usize,
    /// The unit of the throughputs that are observed.
    pub throughput: Throughput,
    /// What is done about actions that a video does not have.
    pub lacking: Lacking,
    /// The measure of quality that the policy was trained for.
    pub qoe: Qoe,
    /// Penalty for a second of rebuffering that it was trained for; `None` for the measure's own.
    pub rebuffer_penalty: Option<f64>,
    /// The widths of its hidden layers, for information.
    pub hidden: Vec<usize>,
    /// Whether the network has an LSTM.
    pub has_memory: bool,
    /// The width of the recurrent state; 1 without an LSTM.
    pub state: usize,
    /// How actions are selected unless the command line asks for something else.
    pub serving: ActionSelection,
    /// How the policy was made: trainer version, steps, seed, traces and the like, by name.
    pub provenance: BTreeMap<String, String>,
}

/// Why a file is no policy that selects bitrates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BitrateError {
    /// The file cannot be read, or its graph not be run.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is a policy of cc-agent.
    #[error("it is a congestion-control policy, for cc-agent; give one of kind = \"abr\"")]
    CongestionControl,
    /// There is no metadata entry of this project.
    #[error(
        "the metadata entry `{BITRATE_META_KEY}` is missing, so the file does not say what it was \
         trained for; export it with cc-trainer"
    )]
    NoMeta,
    /// The metadata are not JSON, or a field is unknown, missing or of the wrong type.
    #[error("metadata entry `{BITRATE_META_KEY}`: {0}")]
    Json(#[from] serde_json::Error),
    /// The bitrates of the actions cannot be used.
    #[error("metadata entry `{BITRATE_META_KEY}`: kbps: {0}")]
    Ladder(#[from] LadderError),
    /// A field is out of its range.
    #[error("metadata entry `{BITRATE_META_KEY}`: {field} is {found}; expected {expected}")]
    Field {
        /// The field of the metadata.
        field: &'static str,
        /// The value that it has.
        found: String,
        /// The values that are allowed.
        expected: String,
    },
}

impl BitrateMeta {
    /// The layout of the observations, as [`layout`](Self::layout) names it.
    pub const LAYOUT: &'static str = LAYOUT;

    /// The widths of the graph's inputs and outputs.
    pub fn widths(&self) -> Widths {
        Widths {
            observation: ROWS * COLUMNS,
            actions: self.kbps.len(),
            state: self.state,
        }
    }

    /// Parses and checks the metadata of a file.
    fn from_json(json: &str) -> Result<Self, BitrateError> {
        let meta: Self = serde_json::from_str(json)?;
        Actions::new(meta.kbps.clone())?;
        let check = |field, found: &dyn fmt::Display, fits: bool, expected: String| match fits {
            true => Ok(()),
            false => Err(BitrateError::Field {
                field,
                found: found.to_string(),
                expected,
            }),
        };
        let range = |most| format!("1 to {most}");
        let fits = |value: usize, most: usize| (1..=most).contains(&value);
        let (past, state, count) = (meta.past_chunks, meta.state, meta.kbps.len());
        check(
            "layout",
            &meta.layout,
            meta.layout == LAYOUT,
            LAYOUT.to_owned(),
        )?;
        check(
            "the length of kbps",
            &count,
            count <= COLUMNS,
            range(COLUMNS),
        )?;
        check("past_chunks", &past, fits(past, COLUMNS), range(COLUMNS))?;
        check("state", &state, fits(state, MAX_STATE), range(MAX_STATE))?;
        Ok(meta)
    }
}

impl fmt::Display for BitrateMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kbps: Vec<String> = self.kbps.iter().map(f64::to_string).collect();
        let hidden: Vec<String> = self.hidden.iter().map(usize::to_string).collect();
        let lacking = match self.lacking {
            Lacking::Masked => "masked",
            Lacking::Replaced => "replaced by the nearest lower ones",
        };
        let memory = match self.has_memory {
            true => format!("LSTM of {}", self.state),
            false => "no memory".to_owned(),
        };
        writeln!(f, "name          {}", self.name)?;
        writeln!(f, "kind          selects bitrates of videos")?;
        writeln!(f, "actions       {} kbit/s", kbps.join(", "))?;
        writeln!(f, "lacking ones  {lacking}")?;
        writeln!(
            f,
            "observation   {}, of the last {} chunks{}",
            self.layout,
            self.past_chunks,
            match self.throughput {
                Throughput::Linear => "",
                Throughput::Log => ", logarithms of throughputs",
            }
        )?;
        match self.rebuffer_penalty {
            Some(penalty) => writeln!(f, "measure       {}, penalty {penalty}", self.qoe)?,
            None => writeln!(f, "measure       {}", self.qoe)?,
        }
        writeln!(f, "serving       {}", self.serving)?;
        write!(f, "network       hidden {}, {memory}", hidden.join(" + "))?;
        for (key, value) in &self.provenance {
            write!(f, "\n  {key}: {value}")?;
        }
        Ok(())
    }
}

/// Encodes a network as the bytes of a policy file. `parameters` are in the order of
/// [`ParameterLayout`](crate::model::ParameterLayout).
///
/// # Errors
///
/// Returns an error when lengths do not agree, or a parameter is not finite.
pub fn encode(
    shape: &Shape,
    parameters: &[f32],
    meta: &BitrateMeta,
) -> Result<Vec<u8>, ExportError> {
    let widths = meta.widths();
    let network = policy_file::network(shape, parameters, None, &widths)?;
    let json = serde_json::to_string(meta)
        .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
    Ok(network.export_as(&widths, (BITRATE_META_KEY, json), DESCRIPTION))
}

/// A learned policy, loaded from its file.
pub struct BitratePolicy {
    meta: BitrateMeta,
    actions: Actions,
    selection: ActionSelection,
    /// Determines the actions that are sampled.
    seed: u64,
    /// The network, with a copy for each thread that has used it at the same time as others: never
    /// empty.
    networks: Mutex<Vec<OnnxNetwork>>,
}

impl fmt::Debug for BitratePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BitratePolicy")
            .field("meta", &self.meta)
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}

impl BitratePolicy {
    /// Reads a policy file. Actions are selected as the file asks for.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, is of another kind, or cannot be run.
    pub fn read(path: &Path) -> Result<Self, BitrateError> {
        let (meta, graph) = PolicyGraph::read(path, read_meta)?;
        Self::new(meta, &graph)
    }

    /// Loads a policy from the bytes of a file.
    ///
    /// # Errors
    ///
    /// Returns an error when the bytes are no such file, or its graph cannot be run.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BitrateError> {
        let (meta, graph) = PolicyGraph::parse(bytes, read_meta)?;
        Self::new(meta, &graph)
    }

    fn new(meta: BitrateMeta, graph: &PolicyGraph) -> Result<Self, BitrateError> {
        let network = OnnxNetwork::new(graph, &meta.name)?;
        Ok(Self {
            actions: Actions::new(meta.kbps.clone())?,
            selection: meta.serving,
            seed: 0,
            networks: Mutex::new(vec![network]),
            meta,
        })
    }

    /// The policy's description of itself.
    pub fn meta(&self) -> &BitrateMeta {
        &self.meta
    }

    /// The same policy with actions selected in another way. The seed and what was downloaded
    /// determine each sampled action, so that a request that is repeated has the same answer.
    #[must_use]
    pub fn selecting(&self, selection: ActionSelection, seed: u64) -> Self {
        let network = self.with_network(|network| network.fork());
        Self {
            meta: self.meta.clone(),
            actions: self.actions.clone(),
            selection,
            seed,
            networks: Mutex::new(vec![network]),
        }
    }

    /// Makes a chooser for a video with these bitrates, kbit/s, ascending.
    ///
    /// # Errors
    ///
    /// Returns an error when the video has a bitrate that is none of the policy's actions.
    pub fn chooser(self: &Arc<Self>, kbps: &[f64]) -> Result<Box<dyn Chooser>, LadderError> {
        let qualities = self.actions.qualities(kbps)?;
        let policy = Arc::clone(self);
        Ok(Box::new(LearnedChooser { policy, qualities }))
    }

    /// Lends a network that no other thread uses.
    fn with_network<T>(&self, run: impl FnOnce(&mut OnnxNetwork) -> T) -> T {
        // A panic elsewhere leaves complete networks behind.
        let lock = || self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut networks = lock();
        let mut own = match networks.len() {
            0 | 1 => networks[0].fork(),
            last => networks.swap_remove(last - 1),
        };
        drop(networks);
        let result = run(&mut own);
        lock().push(own);
        result
    }
}

fn read_meta(
    entry: &dyn Fn(&str) -> Option<String>,
) -> Result<(BitrateMeta, Widths), BitrateError> {
    let Some(json) = entry(BITRATE_META_KEY) else {
        return Err(match entry(META_KEY) {
            Some(_) => BitrateError::CongestionControl,
            None => BitrateError::NoMeta,
        });
    };
    let meta = BitrateMeta::from_json(&json)?;
    let widths = meta.widths();
    Ok((meta, widths))
}

/// A learned policy for the bitrates of one video.
#[derive(Debug)]
struct LearnedChooser {
    policy: Arc<BitratePolicy>,
    /// `[A]`: quality of each action; `None` for those that the video lacks.
    qualities: Vec<Option<usize>>,
}

impl LearnedChooser {
    /// The network's answer; `None` if it is not finite.
    fn answer(&self, view: &View<'_>, network: &mut OnnxNetwork) -> Option<Answer> {
        let BitrateMeta {
            past_chunks,
            throughput,
            has_memory,
            ..
        } = self.policy.meta;
        let mut memory = policy::State::default();
        let mut answer = None;
        let mut observe = |view: &View<'_>| {
            let state = State::of(view, &self.qualities).recent(past_chunks);
            let state = state.with_throughput(throughput);
            answer = network.answer(state.flat().to_vec(), 0.0, &mut memory);
        };
        match has_memory {
            true => view.replay(observe),
            false => observe(view),
        }
        answer
    }

    /// Random numbers that the seed and the history determine.
    fn random(&self, view: &View<'_>) -> StdRng {
        let last = view.history.last().copied().unwrap_or_default();
        let known = [
            view.history.len() as u64,
            u64::from(last.bytes),
            last.delay_ms.to_bits(),
            view.buffer_s.to_bits(),
        ];
        StdRng::seed_from_u64(known.into_iter().fold(self.policy.seed, seed::fold))
    }
}

impl Chooser for LearnedChooser {
    /// Where the network has no finite answer, this is a quality that no video has, which sessions
    /// and servers report.
    fn choose(&self, view: &View<'_>) -> usize {
        let policy = &self.policy;
        let Some(answer) = policy.with_network(|network| self.answer(view, network)) else {
            return usize::MAX;
        };
        let masks = policy.meta.lacking == Lacking::Masked;
        let allowed: Vec<bool> = match masks {
            true => self.qualities.iter().map(Option::is_some).collect(),
            false => Vec::new(),
        };
        let mut random = self.random(view);
        let (action, _) = policy
            .selection
            .choose(&answer.logits, &allowed, &mut random);
        self.qualities[action].unwrap_or_else(|| policy.actions.nearest_lower(view.kbps, action))
    }
}

#[cfg(test)]
mod tests {
    use cc_abr::{
        generate::{Family, trace},
        play::{Score, play},
        qoe::Metric,
        session::{Rules, Session},
        video::{ENVIVIO_KBPS, Video},
    };
    use cc_core::policy::PolicyFile;

    use super::*;
    use crate::{
        actor::{Actor, Snapshot, StepOutput},
        environment::abr::{
            AbrConfig, AbrEnvironment, AbrWorld, TraceSource, VideoSource, video::VideoChoice,
        },
        model::{Activation, Weights, initialise},
    };

    /// Both units occur in the tests.
    fn throughput(lstm: Option<usize>) -> Throughput {
        match lstm {
            None => Throughput::Linear,
            Some(_) => Throughput::Log,
        }
    }

    fn meta(lstm: Option<usize>, lacking: Lacking) -> BitrateMeta {
        BitrateMeta {
            name: "test".to_owned(),
            layout: LAYOUT.to_owned(),
            kbps: ENVIVIO_KBPS.to_vec(),
            past_chunks: 5,
            throughput: throughput(lstm),
            lacking,
            qoe: Qoe::Linear,
            rebuffer_penalty: None,
            hidden: vec![24],
            has_memory: lstm.is_some(),
            state: lstm.unwrap_or(1),
            serving: ActionSelection::Greedy,
            provenance: BTreeMap::from([("seed".to_owned(), "3".to_owned())]),
        }
    }

    fn shape(lstm: Option<usize>) -> Shape {
        Shape {
            observation: ROWS * COLUMNS,
            branches: Vec::new(),
            hidden: vec![24],
            activation: Activation::Relu,
            lstm,
            actions: ENVIVIO_KBPS.len(),
            privileged: 0,
            predictions: 0,
            values: 1,
        }
    }

    /// Random parameters, large enough that different states lead to different actions.
    fn parameters(shape: &Shape) -> Vec<f32> {
        let drawn = initialise(shape, 3);
        drawn.into_iter().map(|value| 8.0 * value).collect()
    }

    /// The greedy choices of the trainer's own network in the environment are those of the file
    /// in a session, with and without memory, masks and replacement.
    #[test]
    fn the_file_chooses_as_the_trainer_does() {
        let trace = Arc::new(trace(Family::Cellular, 4, 1, 400));
        for (lstm, lacking, without) in [
            (None, Lacking::Masked, vec![]),
            (Some(7), Lacking::Masked, vec![]),
            (Some(7), Lacking::Masked, vec![300.0, 1850.0]),
            (None, Lacking::Replaced, vec![300.0, 1850.0]),
        ] {
            let shape = shape(lstm);
            let parameters = parameters(&shape);
            let config = AbrConfig {
                sources: vec![TraceSource {
                    family: Some(Family::Cellular),
                    ..TraceSource::default()
                }],
                videos: vec![VideoSource {
                    choice: VideoChoice {
                        without: without.clone(),
                        ..VideoChoice::default()
                    },
                    ..VideoSource::default()
                }],
                past_chunks: 5,
                throughput: throughput(lstm),
                lacking,
                lacking_cost: 0.0,
                ..AbrConfig::default()
            };
            let video = config.videos[0].choice.load().expect("a video");
            let world = Arc::new(AbrWorld::open(config).expect("valid settings"));
            let environment = AbrEnvironment::new(world, 1).of_trace(trace.clone());
            let snapshot = Arc::new(Snapshot {
                version: 0,
                weights: Weights::new(&shape, &parameters),
            });
            let mut actor = Actor::new(vec![Box::new(environment)], snapshot, 100, 0).greedy();
            let mut output = StepOutput::default();
            while output.episodes.is_empty() {
                actor.step(&mut output);
            }

            let bytes = encode(&shape, &parameters, &meta(lstm, lacking)).expect("it fits");
            let policy = Arc::new(BitratePolicy::from_bytes(&bytes).expect("accepted"));
            let chooser = policy.chooser(video.kbps()).expect("actions of the policy");
            let video = Arc::new(video);
            let session = Session::new(video.clone(), trace.clone(), Rules::PENSIEVE);
            let downloads = play(session, &*chooser).expect("qualities of the video");
            let metric = Metric::new(Qoe::Linear, video.kbps()).expect("known bitrates");
            let score = Score::of(&downloads, &metric, video.kbps());
            let trained = output.episodes[0].total / 47.0;
            assert!((score.qoe - trained).abs() < 1e-4, "{score:?} {trained}");
            let first = downloads[1].quality;
            assert!(downloads[1..].iter().any(|one| one.quality != first));
        }
    }

    #[test]
    fn sampled_choices_follow_from_seed_and_history() {
        let shape = shape(None);
        let bytes = encode(&shape, &initialise(&shape, 3), &meta(None, Lacking::Masked));
        let policy = BitratePolicy::from_bytes(&bytes.expect("it fits")).expect("accepted");
        let video = Arc::new(Video::envivio());
        let trace = Arc::new(trace(Family::Markov, 4, 1, 400));
        let choices = |seed| {
            let selection = ActionSelection::Softmax { temperature: 1.0 };
            let policy = Arc::new(policy.selecting(selection, seed));
            let chooser = policy.chooser(video.kbps()).expect("its own bitrates");
            let session = Session::new(video.clone(), trace.clone(), Rules::PENSIEVE);
            let downloads = play(session, &*chooser).expect("qualities of the video");
            downloads.iter().map(|one| one.quality).collect::<Vec<_>>()
        };
        assert_eq!(choices(1), choices(1));
        assert_ne!(choices(1), choices(2));
    }

    #[test]
    fn files_of_the_other_kind_are_refused_by_what_they_are() {
        let shape = shape(None);
        let bytes = encode(&shape, &initialise(&shape, 3), &meta(None, Lacking::Masked));
        let bytes = bytes.expect("it fits");
        let error = PolicyFile::parse(&bytes).expect_err("no congestion window");
        assert!(error.to_string().contains("bitrates of videos"), "{error}");
        let error = BitratePolicy::from_bytes(&policy::heuristic_file()).expect_err("no bitrates");
        assert!(error.to_string().contains("for cc-agent"), "{error}");
        let text = BitratePolicy::from_bytes(&bytes)
            .expect("accepted")
            .meta()
            .to_string();
        for line in [
            "300, 750, 1200, 1850, 2850, 4300 kbit/s",
            "last 5 chunks",
            "seed: 3",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let policy = Arc::new(BitratePolicy::from_bytes(&bytes).expect("accepted"));
        let error = policy.chooser(&[300.0, 500.0]).err().expect("no action");
        assert!(error.to_string().contains("500 kbit/s"), "{error}");
    }

    #[test]
    fn metadata_are_checked() {
        let fine = serde_json::to_value(meta(None, Lacking::Masked)).expect("plain data");
        for (field, value, expected) in [
            (
                "past_chunks",
                serde_json::json!(9),
                "past_chunks is 9; expected 1 to 8",
            ),
            ("layout", serde_json::json!("other"), "layout is other"),
            ("kbps", serde_json::json!([750.0, 300.0]), "ascending"),
            (
                "kbps",
                serde_json::json!([1, 2, 3, 4, 5, 6, 7, 8, 9]),
                "length of kbps is 9",
            ),
            ("state", serde_json::json!(0), "state is 0"),
            ("qoe", serde_json::json!("vmaf"), "vmaf"),
            ("throughput", serde_json::json!("cubic"), "cubic"),
        ] {
            let mut changed = fine.clone();
            changed[field] = value;
            let error = BitrateMeta::from_json(&changed.to_string()).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(BitrateMeta::from_json(&fine.to_string()).is_ok());
    }
}
