//! A queue of the sending host: TCP does not fill it, and what it adds to the round trip is small.

use std::path::Path;

use cc_sim::{
    path::Observation,
    scenario,
    sim::{Control, FlowTotals, Simulation},
};

/// Runs flows of a scheme for 20 s.
fn run(scheme: &str, link: &str) -> (Vec<FlowTotals>, Observation) {
    let text = format!("[[scenario]]\nname = \"test\"\n{link}");
    let scenario = scenario::parse(&text, Path::new("."))
        .expect("valid")
        .remove(0);
    let flows = scenario.flows.len();
    let control = |_| Control::named(scheme, 1).expect("a known control");
    let mut simulation = Simulation::observed(&scenario, (0..flows).map(control).collect(), 1);
    simulation.run(20_000_000_000);
    let totals = (0..flows).map(|flow| simulation.flow(flow)).collect();
    (totals, simulation.observation().expect("it was asked for"))
}

fn mbps(flow: &FlowTotals) -> f64 {
    flow.payload_delivered as f64 * 8.0 / 20e6
}

const WIDE: &str = "rate_mbps = 100\ndelay_ms = 10\n";

#[test]
fn the_hosts_rate_is_used_up_without_a_standing_queue() {
    for scheme in ["cubic", "reno", "bbr"] {
        for rate in [2.0, 20.0, 80.0] {
            let link = format!("{WIDE}sender = {{ rate_mbps = {rate} }}");
            let (flows, observation) = run(scheme, &link);
            let (flow, link) = (&flows[0], &observation.forward.flows[0]);
            println!(
                "{scheme} at {rate}: {:.2} Mbit/s, RTT {} µs",
                mbps(flow),
                flow.srtt_us
            );
            let ideal = rate * 1448.0 / 1500.0;
            assert!(mbps(flow) > 0.96 * ideal, "{scheme} at {rate}: {flow:?}");
            assert_eq!((flow.retransmissions, link.dropped.total().packets), (0, 0));
            // The path's 20 ms, a dozen segments at the rate of the host, and the long bursts of a
            // slow start that no loss has ended.
            let most = 20_500.0 + 12.0 * 12_000.0 / rate + 10_000.0;
            assert!(
                f64::from(flow.srtt_us) < most,
                "{scheme} at {rate}: {flow:?}"
            );
        }
    }
}

/// A window of 1000 segments would fill a queue of the path with 11 MB.
#[test]
fn a_cwnd_that_the_host_holds_back_does_not_grow() {
    let (flows, _) = run("cubic", &format!("{WIDE}sender = {{ rate_mbps = 20 }}"));
    let product = 20e6 * 0.02 / 12_000.0;
    assert!(f64::from(flows[0].cwnd) < 5.0 * product, "{:?}", flows[0]);
}

#[test]
fn flows_share_the_hosts_rate() {
    let link = format!(
        "{WIDE}sender = {{ rate_mbps = 20 }}\n{}",
        "[[scenario.flow]]\n".repeat(4)
    );
    let (flows, _) = run("cubic", &link);
    let rates: Vec<f64> = flows.iter().map(mbps).collect();
    let total: f64 = rates.iter().sum();
    assert!(total > 18.5, "{rates:?}");
    assert!(rates.iter().all(|rate| *rate > 2.0), "{rates:?}");
}

#[test]
fn a_host_that_is_faster_than_the_path_changes_little() {
    let link = "rate_mbps = 10\ndelay_ms = 20\nqueue = { bdp = 1 }\n";
    let (without, _) = run("cubic", link);
    let (with, observation) = run("cubic", &format!("{link}sender = {{ rate_mbps = 1000 }}"));
    let (without, with) = (mbps(&without[0]), mbps(&with[0]));
    assert!((with / without - 1.0).abs() < 0.02, "{with} and {without}");
    assert!(observation.forward.flows[0].dropped.total().packets > 0);
}

#[test]
fn a_queue_of_few_packets_drops_and_the_cwnd_answers() {
    let sender = "sender = { rate_mbps = 20, packets = 5 }";
    let flows = "[[scenario.flow]]\n".repeat(8);
    let (flows, observation) = run("cubic", &format!("{WIDE}{sender}\n{flows}"));
    let total: f64 = flows.iter().map(mbps).sum();
    assert!(total > 15.0, "{total}");
    assert!(flows.iter().any(|flow| flow.retransmissions > 0));
    let dropped = observation.forward.total().dropped.total().packets;
    assert_eq!(dropped, 0, "the path has no part in it");
}
