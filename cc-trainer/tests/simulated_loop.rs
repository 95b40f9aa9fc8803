//! The closed loop from end to end, in the simulator, through the command line.

#[path = "deadline/mod.rs"]
mod deadline;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// Two slow links, of which flows take little time to simulate.
const LINKS: &str = r#"
[[scenario]]
name = "two"
rate_mbps = 2
delay_ms = 20
queue = { bdp = 2 }

[[scenario]]
name = "three"
rate_mbps = 3
delay_ms = 15
queue = { bdp = 2 }
"#;

/// A turn and a trial that take moments, and of which the seed determines everything: it is one
/// with which so short a training is not estimated to be worse, so that there is a canary.
const LOOP: &str = r#"
turns = 1
policy = "default"
seed = 2
on = "sim"
scenarios = "links.toml"
jobs = 1

[collect]
seconds = 5
runs = 2
held_out = 6

[train]
steps = 4000
set = { actors = 0, threads = 1, learner = { batch = 8 }, actor = { environments = 8 } }

[estimate]
horizon = 2
least_effective = 4
# The embedded policy explores more than a short turn leaves.
least_entropy = 0.2

[canary]
block_s = 1
units = 2

[[canary.phase]]
percent = 50
flows = 8
seconds = 9

[measure]
seconds = 4
runs = 2

[[trial]]
name = "rule"
policy = "rule.onnx"
"#;

#[test]
fn a_loop_that_is_killed_at_any_stage_ends_as_if_it_had_not_been() {
    let whole = Place::new();
    whole.finish(&["--config", "loop.toml"]);
    let expected = whole.reports();
    let names: Vec<_> = expected.iter().map(|report| &report["name"]).collect();
    assert_eq!(names, ["turn-0", "turn-1", "trial-rule"]);
    let turn = &expected[1];
    assert!(turn["collected"]["rows"].as_u64() > Some(100), "{turn}");
    assert!(turn["collected"]["entropy"].as_f64() > Some(0.3), "{turn}");
    let terms = turn["estimated"]["verdict"]["terms"].as_array();
    assert_eq!(terms.map(Vec::len), Some(5), "{turn}");
    let tried = &turn["tried"]["phases"][0]["status"];
    assert!(tried["metrics"][0]["units"].as_u64() > Some(1), "{turn}");
    assert!(turn["decision"]["outcome"].is_string(), "{turn}");
    assert!(turn["measured"]["power"]["mean"].as_f64() > Some(1.0));
    assert!(turn["measured"]["beside_cubic"]["mean"].as_f64() > Some(0.0));
    let table = fs::read_to_string(whole.at("out/loop.md")).expect("it was written");
    assert!(
        table.contains("| turn-1 | ") && table.contains("- **trial-rule** "),
        "{table}"
    );

    for stage in ["train", "estimate", "canary", "measure"] {
        let place = Place::new();
        place.kill_at(stage);
        let state = place.state();
        assert_eq!(state["done"].as_array().map(Vec::len), Some(1), "{state}");
        // The state has the configuration.
        place.finish(&[]);
        assert_eq!(place.reports(), expected, "killed at {stage}");
    }
}

#[test]
fn what_cannot_be_turned_is_refused_with_the_remedy() {
    let place = Place::new();
    let refused = |arguments: &[&str], expected: &[&str]| {
        let text = place.run(1, arguments);
        for expected in expected {
            assert!(text.contains(expected), "{arguments:?}: {text}");
        }
    };
    refused(&[], &["out has no loop to continue", "--config"]);
    let changed = |from: &str, to: &str| {
        let text = LOOP.replace(from, to);
        fs::write(place.at("changed.toml"), text).expect("there is space");
    };
    changed("held_out = 6", "held_out = 2");
    refused(
        &["--config", "changed.toml"],
        &["collect.held_out is 2 on each of 2 links", "fewer than 10"],
    );
    changed("policy = \"rule.onnx\"", "policy = \"none.onnx\"");
    refused(&["--config", "changed.toml"], &["none.onnx"]);
    changed("block_s = 1", "block = 1");
    refused(
        &["--config", "changed.toml"],
        &["changed.toml", "unknown field `block`"],
    );
}

/// A scratch directory with links and a configuration, in which commands are run.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a scratch directory"));
        fs::write(place.at("links.toml"), LINKS).expect("there is space");
        fs::write(place.at("loop.toml"), LOOP).expect("there is space");
        // A policy of the embedded one's form and of other origin: the embedded one itself.
        fs::write(place.at("rule.onnx"), cc_core::policy::DEFAULT_POLICY).expect("there is space");
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        let log = fs::File::create(self.at("log")).expect("there is space");
        Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
            .args(["loop", "--out", "out"])
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("the binary starts")
    }

    /// Runs the loop, checks its exit code and returns what it printed.
    fn run(&self, code: i32, arguments: &[&str]) -> String {
        let status = deadline::wait(&mut self.spawn(arguments));
        let text = fs::read_to_string(self.at("log")).expect("it is ours");
        assert_eq!(status.code(), Some(code), "{arguments:?}: {text}");
        text
    }

    fn finish(&self, arguments: &[&str]) {
        let text = self.run(0, arguments);
        assert!(text.contains("turn-1: "), "{text}");
    }

    fn state(&self) -> Value {
        read(&self.at("out/loop.json")).expect("there is always a whole one")
    }

    /// Runs the loop until its state says that this stage of the first turn is next, and kills it.
    fn kill_at(&self, stage: &str) {
        let mut child = self.spawn(&["--config", "loop.toml"]);
        loop {
            let state = read(&self.at("out/loop.json"));
            let next = state.as_ref().map(|state| &state["open"]["stage"]);
            if next.and_then(Value::as_str) == Some(stage) {
                break;
            }
            let ended = child.try_wait().expect("our own child");
            assert_eq!(ended, None, "it never came to {stage}");
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }

    /// The reports of all steps, without what differs from run to run: times, and the dates in the
    /// files of policies.
    fn reports(&self) -> Vec<Value> {
        let mut reports = self.state()["done"].as_array().cloned().unwrap_or_default();
        for report in &mut reports {
            let Value::Object(report) = report else {
                panic!("{report}")
            };
            for name in ["seconds", "candidate", "in_force"] {
                report.remove(name).expect("every report has it");
            }
        }
        reports
    }
}

fn read(path: &Path) -> Option<Value> {
    let text = fs::read(path).ok()?;
    Some(serde_json::from_slice(&text).expect("whole at any time"))
}
