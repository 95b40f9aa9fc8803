//! Searches in the simulator, from the families to the links.

use std::sync::atomic::Ordering;

use cc_core::policy::PolicySpec;
use cc_sim::scenario::{self, splits};

use super::{field::GENERATION, *};
use crate::evaluate::{Controls, parse_schemes};

/// A search for the links on which a fixed window of ten segments loses most.
fn search_of(families: &[Family], links: usize, dir: &tempfile::TempDir) -> Search {
    let policy = PolicySpec::Fixed(10);
    let parsed = |list| parse_schemes(list, &policy, None, Controls::SIMULATOR).expect("known");
    Search {
        policy: parsed("rlcc").remove(0),
        against: parsed("cubic"),
        families: families.to_vec(),
        links,
        time: None,
        worst: 5,
        runs: 2,
        seed: 1,
        // Links of hundreds of Mbit/s take long.
        seconds: Some(Duration::from_secs(1)),
        jobs: Jobs::Count(2),
        dir: dir.path().to_owned(),
        fresh: false,
        command: "test".into(),
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

fn searched(settings: &Search) -> Outcome {
    search(settings, &AtomicBool::new(false), |_| {}).expect("it needs nothing")
}

fn without_date(outcome: &Outcome) -> Report {
    let mut report = outcome.report.clone();
    report.settings.date.clear();
    report
}

#[test]
fn a_small_window_loses_where_the_bandwidth_delay_product_is_large() {
    let dir = scratch();
    let outcome = searched(&search_of(&[Family::Broad], 48, &dir));
    let Report {
        worst,
        tried,
        is_complete,
        ..
    } = &outcome.report;
    assert_eq!((*tried, *is_complete, worst.len()), (48, true, 5));
    for found in worst {
        let packets = found.rate_mbps * found.rtt_ms / 12.0;
        assert!(packets > 50.0, "{found:?}");
        assert!(found.again.is_some_and(|times| times > 1.5), "{found:?}");
        assert_eq!((found.rival.as_str(), found.merits.len()), ("cubic", 2));
    }
    assert!(worst.is_sorted_by(|a, b| a.again >= b.again));

    // The file of the links is read as it was written, and none is of a test set.
    let text = links_text(&outcome).expect("no traces");
    let read = scenario::parse(&text, "worst.toml".as_ref()).expect("valid");
    assert_eq!(read, outcome.scenarios);
    assert!(read.iter().all(|link| splits::members(link).is_empty()));

    let json = serde_json::to_string(&outcome.report).expect("finite");
    let again: Report = serde_json::from_str(&json).expect("just written");
    assert_eq!(again.sha256, outcome.report.sha256);
    let table = table::markdown(&outcome.report, None);
    assert!(table.contains("| broad | 5 |"), "{table}");
    assert!(table::text(&outcome.report, None).contains(&worst[4].name));
}

#[test]
fn neither_the_number_of_jobs_nor_the_disk_changes_what_is_found() {
    let (one, other) = (scratch(), scratch());
    let families = [Family::Broad, Family::Steps];
    let first = searched(&search_of(&families, 24, &one));
    let jobs = Jobs::Count(5);
    let second = searched(&Search {
        jobs,
        ..search_of(&families, 24, &other)
    });
    assert_eq!(without_date(&first), without_date(&second));
    let runs = std::fs::read(one.path().join("runs.jsonl")).expect("they are there");
    let again = searched(&search_of(&families, 24, &one));
    assert_eq!(without_date(&first), without_date(&again));
    let kept = std::fs::read(one.path().join("runs.jsonl")).expect("they are there");
    assert_eq!(runs, kept, "no run was made again");
}

#[test]
fn a_search_that_was_ended_early_has_a_result_and_continues() {
    let dir = scratch();
    let settings = search_of(&[Family::Broad], 2 * GENERATION, &dir);
    let cancel = AtomicBool::new(false);
    let early = search(&settings, &cancel, |_| {
        cancel.store(true, Ordering::Relaxed);
    });
    let early = early.expect("what it has");
    assert_eq!(
        (early.report.is_complete, early.report.tried),
        (false, GENERATION)
    );
    assert!(!early.scenarios.is_empty());
    assert!(early.report.worst.iter().all(|found| found.again.is_none()));
    let text = links_text(&early).expect("no traces");
    assert!(scenario::parse(&text, "worst.toml".as_ref()).is_ok());

    let continued = searched(&settings);
    let whole = searched(&search_of(&[Family::Broad], 2 * GENERATION, &scratch()));
    assert_eq!(without_date(&continued).worst, without_date(&whole).worst);
    assert!(continued.report.is_complete);
}

#[test]
fn a_check_where_the_links_were_found_confirms_them() {
    let dir = scratch();
    let outcome = searched(&search_of(&[Family::Broad], 30, &dir));
    let write = |outcome: &Outcome| {
        let text = links_text(outcome).expect("no traces");
        std::fs::write(links_path(dir.path()), text).expect("it is ours");
        let json = serde_json::to_vec(&outcome.report).expect("finite");
        std::fs::write(report_path(dir.path()), json).expect("it is ours");
    };
    let asked = Check {
        dir: dir.path().to_owned(),
        on: Platform::Sim,
        policy: None,
        sample: None,
        most_mbps: None,
        seconds: None,
        runs: 1,
        jobs: Jobs::Count(2),
        agent: None,
        command: "test".into(),
    };
    let checked = |asked: &Check| {
        let outcome = check(asked, &AtomicBool::new(false), |_| {});
        outcome
            .map(|(_, checked)| checked)
            .map_err(|error| error.to_string())
    };
    assert!(checked(&asked).is_err_and(|error| error.contains("search.json")));
    write(&outcome);
    let all = checked(&asked).expect("it is complete");
    assert_eq!(all.links.len(), 5);
    assert!(
        all.links.iter().all(|link| link.verdict == Verdict::Real),
        "{all:?}"
    );
    let table = table::markdown(&outcome.report, Some(&all));
    assert!(
        table.contains("of 5 links judged, 5 losses are real"),
        "{table}"
    );
    assert!(table.contains("| 5 ÷ 5 |"), "{table}");

    let refused = |change: &dyn Fn(&mut Check)| {
        let mut changed = asked.clone();
        change(&mut changed);
        checked(&changed).expect_err("it is refused")
    };
    let slow = refused(&|check| check.most_mbps = Some(0.1));
    assert!(slow.contains("--most-mbps"), "{slow}");
    let other = refused(&|check| check.policy = Some(PolicySpec::Default));
    assert!(other.contains("not the one that was searched"), "{other}");

    let mut early = outcome.clone();
    early.report.is_complete = false;
    write(&early);
    let unfinished = checked(&asked).expect_err("it is refused");
    assert!(unfinished.contains("ended early"), "{unfinished}");
    let mut foreign = outcome.clone();
    foreign.scenarios.swap(0, 1);
    write(&foreign);
    let foreign = checked(&asked).expect_err("it is refused");
    assert!(foreign.contains("does not hold the links"), "{foreign}");
}

#[test]
fn a_search_of_nothing_or_against_nobody_is_refused() {
    let dir = scratch();
    let plain = || search_of(&[Family::Broad], 10, &dir);
    let refused = |settings: Search| {
        let outcome = search(&settings, &AtomicBool::new(false), |_| {});
        outcome.expect_err("it is refused").to_string()
    };
    let against = Vec::new();
    let error = refused(Search { against, ..plain() });
    assert!(error.contains("--against cubic,bbr"), "{error}");
    let families = Vec::new();
    let error = refused(Search {
        families,
        ..plain()
    });
    assert!(error.contains("--families broad"), "{error}");
    let against = vec![plain().policy];
    let error = refused(Search { against, ..plain() });
    assert!(error.contains("`rlcc` is the policy"), "{error}");
    let file = tempfile::NamedTempFile::new().expect("a scratch file");
    let error = refused(Search {
        dir: file.path().join("under-a-file"),
        ..plain()
    });
    assert!(
        error.contains("under-a-file") && error.contains("--out"),
        "{error}"
    );
}
