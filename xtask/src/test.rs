//! `cargo xtask test`: every test of the workspace.

mod long;
pub(crate) mod supervise;

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Write, stdout},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{object, prebuilt, process::say, setup, workspace};

/// Run every test of the workspace.
///
/// Sets up what is missing, builds the BPF object, compares it with the committed one, and runs
/// `cargo test` on the workspace. The
/// tests on the live kernel need root, BTF and network namespaces: where one is missing they are
/// reported as ignored, with the reason. A test program in which no test ends for --deadline-s is
/// stopped and counts as failed; the tests that had not ended are listed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds without the end of a test after which a test program is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    deadline_s: u64,

    /// Afterwards run the longer proofs: the unit tests marked as ignored, the tests of unsafe code
    /// under AddressSanitizer and in Miri, fuzzing of everything that reads bytes from outside
    /// (records, policies, what their processes send, scenarios, traces, requests, recordings), and
    /// the tests of the datapath on the oldest kernel that is supported, in emulation.
    #[arg(long)]
    long: bool,

    /// Run only this one of the longer proofs, and not the ordinary tests; may be repeated.
    #[arg(long, value_name = "PROOF", value_enum)]
    only: Vec<long::Proof>,

    /// Seconds of fuzzing for each target; 900 is a thorough run.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    fuzz_s: u64,

    /// Arguments of `cargo test`, after `--`: a name to filter by, `--package cc-ebpf`,
    /// `-- --nocapture` …
    #[arg(last = true, value_name = "ARGS")]
    cargo: Vec<OsString>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    setup::kernel_tools();
    let deadline = Duration::from_secs(args.deadline_s);
    if args.only.is_empty() {
        test(&args.cargo, deadline, &[])?;
    }
    if args.long || !args.only.is_empty() {
        let fuzz = Duration::from_secs(args.fuzz_s);
        long::run(&long::Limits { deadline, fuzz }, &args.only)?;
    }
    Ok(())
}

/// Runs `cargo test` with `arguments`, on the whole workspace unless these choose packages, and
/// with these environment variables.
///
/// # Errors
///
/// Returns an error when the BPF object cannot be provided, when cargo cannot be started, and when
/// the tests do not compile or do not all pass.
fn test(arguments: &[OsString], deadline: Duration, variables: &[(&str, &OsStr)]) -> Result<()> {
    let object = object::provide_for_tests()?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast", "--config"]);
    cargo.arg(runner(deadline)?);
    if !names_package(arguments) {
        cargo.arg("--workspace");
    }
    cargo
        .args(arguments)
        .env(prebuilt::VARIABLE, &object)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cannot start cargo test")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let totals = pass_on(BufReader::new(output), stdout())?;
    let status = child.wait()?;

    say(&totals);
    if !status.success() {
        bail!("cargo test failed: {status}");
    }
    Ok(())
}

/// Returns the setting of cargo by which it starts every test program through
/// [`supervise`]. A runner that the user has configured for this host's target takes precedence.
fn runner(deadline: Duration) -> Result<String> {
    let program = env::current_exe().context("cannot find this program's own file")?;
    let program = program
        .to_str()
        .with_context(|| format!("the path {} is not UTF-8", program.display()))?;
    let deadline = deadline.as_secs().to_string();
    let words = [program, supervise::NAME, "--deadline-s", &deadline, "--"];
    // An array of strings is written the same way in JSON and in TOML.
    let words = serde_json::to_string(&words)?;
    Ok(format!("target.'cfg(all())'.runner = {words}"))
}

/// The number of tests that ended in each way, over all test programs.
#[derive(Debug, Default, PartialEq)]
struct Totals {
    programs: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Totals {
    /// Counts a closing line of a test program, such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        self.programs += 1;
        let (_, counts) = result.split_once(". ").unwrap_or_default();
        for (number, outcome) in counts.split("; ").filter_map(|part| part.split_once(' ')) {
            let number: u32 = number.parse().unwrap_or_default();
            match outcome {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            programs,
            passed,
            failed,
            ignored,
        } = self;
        write!(
            f,
            "{passed} passed, {failed} failed, {ignored} ignored in {programs} test programs"
        )
    }
}

/// Copies the output of a test run, byte for byte as it comes, and counts its tests.
fn pass_on(output: impl BufRead, out: impl Write) -> Result<Totals> {
    let mut totals = Totals::default();
    copy_lines(output, out, |line| totals.add(line))?;
    Ok(totals)
}

/// Copies `output` to `out` byte for byte as it comes, and calls `on_line` with each finished line.
///
/// # Errors
///
/// Returns an error when reading or writing fails.
fn copy_lines(
    mut output: impl BufRead,
    mut out: impl Write,
    mut on_line: impl FnMut(&str),
) -> Result<()> {
    let mut line = Vec::new();
    loop {
        let chunk = output.fill_buf()?;
        if chunk.is_empty() {
            return Ok(());
        }
        // Unfinished lines too: the name of a test is shown while it runs.
        out.write_all(chunk)?;
        out.flush()?;
        for &byte in chunk {
            if byte == b'\n' {
                on_line(&String::from_utf8_lossy(&line));
                line.clear();
            } else {
                line.push(byte);
            }
        }
        let length = chunk.len();
        output.consume(length);
    }
}

/// Whether the arguments that are cargo's own (those before `--`) choose packages.
fn names_package(args: &[OsString]) -> bool {
    args.iter()
        .filter_map(|arg| arg.to_str())
        .take_while(|arg| *arg != "--")
        .any(|arg| arg.starts_with("-p") || arg == "--package" || arg.starts_with("--package="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_summed() {
        let output = "running 4 tests\ntest a ... ok\n\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\n\
            test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out\n";
        let expected = Totals {
            programs: 2,
            passed: 13,
            failed: 2,
            ignored: 1,
        };
        // A tiny buffer, so that lines arrive in pieces.
        let pieces = BufReader::with_capacity(7, output.as_bytes());
        let mut shown = Vec::new();
        let totals = pass_on(pieces, &mut shown).expect("reading memory");
        assert_eq!(shown, output.as_bytes());
        assert_eq!(totals, expected);
    }

    #[test]
    fn a_package_replaces_the_workspace() {
        let args = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(names_package(&args(&["-p", "cc-ebpf"])));
        assert!(names_package(&args(&["--package=cc-ebpf", "name"])));
        assert!(!names_package(&args(&["name", "--", "-p"])));
        assert!(!names_package(&[]));
    }
}
