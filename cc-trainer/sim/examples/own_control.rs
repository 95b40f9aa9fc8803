//! A congestion control of one's own in the simulator, beside CUBIC on the same link.
//!
//! ```console
//! $ cargo run -p cc-sim --example own_control
//! ```

use std::path::Path;

use cc_ebpf::{AckSample, CwndState, reno};
use cc_sim::{
    scenario::{self, Scenario, ScenarioError},
    sim::{
        Control, Simulation,
        control::{CongestionControl, RateSample},
    },
};

/// Length of a run, s.
const SECONDS: u64 = 30;

/// Additive increase, multiplicative decrease (Chiu and Jain 1989) with constants of one's own.
#[derive(Debug)]
struct Aimd {
    /// Segments by which the cwnd grows per round trip.
    increase: u32,
    /// Part of the cwnd that a loss leaves, in tenths.
    decrease_tenths: u32,
}

impl CongestionControl for Aimd {
    fn on_ack(&mut self, cwnd: &mut CwndState, ack: &AckSample, _rate: &RateSample) {
        if !ack.cwnd_limited {
            return;
        }
        let mut acked = ack.acked;
        if reno::in_slow_start(cwnd) {
            acked = reno::slow_start(cwnd, acked);
        }
        // One segment more per this many acknowledged ones.
        let interval = (cwnd.cwnd / self.increase).max(1);
        reno::additive_increase(cwnd, interval, acked);
    }

    fn ssthresh(&mut self, cwnd: &CwndState) -> u32 {
        (cwnd.cwnd * self.decrease_tenths / 10).max(2)
    }
}

fn main() -> Result<(), ScenarioError> {
    let text = r#"
        [[scenario]]
        name = "lossy"
        rate_mbps = 24
        delay_ms = 20
        loss = 0.0005
        queue = { bdp = 1 }
    "#;
    let scenario = scenario::parse(text, Path::new("."))?.remove(0);
    let aimd = Aimd {
        increase: 2,
        decrease_tenths: 8,
    };
    let controls = [
        ("cubic", Control::named("cubic", 1)),
        ("aimd", Some(Control::Custom(Box::new(aimd)))),
    ];
    println!("{:>8} {:>10} {:>10}", "", "Mbit/s", "p95 ms");
    for (name, control) in controls {
        let control = control.expect("a known control");
        let (mbps, p95_ms) = run(&scenario, control);
        println!("{name:>8} {mbps:>10.2} {p95_ms:>10.1}");
    }
    Ok(())
}

/// Throughput of payload in Mbit/s, and the 95th percentile of the one-way delay in ms.
fn run(scenario: &Scenario, control: Control) -> (f64, f64) {
    let mut simulation = Simulation::observed(scenario, vec![control], 1);
    simulation.run(SECONDS * 1_000_000_000);
    let bits = simulation.flow(0).payload_delivered as f64 * 8.0;
    let observation = simulation.observation().expect("the path is observed");
    let delay = observation.forward.flows[0].delay_quantile(0.95);
    let p95_ms = delay.map_or(f64::NAN, |delay| delay.as_secs_f64() * 1e3);
    (bits / SECONDS as f64 / 1e6, p95_ms)
}
