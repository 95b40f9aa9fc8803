//! The longer proofs of `cargo xtask test --long`.

use std::{ffi::OsString, fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    apt, kernels,
    process::{self, say},
    workspace,
};

/// The times that bound the proofs.
pub(super) struct Limits {
    /// The time without the end of a test after which a test program is stopped.
    pub(super) deadline: Duration,
    /// The time for which each fuzz target is fuzzed.
    pub(super) fuzz: Duration,
}

/// One of the longer proofs.
struct Proof {
    name: &'static str,
    run: fn(&Limits) -> Result<()>,
}

/// All proofs, in the order in which they run. CONTRIBUTING.md describes each.
const PROOFS: [Proof; 3] = [
    Proof {
        name: "ignored tests",
        run: ignored_tests,
    },
    Proof {
        name: "fuzzing",
        run: fuzzing,
    },
    Proof {
        name: "the oldest kernel",
        run: oldest_kernel,
    },
];

/// Runs every proof, whether or not those before it failed.
///
/// # Errors
///
/// Returns an error that names the proofs that failed.
pub(super) fn run(limits: &Limits) -> Result<()> {
    let mut failed = Vec::new();
    for Proof { name, run } in PROOFS {
        say(format_args!("long: {name}"));
        if let Err(error) = run(limits) {
            say(format_args!("long: {name}: {error:#}"));
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the unit tests marked `#[ignore]`, which take too long to run with every change. (Not the
/// tests on the live kernel, which mark themselves as ignored where the host cannot run them.)
fn ignored_tests(limits: &Limits) -> Result<()> {
    let arguments = ["--lib", "--bins", "--", "--ignored"].map(OsString::from);
    super::test(&arguments, limits.deadline)
}

/// Runs the tests of the datapath on the oldest kernel that is supported, in emulation. All tests
/// on all kernels are run by `cargo xtask kernels`.
fn oldest_kernel(_: &Limits) -> Result<()> {
    kernels::short("datapath")
}

/// Fuzzes each target of xtask/fuzz. What an earlier run found to reach new code is kept in
/// target/fuzz/corpus, so that each run goes on from there.
fn fuzzing(limits: &Limits) -> Result<()> {
    let program = fuzz_program()?;
    let targets = process::capture(&mut Command::new(&program))
        .with_context(|| format!("{} lists no targets", program.display()))?;
    let mut failed = Vec::new();
    for (name, longest) in targets.lines().filter_map(|line| line.split_once(' ')) {
        say(format_args!(
            "fuzzing {name} for {} s",
            limits.fuzz.as_secs()
        ));
        if let Err(error) = fuzz(&program, name, longest, limits.fuzz) {
            say(format_args!("{error:#}"));
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!(
            "inputs that fail were found for {}: see target/fuzz/failures, and put each into \
             xtask/fuzz/regressions/TARGET when it is mended",
            failed.join(", ")
        );
    }
    Ok(())
}

/// The directory of everything that fuzzing builds and finds.
fn fuzz_dir() -> PathBuf {
    workspace::target_dir().join("fuzz")
}

/// Fuzzes one target for `time`, with inputs of at most `longest` bytes.
fn fuzz(program: &PathBuf, name: &str, longest: &str, time: Duration) -> Result<()> {
    /// An input that takes longer than this, in seconds, is a failure.
    const SLOW_S: u32 = 20;
    let corpus = fuzz_dir().join("corpus").join(name);
    let failures = fuzz_dir().join("failures");
    for dir in [&corpus, &failures] {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let command = || {
        let mut command = Command::new(program);
        command.env("CC_FUZZ_TARGET", name);
        command
    };
    process::run(command().env("CC_FUZZ_SEEDS", &corpus))?;
    let regressions = workspace::root().join("xtask/fuzz/regressions").join(name);
    process::run(
        command()
            .arg(format!("-max_total_time={}", time.as_secs()))
            .arg(format!("-max_len={longest}"))
            .arg(format!("-timeout={SLOW_S}"))
            .arg(format!("-artifact_prefix={}/{name}-", failures.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .arg(&corpus)
            .args(regressions.is_dir().then_some(regressions)),
    )
}

/// Builds the program that fuzzes, with the instrumentation that libFuzzer needs, and returns its
/// path.
///
/// A stable compiler can do this: only the sanitizers, which code without `unsafe` hardly needs,
/// take an unstable one.
fn fuzz_program() -> Result<PathBuf> {
    const INSTRUMENTATION: [&str; 5] = [
        "-Cpasses=sancov-module",
        "-Cllvm-args=-sanitizer-coverage-level=4",
        "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
        "-Cllvm-args=-sanitizer-coverage-pc-table",
        "-Cllvm-args=-sanitizer-coverage-trace-compares",
    ];
    if process::find_program("c++").is_none() {
        apt::install(&["g++"], "libFuzzer's runtime is written in C++")?;
    }
    let verbose = process::capture(Command::new("rustc").arg("-vV")).context("rustc -vV failed")?;
    let host = verbose
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("rustc -vV names no host")?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--package", "cc-fuzz", "--bin", "fuzz"])
        .args(["--features", "libfuzzer", "--profile", "fuzz"])
        // With a target of its own the flags do not apply to build scripts and procedural macros.
        .args(["--target", host, "--target-dir"])
        .arg(fuzz_dir())
        .env("CARGO_ENCODED_RUSTFLAGS", INSTRUMENTATION.join("\x1f"));
    process::run(&mut cargo).context("cannot build the fuzz targets")?;
    Ok(fuzz_dir().join(host).join("fuzz/fuzz"))
}
