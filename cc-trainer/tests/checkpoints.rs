//! Whatever ends a training run, its directory holds a whole checkpoint to continue from: a disk
//! that is full at any byte, a process killed at any moment, or before any call that changes a
//! file.

mod deadline;

use std::{
    fs,
    io::Read,
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A run that writes a checkpoint after each update, of 40 steps.
const CONFIG: &str = "
    actors = 0
    threads = 1
    checkpoint_seconds = 1e-9
    [environment]
    kind = \"cartpole\"
    [model]
    hidden = [16]
    lstm = 8
    [learner]
    batch = 4
    unroll = 10
    decay_steps = 4000
    [actor]
    environments = 3
";

/// Steps of the run whose checkpoint must survive.
const FIRST: u64 = 400;

/// A scratch directory with a finished first run.
struct Scratch {
    dir: tempfile::TempDir,
    copies: u32,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        fs::write(dir.path().join("config.toml"), CONFIG).expect("a file");
        Self { dir, copies: 0 }
    }

    /// The command that trains in `out` until `steps` are done, as arguments of another command.
    fn train(&self, out: &Path, steps: u64) -> Vec<String> {
        let config = self.dir.path().join("config.toml");
        let [config, out] = [&*config, out].map(|path| path.display().to_string());
        let steps = steps.to_string();
        [
            env!("CARGO_BIN_EXE_cc-trainer"),
            "train",
            "--config",
            &config,
            "--steps",
            &steps,
            "--out",
            &out,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// A new directory with what the first run has left.
    fn copy(&mut self) -> PathBuf {
        let first = self.dir.path().join("first");
        if self.copies == 0 {
            let (status, message) = run(&self.train(&first, FIRST));
            assert!(status.success(), "{message}");
        }
        self.copies += 1;
        let copy = self.dir.path().join(format!("copy-{}", self.copies));
        fs::create_dir(&copy).expect("a directory");
        for file in fs::read_dir(first).expect("a directory") {
            let file = file.expect("an entry");
            fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
        }
        copy
    }

    /// Continues the run in a directory until `steps` are done, and returns the steps that were
    /// done before.
    fn continued(&self, out: &Path, steps: u64) -> u64 {
        let (status, message) = run(&self.train(out, steps));
        assert!(status.success(), "{message}");
        let Some((_, rest)) = message.split_once("training goes on after ") else {
            assert!(message.contains("training begins"), "{message}");
            return 0;
        };
        let json = fs::read(out.join("train.json")).expect("written");
        let record: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        let parts = record["parts"].as_array().expect("parts of the run");
        let from = parts.last().and_then(|part| part["from_step"].as_u64());
        from.unwrap_or_else(|| panic!("no first step: {rest}"))
    }
}

/// Runs a command, and returns its status and what it wrote to standard error.
fn run(command: &[String]) -> (ExitStatus, String) {
    let (program, arguments) = command.split_first().expect("a program");
    let mut child = Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let status = deadline::wait(&mut child);
    let mut message = String::new();
    let mut stderr = child.stderr.take().expect("a pipe");
    stderr.read_to_string(&mut message).expect("text");
    (status, message)
}

/// Whether a tool works here; says that the test is skipped otherwise.
fn works(tool: &[&str]) -> bool {
    let (program, arguments) = tool.split_first().expect("a program");
    let output = Command::new(program).args(arguments).output();
    let works = output.is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED: `{}` does not work here", tool.join(" "));
    }
    works
}

/// Runs a command with a limit on the length of files. What exceeds it is an error, as on a full
/// disk, or if not `tolerated` it kills the process at that byte.
fn limited(command: Vec<String>, bytes: u64, tolerated: bool) -> (ExitStatus, String) {
    let ignore = match tolerated {
        true => "trap '' XFSZ; ",
        false => "",
    };
    let script = format!("{ignore}exec prlimit --fsize={bytes} \"$@\"");
    let mut all = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    all.extend(command);
    run(&all)
}

#[test]
fn a_disk_that_is_full_at_any_byte_leaves_a_whole_checkpoint() {
    if !works(&["prlimit", "--fsize=1000", "true"]) {
        return;
    }
    let mut scratch = Scratch::new();
    let whole = scratch.copy();
    assert_eq!(scratch.continued(&whole, 2 * FIRST), FIRST);
    let longest = ["checkpoint.bin", "train.json"]
        .map(|name| fs::metadata(whole.join(name)).expect("written").len())
        .into_iter()
        .max()
        .expect("two files");

    for eighths in 0..8 {
        let limit = (longest * eighths / 8).max(eighths);
        for tolerated in [true, false] {
            let out = scratch.copy();
            let command = scratch.train(&out, 2 * FIRST);
            let (status, message) = limited(command, limit, tolerated);
            match tolerated {
                true => {
                    assert_eq!(status.code(), Some(1), "{limit}: {message}");
                    assert!(message.contains("File too large"), "{limit}: {message}");
                    assert!(message.contains("the same command"), "{limit}: {message}");
                }
                false => assert!(status.signal().is_some(), "{limit}: {status} {message}"),
            }
            let from = scratch.continued(&out, 2 * FIRST);
            assert!((FIRST..2 * FIRST).contains(&from), "{limit}: {from}");
        }
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_checkpoint() {
    let scratch = Scratch::new();
    let out = scratch.dir.path().join("killed");
    let checkpoint = out.join("checkpoint.bin");
    let version = || {
        let metadata = fs::metadata(&checkpoint).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    };
    let mut before = 0;
    for round in 0..12 {
        let command = scratch.train(&out, 100_000_000);
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        // Killed at some part of writing some checkpoint.
        let (since, first) = (Instant::now(), version());
        while version() == first {
            assert!(since.elapsed() < Duration::from_secs(300), "no checkpoint");
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(round * 1733));
        child.kill().expect("our own child");
        child.wait().expect("our own child");

        let from = scratch.continued(&out, 1);
        assert!(from > before, "{from} after {before}");
        before = from;
    }
}

#[test]
fn a_kill_before_any_change_of_a_file_leaves_a_whole_checkpoint() {
    if !works(&["strace", "-f", "-o", "/dev/null", "true"]) {
        return;
    }
    let mut scratch = Scratch::new();
    let mut kills = 0;
    // Those after a question mark do not exist on every architecture.
    for call in [
        "write",
        "fsync",
        "fdatasync",
        "?rename,?renameat,?renameat2",
        "?unlink,?unlinkat",
    ] {
        for number in 1.. {
            let out = scratch.copy();
            let inject = format!("inject={call}:signal=KILL:when={number}");
            let trace = format!("trace={call}");
            let strace = ["strace", "-f", "-qq", "-o", "/dev/null"];
            let options = ["-e", &trace, "-e", &inject];
            let mut command: Vec<_> = strace
                .iter()
                .chain(&options)
                .map(|&s| s.to_owned())
                .collect();
            command.extend(scratch.train(&out, FIRST + 80));
            let (status, message) = run(&command);
            let from = scratch.continued(&out, FIRST + 80);
            assert!(
                (FIRST..=FIRST + 80).contains(&from),
                "{call} {number}: {from}"
            );
            if status.success() {
                // There were fewer calls.
                assert_eq!(from, FIRST + 80);
                break;
            }
            assert!(
                status.signal().is_some(),
                "{call} {number}: {status} {message}"
            );
            kills += 1;
            assert!(kills < 300, "the calls have no end");
        }
    }
    // Three checkpoints, with their records: flushed, renamed, and flushed again.
    assert!(kills > 3 * 2 * 3, "{kills}");
}
