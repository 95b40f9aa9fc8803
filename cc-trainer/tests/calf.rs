//! Trained policies in real time on the live kernel, through the command line.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Output, Stdio},
};

use cc_lab::Outcome;
use serde_json::Value;

fn main() -> ExitCode {
    cc_lab::run_on_links(&[(
        "a_policy_decides_from_a_server_behind_a_network",
        a_policy_decides_from_a_server_behind_a_network,
    )])
}

/// A regime that is hardly trained, and flows of two seconds.
const STUDY: &str = r#"
title = "Flows"
seeds = [1]
reward = "ln power"
evaluation = { episodes = 1 }

[matrix]
clean = "near"
degraded = "far"
logarithmic = true
condition = [
    { name = "near" },
    { name = "far", network = { delay_ms = [60, 60], loss = [0.05, 0.05] } },
]

[base]
steps = 2000

[base.environment]
kind = "network"
episode_s = 2
delay = { kind = "network", medium = "stream", patience_ms = 500 }

[[base.environment.links]]
random = { rate_mbps = [2, 5], delay_ms = [5, 20], queue_bdp = [2, 4] }

[base.model]
hidden = [8]
lstm = 0

[base.learner]
batch = 4
unroll = 10

[base.actor]
environments = 4
fit_steps = 1000

[[variant]]
name = "baseline"
"#;

fn a_policy_decides_from_a_server_behind_a_network() -> Outcome {
    let agent = match cc_lab::agent_beside(env!("CARGO_BIN_EXE_cc-trainer")) {
        Ok(agent) => agent,
        Err(reason) => return Outcome::Undecided(reason),
    };
    let place = tempfile::tempdir().expect("a scratch directory");
    fs::write(place.path().join("study.toml"), STUDY).expect("it is ours");
    let study = ["--config", "study.toml", "--out", "out"];
    let trained = calf(place.path(), &study);
    assert!(trained.status.success(), "{}", text(&trained));
    let agent = agent.to_str().expect("a path in UTF-8");
    let live = ["--seconds", "1", "--jobs", "2", "--agent", agent];
    let arguments = [&["live"][..], &study, &live].concat();
    let output = calf(place.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output));
    let results = fs::read(place.path().join("out/calf-live.json")).expect("it was written");
    let results: Value = serde_json::from_slice(&results).expect("JSON");
    let cells = results["cells"].as_array().expect("a list");
    let names: Vec<_> = cells.iter().map(|cell| &cell["condition"]).collect();
    assert_eq!(names, ["near", "far"]);
    for cell in cells {
        // Whether the host is quiet enough is not tested.
        for mode in ["simulated", "real"] {
            assert_eq!(cell[mode]["episodes"], 5, "{cell}");
            let decisions = cell[mode]["steps"].as_f64();
            assert!(decisions.is_some_and(|count| count > 5.0), "{cell}");
            let score = cell[mode]["mean"].as_f64();
            assert!(score.is_some_and(f64::is_finite), "{cell}");
        }
        let relay = &cell["relay"];
        if cell["condition"] == "near" {
            assert!(relay.is_null(), "{cell}");
        } else {
            // A message that is lost comes later, and a question takes 120 ms at least: not every
            // window has one.
            assert!(relay["there"]["messages"].as_u64() > Some(10), "{cell}");
            let decisions = |cell: &Value| cell["real"]["steps"].as_f64().expect("a number");
            assert!(decisions(cell) < decisions(&cells[0]), "{cells:?}");
        }
    }
    Outcome::Passed
}

fn calf(place: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .arg("calf")
        .args(arguments)
        .current_dir(place)
        .stdin(Stdio::null())
        .output()
        .expect("the binary starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}
