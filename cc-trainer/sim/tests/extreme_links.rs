//! Links at the ends of what is found: whichever control runs on them, a simulation stays sane.

use std::time::Duration;

use cc_sim::{
    scenario::families::Family,
    sim::{Control, Simulation},
};

/// Length of a run, s.
const SECONDS: u64 = 3;

/// Three links of each kind, other ones than the built-in sets have, each under one control.
#[test]
fn flows_get_something_and_no_more_than_there_is() {
    let links = Family::Extreme.sample("any", 3, 99);
    for (scenario, scheme) in links
        .iter()
        .zip(["cubic", "bbr", "reno"].into_iter().cycle())
    {
        let name = format!("{scheme}, {}: {}", scenario.name, scenario.description);
        let flows = scenario.flows.iter().zip(1..);
        let controls = flows.map(|(flow, seed)| {
            let scheme = flow.scheme.as_deref().unwrap_or(scheme);
            Control::named(scheme, seed).expect("a known control")
        });
        let mut simulation = Simulation::observed(scenario, controls.collect(), 1);
        simulation.run(SECONDS * 1_000_000_000);
        let observation = simulation.observation().expect("it was asked for");
        let bits = observation.forward.total().delivered.bytes as f64 * 8.0;
        let capacity = scenario.capacity_bits(Duration::ZERO, Duration::from_secs(SECONDS));
        // Buckets are full at the start, and with an outage at the end less is counted.
        let most = 1.05 * capacity.expect("all are limited") + 8.0 * 3e6 + 12e3;
        assert!(bits <= most, "{name}: {bits} of {most} bits");
        let flows = (0..scenario.flows.len()).map(|flow| simulation.flow(flow));
        let mut delivered = 0;
        for flow in flows {
            let sent = flow.bytes_sent - flow.bytes_retransmitted;
            assert!(flow.payload_delivered <= sent, "{name}: {flow:?}");
            delivered += flow.payload_delivered;
        }
        assert!(delivered > 0, "{name}");
    }
}
