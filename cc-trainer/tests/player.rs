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
use serde_json::Value;

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

/// The lines of sessions; `Err` with what is missing where the host cannot play at all.
fn sessions(output: &Output) -> Result<Vec<Value>, Outcome> {
    let error = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // Only what is not installed excuses a failure.
        let missing = error
            .lines()
            .find(|line| line.contains("cargo xtask setup --player"));
        match missing {
            Some(missing) => return Err(Outcome::Undecided(missing.to_owned())),
            None => panic!("{error}"),
        }
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let parse = |line| serde_json::from_str(line).expect("a line of JSON");
    Ok(text.lines().map(parse).collect())
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
    let lines = match sessions(&output) {
        Ok(lines) => lines,
        Err(undecided) => return undecided,
    };
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

/// dash.js selects by itself, and too slow a link shows as rebuffering.
fn the_players_own_rules_play_to_the_end() -> Outcome {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let trace = trace(dir.path(), 0.25);
    let output = play(&[
        "--traces",
        &trace,
        "--select",
        "dash:dynamic",
        "--first-chunks",
        "4",
        "--slow-start-after-idle",
        "off",
    ]);
    let lines = match sessions(&output) {
        Ok(lines) => lines,
        Err(undecided) => return undecided,
    };
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["decision_ms"], Value::Null);
    assert_eq!(lines[0]["slow_start_after_idle"], false);
    // 0.25 Mbit/s do not carry even the lowest bitrate: chunks 1 to 3 take at least 5 s each to
    // arrive, and 4 s are in the buffer before the first of them.
    let rebuffering = number(&lines[0], "rebuffer_total_s");
    assert!((1.0..60.0).contains(&rebuffering), "{rebuffering} s");
    assert!(number(&lines[0], "stalls") >= 1.0, "{}", lines[0]);
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
    ] {
        let output = play(&[&traces[..], &arguments[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
