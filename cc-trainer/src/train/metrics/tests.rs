//! Pages of runs in progress, asked for over HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::*;
use crate::{
    rollout::Rollout,
    train::{self, TrainEvent, Training, config::Overrides},
};

/// Returns status and body of the answer to a request such as `GET /metrics`.
fn ask(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let deadline = Some(Duration::from_secs(60));
    stream.set_read_timeout(deadline).expect("a socket");
    let request = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// Returns the samples of a page by name and labels. Asserts what the format asks for: that each
/// family is described before its samples, once, and that the page ends.
pub(in crate::train) fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, page) = ask(address, "GET /metrics");
    assert_eq!(status, 200, "{page}");
    let page = page.strip_suffix("# EOF\n").expect("the end");
    let mut samples = BTreeMap::new();
    let mut families = Vec::new();
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            let (family, help) = described.split_once(' ').expect("a help text");
            assert!(
                help.len() > 10 && family.starts_with("cc_trainer_"),
                "{line}"
            );
            assert!(!families.contains(&family), "{family} twice");
            families.push(family);
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let family = families.last().expect("a description");
            assert!(name.starts_with(family), "{line} after {family}");
            let value = value.parse().expect("a number");
            assert_eq!(samples.insert(name.to_owned(), value), None, "{name} twice");
        }
    }
    samples
}

fn training(dir: &Path, at: &str, exposed: bool) -> Training {
    let config = "
        actors = 0
        threads = 1
        steps = 1_000_000_000
        [environment]
        kind = \"cartpole\"
        [model]
        hidden = [8]
        lstm = 0
        [learner]
        batch = 4
        unroll = 10
        [actor]
        environments = 3
    ";
    Training {
        config: Some(toml::from_str(config).expect("settings")),
        overrides: Overrides::default(),
        dir: dir.to_owned(),
        command: String::new(),
        listening: None,
        metrics: Some(MetricsAddress {
            address: at.parse().expect("an address"),
            exposed,
        }),
        store: None,
    }
}

#[test]
fn a_page_says_what_the_run_does() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let stop = AtomicBool::new(false);
    let mut address = None;
    let mut pages = Vec::new();
    let training = training(dir.path(), "127.0.0.1:0", false);
    train::train(&training, &stop, &mut |event| match event {
        TrainEvent::Metrics { address: at } => address = Some(at),
        TrainEvent::Progress(point) => {
            let at = address.expect("it is served before the first update");
            let page = scrape(at);
            assert_eq!(page["cc_trainer_run_steps"], point.steps as f64);
            assert_eq!(page["cc_trainer_policy_version"], point.updates as f64);
            pages.push(page);
            if pages.len() == 2 {
                assert_eq!(ask(at, "HEAD /metrics").0, 200);
                assert_eq!(ask(at, "POST /metrics").0, 405);
                assert_eq!(ask(at, "GET /").0, 404);
                stop.store(true, Ordering::Relaxed);
            }
        }
        _ => {}
    })
    .expect("a good run");
    let [first, second] = &pages[..] else {
        panic!("two pages")
    };
    for counter in ["steps", "rollouts", "learner_busy_seconds"] {
        let of = |page: &BTreeMap<String, f64>| page[&format!("cc_trainer_{counter}_total")];
        assert!(of(first) > 0.0 && of(first) < of(second), "{counter}");
    }
    assert_eq!(
        second["cc_trainer_steps_total"],
        10.0 * second["cc_trainer_rollouts_total"]
    );
    let busy = second["cc_trainer_learner_utilization"];
    assert!(busy > 0.0 && busy < 1.0, "{busy}");
    assert_eq!(second["cc_trainer_learner_idle"], 1.0 - busy);
    assert!(second["cc_trainer_steps_per_second"] > 0.0);
    // Acting and learning in turns, rollouts are of the newest policy when they begin.
    assert!(second["cc_trainer_rollout_lag{quantile=\"0.5\"}"] <= 3.0);
    assert_eq!(
        second["cc_trainer_rollouts_refused_total{reason=\"stale\"}"],
        0.0
    );
    // It listens for no workers.
    assert!(!second.contains_key("cc_trainer_workers"));
    let gone = TcpStream::connect(address.expect("an address"));
    assert!(gone.is_err(), "the run has ended");
}

#[test]
fn the_documentation_names_every_metric() {
    let meter = Meter::new(0, 0);
    meter.listen("a run", Arc::default());
    meter.learnt().take(&[Rollout::default()], 0);
    meter.learnt().episode_return = Some(1.0);
    let mut moment = meter.now();
    if let Some(workers) = &mut moment.workers {
        workers.mean_handling = Some(Duration::ZERO);
    }
    let page = page::encode(moment);
    let documentation = include_str!("../../../../docs/distributed.md");
    let sample = |line: &&str| !line.starts_with('#');
    let names: BTreeSet<_> = page
        .lines()
        .filter(sample)
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    assert_eq!(names.len(), 22);
    for name in names {
        let is_there = [format!("`{name}`"), format!("`{name}{{")]
            .iter()
            .any(|text| documentation.contains(text));
        assert!(is_there, "{name}");
    }
}

#[test]
fn other_hosts_are_served_on_purpose_only() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let stop = AtomicBool::new(true);
    let run = |exposed| {
        let training = training(dir.path(), "0.0.0.0:0", exposed);
        train::train(&training, &stop, &mut |_| {})
    };
    let error = run(false).expect_err("other hosts reach it").to_string();
    assert!(error.contains("0.0.0.0:0 can be reached"), "{error}");
    assert!(error.contains("--expose-metrics"), "{error}");
    run(true).expect("it was asked for");
}
