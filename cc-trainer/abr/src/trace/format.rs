//! Formats of trace files, and how each is read.

use std::path::Path;

use serde::Deserialize;

use super::{Trace, TraceError, TraceFault};

/// Length of the bins in which delivery opportunities are counted, ms.
const BIN_MS: u32 = 1_000;

/// Formats of traces that are recognised by their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lines `TIME_S MBPS`, separated by blanks or a comma: Pensieve's "cooked" traces.
    Throughput,
    /// A time in ms for each packet of 1,500 bytes that the link can deliver: mahimahi's traces.
    Opportunities,
    /// Logs of a download on the move with the columns time, ms since the start, latitude,
    /// longitude, bytes received, ms that it took: Riiser et al. (MMSys 2013, HSDPA in Norway), and
    /// van der Hooft et al. (2016, 4G in Belgium).
    DownloadLog,
    /// JSON of periods with `duration_ms` and `bandwidth_kbps`: Sabre's traces.
    Periods,
}

/// One period of constant throughput in [`Format::Periods`].
#[derive(Deserialize)]
struct Period {
    duration_ms: f64,
    bandwidth_kbps: f64,
}

/// Points of a trace with the line of each.
#[derive(Default)]
struct Points {
    times: Vec<f64>,
    mbps: Vec<f64>,
    lines: Vec<usize>,
}

impl Points {
    fn add(&mut self, time: f64, mbps: f64, line: usize) {
        self.times.push(time);
        self.mbps.push(mbps);
        self.lines.push(line);
    }
}

/// Parses a trace in any of the known formats. `path` gives the trace its name, and errors their
/// place.
///
/// # Errors
///
/// Returns the first fault with its line.
pub fn parse(text: &str, path: &Path) -> Result<Trace, TraceError> {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let points = || {
        let points = match recognise(text).ok_or((1, TraceFault::Unknown))? {
            Format::Throughput => throughput(text)?,
            Format::Opportunities => opportunities(text)?,
            Format::DownloadLog => download_log(text)?,
            Format::Periods => periods(text)?,
        };
        Trace::of_lines(&name, points.times, points.mbps, &points.lines)
    };
    points().map_err(|(line, fault)| TraceError {
        path: Some(path.to_owned()),
        line,
        fault,
    })
}

/// The format of a text, by its first line with a number in it.
fn recognise(text: &str) -> Option<Format> {
    if text.trim_start().starts_with('[') {
        return Some(Format::Periods);
    }
    let columns = rows(text).map(|(_, line)| columns(line).count()).next()?;
    match columns {
        1 => Some(Format::Opportunities),
        2 => Some(Format::Throughput),
        6 => Some(Format::DownloadLog),
        _ => None,
    }
}

/// Lines with content and their numbers from 1, without comments (`#`) and a heading.
fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .enumerate()
        .filter(|(place, (_, line))| *place > 0 || !is_heading(line))
        .map(|(_, row)| row)
}

fn is_heading(line: &str) -> bool {
    line.starts_with(|c: char| c.is_alphabetic()) && columns(line).all(|one| number(one).is_none())
}

fn columns(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || c == ',' || c == ';')
        .filter(|column| !column.is_empty())
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// The numbers of a line that has exactly this many.
fn numbers<const N: usize>(
    (line, text): (usize, &str),
    expected: &'static str,
) -> Result<[f64; N], (usize, TraceFault)> {
    let found: Option<Vec<f64>> = columns(text).map(number).collect();
    let found = found.and_then(|found| <[f64; N]>::try_from(found).ok());
    found.ok_or_else(|| {
        let text = text.chars().take(60).collect();
        (line, TraceFault::Line { text, expected })
    })
}

fn throughput(text: &str) -> Result<Points, (usize, TraceFault)> {
    let mut points = Points::default();
    for row in rows(text) {
        let [time, mbps] = numbers(row, "a time in s and a throughput in Mbit/s")?;
        points.add(time, mbps, row.0);
    }
    Ok(points)
}

/// Counts packets in bins of a second: an opportunity carries 1,500 bytes. What is left of the last
/// second is one shorter bin.
fn opportunities(text: &str) -> Result<Points, (usize, TraceFault)> {
    let expected = "a whole number of ms, not below the one before";
    let mut points = Points::default();
    points.add(0.0, 0.0, 1);
    let (mut end, mut packets, mut last, mut line) = (BIN_MS, 0_u32, 0, 1);
    let mut close = |from: u32, to: u32, packets: u32, line: usize| {
        let mbps = f64::from(packets) * 1_500.0 * 8.0 / f64::from(to - from) / 1e3;
        points.add(f64::from(to) / 1e3, mbps, line);
    };
    for row in rows(text) {
        let [time] = numbers(row, expected)?;
        line = row.0;
        let is_time = time.fract() == 0.0 && (f64::from(last)..=1e9).contains(&time);
        if !is_time {
            let text = row.1.chars().take(60).collect();
            return Err((line, TraceFault::Line { text, expected }));
        }
        last = time as u32;
        // A packet at the very end of a bin belongs to it.
        while last > end {
            close(end - BIN_MS, end, packets, line);
            (end, packets) = (end + BIN_MS, 0);
        }
        packets += 1;
    }
    if last > end - BIN_MS {
        close(end - BIN_MS, last, packets, line);
    }
    Ok(points)
}

fn download_log(text: &str) -> Result<Points, (usize, TraceFault)> {
    let expected = "a line of a download log: time, ms since the start, latitude, longitude, \
                    bytes, ms that they took";
    let mut points = Points::default();
    let mut start = None;
    for row in rows(text) {
        let [_, since, _, _, bytes, took]: [f64; 6] = numbers(row, expected)?;
        if took <= 0.0 {
            let text = row.1.chars().take(60).collect();
            return Err((row.0, TraceFault::Line { text, expected }));
        }
        // The bytes of a line arrived in the time before it.
        let start = *start.get_or_insert_with(|| {
            points.add(0.0, 0.0, row.0);
            since - took
        });
        points.add((since - start) / 1e3, bytes * 8.0 / took / 1e3, row.0);
    }
    Ok(points)
}

fn periods(text: &str) -> Result<Points, (usize, TraceFault)> {
    let periods: Vec<Period> = serde_json::from_str(text)
        .map_err(|error| (error.line(), TraceFault::Json(error.to_string())))?;
    let mut points = Points::default();
    let mut time = 0.0;
    points.add(0.0, 0.0, 0);
    for period in periods {
        time += period.duration_ms / 1e3;
        points.add(time, period.bandwidth_kbps / 1e3, 0);
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, String> {
        parse(text, Path::new("dir/name")).map_err(|error| error.to_string())
    }

    #[test]
    fn each_format_is_recognised() {
        for (text, times, mbps) in [
            ("0.0\t1\n0.5 2.5\n\n", vec![0.0, 0.5], vec![1.0, 2.5]),
            (
                "time,mbps\n# from\n0,1\n1,2\n",
                vec![0.0, 1.0],
                vec![1.0, 2.0],
            ),
            // 3 packets in the first second, none in the next, 2 in the half of the third.
            (
                "0\n500\n1000\n2001\n2500\n",
                vec![0.0, 1.0, 2.0, 2.5],
                vec![0.0, 0.036, 0.0, 0.048],
            ),
            (
                "1286000000 500 59.9 10.7 125000 500\n1286000001 1500 59.9 10.7 250000 1000\n",
                vec![0.0, 0.5, 1.5],
                vec![0.0, 2.0, 2.0],
            ),
            (
                r#"[{"duration_ms": 2000, "bandwidth_kbps": 700, "latency_ms": 20},
                    {"duration_ms": 500, "bandwidth_kbps": 1500}]"#,
                vec![0.0, 2.0, 2.5],
                vec![0.0, 0.7, 1.5],
            ),
        ] {
            let trace = read(text).expect(text);
            assert_eq!(trace.name(), "name");
            assert_eq!(trace.times(), times, "{text}");
            let near = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-12;
            assert!(
                trace.mbps().iter().zip(&mbps).all(near),
                "{:?}",
                trace.mbps()
            );
        }
    }

    #[test]
    fn faults_name_file_line_and_remedy() {
        for (text, expected) in [
            ("", "dir/name:1: unknown format"),
            ("1 2 3\n", "dir/name:1: unknown format"),
            ("0 1\n1 x\n", "dir/name:2: `1 x` is not a time in s"),
            ("0 1\n1 2 3\n", "dir/name:2: `1 2 3`"),
            ("0 1\n1 NaN\n", "dir/name:2: `1 NaN`"),
            ("0 1\n\n2 1\n1 1\n", "dir/name:4: time 1 s is not after 2 s"),
            ("0 1\n", "dir/name: 1 points"),
            ("5\n3\n", "dir/name:2: `3` is not a whole number of ms"),
            ("1.5\n", "dir/name:1: `1.5` is not a whole number"),
            ("0\n0\n", "dir/name: 1 points"),
            (
                "0 1 2 3 4 0\n",
                "dir/name:1: `0 1 2 3 4 0` is not a line of a download log",
            ),
            ("[1, 2]", "duration_ms"),
            ("[]", "dir/name: 1 points"),
            (
                r#"[{"duration_ms": -1, "bandwidth_kbps": 1}]"#,
                "dir/name: time -0.001 s",
            ),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_written_trace_is_read_back() {
        let trace = Trace::new("name", vec![0.25, 0.5, 3.0], vec![0.1, 1.0 / 3.0, 7.0]);
        let trace = trace.expect("valid");
        assert_eq!(parse(&trace.to_text(), Path::new("name")), Ok(trace));
    }
}
