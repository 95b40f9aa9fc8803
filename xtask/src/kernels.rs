//! `cargo xtask kernels`: the tests on the live kernel, on other kernels.

mod archive;
mod cpio;
mod evaluate;
mod image;
mod machine;
mod modules;
mod report;

use std::{
    collections::BTreeMap,
    fmt, fs,
    num::NonZeroUsize,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::Stdio,
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use self::{
    archive::{Archive, Kernel},
    image::{Contents, Programs, TestProgram},
    machine::Logs,
    report::Report,
};
use crate::{object, prebuilt, process::say, workspace};

/// The test programs that are run unless told otherwise, in this order.
///
/// Of `faults`, the test that sets the machine's clock: hosts may forbid that.
const PROGRAMS: [&str; 9] = [
    "programs",
    "datapath",
    "peer",
    "observe",
    "recording",
    "qdiscs",
    "agent",
    "selection",
    "faults:clock_that_is_set",
];

/// What a deterministic run runs: flows over queues that drop at random.
const DETERMINISTIC: &str = "qdiscs:pie";

/// Run the tests on the live kernel on other kernels, and print the matrix.
///
/// Each kernel is booted by qemu, which emulates the machine in software: neither root nor
/// hardware virtualisation is needed. Time in the machine is virtual, so that a busy host changes
/// no result. The kernels are Debian's cloud kernels, downloaded once by a private apt to
/// target/kernels. docs/kernels.md has the matrix and the time that it takes.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// List the series of kernels in Debian's archive, and which are tested by default.
    #[arg(long)]
    list: bool,

    /// The series to test, such as 6.1,6.18; the default is the supported long-term series and the
    /// newest kernel.
    #[arg(long, value_name = "SERIES", value_delimiter = ',')]
    only: Vec<Series>,

    /// A kernel of yours instead of Debian's: its bzImage, with --modules.
    #[arg(
        long,
        value_name = "FILE",
        requires = "modules",
        conflicts_with = "only"
    )]
    kernel: Option<PathBuf>,

    /// The directory of that kernel's modules, named by its release as below /lib/modules.
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,

    /// The test programs to run, of any crate; NAME:TEXT runs those tests whose names contain TEXT.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = PROGRAMS)]
    tests: Vec<String>,

    /// Run only flows over queues that drop at random, which print all of their TCP_INFO.
    #[arg(long, conflicts_with = "tests")]
    deterministic: bool,

    /// Boot every kernel twice, and fail when anything that it reported differs.
    #[arg(long)]
    twice: bool,

    /// How many machines run at once; the default is one for each processor of this host.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Also write the matrix, with every test, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Seconds without a line of a machine's report after which it is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    deadline_s: u64,
}

/// What else is done on other kernels.
#[derive(clap::Subcommand)]
enum Action {
    /// Run `cc-trainer evaluate` in an emulated machine, under a kernel of Debian's.
    ///
    /// The machine's kernel has congestion controls and queues that this host's may lack, and its
    /// time is virtual: a busy host changes no result. Runs come one after the other, and an idle
    /// link takes no time. The machine is slow: it carries up to some 40 Mbit/s, and the summary
    /// says by its latenesses and invalid runs whether it kept up. docs/kernels.md has how exact
    /// that is.
    Evaluate(evaluate::Args),
    /// Run `cc-trainer league` in the same machine.
    League(evaluate::Args),
}

/// A series of kernels, such as 6.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series(u32, u32);

impl Series {
    /// Returns the series of a release such as `6.12.107+deb13-cloud-amd64`; `None` when it does
    /// not begin with one.
    fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(['.', '-', '+']);
        let mut number = || numbers.next()?.parse().ok();
        Some(Self(number()?, number()?))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl FromStr for Series {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('.');
        let series =
            numbers.and_then(|(major, minor)| Some(Self(major.parse().ok()?, minor.parse().ok()?)));
        series.ok_or_else(|| "expected a series such as 6.12".to_owned())
    }
}

pub(crate) fn command(args: &Args) -> Result<()> {
    match &args.action {
        Some(Action::Evaluate(args)) => return evaluate::command("evaluate", args),
        Some(Action::League(args)) => return evaluate::command("league", args),
        None => {}
    }
    if args.list {
        return list();
    }
    archive::install_tools()?;
    let kernels = kernels(args)?;
    let tests: Vec<String> = if args.deterministic {
        vec![DETERMINISTIC.to_owned()]
    } else {
        args.tests.clone()
    };
    let run = Run {
        programs: build(&tests)?,
        deadline: Duration::from_secs(args.deadline_s),
    };
    let jobs = match args.jobs {
        Some(jobs) => jobs,
        None => thread::available_parallelism()
            .context("cannot tell the number of processors: give --jobs")?,
    };
    let start = Instant::now();
    let (reports, different) = run.on_all(&kernels, jobs, args)?;
    println!("{}", report::matrix(&reports));
    say(format_args!(
        "{} kernels in {} min, at most {jobs} at once",
        reports.len(),
        start.elapsed().as_secs().div_ceil(60)
    ));
    if !different.is_empty() {
        bail!("two runs differ on {}", different.join(", "));
    }
    failed_on(&reports)
}

/// Runs one test program on the oldest kernel that is supported.
///
/// # Errors
///
/// Returns an error when the kernel cannot be provided or booted, and when a test fails.
pub(crate) fn short(program: &str) -> Result<()> {
    archive::install_tools()?;
    let kernel = oldest()?;
    let run = Run {
        programs: build(&[program.to_owned()])?,
        deadline: Duration::from_secs(900),
    };
    let (report, _) = run.on(&kernel)?;
    let reports = [report];
    println!("{}", report::matrix(&reports));
    failed_on(&reports)
}

/// Returns the oldest kernel that is supported, downloaded.
fn oldest() -> Result<Kernel> {
    let archive = Archive::open()?;
    let oldest = archive.defaults().first().copied();
    archive.fetch(oldest.context("Debian's archive has no kernel")?)
}

fn failed_on(reports: &[Report]) -> Result<()> {
    let failed = reports
        .iter()
        .filter(|report| !report.failures().is_empty());
    let failed: Vec<&str> = failed.map(|report| report.release.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed on {}", failed.join(", "));
    }
    Ok(())
}

fn list() -> Result<()> {
    println!("series  release                          default  downloaded");
    for (series, release, default, here) in Archive::open()?.list() {
        let mark = |yes: bool| if yes { "yes" } else { "" };
        let series = series.to_string();
        println!("{series:7} {release:32} {:8} {}", mark(default), mark(here));
    }
    Ok(())
}

/// Returns the kernels to test, downloaded.
fn kernels(args: &Args) -> Result<Vec<Kernel>> {
    if let (Some(image), Some(modules)) = (&args.kernel, &args.modules) {
        return Ok(vec![Kernel::given(image, modules)?]);
    }
    let archive = Archive::open()?;
    let series = match args.only.as_slice() {
        [] => archive.defaults(),
        only => only.to_vec(),
    };
    series
        .into_iter()
        .map(|series| archive.fetch(series))
        .collect()
}

/// Builds test programs, and the agent where they start it, as `cargo test` does.
fn build(tests: &[String]) -> Result<Programs> {
    let object = object::provide()?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-run", "--workspace"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let tests = tests
        .iter()
        .map(|test| test.split_once(':').unwrap_or((test, "")));
    for (name, _) in tests.clone() {
        cargo.args(["--test", name]);
    }
    let output = cargo
        .env(prebuilt::VARIABLE, &object)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!(
            "cannot build the test programs: cargo failed: {}",
            output.status
        );
    }
    let found = executables(&String::from_utf8_lossy(&output.stdout));
    let take = |name: &str| {
        let path = found.get(name).cloned();
        path.with_context(|| format!("cargo built no program {name}"))
    };
    Ok(Programs {
        agent: found.get("cc-agent").cloned(),
        tests: tests
            .map(|(name, filter)| {
                Ok(TestProgram {
                    name: name.to_owned(),
                    path: take(name)?,
                    filter: filter.to_owned(),
                })
            })
            .collect::<Result<_>>()?,
    })
}

/// Returns the programs in cargo's messages, by the names of their targets.
fn executables(messages: &str) -> BTreeMap<String, PathBuf> {
    messages
        .lines()
        .filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let program = message.get("executable")?.as_str()?;
            let name = message.get("target")?.get("name")?.as_str()?;
            Some((name.to_owned(), program.into()))
        })
        .collect()
}

/// The programs, and the time without a line of its report after which a machine is stopped.
struct Run {
    programs: Programs,
    deadline: Duration,
}

impl Run {
    /// Runs the tests on every kernel, `jobs` of them at once. Returns the reports in the order of
    /// the kernels, and the releases whose two runs differ.
    ///
    /// # Errors
    ///
    /// Returns an error when what a kernel boots cannot be written, or the file of `--json`.
    fn on_all(
        &self,
        kernels: &[Kernel],
        jobs: NonZeroUsize,
        args: &Args,
    ) -> Result<(Vec<Report>, Vec<String>)> {
        let waiting = Mutex::new(kernels.iter().enumerate());
        let done = Mutex::new(BTreeMap::new());
        let different = Mutex::new(Vec::new());
        let work = || -> Result<()> {
            loop {
                let Some((index, kernel)) = locked(&waiting).next() else {
                    return Ok(());
                };
                let (report, same) = self.tested(kernel, args.twice).inspect_err(|error| {
                    say(format_args!("{}: {error:#}", kernel.series));
                    // No further kernel is begun.
                    locked(&waiting).by_ref().for_each(drop);
                })?;
                if !same {
                    locked(&different).push(report.release.clone());
                }
                let mut done = locked(&done);
                done.insert(index, report);
                // After each kernel, so that a run that is cut short leaves what it has.
                if let Some(file) = &args.json {
                    let json = report::to_json(done.values());
                    fs::write(file, format!("{json:#}\n"))
                        .with_context(|| format!("cannot write {}", file.display()))?;
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.get()).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| match worker.join() {
                    Ok(result) => result,
                    Err(panic) => resume_unwind(panic),
                })
        })?;
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let different = different
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok((done.into_values().collect(), different))
    }

    /// Boots a kernel and runs the tests, twice if asked to. Returns what it reported the first
    /// time, and whether the second run reported the same.
    fn tested(&self, kernel: &Kernel, twice: bool) -> Result<(Report, bool)> {
        let (report, said) = self.on(kernel)?;
        if !twice {
            return Ok((report, true));
        }
        let (_, again) = self.on(kernel)?;
        let difference = first_difference(&said, &again);
        match &difference {
            None => say(format_args!(
                "{}: both runs reported the same {} lines",
                kernel.series,
                said.len()
            )),
            Some(difference) => say(format_args!(
                "{}: the runs differ: {difference}",
                kernel.series
            )),
        }
        Ok((report, difference.is_none()))
    }

    /// Boots a kernel and runs the tests. Returns what it reported, also line by line.
    ///
    /// A machine that does not come to its end is no error here, but part of the report.
    ///
    /// # Errors
    ///
    /// Returns an error when what the kernel boots cannot be written.
    fn on(&self, kernel: &Kernel) -> Result<(Report, Vec<String>)> {
        let directory = archive::directory().join("runs").join(&kernel.release);
        let contents = (&self.programs).into();
        let mut said = Vec::new();
        let booted = boot(
            kernel,
            &contents,
            &directory,
            self.deadline,
            |line, after| {
                if !line.is_empty() {
                    println!("{:>6} {after:5.0} s  {line}", kernel.series);
                }
                said.push(line.to_owned());
            },
        );
        let (mut report, logs) = booted?;
        let errors = read_lossy(&logs.errors);
        report.add_figures(&errors);
        said.extend(errors.lines().map(str::to_owned));
        show(&report, &logs);
        Ok((report, said))
    }
}

/// Boots a kernel with these files, keeps the logs in `directory`, and calls `on_line` with each
/// line of the machine's report and the time since the start in seconds.
///
/// A machine that does not come to its end is no error here, but part of the report.
///
/// # Errors
///
/// Returns an error when what the kernel boots cannot be written.
fn boot(
    kernel: &Kernel,
    contents: &Contents,
    directory: &Path,
    deadline: Duration,
    mut on_line: impl FnMut(&str, f64),
) -> Result<(Report, Logs)> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let files = directory.join("initramfs.cpio");
    image::write(contents, kernel, &files)?;
    let logs = Logs::within(directory);
    say(format_args!(
        "booting Linux {} (logs in {})",
        kernel.release,
        directory.display()
    ));
    let start = Instant::now();
    let mut report = Report::of(&kernel.release);
    let ended = machine::boot(&kernel.image, &files, &logs, deadline, |line| {
        report.add(line);
        on_line(line, start.elapsed().as_secs_f64());
    });
    report.wall = start.elapsed();
    report.trouble = ended.err().map(|error| format!("{error:#}"));
    fs::remove_file(&files).ok();
    Ok((report, logs))
}

/// Locks what workers share; a panic of one of them ends the run anyway.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints what failed, and the ends of the logs for it.
fn show(report: &Report, logs: &Logs) {
    const LINES: usize = 40;
    let failures = report.failures();
    if failures.is_empty() {
        return;
    }
    for failure in failures {
        say(format_args!("{}: {failure}", report.release));
    }
    for log in [&logs.errors, &logs.console] {
        let text = read_lossy(log);
        let lines: Vec<&str> = text.lines().collect();
        say(format_args!("the end of {}:", log.display()));
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            eprintln!("    {line}");
        }
    }
}

/// Reads a log, of which a missing one is empty.
fn read_lossy(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

/// Returns the first line that differs, for people; `None` when there is none.
fn first_difference(first: &[String], second: &[String]) -> Option<String> {
    let longest = first.len().max(second.len());
    (0..longest).find_map(|index| {
        let line = |lines: &[String]| lines.get(index).cloned().unwrap_or_default();
        let (first, second) = (line(first), line(second));
        (first != second).then(|| format!("line {}: {first:?}, then {second:?}", index + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_and_ordered_by_number() {
        assert_eq!("6.12".parse(), Ok(Series(6, 12)));
        assert!("6".parse::<Series>().is_err() && "6.x".parse::<Series>().is_err());
        assert_eq!(
            Series::of_release("6.1.0-50-cloud-amd64"),
            Some(Series(6, 1))
        );
        assert_eq!(Series::of_release("7.3-rc1"), Some(Series(7, 3)));
        assert_eq!(Series::of_release("cloud-amd64"), None);
        assert!(Series(6, 9) < Series(6, 10));
        assert_eq!(Series(7, 0).to_string(), "7.0");
    }

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"cc_core\"},\
             \"executable\":null}\n\
             {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"datapath\"},\
             \"executable\":\"/t/deps/datapath-1\"}\n\
             {\"reason\":\"build-finished\",\"success\":true}\nno JSON\n";
        let found = executables(messages);
        assert_eq!(found.len(), 1);
        assert_eq!(found["datapath"], Path::new("/t/deps/datapath-1"));
    }

    #[test]
    fn the_first_difference_is_shown() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(first_difference(&lines("a\nb"), &lines("a\nb")), None);
        let difference = first_difference(&lines("a\nb"), &lines("a\nb\nc"));
        assert_eq!(difference.as_deref(), Some("line 3: \"\", then \"c\""));
    }
}
