//! `cc-trainer abr` from its command line to its files and answers.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn abr(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .arg("abr")
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn generated_traces_are_evaluated() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let (set, out) = (dir.path().join("set"), dir.path().join("out"));
    let draw = [
        "traces",
        "--family",
        "markov",
        "--count",
        "5",
        "--out",
        path(&set),
    ];
    assert!(abr(&draw).status.success());
    assert_eq!(fs::read_dir(&set).expect("a directory").count(), 5);
    // A set is never mixed with another one.
    let again = abr(&draw);
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        !again.status.success() && error.contains("not empty"),
        "{error}"
    );

    let schemes = "buffer-based,robust-mpc,fixed:0,optimum";
    let output = abr(&[
        "evaluate",
        "--traces",
        path(&set),
        "--schemes",
        schemes,
        "--qoe",
        "linear,log",
        "--without",
        "300,4300",
        "--out",
        path(&out),
        "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let written = fs::read(out.join("abr.json")).expect("just written");
    assert_eq!(
        serde_json::from_slice::<Value>(&written).expect("it is JSON"),
        printed
    );
    let rows = printed["rows"].as_array().expect("an array");
    assert_eq!(rows.len(), 8);
    for rows in rows.chunks(4) {
        let mean = |row: usize| rows[row]["mean"]["qoe"].as_f64().expect("a number");
        let bound = rows[3]["bound"].as_f64().expect("the optimum's bound");
        assert!((0..3).all(|row| mean(row) < mean(3)), "{rows:?}");
        assert!(mean(3) <= bound && bound < mean(3) + 0.05, "{rows:?}");
    }
    // The lowest bitrate that is left is 750 kbit/s.
    let mbps = rows[2]["mean"]["mbps"].as_f64().expect("a number");
    assert!((mbps - 0.75).abs() < 1e-9, "{mbps}");
    for name in ["cdf-linear.svg", "cdf-log.svg"] {
        let svg = fs::read_to_string(out.join(name)).expect("just written");
        assert!(
            svg.contains("robust-mpc") && svg.ends_with("</svg>\n"),
            "{name}"
        );
    }
}

#[test]
fn faulty_input_is_named_with_its_place() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let trace = dir.path().join("trace");
    fs::write(&trace, "0 1\n1 2\n1 3\n").expect("a scratch file");
    let fine = dir.path().join("fine");
    fs::write(&fine, "0 1\n9 2\n").expect("a scratch file");
    for (arguments, expected) in [
        (
            vec!["--traces", path(&trace)],
            "trace:3: time 1 s is not after 1 s",
        ),
        (vec!["--traces", "/nowhere"], "/nowhere"),
        (
            vec!["--traces", path(&fine), "--schemes", "pensieve"],
            "`pensieve` is no scheme",
        ),
        (
            vec!["--traces", path(&fine), "--qoe", "vmaf"],
            "`vmaf` is no quality",
        ),
        (
            vec!["--traces", path(&fine), "--video", path(&trace)],
            "`[[quality]]`",
        ),
        (
            vec!["--traces", path(&fine), "--without", "1"],
            "the video has no bitrate of 1 kbit/s",
        ),
        (
            vec![
                "--traces",
                path(&fine),
                "--without",
                "300,750,1200,1850,2850,4300",
            ],
            "leaves no bitrate",
        ),
        (
            vec!["--traces", path(&fine), "--rebuffer-penalty=-1"],
            "a penalty of -1",
        ),
        (
            vec![
                "--traces",
                path(&fine),
                "--video",
                "generated:1",
                "--kbps",
                "5,4",
            ],
            "ascending",
        ),
    ] {
        let output = abr(&[&["evaluate"], &arguments[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let heuristic = dir.path().join("heuristic.onnx");
    fs::write(&heuristic, cc_core::policy::heuristic_file()).expect("a scratch file");
    for arguments in [["inspect", path(&heuristic)], ["serve", path(&heuristic)]] {
        let output = match arguments {
            ["serve", file] => abr(&["serve", "--scheme", file]),
            _ => abr(&arguments),
        };
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("a congestion-control policy"), "{error}");
    }
    let output = abr(&["serve", "--scheme", "optimum"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("whole trace"),
        "{output:?}"
    );
}

/// A learned policy and a table from their training to an evaluation.
#[test]
fn what_is_learnt_is_evaluated() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let (set, run) = (dir.path().join("set"), dir.path().join("run"));
    let config = dir.path().join("config.toml");
    let table = dir.path().join("table.json");
    let count = ["traces", "--count", "6", "--out", path(&set)];
    assert!(abr(&count).status.success());
    let text = format!(
        "steps = 2000\nactors = 0\nthreads = 1\n[environment]\nkind = \"abr\"\n\
         sources = [{{ traces = {set:?} }}]\nhold_out = 3\nvalidation = {{ every = 1000 }}\n\
         [model]\nhidden = [16]\nlstm = 0\n[learner]\nbatch = 4\nunroll = 47\n\
         [actor]\nenvironments = 4\n"
    );
    fs::write(&config, text).expect("a scratch file");
    let output = Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(["train", "--config", path(&config), "--out", path(&run)])
        .output()
        .expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    let output = abr(&[
        "tabular",
        "--traces",
        path(&set),
        "--steps",
        "5000",
        "--out",
        path(&table),
    ]);
    assert!(output.status.success(), "{output:?}");

    let policy = run.join("policy.onnx");
    let output = abr(&["inspect", path(&policy)]);
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "selects bitrates of videos",
        "traces: set (4 traces)",
        "seed: 1",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let schemes = format!("{},{},bola", path(&policy), path(&table));
    for selection in ["greedy", "softmax:2"] {
        let arguments = ["evaluate", "--traces", path(&set), "--schemes", &schemes];
        let output = abr(&[&arguments[..], &["--selection", selection, "--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        let results: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        assert_eq!(results["rows"].as_array().map(Vec::len), Some(3));
        assert_eq!(results["rows"][0]["scheme"], path(&policy));
    }
    let output = abr(&[
        "evaluate",
        "--traces",
        path(&set),
        "--schemes",
        path(&policy),
        "--video",
        "generated:1",
        "--kbps",
        "300,500",
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("500 kbit/s is none of the actions"),
        "{error}"
    );
}

#[test]
fn the_server_answers_and_ends_on_a_signal() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args([
            "abr",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--scheme",
            "rate-based",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut line = String::new();
    let mut errors = BufReader::new(server.stderr.take().expect("piped"));
    errors.read_line(&mut line).expect("a line");
    let address = line
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("no address in `{line}`"));
    let body = r#"{"kbps": [300, 750], "chunk_s": 4, "buffer_s": 9, "history":
        [{"quality": 0, "bytes": 150000, "ms": 1000}]}"#;
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let length = body.len();
    write!(
        stream,
        "POST /decide HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .expect("it is open");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("text");
    assert!(reply.ends_with(r#"{"quality":1,"kbps":750.0}"#), "{reply}");

    let pid = nix::unistd::Pid::from_raw(server.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    assert!(server.wait().expect("it ended").success());
}
