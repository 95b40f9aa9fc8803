//! Applications over emulated links under the running kernel, compared with the simulator.
//!
//! What is compared are medians over many messages of a link with a long round trip, with room for
//! a busy host; a run that the host disturbed decides nothing.

use std::{path::Path, process::ExitCode, sync::atomic::AtomicBool, time::Duration};

use cc_lab::{Outcome, trials};
use cc_sim::{
    scenario::{self, Scenario},
    sim::agent::AgentDelay,
};
use cc_testbed::{
    evaluate::{self, Agents, Controls, FlowSetup, Measured, Scheme, Setup},
    summary::{AppMeasures, Platform},
};

fn main() -> ExitCode {
    cc_lab::run_on_links(trials![
        responses_take_as_long_as_in_the_simulator,
        a_connection_per_request_costs_a_round_trip_more,
        a_trickle_does_not_raise_the_cwnd_of_cubic,
        keystrokes_wait_behind_a_bulk_flow,
        short_flows_complete,
    ])
}

/// 24 Mbit/s with a round trip of 80 ms and a queue of one bandwidth-delay product.
const LINK: &str = "rate_mbps = 24\ndelay_ms = 40\nqueue = { bdp = 1 }";

fn scenario(flows: &str) -> Scenario {
    let text = format!("[[scenario]]\nname = \"test\"\n{LINK}\n{flows}");
    let mut all = scenario::parse(&text, Path::new(".")).expect("a good scenario");
    all.remove(0)
}

/// Runs a scenario under cubic.
fn run(on: Platform, flows: &str, seconds: u64) -> Measured {
    let scenario = scenario(flows);
    let schemes = evaluate::parse_schemes(
        "cubic",
        &cc_core::policy::PolicySpec::Heuristic,
        None,
        Controls::of(on),
    );
    let cubic: Scheme = schemes.expect("both platforms have cubic").remove(0);
    let seconds = Duration::from_secs(seconds);
    let flow = |flow: &scenario::Flow| FlowSetup::of(flow, &cubic, seconds);
    let setup = Setup {
        scenario: &scenario,
        flows: scenario.flows.iter().map(flow).collect(),
        seconds,
        seed: 7,
        // Runs of other programs on this host begin with slot 0.
        slot: 900,
        delay: AgentDelay::MEASURED,
    };
    let never = AtomicBool::new(false);
    let measured = evaluate::run(on, &setup, &Agents::default(), &never, |_| {});
    measured
        .expect("the run is carried out")
        .expect("it is not cancelled")
}

fn only(measured: &Measured) -> &AppMeasures {
    let (run, ..) = measured;
    let mut apps = run.apps.values();
    let (Some(one), None) = (apps.next(), apps.next()) else {
        panic!("one kind of messages: {:?}", run.apps);
    };
    one
}

fn median_ms(measured: &Measured) -> f64 {
    only(measured)
        .completion
        .median_ms
        .expect("some are complete")
}

/// Why the run decides nothing, if the host disturbed it.
fn disturbed(measured: &Measured) -> Option<Outcome> {
    let reasons = &measured.0.validity.reasons;
    (!reasons.is_empty()).then(|| Outcome::Undecided(reasons.join("; ")))
}

fn responses_take_as_long_as_in_the_simulator() -> Outcome {
    for (bytes, seconds) in [(10_000, 6), (200_000, 12)] {
        let flows = format!(
            "[[scenario.flow]]\napp = {{ kind = \"request-response\", bytes = {bytes}, think_ms = \
             50 }}"
        );
        let kernel = run(Platform::Kernel, &flows, seconds);
        let simulated = run(Platform::Sim, &flows, seconds);
        let measures = only(&kernel);
        // What is counted holds on any host: all but the last response are complete.
        assert!(measures.completed > 15, "{measures:?}");
        assert!(measures.count - measures.completed <= 1, "{measures:?}");
        let payload: u64 = measures.completed * bytes;
        assert!(measures.bytes == payload, "{measures:?}");
        let first_byte = measures.first_byte_median_ms.expect("some arrived");
        assert!(
            first_byte > 80.0,
            "no response before a round trip: {measures:?}"
        );
        let undecided = disturbed(&kernel);
        let (kernel, simulated) = (median_ms(&kernel), median_ms(&simulated));
        println!("{bytes} bytes: {kernel:.1} ms on the kernel, {simulated:.1} ms simulated");
        if let Some(undecided) = undecided {
            return undecided;
        }
        let ratio = kernel / simulated;
        assert!(
            (0.8..1.25).contains(&ratio),
            "{bytes}: {kernel} and {simulated} ms"
        );
    }
    Outcome::Passed
}

fn a_connection_per_request_costs_a_round_trip_more() -> Outcome {
    let flows = |connection: &str| {
        format!(
            "[[scenario.flow]]\napp = {{ kind = \"request-response\", bytes = 5000, think_ms = 20, \
             connection = \"{connection}\", count = 30 }}"
        )
    };
    let kept = run(Platform::Kernel, &flows("keep-alive"), 6);
    let new = run(Platform::Kernel, &flows("new"), 8);
    assert_eq!((only(&kept).completed, only(&new).completed), (30, 30));
    if let Some(undecided) = disturbed(&kept).or_else(|| disturbed(&new)) {
        return undecided;
    }
    let more = median_ms(&new) - median_ms(&kept);
    assert!((70.0..120.0).contains(&more), "{more} ms");
    Outcome::Passed
}

fn a_trickle_does_not_raise_the_cwnd_of_cubic() -> Outcome {
    let flows = "[[scenario.flow]]\napp = { kind = \"script\", steps = [{ name = \"trickle\", \
                 bytes = 6000, every_ms = 50, for_s = 4 }, { pause_s = 1 }, { name = \"burst\", \
                 bytes = 300000 }] }";
    let measured = run(Platform::Kernel, flows, 8);
    let (run, series, messages) = &measured;
    assert_eq!(
        (run.apps["trickle"].completed, run.apps["burst"].completed),
        (80, 1)
    );
    assert_eq!(messages.len(), 81);
    let payload = 80 * 6_000 + 300_000;
    let mbps = run.throughput_mbps * run.seconds * 1e6 / 8.0;
    assert!((mbps - f64::from(payload)).abs() < 1.0, "{mbps}");
    // In the last second before the burst.
    let cwnds = series.flows[0].cwnd[40..50].iter().flatten();
    for &cwnd in cwnds {
        assert!(cwnd <= 40.0, "twice what was used at most: {cwnd}");
    }
    Outcome::Passed
}

fn keystrokes_wait_behind_a_bulk_flow() -> Outcome {
    let flows = "[[scenario.flow]]\n[[scenario.flow]]\nstart_s = 1\napp = { kind = \"keystrokes\", \
                 mean_ms = 50 }";
    let measured = run(Platform::Kernel, flows, 8);
    let measures = only(&measured);
    assert!(measures.completed > 60, "{measures:?}");
    let echo = measures.echo_median_ms.expect("the far end echoes");
    let completion = measures.completion.median_ms.expect("some are complete");
    assert!(echo > completion + 39.0 && echo > 80.0, "{measures:?}");
    assert!(
        measured.0.flows[0].throughput_mbps > 5.0,
        "the bulk flow runs beside it"
    );
    Outcome::Passed
}

fn short_flows_complete() -> Outcome {
    let flows = "[[scenario.flow]]\napp = { kind = \"short-flows\", load = 0.4, count = 80, \
                 sizes = { pareto = 1.2, least_bytes = 5000, most_bytes = 500000 } }";
    let kernel = run(Platform::Kernel, flows, 8);
    let simulated = run(Platform::Sim, flows, 8);
    let sizes = |measured: &Measured| -> Vec<u64> {
        measured.2.iter().map(|message| message.bytes).collect()
    };
    assert_eq!(
        sizes(&kernel),
        sizes(&simulated),
        "the seed determines them"
    );
    assert_eq!((only(&kernel).count, only(&kernel).completed), (80, 80));
    // A round trip for the handshake, and the way of the data.
    let fastest = kernel.2.iter().filter_map(|message| message.completion_ms);
    assert!(fastest.reduce(f64::min).is_some_and(|time| time > 120.0));
    let undecided = disturbed(&kernel);
    let (kernel, simulated) = (median_ms(&kernel), median_ms(&simulated));
    println!("{kernel:.1} ms on the kernel, {simulated:.1} ms simulated");
    if let Some(undecided) = undecided {
        return undecided;
    }
    let ratio = kernel / simulated;
    assert!((0.7..1.4).contains(&ratio), "{kernel} and {simulated} ms");
    Outcome::Passed
}
