//! A turn of the closed loop on the live kernel, through the command line.

use std::{
    fs,
    process::{Command, ExitCode, Stdio},
};

use cc_lab::Outcome;
use serde_json::Value;

fn main() -> ExitCode {
    cc_lab::run_on_links(&[("a_turn_on_one_link", a_turn_on_one_link)])
}

const LINK: &str = r#"
[[scenario]]
name = "small"
rate_mbps = 3
delay_ms = 15
queue = { bdp = 2 }
"#;

/// A turn of some twenty seconds. With two units nothing is found, and the canary ends with its
/// time.
const LOOP: &str = r#"
turns = 1
policy = "default"
scenarios = "links.toml"
jobs = 12

[collect]
seconds = 3
runs = 1
held_out = 11

[train]
steps = 4000

[train.set]
# One flow is learned from: a tenth of the flows would be that one or none.
environment = { held_out = 0.0 }
learner = { batch = 8 }
actor = { environments = 8 }

[estimate]
horizon = 2
least_effective = 4

[canary]
block_s = 1
units = 2

[[canary.phase]]
percent = 50
flows = 6
seconds = 6

[measure]
seconds = 3
runs = 2
"#;

fn a_turn_on_one_link() -> Outcome {
    let agent = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = tempfile::tempdir().expect("a scratch directory");
    fs::write(place.path().join("links.toml"), LINK).expect("it is ours");
    fs::write(place.path().join("loop.toml"), LOOP).expect("it is ours");
    let output = Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(["loop", "--config", "loop.toml", "--out", "out", "--agent"])
        .arg(&agent)
        .current_dir(place.path())
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains("the host was too busy") {
        return Outcome::Undecided(text);
    }
    assert!(output.status.success(), "{text}");
    let state = fs::read(place.path().join("out/loop.json")).expect("it was written");
    let state: Value = serde_json::from_slice(&state).expect("JSON");
    let turn = &state["done"][1];
    assert_eq!(turn["name"], "turn-1");
    assert!(turn["collected"]["held_out"].as_u64() > Some(100), "{turn}");
    assert!(turn["collected"]["entropy"].as_f64() > Some(0.3), "{turn}");
    assert!(turn["estimated"]["clusters"].as_u64() > Some(9), "{turn}");
    let outcome = turn["decision"]["outcome"]
        .as_str()
        .expect("it was decided");
    let by_estimate = turn["tried"].is_null();
    assert!(!by_estimate || outcome == "refused", "{turn}");
    if !by_estimate {
        let phase = &turn["tried"]["phases"][0];
        assert!(phase["seconds"].as_f64() > Some(0.4), "{turn}");
    }
    assert!(
        turn["measured"]["throughput_mbps"]["mean"].as_f64() > Some(0.3),
        "{turn}"
    );
    assert!(
        turn["measured"]["beside_cubic"]["mean"].as_f64() > Some(0.0),
        "{turn}"
    );
    assert!(!place.path().join("out/loop.json.new").exists());
    Outcome::Passed
}
