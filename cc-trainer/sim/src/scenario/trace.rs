//! Traces of delivery opportunities, in mahimahi's format.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::MTU;

/// Bytes that one opportunity carries, including [`PACKET_OVERHEAD`] per packet.
pub const OPPORTUNITY_BYTES: u32 = 1504;

/// Bytes that mahimahi counts in addition to every IP packet: the header of its TUN device. One
/// packet of [`MTU`] bytes takes exactly one opportunity.
pub const PACKET_OVERHEAD: u32 = 4;

/// Most opportunities of a trace: two minutes at 1 Gbit/s.
pub(super) const MAX_OPPORTUNITIES: usize = 10_000_000;

/// Latest time in a trace, ms: about 25 days.
const MAX_MS: u32 = 1 << 31;

/// Times at which a link can send [`OPPORTUNITY_BYTES`]. Unused opportunities are lost. After its
/// last time the trace starts again, with the last time added to all times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Times in ms: at least one, in ascending order, the last one above 0.
    times: Vec<u32>,
}

/// An invalid trace, with the position of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Path of the file; `None` for a generated trace.
    pub path: Option<PathBuf>,
    /// Line of the fault, from 1.
    pub line: usize,
    /// Kind of the fault at that line.
    pub fault: TraceFault,
}

/// Kind of a fault in a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// A time is less than the one before it.
    #[error("{time} ms comes after {before} ms: sort the lines in ascending order")]
    Decreasing {
        /// Time of the faulty line, ms.
        time: u32,
        /// The time before it, ms.
        before: u32,
    },
    /// The trace has no line.
    #[error(
        "there is no opportunity: write at least one line, such as `1` for one packet each \
         millisecond"
    )]
    Empty,
    /// A line in the middle is blank.
    #[error("the line is blank: remove it")]
    Blank,
    /// The trace has more than ten million opportunities.
    #[error(
        "more than {MAX_OPPORTUNITIES} opportunities: shorten the trace (it loops), or give a \
         rate instead"
    )]
    Long,
    /// A line is not a whole number, or the number is too large.
    #[error(
        "`{text}` is no time: write one whole number of milliseconds per line, from 0 to \
         {MAX_MS}, and nothing else"
    )]
    NotATime {
        /// Beginning of the line, escaped.
        text: String,
    },
    /// All times are 0, so that the trace would repeat without advancing.
    #[error(
        "every opportunity is at 0 ms: the last line is the length of the trace, make it greater \
         than 0"
    )]
    Zero,
}

impl Trace {
    /// Creates a trace from times in ms, under the same conditions as for a file.
    ///
    /// # Errors
    ///
    /// Returns the first fault, whose line is the index of the time, from 1.
    pub fn from_times(times: Vec<u32>) -> Result<Self, TraceError> {
        check(&times).map_err(|(line, fault)| TraceError {
            path: None,
            line,
            fault,
        })?;
        Ok(Self { times })
    }

    /// Parses mahimahi's format: one whole number of milliseconds per line, in ascending order, the
    /// last one above 0. There may be ten million lines at most, and blank lines at the end. `path`
    /// is used in errors only.
    ///
    /// # Errors
    ///
    /// Returns the first fault with its line.
    pub fn parse(text: &str, path: &Path) -> Result<Self, TraceError> {
        let fail = |(line, fault)| TraceError {
            path: Some(path.to_owned()),
            line,
            fault,
        };
        let mut times = Vec::new();
        for (index, line) in text.trim_end().lines().enumerate() {
            if index == MAX_OPPORTUNITIES {
                return Err(fail((index + 1, TraceFault::Long)));
            }
            times.push(parse_time(line.trim()).map_err(|fault| fail((index + 1, fault)))?);
        }
        check(&times).map_err(fail)?;
        Ok(Self { times })
    }

    /// Number of opportunities in `[from, to)`.
    pub fn opportunities(&self, from: Duration, to: Duration) -> u64 {
        self.before(to).saturating_sub(self.before(from))
    }

    /// Mean rate in bit/s of IP packets of [`MTU`] bytes.
    pub fn mean_bits_per_second(&self) -> f64 {
        let seconds = f64::from(self.period_ms()) / 1e3;
        self.times.len() as f64 * f64::from(MTU) * 8.0 / seconds
    }

    /// Times of the first pass in ms: at least one, in ascending order, the last one above 0.
    pub fn times(&self) -> &[u32] {
        &self.times
    }

    /// Time after which the trace repeats, ms, which is its last time.
    pub fn period_ms(&self) -> u32 {
        self.times.last().copied().unwrap_or(1)
    }

    /// Number of opportunities before a time. Pass `k` has its opportunities at `k` periods plus
    /// each time, so that one at the very end of a pass belongs to that pass.
    fn before(&self, time: Duration) -> u64 {
        const NANOS_PER_MS: u128 = 1_000_000;
        let time = time.as_nanos();
        if time == 0 {
            return 0;
        }
        let period = u128::from(self.period_ms()) * NANOS_PER_MS;
        let passes = (time - 1) / period;
        let rest = time - passes * period;
        let last = self
            .times
            .partition_point(|&ms| u128::from(ms) * NANOS_PER_MS < rest);
        // An opportunity at 0 of the next pass is not before `time`, as `rest` is at most one
        // period.
        u64::try_from(passes)
            .unwrap_or(u64::MAX)
            .saturating_mul(self.times.len() as u64)
            + last as u64
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}:{}: {}", path.display(), self.line, self.fault),
            None => write!(f, "opportunity {}: {}", self.line, self.fault),
        }
    }
}

impl std::error::Error for TraceError {}

fn parse_time(line: &str) -> Result<u32, TraceFault> {
    if line.is_empty() {
        return Err(TraceFault::Blank);
    }
    // The standard library parses `+1`, but other readers of mahimahi's format do not.
    let digits = line.bytes().all(|byte| byte.is_ascii_digit());
    match line.parse() {
        Ok(time) if digits && time <= MAX_MS => Ok(time),
        _ => {
            let text = line
                .chars()
                .take(24)
                .flat_map(char::escape_default)
                .collect();
            Err(TraceFault::NotATime { text })
        }
    }
}

/// Checks the conditions between the times. An error has the index of the time, from 1.
fn check(times: &[u32]) -> Result<(), (usize, TraceFault)> {
    let Some(&last) = times.last() else {
        return Err((1, TraceFault::Empty));
    };
    if times.len() > MAX_OPPORTUNITIES {
        return Err((MAX_OPPORTUNITIES + 1, TraceFault::Long));
    }
    for (index, pair) in times.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return Err((
                index + 2,
                TraceFault::Decreasing {
                    time: pair[1],
                    before: pair[0],
                },
            ));
        }
    }
    if last == 0 {
        return Err((times.len(), TraceFault::Zero));
    }
    if last > MAX_MS {
        return Err((
            times.len(),
            TraceFault::NotATime {
                text: last.to_string(),
            },
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Trace, TraceError> {
        Trace::parse(text, Path::new("some.trace"))
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn each_line_is_an_opportunity() {
        let trace = parse("1\n1\n5\r\n10\n\n").expect("a good trace");
        assert_eq!(trace.times(), [1, 1, 5, 10]);
        assert_eq!(trace.period_ms(), 10);
        assert_eq!(trace.mean_bits_per_second(), 4.0 * 12_000.0 / 0.01);
    }

    #[test]
    fn a_trace_repeats_after_its_last_time() {
        let trace = Trace::from_times(vec![0, 4, 10]).expect("a good trace");
        // 0 4 10 | 10 14 20 | 20 24 30
        let count = |from, to| trace.opportunities(ms(from), ms(to));
        assert_eq!(
            [count(0, 10), count(10, 11), count(10, 20), count(20, 21)],
            [2, 2, 3, 2]
        );
        assert_eq!(count(0, 30_001), 9001);
        assert_eq!(count(7, 7), 0);
        assert_eq!(count(8, 7), 0);
        let half = Duration::from_micros(3500);
        assert_eq!(trace.opportunities(half, half + ms(1)), 1);
    }

    #[test]
    fn every_fault_names_file_line_and_remedy() {
        for (text, expected) in [
            (
                "",
                "some.trace:1: there is no opportunity: write at least one line",
            ),
            ("\n\n", "some.trace:1: there is no opportunity"),
            ("1\n\n2\n", "some.trace:2: the line is blank: remove it"),
            (
                "1\n-3\n",
                "some.trace:2: `-3` is no time: write one whole number",
            ),
            ("1\n+3\n", "some.trace:2: `+3` is no time"),
            ("x", "some.trace:1: `x` is no time"),
            ("1\n1.5\n", "some.trace:2: `1.5` is no time"),
            ("1 2\n", "some.trace:1: `1 2` is no time"),
            ("1\n2147483649\n", "some.trace:2: `2147483649` is no time"),
            (
                "99999999999999999999999999",
                "some.trace:1: `999999999999999999999999` is no time",
            ),
            ("1\n7\n3\n", "some.trace:3: 3 ms comes after 7 ms: sort"),
            (
                "0\n0\n",
                "some.trace:2: every opportunity is at 0 ms: the last line",
            ),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.starts_with(expected), "{text:?}: {message}");
        }
    }

    #[test]
    fn a_trace_that_is_too_long_is_refused() {
        let text = "1\n".repeat(MAX_OPPORTUNITIES + 1);
        let error = parse(&text).expect_err("one too many");
        assert_eq!(
            (error.line, error.fault),
            (MAX_OPPORTUNITIES + 1, TraceFault::Long)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panicking(text in "[-+0-9a-z.\n\r\t ]{0,40}|\\PC{0,40}") {
            if let Ok(trace) = parse(&text) {
                prop_assert!(trace.period_ms() > 0);
                prop_assert!(trace.times().is_sorted());
            }
        }

        #[test]
        fn a_written_trace_is_read_back(
            mut times in prop::collection::vec(0_u32..=MAX_MS, 1..50),
            last in 1..=MAX_MS,
        ) {
            times.push(last);
            times.sort_unstable();
            let text: String = times.iter().map(|time| format!("{time}\n")).collect();
            let trace = parse(&text).expect("a good trace");
            prop_assert_eq!(trace.times(), times);
        }

        #[test]
        fn opportunities_are_those_of_a_walk(
            mut times in prop::collection::vec(0_u32..20, 1..20),
            from in 0_u64..100,
            length in 0_u64..100,
        ) {
            times.sort_unstable();
            prop_assume!(times.last() > Some(&0));
            let trace = Trace::from_times(times.clone()).expect("a good trace");
            let period = u64::from(trace.period_ms());
            let walked = (0..=200 / period)
                .flat_map(|pass| times.iter().map(move |&time| pass * period + u64::from(time)))
                .filter(|time| (from..from + length).contains(time))
                .count();
            prop_assert_eq!(trace.opportunities(ms(from), ms(from + length)), walked as u64);
        }
    }
}
