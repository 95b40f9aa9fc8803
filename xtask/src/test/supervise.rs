//! The deadline of a test program: cargo starts each one through this command, as its runner.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt,
    io::{BufReader, Write, stdout},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio, exit},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::copy_lines;
use crate::process::{self, say};

/// The name of the command. It is hidden, as cargo calls it and users do not.
pub(crate) const NAME: &str = "supervise-test";

/// Run one test program, and stop it when none of its tests ends for a while.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds without the end of a test after which the program is stopped.
    #[arg(long, value_name = "SECONDS")]
    deadline_s: u64,

    /// The test program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    let (program, arguments) = args.program.split_first().context("no test program")?;
    let create = || {
        let mut command = Command::new(program);
        // Each example of the documentation then runs in a process of its own. rustdoc itself sets
        // this for the program with all examples, unless a runner starts it.
        command.env("RUSTDOC_DOCTEST_BIN_PATH", program);
        command.args(arguments);
        command
    };
    match supervise(create, stdout(), Duration::from_secs(args.deadline_s))? {
        Outcome::Ended(status) => {
            if let Some(signal) = status.signal() {
                bail!("{} was ended by signal {signal}", program.display());
            }
            exit(status.code().unwrap_or(1));
        }
        Outcome::Stopped(progress) => bail!(
            "{}: no test ended for {} s, so the program was stopped\n{progress}",
            program.display(),
            args.deadline_s
        ),
    }
}

/// The way in which a test program came to its end.
#[derive(Debug)]
enum Outcome {
    /// The program ended by itself.
    Ended(ExitStatus),
    /// No test ended within the deadline, and the program was killed.
    Stopped(Progress),
}

/// The tests of a program at the time when it was stopped.
#[derive(Debug, Default)]
struct Progress {
    /// The test that ended last; `None` when none had ended.
    last: Option<String>,
    /// The tests that libtest had reported as running for over 60 seconds and that had not ended.
    slow: Vec<String>,
    /// The tests that the program lists and that had not ended: those that ran, and those that were
    /// still to be started.
    unfinished: Vec<String>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.last.as_deref().unwrap_or("none");
        write!(f, "  the test that ended last: {last}")?;
        if !self.slow.is_empty() {
            write!(f, "\n  running for over 60 s: {}", self.slow.join(", "))?;
        }
        if !self.unfinished.is_empty() {
            write!(f, "\n  not ended: {}", self.unfinished.join(", "))?;
        }
        Ok(())
    }
}

/// The meaning of one line of a test program's output.
#[derive(Debug, PartialEq)]
enum Event {
    /// The test with this name ended.
    Ended(String),
    /// The test with this name has been running for long; it has not ended.
    Slow(String),
    /// A line that reports on no single test.
    Other,
}

impl Event {
    /// Reads a line as libtest and libtest-mimic write it: `test NAME ... ok`,
    /// `test NAME - should panic ... ok`, or `test NAME has been running for over 60 seconds`.
    fn read(line: &str) -> Self {
        let Some(test) = line.strip_prefix("test ") else {
            return Self::Other;
        };
        if let Some((name, _)) = test.split_once(" has been running for over ") {
            return Self::Slow(name.to_owned());
        }
        match test.split_once(" ... ") {
            Some((name, _)) => {
                let name = name.strip_suffix(" - should panic").unwrap_or(name);
                Self::Ended(name.trim_end().to_owned())
            }
            None => Self::Other,
        }
    }
}

/// Runs the program that `create` makes a call of, and copies its output to `out`.
///
/// The deadline starts again with every line that is not a report of a slow test, so with every
/// test that ends.
fn supervise(
    create: impl Fn() -> Command,
    out: impl Write + Send + 'static,
    deadline: Duration,
) -> Result<Outcome> {
    // A process that outlives the test program may keep its output open.
    const LOOK: Duration = Duration::from_millis(100);
    let mut command = create();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let output = child.stdout.take().context("the program has no output")?;
    let (sender, events) = mpsc::channel();
    let copying = thread::spawn(move || copy(BufReader::new(output), out, &sender));

    let mut progress = Progress::default();
    let mut ended = BTreeSet::new();
    let mut start = Instant::now();
    loop {
        match events.recv_timeout(LOOK) {
            Ok(Event::Ended(name)) => {
                start = Instant::now();
                progress.slow.retain(|slow| *slow != name);
                ended.insert(name.clone());
                progress.last = Some(name);
            }
            Ok(Event::Slow(name)) => progress.slow.push(name),
            Ok(Event::Other) => start = Instant::now(),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Outcome::Ended(status));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                copying
                    .join()
                    .ok()
                    .context("the output's thread panicked")??;
                break;
            }
        }
        if start.elapsed() > deadline {
            process::kill_with_descendants(child.id())?;
            child.wait()?;
            progress.unfinished = listed(create())
                .into_iter()
                .filter(|name| !ended.contains(name))
                .collect();
            return Ok(Outcome::Stopped(progress));
        }
    }
    // The output is closed, so the program is about to end.
    match process::wait_within(&mut child, deadline)? {
        Some(status) => Ok(Outcome::Ended(status)),
        None => {
            process::kill_with_descendants(child.id())?;
            child.wait()?;
            Ok(Outcome::Stopped(progress))
        }
    }
}

/// Copies the output and sends what its lines report.
fn copy(output: impl std::io::BufRead, out: impl Write, events: &Sender<Event>) -> Result<()> {
    copy_lines(output, out, |line| {
        // The receiver is dropped when the program has ended.
        events.send(Event::read(line)).ok();
    })
}

/// Asks a test program for the names of the tests that it would run; none when it does not answer.
fn listed(mut program: Command) -> Vec<String> {
    const LIMIT: Duration = Duration::from_secs(10);
    program.args(["--list", "--format", "terse"]);
    let list = |mut program: Command| -> Result<String> {
        let mut child = program.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the program has no output")?;
        let reading = thread::spawn(move || std::io::read_to_string(output));
        if process::wait_within(&mut child, LIMIT)?.is_none() {
            process::kill_with_descendants(child.id())?;
            child.wait()?;
            bail!("no list within {} s", LIMIT.as_secs());
        }
        Ok(reading
            .join()
            .ok()
            .context("the reading thread panicked")??)
    };
    match list(program) {
        Ok(list) => list
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_owned)
            .collect(),
        Err(error) => {
            say(format_args!("cannot list the program's tests: {error:#}"));
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in place of a test program: lists three tests, or ends one of them and then does
    /// what `rest` says.
    fn program(rest: &str) -> impl Fn() -> Command {
        let script = format!(
            "if [ \"$1\" = --list ]; then\n\
               printf 'a::first: test\\nb::second: test\\nc::third: test\\n'; exit\n\
             fi\n\
             echo 'running 3 tests'\n\
             echo 'test a::first ... ok'\n\
             {rest}"
        );
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh"]);
            command
        }
    }

    #[test]
    fn a_program_that_hangs_is_stopped_and_its_tests_are_named() {
        let hanging = program(
            "echo 'test b::second has been running for over 60 seconds'\n\
             sleep 1000 & sleep 1000",
        );
        let outcome = supervise(hanging, std::io::sink(), Duration::from_millis(500))
            .expect("sh can be started");
        let Outcome::Stopped(progress) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(progress.last.as_deref(), Some("a::first"));
        assert_eq!(progress.slow, ["b::second"]);
        assert_eq!(progress.unfinished, ["b::second", "c::third"]);
        let text = progress.to_string();
        assert!(text.contains("not ended: b::second, c::third"), "{text}");
    }

    #[test]
    fn tests_that_end_put_the_deadline_off() {
        let slow =
            program("for i in 1 2 3 4 5; do sleep 0.2; echo \"test t$i ... ok\"; done; exit 7");
        let outcome = supervise(slow, std::io::sink(), Duration::from_millis(800));
        match outcome.expect("sh can be started") {
            Outcome::Ended(status) => assert_eq!(status.code(), Some(7)),
            stopped => panic!("{stopped:?}"),
        }
    }

    #[test]
    fn a_process_that_keeps_the_output_open_is_not_waited_for() {
        let leaving = program("sleep 5 & exit 0");
        let start = Instant::now();
        let outcome = supervise(leaving, std::io::sink(), Duration::from_secs(1000));
        assert!(matches!(outcome, Ok(Outcome::Ended(status)) if status.success()));
        assert!(start.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn lines_are_read_as_test_programs_write_them() {
        let ended = |name: &str| Event::Ended(name.to_owned());
        assert_eq!(Event::read("test a::b ... ok"), ended("a::b"));
        assert_eq!(Event::read("test a - should panic ... ok"), ended("a"));
        assert_eq!(Event::read("test a ... ignored, no root"), ended("a"));
        assert_eq!(
            Event::read("test src/lib.rs - f (line 3) ... ok"),
            ended("src/lib.rs - f (line 3)")
        );
        assert_eq!(Event::read("test result: ok. 1 passed"), Event::Other);
        assert_eq!(Event::read("running 3 tests"), Event::Other);
    }
}
