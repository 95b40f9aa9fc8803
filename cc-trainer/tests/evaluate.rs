//! Evaluations on the live kernel, through the command line.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Output, Stdio},
    time::SystemTime,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use cc_lab::{Outcome, eventually};

fn main() -> ExitCode {
    cc_lab::run_on_links(&[
        (
            "an_evaluation_from_end_to_end",
            an_evaluation_from_end_to_end,
        ),
        ("flows_share_a_link", flows_share_a_link),
        ("ctrl_c_keeps_completed_runs", ctrl_c_keeps_completed_runs),
        ("nothing_survives_a_kill", nothing_survives_a_kill),
        (
            "an_evaluation_ends_when_an_agent_dies",
            an_evaluation_ends_when_an_agent_dies,
        ),
        ("usage_errors_are_explained", usage_errors_are_explained),
    ])
}

/// A link of 12 Mbit/s with an RTT of 20 ms and a queue of one BDP.
const SMALL: &str = r#"
[[scenario]]
name = "small"
rate_mbps = 12
delay_ms = 10
queue = { bdp = 1 }
"#;

/// Two flows, of which the second one runs CUBIC and starts later.
const SHARED: &str = r#"
[[scenario]]
name = "shared"
rate_mbps = 12
delay_ms = 10
queue = { bdp = 1 }

[[scenario.flow]]

[[scenario.flow]]
start_s = 1
stop_s = 2.5
scheme = "cubic"
"#;

/// Measures that every run has as numbers.
const FIGURES: [&str; 7] = [
    "seconds",
    "throughput_mbps",
    "utilization",
    "p95_owd_ms",
    "mean_owd_ms",
    "mean_rtt_ms",
    "loss_rate",
];

fn an_evaluation_from_end_to_end() -> Outcome {
    let agent = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = Place::new(SMALL);
    let arguments = [
        "--schemes",
        "reno,fixed:10",
        "--seconds",
        "3",
        "--runs",
        "2",
    ];
    let mut evaluation = place.spawn(&agent, &arguments);
    let pid = evaluation.id();
    let output = evaluation.output();
    assert_eq!(agents_of(pid), [] as [String; 0], "they are gone");
    // Whether the host is quiet enough is not tested: invalid runs are marked and have figures.
    assert!(text(&output).contains("summary.json"), "{}", text(&output));
    let summary = place.summary();
    let runs = summary["runs"].as_array().expect("a list");
    let names: Vec<_> = runs
        .iter()
        .map(|run| (&run["scenario"], &run["scheme"], &run["run"]))
        .map(|(scenario, scheme, run)| format!("{scenario} {scheme} {run}"))
        .collect();
    let expected = [
        r#""small" "reno" 0"#,
        r#""small" "reno" 1"#,
        r#""small" "fixed:10" 0"#,
        r#""small" "fixed:10" 1"#,
    ];
    assert_eq!(names, expected);
    for run in runs {
        for key in FIGURES {
            assert!(run[key].is_number(), "{key} of {run}");
        }
        let number = |key: &str| run[key].as_f64().expect("a number");
        assert_eq!(run["flows"].as_array().map(Vec::len), Some(1), "{run}");
        // Bounds that hold on any host: the link's rate and the propagation delay.
        let throughput = number("throughput_mbps");
        assert!(throughput > 0.0 && throughput <= 12.0, "{run}");
        assert!(number("mean_owd_ms") > 9.9, "{run}");
        if run["scheme"] == "fixed:10" {
            // 10 segments per RTT of 20 ms are 5.8 Mbit/s, and less on a disturbed host.
            assert!(throughput < 6.0, "{run}");
            let decisions = run["decision_delay"]["decisions"].as_u64();
            assert!(decisions.is_some_and(|count| count > 5), "{run}");
        } else {
            assert_eq!(run["decision_delay"], Value::Null);
        }
    }
    assert!(summary["host"]["kernel"].is_string());
    let report = fs::read_to_string(place.out().join("report.html")).expect("a report");
    assert!(report.contains("<svg"), "it has pictures");

    // The same evaluation again keeps the files of valid runs.
    let kept = place.valid_runs();
    let again = place.evaluate(&agent, &arguments);
    let there = place.valid_runs();
    assert!(
        kept.iter().all(|run| there.contains(run)),
        "{}",
        text(&again)
    );
    // Runs of another length do not go into the same directory.
    let other = place.evaluate(
        &agent,
        &["--schemes", "reno", "--seconds", "2", "--runs", "1"],
    );
    let refusal = text(&other);
    assert!(!other.status.success(), "{refusal}");
    assert!(
        refusal.contains("made with 3 s") && refusal.contains("--out"),
        "{refusal}"
    );
    match kept.is_empty() {
        true => Outcome::Undecided("no run was valid, so there was nothing to keep".into()),
        false => Outcome::Passed,
    }
}

fn flows_share_a_link() -> Outcome {
    let place = Place::new(SHARED);
    let output = place.evaluate(
        Path::new("/unused"),
        &[
            "--schemes",
            "reno",
            "--seconds",
            "3",
            "--runs",
            "1",
            "--live",
        ],
    );
    assert!(
        text(&output).contains("shared reno #1"),
        "{}",
        text(&output)
    );
    let summary = place.summary();
    let run = &summary["runs"][0];
    let flows = run["flows"].as_array().expect("a list");
    let schemes: Vec<_> = flows.iter().map(|flow| flow["scheme"].as_str()).collect();
    assert_eq!(schemes, [Some("reno"), Some("cubic")]);
    assert_eq!(flows[1]["start_s"], 1.0);
    assert_eq!(flows[1]["stop_s"], 2.5);
    let jain = run["jain"].as_f64().expect("two flows run");
    assert!((0.5..=1.0).contains(&jain), "{jain}");
    // Of two flows one gives the other.
    let ratio = run["least_over_greatest"].as_f64().expect("two flows run");
    let expected = (1.0 + ratio).powi(2) / (2.0 * (1.0 + ratio * ratio));
    assert!((jain - expected).abs() < 1e-9, "{jain}, {ratio}");
    let file = fs::read(place.out().join("runs/shared.reno.0.json")).expect("a run");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    let series = |flow: usize, key: &str| -> Vec<Option<f64>> {
        let bins = file["series"]["flows"][flow][key].as_array();
        let bins = bins.expect("a list").iter();
        bins.map(Value::as_f64).collect()
    };
    // There is nothing of the second flow before its start.
    assert!(series(1, "cwnd")[..9].iter().all(Option::is_none));
    let idle = |rate: &Option<f64>| *rate == Some(0.0);
    assert!(series(1, "throughput_mbps")[..9].iter().all(idle));
    assert!(series(0, "cwnd").iter().any(Option::is_some));
    Outcome::Passed
}

fn ctrl_c_keeps_completed_runs() -> Outcome {
    let place = Place::new(SMALL);
    let arguments = [
        "--schemes",
        "reno",
        "--seconds",
        "2",
        "--runs",
        "50",
        "--jobs",
        "1",
    ];
    let mut evaluation = place.spawn(Path::new("/unused"), &arguments);
    eventually("a run has ended", || place.any_run());
    kill(Pid::from_raw(evaluation.id() as i32), Signal::SIGINT).expect("our child");
    let output = evaluation.output();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("ended early"), "{}", text(&output));
    let done = place.summary()["runs"].as_array().map_or(0, Vec::len);
    assert!((1..50).contains(&done), "{done}");
    assert!(place.out().join("report.html").exists());
    Outcome::Passed
}

fn nothing_survives_a_kill() -> Outcome {
    let agent = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = Place::new(SMALL);
    let arguments = ["--schemes", "fixed:10", "--seconds", "60", "--runs", "1"];
    let mut evaluation = place.spawn(&agent, &arguments);
    let pid = evaluation.id();
    eventually("the link and the agent are there", || {
        // The link's devices and namespaces are visible only through the process's descriptors.
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let targets = descriptors.filter_map(|fd| fs::read_link(fd.path()).ok());
        let tuns = targets.filter(|target| target.ends_with("tun")).count();
        (tuns == 2 && agents_of(pid).len() == 1).then_some(())
    });
    let agents = agent_processes(pid);
    assert_eq!(agents.len(), 1);
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("our child");
    let output = evaluation.output();
    assert_eq!(output.status.signal(), Some(Signal::SIGKILL as i32));
    eventually("the agent has unregistered", || {
        agents_of(pid).is_empty().then_some(())
    });
    eventually("its process is gone", || {
        (!Path::new("/proc").join(&agents[0]).exists()).then_some(())
    });
    Outcome::Passed
}

fn an_evaluation_ends_when_an_agent_dies() -> Outcome {
    let agent = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = Place::new(SMALL);
    let arguments = ["--schemes", "fixed:10", "--seconds", "600", "--runs", "1"];
    let mut evaluation = place.spawn(&agent, &arguments);
    let pid = evaluation.id();
    eventually("the agent is there", || {
        (agents_of(pid).len() == 1).then_some(())
    });
    let process = agent_processes(pid).remove(0);
    let process = process.parse().expect("a number");
    kill(Pid::from_raw(process), Signal::SIGKILL).expect("our child's child");
    let output = evaluation.output();
    let error = text(&output);
    assert!(!output.status.success(), "{error}");
    assert!(error.contains("`fixed:10` has ended (signal: 9"), "{error}");
    Outcome::Passed
}

fn usage_errors_are_explained() -> Outcome {
    let place = Place::new(SMALL);
    let broken = place.dir.path().join("broken.onnx");
    fs::write(&broken, "no policy").expect("it is ours");
    let broken = broken.display().to_string();
    let cases: [(&[&str], &str); 8] = [
        (&["--schemes", "no_such_control"], "this kernel has"),
        (&["--schemes", "rlcc", "--policy", &broken], &broken),
        (
            &["--schemes", "rlcc", "--policy", "/nowhere.onnx"],
            "/nowhere.onnx",
        ),
        (
            &["--schemes", "reno", "--scenarios", "no-such-set"],
            "no-such-set",
        ),
        (
            &["--schemes", "reno", "--seconds", "0"],
            "number of seconds",
        ),
        (
            &["--schemes", "reno", "--on", "moon"],
            "possible values: kernel",
        ),
        (&["--schemes", "fixed:3"], "/nowhere/cc-agent is not there"),
        (
            &["--schemes", "reno", "--out", "/dev/null/x"],
            "/dev/null/x",
        ),
    ];
    for (arguments, expected) in cases {
        let output = place.evaluate(Path::new("/nowhere/cc-agent"), arguments);
        let error = text(&output);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
    Outcome::Passed
}

/// A temporary directory with a scenario file and space for results.
struct Place {
    dir: tempfile::TempDir,
}

/// A running evaluation, which is killed on drop so that a failed test leaves nothing behind.
struct Evaluation(Option<Child>);

impl Place {
    fn new(scenarios: &str) -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        fs::write(dir.path().join("links.toml"), scenarios).expect("it is ours");
        Self { dir }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn evaluate(&self, agent: &Path, arguments: &[&str]) -> Output {
        self.spawn(agent, arguments).output()
    }

    /// Starts an evaluation on this place's links and into its directory, unless `arguments` name
    /// others.
    fn spawn(&self, agent: &Path, arguments: &[&str]) -> Evaluation {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cc-trainer"));
        command.arg("evaluate").arg("--agent").arg(agent);
        command.args(arguments);
        let defaults = [
            ("--scenarios", self.dir.path().join("links.toml")),
            ("--out", self.out()),
        ];
        for (option, value) in defaults {
            if !arguments.contains(&option) {
                command.arg(option).arg(value);
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Evaluation(Some(child.expect("it is built")))
    }

    fn summary(&self) -> Value {
        let text = fs::read(self.out().join("summary.json")).expect("a summary");
        serde_json::from_slice(&text).expect("JSON")
    }

    fn any_run(&self) -> Option<()> {
        let mut runs = fs::read_dir(self.out().join("runs")).ok()?.flatten();
        runs.any(|run| run.path().extension().is_some_and(|end| end == "json"))
            .then_some(())
    }

    /// Files of the valid runs, with the times at which they were written.
    fn valid_runs(&self) -> Vec<(PathBuf, SystemTime)> {
        let runs = fs::read_dir(self.out().join("runs")).expect("it was made");
        let valid = runs.flatten().filter(|run| {
            let text = fs::read(run.path()).expect("it is whole");
            let run: Value = serde_json::from_slice(&text).expect("JSON");
            run["run"]["validity"]["reasons"] == Value::Array(Vec::new())
        });
        valid
            .map(|run| {
                let written = run.metadata().and_then(|data| data.modified());
                (run.path(), written.expect("Linux has it"))
            })
            .collect()
    }
}

impl Evaluation {
    fn id(&self) -> u32 {
        self.0.as_ref().expect("until its output is taken").id()
    }

    /// Waits for the evaluation's end and returns its output.
    fn output(&mut self) -> Output {
        let child = self.0.take().expect("once");
        child.wait_with_output().expect("our child")
    }
}

impl Drop for Evaluation {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Congestion controls registered by the agents of the evaluation with this process id.
fn agents_of(pid: u32) -> Vec<String> {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let list = list.expect("every kernel with TCP has it");
    let names = list.split_whitespace().map(str::to_owned);
    names
        .filter(|name| name.starts_with(&format!("rl{pid}x")))
        .collect()
}

/// Process ids of the agents whose parent is `pid`.
fn agent_processes(pid: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("it is there").flatten();
    let names = processes.map(|process| process.file_name().to_string_lossy().into_owned());
    let marks = ["Name:\tcc-agent\n".to_owned(), format!("PPid:\t{pid}\n")];
    let is_agent = |name: &String| {
        let status = fs::read_to_string(format!("/proc/{name}/status"));
        status.is_ok_and(|status| marks.iter().all(|mark| status.contains(mark)))
    };
    names.filter(is_agent).collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}
