//! The columns of a recording, and rows read from Arrow's batches.

use std::sync::{Arc, LazyLock};

use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Float32Array, Float64Array, ListArray,
    RecordBatch, StringArray, TimestampNanosecondArray, UInt8Array, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{Float32Type, Int32Type},
};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use bytemuck::Zeroable;
use cc_ebpf::{Decision, FEATURES, Feature, Header, Mode, WindowRecord};
use parquet::schema::types::ColumnPath;

use cc_core::{
    paths::PathView,
    reward::Terms,
    rows::{Decided, FileHeader, NO_MODE, Row},
};

use crate::columns::{number, text, timestamp};

/// Returns the columns of a recording, in their order.
///
/// | column | meaning |
/// |---|---|
/// | `flow` | name of the flow's episode, unique over hosts and restarts |
/// | `sequence` | number of the row in its episode, from 0; a gap means lost rows |
/// | `time` | when the window ended |
/// | `slot`, `generation` | the flow's name in the datapath |
/// | `window` | the datapath's number of the window; a gap means lost windows |
/// | `length_ns` | time from the window's start to its end |
/// | `acks` | number of ACKs with features in the window |
/// | `mss` | sender's maximum segment size, bytes |
/// | `mode` | name of the flow's `cc_ebpf::Mode`; null for observed flows |
/// | `initial_cwnd_bytes` | cwnd with which the history of decisions begins |
/// | `features` | per feature: `sum`, `squares`, `min`, `max` and `reference` (see below) |
/// | `applied_window` | window (modulo 2^20) that the newest decision in force answers |
/// | `applied_cwnd`, `applied` | that decision's cwnd in segments, and when it took effect |
/// | `action`, `probability` | index into `actions`, and its probability under the policy |
/// | `probabilities` | probabilities of all actions |
/// | `actions` | the action space, as the option `--actions` takes it |
/// | `cwnd_before` | cwnd at the window's end, segments |
/// | `base_cwnd`, `cwnd` | cwnd to which the action was applied, and the result, segments |
/// | `decision_delay_ns` | from the window's nominal end to the decision's publication |
/// | `throughput_mbps`, `delay_ms`, `loss_mb` | the reward's terms of this window (see below) |
/// | `reward` | reward of this window, not of the decision that answered it |
/// | `policy` | SHA-256 of the policy file, or the name of a built-in policy |
/// | `end` | whether the flow closed with this row |
/// | `local`, `remote` | addresses: absent, keyed hashes, or plain text |
/// | `cgroup` | id of the socket's cgroup |
/// | `cookie` | cookie of the socket, as `ss -e` shows it; 0 when it had none |
/// | `netns` | inode number of the socket's network namespace; 0 when unknown |
/// | `app_limited_acks` | ACKs of segments sent with too little to send, or before a pause |
/// | `marked` | segments that ACKs delivered with the ECN echo |
/// | `path_rtt_us` | least RTT of all flows between these hosts lately; null while unknown |
/// | `path_flows` | number of flows between these hosts, this one included; null while unknown |
///
/// Each of the 20 `features` is a structure of the statistics over the window's ACKs: `sum`, `min`,
/// `max`, `reference` (the first value), and `squares`, the sum of the squared deviations from
/// `reference`.
///
/// `throughput_mbps` is the mean of the kernel's delivery-rate samples. What arrived is the sum of
/// the feature `acked` over `length_ns`.
///
/// The columns from `action` to `probabilities` and from `base_cwnd` to `decision_delay_ns` are
/// null where no decision answered the window.
pub fn schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let always = |name: &str, data_type| Field::new(name, data_type, false);
        let maybe = |name: &str, data_type| Field::new(name, data_type, true);
        Arc::new(Schema::new(vec![
            always("flow", DataType::UInt64),
            always("sequence", DataType::UInt32),
            always("time", timestamp()),
            always("slot", DataType::UInt32),
            always("generation", DataType::UInt32),
            always("window", DataType::UInt32),
            always("length_ns", DataType::UInt64),
            always("acks", DataType::UInt32),
            always("mss", DataType::UInt32),
            maybe("mode", text()),
            always("initial_cwnd_bytes", DataType::UInt64),
            always("features", DataType::Struct(features())),
            maybe("applied_window", DataType::UInt32),
            maybe("applied_cwnd", DataType::UInt32),
            maybe("applied", timestamp()),
            maybe("action", DataType::UInt8),
            maybe("probability", DataType::Float32),
            maybe("probabilities", DataType::List(number())),
            always("actions", text()),
            always("cwnd_before", DataType::UInt32),
            maybe("base_cwnd", DataType::UInt32),
            maybe("cwnd", DataType::UInt32),
            maybe("decision_delay_ns", DataType::UInt64),
            always("throughput_mbps", DataType::Float64),
            always("delay_ms", DataType::Float64),
            always("loss_mb", DataType::Float64),
            always("reward", DataType::Float32),
            always("policy", text()),
            always("end", DataType::Boolean),
            maybe("local", DataType::Utf8),
            maybe("remote", DataType::Utf8),
            always("cgroup", DataType::UInt64),
            always("cookie", DataType::UInt64),
            always("netns", DataType::UInt32),
            always("app_limited_acks", DataType::UInt32),
            always("marked", DataType::UInt32),
            maybe("path_rtt_us", DataType::UInt32),
            maybe("path_flows", DataType::UInt32),
        ]))
    });
    SCHEMA.clone()
}

/// The columns that files of version 1 do not have: the last ones of [`schema`], but for those that
/// files of version 2 do not have either.
const SINCE_VERSION_2: [&str; 4] = ["cookie", "netns", "app_limited_acks", "marked"];
/// The columns that files of version 2 do not have: the last ones of [`schema`].
const SINCE_VERSION_3: [&str; 2] = ["path_rtt_us", "path_flows"];

/// Returns the columns of a file that has `found`: those of an earlier version if it has as many,
/// otherwise those of [`schema`].
pub(super) fn schema_like(found: &Schema) -> SchemaRef {
    let newest = schema();
    let second = newest.fields().len() - SINCE_VERSION_3.len();
    let first = second - SINCE_VERSION_2.len();
    match found.fields().len() {
        columns if columns == first || columns == second => {
            Arc::new(Schema::new(newest.fields()[..columns].to_vec()))
        }
        _ => newest,
    }
}

/// Returns a feature's name in the column `features`, such as `rtt_min` or `in_flight`.
pub fn feature_name(feature: Feature) -> String {
    let mut name = String::new();
    for letter in format!("{feature:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// Converts a batch that has the columns of [`schema`] to rows.
///
/// # Errors
///
/// Returns the first invalid value with its row in the batch and its column.
pub(super) fn from_batch(header: &FileHeader, batch: &RecordBatch) -> Result<Vec<Row>, Wrong> {
    let columns = Columns::of(batch);
    let wrong = |row, column, reason: String| Wrong {
        row,
        column,
        reason,
    };
    let actions = header.interface.actions.to_string();
    let mut rows = Vec::with_capacity(batch.num_rows());
    for i in 0..batch.num_rows() {
        for (column, found, expected) in [
            ("actions", columns.actions.at(i), actions.as_str()),
            ("policy", columns.policy.at(i), header.policy.as_str()),
        ] {
            if found != Some(expected) {
                let found = found.unwrap_or_default();
                let reason = format!("`{found}`, but the file's metadata have `{expected}`");
                return Err(wrong(i, column, reason));
            }
        }
        let row = columns.row(header, i).map_err(|(c, r)| wrong(i, c, r))?;
        rows.push(row);
    }
    Ok(rows)
}

/// An invalid value in a recording.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The value's row in the batch, from 0.
    pub(super) row: usize,
    /// The name of the value's column.
    pub(super) column: &'static str,
    /// The value, and what is expected instead.
    pub(super) reason: String,
}

/// The columns of text that are stored as dictionaries.
pub(super) const TEXTS: [&str; 5] = ["mode", "actions", "policy", "local", "remote"];

/// The columns of integers that differ from row to row: times, and measurements of the path.
pub(super) fn restless() -> impl Iterator<Item = ColumnPath> {
    let times = ["time", "length_ns", "applied", "decision_delay_ns"];
    let measured = [
        Feature::RttStanding,
        Feature::LatestRtt,
        Feature::SmoothedRtt,
        Feature::RttVar,
        Feature::Delay,
        Feature::Throughput,
    ];
    let statistics = |feature| {
        ["sum", "min", "max", "reference"].map(|statistic| {
            ColumnPath::new(vec![
                "features".into(),
                feature_name(feature),
                statistic.into(),
            ])
        })
    };
    let times = times.into_iter().map(ColumnPath::from);
    times.chain(measured.into_iter().flat_map(statistics))
}

/// Returns the fields of the column `features`.
fn features() -> Fields {
    Feature::ALL
        .iter()
        .map(|&feature| {
            let statistics = DataType::Struct(statistic_fields());
            Field::new(feature_name(feature), statistics, false)
        })
        .collect()
}

/// Returns the fields of one feature's statistics.
fn statistic_fields() -> Fields {
    [
        ("sum", DataType::UInt64),
        ("squares", DataType::UInt64),
        ("min", DataType::UInt32),
        ("max", DataType::UInt32),
        ("reference", DataType::UInt32),
    ]
    .into_iter()
    .map(|(name, data_type)| Field::new(name, data_type, false))
    .collect()
}

/// A dictionary column of text: a key per row, and the distinct values.
struct Texts<'a> {
    keys: &'a DictionaryArray<Int32Type>,
    values: &'a StringArray,
}

impl<'a> Texts<'a> {
    fn at(&self, row: usize) -> Option<&'a str> {
        Some(self.values.value(self.keys.key(row)?))
    }
}

/// A batch's columns by their types. The caller has compared the batch's schema with [`schema`].
struct Columns<'a> {
    flow: &'a UInt64Array,
    sequence: &'a UInt32Array,
    time: &'a TimestampNanosecondArray,
    slot: &'a UInt32Array,
    generation: &'a UInt32Array,
    window: &'a UInt32Array,
    length_ns: &'a UInt64Array,
    acks: &'a UInt32Array,
    mss: &'a UInt32Array,
    mode: Texts<'a>,
    initial_cwnd_bytes: &'a UInt64Array,
    sum: [&'a [u64]; FEATURES],
    squares: [&'a [u64]; FEATURES],
    min: [&'a [u32]; FEATURES],
    max: [&'a [u32]; FEATURES],
    reference: [&'a [u32]; FEATURES],
    applied_window: &'a UInt32Array,
    applied_cwnd: &'a UInt32Array,
    applied: &'a TimestampNanosecondArray,
    action: &'a UInt8Array,
    probability: &'a Float32Array,
    probabilities: &'a ListArray,
    actions: Texts<'a>,
    cwnd_before: &'a UInt32Array,
    base_cwnd: &'a UInt32Array,
    cwnd: &'a UInt32Array,
    decision_delay_ns: &'a UInt64Array,
    throughput_mbps: &'a Float64Array,
    delay_ms: &'a Float64Array,
    loss_mb: &'a Float64Array,
    reward: &'a Float32Array,
    policy: Texts<'a>,
    end: &'a BooleanArray,
    local: &'a StringArray,
    remote: &'a StringArray,
    cgroup: &'a UInt64Array,
    /// `None`, as for the following ones, in files of versions from before they were recorded.
    cookie: Option<&'a UInt64Array>,
    netns: Option<&'a UInt32Array>,
    app_limited_acks: Option<&'a UInt32Array>,
    marked: Option<&'a UInt32Array>,
    path_rtt_us: Option<&'a UInt32Array>,
    path_flows: Option<&'a UInt32Array>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Self {
        let schema = schema();
        let column = |name: &str| -> &'a ArrayRef {
            let index = schema.index_of(name);
            batch.column(index.expect("a column of the schema"))
        };
        let [cookie, netns, app_limited_acks, marked] =
            SINCE_VERSION_2.map(|name| batch.column_by_name(name));
        let [path_rtt_us, path_flows] = SINCE_VERSION_3.map(|name| batch.column_by_name(name));
        let texts = |name| {
            let keys = column(name).as_dictionary::<Int32Type>();
            let values = keys.values().as_string::<i32>();
            Texts { keys, values }
        };
        let features = column("features").as_struct();
        let statistic = |i: usize, which: usize| features.column(i).as_struct().column(which);
        let u64s = |which: usize| {
            std::array::from_fn(|i| {
                statistic(i, which)
                    .as_primitive::<UInt64>()
                    .values()
                    .as_ref()
            })
        };
        let u32s = |which: usize| {
            std::array::from_fn(|i| {
                statistic(i, which)
                    .as_primitive::<UInt32>()
                    .values()
                    .as_ref()
            })
        };
        Self {
            flow: column("flow").as_primitive(),
            sequence: column("sequence").as_primitive(),
            time: column("time").as_primitive(),
            slot: column("slot").as_primitive(),
            generation: column("generation").as_primitive(),
            window: column("window").as_primitive(),
            length_ns: column("length_ns").as_primitive(),
            acks: column("acks").as_primitive(),
            mss: column("mss").as_primitive(),
            mode: texts("mode"),
            initial_cwnd_bytes: column("initial_cwnd_bytes").as_primitive(),
            sum: u64s(0),
            squares: u64s(1),
            min: u32s(2),
            max: u32s(3),
            reference: u32s(4),
            applied_window: column("applied_window").as_primitive(),
            applied_cwnd: column("applied_cwnd").as_primitive(),
            applied: column("applied").as_primitive(),
            action: column("action").as_primitive(),
            probability: column("probability").as_primitive(),
            probabilities: column("probabilities").as_list(),
            actions: texts("actions"),
            cwnd_before: column("cwnd_before").as_primitive(),
            base_cwnd: column("base_cwnd").as_primitive(),
            cwnd: column("cwnd").as_primitive(),
            decision_delay_ns: column("decision_delay_ns").as_primitive(),
            throughput_mbps: column("throughput_mbps").as_primitive(),
            delay_ms: column("delay_ms").as_primitive(),
            loss_mb: column("loss_mb").as_primitive(),
            reward: column("reward").as_primitive(),
            policy: texts("policy"),
            end: column("end").as_boolean(),
            local: column("local").as_string(),
            remote: column("remote").as_string(),
            cgroup: column("cgroup").as_primitive(),
            cookie: cookie.map(AsArray::as_primitive),
            netns: netns.map(AsArray::as_primitive),
            app_limited_acks: app_limited_acks.map(AsArray::as_primitive),
            marked: marked.map(AsArray::as_primitive),
            path_rtt_us: path_rtt_us.map(AsArray::as_primitive),
            path_flows: path_flows.map(AsArray::as_primitive),
        }
    }

    fn row(&self, header: &FileHeader, i: usize) -> Result<Row, (&'static str, String)> {
        let time_ns = header.monotonic_ns(self.time.value(i));
        let generation = self.generation.value(i);
        let mut window = WindowRecord::zeroed();
        window.header = Header::of::<WindowRecord>(self.slot.value(i), generation, time_ns);
        window.index = self.window.value(i);
        window.acks = self.acks.value(i);
        window.start_ns = time_ns.wrapping_sub(self.length_ns.value(i));
        if let (Some(answered), Some(cwnd), Some(at)) = (
            maybe(self.applied_window, i),
            maybe(self.applied_cwnd, i),
            maybe(self.applied, i),
        ) {
            let decision = Decision {
                generation,
                window: answered,
                cwnd,
            };
            window.decision = decision.to_cell();
            window.decision_taken_ns = header.monotonic_ns(at);
        }
        window.cwnd = self.cwnd_before.value(i);
        window.mode = match self.mode.at(i) {
            None => NO_MODE,
            Some(name) => Mode::ALL
                .into_iter()
                .find(|mode| mode.name() == name)
                .ok_or_else(|| ("mode", format!("`{name}`: no such mode")))?
                as u32,
        };
        window.mss = self.mss.value(i);
        window.app_limited_acks = self.app_limited_acks.map_or(0, |column| column.value(i));
        window.marked = self.marked.map_or(0, |column| column.value(i));
        let statistics = &mut window.features;
        for feature in 0..FEATURES {
            statistics.sum[feature] = self.sum[feature][i];
            statistics.squares[feature] = self.squares[feature][i];
            statistics.min[feature] = self.min[feature][i];
            statistics.max[feature] = self.max[feature][i];
            statistics.reference[feature] = self.reference[feature][i];
        }
        let text = |column: &StringArray| column.is_valid(i).then(|| column.value(i).into());
        Ok(Row {
            flow: self.flow.value(i),
            sequence: self.sequence.value(i),
            window,
            path: self.path(i),
            initial_cwnd_bytes: self.initial_cwnd_bytes.value(i),
            decision: self.decision(header, i)?,
            terms: Terms {
                throughput: finite("throughput_mbps", self.throughput_mbps.value(i))? / 8.0,
                delay: finite("delay_ms", self.delay_ms.value(i))?,
                loss: finite("loss_mb", self.loss_mb.value(i))?,
            },
            reward: finite("reward", self.reward.value(i))?,
            end: self.end.value(i),
            local: text(self.local),
            remote: text(self.remote),
            cgroup: self.cgroup.value(i),
            cookie: self.cookie.map_or(0, |column| column.value(i)),
            netns: self.netns.map_or(0, |column| column.value(i)),
        })
    }

    fn path(&self, i: usize) -> Option<PathView> {
        let flows = self.path_flows.and_then(|column| maybe(column, i))?;
        let rtt_us = self.path_rtt_us.and_then(|column| maybe(column, i));
        Some(PathView { rtt_us, flows })
    }

    fn decision(
        &self,
        header: &FileHeader,
        i: usize,
    ) -> Result<Option<Decided>, (&'static str, String)> {
        let (Some(base_cwnd), Some(cwnd)) = (maybe(self.base_cwnd, i), maybe(self.cwnd, i)) else {
            return Ok(None);
        };
        let actions = header.interface.actions.len();
        let action = maybe(self.action, i);
        if let Some(action) = action
            && usize::from(action) >= actions
        {
            return Err((
                "action",
                format!("{action}, but there are {actions} actions"),
            ));
        }
        let probability = maybe(self.probability, i)
            .map(|p| likely("probability", p))
            .transpose()?;
        let probabilities = if self.probabilities.is_valid(i) {
            let values = self.probabilities.value(i);
            let values = values.as_primitive::<Float32Type>().values();
            if values.len() != actions {
                let found = values.len();
                return Err(("probabilities", format!("{found} of {actions} actions")));
            }
            let values = values.iter().map(|&p| likely("probabilities", p));
            Some(values.collect::<Result<_, _>>()?)
        } else {
            None
        };
        Ok(Some(Decided {
            action,
            probability,
            probabilities,
            base_cwnd,
            cwnd,
            delay_ns: maybe(self.decision_delay_ns, i),
        }))
    }
}

use arrow_array::types::{UInt32Type as UInt32, UInt64Type as UInt64};

fn maybe<T: arrow_array::ArrowPrimitiveType>(
    column: &arrow_array::PrimitiveArray<T>,
    row: usize,
) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

fn finite<T: Copy + Into<f64>>(
    column: &'static str,
    value: T,
) -> Result<T, (&'static str, String)> {
    let number: f64 = value.into();
    if number.is_finite() {
        Ok(value)
    } else {
        Err((
            column,
            format!("{number}, which is no number to learn from"),
        ))
    }
}

fn likely(column: &'static str, value: f32) -> Result<f32, (&'static str, String)> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err((column, format!("{value}: expected a probability, 0 to 1")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_the_names_of_their_definition() {
        assert_eq!(feature_name(Feature::RttMin), "rtt_min");
        assert_eq!(
            feature_name(Feature::PersistentCongestion),
            "persistent_congestion"
        );
        let distinct: std::collections::BTreeSet<_> =
            Feature::ALL.into_iter().map(feature_name).collect();
        assert_eq!(distinct.len(), FEATURES);
    }
}
