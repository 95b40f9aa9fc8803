//! `cc-trainer abr play`: dash.js in Chromium plays over an emulated link, and its decisions are
//! those of the server.
//!
//! Skipped, with the reason, where the host has no root, no links, no Chromium or no dash.js.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Output},
};

use cc_lab::Outcome;
use serde_json::{Value, json};

fn main() -> ExitCode {
    cc_lab::run_on_links(cc_lab::trials![
        the_players_chunks_are_what_the_server_decides,
        the_players_own_rules_play_to_the_end,
        what_is_missing_is_named,
    ])
}

fn play(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(["abr", "play"])
        .args(arguments)
        .output()
        .expect("the binary starts")
}

/// A trace of a steady rate, which a scheme can be held to.
fn trace(dir: &Path, mbps: f64) -> String {
    let path = dir.join("steady");
    fs::write(&path, format!("0 {mbps}\n100 {mbps}\n")).expect("a scratch file");
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// What is not installed, where the host cannot play at all: only that excuses a failure.
fn missing(output: &Output) -> Option<Outcome> {
    if output.status.success() {
        return None;
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let mut lines = error.lines();
    let missing = lines.find(|line| line.contains("cargo xtask setup --player"));
    let missing = missing.unwrap_or_else(|| panic!("{error}"));
    Some(Outcome::Undecided(missing.to_owned()))
}

fn parsed(lines: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("a line of JSON");
    lines.lines().map(parse).collect()
}

fn number(line: &Value, key: &str) -> f64 {
    let value = line[key].as_f64();
    value.unwrap_or_else(|| panic!("{key} in {line}"))
}

fn qualities(line: &Value) -> Vec<u64> {
    let downloads = line["downloads"].as_array().expect("chunks");
    let quality = |one: &Value| one["quality"].as_u64().expect("a number");
    downloads.iter().map(quality).collect()
}

/// A fixed scheme's choice is what arrives, at the link's pace, at both distances of the server.
fn the_players_chunks_are_what_the_server_decides() -> Outcome {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let trace = trace(dir.path(), 4.0);
    let output = play(&[
        "--traces",
        &trace,
        "--select",
        "fixed:3",
        "--first-chunks",
        "4",
        "--decision-rtt-ms",
        "0,100",
    ]);
    if let Some(missing) = missing(&output) {
        return missing;
    }
    let lines = parsed(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(lines.len(), 2);
    for line in &lines {
        // Nothing is known before the first chunk, which has the second-lowest quality.
        assert_eq!(qualities(line), [1, 3, 3, 3]);
        assert_eq!(number(line, "mbps"), 1.85);
        let downloads = line["downloads"].as_array().expect("chunks");
        for download in downloads {
            // The link's rate, in IP packets of 1500 bytes of which 1448 are payload, bounds every
            // download from below.
            let least = number(download, "bytes") * 8.0 / 4e3 * 1500.0 / 1448.0;
            let ms = number(download, "ms");
            assert!(ms > least * 0.9, "{ms} of {least} ms: {download}");
        }
        assert!(number(line, "startup_s") > 0.0);
        // The link is fast enough that both play the same chunks without a stall.
        assert_eq!(line["simulated"]["mbps"], line["mbps"]);
        assert!(
            (number(&line["simulated"], "qoe") - number(line, "qoe")).abs() < 0.05,
            "{line}"
        );
        assert_eq!(line["decision_ms"]["count"], 4);
        // Quality of experience recomputed from the line's parts.
        let qoe = number(line, "mbps") - 4.3 * number(line, "rebuffer_s") - number(line, "change");
        assert!((qoe - number(line, "qoe")).abs() < 1e-9, "{line}");
        assert!((number(line, "change") - 1.1 / 3.0).abs() < 1e-9, "{line}");
    }
    let medians: Vec<f64> = lines
        .iter()
        .map(|line| number(&line["decision_ms"], "p50"))
        .collect();
    assert!(medians[1] >= 99.0, "a round trip of 100 ms: {medians:?} ms");
    Outcome::Passed
}

/// dash.js selects by itself, and too slow a link shows as rebuffering. What has been played is not
/// played again.
fn the_players_own_rules_play_to_the_end() -> Outcome {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let trace = trace(dir.path(), 0.25);
    let out = dir.path().join("sessions.jsonl");
    let arguments = [
        "--traces",
        &trace,
        "--select",
        "dash:dynamic,dash:throughput@60",
        "--first-chunks",
        "4",
        "--slow-start-after-idle",
        "off",
        "--jobs",
        "2",
        "--out",
        out.to_str().expect("a path in UTF-8"),
    ];
    let first = play(&arguments);
    if let Some(missing) = missing(&first) {
        return missing;
    }
    let kept = fs::read_to_string(&out).expect("it was written");
    let lines = parsed(&kept);
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!(line["decision_ms"], Value::Null);
        assert_eq!(line["slow_start_after_idle"], false);
        // 0.25 Mbit/s do not carry even the lowest bitrate: chunks 1 to 3 take at least 5 s each to
        // arrive, and 4 s are in the buffer before the first of them.
        let rebuffering = number(line, "rebuffer_total_s");
        assert!((1.0..60.0).contains(&rebuffering), "{rebuffering} s");
        assert!(number(line, "stalls") >= 1.0, "{line}");
    }
    if lines.iter().any(|line| line["disturbances"] != json!([])) {
        return Outcome::Undecided("the host was too busy for the links".to_owned());
    }
    let again = play(&arguments);
    assert_eq!(again.stdout, first.stdout, "the same table");
    assert_eq!(fs::read_to_string(&out).expect("it is there"), kept);
    Outcome::Passed
}

fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let trace = trace(dir.path(), 4.0);
    let traces = ["--traces", &trace];
    for (arguments, expected) in [
        (["--browser", "/nowhere/chromium"], "/nowhere/chromium"),
        (["--select", "optimum"], "whole trace"),
        (["--select", "dash:mpc"], "dash:throughput"),
        (["--first-chunks", "50"], "there are 49 sizes"),
        (["--tcp", "vigas"], "no scheme is called `vigas`"),
        (["--video", "generated:1,2"], "no seed"),
        (["--jobs", "0"], "1..=64"),
        (
            ["--out", trace.as_str()],
            "this is no session of `abr play`",
        ),
    ] {
        let output = play(&[&traces[..], &arguments[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
