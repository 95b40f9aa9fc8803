//! `cargo xtask test`: every test of the workspace.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write, stdout},
    process::Stdio,
};

use anyhow::{Context, Result, bail};

use crate::{object, process::say, setup, workspace};

/// Run every test.
///
/// Sets up what is missing, builds the BPF object, and runs `cargo test` on the workspace. The tests on the live kernel need
/// root, BTF and network namespaces: where one is missing they are reported as ignored, with the reason.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of `cargo test`, after `--`: a name to filter by, `--package cc-ebpf`, `-- --nocapture` …
    #[arg(last = true, value_name = "ARGS")]
    cargo: Vec<OsString>,
}

pub(crate) fn command(args: &Args) -> Result<()> {
    let object = object::provide()?;
    setup::kernel_tools();

    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-fail-fast"]);
    if !names_package(&args.cargo) {
        cargo.arg("--workspace");
    }
    cargo
        .args(&args.cargo)
        .env(object::VARIABLE, &object)
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

/// How many tests ended in which way, over all test programs.
#[derive(Debug, Default, PartialEq)]
struct Totals {
    programs: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Totals {
    /// Counts a closing line of a test program, such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
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

/// Passes a test run's output on, byte for byte as it comes, and counts.
fn pass_on(mut output: impl BufRead, mut out: impl Write) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut line = Vec::new();
    loop {
        let chunk = output.fill_buf()?;
        if chunk.is_empty() {
            return Ok(totals);
        }
        // Unfinished lines too: the name of a test is shown while it runs.
        out.write_all(chunk)?;
        out.flush()?;
        for &byte in chunk {
            if byte == b'\n' {
                totals.add(&String::from_utf8_lossy(&line));
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
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s\n\n\
            test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1.20s\n";
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
