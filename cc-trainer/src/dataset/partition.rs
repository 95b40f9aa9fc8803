//! Distributes the rows of recordings over files by their flow, so that one file holds all rows of
//! a flow.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytemuck::{Pod, Zeroable};
use cc_core::{
    interface::Interface,
    paths::PathView,
    reward::Terms,
    rows::{Decided, FileHeader, Row},
};
use cc_ebpf::WindowRecord;
use rayon::prelude::*;
use tempfile::TempDir;

use super::{
    DatasetError, FlowOrigin, JoinCounts, Joined, Reading, Recordings, Trajectory,
    origin::path,
    reading::ReadRow,
    trajectory::{assemble, end_at},
};

/// Number of bytes that one reading thread buffers before it writes, over all partitions.
const HELD_BACK: usize = 16 << 20;

/// Rows of recordings, distributed by flow: each file in a scratch directory holds all rows of
/// its flows, in any order.
///
/// The scratch directory is removed when this value is dropped.
#[derive(Debug)]
pub struct Partitions {
    directory: TempDir,
    interface: Interface,
    reading: Option<Reading>,
    sources: Vec<RecordingFile>,
    count: usize,
    gathered: Gathered,
    joined: Option<(Arc<Joined>, JoinCounts)>,
}

/// A recording that rows come from.
#[derive(Debug)]
struct RecordingFile {
    path: PathBuf,
    /// Number of the directory that it is in, among those of all recordings.
    directory: u32,
    policy: Arc<str>,
    /// When its agent started, by which it and its directory name a run of that agent.
    started_ns: i64,
    /// End of the last window of the run, ns since 1970 UTC.
    last_ns: i64,
}

/// Counts of what was read from recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Number of rows, with and without decision.
    pub rows: u64,
    /// Number of rows with a decision that names an action.
    pub decisions: u64,
    /// Number of these decisions that have no probability.
    pub without_probability: u64,
}

impl Recordings {
    /// Distributes all rows over partitions of about `bytes` bytes, in a new directory
    /// under `scratch`. From time to time it calls `watch` with the number of rows done
    /// so far, from any thread.
    ///
    /// # Errors
    ///
    /// Returns an error when a recording cannot be read, no row has a decision, or writing
    /// to the scratch directory fails.
    pub fn partition(
        &self,
        scratch: &Path,
        bytes: u64,
        watch: &(dyn Fn(u64) + Sync),
    ) -> Result<Partitions, DatasetError> {
        let actions = self.interface.actions.len();
        let stride = stride(actions);
        let count = (self.rows * stride as u64).div_ceil(bytes.max(1)).max(1) as usize;
        let directory = tempfile::Builder::new()
            .prefix("cc-trainer-")
            .tempdir_in(scratch)
            .map_err(DatasetError::system("creating a directory in", scratch))?;
        let files: Vec<_> = (0..count)
            .map(|index| Mutex::new(place(directory.path(), index)))
            .collect();
        let (rows, decisions, without) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let parents: Vec<_> = self.files.iter().map(|path| path.parent()).collect();
        let sources = self.files.par_iter().enumerate().map(|(number, path)| {
            let same = parents.iter().position(|other| *other == path.parent());
            let (header, read) = cc_recording::read(path)?;
            let mut spread = PartitionWriter {
                files: &files,
                buffers: vec![Vec::new(); count],
                capacity: (HELD_BACK / count).max(stride),
            };
            let mut last_ns = i64::MIN;
            // The flows with their cookies, which are needed for a join only.
            let mut flows: HashMap<u64, u64> = HashMap::new();
            for row in read {
                let row = row?;
                last_ns = last_ns.max(header.time_ns(&row));
                if self.joined.is_some() {
                    let cookie = flows.entry(row.flow).or_default();
                    *cookie = row.cookie.max(*cookie);
                }
                let action = row.decision.as_ref().filter(|d| d.action.is_some());
                if let Some(decision) = action {
                    decisions.fetch_add(1, Ordering::Relaxed);
                    if decision.probability.is_none() {
                        without.fetch_add(1, Ordering::Relaxed);
                    }
                }
                spread.add(&header, number as u32, &row, actions)?;
                let done = rows.fetch_add(1, Ordering::Relaxed) + 1;
                if done.is_multiple_of(100_000) {
                    watch(done);
                }
            }
            spread.end()?;
            let file = RecordingFile {
                path: path.clone(),
                directory: same.unwrap_or(number) as u32,
                started_ns: header.started_ns,
                policy: header.policy.into(),
                last_ns,
            };
            Ok((file, flows))
        });
        let sources: Vec<_> = sources.collect::<Result<_, DatasetError>>()?;
        let (mut sources, flows): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
        let joined = match &self.joined {
            None => None,
            Some(joined) => Some((joined.clone(), matched(joined, &sources, &flows)?)),
        };
        let run = |file: &RecordingFile| (file.directory, file.started_ns);
        let mut ends: BTreeMap<_, i64> = BTreeMap::new();
        for file in &sources {
            let end = ends.entry(run(file)).or_insert(file.last_ns);
            *end = file.last_ns.max(*end);
        }
        for file in &mut sources {
            file.last_ns = ends[&run(file)];
        }
        let gathered = Gathered {
            rows: rows.into_inner(),
            decisions: decisions.into_inner(),
            without_probability: without.into_inner(),
        };
        if gathered.decisions == 0 {
            return Err(DatasetError::NoDecisions {
                rows: gathered.rows,
            });
        }
        Ok(Partitions {
            directory,
            interface: self.interface.clone(),
            reading: self.reading,
            sources,
            count,
            gathered,
            joined,
        })
    }
}

impl Partitions {
    /// Returns the number of partitions; some may be empty.
    #[expect(clippy::len_without_is_empty, reason = "there is always at least one")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the interface by which observations, actions and rewards are made.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the counts of what was read.
    pub fn gathered(&self) -> Gathered {
        self.gathered
    }

    /// Returns what applications measured of the flows, and what of it was matched; `None` where
    /// nothing was joined.
    pub fn joined(&self) -> Option<(&Joined, JoinCounts)> {
        let (joined, counts) = self.joined.as_ref()?;
        Some((&**joined, *counts))
    }

    /// Calls `each` with the trajectories of a partition, flow by flow. Where what was joined has
    /// weights, or must be [complete](Joined::complete), it leaves out flows without a row.
    ///
    /// # Errors
    ///
    /// Returns an error when a row is present twice, when the partition cannot be read,
    /// or when `each` returns one.
    pub fn visit(
        &self,
        index: usize,
        mut each: impl FnMut(Trajectory) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let path = place(self.directory.path(), index);
        if !path.exists() {
            return Ok(());
        }
        let bytes = fs::read(&path).map_err(DatasetError::system("reading", &path))?;
        let stride = stride(self.interface.actions.len());
        let packed = |at: usize| Packed::at(&bytes[at * stride..][..stride]);
        let mut order: Vec<(u64, u32, usize)> = (0..bytes.len() / stride)
            .map(|at| {
                let (packed, _) = packed(at);
                (packed.flow, packed.sequence, at)
            })
            .collect();
        order.sort_unstable();
        if let Some(pair) = order
            .windows(2)
            .find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1))
        {
            let mut files = [pair[0].2, pair[1].2].map(|at| packed(at).0.source as usize);
            files.sort_unstable();
            let [first, second] = files.map(|number| self.sources[number].path.clone());
            return Err(DatasetError::Twice {
                flow: pair[0].0,
                sequence: pair[0].1,
                first,
                second,
            });
        }
        for flow in order.chunk_by(|a, b| a.0 == b.0) {
            let first = packed(flow[0].2).0;
            let mut paths = flow.iter().map(|&(_, _, at)| packed(at).0.path);
            let origin = FlowOrigin::new(
                paths.find(|&path| path != 0),
                self.sources[first.source as usize].directory,
                first.time_ns,
            );
            let rows = flow.iter().map(|&(_, _, at)| {
                let (packed, probabilities) = packed(at);
                let policy = self.sources[packed.source as usize].policy.clone();
                (packed.row(probabilities), packed.time_ns, policy)
            });
            let figures = self.joined.as_ref().and_then(|(joined, _)| {
                let cookies = flow.iter().map(|&(_, _, at)| packed(at).0.cookie);
                let cookie = cookies.max().unwrap_or(0);
                joined.figures(first.flow, cookie).cloned()
            });
            let mut extra = 0.0;
            if let Some((joined, _)) = &self.joined {
                match &figures {
                    Some(figures) => extra = joined.reward(figures) as f32,
                    None if joined.is_complete() => continue,
                    None => {}
                }
            }
            let mut own = match self.reading {
                None => assemble(&self.interface, rows),
                Some(reading) => {
                    let mut rows: Vec<ReadRow> = rows.collect();
                    reading.apply(&self.interface, &mut rows);
                    assemble(&self.interface, rows.into_iter())
                }
            };
            let outcomes = own.iter_mut().flat_map(|own| &mut own.steps);
            for outcome in outcomes.filter_map(|step| step.outcome.as_mut()) {
                // What is in force for no time earns nothing.
                if outcome.seconds > 0.0 {
                    outcome.reward += extra;
                }
            }
            let last = packed(flow[flow.len() - 1].2).0;
            end_at(
                &mut own,
                match last.flags & END {
                    0 => self.sources[last.source as usize].last_ns,
                    _ => last.time_ns,
                },
            );
            for trajectory in own {
                each(Trajectory {
                    origin,
                    figures: figures.clone(),
                    ..trajectory
                })?;
            }
        }
        Ok(())
    }
}

/// Matches the flows of recordings, each with its cookie, with what was joined.
fn matched(
    joined: &Joined,
    sources: &[RecordingFile],
    flows: &[HashMap<u64, u64>],
) -> Result<JoinCounts, DatasetError> {
    let mut all: BTreeMap<u64, (u64, &Path)> = BTreeMap::new();
    for (source, flows) in sources.iter().zip(flows) {
        let directory = source.path.parent().unwrap_or(Path::new(""));
        for (&flow, &cookie) in flows {
            let known = all.entry(flow).or_insert((cookie, directory));
            known.0 = cookie.max(known.0);
        }
    }
    let all = all.into_iter();
    let flows = all.map(|(flow, (cookie, directory))| (flow, cookie, directory));
    Ok(joined.count(flows)?)
}

/// The buffers of one thread that distributes rows.
struct PartitionWriter<'a> {
    files: &'a [Mutex<PathBuf>],
    buffers: Vec<Vec<u8>>,
    capacity: usize,
}

impl PartitionWriter<'_> {
    fn add(
        &mut self,
        header: &FileHeader,
        source: u32,
        row: &Row,
        actions: usize,
    ) -> Result<(), DatasetError> {
        // Identifiers are hashes already when cc-agent records, but other recordings may number
        // flows.
        let mixed = row
            .flow
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_right(29);
        let index = (mixed % self.buffers.len() as u64) as usize;
        let buffer = &mut self.buffers[index];
        let packed = Packed::of(row, source, header.time_ns(row));
        buffer.extend_from_slice(bytemuck::bytes_of(&packed));
        let known = row
            .decision
            .as_ref()
            .and_then(|d| d.probabilities.as_deref());
        for action in 0..actions {
            let share = known.and_then(|known| known.get(action)).copied();
            buffer.extend_from_slice(&share.unwrap_or(0.0).to_le_bytes());
        }
        if buffer.len() >= self.capacity {
            self.flush(index)?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), DatasetError> {
        (0..self.buffers.len()).try_for_each(|index| self.flush(index))
    }

    fn flush(&mut self, index: usize) -> Result<(), DatasetError> {
        let buffer = &mut self.buffers[index];
        if buffer.is_empty() {
            return Ok(());
        }
        let path = self.files[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Opened for each write: there may be more partitions than a process may have open files.
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&*path)
            .and_then(|mut file| file.write_all(buffer))
            .map_err(DatasetError::system("writing", &path))?;
        buffer.clear();
        Ok(())
    }
}

/// A row in a partition's file, followed by the probabilities of all actions.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Packed {
    flow: u64,
    time_ns: i64,
    initial_cwnd_bytes: u64,
    /// Identifier of the path to the remote address; 0 where there is no address.
    path: u64,
    /// The socket's cookie; 0 where it is unknown.
    cookie: u64,
    terms: [f64; 3],
    delay_ns: u64,
    window: WindowRecord,
    sequence: u32,
    /// Index of the row's recording.
    source: u32,
    reward: f32,
    probability: f32,
    base_cwnd: u32,
    cwnd: u32,
    action: u16,
    flags: u16,
    /// Least RTT of the path, µs; 0 where it is unknown.
    path_rtt_us: u32,
    /// Number of flows on the path; 0 where it is unknown.
    path_flows: u32,
    reserved: u32,
}

// Bits of `Packed::flags`: the flow ends with this row, and which parts of its decision are known.
const END: u16 = 1;
const DECIDED: u16 = 2;
const ACTION: u16 = 4;
const PROBABILITY: u16 = 8;
const PROBABILITIES: u16 = 16;
const DELAY: u16 = 32;

impl Packed {
    fn of(row: &Row, source: u32, time_ns: i64) -> Self {
        let Terms {
            throughput,
            delay,
            loss,
        } = row.terms;
        let mut packed = Self {
            flow: row.flow,
            time_ns,
            initial_cwnd_bytes: row.initial_cwnd_bytes,
            path: row.remote.as_deref().and_then(path).unwrap_or(0),
            cookie: row.cookie,
            terms: [throughput, delay, loss],
            window: row.window,
            path_rtt_us: row.path.and_then(|path| path.rtt_us).unwrap_or(0),
            path_flows: row.path.map_or(0, |path| path.flows),
            sequence: row.sequence,
            source,
            reward: row.reward,
            ..Self::zeroed()
        };
        let mut flag = |set: bool, flag| packed.flags |= if set { flag } else { 0 };
        flag(row.end, END);
        if let Some(decision) = &row.decision {
            flag(true, DECIDED);
            flag(decision.action.is_some(), ACTION);
            flag(decision.probability.is_some(), PROBABILITY);
            flag(decision.probabilities.is_some(), PROBABILITIES);
            flag(decision.delay_ns.is_some(), DELAY);
            packed.action = decision.action.unwrap_or(0).into();
            packed.probability = decision.probability.unwrap_or(0.0);
            packed.base_cwnd = decision.base_cwnd;
            packed.cwnd = decision.cwnd;
            packed.delay_ns = decision.delay_ns.unwrap_or(0);
        }
        packed
    }

    /// Reads a row from a partition's bytes; also returns the bytes of the probabilities after it.
    fn at(bytes: &[u8]) -> (Self, &[u8]) {
        let (packed, probabilities) = bytes.split_at(size_of::<Self>());
        (bytemuck::pod_read_unaligned(packed), probabilities)
    }

    fn row(&self, probabilities: &[u8]) -> Row {
        let has = |flag| self.flags & flag != 0;
        let [throughput, delay, loss] = self.terms;
        let share = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Row {
            flow: self.flow,
            sequence: self.sequence,
            window: self.window,
            path: (self.path_flows > 0).then_some(PathView {
                rtt_us: (self.path_rtt_us > 0).then_some(self.path_rtt_us),
                flows: self.path_flows,
            }),
            initial_cwnd_bytes: self.initial_cwnd_bytes,
            decision: has(DECIDED).then(|| Decided {
                action: has(ACTION).then_some(self.action as u8),
                probability: has(PROBABILITY).then_some(self.probability),
                probabilities: has(PROBABILITIES)
                    .then(|| probabilities.chunks_exact(4).map(share).collect()),
                base_cwnd: self.base_cwnd,
                cwnd: self.cwnd,
                delay_ns: has(DELAY).then_some(self.delay_ns),
            }),
            terms: Terms {
                throughput,
                delay,
                loss,
            },
            reward: self.reward,
            end: has(END),
            local: None,
            remote: None,
            cgroup: 0,
            cookie: self.cookie,
            netns: 0,
        }
    }
}

/// Returns the number of bytes of a row with the probabilities of its actions.
fn stride(actions: usize) -> usize {
    size_of::<Packed>() + 4 * actions
}

/// Returns the path of a partition's file.
fn place(directory: &Path, index: usize) -> PathBuf {
    directory.join(format!("{index:06}"))
}
