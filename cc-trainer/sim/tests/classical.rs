//! What classical congestion controls are known for has to show on simulated links: Vegas' short
//! queue and its weakness beside others, Westwood+'s cwnd in random loss, and the fast recovery of
//! the controls for long fat pipes.

use std::path::Path;

use cc_sim::{
    path::Nanos,
    scenario,
    sim::{Control, FlowTotals, Simulation},
};

const SECOND: Nanos = 1_000_000_000;

/// Payload that flows delivered between two times and how they stood at the end, for one flow per
/// control on this link.
struct Outcome {
    delivered: Vec<u64>,
    end: Vec<FlowTotals>,
}

impl Outcome {
    /// Mean throughput of a flow in Mbit/s over `seconds`.
    fn mbps(&self, flow: usize, seconds: u64) -> f64 {
        self.delivered[flow] as f64 * 8.0 / 1e6 / seconds as f64
    }
}

/// Runs a flow of each control over the link, and measures from second `from` to second `to`.
fn run(controls: &[&str], link: &str, from: u64, to: u64) -> Outcome {
    let flows = "[[scenario.flow]]\n".repeat(controls.len());
    let text = format!("[[scenario]]\nname = \"link\"\n{link}\n{flows}");
    let scenarios = scenario::parse(&text, Path::new(".")).expect("a valid scenario");
    let named = |&name: &&str| Control::named(name, 1).expect("a known control");
    let controls: Vec<Control> = controls.iter().map(named).collect();
    let count = controls.len();
    let mut simulation = Simulation::new(&scenarios[0], controls, 1);
    simulation.run(from * SECOND);
    let flows = |simulation: &Simulation| -> Vec<FlowTotals> {
        (0..count).map(|flow| simulation.flow(flow)).collect()
    };
    let begin = flows(&simulation);
    simulation.run(to * SECOND);
    let end = flows(&simulation);
    let delivered = (end.iter().zip(&begin))
        .map(|(end, begin)| end.payload_delivered - begin.payload_delivered)
        .collect();
    Outcome { delivered, end }
}

#[test]
fn vegas_keeps_a_few_segments_in_a_deep_queue() {
    // A segment is a ms; the queue holds 500.
    let link = "rate_mbps = 12\ndelay_ms = 30\nqueue = { packets = 500 }";
    let vegas = run(&["vegas"], link, 10, 20);
    assert!(vegas.mbps(0, 10) > 11.0, "{}", vegas.mbps(0, 10));
    let queued_us = vegas.end[0].srtt_us - 60_000;
    assert!((500..8_000).contains(&queued_us), "{queued_us} µs");
    assert_eq!(vegas.end[0].retransmissions, 0);
    let reno = run(&["reno"], link, 10, 20);
    assert!(reno.end[0].srtt_us > 150_000, "{}", reno.end[0].srtt_us);
}

#[test]
fn vegas_gives_way_to_cubic() {
    let link = "rate_mbps = 12\ndelay_ms = 20\nqueue = { bdp = 2.0 }";
    let shared = run(&["vegas", "cubic"], link, 10, 30);
    let (vegas, cubic) = (shared.mbps(0, 20), shared.mbps(1, 20));
    assert!(vegas < cubic / 3.0, "{vegas} beside {cubic}");
}

#[test]
fn westwood_keeps_its_cwnd_where_losses_are_random() {
    let link = "rate_mbps = 20\ndelay_ms = 40\nloss = 0.003\nqueue = { bdp = 1.0 }";
    let [westwood, reno] = ["westwood", "reno"].map(|name| run(&[name], link, 3, 30).mbps(0, 27));
    assert!(westwood > 1.5 * reno, "{westwood} and {reno}");
}

#[test]
fn westwood_drains_the_queue_at_a_loss() {
    // The loss comes at twice the BDP of 60 segments.
    let link = "rate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1.0 }";
    let westwood = run(&["westwood"], link, 5, 30);
    assert!(westwood.mbps(0, 25) > 11.0, "{}", westwood.mbps(0, 25));
    let ssthresh = westwood.end[0].ssthresh;
    assert!((50..=80).contains(&ssthresh), "{ssthresh}");
}

#[test]
fn controls_for_long_fat_pipes_use_more_of_one_than_reno() {
    // A BDP of 500 segments; Reno's cwnd is about 1.2 / √loss = 120.
    let link = "rate_mbps = 60\ndelay_ms = 50\nloss = 0.0001\nqueue = { bdp = 1.0 }";
    let mbps = |name| run(&[name], link, 5, 30).mbps(0, 25);
    let reno = mbps("reno");
    for name in ["htcp", "bic", "illinois", "yeah"] {
        let other = mbps(name);
        assert!(other > 1.3 * reno, "{name}: {other}, reno: {reno}");
    }
}

#[test]
fn yeah_keeps_a_shorter_queue_than_bic() {
    // A BDP of 800 segments and four times as many in the queue. YeAH drains the queue at 80
    // segments, 32 ms. An eighth of the RTT is longer than that; where it is shorter, YeAH grows as
    // Reno does before it drains, and after a few round trips drains no more until a loss.
    let link = "rate_mbps = 30\ndelay_ms = 160\nqueue = { bdp = 4.0 }";
    let [yeah, bic] = ["yeah", "bic"].map(|name| run(&[name], link, 20, 30));
    assert!(yeah.mbps(0, 10) > 27.0, "{}", yeah.mbps(0, 10));
    let queued_ms = |outcome: &Outcome| f64::from(outcome.end[0].srtt_us - 320_000) / 1e3;
    let (yeah, bic) = (queued_ms(&yeah), queued_ms(&bic));
    assert!(yeah < 45.0 && bic > 3.0 * yeah, "{yeah} ms, {bic} ms");
}
