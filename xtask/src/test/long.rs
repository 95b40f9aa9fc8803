//! The longer proofs of `cargo xtask test --long`.

use std::{ffi::OsString, fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

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

/// The longer proofs, in the order in which they run. CONTRIBUTING.md describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Proof {
    /// The unit tests that are marked as ignored for their length.
    Ignored,
    /// The tests of the code that has unsafe parts, under AddressSanitizer.
    Sanitizer,
    /// The tests of the code that datapath and agent share, in the interpreter Miri.
    Miri,
    /// The fuzz targets.
    Fuzzing,
    /// The tests of the datapath on the oldest supported kernel, in emulation.
    OldestKernel,
}

impl Proof {
    fn run(self, limits: &Limits) -> Result<()> {
        match self {
            Self::Ignored => ignored_tests(limits),
            Self::Sanitizer => sanitized_tests(limits),
            Self::Miri => interpreted_tests(),
            Self::Fuzzing => fuzzing(limits),
            Self::OldestKernel => oldest_kernel(),
        }
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Runs proofs, those of `only` or, if it is empty, all, whether or not those before failed.
///
/// # Errors
///
/// Returns an error that names the proofs that failed.
pub(super) fn run(limits: &Limits, only: &[Proof]) -> Result<()> {
    let mut failed = Vec::new();
    let chosen = |proof: &&Proof| only.is_empty() || only.contains(proof);
    for proof in Proof::value_variants().iter().filter(chosen) {
        let name = proof.name();
        say(format_args!("long: {name}"));
        if let Err(error) = proof.run(limits) {
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
    super::test(&arguments, limits.deadline, &[])
}

/// The crates of what runs beside the kernel: all unsafe code but the trainer's.
const SANITIZED: [&str; 6] = [
    "cc-agent",
    "cc-cage",
    "cc-core",
    "cc-ebpf",
    "cc-lab",
    "cc-recording",
];

/// Runs the unit tests of the agent's crates under AddressSanitizer, which also finds leaks. (Not
/// the tests on the live kernel: they wait for what happens in time, and it makes them slow.)
///
/// Only the workspace's own code is compiled for that ([`SANITIZE`]); of dependencies the sanitizer
/// sees what they allocate and free, and what they copy.
fn sanitized_tests(limits: &Limits) -> Result<()> {
    let target_dir = workspace::target_dir().join("asan");
    let mut arguments: Vec<OsString> = vec!["--target-dir".into(), target_dir.into()];
    for package in SANITIZED {
        arguments.extend(["--package", package].map(OsString::from));
    }
    arguments.push("--lib".into());
    let wrapper = workspace::root().join(SANITIZE);
    let variables = [("RUSTC_WORKSPACE_WRAPPER", wrapper.as_os_str())];
    super::test(&arguments, limits.deadline, &variables)
}

/// Compiles a crate of the workspace with AddressSanitizer, in place of rustc.
const SANITIZE: &str = "xtask/src/test/sanitize.sh";

/// Runs the unit tests of cc-ebpf in Miri, which finds undefined behaviour. Miri comes with nightly
/// toolchains only, and is never installed by this program: without it this says how to.
fn interpreted_tests() -> Result<()> {
    let miri = || {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(workspace::root()).arg("+nightly");
        cargo.arg("miri");
        cargo
    };
    if process::capture(miri().arg("--version")).is_none() {
        say(
            "SKIPPED: there is no Miri; it comes with a nightly toolchain (rustup component add \
             --toolchain nightly miri rust-src)",
        );
        return Ok(());
    }
    process::run(
        miri()
            .args(["test", "--package", "cc-ebpf", "--lib", "--target-dir"])
            .arg(workspace::target_dir().join("miri"))
            // The models switch stacks, which Miri cannot follow.
            .args(["--", "--skip", "models"])
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            // An interpreted case takes a thousand times as long.
            .env("PROPTEST_CASES", "8"),
    )
}

/// Runs the tests of the datapath on the oldest kernel that is supported, in emulation. All tests
/// on all kernels are run by `cargo xtask kernels`.
fn oldest_kernel() -> Result<()> {
    kernels::short("datapath")
}

/// Fuzzes each target of xtask/fuzz. What an earlier run found to reach new code is kept in
/// target/fuzz/corpus, so that each run goes on from there.
fn fuzzing(limits: &Limits) -> Result<()> {
    let program = fuzz_program()?;
    let targets = process::capture(&mut Command::new(&program))
        .with_context(|| format!("{} lists no targets", program.display()))?;
    let mut failed = Vec::new();
    for line in targets.lines() {
        let target = FuzzTarget::parse(line)
            .with_context(|| format!("{} lists {line:?}", program.display()))?;
        let name = target.name;
        say(format_args!(
            "fuzzing {name} for {} s",
            limits.fuzz.as_secs()
        ));
        if let Err(error) = fuzz(&program, &target, limits.fuzz) {
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

/// A target, as a line of the program's list has it: name, longest input in bytes, most memory in
/// bytes, longest time in seconds.
struct FuzzTarget<'a> {
    name: &'a str,
    longest: u32,
    memory: u64,
    seconds: u32,
}

impl<'a> FuzzTarget<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            name: words.next()?,
            longest: words.next()?.parse().ok()?,
            memory: words.next()?.parse().ok()?,
            seconds: words.next()?.parse().ok()?,
        })
    }
}

/// Fuzzes one target for `time`. An input that takes too much memory fails in the program itself,
/// which counts what is allocated; libFuzzer stops what does not come to an end.
fn fuzz(program: &PathBuf, target: &FuzzTarget, time: Duration) -> Result<()> {
    /// What the program takes beside its target, MiB: code, libFuzzer's tables and the corpus. A
    /// quarter of an hour comes to 170 MiB.
    const OWN_MB: u64 = 512;
    let FuzzTarget {
        name,
        longest,
        memory,
        seconds,
    } = target;
    let most_mb = OWN_MB + (memory >> 20);
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
    let kept = ["corpus", "regressions"].map(|kind| {
        let inputs = workspace::root().join("xtask/fuzz").join(kind);
        inputs.join(name)
    });
    process::run(
        command()
            .arg(format!("-max_total_time={}", time.as_secs()))
            .arg(format!("-max_len={longest}"))
            .arg(format!("-timeout={seconds}"))
            .arg(format!("-rss_limit_mb={most_mb}"))
            .arg(format!("-artifact_prefix={}/{name}-", failures.display()))
            .args(["-print_final_stats=1", "-verbosity=0"])
            .arg(&corpus)
            .args(kept.into_iter().filter(|inputs| inputs.is_dir())),
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
