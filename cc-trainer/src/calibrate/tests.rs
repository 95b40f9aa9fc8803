//! A calibration as a whole, on links whose parameters are known.

use cc_core::interface::Interface;
use cc_sim::scenario;

use super::recorded::{gather, tests::rows};
use super::*;
use crate::train::config::Config;

fn settings() -> FitSettings {
    FitSettings {
        evaluations: 24,
        ..FitSettings::default()
    }
}

/// The RTT is no whole number of packets' times. Where it is one, as at 3 Mbit/s and 40 ms, reno
/// loses a quarter less than on a link that differs by a thousandth, which no search tells apart.
fn link() -> Twin {
    Twin::plain(3.1, 43.0, 60.0)
}

/// Recordings of 12 s of each control.
fn recorded(twin: &Twin, controls: &[&str]) -> recorded::RecordedPath {
    let all = controls
        .iter()
        .zip(1..)
        .flat_map(|(control, seed)| rows(twin, control, 12, seed));
    let all: Vec<_> = all.collect();
    gather("link", &all).expect("enough").paths.remove(0)
}

#[test]
fn a_known_link_is_found_from_its_recording() {
    let simulator = Simulator::new(Interface::default());
    let path = recorded(&link(), &["cubic", "bbr", "reno"]);
    let settings = FitSettings {
        hold_out: vec!["reno".into()],
        ..settings()
    };
    let mut tried = Vec::new();
    let found = fit(&path, &simulator, &settings, |features| {
        tried.push(features.to_vec());
    });
    let found = found.expect("it can be simulated");
    assert!(found.agrees(), "{}", output::text(&found));
    assert_eq!(
        found.held_out_agree(),
        Some(true),
        "{}",
        output::text(&found)
    );
    let near = |found: f64, truth: f64, by: f64| (found / truth - 1.0).abs() < by;
    assert!(near(found.twin.rate_mbps, 3.1, 0.05), "{:?}", found.twin);
    assert!(near(found.twin.rtt_ms, 43.0, 0.08), "{:?}", found.twin);
    assert!(
        near(found.twin.queue_bytes() as f64, 23_250.0, 0.15),
        "{:?}",
        found.twin
    );
    assert_eq!(tried[0], [], "the simplest first");
    for range in &found.ranges {
        let [low, high] = range.range;
        assert!(low <= range.value && range.value <= high, "{range:?}");
    }
    let again = fit(&path, &simulator, &settings, |_| {}).expect("as before");
    assert_eq!(found, again, "a seed determines it");
}

#[test]
fn random_loss_is_found_where_it_is() {
    let simulator = Simulator::new(Interface::default());
    let lossy = Twin {
        loss: Some(0.02),
        ..link()
    };
    let path = recorded(&lossy, &["cubic", "bbr"]);
    let found = fit(&path, &simulator, &settings(), |_| {}).expect("it can be simulated");
    let loss = found.twin.loss.expect("the link has it");
    assert!((0.01..0.03).contains(&loss), "{}", output::text(&found));
}

#[test]
fn what_cannot_be_simulated_is_named() {
    let simulator = Simulator::new(Interface::default());
    let path = recorded(&link(), &["cubic"]);
    let mut foreign = path.clone();
    foreign.controls[0].subject = recorded::Subject::Control("dctcp".into());
    let error = fit(&foreign, &simulator, &settings(), |_| {}).expect_err("there is no dctcp");
    let text = error.to_string();
    assert!(
        text.contains("path link: none of its controls can be simulated (dctcp)"),
        "{text}"
    );
    let mut both = path.clone();
    both.controls.extend(foreign.controls);
    let found = fit(&both, &simulator, &settings(), |_| {}).expect("cubic can be");
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.starts_with("dctcp: cannot")),
        "{:?}",
        found.notes
    );
    let settings = FitSettings {
        hold_out: vec!["cubic".into()],
        ..settings()
    };
    let error = fit(&path, &simulator, &settings, |_| {}).expect_err("nothing is left");
    assert!(
        error
            .to_string()
            .contains("all of its controls are held out (cubic)"),
        "{error}"
    );
}

#[test]
fn what_is_written_is_read_by_evaluation_and_training() {
    let simulator = Simulator::new(Interface::default());
    let path = recorded(&link(), &["cubic"]);
    let mut found = fit(&path, &simulator, &settings(), |_| {}).expect("it can be simulated");
    found.twin.jitter_ms = Some(1.0);
    found.ranges.push(ParameterRange {
        name: "jitter_ms",
        value: 1.0,
        range: [0.5, 2.0],
    });
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("twin");
    let files = output::write(&out, &[found.clone()], &["other: why".into()], "a test");
    let files = files.expect("written");
    assert_eq!(files.len(), 3);
    let spec = files[0].to_str().expect("text").to_owned();
    let scenarios = scenario::load(&spec).expect("a scenario file");
    assert_eq!(scenarios.len(), 1);
    assert_eq!(scenarios[0].name, "link");
    let named = scenario::load(&format!("{spec}/link")).expect("a scenario of a file");
    assert_eq!(named, scenarios);
    let config = Config::load(&files[1]).expect("a training configuration");
    let text = format!("{config:?}");
    assert!(
        text.contains("jitter_ms: Some(Sometimes { share: 1.0"),
        "{text}"
    );
    let figures = std::fs::read_to_string(&files[2]).expect("written");
    let figures: serde_json::Value = serde_json::from_str(&figures).expect("JSON");
    assert_eq!(figures["twins"][0]["path"], "link");
    assert_eq!(figures["without"][0], "other: why");
}
