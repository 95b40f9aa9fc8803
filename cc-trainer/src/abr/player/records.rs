//! What sessions of a real player were worth: a line of JSON for each, kept in a file, and a table.

use std::{
    cmp::Ordering,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use cc_abr::play::Score;
use cc_core::regular_file;
use cc_testbed::summary::{statistics, table};
use serde::{Deserialize, Serialize};

/// Longest file of records that is read, bytes.
const MAX_BYTES: u64 = 1 << 30;

/// What was played, and over what. Two sessions with equal conditions are repetitions.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Conditions {
    /// Name of the trace that the video's link followed.
    pub trace: String,
    /// What selected the bitrates, as `--select` names it.
    pub select: String,
    /// Congestion control of the video's TCP, as `--tcp` names it.
    pub tcp: String,
    /// SHA-256 of the policy file that this congestion control is, or the name of a policy without
    /// a file; `None` for a congestion control of the kernel's own.
    pub policy: Option<String>,
    /// Whether the video's TCP begins anew with slow start after a pause.
    pub slow_start_after_idle: bool,
    /// Round-trip time of the video's link without a queue, ms.
    pub rtt_ms: f64,
    /// Packets that this link's queue holds.
    pub queue_packets: u32,
    /// Round-trip time to the server that decides, ms; 0 with the player's own rules.
    pub decision_rtt_ms: f64,
    /// Name of the video that was played.
    pub video: String,
    /// Number of chunks that were played.
    pub chunks: usize,
    /// Quality of experience: linear, log or hd.
    pub qoe_metric: String,
    /// What a second of rebuffering costs.
    pub rebuffer_penalty: f64,
}

/// A session that was played to its end.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// When the session ended, in UTC.
    pub date: String,
    /// Version of this program, as `cc-trainer --version` says.
    pub version: String,
    /// What was played, and over what.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// Means per chunk, the first one left out.
    #[serde(flatten)]
    pub score: Score,
    /// Score of the same scheme in the simulator of sessions, on the same trace. `None` with the
    /// player's own rules.
    pub simulated: Option<Score>,
    /// Rebuffering of all chunks together, s.
    pub rebuffer_total_s: f64,
    /// Interruptions that the browser reported.
    pub stalls: u32,
    /// Downloads that dash.js broke off.
    pub abandoned: u32,
    /// From the page's start until playback, s.
    pub startup_s: f64,
    /// From the page's questions to their answers. `None` with the player's own rules.
    pub decision_ms: Option<Times>,
    /// What the scheme itself took of that.
    pub compute_ms: Option<Times>,
    /// Packets of the video that the link's queue dropped.
    pub dropped_packets: u64,
    /// Why the links' figures are doubtful: the host was too busy.
    pub disturbances: Vec<String>,
    /// Version that dash.js says it has.
    pub dash: String,
    /// What the browser calls itself.
    pub browser: String,
    /// The chunks in their order; empty where they were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub downloads: Vec<Chunk>,
}

/// A chunk of a session.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Chunk {
    /// Number of its quality, from 0.
    pub quality: usize,
    /// Number of bytes that it has.
    pub bytes: u32,
    /// Time from its request to its last byte, ms.
    pub ms: f64,
    /// Rebuffering since the chunk before, ms.
    pub rebuffer_ms: f64,
    /// Buffer when it had arrived, s.
    pub buffer_s: f64,
    /// Time of its request since the page's start, s.
    pub requested_s: f64,
}

/// Distribution of some times, ms.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Times {
    /// Number of times that there are.
    pub count: usize,
    /// Median of the times, ms.
    pub p50: f64,
    /// 99th percentile of the times, ms.
    pub p99: f64,
    /// The longest of the times, ms.
    pub max: f64,
}

impl Times {
    /// The distribution of times in ms; `None` without a time.
    pub fn of(ms: &[f64]) -> Option<Self> {
        Some(Self {
            count: ms.len(),
            p50: statistics::percentile(ms, 50.0)?,
            p99: statistics::percentile(ms, 99.0)?,
            max: ms.iter().copied().reduce(f64::max)?,
        })
    }
}

/// A file of records, one a line, to which sessions are added as they end.
#[derive(Debug)]
pub struct Records {
    path: PathBuf,
    file: File,
    records: Vec<Record>,
}

/// A file of records could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The operating system refused to open, read or write the file.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What the file was wanted for.
        what: &'static str,
        /// The file, as --out names it.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line is no record.
    #[error(
        "{}:{line}: this is no session of `abr play`: {source}; remove the line, or name another \
         file",
        path.display()
    )]
    Line {
        /// The file, as --out names it.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl Records {
    /// Opens a file of records, which is created if it does not exist, and reads it. The beginning
    /// of a line at its end, which a killed program left, is ignored.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read or written, or has something else in it.
    pub fn open(path: &Path) -> Result<Self, RecordsError> {
        let failed = |what| {
            let path = path.to_owned();
            move |source| RecordsError::Io { what, path, source }
        };
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        let mut file = options.open(path).map_err(failed("opening"))?;
        let text = regular_file::read_to_string(path, MAX_BYTES).map_err(failed("reading"))?;
        let mut records = Vec::new();
        for (number, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(record) => records.push(record),
                Err(_) if !line.ends_with('\n') || line.trim().is_empty() => {}
                Err(source) => {
                    return Err(RecordsError::Line {
                        path: path.to_owned(),
                        line: number + 1,
                        source,
                    });
                }
            }
        }
        let kept = text.rfind('\n').map_or(0, |end| end + 1);
        let tail = &text[kept..];
        if serde_json::from_str::<Record>(tail).is_ok() {
            file.write_all(b"\n").map_err(failed("writing"))?;
        } else if !tail.is_empty() {
            file.set_len(kept as u64).map_err(failed("writing"))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            records,
        })
    }

    /// Whether there is a session with these conditions that nothing disturbed.
    pub fn has(&self, conditions: &Conditions) -> bool {
        let mut all = self.records.iter();
        all.any(|one| one.conditions == *conditions && one.disturbances.is_empty())
    }

    /// Adds a session to the file.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written.
    pub fn keep(&mut self, record: Record) -> Result<(), RecordsError> {
        let failed = |source| RecordsError::Io {
            what: "writing",
            path: self.path.clone(),
            source,
        };
        let mut line = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(failed)?;
        self.records.push(record);
        Ok(())
    }

    /// A table for a terminal with a row for each kind of session, which has means over the traces.
    /// Of several sessions with equal conditions the last one counts.
    pub fn table(&self) -> String {
        let mut blocks: Vec<(String, Vec<Row<'_>>)> = Vec::new();
        for (place, record) in self.records.iter().enumerate() {
            let repeats = |later: &Record| later.conditions == record.conditions;
            if self.records[place + 1..].iter().any(repeats) {
                continue;
            }
            let title = title(&record.conditions);
            let block = match blocks.iter().position(|(known, _)| *known == title) {
                Some(place) => &mut blocks[place].1,
                None => &mut blocks.push_mut((title, Vec::new())).1,
            };
            match block.iter_mut().find(|row| row.takes(record)) {
                Some(row) => row.0.push(record),
                None => block.push(Row(vec![record])),
            }
        }
        for (_, rows) in &mut blocks {
            rows.sort_by(Row::order);
        }
        let block = |(title, rows): &(String, Vec<Row<'_>>)| {
            let mut cells = vec![HEAD.map(str::to_owned).to_vec()];
            cells.extend(rows.iter().map(Row::cells));
            format!("{title}\n{}\n", table::aligned(&cells))
        };
        blocks.iter().map(block).collect()
    }
}

/// What all rows of a block have in common.
fn title(conditions: &Conditions) -> String {
    let Conditions {
        rtt_ms,
        queue_packets,
        video,
        chunks,
        qoe_metric,
        rebuffer_penalty,
        ..
    } = conditions;
    format!(
        "{chunks} chunks of {video} over {rtt_ms} ms and {queue_packets} packets, {qoe_metric} \
         quality of experience per chunk (a second of rebuffering costs {rebuffer_penalty})"
    )
}

const HEAD: [&str; 15] = [
    "selection",
    "TCP",
    "after idle",
    "decision RTT",
    "traces",
    "QoE",
    "lowest",
    "simulator",
    "Mbit/s",
    "rebuffering s",
    "change",
    "stalls",
    "decision p50 ms",
    "longest",
    "disturbed",
];

/// Sessions that differ in their traces only, of which there is at least one.
struct Row<'a>(Vec<&'a Record>);

impl Row<'_> {
    fn takes(&self, record: &Record) -> bool {
        let of_row = Conditions {
            trace: record.conditions.trace.clone(),
            ..self.0[0].conditions.clone()
        };
        of_row == record.conditions
    }

    /// Sessions end in any order, and those that are compared should be beside each other.
    fn order(&self, next: &Self) -> Ordering {
        let (one, next) = (&self.0[0].conditions, &next.0[0].conditions);
        let names = |of: &Conditions| (of.tcp.clone(), !of.slow_start_after_idle);
        (names(one).cmp(&names(next)))
            .then(one.decision_rtt_ms.total_cmp(&next.decision_rtt_ms))
            .then_with(|| one.select.cmp(&next.select))
    }

    /// The cells under [`HEAD`]; a dash where there is nothing to state.
    fn cells(&self) -> Vec<String> {
        let conditions = &self.0[0].conditions;
        let all = |part: &dyn Fn(&Record) -> Option<f64>| -> Option<Vec<f64>> {
            self.0.iter().map(|record| part(record)).collect()
        };
        let shown = |value: Option<f64>, decimals: usize| match value {
            Some(value) => format!("{value:.decimals$}"),
            None => "–".to_owned(),
        };
        let mean = |part: &dyn Fn(&Record) -> Option<f64>, decimals| {
            let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
            shown(all(part).map(mean), decimals)
        };
        let extreme = |part: &dyn Fn(&Record) -> Option<f64>, of: fn(f64, f64) -> f64, decimals| {
            shown(
                all(part).and_then(|values| values.into_iter().reduce(of)),
                decimals,
            )
        };
        let stalls: u32 = self.0.iter().map(|record| record.stalls).sum();
        let is_disturbed = |record: &&&Record| !record.disturbances.is_empty();
        let restarts = match conditions.slow_start_after_idle {
            true => "slow start",
            false => "keeps cwnd",
        };
        vec![
            conditions.select.clone(),
            conditions.tcp.clone(),
            restarts.to_owned(),
            format!("{}", conditions.decision_rtt_ms),
            self.0.len().to_string(),
            mean(&|one| Some(one.score.qoe), 3),
            extreme(&|one| Some(one.score.qoe), f64::min, 3),
            mean(&|one| one.simulated.map(|score| score.qoe), 3),
            mean(&|one| Some(one.score.mbps), 3),
            mean(&|one| Some(one.score.rebuffer_s), 4),
            mean(&|one| Some(one.score.change), 3),
            stalls.to_string(),
            mean(&|one| one.decision_ms.map(|times| times.p50), 1),
            extreme(&|one| one.decision_ms.map(|times| times.max), f64::max, 1),
            self.0.iter().filter(is_disturbed).count().to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn record(trace: &str, select: &str, qoe: f64) -> Record {
        let times = Times::of(&[1.0, 2.0, 6.0]);
        Record {
            date: "2026-11-23T00:00:00Z".into(),
            version: "0.1.0".into(),
            conditions: Conditions {
                trace: trace.into(),
                select: select.into(),
                tcp: "cubic".into(),
                policy: None,
                slow_start_after_idle: true,
                rtt_ms: 80.0,
                queue_packets: 100,
                decision_rtt_ms: 0.0,
                video: "v".into(),
                chunks: 2,
                qoe_metric: "linear".into(),
                rebuffer_penalty: 4.3,
            },
            score: Score {
                qoe,
                ..Score::default()
            },
            simulated: Some(Score::default()),
            rebuffer_total_s: 0.0,
            stalls: 2,
            abandoned: 0,
            startup_s: 1.0,
            decision_ms: times,
            compute_ms: times,
            dropped_packets: 3,
            disturbances: Vec::new(),
            dash: "5".into(),
            browser: "b".into(),
            downloads: vec![Chunk {
                quality: 1,
                bytes: 10,
                ms: 0.1,
                rebuffer_ms: 0.2,
                buffer_s: 0.3,
                requested_s: 0.4,
            }],
        }
    }

    #[test]
    fn sessions_are_found_again_unless_they_were_disturbed() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("sessions.jsonl");
        let (calm, mut busy) = (record("a", "bola", 1.0), record("b", "bola", 1.0));
        busy.disturbances.push("late".into());
        let mut records = Records::open(&path).expect("it can be made");
        records.keep(calm.clone()).expect("it can be written");
        records.keep(busy.clone()).expect("it can be written");
        drop(records);

        let records = Records::open(&path).expect("it is there");
        assert_eq!(records.records, [calm.clone(), busy.clone()]);
        assert!(records.has(&calm.conditions));
        assert!(!records.has(&busy.conditions));
        let mut other = calm.conditions;
        other.decision_rtt_ms = 20.0;
        assert!(!records.has(&other));
    }

    #[test]
    fn the_end_of_a_killed_program_is_replaced_and_other_text_is_refused() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("sessions.jsonl");
        let whole = serde_json::to_string(&record("a", "bola", 1.0)).expect("it is plain");
        // Cut off within the second line, and after it but before its end.
        for (text, expected) in [
            (format!("{whole}\n{}", &whole[..40]), 1),
            (format!("{whole}\n{whole}"), 2),
        ] {
            fs::write(&path, text).expect("it is ours");
            let mut records = Records::open(&path).expect("readable");
            assert_eq!(records.records.len(), expected);
            records.keep(record("c", "bola", 1.0)).expect("writable");
            let again = Records::open(&path).expect("readable");
            assert_eq!(again.records.len(), expected + 1);
        }
        fs::write(&path, format!("{whole}\n0 1.5\n")).expect("it is ours");
        let error = Records::open(&path).expect_err("a line of a trace");
        assert!(error.to_string().contains("jsonl:2: "), "{error}");
    }

    #[test]
    fn rows_are_means_over_the_traces_of_the_last_sessions() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut records =
            Records::open(&dir.path().join("sessions.jsonl")).expect("it can be made");
        let mut own = record("a", "dash:bola", 0.5);
        (own.simulated, own.decision_ms) = (None, None);
        let mut longer = record("a", "bola", 9.0);
        longer.conditions.chunks = 3;
        for one in [
            own,
            record("a", "bola", -7.0),
            record("a", "bola", 1.0),
            record("b", "bola", 2.0),
            longer,
        ] {
            records.keep(one).expect("it can be written");
        }
        let table = records.table();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let served = "bola cubic slow start 0 2 1.500 1.000 0.000 0.000 0.0000 0.000 4 2.0 6.0 0";
        let own = "dash:bola cubic slow start 0 1 0.500 0.500 – 0.000 0.0000 0.000 2 – – 0";
        for expected in [served, own] {
            let expected: Vec<&str> = expected.split_whitespace().collect();
            assert!(rows.contains(&expected), "{table}");
        }
        let place = |name: &str| table.find(name);
        assert!(place(" bola") < place(" dash:bola"), "{table}");
        assert_eq!(table.matches("chunks of v").count(), 2, "{table}");
        assert!(!table.contains("-7"), "{table}");
    }
}
