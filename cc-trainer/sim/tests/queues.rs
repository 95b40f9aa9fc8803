//! Simulated flows over links with active queue management, shapers, moving delays and poor ACK
//! paths: what each is there for can be seen.

use std::{path::Path, time::Duration};

use cc_sim::{
    path::{FlowObservation, Observation},
    scenario,
    sim::{Control, FlowTotals, Simulation},
};

/// Runs flows under CUBIC over a link for 30 s and returns what the flows and the link saw.
fn run(link: &str) -> (Vec<FlowTotals>, Observation) {
    let text = format!("[[scenario]]\nname = \"test\"\n{link}");
    let scenarios = scenario::parse(&text, Path::new(".")).expect("a good scenario");
    let cubic = |_| Control::named("cubic", 1).expect("a known control");
    let flows = scenarios[0].flows.len();
    let mut simulation = Simulation::observed(&scenarios[0], (0..flows).map(cubic).collect(), 1);
    simulation.run(30_000_000_000);
    let observation = simulation.observation().expect("it was asked for");
    let totals = (0..flows).map(|flow| simulation.flow(flow)).collect();
    (totals, observation)
}

/// Payload of a flow in Mbit/s.
fn mbps(flow: &FlowTotals) -> f64 {
    flow.payload_delivered as f64 * 8.0 / 30e6
}

/// Quantile of the time in the queue in ms, on a link of 20 Mbit/s and 20 ms.
fn queued_ms(flow: &FlowObservation, quantile: f64) -> f64 {
    let delay = flow.delay_quantile(quantile).expect("there were packets");
    delay.as_secs_f64() * 1e3 - 20.6
}

/// 20 Mbit/s and an RTT of 40 ms with a long buffer: 2000 packets are 1.2 s.
fn long_buffer(aqm: &str) -> (FlowTotals, FlowObservation) {
    let link = format!("rate_mbps = 20\ndelay_ms = 20\nqueue = {{ packets = 2000{aqm} }}");
    let (flows, observation) = run(&link);
    let [flow] = flows.try_into().expect("one flow");
    (flow, observation.forward.flows[0].clone())
}

#[test]
fn without_management_a_long_buffer_is_a_long_delay() {
    let (_, link) = long_buffer("");
    assert!(queued_ms(&link, 0.95) > 200.0);
}

#[test]
fn codel_keeps_the_delay_near_its_target() {
    let (flow, link) = long_buffer(", aqm = \"codel\"");
    let (median, p95) = (queued_ms(&link, 0.5), queued_ms(&link, 0.95));
    println!(
        "codel: {:.2} Mbit/s, {median:.1} and {p95:.1} ms",
        mbps(&flow)
    );
    assert!(mbps(&flow) > 17.0, "{}", mbps(&flow));
    assert!(median < 8.0 && p95 < 25.0, "{median} and {p95} ms");
    assert!(flow.retransmissions > 0);
}

#[test]
fn codel_marks_instead_of_dropping() {
    let (flow, link) = long_buffer(", aqm = \"codel\", ecn = true");
    let p95 = queued_ms(&link, 0.95);
    println!("codel with marks: {:.2} Mbit/s, {p95:.1} ms", mbps(&flow));
    assert!(flow.delivered_ce > 0);
    assert_eq!((flow.retransmissions, link.dropped.total().packets), (0, 0));
    assert!(mbps(&flow) > 16.0, "{}", mbps(&flow));
    assert!(p95 < 25.0, "{p95} ms");
}

#[test]
fn pie_keeps_the_delay_near_its_target() {
    for ecn in [false, true] {
        let (flow, link) = long_buffer(&format!(", aqm = \"pie\", ecn = {ecn}"));
        let (median, p95) = (queued_ms(&link, 0.5), queued_ms(&link, 0.95));
        println!(
            "pie, ecn = {ecn}: {:.2} Mbit/s, {median:.1} and {p95:.1} ms",
            mbps(&flow)
        );
        assert!(mbps(&flow) > 17.0, "{}", mbps(&flow));
        assert!(median < 30.0 && p95 < 60.0, "{median} and {p95} ms");
        assert_eq!(flow.delivered_ce > 0, ecn);
    }
}

#[test]
fn dualpi2_marks_classic_flows_near_its_target() {
    let (flow, link) = long_buffer(", aqm = \"dualpi2\"");
    let (median, p95) = (queued_ms(&link, 0.5), queued_ms(&link, 0.95));
    println!(
        "dualpi2: {:.2} Mbit/s, {median:.1} and {p95:.1} ms",
        mbps(&flow)
    );
    assert!(flow.delivered_ce > 0);
    assert!(mbps(&flow) > 17.0, "{}", mbps(&flow));
    assert!(median < 30.0 && p95 < 60.0, "{median} and {p95} ms");
}

#[test]
fn fq_codel_gives_flows_of_different_rtts_equal_rates() {
    let shares = |queue: &str| {
        let (flows, _) = run(&format!(
            "rate_mbps = 20\ndelay_ms = 10\nqueue = {{ {queue} }}\n[[scenario.flow]]\n\
             [[scenario.flow]]\nextra_delay_ms = 40"
        ));
        let (near, far) = (mbps(&flows[0]), mbps(&flows[1]));
        println!("{queue}: {near:.2} and {far:.2} Mbit/s");
        (far / near, near + far)
    };
    let (ratio, total) = shares("aqm = \"fq_codel\"");
    assert!(ratio > 0.8, "{ratio}");
    assert!(total > 18.0, "{total}");
    let (ratio, _) = shares("packets = 100");
    assert!(ratio < 0.7, "without it they are not equal: {ratio}");
}

#[test]
fn fq_codel_keeps_one_flow_from_delaying_another() {
    let (_, observation) = run(
        "rate_mbps = 20\ndelay_ms = 20\nqueue = { aqm = \"fq_codel\" }\n[[scenario.flow]]\n\
         [[scenario.flow]]\nstart_s = 5\napp = { kind = \"keystrokes\", mean_ms = 50 }",
    );
    let keystrokes = queued_ms(&observation.forward.flows[1], 0.95);
    // A full packet that the link is sending, at most, and one of the other flow.
    assert!(keystrokes < 1.5, "{keystrokes} ms");
}

#[test]
fn a_shaper_passes_a_burst_and_then_its_rate() {
    let link = "shaper = { rate_mbps = 10, burst_bytes = 100_000, peak_mbps = 100 }\n\
                delay_ms = 20\nqueue = { packets = 300 }";
    let (flows, observation) = run(link);
    let flow = &observation.forward.flows[0];
    // Slow start, 30 s at the rate, and the bucket.
    let most = 10.0 + 100_000.0 * 8.0 / 30e6;
    let rate = flow.delivered.bytes as f64 * 8.0 / 30e6;
    assert!(rate > 9.9 && rate <= most, "{rate} Mbit/s");
    assert!(mbps(&flows[0]) > 9.4);
    let least = flow.delay_quantile(0.0).expect("there were packets");
    assert!(
        least < Duration::from_micros(20_200),
        "sent at the peak rate: {least:?}"
    );
}

#[test]
fn a_delay_that_moves_reorders_nothing() {
    let link = "rate_mbps = 20\ndelay_ms = 15\njitter_ms = 1\n\
                queue = { aqm = \"codel\", ecn = true }\n\
                delay_variation = { every_s = 5, spread_ms = 15, drift_ms = 3 }\n\
                [scenario.reverse]\ndelay_ms = 10\n\
                delay_variation = { every_s = 5, spread_ms = 15, drift_ms = 3 }";
    let (flows, observation) = run(link);
    assert_eq!((flows[0].lost, flows[0].timeouts), (0, 0), "{:?}", flows[0]);
    assert!(mbps(&flows[0]) > 16.0);
    let data = &observation.forward.flows[0];
    let (least, most) = (data.delay_quantile(0.0), data.delay_quantile(1.0));
    let (least, most) = least.zip(most).expect("there were packets");
    assert!(
        most - least > Duration::from_millis(10),
        "it moves: {least:?} to {most:?}"
    );
}

#[test]
fn a_poor_ack_path_costs_little_until_it_is_very_poor() {
    let goodput = |reverse: &str| {
        let (flows, _) = run(&format!(
            "rate_mbps = 20\ndelay_ms = 20\nqueue = {{ bdp = 1 }}\n[scenario.reverse]\n{reverse}"
        ));
        mbps(&flows[0])
    };
    let good = goodput("");
    let lossy = goodput("loss = 0.2");
    let slow = goodput("rate_mbps = 0.2\nqueue = { packets = 20 }");
    let slower = goodput("rate_mbps = 0.01\nqueue = { packets = 20 }");
    println!("{good:.2}, {lossy:.2}, {slow:.2}, {slower:.2} Mbit/s");
    assert!(good > 18.5);
    assert!(lossy > 0.95 * good, "ACKs are cumulative: {lossy}");
    assert!(slow > 0.85 * good, "{slow}");
    assert!(
        slower < 0.5 * good,
        "24 ACKs a second clock nothing: {slower}"
    );
}
