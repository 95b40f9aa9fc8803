//! What the tested kernels reported, and the matrix of it.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde_json::{Value, json};

/// The report of one kernel, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The release that was to be booted.
    pub(super) release: String,
    /// Whether its first process ran, and found that release.
    booted: bool,
    /// The congestion controls that it has.
    pub(super) congestion: Vec<String>,
    /// Virtual seconds from the start of the kernel to its first process.
    pub(super) boot_s: f64,
    /// The test programs that were begun.
    pub(super) programs: Vec<Program>,
    /// Whether it came to its end.
    pub(super) done: bool,
    /// Names and values of figures that the tests printed, in the order in which they first came.
    pub(super) figures: Vec<(String, String)>,
    /// Real time from the start of the machine to its end.
    pub(super) wall: Duration,
    /// What went wrong with the machine itself.
    pub(super) trouble: Option<String>,
}

/// One test program on one kernel.
#[derive(Debug, PartialEq)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) tests: Vec<Test>,
    /// Virtual seconds; `None` when it did not end.
    pub(super) seconds: Option<f64>,
    /// The exit code; `None` when it did not end.
    pub(super) code: Option<i32>,
    begun_s: f64,
    /// Whether the ending of the last of `tests` is still to come.
    runs: bool,
}

/// How a test ended in one kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    Passed,
    Failed,
    /// With the reason.
    Ignored(String),
}

/// One test of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) ending: Ending,
}

impl Ending {
    /// Reads an ending as libtest and libtest-mimic write it; `None` for any other text.
    fn read(text: &str) -> Option<Self> {
        match text.trim() {
            "ok" => Some(Self::Passed),
            "FAILED" => Some(Self::Failed),
            text => {
                let reason = text.strip_prefix("ignored")?.trim();
                let reason = reason.strip_prefix('(').unwrap_or(reason);
                let reason = reason.strip_suffix(')').unwrap_or(reason);
                Some(Self::Ignored(reason.to_owned()))
            }
        }
    }
}

impl Report {
    /// Creates the report of a kernel that is to be booted.
    pub(super) fn of(release: &str) -> Self {
        Self {
            release: release.to_owned(),
            ..Self::default()
        }
    }

    /// Takes in a line of the report.
    pub(super) fn add(&mut self, line: &str) {
        if let Some(note) = line.strip_prefix("@ ") {
            self.note(note);
        } else if let Some(program) = self.programs.last_mut() {
            program.add(line);
        }
    }

    /// Takes in a line of `init.sh`.
    fn note(&mut self, note: &str) {
        let mut words = note.split(' ');
        let key = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
        match (key, words.as_slice()) {
            ("kernel", [release]) => self.booted = *release == self.release,
            ("congestion", names) => {
                self.congestion = names.iter().map(ToString::to_string).collect();
                self.congestion.sort_unstable();
            }
            ("booted", [seconds]) => self.boot_s = number(seconds),
            ("begin", [name, seconds]) => self.programs.push(Program {
                name: (*name).to_owned(),
                tests: Vec::new(),
                seconds: None,
                code: None,
                begun_s: number(seconds),
                runs: false,
            }),
            ("end", [_, code, seconds]) => {
                if let Some(program) = self.programs.last_mut() {
                    program.code = code.parse().ok();
                    program.seconds = Some(number(seconds) - program.begun_s);
                }
            }
            ("done", []) => self.done = true,
            _ => {}
        }
    }

    /// Takes figures from the programs' standard error: lines `FIGURE NAME = VALUE`.
    pub(super) fn add_figures(&mut self, errors: &str) {
        for line in errors.lines() {
            let Some(figure) = line.strip_prefix("FIGURE ") else {
                continue;
            };
            let Some((name, value)) = figure.trim().split_once(" = ") else {
                continue;
            };
            match self.figures.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => value.clone_into(known),
                None => self.figures.push((name.to_owned(), value.to_owned())),
            }
        }
    }

    fn figure(&self, name: &str) -> Option<&str> {
        let mut figures = self.figures.iter();
        let found = figures.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns what failed, a line each; none when everything passed that was not ignored.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures: Vec<String> = self.trouble.iter().cloned().collect();
        if !self.booted {
            failures.push("the kernel did not boot".into());
        } else if !self.done {
            failures.push("the kernel did not come to the end of the tests".into());
        }
        for program in &self.programs {
            let before = failures.len();
            let failed = program
                .tests
                .iter()
                .filter(|test| test.ending == Ending::Failed);
            failures.extend(failed.map(|test| format!("{}: {}", program.name, test.name)));
            match program.code {
                Some(0) => {}
                Some(_) if failures.len() > before => {}
                Some(code) => failures.push(format!("{}: exit code {code}", program.name)),
                None => failures.push(format!("{}: it did not end", program.name)),
            }
        }
        failures
    }

    fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name == name)
    }

    /// Returns all results as one JSON document.
    fn to_json(&self) -> Value {
        let programs: Vec<Value> = self
            .programs
            .iter()
            .map(|program| {
                let tests: Vec<Value> = program
                    .tests
                    .iter()
                    .map(|test| match &test.ending {
                        Ending::Passed => json!({ "name": test.name, "ending": "ok" }),
                        Ending::Failed => json!({ "name": test.name, "ending": "failed" }),
                        Ending::Ignored(reason) => {
                            json!({ "name": test.name, "ending": "ignored", "reason": reason })
                        }
                    })
                    .collect();
                json!({
                    "name": program.name,
                    "code": program.code,
                    "virtual_s": program.seconds,
                    "tests": tests,
                })
            })
            .collect();
        json!({
            "release": self.release,
            "congestion_controls": self.congestion,
            "boot_virtual_s": self.boot_s,
            "wall_s": self.wall.as_secs_f64(),
            "figures": self.figures.iter().cloned().collect::<BTreeMap<_, _>>(),
            "programs": programs,
            "failures": self.failures(),
        })
    }
}

impl Program {
    /// Takes in a line as libtest and libtest-mimic write it, `test NAME ... ENDING`. What a test
    /// prints comes before its ending, which is then on a line of its own; a test without an ending
    /// has failed.
    fn add(&mut self, line: &str) {
        if let Some((name, rest)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            let ending = Ending::read(rest);
            self.runs = ending.is_none();
            self.tests.push(Test {
                name: name.trim_end().to_owned(),
                ending: ending.unwrap_or(Ending::Failed),
            });
        } else if self.runs
            && let Some(ending) = Ending::read(line)
            && let Some(test) = self.tests.last_mut()
        {
            test.ending = ending;
            self.runs = false;
        }
    }

    fn count(&self, ending: impl Fn(&Ending) -> bool) -> usize {
        self.tests
            .iter()
            .filter(|test| ending(&test.ending))
            .count()
    }

    /// Returns the cell of the matrix: `16 ok`, `15 ok 1 ignored`, `14 ok 2 FAILED`.
    fn summary(&self) -> String {
        let mut text = format!("{} ok", self.count(|ending| *ending == Ending::Passed));
        let ignored = self.count(|ending| matches!(ending, Ending::Ignored(_)));
        let failed = self.count(|ending| *ending == Ending::Failed);
        for (count, what) in [(ignored, "ignored"), (failed, "FAILED")] {
            if count > 0 {
                write!(text, " {count} {what}").expect("a string takes everything");
            }
        }
        if self.code.is_none() {
            text.push_str(" ENDLESS");
        }
        text
    }
}

/// Returns all reports as one JSON document.
pub(super) fn to_json<'a>(reports: impl Iterator<Item = &'a Report>) -> Value {
    json!({ "kernels": reports.map(Report::to_json).collect::<Vec<_>>() })
}

/// The reports side by side, a column for each kernel, as Markdown tables.
pub(super) fn matrix(reports: &[Report]) -> String {
    let mut table = Table::default();
    let every = |cell: &dyn Fn(&Report) -> String| reports.iter().map(cell).collect::<Vec<_>>();
    table.row(
        "kernel",
        every(&|report| report.release.replace("-cloud-amd64", "")),
    );
    for program in names(reports, |report| {
        report
            .programs
            .iter()
            .map(|program| program.name.clone())
            .collect()
    }) {
        let summary = |report: &Report| report.program(&program).map(Program::summary);
        table.row(
            &program,
            every(&|report| summary(report).unwrap_or_default()),
        );
    }
    let figures = names(reports, |report| {
        let names = report.figures.iter().map(|(name, _)| name);
        names.cloned().collect()
    });
    for figure in figures {
        let cell = |report: &Report| report.figure(&figure).unwrap_or_default().to_owned();
        table.row(&figure, every(&cell));
    }
    let seconds = |report: &Report| {
        let programs = report.programs.iter().filter_map(|program| program.seconds);
        format!("{:.0} s", programs.sum::<f64>())
    };
    table.row("virtual time of the tests", every(&seconds));
    table.row(
        "real time",
        every(&|report| format!("{:.0} s", report.wall.as_secs_f64())),
    );
    let mut text = table.to_string();

    text.push_str("\ncongestion controls:\n");
    for report in reports {
        let names = report.congestion.join(" ");
        writeln!(text, "  {}: {names}", report.release).expect("a string takes everything");
    }
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for report in reports {
        for program in &report.programs {
            for test in &program.tests {
                if let Ending::Ignored(reason) = &test.ending {
                    let line = format!("{}: {}: {reason}", program.name, test.name);
                    reasons.entry(line).or_default().push(&report.release);
                }
            }
        }
    }
    if !reasons.is_empty() {
        text.push_str("\nignored:\n");
        for (line, releases) in reasons {
            let on = releases.join(", ");
            writeln!(text, "  {line} ({on})").expect("a string takes everything");
        }
    }
    let failed: Vec<_> = reports
        .iter()
        .filter(|report| !report.failures().is_empty())
        .collect();
    if !failed.is_empty() {
        text.push_str("\nfailed:\n");
        for report in failed {
            for failure in report.failures() {
                writeln!(text, "  {}: {failure}", report.release).expect("a string takes all");
            }
        }
    }
    text
}

/// Returns the names that any report has, in the order in which they first occur.
fn names(reports: &[Report], of: impl Fn(&Report) -> Vec<String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in reports.iter().flat_map(of) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// A Markdown table whose columns are aligned in its source too.
#[derive(Default)]
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn row(&mut self, head: &str, cells: Vec<String>) {
        self.rows.push([vec![head.to_owned()], cells].concat());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(3)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(&widths) {
                write!(f, "| {cell:width$} ")?;
            }
            writeln!(f, "|")?;
            if index == 0 {
                for width in &widths {
                    write!(f, "|{:-<1$}", "", width + 2)?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(release: &str, text: &str) -> Report {
        let mut report = Report::of(release);
        for line in text.lines() {
            report.add(line);
        }
        report
    }

    const OLD: &str = "6.1.0-50-cloud-amd64";

    const COMPLETE: &str = "@ kernel 6.1.0-50-cloud-amd64\n\
        @ congestion reno cubic bbr\n\
        @ booted 3.50\n\
        @ begin datapath 4.00\n\
        \n\
        running 3 tests\n\
        test first   ... ok\n\
        test second  ... ignored (this kernel has no pie)\n\
        test another ... FAILED\n\
        \n\
        test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; finished in 1.00s\n\
        @ end datapath 101 14.50\n\
        @ done\n";

    #[test]
    fn a_report_is_read_as_the_guest_wrote_it() {
        let report = report(OLD, COMPLETE);
        assert!(report.booted);
        assert_eq!(report.congestion, ["bbr", "cubic", "reno"]);
        let [program] = report.programs.as_slice() else {
            panic!("{:?}", report.programs);
        };
        let endings: Vec<_> = program.tests.iter().map(|test| &test.ending).collect();
        let ignored = Ending::Ignored("this kernel has no pie".into());
        assert_eq!(endings, [&Ending::Passed, &ignored, &Ending::Failed]);
        assert_eq!((program.code, program.seconds), (Some(101), Some(10.5)));
        assert_eq!(program.summary(), "1 ok 1 ignored 1 FAILED");
        assert_eq!(report.failures(), ["datapath: another"]);
    }

    #[test]
    fn an_ending_may_follow_what_the_test_printed() {
        let begun = "@ kernel 6.1.0-50-cloud-amd64\n@ begin peer 1.00\n";
        let printed = "test first  ... what it does\n    write 10 -> 1-10\n";
        let endings = |rest: &str| {
            let report = report(OLD, &format!("{begun}{printed}{rest}"));
            let tests = report.programs[0].tests.iter();
            tests.map(|test| test.ending.clone()).collect::<Vec<_>>()
        };
        assert_eq!(endings("ok\n"), [Ending::Passed]);
        assert_eq!(endings("FAILED\nok\n"), [Ending::Failed]);
        assert_eq!(endings("@ end peer 139 2.00\n"), [Ending::Failed]);
        assert_eq!(
            endings("test second ... ignored (no TUN)\nok\n"),
            [Ending::Failed, Ending::Ignored("no TUN".into())]
        );
    }

    #[test]
    fn what_never_ended_is_a_failure() {
        assert_eq!(report(OLD, "").failures(), ["the kernel did not boot"]);
        let cut = COMPLETE
            .split("test another")
            .next()
            .expect("its beginning");
        let failures = report(OLD, cut).failures();
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(failures[0].contains("come to the end"), "{failures:?}");
        assert_eq!(failures[1], "datapath: it did not end");
        // A program that ends by a signal has no failed test.
        let killed = cut.to_owned() + "@ end datapath 139 9.00\n@ done\n";
        assert_eq!(report(OLD, &killed).failures(), ["datapath: exit code 139"]);
    }

    #[test]
    fn the_matrix_has_a_column_for_each_kernel_and_says_what_failed() {
        let mut second = report("7.3.4", "@ kernel 7.3.4\n@ congestion reno\n@ done");
        second.add_figures("noise\nFIGURE instructions of cc_init = 812\r\nFIGURE\n");
        assert_eq!(second.figures.len(), 1, "{:?}", second.figures);
        let text = matrix(&[report(OLD, COMPLETE), second]);
        let head = text.lines().next().expect("a table");
        assert!(
            head.contains("| 6.1.0-50 ") && head.contains("| 7.3.4 "),
            "{text}"
        );
        assert!(text.contains("1 ok 1 ignored 1 FAILED"), "{text}");
        assert!(
            text.contains("this kernel has no pie (6.1.0-50-cloud-amd64)"),
            "{text}"
        );
        assert!(
            text.contains("6.1.0-50-cloud-amd64: datapath: another"),
            "{text}"
        );
        let width = |line: &str| line.chars().count();
        let table: Vec<_> = text
            .lines()
            .take_while(|line| line.starts_with('|'))
            .collect();
        assert!(
            table.iter().all(|line| width(line) == width(table[0])),
            "{text}"
        );
    }
}
