//! End-to-end evaluations in the simulator.

use super::*;
use cc_sim::scenario;

/// 12 Mbit/s with a queue of one BDP and an RTT of 20 ms.
const SMALL: &str = "
[[scenario]]
name = \"small\"
rate_mbps = 12
delay_ms = 10
loss = 0.001
queue = { bdp = 1 }
";

/// Two flows, of which the second one runs CUBIC and starts later.
const SHARED: &str = "
[[scenario]]
name = \"shared\"
rate_mbps = 12
delay_ms = 10
queue = { bdp = 1 }

[[scenario.flow]]

[[scenario.flow]]
start_s = 1
stop_s = 2.5
scheme = \"cubic\"
";

/// Two runs of 3 s of each scheme on each link, in the simulator.
pub(crate) fn evaluation(links: &str, schemes: &str, dir: &tempfile::TempDir) -> Evaluation {
    let policy = PolicySpec::Default;
    Evaluation {
        on: Platform::Sim,
        schemes: parse_schemes(schemes, &policy, None, Controls::SIMULATOR).expect("all are there"),
        scenarios: scenario::parse(links, "links.toml".as_ref()).expect("they are good"),
        policy,
        serving: None,
        seconds: Some(Duration::from_secs(3)),
        runs: 2,
        seed: 1,
        jobs: Jobs::Auto,
        dir: dir.path().to_owned(),
        fresh: false,
        agent: None,
        record: None,
        command: "test".into(),
    }
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

fn done(evaluation: &Evaluation) -> Outcome {
    evaluate(evaluation, &AtomicBool::new(false), |_| {}).expect("it needs nothing")
}

#[test]
fn a_simulated_evaluation_has_all_figures_and_files() {
    let dir = scratch();
    let outcome = done(&evaluation(SMALL, "reno,fixed:10", &dir));
    assert!(outcome.summary_path.is_file());
    assert_eq!(outcome.runs.len(), outcome.summary.runs.len());
    assert_eq!(outcome.summary.settings.on, Platform::Sim);
    let runs = &outcome.summary.runs;
    let order: Vec<_> = runs
        .iter()
        .map(|run| (run.scheme.as_str(), run.run))
        .collect();
    assert_eq!(
        order,
        [("reno", 0), ("reno", 1), ("fixed:10", 0), ("fixed:10", 1)]
    );
    for run in runs {
        assert!(run.is_valid() && run.validity.attempts == 1);
        assert_eq!((run.seconds, run.flows.len()), (3.0, 1));
        let p95 = run.p95_owd_ms.expect("packets were delivered");
        assert!((10.0..40.0).contains(&p95), "{p95}");
        assert!(run.mean_owd_ms < run.p95_owd_ms);
        assert!(run.mean_rtt_ms.expect("it was sampled") >= 20.0);
        assert!((0.0..0.05).contains(&run.loss_rate), "{}", run.loss_rate);
        let share = run.utilization.expect("the link has a rate");
        assert!(
            (run.throughput_mbps / 12.0..1.0).contains(&share),
            "{share}"
        );
    }
    // Ten segments of 1448 bytes per 21 ms: the RTT of 20 ms plus the serialization time.
    let fixed = &runs[2];
    assert!((4.5..5.8).contains(&fixed.throughput_mbps), "{fixed:?}");
    let delay = fixed.decision_delay.expect("an agent served it");
    assert!((20..=30).contains(&delay.decisions), "{delay:?}");
    assert!(delay.p50_us > 0.0 && delay.max_us < 100_000.0, "{delay:?}");
    assert_eq!(runs[0].decision_delay, None);
    assert_ne!(
        runs[0].loss_rate, runs[1].loss_rate,
        "each run has its own random stream"
    );
    let file = std::fs::read_to_string(dir.path().join("runs/small.fixed:10.0.json"));
    let file: RunFile = serde_json::from_str(&file.expect("a file")).expect("a run's");
    assert_eq!(file.series.capacity_mbps.len(), 30);
    let cwnd = &file.series.flows[0].cwnd;
    assert_eq!(cwnd[20..], [Some(10.0); 10]);
}

/// Two links with a queue of five BDPs: 12 Mbit/s at 20 ms, and 40 Mbit/s at 60 ms.
const DEEP: &str = "
[[scenario]]
name = \"short\"
rate_mbps = 12
delay_ms = 10
queue = { bdp = 5 }

[[scenario]]
name = \"long\"
rate_mbps = 40
delay_ms = 30
queue = { bdp = 5 }
";

/// A queue of one packet: the second of two segments that come together is lost.
const POLICER: &str = "
[[scenario]]
name = \"policer\"
rate_mbps = 12
delay_ms = 10
queue = { packets = 1 }
";

#[test]
fn pacing_alone_spares_a_queue_of_one_packet() {
    let dir = scratch();
    let evaluation = Evaluation {
        runs: 1,
        ..evaluation(POLICER, "fixed:12,fixed:12:paced", &dir)
    };
    let outcome = done(&evaluation);
    let [unpaced, paced] = &outcome.summary.runs[..] else {
        panic!("two runs");
    };
    assert!(
        paced.loss_rate < 0.3 * unpaced.loss_rate
            && paced.throughput_mbps > 1.1 * unpaced.throughput_mbps,
        "{unpaced:?} {paced:?}"
    );
    let sources = outcome.summary.settings.policies.iter();
    let sources: Vec<_> = sources.map(|policy| policy.source.as_str()).collect();
    assert_eq!(sources, ["fixed:12", "fixed:12, paced by 1.25"]);
}

#[test]
fn the_default_policy_fills_a_link_and_not_its_queue() {
    let dir = scratch();
    let evaluation = Evaluation {
        seconds: Some(Duration::from_secs(15)),
        runs: 1,
        ..evaluation(DEEP, "rlcc,cubic,random", &dir)
    };
    let runs = done(&evaluation).summary.runs;
    for (scenario, delay_ms) in [("short", 10.0), ("long", 30.0)] {
        let of = |scheme: &str| {
            let mut runs = runs.iter().filter(|run| run.scenario == scenario);
            runs.find(|run| run.scheme == scheme).expect("it ran")
        };
        let (rlcc, cubic, random) = (of("rlcc"), of("cubic"), of("random"));
        let share = rlcc.utilization.expect("the link has a rate");
        assert!(share > 0.8, "{rlcc:?}");
        // A queue of one BDP delays packets by one RTT.
        let queueing = |run: &Run| run.mean_owd_ms.expect("packets were delivered") - delay_ms;
        assert!(queueing(rlcc) < 2.0 * delay_ms, "{rlcc:?}");
        assert!(2.0 * queueing(rlcc) < queueing(cubic), "{rlcc:?} {cubic:?}");
        let power = |run: &Run| run.throughput_mbps / run.p95_owd_ms.unwrap_or(f64::INFINITY);
        assert!(power(rlcc) > 1.5 * power(random), "{rlcc:?} {random:?}");
    }
}

#[test]
fn equal_runs_are_kept_and_fresh_ones_give_equal_results() {
    let dir = scratch();
    let first = evaluation(SMALL, "bbr,random", &dir);
    let runs = done(&first).summary.runs;
    let mut begun = None;
    let again = evaluate(&first, &AtomicBool::new(false), |event| {
        if let Event::Begun { left, kept } = event {
            begun = Some((left, kept));
        }
    });
    assert_eq!(begun, Some((0, 4)));
    // Reading JSON back may change the last digit of a float.
    let kept = again.expect("nothing to do").summary.runs;
    let counts = |runs: &[Run]| {
        runs.iter()
            .map(|run| run.retransmissions)
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(&kept), counts(&runs));
    let fresh = Evaluation {
        fresh: true,
        ..first.clone()
    };
    assert_eq!(done(&fresh).summary.runs, runs);
    let kernel = Evaluation {
        on: Platform::Kernel,
        ..first
    };
    let error = evaluate(&kernel, &AtomicBool::new(false), |_| {}).expect_err("not of the kernel");
    assert!(error.to_string().contains("in the simulator"), "{error}");
}

#[test]
fn flows_run_their_schemes_between_start_and_stop() {
    let dir = scratch();
    let outcome = done(&evaluation(SHARED, "copa", &dir));
    let run = &outcome.summary.runs[0];
    let flows: Vec<_> = run
        .flows
        .iter()
        .map(|flow| (flow.scheme.as_str(), flow.start_s, flow.stop_s))
        .collect();
    assert_eq!(flows, [("copa", 0.0, 3.0), ("cubic", 1.0, 2.5)]);
    let [copa, cubic] = &run.flows[..] else {
        panic!("two flows");
    };
    let bits = 3.0 * copa.throughput_mbps + 1.5 * cubic.throughput_mbps;
    assert!((run.throughput_mbps - bits / 3.0).abs() < 1e-9);
    assert!(cubic.throughput_mbps > 1.0 && run.jain.is_some());
}

#[test]
fn a_cancelled_evaluation_has_no_incomplete_runs() {
    let dir = scratch();
    let outcome = evaluate(
        &evaluation(SMALL, "cubic", &dir),
        &AtomicBool::new(true),
        |_| {},
    );
    let outcome = outcome.expect("nothing failed");
    assert!(outcome.cancelled && outcome.summary.runs.is_empty());
}

#[test]
fn an_unknown_control_is_answered_with_those_of_the_simulator() {
    let error = parse_schemes("cdg", &PolicySpec::Default, None, Controls::SIMULATOR);
    let error = error.expect_err("it has none").to_string();
    assert!(error.contains("the simulator has reno, cubic, "), "{error}");
    assert!(error.contains("fixed:N"), "{error}");
}

/// A run is as long as its scenario says unless the evaluation says otherwise, and a scenario with
/// a length of its own may stand beside one without.
#[test]
fn a_scenario_may_say_how_long_its_runs_are() {
    let own = format!("{SMALL}seconds = 2\n");
    let lengths = |seconds| {
        let dir = scratch();
        let outcome = done(&Evaluation {
            seconds,
            runs: 1,
            ..evaluation(&own, "reno", &dir)
        });
        let settings = &outcome.summary.settings;
        (
            outcome.summary.runs[0].seconds,
            settings.scenarios[0].seconds,
        )
    };
    assert_eq!(lengths(None), (2.0, Some(2.0)));
    assert_eq!(lengths(Some(Duration::from_secs(1))), (1.0, None));
}

#[test]
fn a_link_that_the_emulator_cannot_carry_is_refused_on_the_kernel_only() {
    let fast = "[[scenario]]\nname = \"backbone\"\nrate_mbps = 40000\ndelay_ms = 5\n";
    let dir = scratch();
    let simulated = Evaluation {
        seconds: Some(Duration::from_millis(100)),
        ..evaluation(fast, "reno", &dir)
    };
    Plan::new(&simulated).expect("the simulator has no limit");
    let kernel = Evaluation {
        on: Platform::Kernel,
        ..simulated
    };
    let error = Plan::new(&kernel).expect_err("too fast").to_string();
    let expected = "scenario `backbone`: its link has up to 40000 Mbit/s, and the emulator carries \
                    at most 1000 Mbit/s; use --on sim";
    assert!(error.starts_with(expected), "{error}");
}
