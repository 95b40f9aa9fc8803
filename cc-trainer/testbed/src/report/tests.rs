use rand::{RngExt, SeedableRng, rngs::StdRng};

use std::fs;

use super::*;
use crate::summary::{
    DecisionDelay, FlowSeries, Host, PolicyFacts, Series, SetFacts, Settings, TrainedOn, Validity,
};

const SCHEMES: [&str; 6] = ["rlcc", "cubic", "bbr", "reno", "random", "fixed:10"];

/// Behaviour of a made-up scheme: its share of the link, its queueing delay in ms and its losses.
fn manner(scheme: &str) -> (f64, f64, f64) {
    match scheme {
        "rlcc" => (0.94, 12.0, 0.0004),
        "cubic" => (0.985, 140.0, 0.006),
        "bbr" => (0.96, 38.0, 0.001),
        "reno" => (0.97, 118.0, 0.004),
        "random" => (0.55, 60.0, 0.03),
        _ => (0.32, 0.4, 0.0),
    }
}

/// A made-up evaluation with plausible time series.
fn evaluation(scenarios: usize, runs: u32, seconds: f64, flows: usize) -> (Summary, Vec<RunFile>) {
    let mut random = StdRng::seed_from_u64(3);
    let mut files = Vec::new();
    let mut facts = Vec::new();
    for scenario in 0..scenarios {
        let rate = 12.0 * f64::from(1 << (scenario % 4)) / 2.0;
        let owd_ms = 10.0 + 7.0 * scenario as f64;
        let name = format!("made-up-{scenario}");
        for scheme in SCHEMES {
            for run in 0..runs {
                files.push(file(
                    &mut random,
                    (&name, rate, owd_ms),
                    scheme,
                    run,
                    seconds,
                    flows,
                ));
            }
        }
        facts.push(ScenarioFacts {
            name,
            description: format!("A made-up link, number {scenario}"),
            rate_mbps: Some(rate),
            owd_ms,
            rtt_ms: 2.0 * owd_ms,
            flows: flows as u32,
            seconds: None,
        });
    }
    if let Some(file) = files.get_mut(4) {
        file.run.validity.reasons =
            vec!["packets left 12 ms late (p99.9; the limit is 1 ms)".into()];
    }
    let settings = Settings {
        on: Platform::default(),
        command: "cc-trainer evaluate --scenarios made-up".into(),
        date: "2026-01-02T03:04:05Z".into(),
        seconds,
        runs,
        seed: 1,
        schemes: SCHEMES.map(str::to_owned).to_vec(),
        scenarios: facts,
        policies: vec![PolicyFacts {
            scheme: "rlcc".into(),
            source: "default".into(),
            sha256: "0f".repeat(32),
            trained_on: None,
        }],
        sets: Vec::new(),
    };
    let host = Host {
        kernel: "6.12.0".into(),
        cpu: "A processor".into(),
        cores: 2,
        memory_bytes: 8 << 30,
        congestion_controls: vec!["reno".into(), "cubic".into()],
        version: "0.1.0".into(),
    };
    let runs = files.iter().map(|file| file.run.clone()).collect();
    (
        Summary {
            runs,
            applications: Vec::new(),
            host,
            settings,
        },
        files,
    )
}

fn file(
    random: &mut StdRng,
    (scenario, rate, owd_ms): (&str, f64, f64),
    scheme: &str,
    run: u32,
    seconds: f64,
    flows: usize,
) -> RunFile {
    let (share, queueing, loss) = manner(scheme);
    let mut near = |value: f64| value * random.random_range(0.94..1.03);
    let share = near(share).min(0.99);
    let queueing = near(queueing) * near(1.0);
    let bins = (seconds * 10.0) as usize;
    let saw = |i: usize| 0.6 + 0.4 * ((i % 67) as f64 / 67.0);
    let start = |flow: usize| flow as f64 * seconds / (2.0 * flows as f64);
    let active = |i: usize| {
        (0..flows)
            .filter(|&flow| i as f64 / 10.0 >= start(flow))
            .count()
            .max(1) as f64
    };
    let flow_series = |flow: usize| {
        let is_on = |i: usize| i as f64 / 10.0 >= start(flow);
        FlowSeries {
            throughput_mbps: (0..bins)
                .map(|i| {
                    if is_on(i) {
                        rate * share * saw(i + 9 * flow).sqrt() / active(i)
                    } else {
                        0.0
                    }
                })
                .collect(),
            cwnd: (0..bins)
                .map(|i| {
                    is_on(i).then(|| {
                        (rate * (owd_ms + queueing) / 6.0 * saw(i + 9 * flow) / active(i)).max(2.0)
                    })
                })
                .collect(),
            rtt_ms: vec![Some(2.0 * owd_ms + queueing); bins],
        }
    };
    let flow_run = |flow: usize| FlowRun {
        scheme: if flow % 2 == 1 {
            "cubic".into()
        } else {
            scheme.into()
        },
        start_s: start(flow),
        stop_s: seconds,
        throughput_mbps: rate * share / flows as f64,
        p95_owd_ms: Some(owd_ms + queueing),
        ..FlowRun::default()
    };
    RunFile {
        key: "key".into(),
        messages: Vec::new(),
        run: Run {
            apps: Default::default(),
            scenario: scenario.into(),
            scheme: scheme.into(),
            run,
            seconds,
            throughput_mbps: rate * share * 0.965,
            utilization: Some(share),
            p95_owd_ms: Some(owd_ms + queueing),
            mean_owd_ms: Some(owd_ms + 0.7 * queueing),
            mean_rtt_ms: Some(2.0 * owd_ms + 0.7 * queueing),
            loss_rate: near(loss),
            retransmissions: (loss * 1e5) as u64,
            decision_delay: (scheme == "rlcc").then_some(DecisionDelay {
                decisions: 300,
                p50_us: 120.0,
                p99_us: 410.0,
                max_us: 900.0,
            }),
            jain: (flows > 1).then(|| near(0.95)),
            least_over_greatest: (flows > 1).then(|| near(0.8)),
            convergence_s: (flows > 1 && run != 1).then(|| near(4.0)),
            validity: Validity {
                attempts: 1,
                lateness_p999_ms: 0.08,
                ..Validity::default()
            },
            flows: (0..flows).map(flow_run).collect(),
            segments: Vec::new(),
        },
        series: Series {
            bin_s: 0.1,
            capacity_mbps: vec![Some(rate); bins],
            delay_ms: (0..bins)
                .map(|i| (i > 2).then(|| owd_ms + queueing * saw(i).powi(2)))
                .collect(),
            queue_bytes: vec![3000; bins],
            dropped: vec![0; bins],
            flows: (0..flows).map(flow_series).collect(),
        },
    }
}

/// Checks that the page is well-formed XML: every element is closed in order, every attribute is
/// quoted and unique, and there is no stray `<` or `&`.
fn check(html: &str) -> Result<(), String> {
    let mut rest = html.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    let mut open: Vec<&str> = Vec::new();
    while let Some((text, tail)) = rest.split_once('<') {
        check_references(text)?;
        let (tag, tail) = tail.split_once('>').ok_or("a tag that does not end")?;
        rest = tail;
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!(
                    "</{name}> closes something else, before {rest:.60}"
                ));
            }
            continue;
        }
        let (tag, is_empty) = tag
            .strip_suffix('/')
            .map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        check_attributes(attributes).map_err(|error| format!("<{tag}>: {error}"))?;
        if !is_empty {
            open.push(name);
        }
    }
    check_references(rest)?;
    if open.is_empty() {
        Ok(())
    } else {
        Err(format!("{open:?} stay open"))
    }
}

fn check_attributes(mut rest: &str) -> Result<(), String> {
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (name, value) = rest
            .split_once("=\"")
            .ok_or_else(|| format!("{rest}: no quoted value"))?;
        let (value, tail) = value
            .split_once('"')
            .ok_or_else(|| format!("{name}: a value that does not end"))?;
        check_references(value)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if names.contains(&name) || name.is_empty() || !name.chars().all(is_name) {
            return Err(format!("{name}: a bad name, or one that comes again"));
        }
        names.push(name);
        rest = tail.strip_prefix(' ').unwrap_or(tail);
    }
    Ok(())
}

fn check_references(text: &str) -> Result<(), String> {
    for after in text.split('&').skip(1) {
        let name = after.split_once(';').ok_or("a bare &")?.0;
        if !["amp", "lt", "gt", "quot", "#39", "#160"].contains(&name) {
            return Err(format!("&{name}; is unknown"));
        }
    }
    if text.contains('>') {
        return Err(format!("a stray > in {text:.60}"));
    }
    Ok(())
}

#[test]
fn the_checker_finds_malformed_pages() {
    for wrong in [
        "<a>",
        "<a></b>",
        "<a b=c></a>",
        "a & b",
        "a > b",
        "<a b=\"1\" b=\"2\"/>",
        "</a>",
    ] {
        assert!(
            check(&format!("<!DOCTYPE html>{wrong}")).is_err(),
            "{wrong}"
        );
    }
    assert_eq!(check("<!DOCTYPE html><a b=\"1\"><c/>&amp;</a>"), Ok(()));
}

/// The page without its style sheet, which is not XML.
fn page(summary: &Summary, files: &[RunFile]) -> String {
    html(summary, files).replace(STYLE, "")
}

#[test]
fn a_report_is_well_formed_and_finite() {
    for (scenarios, runs, flows) in [(3, 3, 1), (1, 2, 8), (1, 1, 1), (0, 0, 1)] {
        let (summary, files) = evaluation(scenarios, runs, 30.0, flows);
        for files in [&files[..], &[]] {
            let page = page(&summary, files);
            assert_eq!(check(&page), Ok(()), "{scenarios} scenarios");
            for word in ["NaN", "inf ", "inf\"", "infinity"] {
                assert!(!page.contains(word), "{word} with {scenarios} scenarios");
            }
        }
    }
}

#[test]
fn runs_without_figures_give_a_well_formed_report() {
    let (mut summary, mut files) = evaluation(2, 2, 5.0, 1);
    for run in summary
        .runs
        .iter_mut()
        .chain(files.iter_mut().map(|file| &mut file.run))
    {
        run.p95_owd_ms = None;
        run.throughput_mbps = 0.0;
        run.flows.clear();
    }
    for file in &mut files {
        file.series = Series::default();
    }
    // A value that no file can contain must not break the page.
    summary.runs[0].throughput_mbps = f64::NAN;
    summary.runs[1].throughput_mbps = f64::INFINITY;
    summary.runs[1].p95_owd_ms = Some(f64::NAN);
    let page = page(&summary, &files);
    assert_eq!(check(&page), Ok(()));
    assert!(page.contains("No scheme has a valid run here") && !page.contains("NaN"));
}

#[test]
fn names_are_escaped_wherever_they_appear() {
    let (mut summary, mut files) = evaluation(2, 2, 5.0, 2);
    let bad = "<script>\"'&";
    for run in summary
        .runs
        .iter_mut()
        .chain(files.iter_mut().map(|file| &mut file.run))
    {
        run.scheme = format!("{bad}{}", run.scheme);
        run.scenario = format!("{bad}{}", run.scenario);
        run.validity.reasons.push(bad.into());
        for flow in &mut run.flows {
            flow.scheme = bad.into();
        }
    }
    let settings = &mut summary.settings;
    (settings.command, settings.date) = (bad.into(), bad.into());
    settings.schemes = vec![bad.into()];
    settings
        .scenarios
        .iter_mut()
        .for_each(|facts| facts.description = bad.into());
    settings.policies[0] = PolicyFacts {
        scheme: bad.into(),
        source: bad.into(),
        sha256: bad.into(),
        trained_on: Some(TrainedOn {
            test_sets: Some(bad.into()),
            seen: vec![bad.into()],
        }),
    };
    settings.sets = vec![SetFacts {
        name: bad.into(),
        role: bad.into(),
        sha256: bad.into(),
        included: 1,
        scenarios: 1,
    }];
    summary.host.cpu = bad.into();
    summary.host.kernel = bad.into();
    summary.host.congestion_controls = vec![bad.into()];
    let page = page(&summary, &files);
    assert_eq!(check(&page), Ok(()));
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script"));
}

#[test]
fn a_report_is_self_contained_and_reproducible() {
    let (summary, files) = evaluation(2, 3, 30.0, 1);
    let page = html(&summary, &files);
    assert_eq!(page, html(&summary, &files));
    for outside in ["http:", "https:", "url(", "@import", "<script", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn invalid_runs_are_named_with_their_reasons() {
    let (summary, files) = evaluation(2, 3, 5.0, 1);
    let page = html(&summary, &files);
    assert!(
        page.contains("Invalid runs, in no mean: 1 of 36")
            && page.contains("packets left 12 ms late")
    );
    assert!(page.contains("2/3"));
}

#[test]
fn a_large_evaluation_gives_a_small_report() {
    let (summary, files) = evaluation(18, 3, 30.0, 1);
    let size = html(&summary, &files).len();
    assert!(size < 3_000_000, "{size} bytes");
}

#[test]
fn a_report_is_written_at_once() {
    let (summary, files) = evaluation(1, 1, 5.0, 1);
    let dir = tempfile::tempdir().expect("a folder");
    let path = write(dir.path(), &summary, &files).expect("the folder is there");
    assert_eq!(
        fs::read_to_string(&path).expect("just written"),
        html(&summary, &files)
    );
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
    let error = write(&dir.path().join("absent"), &summary, &files).expect_err("no such folder");
    assert!(error.to_string().contains("absent"), "{error}");
}
