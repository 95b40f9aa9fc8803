//! Traces of throughput over time, and the formats that they come in.

mod format;

pub use format::{Format, parse};

use std::path::PathBuf;

/// Greatest throughput of a point, Mbit/s.
const MAX_MBPS: f64 = 1e6;

/// Least mean throughput of a trace, Mbit/s: below it a chunk would take days.
const MIN_MEAN_MBPS: f64 = 1e-3;

/// Latest time in a trace, s: some 115 days.
const MAX_S: f64 = 1e7;

/// Throughput over time, as Pensieve's simulator reads it.
///
/// The throughput of a point holds from the point before it until its own time; that of the first
/// point is therefore unused. After the last point the trace repeats from time 0, so that the
/// throughput of the second point then holds from 0 on, even if the first time is later.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    name: String,
    times: Vec<f64>,
    mbps: Vec<f64>,
}

/// An invalid trace, with the position of the fault.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}{fault}", place(path.as_deref(), *line))]
pub struct TraceError {
    /// The file; `None` for a trace that is not from a file.
    pub path: Option<PathBuf>,
    /// Line of the fault, from 1; 0 when it concerns the whole trace.
    pub line: usize,
    /// Kind of the fault there.
    pub fault: TraceFault,
}

fn place(path: Option<&std::path::Path>, line: usize) -> String {
    match (path, line) {
        (Some(path), 0) => format!("{}: ", path.display()),
        (Some(path), line) => format!("{}:{line}: ", path.display()),
        (None, 0) => String::new(),
        (None, line) => format!("line {line}: "),
    }
}

/// Kind of a fault in a trace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// There are fewer than two points.
    #[error(
        "{0} points: give at least two, since a throughput holds from one time until the next; is \
         this a trace?"
    )]
    Short(usize),
    /// A line is not what its format has there.
    #[error("`{text}` is not {expected}; mend or remove the line")]
    Line {
        /// Beginning of the line that is wrong.
        text: String,
        /// What the format has there.
        expected: &'static str,
    },
    /// A time is not after the one before it.
    #[error("time {time} s is not after {before} s: sort the lines by time, each time once")]
    Order {
        /// Time of the line, s.
        time: f64,
        /// Time of the line before, s.
        before: f64,
    },
    /// A time is negative, too late or no number.
    #[error("time {0} s: give a time from 0 to {MAX_S}; subtract the first time from all")]
    Time(f64),
    /// A throughput is negative, too large or no number.
    #[error("throughput {0} Mbit/s: give a number from 0 to {MAX_MBPS}, in Mbit/s")]
    Throughput(f64),
    /// Hardly anything could ever be downloaded.
    #[error(
        "mean throughput {0} Mbit/s: at least {MIN_MEAN_MBPS} is needed for a chunk to arrive; is \
         the unit Mbit/s?"
    )]
    Dead(f64),
    /// The content fits none of the known formats.
    #[error(
        "unknown format: a trace has lines `TIME_S MBPS`, one whole number of ms per line \
         (mahimahi), six columns of a download log, or JSON with duration_ms and bandwidth_kbps"
    )]
    Unknown,
    /// The text is no JSON of the expected form.
    #[error("{0}; expected [{{\"duration_ms\": …, \"bandwidth_kbps\": …}}, …]")]
    Json(String),
}

impl Trace {
    /// Creates a trace from times in s and throughputs in Mbit/s, one for each time.
    ///
    /// # Errors
    ///
    /// Returns the first fault; its line is the number of the point, from 1.
    ///
    /// # Panics
    ///
    /// Panics when the lengths of the two lists differ.
    pub fn new(name: &str, times: Vec<f64>, mbps: Vec<f64>) -> Result<Self, TraceError> {
        assert_eq!(times.len(), mbps.len(), "a throughput for each time");
        let lines: Vec<usize> = (1..=times.len()).collect();
        Self::of_lines(name, times, mbps, &lines).map_err(|(line, fault)| TraceError {
            path: None,
            line,
            fault,
        })
    }

    /// The same for points that stand on given lines of a file.
    fn of_lines(
        name: &str,
        times: Vec<f64>,
        mbps: Vec<f64>,
        lines: &[usize],
    ) -> Result<Self, (usize, TraceFault)> {
        let points = times.iter().zip(&mbps).zip(lines);
        let mut before = None;
        for ((&time, &rate), &line) in points {
            if !(0.0..=MAX_S).contains(&time) {
                return Err((line, TraceFault::Time(time)));
            }
            if !(0.0..=MAX_MBPS).contains(&rate) {
                return Err((line, TraceFault::Throughput(rate)));
            }
            if let Some(before) = before.filter(|&before| time <= before) {
                return Err((line, TraceFault::Order { time, before }));
            }
            before = Some(time);
        }
        if times.len() < 2 {
            return Err((0, TraceFault::Short(times.len())));
        }
        let trace = Self {
            name: name.to_owned(),
            times,
            mbps,
        };
        let mean = trace.mean_mbps();
        match mean >= MIN_MEAN_MBPS {
            true => Ok(trace),
            false => Err((0, TraceFault::Dead(mean))),
        }
    }

    /// Name of the trace, which is its file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Times of the points, s, ascending.
    pub fn times(&self) -> &[f64] {
        &self.times
    }

    /// Throughputs of the points, Mbit/s. Each holds from the point before it until its own time.
    pub fn mbps(&self) -> &[f64] {
        &self.mbps
    }

    /// Time after which the trace repeats, s, which is its last time.
    pub fn period_s(&self) -> f64 {
        self.times.last().copied().unwrap_or(0.0)
    }

    /// Mean throughput from the first point to the last one, Mbit/s.
    pub fn mean_mbps(&self) -> f64 {
        let steps = self.times.windows(2).zip(&self.mbps[1..]);
        let sum: f64 = steps.map(|(ends, mbps)| (ends[1] - ends[0]) * mbps).sum();
        sum / (self.period_s() - self.times[0])
    }

    /// The same trace with all throughputs multiplied by a factor.
    ///
    /// # Panics
    ///
    /// Panics when the factor is not a finite number above 0.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        assert!(factor.is_finite() && factor > 0.0, "factor {factor}");
        Self {
            name: self.name.clone(),
            times: self.times.clone(),
            mbps: self.mbps.iter().map(|mbps| mbps * factor).collect(),
        }
    }

    /// The same trace with all times multiplied by a factor, so that throughput changes more slowly
    /// with a factor above 1.
    ///
    /// # Panics
    ///
    /// Panics when the factor is not a finite number above 0.
    #[must_use]
    pub fn stretched(&self, factor: f64) -> Self {
        assert!(factor.is_finite() && factor > 0.0, "factor {factor}");
        Self {
            name: self.name.clone(),
            times: self.times.iter().map(|time| time * factor).collect(),
            mbps: self.mbps.clone(),
        }
    }

    /// The trace as text of Pensieve's format: a line `TIME_S MBPS` for each point.
    pub fn to_text(&self) -> String {
        let points = self.times.iter().zip(&self.mbps);
        points
            .map(|(time, mbps)| format!("{time}\t{mbps}\n"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_point_and_the_remedy() {
        let fault = |times: &[f64], mbps: &[f64]| {
            let error = Trace::new("t", times.to_vec(), mbps.to_vec()).expect_err("a fault");
            (error.line, error.fault)
        };
        assert_eq!(fault(&[0.0], &[1.0]), (0, TraceFault::Short(1)));
        assert_eq!(
            fault(&[0.0, 1.0, 1.0], &[1.0; 3]),
            (
                3,
                TraceFault::Order {
                    time: 1.0,
                    before: 1.0
                }
            )
        );
        assert_eq!(fault(&[0.0, -1.0], &[1.0; 2]), (2, TraceFault::Time(-1.0)));
        assert_eq!(
            fault(&[0.0, 1.0], &[1.0, -2.0]),
            (2, TraceFault::Throughput(-2.0))
        );
        assert!(matches!(
            fault(&[0.0, f64::NAN], &[1.0; 2]),
            (2, TraceFault::Time(_))
        ));
        // The first throughput is never used.
        assert_eq!(fault(&[0.0, 1.0], &[5.0, 0.0]), (0, TraceFault::Dead(0.0)));
    }

    #[test]
    fn the_mean_weighs_each_throughput_by_its_time() {
        let trace = Trace::new("t", vec![1.0, 2.0, 5.0], vec![9.0, 4.0, 1.0]).expect("valid");
        assert_eq!(trace.mean_mbps(), 7.0 / 4.0);
        assert_eq!(trace.period_s(), 5.0);
        assert_eq!(trace.to_text(), "1\t9\n2\t4\n5\t1\n");
        let faster = trace.scaled(3.0);
        assert_eq!(faster.to_text(), "1\t27\n2\t12\n5\t3\n");
        let slower = trace.stretched(2.0);
        assert_eq!(slower.to_text(), "2\t9\n4\t4\n10\t1\n");
        assert_eq!(slower.mean_mbps(), trace.mean_mbps());
        assert_eq!(trace.stretched(1.0), trace);
        assert_eq!((faster.name(), trace.scaled(1.0)), ("t", trace));
    }
}
