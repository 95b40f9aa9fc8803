//! `cc-trainer shim` from its command line to its summary.

mod deadline;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, ChildStderr, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

fn shim(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cc-trainer"));
    command.arg("shim").args(arguments);
    command
}

/// Starts a relay, and returns the address at which it listens.
fn start(arguments: &[&str]) -> (Child, BufReader<ChildStderr>, SocketAddr) {
    let mut child = shim(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("it is text");
    let address = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    let address = address.unwrap_or_else(|| panic!("no address in: {line}"));
    (child, stderr, address)
}

#[test]
fn a_relay_delays_counts_and_ends_with_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let to = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut question = [0; 4];
        while stream.read_exact(&mut question).is_ok() {
            stream.write_all(&question).expect("it reads");
        }
    });
    let dir = tempfile::tempdir().expect("a scratch directory");
    let record = dir.path().join("recording.txt");
    let config = dir.path().join("network.toml");
    fs::write(&config, "delay_ms = 20\n[back]\ndelay_ms = 30\n").expect("a scratch file");
    let (config, path) = (config.to_str(), record.to_str());
    let (mut child, _stderr, address) = start(&[
        "--listen",
        "127.0.0.1:0",
        "--to",
        &to,
        "--config",
        config.expect("a path in UTF-8"),
        "--record",
        path.expect("a path in UTF-8"),
        "--json",
    ]);
    let mut stream = TcpStream::connect(address).expect("the relay listens");
    for question in [b"one.", b"two."] {
        let begun = Instant::now();
        stream.write_all(question).expect("sent");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, question);
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("our own child");
    assert!(deadline::wait(&mut child).success());
    let mut printed = String::new();
    let mut stdout = child.stdout.take().expect("it is piped");
    stdout.read_to_string(&mut printed).expect("it is text");
    let summary: Value = serde_json::from_str(&printed).expect("it is JSON");
    assert_eq!(summary["connections"], 1);
    for (way, ms) in [("there", 20.0), ("back", 30.0)] {
        let way = &summary[way];
        assert_eq!((&way["messages"], &way["bytes"]), (&2.into(), &8.into()));
        let median = way["delays"]["p50_ms"].as_f64().expect("a number");
        assert!((median - ms).abs() < 0.1, "{summary}");
    }
    let recording = fs::read_to_string(&record).expect("just written");
    let lines: Vec<&str> = recording.lines().skip(1).collect();
    let expected = [
        "there 20.000000",
        "back 30.000000",
        "there 20.000000",
        "back 30.000000",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn faulty_options_are_named_with_their_remedy() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let config = dir.path().join("network.toml");
    fs::write(&config, "delay_ms = 20\nloss = 7\n").expect("a scratch file");
    let config = config.to_str().expect("a path in UTF-8");
    let fine = ["--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"];
    for (more, expected) in [
        (vec![], "--preset <NAME>"),
        (
            vec!["--preset", "wifi-bad"],
            "no preset is called `wifi-bad`: there are wifi-",
        ),
        (
            vec!["--preset", "wan", "--config", config],
            "cannot be used with",
        ),
        (
            vec!["--config", config],
            "a probability from 0 to 1 is wanted here, not 7",
        ),
        (vec!["--config", "/nowhere.toml"], "reading /nowhere.toml"),
        (
            vec!["--preset", "wan", "--record", "/nowhere/x"],
            "writing /nowhere/x",
        ),
    ] {
        let arguments: Vec<&str> = fine.iter().copied().chain(more).collect();
        fails(&arguments, expected);
    }
    let unknown = [
        "--listen",
        "127.0.0.1:0",
        "--to",
        "nothing",
        "--preset",
        "wan",
    ];
    fails(&unknown, "--to nothing: give HOST:PORT");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let taken = listener.local_addr().expect("bound").to_string();
    let arguments = ["--listen", &taken, "--to", "127.0.0.1:9", "--preset", "wan"];
    fails(&arguments, "is the port free?");
}

fn fails(arguments: &[&str], expected: &str) {
    let Output { status, stderr, .. } = shim(arguments).output().expect("the binary starts");
    let error = String::from_utf8_lossy(&stderr);
    assert!(
        !status.success() && error.contains(expected),
        "{arguments:?}: {error}"
    );
}
