//! Speed of the simulator: packets per second of one bulk flow, decisions per second of a policy
//! that costs nothing, and the memory of a flow. It runs in one thread and reports the best of a
//! few rounds, as other programs can only slow it down.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use cc_lab::Report;
use cc_sim::{
    scenario,
    sim::{
        Control, RECEIVER_REST, Simulation,
        control::{Cubic, Reno},
    },
};
use cc_trainer::environment::{
    Environment, Turn,
    network::{NetworkConfig, NetworkEnvironment, World},
};

/// Number of rounds, of which the best counts.
const ROUNDS: usize = 5;
/// Simulated time of a bulk flow, ns.
const BULK: u64 = 60_000_000_000;
/// Pause between two reads of a receiver that acknowledges every second packet.
const PROMPT: Duration = Duration::from_micros(50);
/// Number of decisions per round.
const STEPS: u32 = 20_000;

fn main() -> anyhow::Result<()> {
    let mut report = Report::new("sim");
    let cubic = || Control::Cubic(Cubic::new());
    let (rate, bytes_per_flow) = bulk(cubic, RECEIVER_REST)?;
    report.show("packets_per_s", rate);
    let (rate, _) = bulk(|| Control::Reno(Reno::new()), RECEIVER_REST)?;
    report.show("packets_per_s_reno", rate);
    let (rate, _) = bulk(cubic, PROMPT)?;
    report.show("packets_per_s_prompt_receiver", rate);
    report.show("env_steps_per_s_calibrated", steps_per_s()?);
    report.show("bytes_per_flow", bytes_per_flow);
    report.write()
}

/// Data packets per second of real time on a link of 100 Mbit/s, and the memory of the flow in
/// bytes.
fn bulk(control: impl Fn() -> Control, rest: Duration) -> anyhow::Result<(f64, f64)> {
    let link =
        "[[scenario]]\nname = \"bulk\"\nrate_mbps = 100\ndelay_ms = 20\nqueue = { bdp = 1.0 }\n";
    let scenarios = scenario::parse(link, Path::new("."))?;
    let link = scenarios.first().context("one scenario")?;
    let rounds = (0..ROUNDS).map(|_| {
        let mut simulation = Simulation::new(link, vec![control()], 1).with_receiver_rest(rest);
        let start = Instant::now();
        simulation.run(BULK);
        let packets = simulation.flow(0).bytes_sent as f64 / 1448.0;
        let rate = packets / start.elapsed().as_secs_f64();
        (rate, simulation.memory(0) as f64)
    });
    Ok(rounds.fold((0.0, 0.0), |best, round| {
        (f64::max(best.0, round.0), f64::max(best.1, round.1))
    }))
}

/// Decisions per second of real time over the calibrated links, each with the observation that a
/// policy would get.
fn steps_per_s() -> anyhow::Result<f64> {
    let calibrated: NetworkConfig = toml::from_str("links = [{ scenarios = \"calibrated\" }]")?;
    let world = Arc::new(World::new(calibrated)?);
    let rounds = (0..ROUNDS as u64).map(|round| {
        let mut network = NetworkEnvironment::new(Arc::clone(&world), round);
        let actions = network.spec().actions;
        let mut turn = Turn::default();
        let start = Instant::now();
        for step in 0..STEPS as usize {
            network.next(&mut turn);
            // Any sequence that uses all of them.
            network.act(step * 7 % actions);
        }
        f64::from(STEPS) / start.elapsed().as_secs_f64()
    });
    Ok(rounds.fold(0.0, f64::max))
}
