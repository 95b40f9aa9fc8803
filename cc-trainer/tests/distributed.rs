//! A learner and workers as processes of their own, which are killed and started again.

mod deadline;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A run of 40 steps per update that writes a checkpoint after each of them.
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

/// A process that is killed when it is dropped.
struct Process {
    child: Child,
    messages: BufReader<ChildStderr>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let messages = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, messages }
    }

    /// Reads messages up to one that contains `expected`.
    fn wait_for(&mut self, expected: &str) {
        let mut before = String::new();
        let mut line = String::new();
        while !line.contains(expected) {
            before.push_str(&line);
            line.clear();
            let read = self.messages.read_line(&mut line).expect("text");
            assert!(read > 0, "it ends without `{expected}`: {before}");
        }
    }

    /// Asks it to end, as a service manager or a cluster does.
    fn terminate(&mut self) {
        let id = Pid::from_raw(self.child.id() as i32);
        kill(id, Signal::SIGTERM).expect("the process is there");
    }

    /// Waits for its end, and returns what it has written since.
    fn end(mut self) -> (ExitStatus, String) {
        let status = deadline::wait(&mut self.child);
        let mut rest = String::new();
        self.messages.read_to_string(&mut rest).expect("text");
        (status, rest)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn record(out: &Path) -> serde_json::Value {
    let json = fs::read(out.join("train.json")).expect("written");
    serde_json::from_slice(&json).expect("JSON")
}

fn steps(out: &Path) -> u64 {
    record(out)["last"]["steps"].as_u64().expect("steps")
}

/// Waits until the run has learnt from this many steps.
fn wait_for_steps(out: &Path, least: u64) {
    let since = Instant::now();
    while steps(out) < least {
        assert!(
            since.elapsed() < Duration::from_secs(300),
            "nothing is learnt"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// An address that is free now, for a learner that is to come back to it.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound")
}

#[test]
fn a_run_survives_killed_workers_and_a_killed_learner() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let [config, token, out] =
        ["config.toml", "token", "run"].map(|name| scratch.path().join(name));
    fs::write(&config, CONFIG).expect("a file");
    fs::write(&token, "secret\n").expect("a file");
    let text = |path: &Path| path.display().to_string();
    let (config, token, to) = (text(&config), text(&token), text(&out));
    let address = free_address().to_string();
    let url = format!("grpc://{address}");
    let learner = |steps: u64| {
        let steps = steps.to_string();
        let mut learner = Process::start(&[
            "train",
            "--config",
            &config,
            "--steps",
            &steps,
            "--out",
            &to,
            "--listen",
            &address,
            "--token-file",
            &token,
        ]);
        learner.wait_for("listening for workers of run");
        learner
    };
    let act = ["act", "--learner", &url, "--token-file", &token];
    let worker = || {
        let mut worker = Process::start(&[&act[..], &["--actors", "1"]].concat());
        worker.wait_for("1 actors act for run");
        worker
    };

    let first = learner(1 << 40);
    let lasting = worker();
    for _ in 0..2 {
        let killed = worker();
        wait_for_steps(&out, steps(&out) + 200);
        drop(killed);
    }
    wait_for_steps(&out, steps(&out) + 200);
    let run = record(&out)["run"].clone();
    drop(first);

    let before = steps(&out);
    let second = learner(before + 2_000);
    let (status, rest) = second.end();
    assert!(status.success(), "{rest}");
    let (status, rest) = lasting.end();
    assert!(status.success(), "{rest}");
    let record = record(&out);
    assert_eq!((&record["finish"], &record["run"]), (&"steps".into(), &run));
    assert!(record["last"]["steps"].as_u64() >= Some(before + 2_000));
    // The command's bound holds although the configuration has none.
    assert_eq!(record["config"]["actor"]["max_lag"], 100);
}

#[test]
fn a_run_survives_killed_replicas_and_a_killed_learner() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let [config, out] = ["config.toml", "run"].map(|name| scratch.path().join(name));
    fs::write(&config, CONFIG).expect("a file");
    let text = |path: &Path| path.display().to_string();
    let (config, to) = (text(&config), text(&out));
    let address = free_address().to_string();
    let url = format!("grpc://{address}");
    let learner = |steps: u64| {
        let steps = steps.to_string();
        let mut learner = Process::start(&[
            "train",
            "--config",
            &config,
            "--steps",
            &steps,
            "--actors",
            "1",
            "--out",
            &to,
            "--listen",
            &address,
            "--learners",
            "2",
        ]);
        learner.wait_for("listening for workers of run");
        learner
    };
    let replica = || {
        let mut replica = Process::start(&["learn", "--learner", &url, "--actors", "1"]);
        replica.wait_for("1 actors act for run");
        replica
    };

    let first = learner(1 << 40);
    for _ in 0..2 {
        let killed = replica();
        wait_for_steps(&out, steps(&out) + 400);
        drop(killed);
    }
    let lasting = replica();
    wait_for_steps(&out, steps(&out) + 400);
    drop(first);

    let before = steps(&out);
    let second = learner(before + 4_000);
    let (status, rest) = second.end();
    assert!(status.success(), "{rest}");
    let (status, rest) = lasting.end();
    assert!(status.success(), "{rest}");
    let record = record(&out);
    assert_eq!(record["finish"], "steps");
    // An update of both is of twice the batch.
    let of = |name| record["last"][name].as_u64().expect("a number");
    assert!(of("steps") > 40 * of("updates"), "{}", record["last"]);
}

/// As a cluster ends a process: nothing is lost, and nothing is a failure.
#[test]
fn learner_worker_and_replica_end_well_when_they_are_terminated() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let [config, out] = ["config.toml", "run"].map(|name| scratch.path().join(name));
    // No checkpoint but at the beginning and at the end.
    let text = CONFIG.replace("checkpoint_seconds = 1e-9", "checkpoint_seconds = 1e9");
    fs::write(&config, text).expect("a file");
    let [config, to] = [&config, &out].map(|path| path.display().to_string());
    let address = free_address().to_string();
    let url = format!("grpc://{address}");
    let mut learner = Process::start(&[
        "train",
        "--config",
        &config,
        "--steps",
        "1000000000",
        "--actors",
        "1",
        "--out",
        &to,
        "--listen",
        &address,
        "--learners",
        "2",
    ]);
    learner.wait_for("listening for workers of run");
    let mut others = ["act", "learn"].map(|command| {
        let mut other = Process::start(&[command, "--learner", &url, "--actors", "1"]);
        other.wait_for("1 actors act for run");
        other
    });
    // The first line of progress comes after the first update.
    learner.wait_for("steps/s");
    for other in &mut others {
        other.terminate();
    }
    for other in others {
        let (status, rest) = other.end();
        assert!(status.success(), "{rest}");
    }
    learner.terminate();
    let (status, rest) = learner.end();
    assert!(status.success(), "{rest}");
    assert!(steps(&out) > 0 && record(&out)["finish"] == "open");
}

#[test]
fn what_cannot_be_is_refused_with_the_remedy() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let config = scratch.path().join("config.toml");
    fs::write(&config, CONFIG).expect("a file");
    let empty = scratch.path().join("empty");
    fs::write(&empty, "\n").expect("a file");
    let [config, empty, out] =
        [&config, &empty, &scratch.path().join("run")].map(|path| path.display().to_string());
    let train = ["train", "--config", &config, "--out", &out, "--listen"];
    for (arguments, expected) in [
        (
            [&train[..], &["192.0.2.1:7555"]].concat(),
            "can be reached from other hosts",
        ),
        (
            [&train[..], &["127.0.0.1:0", "--tls-cert", &config]].concat(),
            "give --client-ca, --tls-cert, --tls-key",
        ),
        (
            [&train[..], &["127.0.0.1:0", "--token-file", &empty]].concat(),
            "expected a secret, found none",
        ),
        (
            [&train[..], &["127.0.0.1:0", "--metrics", "192.0.2.1:9466"]].concat(),
            "(--expose-metrics)",
        ),
        (
            vec!["act", "--learner", "grpc://192.0.2.1:7555"],
            "is another host",
        ),
        (
            vec!["act", "--learner", "grpcs://127.0.0.1:7555"],
            "needs the authorities' certificates",
        ),
        (
            vec!["act", "--learner", "127.0.0.1:7555"],
            "grpc://HOST:PORT",
        ),
    ] {
        let (status, message) = Process::start(&arguments).end();
        assert!(!status.success() && message.contains(expected), "{message}");
    }
}
