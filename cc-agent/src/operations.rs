//! Tests that what operators are given agrees with the metrics: the alert rules, the dashboard, and
//! the runbook.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use cc_core::status::{
    DELAY_MS, Distribution, RecordingStatus, RemoteStatus, WindowDistributions, samples,
};

use crate::{follow, metrics, pods, ship};

const RULES: &str = "examples/prometheus/rlcc.rules.yml";
const DASHBOARD: &str = "examples/grafana/rlcc.json";
const RUNBOOK: &str = "docs/runbook.md";

/// The text of a file of the repository.
fn text_of(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A state in which there is something of everything that an agent can have.
fn complete() -> cc_core::status::Snapshot {
    let mut state = samples::busy(2);
    state.heartbeat_age_ms = Some(10.0);
    state.modes = [("decided".to_owned(), 2)].into();
    state.remote = Some(RemoteStatus::default());
    state.recording = Some(RecordingStatus::default());
    state.default = Some(state.name.clone());
    state.distributions.decision_delay = Distribution::new(&DELAY_MS);
    state.distributions.inference = Distribution::new(&DELAY_MS);
    state.distributions.windows = WindowDistributions::new();
    state
}

/// The pages of an agent, an observer and the processes beside the agent, with all that can be on
/// them.
fn pages() -> Vec<String> {
    vec![
        metrics::encode(Some(&complete())),
        metrics::page_of_an_observer(),
        follow::page(),
        ship::page(),
        pods::page(),
    ]
}

/// The names of all samples of all pages.
fn samples_of_the_pages() -> BTreeSet<String> {
    let pages = pages();
    let lines = pages.iter().flat_map(|page| page.lines());
    let lines = lines.filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}

/// The counters of all pages that should not rise, without the beginning of their names, with their
/// help texts.
fn counters_of_failures() -> BTreeMap<String, String> {
    let pages = pages();
    let lines = pages.iter().flat_map(|page| page.lines());
    let helps = lines.filter_map(|line| line.strip_prefix("# HELP rlcc_"));
    let helps = helps.filter_map(|help| help.split_once(" should not rise: "));
    helps
        .map(|(name, help)| (name.to_owned(), help.to_owned()))
        .collect()
}

/// The words of a text that begin as the names of metrics do.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with("rlcc_"));
    words.map(str::to_owned).collect()
}

/// The alerts that the rules define.
fn alerts() -> BTreeSet<String> {
    let rules = text_of(RULES);
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    alerts.map(str::to_owned).collect()
}

#[test]
fn rules_ask_for_metrics_that_exist() {
    let there = samples_of_the_pages();
    let asked = metrics_in(&text_of(RULES));
    assert!(asked.len() > 10, "{asked:?}");
    let unknown: Vec<_> = asked.difference(&there).collect();
    assert!(unknown.is_empty(), "{RULES} asks for {unknown:?}");
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let there = samples_of_the_pages();
    let dashboard: serde_json::Value =
        serde_json::from_str(&text_of(DASHBOARD)).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    assert!(panels.len() > 10);
    for panel in panels {
        let targets = panel["targets"].as_array().expect("each asks something");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let query = target["expr"].as_str().expect("a query");
            let asked = metrics_in(query);
            assert!(!asked.is_empty(), "{query}");
            let unknown: Vec<_> = asked.difference(&there).collect();
            assert!(unknown.is_empty(), "{query} asks for {unknown:?}");
        }
    }
}

#[test]
fn the_runbook_has_every_alert() {
    let runbook = text_of(RUNBOOK);
    let sections = runbook.lines().filter_map(|line| line.strip_prefix("### "));
    let sections: BTreeSet<_> = sections.map(str::to_owned).collect();
    assert_eq!(
        sections,
        alerts(),
        "sections of {RUNBOOK}, alerts of {RULES}"
    );
    for alert in alerts() {
        let link = format!("runbook: {RUNBOOK}#{}", alert.to_lowercase());
        assert!(text_of(RULES).contains(&link), "{link}");
    }
}

#[test]
fn the_runbook_has_every_counter() {
    let runbook = text_of(RUNBOOK);
    let (_, table) = runbook.split_once("## Counters").expect("it has counters");
    let rows = table
        .lines()
        .filter(|line| line.starts_with("| **`") || line.starts_with("| `"));
    // The name, and whether it is said to be one that should stay at zero.
    let listed: BTreeSet<_> = rows
        .map(|row| {
            let name = row.split('`').nth(1).unwrap_or_default();
            (name.to_owned(), row.starts_with("| **"))
        })
        .collect();
    let counters = complete().counters();
    let mut counters: BTreeSet<_> = counters
        .into_iter()
        .map(|count| (count.name, count.entry.is_some()))
        .collect();
    let failures = counters_of_failures().into_keys();
    counters.extend(failures.map(|name| (name, true)));
    assert_eq!(
        listed, counters,
        "counters of {RUNBOOK}, counters of the agent and of the processes beside it"
    );
}

#[test]
fn what_should_not_rise_says_what_follows_and_where_to_look() {
    let runbook = text_of(RUNBOOK);
    let failures = counters_of_failures();
    assert!(failures.len() > 20, "{failures:?}");
    for (name, help) in failures {
        let told = help
            .trim_end_matches('.')
            .strip_suffix(&format!(" in {RUNBOOK}"));
        let (meaning, entry) = told.and_then(|told| told.rsplit_once(' ')).expect(&name);
        assert!(meaning.len() > 50, "{name}: {help}");
        let is_heading = ["## ", "### "].iter().any(|level| {
            let heading = format!("{level}{entry}");
            runbook.lines().any(|line| line == heading)
        });
        assert!(is_heading, "{name}: {RUNBOOK} has no heading {entry}");
    }
}

#[test]
fn the_runbook_names_alerts_that_exist() {
    let runbook = text_of(RUNBOOK);
    let words = runbook.split(|c: char| !c.is_ascii_alphanumeric());
    let named: BTreeSet<_> = words
        .filter(|word| word.starts_with("Rlcc"))
        .map(str::to_owned)
        .collect();
    let unknown: Vec<_> = named.difference(&alerts()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
