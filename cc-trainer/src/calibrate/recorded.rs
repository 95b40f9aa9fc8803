//! Recordings sorted by path and by control: what a twin is fitted to.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::Add,
    path::{Path, PathBuf},
    sync::Arc,
};

use cc_core::{
    interface::Interface,
    rows::{FileHeader, Recorded, Row},
};
use cc_ebpf::WindowRecord;
use cc_recording::RecordingError;
use serde::Serialize;

use super::error::CalibrateError;
use super::statistics::{Sample, Statistics};
use crate::dataset::path_of;

/// The shortest flow that is used, s: a shorter one is mostly its slow start.
pub const SHORTEST_S: f64 = 5.0;
/// The part of a flow that is used, from its beginning, s: twins are simulated for as long.
pub const LONGEST_S: f64 = 60.0;
/// The number of a control's flows on a path that are used: the longest ones.
pub const MOST_FLOWS: usize = 4;
/// The share of windows that the application may limit in a flow that is used.
pub const MOST_LIMITED: f64 = 0.2;
/// The shortest time of a control on a path in all, s.
pub const LEAST_S: f64 = 10.0;

/// By what flows are sorted into paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathBy {
    /// The network of the remote address where the recording has addresses, otherwise the
    /// directory.
    #[default]
    Auto,
    /// The network of the remote address: 24 bits of an IPv4 address, 48 of an IPv6 address, or the
    /// whole of a hashed one.
    Remote,
    /// The directory of the file.
    Directory,
}

/// What governed recorded flows: a control of the kernel, or a policy of the agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// A congestion control of the kernel, by its name.
    Control(String),
    /// A policy, by its identifier in recordings: SHA-256 of its file, or its name.
    Policy(String),
}

impl Subject {
    /// What the policy of a recording's header stands for.
    pub fn of(policy: &str) -> Self {
        match policy.strip_prefix("observed:") {
            Some(control) => Self::Control(control.to_owned()),
            None => Self::Policy(policy.to_owned()),
        }
    }

    /// A short name for tables.
    pub fn label(&self) -> String {
        match self {
            Self::Control(name) => name.clone(),
            Self::Policy(name) => name.chars().take(12).collect(),
        }
    }
}

/// The flows of one control on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedControl {
    /// The control or policy that governed the flows.
    pub subject: Subject,
    /// The windows of each flow, in order; the longest flow first.
    pub flows: Vec<Vec<Sample>>,
    /// Figures of all of these flows.
    pub statistics: Statistics,
}

/// What was recorded on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedPath {
    /// Name of the path, as scenarios may have it.
    pub name: String,
    /// The controls with enough flows to be compared, by name.
    pub controls: Vec<RecordedControl>,
    /// What cannot be compared, each with the reason.
    pub left_out: Vec<String>,
    /// Acknowledged bytes of all flows, used or not: how much the path matters.
    pub bytes: u64,
    /// Whether flows of the path were under way at the same time, so that each saw a link that it
    /// shared with another.
    pub overlapping: bool,
}

/// All recordings that were read, their flows sorted by path.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedPaths {
    /// The paths, in the order of their names.
    pub paths: Vec<RecordedPath>,
    /// The interface of the first recording, by whose windows twins are measured too.
    pub interface: Interface,
}

/// A flow while its rows are gathered.
#[derive(Debug)]
struct Flow {
    path: String,
    subject: Subject,
    /// Rows in the order in which they came, with their numbers.
    rows: Vec<(u32, Brief)>,
}

/// What is kept of a row.
#[derive(Clone, Copy, Debug)]
struct Brief {
    sample: Sample,
    started_ns: i64,
    ended_ns: i64,
}

/// Sorts rows by path and flow.
#[derive(Debug, Default)]
pub struct Gatherer {
    flows: HashMap<u64, Flow>,
    /// The last window of each flow, to which the time until the next one is counted.
    last: HashMap<u64, WindowRecord>,
    first: Option<(PathBuf, Interface)>,
}

impl Gatherer {
    /// Checks that rows of this header can be compared with those before: windows and filters have
    /// the same lengths. `file` names them in errors.
    ///
    /// # Errors
    ///
    /// Returns an error when they have others.
    pub fn begin(&mut self, header: &FileHeader, file: &Path) -> Result<(), CalibrateError> {
        let windows = |i: &Interface| (i.window_ms, i.min_rtt_window_s);
        match &self.first {
            None => self.first = Some((file.to_owned(), header.interface.clone())),
            Some((first, expected)) if windows(expected) != windows(&header.interface) => {
                return Err(CalibrateError::Mixed {
                    file: file.to_owned(),
                    found_ms: header.interface.window_ms,
                    first: first.clone(),
                    expected_ms: expected.window_ms,
                });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Adds a row of a file in `directory`.
    ///
    /// # Errors
    ///
    /// Returns an error when rows are to be sorted by remote address and this one has none.
    pub fn add(
        &mut self,
        header: &FileHeader,
        row: &Row,
        directory: &Path,
        by: PathBy,
    ) -> Result<(), CalibrateError> {
        let remote = row.remote.as_deref().and_then(remote_name);
        let path = match (by, remote) {
            (PathBy::Directory, _) | (PathBy::Auto, None) => name_of(directory),
            (PathBy::Auto | PathBy::Remote, Some(remote)) => remote,
            (PathBy::Remote, None) => {
                return Err(CalibrateError::NoAddresses {
                    directory: directory.to_owned(),
                });
            }
        };
        let flow = self.flows.entry(row.flow).or_insert_with(|| Flow {
            path,
            subject: Subject::of(&header.policy),
            rows: Vec::new(),
        });
        let before = self.last.insert(row.flow, row.window);
        let sample = Sample::of(before.as_ref(), &row.window);
        let ended_ns = header.time_ns(row);
        let brief = Brief {
            sample,
            started_ns: header.utc_ns(row.window.start_ns),
            ended_ns,
        };
        flow.rows.push((row.sequence, brief));
        Ok(())
    }

    /// Sorts what was added into paths and controls.
    ///
    /// # Errors
    ///
    /// Returns an error when no control has enough on any path, with what each lacks.
    pub fn finish(self) -> Result<RecordedPaths, CalibrateError> {
        let Some((_, interface)) = self.first else {
            return Err(CalibrateError::Nothing);
        };
        let mut paths: BTreeMap<String, BTreeMap<Subject, Vec<Vec<Brief>>>> = BTreeMap::new();
        for mut flow in self.flows.into_values() {
            flow.rows.sort_by_key(|(sequence, _)| *sequence);
            let rows: Vec<Brief> = flow.rows.into_iter().map(|(_, brief)| brief).collect();
            let subjects = paths.entry(flow.path).or_default();
            subjects.entry(flow.subject).or_default().push(rows);
        }
        let paths: Vec<_> = paths.into_iter().map(|(name, by)| path(name, by)).collect();
        if paths.iter().all(|path| path.controls.is_empty()) {
            return Err(CalibrateError::Unusable {
                reasons: paths
                    .iter()
                    .flat_map(|path| {
                        path.left_out
                            .iter()
                            .map(|why| format!("{}: {why}", path.name))
                    })
                    .collect(),
            });
        }
        Ok(RecordedPaths { paths, interface })
    }
}

/// Reads recordings: files, or directories of them. `watch` is called with the number of rows read
/// so far, from time to time.
///
/// # Errors
///
/// Returns an error when a recording cannot be read, when recordings do not fit together, or when
/// no control has enough on any path.
pub fn read(
    paths: &[PathBuf],
    by: PathBy,
    mut watch: impl FnMut(u64),
) -> Result<RecordedPaths, CalibrateError> {
    let mut gatherer = Gatherer::default();
    let mut count = 0u64;
    for path in paths {
        if path.is_dir() {
            complete(path)?;
        }
        for file in cc_recording::files(path)? {
            let (header, rows) = cc_recording::read(&file)?;
            gatherer.begin(&header, &file)?;
            let directory = file.parent().unwrap_or(Path::new(".")).to_owned();
            for row in rows {
                gatherer.add(&header, &row?, &directory, by)?;
                count += 1;
                if count.is_multiple_of(10_000) {
                    watch(count);
                }
            }
        }
    }
    gatherer.finish()
}

/// Sorts rows in memory, all of one path.
///
/// # Errors
///
/// Returns an error when no control has enough.
pub fn gather<'a>(
    name: &str,
    rows: impl IntoIterator<Item = &'a Recorded>,
) -> Result<RecordedPaths, CalibrateError> {
    let mut gatherer = Gatherer::default();
    let mut header: Option<&Arc<FileHeader>> = None;
    let place = Path::new(name);
    for recorded in rows {
        if header.is_none_or(|known| !Arc::ptr_eq(known, &recorded.header)) {
            gatherer.begin(&recorded.header, place)?;
            header = Some(&recorded.header);
        }
        gatherer.add(&recorded.header, &recorded.row, place, PathBy::Directory)?;
    }
    gatherer.finish()
}

/// Completes files that a killed agent left incomplete; in a directory that is not writable they
/// are left as they are.
fn complete(directory: &Path) -> Result<(), CalibrateError> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match cc_recording::recover(directory) {
        Err(RecordingError::Io { source, .. })
            if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        outcome => outcome.map(drop).map_err(CalibrateError::from),
    }
}

/// Makes a path of its flows.
fn path(name: String, by: BTreeMap<Subject, Vec<Vec<Brief>>>) -> RecordedPath {
    let mut spans: Vec<(i64, i64)> = Vec::new();
    let (mut bytes, mut controls, mut left_out) = (0, Vec::new(), Vec::new());
    for (subject, flows) in by {
        for flow in &flows {
            bytes += flow.iter().map(|brief| brief.sample.acked).sum::<u64>();
            if let (Some(first), Some(last)) = (flow.first(), flow.last()) {
                spans.push((first.started_ns, last.ended_ns));
            }
        }
        match control(subject, flows) {
            Ok(control) => controls.push(control),
            Err(reason) => left_out.push(reason),
        }
    }
    RecordedPath {
        name,
        controls,
        left_out,
        bytes,
        overlapping: overlap(spans),
    }
}

/// Makes a control of its flows on a path, or says what they lack.
fn control(subject: Subject, flows: Vec<Vec<Brief>>) -> Result<RecordedControl, String> {
    let name = subject.label();
    let (mut short, mut limited) = (0, 0);
    let mut used: Vec<Vec<Sample>> = Vec::new();
    let all = flows.len();
    for flow in flows {
        let samples: Vec<Sample> = within(flow.iter().map(|brief| brief.sample));
        let held_back = samples.iter().filter(|sample| sample.app_limited).count();
        if seconds(&samples) < SHORTEST_S {
            short += 1;
        } else if held_back as f64 > MOST_LIMITED * samples.len() as f64 {
            limited += 1;
        } else {
            used.push(samples);
        }
    }
    used.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    used.truncate(MOST_FLOWS);
    let total = used.iter().map(|flow| seconds(flow)).fold(0.0, f64::add);
    let slices: Vec<&[Sample]> = used.iter().map(Vec::as_slice).collect();
    let statistics = Statistics::of(&slices);
    match statistics {
        Some(statistics) if total >= LEAST_S => Ok(RecordedControl {
            subject,
            flows: used,
            statistics,
        }),
        _ => Err(format!(
            "{name}: {total:.0} s of {} flows can be used, of {all} recorded; {short} are shorter \
             than {SHORTEST_S} s, {limited} are limited by their application; at least {LEAST_S} s \
             are needed: record longer bulk transfers",
            used.len(),
        )),
    }
}

/// The beginning of a flow, up to [`LONGEST_S`].
fn within(samples: impl Iterator<Item = Sample>) -> Vec<Sample> {
    let mut ns = 0;
    samples
        .take_while(|sample| {
            ns += sample.ns;
            ns as f64 <= LONGEST_S * 1e9
        })
        .collect()
}

/// Length of a flow, s.
pub(super) fn seconds(flow: &[Sample]) -> f64 {
    let ns: u64 = flow.iter().map(|sample| sample.ns).sum();
    ns as f64 / 1e9
}

/// Whether more than a tenth of the time of all spans was shared by two of them.
fn overlap(mut spans: Vec<(i64, i64)>) -> bool {
    spans.sort_unstable();
    let (mut shared, mut total, mut until) = (0, 0, i64::MIN);
    for (from, to) in spans {
        total += to - from;
        shared += until.min(to).saturating_sub(from).max(0);
        until = until.max(to);
    }
    shared * 10 > total
}

/// A name of a path for the network of a remote address in the form of a recording.
fn remote_name(remote: &str) -> Option<String> {
    let id = path_of(remote)?;
    Some(match id >> 56 {
        4 if remote.contains(':') => {
            let [a, b, c, _] = ((id as u32) << 8).to_be_bytes();
            format!("{a}.{b}.{c}.0-24")
        }
        6 if remote.contains(':') => format!("v6-{:x}-48", id & 0xffff_ffff_ffff),
        _ => format!("host-{id:016x}"),
    })
}

/// A name of a path for a directory.
fn name_of(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or(directory.as_os_str());
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = (name.to_string_lossy().chars())
        .map(|c| if fits(c) { c } else { '-' })
        .collect();
    match name.trim_matches('.') {
        "" => "path".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use cc_core::interface::Interface;

    use super::*;
    use crate::calibrate::twin::Twin;
    use crate::simulated_recording::{SimulatedRun, record, write};

    /// Rows of a control on a link.
    pub(crate) fn rows(twin: &Twin, control: &str, seconds: u64, seed: u64) -> Vec<Recorded> {
        let scenario = twin.scenario("link", seed).expect("in range");
        let run = SimulatedRun::new(Duration::from_secs(seconds), seed);
        record(&scenario, control, &Interface::default(), &run).expect("a known control")
    }

    fn link() -> Twin {
        Twin::plain(8.0, 30.0, 40.0)
    }

    #[test]
    fn flows_are_sorted_by_directory_and_control() {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, control, seconds, seed) in [
            ("one", "cubic", 12, 1),
            ("one", "reno", 12, 2),
            ("two", "cubic", 70, 3),
            ("two", "bbr", 3, 4),
        ] {
            let place = directory.path().join(path);
            std::fs::create_dir_all(&place).expect("created");
            write(&place, control, &rows(&link(), control, seconds, seed)).expect("written");
        }
        let places = [directory.path().join("one"), directory.path().join("two")];
        let found = read(&places, PathBy::Auto, |_| {}).expect("there is enough");
        let names: Vec<_> = found.paths.iter().map(|path| path.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let [one, two] = &found.paths[..] else {
            panic!("two paths");
        };
        let subjects: Vec<_> = one.controls.iter().map(|c| c.subject.label()).collect();
        assert_eq!(subjects, ["cubic", "reno"]);
        // All recordings begin at the same time.
        assert!(one.overlapping);
        assert_eq!(two.controls.len(), 1);
        let used = two.controls[0].statistics.seconds;
        assert!((59.0..=60.0).contains(&used), "the beginning: {used}");
        assert!(
            two.left_out[0].starts_with("bbr: 0 s of 0 flows"),
            "{:?}",
            two.left_out
        );
        // 8 Mbit/s of IP packets, a cubic that fills the buffer of 40 ms.
        let cubic = &one.controls[0].statistics;
        assert!((7.0..7.73).contains(&cubic.throughput_mbps), "{cubic:?}");
        assert!((60.0..75.0).contains(&cubic.p95_rtt_ms), "{cubic:?}");
    }

    /// The figures of the rows against those of the simulation that made them.
    #[test]
    fn figures_are_those_of_the_flow_itself() {
        use cc_sim::sim::{Control, Simulation};
        let lossy = Twin {
            loss: Some(0.01),
            ..link()
        };
        for (twin, control) in [(link(), "cubic"), (lossy, "bbr"), (link(), "reno")] {
            let found = gather("link", &rows(&twin, control, 30, 7)).expect("enough");
            let found = found.paths[0].controls[0].statistics;
            let scenario = twin.scenario("link", 7).expect("in range");
            let inner = Control::named(control, 7).expect("known");
            let mut simulation = Simulation::observed(&scenario, vec![inner], 7);
            simulation.run(30_000_000_000);
            let flow = simulation.flow(0);
            let mbps = flow.delivered as f64 * 1448.0 * 8.0 / 30e6;
            let ratio = found.throughput_mbps / mbps;
            assert!((0.98..1.02).contains(&ratio), "{control}: {ratio}");
            let observed = simulation.observation().expect("observed");
            let p95 = observed.forward.flows[0]
                .delay_quantile(0.95)
                .expect("packets");
            // The way back takes half of the propagation.
            let rtt = p95.as_secs_f64() * 1e3 + 15.0;
            let ratio = found.p95_rtt_ms / rtt;
            assert!((0.95..1.06).contains(&ratio), "{control}: {ratio}");
            let loss = flow.lost as f64 / (flow.lost + flow.delivered) as f64;
            assert!(
                (found.loss - loss).abs() < 0.003,
                "{control}: {} {loss}",
                found.loss
            );
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_with_the_reason() {
        let error = gather("link", &rows(&link(), "cubic", 3, 1)).expect_err("too short");
        let text = error.to_string();
        assert!(
            text.contains("link: cubic: 0 s of 0 flows can be used, of 1 recorded"),
            "{text}"
        );
        assert!(text.contains("record longer bulk transfers"), "{text}");
        let none: [Recorded; 0] = [];
        let error = gather("link", &none).expect_err("nothing");
        assert!(matches!(error, CalibrateError::Nothing), "{error}");
        let mut limited = rows(&link(), "cubic", 12, 1);
        for recorded in &mut limited {
            recorded.row.window.app_limited_acks = recorded.row.window.acks;
        }
        let error = gather("link", &limited).expect_err("limited");
        assert!(
            error
                .to_string()
                .contains("1 are limited by their application"),
            "{error}"
        );
    }

    #[test]
    fn recordings_with_other_windows_or_without_addresses_are_refused() {
        let mut all = rows(&link(), "cubic", 6, 1);
        let mut other = rows(&link(), "reno", 6, 1);
        let mut header = FileHeader::clone(&other[0].header);
        header.interface.window_ms = 50;
        let header = Arc::new(header);
        for recorded in &mut other {
            recorded.header = header.clone();
        }
        all.extend(other);
        let error = gather("link", &all).expect_err("mixed");
        let text = error.to_string();
        assert!(
            text.contains("windows of 50 ms") && text.contains("100 ms"),
            "{text}"
        );
        let mut gatherer = Gatherer::default();
        let recorded = &all[0];
        gatherer
            .begin(&recorded.header, Path::new("x"))
            .expect("the first");
        let error = gatherer
            .add(
                &recorded.header,
                &recorded.row,
                Path::new("x"),
                PathBy::Remote,
            )
            .expect_err("no addresses");
        assert!(error.to_string().contains("--record-addresses"), "{error}");
    }

    #[test]
    fn names_of_paths_are_names_of_scenarios() {
        let remote = remote_name;
        assert_eq!(remote("192.0.2.77:443").as_deref(), Some("192.0.2.0-24"));
        let sixth = remote("[2001:db8:7::1]:443");
        assert_eq!(sixth.as_deref(), Some("v6-20010db80007-48"));
        let hash = "00112233445566778899aabbccddeeff";
        assert_eq!(remote(hash).as_deref(), Some("host-0011223344556677"));
        assert_eq!(remote("?"), None);
        assert_eq!(name_of(Path::new("/var/lib/rlcc data")), "rlcc-data");
        assert_eq!(name_of(Path::new(".")), "path");
        assert!(overlap(vec![(0, 10), (5, 15)]) && !overlap(vec![(0, 10), (10, 20)]));
    }
}
