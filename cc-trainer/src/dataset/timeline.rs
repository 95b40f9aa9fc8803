//! The timeline: a Parquet table with one row per decision and what followed it (J. Gauci et al.,
//! "Horizon", arXiv 1811.00260, section 3).

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float32Array, Float64Array,
    RecordBatch, TimestampNanosecondArray, UInt8Array, UInt32Array, UInt64Array, types::Int32Type,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use cc_core::{interface::Interface, rows::NO_MODE};
use cc_ebpf::Mode;
use cc_recording::columns::{UTC, number, numbers, text, timestamp};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::{metadata::KeyValue, properties::WriterProperties},
    schema::types::ColumnPath,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{
    DatasetError, Partitions, Trajectory, TrajectoryStep,
    features::{Analysis, DecisionSample},
};

/// Version of the columns, written to each file as `cc.timeline_version`.
pub const SCHEMA_VERSION: u32 = 2;

/// Number of rows that are converted at a time, and of a row group.
const BATCH: usize = 2_048;
const GROUP: usize = 8_192;

/// Settings by which a timeline is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimelineSettings {
    /// Discount γ of the episode values, per window ([`crate::discount`]).
    pub discount: f64,
    /// Number of rewards in each row's `reward_timeline`, the row's own included.
    pub ahead: usize,
    /// Whether to write observations and next observations, which take most of the space.
    pub states: bool,
    /// Number of decisions that the features are analysed on, approximately.
    pub sample: usize,
    /// Fixes which decisions these are.
    pub seed: u64,
}

impl Default for TimelineSettings {
    fn default() -> Self {
        Self {
            discount: 0.99,
            ahead: 10,
            states: true,
            sample: 20_000,
            seed: 1,
        }
    }
}

/// Counts of what was read and written, stored as `dataset.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineSummary {
    /// Number of rows of the recordings.
    pub rows: u64,
    /// Number of decisions, which is the number of rows of the timeline.
    pub decisions: u64,
    /// Number of decisions left out because rows before them are missing, or because joined terms
    /// that have weights are not known of their flows.
    pub left_out: u64,
    /// Number of decisions without a probability.
    pub without_probability: u64,
    /// Number of trajectories: flows, split where the policy was replaced and where what followed
    /// a decision is not known.
    pub trajectories: u64,
    /// Number of trajectories at whose end the flow closed.
    pub ended: u64,
    /// Number of the timeline's Parquet files.
    pub files: u64,
    /// Number of flows that what was joined has a row about; 0 where nothing was joined.
    pub joined_flows: u64,
    /// Number of flows that it has no row about.
    pub flows_without_row: u64,
    /// Number of its rows about flows that were not recorded.
    pub rows_without_flow: u64,
}

/// Returns the columns, for observations of `observation` values and `joined` terms of what
/// applications measured.
///
/// | column | meaning |
/// |---|---|
/// | `flow`, `ordinal` | the flow, and the number of the decision in its trajectory: 0, 1, 2 … |
/// | `sequence`, `time` | number of the recorded row in its flow, and the end of its window |
/// | `sequence_difference`, `time_difference_ns` | difference to the next decision, null if none |
/// | `state`, `next_state` | the observation, and that of the next decision |
/// | `observed_reward` | reward of the decision's own window, part of the policy's input |
/// | `action` | index of the action |
/// | `probability`, `probabilities` | its probability, and the full action distribution |
/// | `next_action` | action of the next decision |
/// | `possible_actions` | the action space |
/// | `possible_next_actions` | the same, null if there is no next decision |
/// | `base_cwnd`, `cwnd` | cwnd in segments before and after the action was applied |
/// | `mode` | what set the cwnd at the end of the decision's window; null for observed flows |
/// | `decision_delay_ns` | from the window's nominal end to the decision's publication |
/// | `taken_after_ns` | from the window's end until the datapath took the decision up |
/// | `windows`, `seconds` | windows that ended while the decision was in force, and this time |
/// | `throughput_mbps`, `delay_ms`, `loss`, `silence` | rates in it ([`TERMS`](super::TERMS)) |
/// | `reward` | the objective in it: what was earned per window |
/// | `reward_timeline` | this reward and those of the next decisions |
/// | `episode_value` | discounted sum of what this decision and all later ones earned |
/// | `terminal` | whether the flow closed after this decision |
/// | `policy` | identifier of the policy that took the decision |
/// | the joined terms | what an application measured of the flow, null where it did not |
pub fn schema(observation: usize, joined: &[String]) -> SchemaRef {
    let always = |name: &str, kind| Field::new(name, kind, false);
    let maybe = |name: &str, kind| Field::new(name, kind, true);
    let state = || DataType::FixedSizeList(number(), observation as i32);
    let mut columns = vec![
        always("flow", DataType::UInt64),
        always("ordinal", DataType::UInt32),
        always("sequence", DataType::UInt32),
        always("time", timestamp()),
        maybe("sequence_difference", DataType::UInt32),
        maybe("time_difference_ns", DataType::UInt64),
        maybe("state", state()),
        maybe("next_state", state()),
        always("observed_reward", DataType::Float32),
        always("action", DataType::UInt8),
        maybe("probability", DataType::Float32),
        maybe("probabilities", DataType::List(number())),
        maybe("next_action", DataType::UInt8),
        always("possible_actions", text()),
        maybe("possible_next_actions", text()),
        always("base_cwnd", DataType::UInt32),
        always("cwnd", DataType::UInt32),
        maybe("mode", text()),
        maybe("decision_delay_ns", DataType::UInt64),
        maybe("taken_after_ns", DataType::UInt64),
        maybe("windows", DataType::UInt32),
        maybe("seconds", DataType::Float64),
        maybe("throughput_mbps", DataType::Float64),
        maybe("delay_ms", DataType::Float64),
        maybe("loss", DataType::Float64),
        maybe("silence", DataType::Float64),
        maybe("reward", DataType::Float32),
        always("reward_timeline", DataType::List(number())),
        always("episode_value", DataType::Float64),
        always("terminal", DataType::Boolean),
        always("policy", text()),
    ];
    columns.extend(joined.iter().map(|name| maybe(name, DataType::Float64)));
    Arc::new(Schema::new(columns))
}

/// The output directory of a timeline.
///
/// Files are written to a staging directory inside it and moved by [`publish`](Self::publish). If
/// this value is dropped before, the staging directory is removed.
#[derive(Debug)]
pub struct TimelineDirectory {
    directory: PathBuf,
    staging: TempDir,
    // Declared after the staging directory, because fields are dropped in order.
    _created: CreatedDirectories,
}

/// Directories that [`TimelineDirectory::create`] made, the innermost first. On drop, those that
/// are still empty are removed.
#[derive(Debug)]
struct CreatedDirectories(Vec<PathBuf>);

impl Drop for CreatedDirectories {
    fn drop(&mut self) {
        for directory in &self.0 {
            let _ = fs::remove_dir(directory);
        }
    }
}

impl TimelineDirectory {
    /// Creates the directory, unless it exists.
    ///
    /// # Errors
    ///
    /// Returns an error when the directory cannot be created or written to, or already
    /// holds a timeline or recordings.
    pub fn create(directory: &Path) -> Result<Self, DatasetError> {
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing = directory.ancestors().take_while(missing);
        let created = CreatedDirectories(missing.map(Path::to_owned).collect());
        fs::create_dir_all(directory).map_err(DatasetError::system("creating", directory))?;
        refuse_to_overwrite(directory)?;
        let staging = tempfile::Builder::new()
            .prefix("cc-trainer-")
            .tempdir_in(directory)
            .map_err(DatasetError::system("creating a directory in", directory))?;
        Ok(Self {
            directory: directory.to_owned(),
            staging,
            _created: created,
        })
    }

    /// Returns a directory for temporary files, removed together with the staging directory.
    pub fn scratch(&self) -> &Path {
        self.staging.path()
    }

    /// Moves all written files to their place, with `dataset.json` and `features.json` beside them.
    ///
    /// # Errors
    ///
    /// Returns an error when a file cannot be written or moved, or another process has written
    /// a timeline to the directory.
    pub fn publish(
        self,
        summary: &TimelineSummary,
        analysis: &Analysis,
    ) -> Result<(), DatasetError> {
        fn put(path: PathBuf, value: &impl Serialize) -> Result<(), DatasetError> {
            let json = serde_json::to_vec_pretty(value)
                .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
            fs::write(&path, json).map_err(DatasetError::system("writing", &path))
        }
        let staging = self.staging.path();
        put(staging.join("features.json"), analysis)?;
        put(staging.join("dataset.json"), summary)?;
        refuse_to_overwrite(&self.directory)?;
        let mut written = files(staging)?;
        // `dataset.json` is moved last: once it exists, all other files do.
        written.sort_unstable_by(|a, b| b.cmp(a));
        for from in written {
            let to = self.directory.join(from.file_name().unwrap_or_default());
            fs::rename(from, &to).map_err(DatasetError::system("renaming a file to", &to))?;
        }
        Ok(())
    }
}

/// Writes the timeline of all partitions to `timeline-000000.parquet` and so on. Calls `watch` with
/// the number of decisions done so far, from any thread.
///
/// Returns the counts, and a sample of the decisions for the analysis of features.
///
/// # Errors
///
/// Returns an error when a row is present twice, no decision has a known observation, or
/// a file cannot be written.
pub fn write(
    partitions: &Partitions,
    output: &TimelineDirectory,
    settings: &TimelineSettings,
    watch: &(dyn Fn(u64) + Sync),
) -> Result<(TimelineSummary, DecisionSample), DatasetError> {
    let interface = partitions.interface();
    let gathered = partitions.gathered();
    let table = Table {
        schema: schema(
            interface.observation_len(),
            partitions
                .joined()
                .map_or(&[], |(joined, _)| joined.names()),
        ),
        actions: interface.actions.to_string(),
        interface,
        settings,
    };
    let every = (gathered.decisions / settings.sample.max(1) as u64).max(1);
    let done = std::sync::atomic::AtomicU64::new(0);
    let parts: Vec<_> = (0..partitions.len())
        .into_par_iter()
        .map(|index| {
            let mut part = TimelineFile::new(&table, output.staging.path(), index, every);
            partitions.visit(index, |trajectory| part.add(&trajectory))?;
            let (summary, sample) = part.end()?;
            let before = done.fetch_add(summary.decisions, std::sync::atomic::Ordering::Relaxed);
            watch(before + summary.decisions);
            Ok((summary, sample))
        })
        .collect::<Result<_, DatasetError>>()?;
    let mut summary = TimelineSummary {
        rows: gathered.rows,
        without_probability: gathered.without_probability,
        ..TimelineSummary::default()
    };
    let mut sample = DecisionSample::new(interface);
    for (part, own) in parts {
        summary.decisions += part.decisions;
        summary.trajectories += part.trajectories;
        summary.ended += part.ended;
        summary.files += part.files;
        sample.append(own);
    }
    summary.left_out = gathered.decisions - summary.decisions;
    if let Some((_, counts)) = partitions.joined() {
        summary.joined_flows = counts.flows;
        summary.flows_without_row = counts.flows_without_row;
        summary.rows_without_flow = counts.rows_without_flow;
    }
    if summary.decisions == 0 {
        return Err(DatasetError::NoneKnown {
            decisions: gathered.decisions,
        });
    }
    Ok((summary, sample))
}

/// Refuses a directory with Parquet files: a reader of either a timeline or recordings takes all
/// Parquet files of a directory.
fn refuse_to_overwrite(directory: &Path) -> Result<(), DatasetError> {
    for path in files(directory)? {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if file.contains(".parquet") || file == "dataset.json" || file == "features.json" {
            return Err(DatasetError::Exists { path });
        }
    }
    Ok(())
}

/// Returns the files of a directory, without its subdirectories.
fn files(directory: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let failed = |source| DatasetError::system("reading", directory)(source);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// What all files of a timeline have in common.
struct Table<'a> {
    schema: SchemaRef,
    actions: String,
    /// The [interface](Partitions::interface) of the recordings.
    interface: &'a Interface,
    settings: &'a TimelineSettings,
}

/// One Parquet file of a timeline, written from one partition.
struct TimelineFile<'a> {
    table: &'a Table<'a>,
    path: PathBuf,
    writer: Option<ArrowWriter<File>>,
    rows: Vec<Line>,
    summary: TimelineSummary,
    sample: DecisionSample,
    every: u64,
}

/// One row: a decision and what the timeline adds to it.
struct Line {
    flow: u64,
    ordinal: u32,
    policy: Arc<str>,
    step: TrajectoryStep,
    next: Option<NextDecision>,
    rewards: Vec<f32>,
    value: f64,
    terminal: bool,
    figures: Option<Arc<[f64]>>,
}

/// The columns that come from the next decision.
struct NextDecision {
    sequence: u32,
    time_ns: i64,
    action: u8,
    observation: Vec<f32>,
}

impl<'a> TimelineFile<'a> {
    fn new(table: &'a Table<'a>, directory: &Path, index: usize, every: u64) -> Self {
        Self {
            path: directory.join(format!("timeline-{index:06}.parquet")),
            writer: None,
            rows: Vec::new(),
            summary: TimelineSummary::default(),
            sample: DecisionSample::default(),
            every,
            table,
        }
    }

    fn add(&mut self, trajectory: &Trajectory) -> Result<(), DatasetError> {
        let settings = self.table.settings;
        self.summary.trajectories += 1;
        self.summary.ended += u64::from(trajectory.ended);
        let values = trajectory.values(settings.discount, self.table.interface);
        let steps = &trajectory.steps;
        for (ordinal, (step, value)) in steps.iter().zip(values).enumerate() {
            self.summary.decisions += 1;
            // The identifier of a flow is a hash, so the sum with the row's number picks evenly.
            let pick = trajectory.flow.wrapping_add(u64::from(step.sequence));
            if pick.wrapping_add(settings.seed).is_multiple_of(self.every) {
                self.sample.add(&step.observation, step.observed_reward);
            }
            let next = steps.get(ordinal + 1).map(|next| NextDecision {
                sequence: next.sequence,
                time_ns: next.time_ns,
                action: next.action,
                observation: match settings.states {
                    true => next.observation.clone(),
                    false => Vec::new(),
                },
            });
            let rewards = steps[ordinal..].iter().take(settings.ahead);
            let rewards = rewards.map_while(|step| Some(step.outcome?.reward));
            self.rows.push(Line {
                flow: trajectory.flow,
                ordinal: ordinal as u32,
                policy: trajectory.policy.clone(),
                rewards: rewards.collect(),
                value,
                terminal: trajectory.ended && next.is_none(),
                figures: trajectory.figures.clone(),
                step: step.clone(),
                next,
            });
            if self.rows.len() == BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<(TimelineSummary, DecisionSample), DatasetError> {
        self.flush()?;
        if let Some(writer) = self.writer.take() {
            writer.close().map_err(|error| self.wrong(error))?;
            self.summary.files = 1;
        }
        Ok((self.summary, self.sample))
    }

    fn flush(&mut self) -> Result<(), DatasetError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let batch = self
            .table
            .batch(&self.rows)
            .map_err(|error| self.wrong(error))?;
        self.rows.clear();
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.create()?,
        };
        writer.write(&batch).map_err(|error| self.wrong(error))?;
        self.writer = Some(writer);
        Ok(())
    }

    fn create(&self) -> Result<ArrowWriter<File>, DatasetError> {
        let file =
            File::create_new(&self.path).map_err(DatasetError::system("creating", &self.path))?;
        let interface = serde_json::to_string(self.table.interface)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        let key = |name: &str, value: String| KeyValue::new(format!("cc.{name}"), Some(value));
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(GROUP))
            .set_created_by(concat!("cc-trainer ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(vec![
                key("timeline_version", SCHEMA_VERSION.to_string()),
                key("environment", interface),
                key("discount", self.table.settings.discount.to_string()),
            ]));
        for column in ["state", "next_state"] {
            // A dictionary does not pay for numbers that hardly repeat.
            let path = ColumnPath::new([column, "list", "item"].map(str::to_owned).to_vec());
            properties = properties.set_column_dictionary_enabled(path, false);
        }
        ArrowWriter::try_new(file, self.table.schema.clone(), Some(properties.build()))
            .map_err(|error| self.wrong(error))
    }

    fn wrong(&self, reason: impl ToString) -> DatasetError {
        DatasetError::Write {
            path: self.path.clone(),
            reason: reason.to_string(),
        }
    }
}

impl Table<'_> {
    fn batch(&self, lines: &[Line]) -> Result<RecordBatch, ArrowError> {
        let u32s = |of: &dyn Fn(&Line) -> Option<u32>| -> ArrayRef {
            Arc::new(lines.iter().map(of).collect::<UInt32Array>())
        };
        let u64s = |of: &dyn Fn(&Line) -> Option<u64>| -> ArrayRef {
            Arc::new(lines.iter().map(of).collect::<UInt64Array>())
        };
        let f32s = |of: &dyn Fn(&Line) -> Option<f32>| -> ArrayRef {
            Arc::new(lines.iter().map(of).collect::<Float32Array>())
        };
        let f64s = |of: &dyn Fn(&Line) -> Option<f64>| -> ArrayRef {
            Arc::new(lines.iter().map(of).collect::<Float64Array>())
        };
        let names = |of: &dyn Fn(&Line) -> Option<String>| -> ArrayRef {
            let names: Vec<_> = lines.iter().map(of).collect();
            let names = names.iter().map(Option::as_deref);
            Arc::new(names.collect::<DictionaryArray<Int32Type>>())
        };
        let outcome = |term: usize| move |line: &Line| Some(line.step.outcome?.terms[term]);
        let time = |of: &dyn Fn(&Line) -> i64| -> ArrayRef {
            let times = TimestampNanosecondArray::from_iter_values(lines.iter().map(of));
            Arc::new(times.with_timezone(UTC))
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from_iter_values(
                lines.iter().map(|line| line.flow),
            )),
            u32s(&|line| Some(line.ordinal)),
            u32s(&|line| Some(line.step.sequence)),
            time(&|line| line.step.time_ns),
            u32s(&|line| Some(line.next.as_ref()?.sequence - line.step.sequence)),
            u64s(&|line| {
                let later = line.next.as_ref()?.time_ns;
                Some(later.saturating_sub(line.step.time_ns).max(0) as u64)
            }),
            self.states(lines, |line| Some(&line.step.observation))?,
            self.states(lines, |line| Some(&line.next.as_ref()?.observation))?,
            f32s(&|line| Some(line.step.observed_reward)),
            Arc::new(UInt8Array::from_iter_values(
                lines.iter().map(|line| line.step.action),
            )),
            f32s(&|line| line.step.probability),
            Arc::new(numbers(
                lines.iter().map(|line| line.step.probabilities.as_deref()),
            )),
            Arc::new(
                lines
                    .iter()
                    .map(|line| Some(line.next.as_ref()?.action))
                    .collect::<UInt8Array>(),
            ),
            names(&|_| Some(self.actions.clone())),
            names(&|line| line.next.as_ref().map(|_| self.actions.clone())),
            u32s(&|line| Some(line.step.base_cwnd)),
            u32s(&|line| Some(line.step.cwnd)),
            names(&|line| {
                let mode = line.step.mode;
                (mode != NO_MODE).then(|| Mode::from_raw(mode).name().to_owned())
            }),
            u64s(&|line| line.step.delay_ns),
            u64s(&|line| line.step.taken_after_ns),
            u32s(&|line| Some(line.step.outcome?.windows)),
            f64s(&|line| Some(line.step.outcome?.seconds)),
            f64s(&outcome(0)),
            f64s(&outcome(1)),
            f64s(&outcome(2)),
            f64s(&outcome(3)),
            f32s(&|line| Some(line.step.outcome?.reward)),
            Arc::new(numbers(
                lines.iter().map(|line| Some(line.rewards.as_slice())),
            )),
            f64s(&|line| Some(line.value)),
            Arc::new(BooleanArray::from_iter(
                lines.iter().map(|line| Some(line.terminal)),
            )),
            names(&|line| Some(line.policy.to_string())),
        ];
        let joined = self.schema.fields().len() - columns.len();
        columns.extend((0..joined).map(|term| f64s(&|line| Some(line.figures.as_ref()?[term]))));
        RecordBatch::try_new(self.schema.clone(), columns)
    }

    fn states<'b>(
        &self,
        lines: &'b [Line],
        of: impl Fn(&'b Line) -> Option<&'b Vec<f32>>,
    ) -> Result<ArrayRef, ArrowError> {
        let DataType::FixedSizeList(_, width) = self.schema.field_with_name("state")?.data_type()
        else {
            unreachable!("a state is a list of one size");
        };
        let mut values = Vec::with_capacity(lines.len() * *width as usize);
        let mut valid = Vec::with_capacity(lines.len());
        for line in lines {
            let state = of(line).filter(|_| self.settings.states);
            valid.push(state.is_some());
            match state {
                Some(state) => values.extend_from_slice(state),
                None => values.resize(values.len() + *width as usize, 0.0),
            }
        }
        let values = Arc::new(Float32Array::from(values));
        let array = FixedSizeListArray::try_new(number(), *width, values, Some(valid.into()))?;
        Ok(Arc::new(array))
    }
}
